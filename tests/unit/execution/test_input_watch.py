"""When a pipeline by event asks for a checkpoint: once for what has arrived, and after a pause without anything."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_gate import ToyGate
from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySource
from tidegate import seams
from tidegate.checkpoint import approvals, suspension
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.execution.input_watch import (
    AFTER_FAILURE_S,
    CLOCK_CHECK_S,
    MAX_BACKOFF_S,
    UNTIL_DECIDED_S,
    UNTIL_PLANNED_S,
    InputWatch,
    is_due,
)
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control
from tidegate.records.records import Request, Unread

MAX_PAUSE_S = 300.0


class Watched:
    """A pipeline and its watch, with a clock that only `pass_time` moves."""

    def __init__(self, root: Path, max_pause_s: float = MAX_PAUSE_S) -> None:
        self.world = ToyWorld(root)
        self.max_pause_s = max_pause_s
        self.passed_s = 0.0
        self.begin()

    def begin(self) -> None:
        with self.clock():
            self.watch = InputWatch(self.world.coordinator(), self.max_pause_s)

    def clock(self) -> Any:
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        now = lambda: begin + timedelta(seconds=self.passed_s)  # noqa: E731
        return seams.installed(replace(seams.Seams(), monotonic=lambda: self.passed_s, now=now))

    def pass_time(self, seconds: float) -> None:
        self.passed_s += seconds
        for path in self.world.folder.glob("checkpoints/*/*.json"):  # the store's clock
            os.utime(path, (path.stat().st_mtime - seconds,) * 2)

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
        assert is_due(watched.world.ledger, watched.world.ledger.view(), MAX_PAUSE_S)
    watched.checkpoint("second")
    assert watched.look() is None
    with watched.clock():
        assert not is_due(watched.world.ledger, watched.world.ledger.view(), MAX_PAUSE_S)


def test_the_clock_of_a_machine_makes_no_checkpoint_due(watched: Watched) -> None:
    watched.passed_s += 10 * MAX_PAUSE_S  # the machine that planned the last one has its clock that far behind
    assert watched.look() is None
    watched.world.age(1, MAX_PAUSE_S + 1)
    assert watched.look() == "there was no checkpoint for 300 s"


def test_a_machine_whose_clock_was_ahead_delays_no_checkpoint_for_long(watched: Watched) -> None:
    watched.passed_s += 86_400
    watched.checkpoint("of tomorrow", 1)
    watched.passed_s -= 86_400
    watched.begin()
    assert watched.look() is None
    watched.pass_time(MAX_PAUSE_S + CLOCK_CHECK_S)
    assert watched.look() == "there was no checkpoint for 300 s"


def test_after_a_first_checkpoint_that_failed_the_watch_asks_for_what_a_run_would_read(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with watched.clock():
        watched.world.coordinator().abort(watched.world.trigger("first"), "JOB_FAILED", "the disk is full")
    assert watched.look() is None, "a run would be skipped"
    watched.world.feed_more(1)
    assert watched.look() == "there is new input for in"


def test_a_held_checkpoint_that_is_answered_is_not_left_to_a_run_that_is_gone(tmp_path: Path) -> None:
    watched = Watched(tmp_path, max_pause_s=86_400.0)
    watched.world.gates = {"checked": ToyGate(every=1, hold_for=1e9, unanswered="reject")}
    watched.begin()
    watched.world.feed_more(1)
    with watched.clock():
        id = watched.world.trigger("whose worker is gone")
        watched.world.work(id)
    watched.pass_time(UNTIL_DECIDED_S)
    assert watched.look() is None, "it waits for a person"
    with watched.clock():
        approvals.answer(watched.world.ledger, id, None, approve=True, by="ann")
    assert watched.look() is None, "its run is about to decide it"
    watched.pass_time(UNTIL_DECIDED_S)
    assert watched.look() == "checkpoint 1 was answered, and is not decided yet"
    with watched.clock(), pytest.raises(Rejected, match="waits for checkpoint 1"):
        watched.world.coordinator().trigger("second", only_if_new=True)
    assert watched.world.state(id) == "completed", "that run has decided it, and tries again"


def test_the_longest_pause_is_not_over_while_a_checkpoint_is_at_work(watched: Watched) -> None:
    watched.world.feed_more(1)
    with watched.clock():
        id = watched.world.trigger("slow")
    watched.pass_time(MAX_PAUSE_S + 1)
    assert watched.look() is None
    with watched.clock():
        watched.world.work(id)
        watched.world.complete(id)
    assert watched.look() == "there was no checkpoint for 300 s"


def test_a_checkpoint_that_nobody_works_on_any_more_is_not_left_until_the_longest_pause(watched: Watched) -> None:
    watched.world.feed_more(1)
    with watched.clock():
        id = watched.world.trigger("whose worker is gone")
    assert watched.look() is None
    watched.pass_time(601)
    assert watched.look() == "the time of checkpoint 2 is over", "only a run aborts it"
    with watched.clock():
        watched.world.trigger("the next one", give_up=lambda plan: None)
    assert watched.world.state(id) == "aborted"
    assert watched.look() is None


def test_a_checkpoint_that_its_run_could_not_publish_is_not_left_until_the_longest_pause(watched: Watched) -> None:
    with watched.clock():
        watched.world.decided("second", 1)
    assert watched.look() is None, "its run is about to publish it"
    watched.pass_time(UNTIL_PLANNED_S)
    assert watched.look() == "checkpoint 2 is not published yet"
    with watched.clock():
        assert watched.world.coordinator().trigger("third", only_if_new=True) is None
    assert watched.world.published("a") == [1, 2], "that run has published it"
    assert watched.look() is None


def test_a_request_is_never_more_than_minutes_away_from_the_next(tmp_path: Path) -> None:
    watched = Watched(tmp_path, max_pause_s=86_400.0)
    assert watched.look() is not None
    for _ in range(10):
        watched.pass_time(MAX_BACKOFF_S)
        assert watched.look() is not None, "its DAG was paused for a day, and is not any more"


def test_the_end_of_event_time_needs_no_new_input(watched: Watched) -> None:
    assert watched.look() is None
    watched.world.bounded = watched.world.finishes = True  # all that there will be is read already
    watched.begin()
    assert watched.look() == "all input is read, and event time is to end"
    with watched.clock():
        id = watched.world.trigger("last", only_if_new=True)
        assert watched.look() is None
        watched.world.work(id)
        watched.world.complete(id)
        assert suspension.finished(watched.world.ledger.view()) is not None


def test_input_that_will_never_be_read_is_recorded_at_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ToySource.plan
    unread = Unread(count=2, what="2 files", help="none")
    monkeypatch.setattr(ToySource, "plan", lambda *of: replace(plan(*of), unread=unread))
    assert watched.look() == "input was skipped for good, which is to be recorded"
    with watched.clock():
        assert watched.world.coordinator().trigger("second", only_if_new=True) is not None
    assert watched.look() is None


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
        assert suspension.finished(watched.world.ledger.view()) is not None
    watched.pass_time(10 * MAX_PAUSE_S)
    assert watched.look() is None
    assert watched.watch.is_over


def test_a_stopped_pipeline_is_not_asked_until_somebody_resumes_it(watched: Watched) -> None:
    watched.world.feed_more(1)
    with watched.clock():
        control.stop(watched.world.ledger, "ann", "not needed any more")
    watched.pass_time(10 * MAX_PAUSE_S)
    assert watched.look() is None
    assert watched.watch.is_over
    with watched.clock():
        watched.world.coordinator().resume("ann", "needed after all")
    assert watched.look() == "there is new input for in"
    assert not watched.watch.is_over


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


def test_whatever_a_source_raises_a_run_shows_it(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("of its user's making")

    monkeypatch.setattr(ToySource, "plan", fails)
    assert str(watched.look()).startswith("its input cannot be planned: KeyError")
    assert watched.look() is None


def test_a_request_of_a_gate_that_quarantines_nothing_any_more_is_no_input(watched: Watched) -> None:
    watched.world.gates = {"checked": ToyGate(every=0, hold_for=60.0, unanswered="reject")}
    assert not watched.world.graph().gates[0].quarantine
    release = Request(**stamp("x"), number=1, gate="checked", action="release", seen=1, by="ann")
    watched.world.ledger.create_request(release)
    watched.begin()
    assert watched.look() is None, "no plan takes it up"


def test_looking_writes_nothing(watched: Watched) -> None:
    watched.world.feed_more(1)
    before = sorted(path for path in watched.world.folder.rglob("*"))
    assert watched.look() is not None
    assert sorted(path for path in watched.world.folder.rglob("*")) == before


def test_a_request_whose_process_was_killed_before_its_decision_holds_nothing_up(watched: Watched) -> None:
    """The log then has an entry that only another run decides, and this one is by event."""

    def die(point: str) -> None:
        if point == "A1.abort.before":
            raise KeyboardInterrupt

    with seams.installed(replace(seams.Seams(), fault=die)), pytest.raises(KeyboardInterrupt):
        control.suspend(watched.world.ledger, "ann", "the prices are wrong")
    with watched.clock():
        control.resume(watched.world.ledger, "ann")
    watched.world.feed_more(1)
    assert watched.look() == "entry 2 of the log is still to be aborted"
    watched.checkpoint("second")
    assert watched.look() is None
