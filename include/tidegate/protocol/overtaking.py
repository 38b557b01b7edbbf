"""Decide what a job that may be behind does: start, wait, or let the checkpoint go past. Pure; for rules.on_job."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidegate.protocol.answers import PassedBy, RunJob, Stop, Wait
from tidegate.protocol.progress import progress_of
from tidegate.protocol.view import Entry
from tidegate.records.records import Handle

__all__ = ["on_job_behind", "unfinished"]


def on_job_behind(
    line: Sequence[Entry], job: str, after: Sequence[str], gone: Collection[int], *, time_up: bool, beyond: bool
) -> PassedBy | RunJob | Stop | Wait:
    """Decide the next step of a job in the line's first entry, in which it has no ack yet.

    gone: entries in which nobody works on this job any more; a hint. time_up: alignment has lasted long enough.
    beyond: a later completed entry holds an ack of the job.
    """
    entry, progress = line[0], progress_of(line)
    passed = entry.overtaken & {job, *after}
    if passed:
        return PassedBy(entry.id, None)
    if entry.decision is not None and (beyond or job not in entry.overtakable):
        return Stop(f"checkpoint {entry.id} was completed without job {job!r}, which is further now")
    chosen = progress.chosen.get(job)
    earlier = unfinished(line, job, chosen)
    must_finish = next(
        (candidate for candidate in earlier if candidate.open and job not in candidate.overtakable), None
    )
    if must_finish is not None:
        return Wait((must_finish.id,))
    busy = min((below.id for below in earlier if below.id not in gone), default=None)
    if any(not progress.is_at(maker, entry.id) for maker in after):
        return Wait((entry.id,))
    if busy is None:
        return RunJob(chosen)
    overtaking = entry.plan.overtaking if job in entry.overtakable else None
    if overtaking is not None and (time_up or overtaking.after_s <= 0):
        return PassedBy(entry.id, busy)
    return Wait((busy,))


def unfinished(line: Sequence[Entry], job: str, last_ack: Handle | None) -> list[Entry]:
    """Return the entries below the first in which the job may be running: no ack there, and not overtaken."""
    entries = []
    for entry in line[1:]:
        if entry.restart is not None or (last_ack is not None and entry.id <= last_ack.entry):
            break
        makers = set(entry.plan.takes.get(job, {}).values())
        may_run = makers <= set(entry.acks) or job not in entry.overtakable
        overtaken = entry.overtaken & {job, *makers}
        if job in entry.plan.acks and job not in entry.acks and not overtaken and may_run:
            entries.append(entry)
    return entries
