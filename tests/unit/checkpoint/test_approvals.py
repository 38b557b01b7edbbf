"""A verdict that holds: nothing counts until somebody approves, and every answer is one record that everybody obeys."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import pytest

from tests.kit.toy_gate import ToyGate
from tests.kit.toy_world import ToyWorld, quietly
from tests.kit.toys import ToySink, ToySource
from tidegate import Pipeline, seams
from tidegate.checkpoint.approvals import TIME_LIMIT, answer, approval_text, awaits_person, pending_approvals_text
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid, Rejected
from tidegate.execution.finish import finish
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.gates import BrokenRule, Gate, GateContext, Judgement
from tidegate.pipeline.hooks import Suspension
from tidegate.protocol.rules import Abort, on_completion
from tidegate.protocol.verdicts import Undecided
from tidegate.protocol.view import View
from tidegate.records.place import Place
from tidegate.records.records import Json


class Holds(Gate):
    """Holds what has a certain row."""

    kind = "holds"

    def __init__(self, row: int, hold_for: Any = None, unanswered: Any = "reject") -> None:
        self.row, self.hold_for, self.unanswered = row, hold_for, unanswered

    def describe(self) -> Json:
        return {"row": self.row}

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        offsets = [offset for offset, _ in frame.rows]
        broken = (BrokenRule("row", "hold", rows=1, why=f"{self.row} is odd"),) if self.row in offsets else ()
        return Judgement(len(offsets), broken)


class GatedWorld(ToyWorld):
    judges: tuple[Gate, ...] = (Holds(5),)

    def coordinator(self) -> Coordinator:
        pipeline = Pipeline(self.name)
        stream = pipeline.source("in", ToySource(self.feed, self.bound))
        for number, gate in enumerate(self.judges, 1):
            stream = stream.gate(gate, name=f"g{number}")
        for name, skip in self.sinks.items():
            stream.sink(name, ToySink(name, self.tables, skip))
        return Coordinator(pipeline.graph(), self.ledger, self.limits, Place("/"))

    def held(self, run: str = "two") -> int:
        """A checkpoint went well, and the next one is held."""
        self.checkpoint("one", rows=6)
        id = self.trigger(run)
        self.work(id)
        return id

    def ack_age(self, id: int, seconds: float) -> None:
        os.utime(self.path(id, "acks/main.json"), (time.time() - seconds,) * 2)


@pytest.fixture
def world(tmp_path):
    return GatedWorld(tmp_path)


def test_what_is_held_is_nowhere_and_nothing_is_planned_on_it(world):
    id = world.held()
    outcome = world.coordinator().complete(id)
    assert (outcome.state, outcome.reason) == ("open", "HELD")
    assert outcome.detail == f"checkpoint {id} is held by gate 'g1', until a person approves or rejects it"
    world.age(id, 10_000)  # its own timeout has stopped: what it waits for is a person
    refused = quietly(lambda: world.coordinator().trigger("three", give_up=lambda plan: "RUN_GONE"))
    assert (refused.reason, "held by gate 'g1'" in str(refused)) == ("CHECKPOINT_IN_PROGRESS", True)
    assert world.state(id) == "open"
    assert world.offsets("a") == [1, 2, 3]
    assert world.coordinator().complete(id, ("JOB_FAILED", "the run is over")).state == "open"


def test_approved_it_continues_exactly_as_it_was_staged(world):
    id = world.held()
    (said,) = answer(world.ledger, id, None, approve=True, by="ann", note="a known case")
    assert (said.approve, said.by, said.ack.entry) == (True, "ann", id)
    # Whoever made it is gone: the next run completes it before it plans anything.
    quietly(lambda: world.coordinator().trigger("three", give_up=lambda plan: "RUN_GONE"))
    assert world.state(id) == "completed"
    world.checkpoint("four")
    world.exact()
    assert world.ledger.ack(id, "main").ack.gates["g1"].outcome == "hold"


def test_rejected_it_is_aborted_and_the_pipeline_suspended_until_somebody_resumes(world):
    id = world.held()
    answer(world.ledger, id, "g1", approve=False, by="ann", note="wrong feed")
    outcome = world.coordinator().complete(id)
    assert (outcome.state, outcome.reason, outcome.counts) == ("aborted", "GATE_REJECTED", False)
    assert outcome.detail == "gate 'g1': rejected by ann: wrong feed"
    with pytest.raises(Rejected, match="wrong feed") as refused:
        world.coordinator().trigger("three")
    assert refused.value.reason == "SUSPENDED"
    assert world.coordinator().resume("ann") is not None
    again = world.trigger("four")
    assert world.ledger.entry(again).plan.sources["in"].start == world.ledger.entry(id).plan.sources["in"].start
    world.work(again)
    assert world.coordinator().complete(again).reason == "HELD", "the same rows are held again"


def test_who_resumes_after_a_rejection_may_choose_to_set_all_of_it_aside(world):
    id = world.held()
    coordinator = world.coordinator()
    coordinator.suspend("bob", "a look at it")
    with pytest.raises(Rejected) as refused:
        coordinator.resume("ann", quarantine_all=True)
    assert refused.value.reason == "NOT_REJECTED", "nothing is rejected yet"
    answer(world.ledger, id, "g1", approve=False, by="ann")
    coordinator.complete(id)
    assert coordinator.resume("ann", quarantine_all=True) is not None

    plan_of = lambda id: world.ledger.entry(id).plan  # noqa: E731
    first = world.trigger("three")
    assert plan_of(first).quarantine_all
    coordinator.abort(first, "RUN_GONE")
    second = world.trigger("four")
    assert plan_of(second).quarantine_all, "the first one came to nothing, so the choice still holds"
    world.work(second)  # this gate has no quarantine: it holds again
    assert coordinator.complete(second).reason == "HELD"
    answer(world.ledger, second, None, approve=False, by="ann")
    coordinator.complete(second)
    coordinator.resume("ann")
    assert not plan_of(world.trigger("five")).quarantine_all, "it was chosen once, not for ever"


def test_what_was_chosen_is_for_one_checkpoint(world):
    id = world.held()
    answer(world.ledger, id, "g1", approve=False, by="ann")
    world.coordinator().complete(id)
    world.coordinator().resume("ann", quarantine_all=True)
    world.judges = (Holds(99),)  # the rule was mended meanwhile
    world.checkpoint("three")
    ids = world.ledger.ids()
    assert world.ledger.entry(ids[-1]).plan.quarantine_all
    world.checkpoint("four", rows=3)
    assert not world.ledger.entry(world.ledger.ids()[-1]).plan.quarantine_all
    world.exact()


class QuarantiningWorld(ToyWorld):
    """Its gate holds even rows, and has a quarantine."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.gates = {"g1": ToyGate(2, 1e9, "reject", bad=1000, tables=self.tables)}

    def held(self, run: str, rows: int) -> int:
        self.feed_more(rows)
        id = self.trigger(run)
        self.work(id)
        assert self.coordinator().complete(id).reason == "HELD"
        return id

    def quarantined(self, run: str, rows: int) -> int:
        """A checkpoint was held, and a person has answered with quarantine."""
        id = self.held(run, rows)
        answer(self.ledger, id, None, approve=False, quarantine=True, by="ann")
        assert self.coordinator().complete(id).reason == "GATE_QUARANTINED"
        return id

    def quarantines_held(self, id: int) -> bool:
        entry = self.ledger.entry(id)
        assert entry is not None
        return entry.plan.quarantine_held


