"""Each box of the graph shows how far its work is in one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.history.details import CheckpointDetails, GateAnswer, GateDetails, JobDetails, OvertakenJob
from tidegate.history.part_states import PartState, job_states, part_states
from tidegate.history.query import view_of
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.card import Box
from tidegate.records.records import JobNote

PARTS = [
    Box(name="orders", role="source", kind="files", job="main", inputs=[]),
    Box(name="clean", role="stage", kind="stage", job="main", inputs=["orders"]),
    Box(name="checked", role="gate", kind="expectations", job="main", inputs=["clean"]),
    Box(name="totals", role="operator", kind="aggregate", job="main", inputs=["checked"]),
    Box(name="totals", role="sink", kind="delta-upsert", job="main", inputs=["totals"]),
]
NAMES = [("source", "orders"), ("stage", "clean"), ("gate", "checked"), ("operator", "totals"), ("sink", "totals")]


@pytest.fixture
def completed(tmp_path: Path) -> CheckpointView:
    """A completed checkpoint; each story lets it have other details."""
    world = ToyWorld(tmp_path)
    entry = world.ledger.entry(world.checkpoint("run", rows=1))
    assert entry is not None
    return view_of(world.ledger, entry)


def changed(view: CheckpointView, details: CheckpointDetails, **words: Any) -> CheckpointView:
    return msgspec.structs.replace(view, details=details, **words)


def note(step: str, *finished: str) -> dict[str, JobNote]:
    told = JobNote(**stamp(seams.new_id()), id=1, job="main", started=seams.now().isoformat(), step=step,
                   current_step_seconds=1.0, step_seconds=dict.fromkeys(finished, 0.5), read={})  # fmt: skip
    return {"main": told}


def states(view: CheckpointView, notes: dict[str, JobNote]) -> list[PartState]:
    found = part_states(view, PARTS, job_states(view, ["main"], notes), notes)
    return [found[name] for name in NAMES]


MISSING = CheckpointDetails(missing_acks=["main"])
ACKED = CheckpointDetails(jobs={"main": JobDetails()})
OPEN = {"decided": None, "published": None, "outcome": "open"}
ABORTED = {"published": None, "outcome": "aborted"}


def test_all_parts_of_a_completed_checkpoint_are_done(completed: CheckpointView) -> None:
    assert set(states(changed(completed, ACKED), {})) == {"done"}


def test_a_job_that_has_not_begun_waits(completed: CheckpointView) -> None:
    assert set(states(changed(completed, MISSING, **OPEN), {})) == {"waiting"}


def test_of_a_running_job_the_part_at_work_runs_those_before_are_done_and_those_after_wait(
    completed: CheckpointView,
) -> None:
    notes = note("gate checked", "read")
    expected = ["done", "running", "running", "waiting", "waiting"]
    assert states(changed(completed, MISSING, **OPEN), notes) == expected, (
        "a stage is computed by the step that reads it"
    )


def test_a_job_that_failed_shows_at_which_step(completed: CheckpointView) -> None:
    notes = note("state totals", "read", "gate checked")
    assert states(changed(completed, MISSING, **ABORTED), notes) == ["done", "done", "done", "failed", "not run"]
    assert set(states(changed(completed, MISSING, **ABORTED), {})) == {"failed"}, "nobody knows the step"


def test_a_job_of_a_cancelled_checkpoint_has_not_failed(completed: CheckpointView) -> None:
    notes = note("state totals", "read", "gate checked")
    cancelled = changed(completed, MISSING, **ABORTED, reason="CANCELLED")
    assert states(cancelled, notes) == ["done", "not run", "done", "not run", "not run"]


def test_a_gate_that_waits_for_a_person_is_held_until_it_is_answered(completed: CheckpointView) -> None:
    def gated(**words: Any) -> CheckpointDetails:
        return msgspec.structs.replace(ACKED, gates={"checked": GateDetails(**words)})

    held = gated(outcome="hold")
    assert states(changed(completed, held, **OPEN), {}) == ["done", "done", "held", "done", "waiting"]
    rejected = gated(outcome="hold", answer=GateAnswer(approve=False))
    assert states(changed(completed, rejected, **ABORTED), {})[2:] == ["failed", "done", "not published"]
    approved = gated(outcome="hold", answer=GateAnswer(approve=True))
    assert set(states(changed(completed, approved), {})) == {"done"}
    aborting = gated(outcome="abort")
    assert states(changed(completed, aborting, **ABORTED), {})[2] == "failed"


def test_a_sink_is_done_when_its_table_shows_the_rows(completed: CheckpointView) -> None:
    assert states(changed(completed, ACKED, published=None), {})[4] == "running"
    assert states(changed(completed, ACKED, published=None, records_retained=False), {})[4] == "done"


def test_a_job_that_the_checkpoint_overtook_is_behind(completed: CheckpointView) -> None:
    overtaken = CheckpointDetails(overtaken_jobs={"main": OvertakenJob(last_checkpoint=1)})
    assert set(states(changed(completed, overtaken), {})) == {"behind"}
