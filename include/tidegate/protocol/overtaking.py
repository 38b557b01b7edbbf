"""What a job does that may be behind: begin, wait, or let the checkpoint go past. Pure; asked by protocol.on_job."""

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
    """What a job of the line's first entry does, which has no ack there.

    gone: entries at which nobody works at this job any more; a hint. time_up: alignment has lasted long enough.
    beyond: a later completed entry holds an ack of the job.
    """
    entry, progress = line[0], progress_of(line)
    passed = entry.overtaken & {job, *after}
    if passed:
        return PassedBy(entry.id, None)
    if entry.decision is not None and (beyond or job not in entry.overtakable):
        return Stop(f"checkpoint {entry.id} was completed without job {job!r}, which is further now")
    mine = progress.chosen.get(job)
    behind = unfinished(line, job, mine)
    must = next((each for each in behind if each.open and job not in each.overtakable), None)
    if must is not None:
        return Wait((must.id,))
    busy = min((each.id for each in behind if each.id not in gone), default=None)
    if any(not progress.is_at(maker, entry.id) for maker in after):
        return Wait((entry.id,))
    if busy is None:
        return RunJob(mine)
    overtaking = entry.plan.overtaking if job in entry.overtakable else None
    if overtaking is not None and (time_up or overtaking.after_s <= 0):
        return PassedBy(entry.id, busy)
    return Wait((busy,))


def unfinished(line: Sequence[Entry], job: str, mine: Handle | None) -> list[Entry]:
    """The entries below the first in which the job may be at work: it has no ack there, and was not overtaken."""
    found = []
    for entry in line[1:]:
        if entry.restart is not None or (mine is not None and entry.id <= mine.entry):
            break
        makers = set(entry.plan.takes.get(job, {}).values())
        begun = makers <= set(entry.acks)
        over = entry.overtaken & {job, *makers}
        if job in entry.plan.acks and job not in entry.acks and not over and (begun or job not in entry.overtakable):
            found.append(entry)
    return found
