"""Several runs wait for the next checkpoint: a savepoint comes first, then what somebody has asked for, then periodic
ones; and nobody waits for long for somebody who does not come."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld, quietly
from tidegate.coordinator import Triggered
from tidegate.errors import Rejected, Unavailable
from tidegate.ledger import LocalStore
from tidegate.protocol.turns import GRACE_S, Waiter, decide_turn

IN_ORDER = ("savepoint", "manual", "periodic")


def asks(world: ToyWorld, rank: Any, run: str = "") -> int | str:
    """The id of the checkpoint that the run gets, or why it gets none."""
    answer = quietly(lambda: world.coordinator().trigger(run or f"the {rank} one", rank=rank))
    if isinstance(answer, Triggered):
        return answer.plan.id
    assert isinstance(answer, Rejected)
    assert answer.reason == "CHECKPOINT_IN_PROGRESS"
    return answer.what


def time_passes(world: ToyWorld, seconds: float) -> None:
    """By the clock of the ledger's storage: all of it is older."""
    paths: list[Path] = [path for path in world.folder.rglob("*.json") if path.is_file()]
    for path in paths:
        there = path.stat().st_mtime
        os.utime(path, (there - seconds, there - seconds))


def finished(world: ToyWorld, id: int) -> None:
    world.work(id)
    world.complete(id)
    world.publish()


def test_the_most_urgent_comes_first_whoever_asks_first(world: ToyWorld) -> None:
    world.feed_more(9)
    finished(world, 1) if asks(world, "periodic", "before") == 1 else pytest.fail("nobody else is there")
    assert asks(world, "periodic", "busy") == 2
    for rank in reversed(IN_ORDER):
        assert "waits for checkpoint 2" in str(asks(world, rank))
    finished(world, 2)
    for number, first in enumerate(IN_ORDER, 3):
        for other in reversed(IN_ORDER[number - 2 :]):
            assert f"the next checkpoint belongs to run 'the {IN_ORDER[number - 3]} one'" in str(asks(world, other))
        assert asks(world, first) == number
        finished(world, number)
    assert world.ledger.waiters() == []
    world.exact()


def test_it_takes_some_time_until_the_one_who_is_first_asks_again(world: ToyWorld) -> None:
    """The checkpoint that it waited for took long; what counts is since when nothing is in its way."""
    asks(world, "periodic", "busy")
    asks(world, "savepoint")
    time_passes(world, 10 * GRACE_S)
    finished(world, 1)
    assert "'the savepoint one', which waits for a savepoint" in str(asks(world, "periodic"))


def test_who_was_killed_is_not_waited_for(world: ToyWorld) -> None:
    asks(world, "periodic", "busy")
    asks(world, "savepoint")
    finished(world, 1)
    assert "comes" not in str(asks(world, "periodic"))
    time_passes(world, GRACE_S)
    assert asks(world, "periodic") == 2
    assert world.ledger.waiters() == [], "and nobody waits for it another time"
    finished(world, 2)
    assert asks(world, "periodic", "another one") == 3


def test_who_comes_late_leaves_another_note(world: ToyWorld) -> None:
    asks(world, "periodic", "busy")
    asks(world, "savepoint")
    finished(world, 1)
    time_passes(world, GRACE_S)
    assert asks(world, "periodic") == 2
    assert "waits for checkpoint 2" in str(asks(world, "savepoint"))
    finished(world, 2)
    assert "'the savepoint one'" in str(asks(world, "periodic", "another one"))
    assert asks(world, "savepoint") == 3


def test_a_run_that_gave_way_comes_before_less_urgent_ones_all_the_same(world: ToyWorld) -> None:
    asks(world, "periodic", "busy")
    asks(world, "savepoint")
    finished(world, 1)
    assert "'the savepoint one'" in str(asks(world, "manual"))
    assert asks(world, "savepoint") == 2
    finished(world, 2)
    assert "'the manual one', which waits for a checkpoint requested by hand" in str(asks(world, "periodic"))
    assert asks(world, "manual") == 3


def test_equals_come_as_they_ask(world: ToyWorld) -> None:
    asks(world, "periodic", "busy")
    asks(world, "manual", "first")
    finished(world, 1)
    assert asks(world, "manual", "second") == 2


def test_a_clock_that_went_back_lets_nobody_wait(world: ToyWorld) -> None:
    asks(world, "periodic", "busy")
    asks(world, "savepoint")
    finished(world, 1)
    time_passes(world, -1_000.0)
    assert asks(world, "periodic") == 2


def test_a_note_that_cannot_be_written_or_read_is_no_failure(world: ToyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(store: LocalStore, path: str, data: bytes) -> None:
        raise Unavailable("no space")

    asks(world, "periodic", "busy")
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "replace", full)
        assert "waits for checkpoint 1" in str(asks(world, "savepoint"))
    asks(world, "savepoint")
    (note,) = (world.folder / "waiting").iterdir()
    note.write_text("{")
    finished(world, 1)
    assert asks(world, "periodic") == 2


@pytest.mark.parametrize(
    ("age_s", "free_s", "comes"),
    [(0, 900, True), (900, 0, True), (GRACE_S, GRACE_S, False), (GRACE_S, 1e9, False), (-1, 5, False), (5, -1, False)],
)
def test_a_note_counts_as_long_as_its_run_may_be_on_its_way(age_s: float, free_s: float, comes: bool) -> None:
    turn = decide_turn([Waiter("x", "savepoint", age_s)], "me", "manual", free_s)
    assert (turn.first is not None, turn.lapsed) == (comes, () if comes else ("x",))


def test_nobody_gives_way_to_equals_or_to_itself() -> None:
    waiters = [Waiter("me", "savepoint", 1), Waiter("x", "manual", 1), Waiter("y", "periodic", 1)]
    assert decide_turn(waiters, "me", "manual", 1).first is None
