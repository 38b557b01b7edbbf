"""Fifty proposals are killed, each as a process of its own, while production makes its checkpoints: a real ledger, toys
for the rest. With Spark and Delta: tests/spark/killed_proposals.py."""

from __future__ import annotations

import os
import random
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.simulation.toy_backfill import Endless, replayed
from tidegate import seams
from tidegate.backfill import begin
from tidegate.backfill.choosing import free_name
from tidegate.backfill.discard import discard_named

KILLS = 50
FURTHEST = 60
"""A proposal of five checkpoints passes more fault points than that."""


def is_killed(step: int, work: Callable[[], object]) -> bool:
    """Do some work in a process that is killed at the fault point of this number. Return whether it came to it."""
    pid = os.fork()
    if pid == 0:
        left = step

        def fault(point: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with seams.installed(replace(seams.current(), fault=fault)):
                work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    assert os.WEXITSTATUS(status) == 0, "the work has failed: its traceback is in the output"
    return False


def files_of_production(root: Path) -> dict[str, str]:
    """Every file by its content, without those of lines and their pins."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not any(part in name for part in ("lines/", "pins/")):
            found[name] = sha256(path.read_bytes()).hexdigest()
    return found


@pytest.mark.slow
def test_production_is_as_if_nobody_had_proposed(tmp_path: Path) -> None:
    """Played in a process of its own: deltalake panics in a fork of one that has used it, as other stories have."""
    playing = get_context("spawn").Process(target=propose_and_be_killed, args=(tmp_path,))
    playing.start()
    playing.join()
    assert playing.exitcode == 0, "the captured output says what went wrong"


def propose_and_be_killed(tmp_path: Path) -> None:
    world, dice = Endless(tmp_path), random.Random(5)
    for number in range(5):
        world.checkpoint(f"run {number}")

    def propose() -> None:
        live = world.coordinator()
        name = free_name(live.ledger, "proposal")
        replayed(begin(live, name, 0, by="ann", cuts="recorded", purpose="proposal"))

    killed = 0
    for number in range(KILLS):
        before, rows = files_of_production(tmp_path), world.rows()
        killed += is_killed(dice.randint(1, FURTHEST), propose)
        assert files_of_production(tmp_path) == before, f"kill {number} has changed production"
        assert world.rows() == rows
        if number % 5 == 0:
            world.checkpoint(f"beside {number}")
            assert len(world.rows()) == len(rows) + 2
        if number % 7 == 0:
            for line in world.ledger.proposals():
                discard_named(world.coordinator(), line.name, "ann")
    assert killed == KILLS
    pins = [pin.owner.removeprefix("line-") for pin in world.ledger.pins()]
    for name in {*pins, *(line.name for line in world.ledger.proposals())}:
        discard_named(world.coordinator(), name, "ann")
    assert (world.ledger.proposals(), world.ledger.pins()) == ([], [])
    world.checkpoint("afterwards")
    assert sorted(world.rows()) == list(range(len(world.rows()))), "each row is there once"
