"""Readiness of a job that may lag: whether it begins, waits, or is passed by; and which input it has yet to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate import seams
from tidegate.checkpoint.manifests import has_later_ack
from tidegate.coordinator import Coordinator
from tidegate.errors import Rejected
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.graph import Job
from tidegate.protocol import rules
from tidegate.protocol.early_input import InputSelection, select_input
from tidegate.protocol.progress import allows_overtaking, job_progress
from tidegate.protocol.rules import unfinished
from tidegate.protocol.view import Entry
from tidegate.records.records import Handle, InFlight, Overtaken, Plan

__all__ = [
    "OVERTAKEN",
    "JobNotReady",
    "check_readiness",
    "early_input_reader",
    "not_ready_error",
    "overtaken_error",
    "untaken_input",
]

OVERTAKEN = "PASSED_BY"
"""The reason for skipping a job: the checkpoint does not wait for it."""


class JobNotReady(Rejected):
    """The same job is still at work on an earlier checkpoint."""

    ids: Sequence[int] = ()
    """The ids of these checkpoints."""


def check_readiness(
    coordinator: Coordinator,
    entry: Entry | None,
    base: Entry | None,
    below: Sequence[Entry],
    job: Job,
    at_work: Callable[[Plan, str], bool],
) -> rules.Stop | rules.DoneAlready | rules.SkipJob | rules.Wait | rules.RunJob:
    """Return the protocol's answer, given what only the outside knows: who is at work, and what time it is."""
    line = [candidate for candidate in (entry, base, *below) if candidate is not None]
    if entry is None or not job.after or not allows_overtaking(line):
        return rules.on_job(entry, base, job.name, job.after)
    mine = job_progress(line).chosen.get(job.name)
    abandoned = {
        unfinished_entry.id
        for unfinished_entry in unfinished(line, job.name, mine)
        if not at_work(unfinished_entry.plan, job.name)
    }
    patience = entry.plan.overtaking.after_s if entry.plan.overtaking is not None else 0.0
    time_up = coordinator.ledger.age(entry.plan) >= patience
    further = entry.completed and has_later_ack(coordinator.ledger.view(), entry, job.name)
    return rules.on_job(entry, base, job.name, job.after, below, abandoned, time_up=time_up, beyond=further)


def untaken_input(entry: Entry, base: Entry | None, below: Sequence[Entry], job: Job) -> list[InFlight]:
    """Return the input that the job takes in the entry, in order: of this checkpoint, and of those that passed the
    job."""
    line = [entry, *([base] if base is not None else ()), *below]
    if allows_overtaking(line):
        return list(job_progress(line).in_flight.get(job.name, ()))
    upstream = ((maker, entry.acks[maker]) for maker in job.after)
    return [InFlight(job=maker, ack=acked.handle, channels=acked.ack.channels) for maker, acked in upstream]


def early_input_reader(
    coordinator: Coordinator, entry: Entry, base: Entry | None, below: Sequence[Entry], job: Job, prev: Handle | None
) -> Callable[[], InputSelection] | None:
    """At least once: return the input that is available now. None: only that of its own checkpoint."""
    line = [entry, *([base] if base is not None else ()), *below]
    if entry.plan.through is None or job.name not in coordinator.graph.greedy_jobs or allows_overtaking(line):
        return None
    ledger, streams = coordinator.ledger, coordinator.graph.channels_by_job[job.name]
    before = ledger.chosen_ack(prev, job.name).ahead if prev is not None else []

    def look() -> InputSelection:
        view = ledger.view()
        return select_input(entry, [later for later in view.entries if later.id > entry.id], before, streams)

    return look


def not_ready_error(coordinator: Coordinator, entry: Entry, answer: rules.Wait, what: str) -> JobNotReady:
    """Return the error for a job that is not done yet in an earlier checkpoint, with the time that this one still
    waits."""
    error = JobNotReady(
        f"{what} waits for checkpoint {answer.ids[0]}",
        help="try again when that job is done there",
        reason="BASE_IN_PROGRESS",
    )
    error.ids = list(answer.ids)
    if entry.plan.overtaking is not None:
        error.wait_s = max(entry.plan.overtaking.after_s - coordinator.ledger.age(entry.plan), 0.1)
    return error


def overtaken_error(coordinator: Coordinator, answer: rules.SkipJob, job: Job) -> Rejected:
    """Record in the ledger that the checkpoint does not wait for the job; return why it is skipped."""
    coordinator.ledger.create_overtaken(
        Overtaken(**stamp(seams.new_id()), id=answer.id, job=job.name, busy_with=answer.busy_with)
    )
    busy = "what it takes from" if answer.busy_with is None else f"checkpoint {answer.busy_with}"
    return Rejected(
        f"checkpoint {answer.id} does not wait for job {job.name!r}, which is still busy with {busy}",
        expected="jobs that are done before the next checkpoint, or a checkpoint that goes past them (`unaligned`)",
        help="nothing to do: what it has not taken is in flight, and it takes all of that in one go when it is free",
        reason=OVERTAKEN,
    )
