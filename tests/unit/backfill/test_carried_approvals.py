"""An approval that a person gave the pipeline holds for a backfill only where nothing about it is different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_gate import ToyGate
from tests.kit.toys import ToyFrame
from tests.simulation.toy_backfill import Endless, Numbers
from tidegate import seams
from tidegate.backfill import OpenBackfill, begin
from tidegate.backfill.choosing import outlook
from tidegate.checkpoint import approvals
from tidegate.connectors.source import SourceContext
from tidegate.coordinator import Triggered
from tidegate.execution.job.run_job import run_job
from tidegate.records.records import Answer, Json

DAY = 86_400.0


def gate(**changed: Any) -> ToyGate:
    return ToyGate(**{"every": 3, "hold_for": DAY, "unanswered": "approve"} | changed)


@pytest.fixture
def endless(tmp_path: Path) -> Endless:
    """Four checkpoints of two rows. Rows 0, 3 and 6 were held, and approved by ann."""
    world = Endless(tmp_path)
    world.gates = {"multiples": gate()}
    for number in range(4):
        held_checkpoint(world, number)
    return world


def held_checkpoint(world: Endless, number: int, by: str = "ann") -> int:
    id = world.trigger(f"run {number}")
    world.work(id)
    if world.coordinator().complete(id).state == "open":
        approvals.answer(world.ledger, id, None, approve=True, by=by, note="as agreed")
        world.complete(id)
    world.publish()
    return id


def begun(world: Endless, origin: int = 1, cuts: Any = "recorded") -> OpenBackfill:
    return begin(world.coordinator(), f"fix-{len(world.ledger.store.names('lines'))}", origin, by="bob", cuts=cuts)


def next_one(line: OpenBackfill) -> tuple[str, Answer | None]:
    """The line's next checkpoint: what becomes of it, and the answer to its gate."""
    triggered = line.backfill.trigger(f"by hand {seams.new_id()}")
    assert isinstance(triggered, Triggered)
    id = triggered.plan.id
    run_job(line.backfill, id, "main", None)  # type: ignore[arg-type]
    return line.backfill.complete(id).state, line.backfill.ledger.answer(id, "multiples")


def test_unchanged_code_gets_the_approvals_that_a_person_gave(endless: Endless) -> None:
    line = begun(endless)
    state, answer = next_one(line)
    assert state == "completed"
    assert answer is not None
    assert (answer.by, answer.note) == ("ann", "the same rows as in checkpoint 2 of pipeline orders: as agreed")
    assert next_one(line) == ("completed", None), "no gate has held rows 4 and 5"
    state, answer = next_one(line)
    assert (state, answer.by if answer else None) == ("completed", "ann")


def test_an_approval_by_the_time_limit_never_carries(tmp_path: Path) -> None:
    world = Endless(tmp_path)
    world.gates = {"multiples": gate()}
    for number in range(2):
        held_checkpoint(world, number, by=approvals.TIME_LIMIT)
    assert next_one(begun(world)) == ("open", None), "nobody has looked at them"


class Mended(Numbers):
    """Gives one row of the same input another tag."""

    def read(self, spark: Any, splits: Json, context: SourceContext) -> Any:
        rows = [(id, "mended" if id == 2 else "") for id in range(splits["from"], splits["to"])]
        return ToyFrame(rows)


def test_other_rows_of_the_same_input_are_held_anew(endless: Endless) -> None:
    endless.source = Mended(rows=2)
    assert next_one(begun(endless)) == ("open", None)


def test_another_declaration_of_the_gate_holds_anew(endless: Endless) -> None:
    endless.gates = {"multiples": gate(unanswered="reject")}
    assert next_one(begun(endless)) == ("open", None)


class WithSuite(ToyGate):
    """The declaration names a suite, whose text each plan fixes."""

    text = "at most 1000"

    def fix_inputs(self, context: SourceContext) -> Json:
        return {"suite": self.text}

    def fix_inputs_again(self, recorded: Json, context: SourceContext) -> Json:
        return {"suite": self.text}


@pytest.mark.parametrize(("text", "state"), [("at most 1000", "completed"), ("at most 10", "open")])
def test_another_text_of_the_suite_holds_anew_though_as_many_rows_break_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, state: str
) -> None:
    world = Endless(tmp_path)
    world.gates = {"multiples": WithSuite(every=3, hold_for=DAY, unanswered="approve")}
    for number in range(2):
        held_checkpoint(world, number)
    monkeypatch.setattr(WithSuite, "text", text)
    assert next_one(begun(world))[0] == state


def test_another_verdict_holds_anew(endless: Endless) -> None:
    endless.gates = {"multiples": Stricter(every=3, hold_for=DAY, unanswered="approve")}
    assert next_one(begun(endless)) == ("open", None)


class Stricter(ToyGate):
    """Declared in the same words, it finds more."""

    def judge(self, frame: Any, context: Any) -> Any:
        from dataclasses import replace

        judgement = super().judge(frame, context)
        return replace(judgement, broken=tuple(replace(rule, rows=99) for rule in judgement.broken))


def test_other_cuts_hold_anew(endless: Endless) -> None:
    endless.source = Numbers(rows=100)
    assert next_one(begun(endless, 0, "own")) == ("open", None)


def test_rows_of_which_no_hash_was_kept_are_held_anew(endless: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in records of versions before there were any."""
    from tidegate.execution.job import gates

    monkeypatch.setattr(gates, "_hash_of", lambda *_: "")
    held_checkpoint(endless, 4)
    assert next_one(begun(endless, 4)) == ("open", None)


def test_a_rejected_checkpoint_gives_no_approval(tmp_path: Path) -> None:
    world = Endless(tmp_path)
    world.gates = {"multiples": gate(every=0)}
    for number in range(2):
        held_checkpoint(world, number)
    world.gates = {"multiples": gate()}
    assert next_one(begun(world)) == ("open", None)


def test_the_dry_run_says_how_many_carry(endless: Endless) -> None:
    assert outlook(endless.coordinator(), 1, "recorded")["approvals"] == {"carried_over": 2, "to_repeat": 0}
    assert outlook(endless.coordinator(), 1, "own")["approvals"] == {"carried_over": 0, "to_repeat": 2}
