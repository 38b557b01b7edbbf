"""Decides whether a job runs, waits or is overtaken in a checkpoint, and which input it has yet to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate import seams
from tidegate.checkpoint.context import PipelineContext
from tidegate.checkpoint.manifests import has_later_ack
from tidegate.errors import Rejected
from tidegate.ledger.ledger import Ledger, stamp
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
    """The same job is still running for earlier checkpoints."""

    ids: Sequence[int] = ()
    """These checkpoints."""


def check_readiness(
    ledger: Ledger,
    entry: Entry | None,
    base: Entry | None,
    below: Sequence[Entry],
    job: Job,
    at_work: Callable[[Plan, str], bool],
) -> rules.Stop | rules.DoneAlready | rules.SkipJob | rules.Wait | rules.RunJob:
    """Return the protocol's answer, given which jobs are running and what time it is."""
    lineage = [candidate for candidate in (entry, base, *below) if candidate is not None]
    if entry is None or not job.after or not allows_overtaking(lineage):
        return rules.on_job(entry, base, job.name, job.after)
    ack = job_progress(lineage).chosen.get(job.name)
    abandoned = set()
    for earlier in unfinished(lineage, job.name, ack):
        if not at_work(earlier.plan, job.name):
            abandoned.add(earlier.id)
    if entry.plan.overtaking is not None:
        patience = entry.plan.overtaking.after_s
    else:
        patience = 0.0
    time_up = ledger.age(entry.plan) >= patience
    is_ahead = entry.completed and has_later_ack(ledger.view(), entry, job.name)
    return rules.on_job(entry, base, job.name, job.after, below, abandoned, time_up=time_up, beyond=is_ahead)


def _lineage(entry: Entry, base: Entry | None, below: Sequence[Entry]) -> list[Entry]:
    if base is None:
        return [entry, *below]
    return [entry, base, *below]


def untaken_input(entry: Entry, base: Entry | None, below: Sequence[Entry], job: Job) -> list[InFlight]:
    """Return the input that the job takes in the entry, in order.

    This is the input of this checkpoint, and that of earlier ones that overtook the job.
    """
    lineage = _lineage(entry, base, below)
    if allows_overtaking(lineage):
        return list(job_progress(lineage).in_flight.get(job.name, ()))
    input = []
    for upstream_job in job.after:
        acked = entry.acks[upstream_job]
        input.append(InFlight(job=upstream_job, ack=acked.handle, channels=acked.ack.channels))
    return input


def early_input_reader(
    pipeline: PipelineContext, entry: Entry, base: Entry | None, below: Sequence[Entry], job: Job, prev: Handle | None
) -> Callable[[], InputSelection] | None:
    """At least once: return a function that selects the input available at its call, also of later checkpoints.

    None if the job takes only its own checkpoint's input.
    """
    if entry.plan.through is None or job.name not in pipeline.graph.greedy_jobs:
        return None
    if allows_overtaking(_lineage(entry, base, below)):
        return None
    ledger, streams = pipeline.ledger, pipeline.graph.channels_of_jobs[job.name]
    if prev is not None:
        already_taken = ledger.chosen_ack(prev, job.name).ahead
    else:
        already_taken = []

    def select_available() -> InputSelection:
        later = [candidate for candidate in ledger.view().entries if candidate.id > entry.id]
        return select_input(entry, later, already_taken, streams)

    return select_available


def not_ready_error(ledger: Ledger, entry: Entry, answer: rules.Wait, subject: str) -> JobNotReady:
    """Return the error for a job that still runs in an earlier checkpoint, with the time that this one will wait."""
    error = JobNotReady(
        f"{subject} waits for checkpoint {answer.ids[0]}",
        help="try again when that job is done there",
        reason="BASE_IN_PROGRESS",
    )
    error.ids = list(answer.ids)
    if entry.plan.overtaking is not None:
        error.wait_s = max(entry.plan.overtaking.after_s - ledger.age(entry.plan), 0.1)
    return error


def overtaken_error(ledger: Ledger, answer: rules.SkipJob, job: Job) -> Rejected:
    """Record in the ledger that the checkpoint overtakes the job, and return the reason to skip it."""
    ledger.create_overtaken(Overtaken(**stamp(seams.new_id()), id=answer.id, job=job.name, busy_with=answer.busy_with))
    obstacle = "still waits for its input"
    if answer.busy_with is not None:
        obstacle = f"is still busy with checkpoint {answer.busy_with}"
    return Rejected(
        f"checkpoint {answer.id} does not wait for job {job.name!r}, which {obstacle}",
        expected="jobs that are done before the next checkpoint, or a checkpoint that overtakes them (`unaligned`)",
        help="nothing to do: the rows that it has not taken are in flight, and it takes all of them when it is free",
        reason=OVERTAKEN,
    )
