"""Gates inside a backfill: their memory is its own, and the pipeline keeps the one that it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.toy_backfill import Endless, NoSpark, Numbers, backfilled, never, replayed
from tidegate import seams
from tidegate.backfill import begin, replay, swap
from tidegate.errors import Invalid, Rejected
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates import Gate, GateContext, Judgement, Volume
from tidegate.gates.base import BrokenRule
from tidegate.records.records import Json, Verdict


class CountedVolume(Volume):
    """Counts toy rows."""

    persists = True

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        return replace(self.judge_rows(len(frame.rows), context), frame=frame)


class Sums(Gate):
    """Remembers how many rows it has seen, and fails at one number."""

    kind = "sums"
    persists = True
    remembers = True

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at
        self.seen: list[int] = []
        """What it knew of earlier checkpoints, each time that it has judged."""

    def describe(self) -> Json:
        return {"fails_at": self.fails_at}

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        before = context.memory.get("sum", 0)
        self.seen.append(before)
        fails = any(offset == self.fails_at for offset, _ in frame.rows)
        broken = (BrokenRule("that row", "abort", why="it is there"),) if fails else ()
        return Judgement(len(frame.rows), broken, frame=frame, memory={"sum": before + len(frame.rows)})


@pytest.fixture
def endless(tmp_path: Path) -> Endless:
    return Endless(tmp_path)


def run(world: Endless, count: int) -> None:
    for _ in range(count):
        world.checkpoint(f"run {world.ledger.view().last_id}")


def verdict(ledger: Any, id: int, gate: str) -> Verdict:
    return next(acked.ack.gates[gate] for acked in ledger.entry(id).acks.values())


def test_a_gates_memory_begins_in_a_line_as_of_its_origin(endless: Endless) -> None:
    gate = Sums()
    endless.gates = {"sums": gate}
    run(endless, 3)
    gate.seen.clear()
    replayed(begin(endless.coordinator(), "fix", 1, by="ann"))
    assert gate.seen[0] == 2, "what the first checkpoint has left"


def test_after_a_swap_a_gate_remembers_what_it_knew_of_the_pipelines_own_checkpoints(endless: Endless) -> None:
    """A backfill makes fewer, larger checkpoints: those that come next are of the pipeline's size."""
    gate = Sums()
    endless.gates = {"sums": gate}
    run(endless, 4)
    endless.source = Numbers(rows=100)
    line = begin(endless.coordinator(), "fix", 0, by="ann")
    assert replayed(line) == 1
    swap(line, by="ann", choices={}, wait=never)
    gate.seen.clear()
    run(endless, 1)
    assert gate.seen == [8], "not the hundred rows of the backfill"


def test_a_gate_that_is_new_since_then_begins_without_a_memory(endless: Endless) -> None:
    run(endless, 3)
    gate = Sums()
    endless.gates = {"sums": gate}
    backfilled(endless, 1)
    gate.seen.clear()
    run(endless, 1)
    assert gate.seen == [0]


def test_volume_says_that_it_does_not_judge_a_backfill_that_cuts_as_it_likes(endless: Endless) -> None:
    endless.gates = {"volume": CountedVolume(within=0.1, after=2, on_failure="abort")}
    run(endless, 6)
    endless.source = Numbers(rows=6)
    line = begin(endless.coordinator(), "fix", 3, by="ann")
    assert replayed(line) == 1
    head = line.head()
    assert head is not None
    told = verdict(line.backfill.ledger, head.id, "volume")
    assert (told.outcome, told.rows) == ("pass", 6)
    assert told.why.startswith("not judged: the backfill cuts its input as it likes")


def test_volume_judges_a_backfill_with_recorded_cuts(endless: Endless) -> None:
    endless.gates = {"volume": CountedVolume(within=0.1, after=2, on_failure="abort")}
    run(endless, 6)
    line = begin(endless.coordinator(), "fix", 3, by="ann", cuts="recorded")
    assert replayed(line) == 3
    head = line.head()
    assert head is not None
    assert verdict(line.backfill.ledger, head.id, "volume").why == ""


def test_a_failing_gate_ends_the_replay_at_once_however_many_failures_are_tolerated(endless: Endless) -> None:
    run(endless, 3)
    endless.gates = {"sums": Sums(fails_at=3)}
    endless.limit(tolerable_failed_checkpoints=1000)
    line = begin(endless.coordinator(), "fix", 0, by="ann")
    with pytest.raises(Rejected, match="of backfill 'fix' was aborted: GATE_FAILED") as refused:
        replay(line, NoSpark(), Schedule(tolerable_failures=1000), Observer())
    assert refused.value.reason == "LINE_STOPPED"
    assert line.backfill.ledger.view().last_id == 2, "the same rows would be judged in the same way"


def test_a_failing_job_is_tried_again_after_longer_and_longer_pauses(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(endless, 3)
    endless.source = FailingNumbers(rows=2)
    endless.limit(tolerable_failed_checkpoints=3)
    line = begin(endless.coordinator(), "fix", 0, by="ann")
    clock, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(seams, "monotonic", lambda: clock[0])
    monkeypatch.setattr(seams, "sleep", sleep)
    with pytest.raises(Exception, match="no such column"):
        replay(line, NoSpark(), Schedule(tolerable_failures=3), Observer())
    assert sum(slept) == 1 + 2 + 4


class FailingNumbers(Numbers):
    """Its rows cannot be read."""

    def read(self, spark: Any, splits: Any, context: Any) -> Any:
        raise Invalid("no such column")