@pytest.fixture
def quarantining(tmp_path):
    return QuarantiningWorld(tmp_path)


def test_quarantined_its_input_is_read_again_at_once_without_the_rows_that_held_it(quarantining):
    world = quarantining
    world.checkpoint("one", rows=1)
    id = world.held("two", rows=3)
    (said,) = answer(world.ledger, id, None, approve=False, quarantine=True, by="ann", note="a broken feed")
    assert (said.choice, said.by) == ("quarantined", "ann")
    outcome = world.coordinator().complete(id)
    assert (outcome.state, outcome.reason, outcome.counts) == ("aborted", "GATE_QUARANTINED", False)
    assert outcome.detail == "gate 'g1': quarantined by ann: a broken feed"
    assert world.coordinator().suspended() is None, "nobody has to resume it"
    again = world.checkpoint("three")
    entry = world.ledger.entry(again)
    assert entry.plan.quarantine_held
    verdict = entry.acks["main"].ack.gates["g1"]
    assert (verdict.outcome, verdict.quarantined) == ("quarantine", 2)
    assert world.offsets("a") == [1, 3]
    assert not world.ledger.entry(world.checkpoint("four", rows=1)).plan.quarantine_held, "it was for one checkpoint"


def test_the_choice_to_quarantine_outlives_whatever_comes_to_nothing(quarantining):
    world = quarantining
    world.quarantined("one", rows=3)
    first = world.trigger("two")
    assert world.quarantines_held(first)
    world.coordinator().abort(first, "RUN_GONE")
    world.coordinator().suspend("bob", "a look at it")
    world.coordinator().resume("bob")
    second = world.trigger("three")
    assert world.quarantines_held(second)
    world.work(second)
    assert world.coordinator().complete(second).state == "completed"
    assert not world.quarantines_held(world.trigger("four"))


