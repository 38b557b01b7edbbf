"""When a pipeline by event asks for a checkpoint: once for what has arrived, and after a pause without anything."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySource
from tidegate import seams
from tidegate.checkpoint import control
from tidegate.errors import Invalid, Unavailable
from tidegate.execution.input_watch import AFTER_FAILURE_S, UNTIL_PLANNED_S, InputWatch, is_due

MAX_PAUSE_S = 300.0


class Watched:
    """A pipeline and its watch, with a clock that only `pass_time` moves."""

    def __init__(self, root: Path) -> None:
        self.world = ToyWorld(root)
        self.passed_s = 0.0
        self.begin()

    def begin(self) -> None:
        with self.clock():
            self.watch = InputWatch(self.world.coordinator(), MAX_PAUSE_S)

    def clock(self) -> Any:
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        now = lambda: begin + timedelta(seconds=self.passed_s)  # noqa: E731
        return seams.installed(replace(seams.Seams(), monotonic=lambda: self.passed_s, now=now))

    def pass_time(self, seconds: float) -> None:
        self.passed_s += seconds

    def look(self) -> str | None:
        with self.clock():
            arrival = self.watch.look()
        return arrival.reason if arrival is not None else None

    def checkpoint(self, run: str, rows: int = 0) -> int:
        with self.clock():
            return self.world.checkpoint(run, rows)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    made = Watched(tmp_path)
    assert made.look() == "it is the first checkpoint"
    made.checkpoint("first", 1)
    assert made.look() is None
    return made


def test_a_burst_asks_for_one_checkpoint(watched: Watched) -> None:
    watched.world.feed_more(1)
    assert watched.look() == "there is new input for in"
    for _ in range(5):
        watched.world.feed_more(1)
        watched.pass_time(1)
        assert watched.look() is None, "a run was asked for, and has not planned yet"
    with watched.clock():
        id = watched.world.trigger("second")
    watched.world.feed_more(1)
    assert watched.look() is None, "a checkpoint is open"
    with watched.clock():
        watched.world.work(id)
        watched.world.complete(id)
    assert watched.look() == "there is new input for in", "more than one checkpoint may read"


def test_a_request_that_nobody_follows_is_repeated_less_and_less_often(watched: Watched) -> None:
    watched.world.feed_more(1)
    assert watched.look() is not None
    for pause_s in (UNTIL_PLANNED_S, 2 * UNTIL_PLANNED_S, 4 * UNTIL_PLANNED_S, MAX_PAUSE_S, MAX_PAUSE_S):
        watched.pass_time(pause_s - 1)
        assert watched.look() is None
        watched.pass_time(1)
        assert watched.look() is not None


def test_a_watch_that_begins_again_asks_again_and_the_run_makes_no_second_checkpoint(watched: Watched) -> None:
    watched.world.feed_more(1)
    assert watched.look() is not None
    watched.begin()
    assert watched.look() is not None
    watched.checkpoint("second")
    with watched.clock():
        assert watched.world.coordinator().trigger("third", only_if_new=True) is None
    assert watched.look() is None


def test_after_the_longest_pause_a_checkpoint_is_due_without_input(watched: Watched) -> None:
    watched.pass_time(MAX_PAUSE_S - 1)
    assert watched.look() is None
    watched.pass_time(1)
    assert watched.look() == "there was no checkpoint for 300 s"
    with watched.clock():
        assert is_due(watched.world.ledger.view(), MAX_PAUSE_S)
    watched.checkpoint("second")
    assert watched.look() is None
    with watched.clock():
        assert not is_due(watched.world.ledger.view(), MAX_PAUSE_S)


def test_the_longest_pause_is_not_over_while_a_checkpoint_is_at_work(watched: Watched) -> None:
    watched.world.feed_more(1)
    with watched.clock():
        id = watched.world.trigger("slow")
    watched.pass_time(MAX_PAUSE_S + 1)
    assert watched.look() is None
    watched.world.age(id, 10_000)
    assert watched.look() is not None, "it has expired, and only a run aborts it"


def test_what_an_aborted_checkpoint_had_read_is_tried_again_less_and_less_often(watched: Watched) -> None:
    watched.world.feed_more(1)
    assert watched.look() is not None
    for number, pause_s in enumerate((AFTER_FAILURE_S, 2 * AFTER_FAILURE_S, 4 * AFTER_FAILURE_S)):
        with watched.clock():
            id = watched.world.trigger(f"failing {number}")
            watched.world.coordinator().abort(id, "SOURCE_CHANGED", "a file is gone")
        assert watched.look() is None
        watched.pass_time(pause_s - 1)
        assert watched.look() is None
        watched.pass_time(1)
        assert watched.look() == "there is new input for in"


def test_a_suspended_pipeline_is_asked_only_after_the_longest_pause(watched: Watched) -> None:
    with watched.clock():
        watched.world.coordinator().suspend("ann", "the prices are wrong")
    watched.world.feed_more(1)
    assert watched.look() is None
    watched.pass_time(MAX_PAUSE_S)
    assert watched.look() == "there was no checkpoint for 300 s", "a run lifts a suspension whose process is gone"
    with watched.clock():
        watched.world.coordinator().resume("ann", "they are right")
    assert watched.look() == "there is new input for in"


def test_a_pipeline_that_is_over_is_never_asked(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.world.bounded = watched.world.finishes = True
    watched.begin()
    watched.checkpoint("first", 1)
    with watched.clock():
        assert control.finished(watched.world.ledger.view()) is not None
    watched.pass_time(10 * MAX_PAUSE_S)
    assert watched.look() is None


def test_a_source_that_does_not_answer_is_no_reason_and_one_that_refuses_is_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unavailable("the broker is away")

    def refuses(*_: object) -> None:
        raise Invalid("a version is gone", reason="VERSION_GONE")

    monkeypatch.setattr(ToySource, "plan", away)
    with pytest.raises(Unavailable, match="the broker is away"):
        watched.look()
    monkeypatch.setattr(ToySource, "plan", refuses)
    assert watched.look() == "its input cannot be planned: VERSION_GONE", "the run lets everybody know"
    assert watched.look() is None


def test_looking_writes_nothing(watched: Watched) -> None:
    watched.world.feed_more(1)
    before = sorted(path for path in watched.world.folder.rglob("*"))
    assert watched.look() is not None
    assert sorted(path for path in watched.world.folder.rglob("*")) == before
