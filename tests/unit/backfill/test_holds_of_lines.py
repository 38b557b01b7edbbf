"""A gate that holds a checkpoint of a backfill: who answers, in whose name, and what an answer ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_gate import ToyGate
from tests.simulation.toy_backfill import Endless, NoSpark, replayed
from tidegate import seams
from tidegate.backfill import OpenBackfill, begin, replay
from tidegate.checkpoint import approvals, suspension
from tidegate.cli.main import main
from tidegate.errors import Rejected
from tidegate.execution.loop import Observer, Schedule
from tidegate.history.backfill import backfill_statuses

DAY = 86_400.0


@pytest.fixture
def endless(tmp_path: Path) -> Endless:
    """Three checkpoints, (0, 1), (2, 3) and (4, 5); the code that is there now holds the one with row 3."""
    world = Endless(tmp_path)
    world.name = "orders"
    for number in range(3):
        world.checkpoint(f"run {number}")
    world.gates = {"multiples": ToyGate(every=3, hold_for=DAY, unanswered="reject")}
    return world


class Waits(Observer):
    """Keeps what is said while it waits."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def waiting(self, why: str) -> None:
        self.said.append(why)


def while_it_waits(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let somebody act when the replay waits for the first time."""
    acts = iter([act])

    def sleep(seconds: float) -> None:
        next(acts, never)()

    def never() -> None:
        raise AssertionError("it waits again")

    monkeypatch.setattr(seams, "sleep", sleep)


def begun(world: Endless) -> OpenBackfill:
    return begin(world.coordinator(), "fix", 1, by="ann", cuts="recorded")


def tidegate(world: Endless, *words: str) -> int:
    return main([*words, "-D", f"root={world.root}"])


def test_it_is_answered_in_the_backfills_own_name(
    endless: Endless, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, observer = begun(endless), Waits()

    def approve() -> None:
        (status,) = backfill_statuses(endless.ledger, {})
        assert status.state == "held"
        assert status.held_checkpoint is not None
        assert status.held_checkpoint.gates == ("multiples",)
        id = str(status.held_checkpoint.checkpoint)
        assert tidegate(endless, "approve", "orders", id) == 1, "of the pipeline no checkpoint is held"
        assert tidegate(endless, "approve", "orders", id, "--backfill", "other") == 2
        assert tidegate(endless, "approve", "orders", id, "--backfill", "fix", "--note", "as agreed") == 0

    while_it_waits(monkeypatch, approve)
    replay(line, NoSpark(), Schedule(), observer)
    assert "of backfill fix continues" in capsys.readouterr().out
    assert line.has_caught_up()
    held = [said for said in observer.said if "held by gate 'multiples'" in said]
    assert held[0].endswith("tidegate approve|reject orders 2 --backfill fix")
    answer = line.backfill.ledger.answer(2, "multiples")
    assert answer is not None
    assert (answer.approve, answer.note) == (True, "as agreed")
    assert endless.ledger.answer(2, "multiples") is None


def test_a_rejection_ends_the_backfill_and_the_pipeline_never_notices(
    endless: Endless, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    line = begun(endless)
    while_it_waits(monkeypatch, lambda: tidegate(endless, "reject", "orders", "2", "--backfill", "fix"))
    with caplog.at_level(logging.ERROR), pytest.raises(Rejected) as stopped:
        replay(line, NoSpark(), Schedule(tolerable_failures=99), Observer())
    assert stopped.value.reason == "LINE_STOPPED"
    assert "checkpoint 2 of backfill 'fix' was aborted: GATE_REJECTED" in stopped.value.what
    assert "tidegate backfill MODULE:PIPELINE --name fix continues" in stopped.value.help
    said = capsys.readouterr().out + caplog.text + str(stopped.value)
    assert "Backfill 'fix' of pipeline 'orders' is suspended" in caplog.text
    assert "tidegate resume" not in said
    (status,) = backfill_statuses(endless.ledger, {})
    assert status.state == "stopped"
    assert "GATE_REJECTED" in status.stop_reason
    assert suspension.suspended(endless.ledger.view(), 0) is None


def test_what_it_quarantines_does_not_end_the_backfill(
    endless: Endless, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endless.gates = {"multiples": ToyGate(3, DAY, "reject", bad=1000, tables=endless.tables)}
    line = begun(endless)

    def quarantine() -> None:
        assert tidegate(endless, "reject", "orders", "2", "--backfill", "fix", "--quarantine") == 0

    while_it_waits(monkeypatch, quarantine)
    replay(line, NoSpark(), Schedule(), Observer())
    assert "quarantines the rows that broke the rules" in capsys.readouterr().out
    assert line.has_caught_up()
    decision = line.backfill.ledger.decision(2)
    assert decision is not None
    assert decision.reason == "GATE_QUARANTINED"
    assert suspension.suspended(endless.ledger.view(), 0) is None


def test_the_time_limit_ends_the_backfill_only(endless: Endless, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    endless.gates = {"multiples": ToyGate(every=3, hold_for=0.0, unanswered="reject")}
    line = begun(endless)
    monkeypatch.setattr(seams, "sleep", lambda seconds: None)
    with pytest.raises(Rejected, match="of backfill 'fix' was aborted: GATE_REJECTED") as stopped:
        replay(line, NoSpark(), Schedule(), Observer())
    assert "tidegate resume" not in caplog.text + str(stopped.value)
    assert suspension.suspended(endless.ledger.view(), 0) is None


def test_to_run_it_again_resumes_it_and_mended_rules_let_it_through(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = begun(endless)
    while_it_waits(
        monkeypatch,
        lambda: approvals.answer(line.backfill.ledger, 2, None, approve=False, by="bob"),
    )
    with pytest.raises(Rejected):
        replayed(line)
    endless.gates = {"multiples": ToyGate(every=0, hold_for=DAY, unanswered="reject")}
    line = begun(endless)
    assert replayed(line) == 2
    assert backfill_statuses(endless.ledger, {})[0].state == "caught_up"


def test_a_suspended_line_is_refused_by_its_own_name(endless: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    line = begun(endless)
    while_it_waits(
        monkeypatch,
        lambda: approvals.answer(line.backfill.ledger, 2, None, approve=False, by="bob"),
    )
    with pytest.raises(Rejected):
        replayed(line)
    with pytest.raises(Rejected) as refused:
        line.backfill.trigger("by hand")
    assert refused.value.what.startswith("backfill 'fix' of pipeline 'orders' is suspended by the rejection")
    assert "tidegate backfill MODULE:PIPELINE --name fix" in refused.value.help