def test_a_rejection_goes_before_the_choice_to_quarantine(quarantining):
    """Who rejects wants to look at it first: it suspends, and what was chosen earlier or at the same time is off."""
    world = quarantining
    world.gates["g2"] = ToyGate(2, 1e9, "reject", bad=1000, tables=world.tables)
    id = world.held("one", rows=3)
    answer(world.ledger, id, "g1", approve=False, quarantine=True, by="ann")
    answer(world.ledger, id, "g2", approve=False, by="bob")
    assert world.coordinator().complete(id).detail == "gate 'g2': rejected by bob"
    world.coordinator().resume("bob")
    assert not world.quarantines_held(world.trigger("two"))


def test_what_no_gate_can_quarantine_nobody_sends_to_quarantine(world):
    """Otherwise the next checkpoint would be held again, although a person was told otherwise."""
    id = world.held()
    with pytest.raises(Rejected, match="gate 'g1' has no quarantine") as refused:
        answer(world.ledger, id, None, approve=False, quarantine=True, by="ann")
    assert refused.value.reason == "CANNOT_QUARANTINE"
    assert world.ledger.answer(id, "g1") is None


def test_the_first_answer_counts(world):
    id = world.held()
    answer(world.ledger, id, None, approve=True, by="ann")
    with pytest.raises(Rejected, match="approved at gate 'g1' by ann") as late:
        answer(world.ledger, id, "g1", approve=False, by="bob")
    assert late.value.reason == "ANSWERED"
    with pytest.raises(Rejected, match="approved at gate 'g1' by ann") as late:
        answer(world.ledger, id, None, approve=False, by="bob")
    assert late.value.reason == "ANSWERED", "also if no gate is named"
    assert world.coordinator().complete(id).state == "completed"
    with pytest.raises(Rejected, match=f"checkpoint {id} is completed: it was approved at gate 'g1' by ann"):
        answer(world.ledger, id, None, approve=False, by="bob")


@pytest.mark.parametrize(("default", "state"), [("reject", "aborted"), ("approve", "completed")])
def test_the_time_limit_answers_for_those_who_do_not(world, default, state):
    world.judges = (Holds(5, hold_for="1 min", unanswered=default),)
    id = world.held()
    assert world.coordinator().complete(id).state == "open"
    world.ack_age(id, 61)
    assert world.coordinator().complete(id).state == state
    said = world.ledger.answer(id, "g1")
    assert (said.by, said.note, said.approve) == (TIME_LIMIT, "no answer within 60 s", default == "approve")


def test_each_gate_is_answered_by_itself_or_all_at_once(world):
    world.judges = (Holds(5), Holds(6))
    id = world.held()
    answer(world.ledger, id, "g2", approve=True, by="ann")
    assert "gate 'g1'," in world.coordinator().complete(id).detail
    with pytest.raises(Invalid, match="no verdict of a gate 'g3'"):
        answer(world.ledger, id, "g3", approve=True, by="ann")
    answer(world.ledger, id, None, approve=True, by="bob")
    assert world.coordinator().complete(id).state == "completed"


def test_what_is_not_held_cannot_be_answered(world):
    world.checkpoint("one", rows=6)
    id = world.trigger("two")
    with pytest.raises(Rejected, match=f"no gate holds checkpoint {id}"):
        answer(world.ledger, id, None, approve=True, by="ann")
    with pytest.raises(Rejected, match="checkpoint 9 does not exist"):
        answer(world.ledger, 9, None, approve=True, by="ann")


def test_how_long_to_wait_is_checked_when_the_pipeline_is():
    world_of = Holds(1, hold_for="soon", unanswered="maybe")
    pipeline = Pipeline("p")
    pipeline.source("in", ToySource(None)).gate(world_of, name="g").sink("a", ToySink("a", None, 0))
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    assert "gate 'g': hold_for is 'soon'" in refused.value.what
    assert "gate 'g': unanswered is 'maybe'" in refused.value.what


