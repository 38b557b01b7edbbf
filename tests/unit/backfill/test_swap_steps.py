"""What a swap and a discard check, and in which order: each check protects from what somebody else does in between."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toys import NO_SPARK
from tests.simulation.toy_backfill import Endless, never, replayed
from tidegate import seams
from tidegate.backfill import begin, discard, pause_pipeline, swap
from tidegate.backfill.swap import released_on_failure
from tidegate.coordinator import Triggered
from tidegate.errors import Corrupt, Rejected, Unavailable
from tidegate.execution.job.run_job import run_job
from tidegate.ledger import Ledger
from tidegate.ledger.ledger import stamp
from tidegate.records.records import BackfillDiscarded, Plan

DISCARDING = importlib.import_module("tidegate.backfill.discard")
"""The module: its function has the same name."""


@pytest.fixture
def endless(tmp_path: Path) -> Endless:
    world = Endless(tmp_path)
    for number in range(3):
        world.checkpoint(f"run {number}")
    return world


def just_after_the_entry(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let somebody else act when the swap's entry is there, and not decided yet."""
    real = Ledger.create_entry

    def create_entry(ledger: Ledger, plan: Plan) -> Any:
        created = real(ledger, plan)
        if plan.rollback is not None:
            monkeypatch.setattr(Ledger, "create_entry", real)
            act()
        return created

    monkeypatch.setattr(Ledger, "create_entry", create_entry)


def test_a_swap_ends_if_its_line_is_discarded_after_the_entry(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The discard has read the log before the entry was there: it removes the files that the swap would bring."""
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)
    before, ledger = endless.tables["a"].live(), endless.ledger
    tombstone = BackfillDiscarded(**stamp(seams.new_id()), name="fix", by="bob")
    just_after_the_entry(monkeypatch, lambda: ledger.discard_line(tombstone))
    with pytest.raises(Rejected, match="was discarded by bob"):
        swap(line, by="ann", choices={}, wait=never)
    decision = ledger.decision(4)
    assert decision is not None
    assert decision.outcome == "aborted"
    assert endless.tables["a"].live() == before


def test_a_swap_refuses_a_line_that_moved_on_after_its_entry(endless: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that it copied are those of another checkpoint than its acks would be."""
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)

    def another_checkpoint() -> None:
        triggered = line.backfill.trigger("somebody else")
        assert isinstance(triggered, Triggered)
        run_job(line.backfill, triggered.plan.id, "main", NO_SPARK)
        assert line.backfill.complete(triggered.plan.id).state == "completed"

    just_after_the_entry(monkeypatch, another_checkpoint)
    with pytest.raises(Corrupt, match="has made checkpoints while it was swapped in") as refused:
        swap(line, by="ann", choices={}, wait=never)
    assert refused.value.reason == "LINE_MOVED"
    assert endless.ledger.decision(4) is None, "nothing is decided"


def test_a_swap_whose_number_somebody_else_took_leaves_no_pin_behind(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again with the next number, and pins for that one."""
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)
    real = Ledger.create_entry
    late: list[str] = []

    def create_entry(ledger: Ledger, plan: Plan) -> Any:
        if plan.rollback is not None and not late:
            late.append(plan.attempt)
            endless.coordinator().abort(endless.trigger("somebody else"), "CANCELLED", "")
        return real(ledger, plan)

    monkeypatch.setattr(Ledger, "create_entry", create_entry)
    swapped = swap(line, by="ann", choices={}, wait=never)
    pins = [pin for pin in endless.ledger.pins() if pin.kind == "rollback"]
    assert late
    assert {pin.rollback for pin in pins} == {swapped.id}
    assert late[0] not in {pin.attempt for pin in pins}


def test_the_way_back_from_a_swap_outlives_its_backfill(endless: Endless) -> None:
    """Its target and what it replaces are kept, also once the backfill's own pin is gone."""
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)
    replaced = endless.ledger.view().last_id
    swapped = swap(line, by="ann", choices={}, wait=never)
    discard(line, "ann")
    pins = [pin for pin in endless.ledger.pins() if pin.rollback == swapped.id]
    assert sorted(pin.entry for pin in pins) == [1, replaced]


def durable_before(monkeypatch: pytest.MonkeyPatch, is_it: Callable[[Ledger, Plan], bool]) -> set[int]:
    """Note which decisions have been made durable before the first entry that `is_it` knows is created."""
    create, sync = Ledger.create_entry, Ledger.sync_decision
    durable: set[int] = set()
    before: set[int] = set()

    def sync_decision(ledger: Ledger, id: int) -> None:
        sync(ledger, id)
        durable.add(id)

    def create_entry(ledger: Ledger, plan: Plan) -> Any:
        if is_it(ledger, plan) and not before:
            before.update(durable)
        return create(ledger, plan)

    monkeypatch.setattr(Ledger, "sync_decision", sync_decision)
    monkeypatch.setattr(Ledger, "create_entry", create_entry)
    return before


def test_a_swap_makes_all_decisions_below_it_durable_first(endless: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power loss takes back a decision on which the swap, which is durable, rests (W2)."""
    aborted = endless.trigger("it fails")
    endless.coordinator().abort(aborted, "CANCELLED", "")
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)
    durable = durable_before(monkeypatch, lambda ledger, plan: plan.rollback is not None)
    swap(line, by="ann", choices={}, wait=never)
    assert aborted in durable


def test_a_line_makes_the_decisions_durable_whose_input_it_reads(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that has read what a power loss takes back is lost (W2)."""
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    durable = durable_before(monkeypatch, lambda ledger, plan: "lines" in ledger.home and bool(plan.replays))
    assert replayed(line) == 2
    assert durable >= {2, 3}


def test_a_discard_removes_the_pin_after_everything_else(endless: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it removes files, retention must keep the records that name them."""
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)
    left: list[list[str]] = []
    real = Ledger.delete_pin

    def delete_pin(ledger: Ledger, owner: str) -> None:
        left.append(sorted(path.name for path in (endless.folder / "lines/fix").iterdir()))
        real(ledger, owner)

    monkeypatch.setattr(Ledger, "delete_pin", delete_pin)
    discard(line, "ann")
    assert left == [["discarded.json"]], "only the tombstone was there when the pin was deleted"


def test_a_pipeline_that_waits_for_a_swap_continues_when_that_fails(endless: Endless) -> None:
    line = begin(endless.coordinator(), "fix", 1, by="ann")

    def fails() -> None:
        pause_pipeline(line, never)
        assert line.live.suspended() is not None
        raise Unavailable("no storage")

    with pytest.raises(Unavailable, match="no storage"), released_on_failure(line):
        fails()
    assert line.live.suspended() is None
    assert endless.checkpoint("run 3") > 3


@pytest.mark.parametrize("retired", [True, False])
def test_the_end_of_a_line_whose_swap_counts_removes_no_shadow_by_name(
    endless: Endless, monkeypatch: pytest.MonkeyPatch, retired: bool
) -> None:
    """Also if the swap's entry is retired: what it has brought in stays."""
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)
    swapped = swap(line, by="ann", choices={}, wait=never)
    if retired:
        monkeypatch.setattr(type(line.live), "real_entry", lambda *_: None)
    removed: list[object] = []
    monkeypatch.setattr(DISCARDING, "_remove_unknown_shadows", removed.append)
    assert discard(line, "ann") == swapped.id
    assert removed == []


def test_the_end_of_a_line_that_nobody_swapped_in_removes_all_shadows(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    removed: list[object] = []
    monkeypatch.setattr(DISCARDING, "_remove_unknown_shadows", removed.append)
    assert discard(line, "ann") is None
    assert removed == [line]
