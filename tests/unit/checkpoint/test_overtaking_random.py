"""Random lives of a pipeline with two slow jobs: checkpoints go past them, attempts overlap, die and come late, entries
are aborted, retired and rolled back. In the end each table holds each row once. Toys: tables and channels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.slow_jobs import SLOW, Life, toy_channels
from tidegate.execution.job.run_job import Attempt
from tidegate.execution.loop import Observer, Schedule, run_checkpoints


@pytest.fixture(autouse=True)
def _toy_channels() -> Iterator[None]:
    with toy_channels():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_every_table_once(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    for _ in range(120):
        life.happen()
    life.settle()
    last = life.ledger.view().last_completed
    assert last is not None
    end = last.plan.sources["in"].end
    upto = end["at"] if end is not None else 0
    for table in ("a", *SLOW.values()):
        assert life.shown(table) == list(range(1, upto + 1)), "\n".join([f"table {table}", *life.told])
    assert not last.manifest.in_flight  # type: ignore[union-attr]


def taken(life: Life) -> Iterator[list[Any]]:
    """What slow jobs have taken at once."""
    entries = (life.ledger.entry(id) for id in life.ledger.ids())
    acks = (acked.ack for entry in entries if entry is not None for acked in entry.acks.values())
    return (handles for ack in acks for handles in ack.inputs.values())


@pytest.mark.slow
def test_in_these_lives_much_is_passed_by_published_late_and_rolled_back(tmp_path: Path) -> None:
    """Else they would show nothing."""
    lives = [Life(tmp_path / str(seed), seed) for seed in range(12)]
    for life in lives:
        for _ in range(120):
            life.happen()
    told = [line for life in lives for line in life.told]
    assert sum(life.passed for life in lives) > 30
    assert told.count("end") > 100
    assert told.count("go_back") > 5
    assert any(len(handles) > 1 for life in lives for handles in taken(life)), "in one go"


class NoSpark:
    """Toys need none."""

    def __call__(self, job: str | None = None) -> Any:
        return None

    def drop(self) -> None:
        """Nothing to let go of."""


def test_tidegate_run_goes_past_a_job_at_which_another_process_works(tmp_path: Path) -> None:
    life = Life(tmp_path, 0)
    life.feed.available = 2
    life.plan()
    life.main()
    life.feed.available = 4
    attempt = Attempt(life.coordinator(), 1, "slow", lambda _: None)
    _, prev = attempt.ask()
    staged = attempt.stage_sinks(attempt.read(None))
    attempt.exchange.finish()
    outcomes = run_checkpoints(life.coordinator(), NoSpark(), Schedule(checkpoints=1), Observer())
    assert [(each.id, each.state) for each in outcomes] == [(2, "completed")]
    assert [life.ledger.entry(id).completed for id in (1, 2)] == [True, True]  # type: ignore[union-attr]
    assert (life.shown("a"), life.shown("b")) == ([1, 2, 3, 4], [])
    attempt.ack(staged, prev)
    life.settle()
    assert life.shown("a") == life.shown("b") == life.shown("c") == list(range(1, life.feed.available + 1))