def test_a_loop_that_is_held_says_so_and_continues_with_the_answer(world):
    class WaitRecorder(Observer):
        waits: ClassVar[list[str]] = []

        def waiting(self, why: str) -> None:
            self.waits.append(why)

    class NoSpark:
        def __call__(self, job: str | None = None) -> Any:
            return None

        def drop(self) -> None:
            """There is none."""

    def somebody_answers(seconds: float) -> None:
        answer(world.ledger, 2, None, approve=True, by="ann")

    world.checkpoint("one", rows=6)
    with seams.installed(seams.Seams(sleep=somebody_answers)):
        outcomes = run_checkpoints(world.coordinator(), NoSpark(), Schedule(checkpoints=1), WaitRecorder())
    assert [outcome.state for outcome in outcomes] == ["completed"]
    assert WaitRecorder.waits == ["checkpoint 2 is held by gate 'g1', until a person approves or rejects it"]
    world.exact()


def test_a_rejection_tells_the_hooks_also_when_it_was_the_time_limits(world: GatedWorld) -> None:
    """Nobody has answered: so there is nobody else who would know that the pipeline is suspended."""
    world.judges = (Holds(5, hold_for="1 min"),)
    id = world.held()
    world.ack_age(id, 61)
    coordinator = world.coordinator()
    told: list[Suspension] = []
    coordinator.graph = replace(coordinator.graph, on_suspended=(told.append,))
    finished = finish(coordinator, id, None, give_up=lambda plan: None, wait=lambda why: None)
    assert finished.outcome.reason == "GATE_REJECTED"
    assert [(each.by, each.failed) for each in told] == [(f"the rejection of checkpoint {id}", ())]
    assert "no answer within 60 s" in told[0].why


@pytest.mark.parametrize("approve", [True, False])
def test_what_was_said_is_durable_before_the_decision_that_follows_from_it(world, monkeypatch, approve):
    """After a power loss nobody finds a decision without the answer that it rests on."""
    id = world.held()
    answer(world.ledger, id, None, approve=approve, by="ann")
    store, durable = type(world.ledger.store), []
    real = store.sync

    def sync(self, path):
        real(self, path)
        if not world.path(id, "decision.json").exists():
            durable.append(path)

    monkeypatch.setattr(store, "sync", sync)
    assert world.coordinator().complete(id).state == ("completed" if approve else "aborted")
    assert f"checkpoints/{id:08d}/holds/g1.json" in durable


# -- beside jobs that have not acked (D5) ----------------------------------------------------------------


def beside(world: GatedWorld, **more: Any) -> Any:
    """A held checkpoint with a second job, which has not acked."""
    entry = world.ledger.entry(world.held())
    assert entry is not None
    plan = msgspec.structs.replace(entry.plan, acks=["main", "slow"])
    return replace(entry, plan=plan, **more)


@pytest.mark.parametrize("overtaken", [frozenset(), frozenset({"slow"})])
def test_a_hold_is_a_hold_whatever_other_jobs_have_done_or_have_been_passed_by(world, overtaken):
    entry = beside(world, overtaken=overtaken)
    assert awaits_person(entry), "so nobody ends it because its process is gone"
    assert "held by gate 'g1'" in pending_approvals_text(View((entry,)), [entry.id]), "and everybody is told"
    base = world.ledger.entry(1)
    assert isinstance(on_completion(entry, base), Undecided), "so the time limit can answer"
    assert not world.coordinator().overdue(entry), "its own limit runs, not the plan's timeout"
    assert isinstance(on_completion(entry, base, ("JOB_FAILED", "it broke")), Abort), "but a job that failed for good"


def test_what_was_answered_continues_or_ends_like_any_other(world):
    """With a yes, a checkpoint whose other job nobody works at is given up; one that went past that job is not."""
    lacking = beside(world)
    answer(world.ledger, lacking.id, None, approve=True, by="ann")
    said = world.ledger.entry(lacking.id).answers
    assert not awaits_person(replace(lacking, answers=said))
    assert awaits_person(replace(lacking, answers=said, overtaken=frozenset({"slow"}))), "all is done but to decide it"


def test_a_hold_tells_its_rule_and_its_deadline(world):
    world.judges = (Holds(5, hold_for="1 day"), Holds(6, hold_for=None))
    entry = world.ledger.entry(world.held())
    told = approval_text(entry)
    assert "Gate g1 holds it because of row: 5 is odd." in told
    assert re.search(r"Without an answer by \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, it is rejected\.", told)
