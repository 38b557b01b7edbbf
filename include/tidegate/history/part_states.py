"""The state of each job and of each box of the graph in one checkpoint, for the drawing of a pipeline.

Pure. A job reports its current step every few seconds, so an open checkpoint shows where its work is, and one that
failed shows at which step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from tidegate.history.view import CheckpointView
from tidegate.pipeline.card import Box
from tidegate.records.records import JobNote

__all__ = ["PART_STATES", "PartState", "job_states", "part_states"]

PartState = Literal["waiting", "running", "done", "held", "failed", "behind", "not run", "not published"]

PART_STATES: Final[Mapping[PartState, str]] = {
    "waiting": "its turn has not come yet",
    "running": "a job works on it",
    "done": "it has done its part",
    "held": "a gate waits for a person",
    "failed": "it failed, or its job did",
    "behind": "the checkpoint has overtaken its job, which takes these rows later",
    "not run": "the checkpoint ended before it was done",
    "not published": "its rows were staged, and the checkpoint ended without publishing them",
}

_ENDED = ("CANCELLED", "ROLLED_BACK", "STOPPED")
"""Reasons of aborts by people: the jobs at work have not failed."""
_STEPS = {"source": "read", "operator": "state {}", "gate": "gate {}", "sink": "stage {}"}
"""The step of a job that does the work of a box. A stage has none: it is computed by the steps of its readers."""


def job_states(view: CheckpointView, jobs: Sequence[str], notes: Mapping[str, JobNote]) -> dict[str, PartState]:
    """Return the state of each job. notes: the last reported progress of jobs in this checkpoint."""
    states: dict[str, PartState] = {}
    for job in jobs:
        if job in view.details.jobs:
            states[job] = "done"
        elif job in view.details.overtaken_jobs:
            states[job] = "behind"
        elif view.decided is None:
            states[job] = "running" if job in notes else "waiting"
        elif job in view.details.missing_acks and view.reason not in _ENDED:
            states[job] = "failed"
        else:
            states[job] = "not run"
    return states


def part_states(
    view: CheckpointView, parts: Sequence[Box], jobs: Mapping[str, PartState], notes: Mapping[str, JobNote]
) -> dict[tuple[str, str], PartState]:
    """Return the state of each box, by its role and name: a sink may have the same name as an operator.

    jobs: their states. parts: each box after those that it takes rows from.
    """
    states: dict[tuple[str, str], PartState] = {}
    for part in reversed(parts):
        job_state = jobs.get(part.job, "not run")
        if part.role == "gate":
            states[part.role, part.name] = _gate_state(view, part, job_state, notes.get(part.job))
        elif part.role == "sink":
            states[part.role, part.name] = _sink_state(view, part, job_state, notes.get(part.job))
        elif part.role == "stage" and job_state in ("running", "failed"):
            states[part.role, part.name] = _of_readers(part, parts, states, job_state)
        else:
            states[part.role, part.name] = _state_of_each_step(part, job_state, notes.get(part.job))
    return states


def _state_of_each_step(part: Box, job_state: PartState, note: JobNote | None) -> PartState:
    """Return the state of a box, by the steps that its job has finished."""
    step = _STEPS.get(part.role, "").format(part.name)
    if job_state not in ("running", "failed", "not run") or note is None or not step:
        return job_state
    if note.step == step:
        return job_state
    if step in note.step_seconds:
        return "done"
    return "waiting" if job_state == "running" else "not run"


def _gate_state(view: CheckpointView, part: Box, job_state: PartState, note: JobNote | None) -> PartState:
    verdict = view.details.gates.get(part.name)
    if verdict is None:
        return _state_of_each_step(part, job_state, note)
    if verdict.outcome == "abort" or (verdict.answer is not None and not verdict.answer.approve):
        return "failed"
    if verdict.outcome == "hold" and verdict.answer is None:
        return "held" if view.decided is None else "failed"
    return "done"


def _sink_state(view: CheckpointView, part: Box, job_state: PartState, note: JobNote | None) -> PartState:
    """A sink is done when its table shows the rows, not when they are staged."""
    if job_state != "done":
        return _state_of_each_step(part, job_state, note)
    if view.decided is None:
        return "waiting"
    if view.outcome == "aborted":
        return "not published"
    if view.records_retained and view.published is None:
        return "running"
    return "done"


def _of_readers(
    part: Box, parts: Sequence[Box], states: Mapping[tuple[str, str], PartState], job_state: PartState
) -> PartState:
    """Return the state of a stage: it is computed together with the boxes that read it."""
    readers = []
    for other in parts:
        if part.name in other.inputs and other.job == part.job:
            readers.append(states[other.role, other.name])
    for state in (job_state, "done", "waiting", "not run"):
        if state in readers:
            return state
    return job_state
