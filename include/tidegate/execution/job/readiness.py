"""A job that may be behind: whether it begins, waits, or is gone past; and what it has yet to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate import seams
from tidegate.checkpoint.ancestry import beyond
from tidegate.coordinator import Coordinator
from tidegate.errors import Rejected
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.graph import Job
from tidegate.protocol import rules as protocol
from tidegate.protocol.early_input import InputSelection, taking
from tidegate.protocol.overtaking import unfinished
from tidegate.protocol.progress import allows_overtaking, progress_of
from tidegate.protocol.view import Entry
from tidegate.records.records import Handle, InFlight, Overtaken, Plan

__all__ = ["PASSED_BY", "JobNotReady", "check_readiness", "looks_ahead", "not_ready", "passed_by", "yet_to_take"]

PASSED_BY = "PASSED_BY"
"""The reason with which a job is skipped: the checkpoint does not wait for it."""


class JobNotReady(Rejected):
    """The same job is at work on a checkpoint below."""

    ids: Sequence[int] = ()
    """Which."""


def check_readiness(
    coordinator: Coordinator,
    entry: Entry | None,
    base: Entry | None,
    below: Sequence[Entry],
    job: Job,
    at_work: Callable[[Plan, str], bool],
) -> protocol.Stop | protocol.DoneAlready | protocol.PassedBy | protocol.Wait | protocol.RunJob:
    """What the protocol says, with what only the world outside knows: who is at work, and what time it is."""
    line = [each for each in (entry, base, *below) if each is not None]
    if entry is None or not job.after or not allows_overtaking(line):
        return protocol.on_job(entry, base, job.name, job.after)
    mine = progress_of(line).chosen.get(job.name)
    gone = {each.id for each in unfinished(line, job.name, mine) if not at_work(each.plan, job.name)}
    patience = entry.plan.overtaking.after_s if entry.plan.overtaking is not None else 0.0
    time_up = coordinator.ledger.age(entry.plan) >= patience
    further = entry.completed and beyond(coordinator.ledger.view(), entry, job.name)
    return protocol.on_job(entry, base, job.name, job.after, below, gone, time_up=time_up, beyond=further)


def yet_to_take(entry: Entry, base: Entry | None, below: Sequence[Entry], job: Job) -> list[InFlight]:
    """What the job takes in the entry, in order: of this checkpoint, and of those that went past it."""
    line = [entry, *([base] if base is not None else ()), *below]
    if allows_overtaking(line):
        return list(progress_of(line).in_flight.get(job.name, ()))
    made = ((maker, entry.acks[maker]) for maker in job.after)
    return [InFlight(job=maker, ack=acked.handle, channels=acked.ack.channels) for maker, acked in made]


def looks_ahead(
    coordinator: Coordinator, entry: Entry, base: Entry | None, below: Sequence[Entry], job: Job, prev: Handle | None
) -> Callable[[], InputSelection] | None:
    """At least once: what the job takes is what is there. None: its own checkpoint's, no more."""
    line = [entry, *([base] if base is not None else ()), *below]
    if entry.plan.through is None or job.name not in coordinator.graph.ahead or allows_overtaking(line):
        return None
    ledger, streams = coordinator.ledger, coordinator.graph.takes[job.name]
    before = ledger.chosen_ack(prev, job.name).ahead if prev is not None else []

    def look() -> InputSelection:
        view = ledger.view()
        return taking(entry, [each for each in view.entries if each.id > entry.id], before, streams)

    return look


def not_ready(coordinator: Coordinator, entry: Entry, answer: protocol.Wait, what: str) -> JobNotReady:
    """The job is not done yet in a checkpoint below; and for how long, if this one will not wait longer."""
    error = JobNotReady(
        f"{what} waits for checkpoint {answer.ids[0]}",
        help="try again when that job is done there",
        reason="BASE_IN_PROGRESS",
    )
    error.ids = list(answer.ids)
    if entry.plan.overtaking is not None:
        error.wait_s = max(entry.plan.overtaking.after_s - coordinator.ledger.age(entry.plan), 0.1)
    return error


def passed_by(coordinator: Coordinator, answer: protocol.PassedBy, job: Job) -> Rejected:
    """Say in the ledger that the checkpoint does not wait for the job; and why it is skipped."""
    coordinator.ledger.create_overtaken(
        Overtaken(**stamp(seams.new_id()), id=answer.id, job=job.name, busy_with=answer.busy_with)
    )
    busy = "what it takes from" if answer.busy_with is None else f"checkpoint {answer.busy_with}"
    return Rejected(
        f"checkpoint {answer.id} does not wait for job {job.name!r}, which is still busy with {busy}",
        expected="jobs that are done before the next checkpoint, or a checkpoint that goes past them (`unaligned`)",
        help="nothing to do: what it has not taken is in flight, and it takes all of that in one go when it is free",
        reason=PASSED_BY,
    )
