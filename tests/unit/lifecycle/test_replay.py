"""Until when a backfill reads: as far as the pipeline has, also if a source never comes to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_gate import ToyGate
from tests.kit.toy_world import quietly
from tests.kit.toys import NO_SPARK, ToySource
from tests.simulation.toy_backfill import Endless, NoSpark, Numbers, never, replayed
from tidegate.backfill import begin, discard, replay, swap
from tidegate.backfill import open_backfill as line_module
from tidegate.coordinator import Triggered
from tidegate.errors import Rejected
from tidegate.execution.job.run_job import run_job
from tidegate.execution.loop import Observer, Schedule
from tidegate.ledger import Ledger
from tidegate.lifecycle import savepoint


class ByParts(ToySource):
    """It reads by itself, and says of positions only whether they are equal."""


@pytest.fixture
def endless(tmp_path: Path) -> Endless:
    world = Endless(tmp_path)
    for number in range(3):
        world.checkpoint(f"run {number}")
    return world


def test_a_source_without_an_end_is_read_as_far_as_the_pipeline_has_read_it(endless: Endless) -> None:
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    assert replayed(line) == 2
    assert replayed(line) == 0, "it has caught up"
    endless.checkpoint("meanwhile")
    assert replayed(line) == 1
    before = endless.rows()
    swap(line, by="ann", choices={}, wait=never)
    assert endless.rows() == before == [*range(8)]
    assert sum("line-fix" in name for name in endless.tables["a"].live()) == 6
    discard(line, "ann")
    endless.checkpoint("after")
    assert endless.rows() == [*range(10)]


def test_larger_steps_than_the_pipelines_are_fewer(endless: Endless) -> None:
    endless.source = Numbers(rows=100)
    line = begin(endless.coordinator(), "fix", 0, by="ann")
    assert replayed(line) == 1
    swap(line, by="ann", choices={}, wait=never)
    assert endless.rows() == [*range(100)], "it goes on from where the backfill is"
    endless.checkpoint("after")
    assert endless.rows() == [*range(200)]


def test_a_source_that_cannot_compare_positions_is_read_until_nothing_is_new(tmp_path: Path) -> None:
    world = Endless(tmp_path, source=None)
    world.source = ByParts(world.feed, 3)
    for number in range(2):
        world.checkpoint(f"run {number}", rows=3)
    world.feed_more(1)  # the pipeline has not read it yet, so the two are never equal
    world.source = ByParts(world.feed, 7)
    line = begin(world.coordinator(), "fix", 0, by="ann")
    assert replayed(line) == 1
    assert replayed(line) == 0, "and it comes to an end"
    refused = quietly(lambda: swap(line, by="ann", choices={}, wait=never))
    assert isinstance(refused, Rejected)
    assert "source 'in': the pipeline has read input" in refused.what
    world.source = ByParts(world.feed, 1)
    world.checkpoint("run 2")
    assert replayed(line) == 1
    swap(line, by="ann", choices={}, wait=never)
    assert sorted(world.rows()) == [*range(1, 8)]


def test_a_backfill_from_a_savepoint_far_below_what_is_retained(tmp_path: Path) -> None:
    """Between the two the log has a hole: retention has taken what nobody had named."""
    world = Endless(tmp_path).limit(num_retained=2)
    world.checkpoint("run 1")
    savepoint.create(world.ledger, "monday", 1, "ann")
    for number in range(2, 8):
        world.checkpoint(f"run {number}")
        world.coordinator().retire()
    assert world.ledger.ids() == [1, 6, 7]
    line = begin(world.coordinator(), "fix", 1, by="ann")
    assert replayed(line) == 6
    rows = world.rows()
    swapped = swap(line, by="ann", choices={}, wait=never)
    plan, manifest = world.ledger.plan(swapped.id), world.ledger.entry(swapped.id).manifest  # type: ignore[union-attr]
    assert plan is not None
    assert manifest is not None
    assert (plan.base, plan.rollback.target if plan.rollback else None) == (7, 1)
    assert manifest.base_manifest == world.ledger.decision(7).manifest  # type: ignore[union-attr]
    assert world.rows() == rows
    assert swap(line, by="ann", choices={}, wait=never).id == swapped.id


def test_who_works_on_a_discarded_backfill_is_told_so(endless: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody discards it while another one is at work on it: its ledger is half gone."""
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    replayed(line)
    (endless.folder / "lines/fix/orders/pipeline.json").unlink()
    with pytest.raises(Exception, match=r"pipeline\.json is missing"):
        begin(endless.coordinator(), "fix", 1, by="ann")
    monkeypatch.setattr(line_module, "_seed", lambda line, *_: discard(line, "bob"))
    (endless.folder / "lines/fix/orders").rename(endless.folder / "away")
    with pytest.raises(Rejected, match="was discarded by bob"):
        replay(begin(endless.coordinator(), "fix", 1, by="ann"), NoSpark(), Schedule(), Observer())


def test_a_pin_that_is_made_too_late_is_let_go_of(endless: Endless, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would keep retention from all that comes, and nobody would know of it."""
    coordinator = endless.coordinator()
    real = line_module._pinned

    def pinned(*args: Any) -> Any:
        discard(begin(endless.coordinator(), "fix", 1, by="bob"), "bob")
        monkeypatch.undo()
        return real(*args)

    monkeypatch.setattr(line_module, "_pinned", _once(pinned, real))
    with pytest.raises(Rejected, match="was discarded by bob"):
        begin(coordinator, "fix", 1, by="ann")
    assert [pin.owner for pin in coordinator.ledger.pins() if pin.kind == "line"] == []


def _once(first: Any, then: Any) -> Any:
    calls = iter([first])
    return lambda *args: next(calls, then)(*args)


def test_a_backfill_begins_at_what_counts(endless: Endless) -> None:
    coordinator = endless.coordinator()
    coordinator.roll_back(1, run="back", by="bob")
    with pytest.raises(Rejected, match="checkpoint 2 of pipeline 'orders' does not count any more: entry 4"):
        begin(coordinator, "fix", 2, by="ann")
    assert [pin.owner for pin in coordinator.ledger.pins() if pin.kind == "line"] == []


def test_a_backfill_is_not_ended_by_the_timeout_of_the_pipeline(
    endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its checkpoints may be a month of the pipeline's, and nothing waits for it."""
    line = begin(endless.coordinator(), "fix", 1, by="ann")
    monkeypatch.setattr(Ledger, "age", lambda ledger, plan: plan.timeout_s + 1)
    assert replayed(line) == 2


def test_a_backfill_continues_above_its_checkpoint_that_is_held(endless: Endless) -> None:
    """Whoever continues plans on top of it, if several may be open, and repeats nothing that it repeats."""
    endless.gates = {"multiples": ToyGate(every=3, hold_for=86_400.0, unanswered="reject")}
    endless.limit(max_concurrent_checkpoints=2)
    line = begin(endless.coordinator(), "fix", 1, by="ann", cuts="recorded")
    plans = []
    for run in ("first", "second"):
        triggered = line.backfill.trigger(run, give_up=lambda plan: None)
        assert isinstance(triggered, Triggered)
        run_job(line.backfill, triggered.plan.id, "main", NO_SPARK)
        assert line.backfill.complete(triggered.plan.id).state == "open"
        plans.append(triggered.plan.replays)
    assert plans == [[2], [3]]
