"""Read the entries that one rests on, as far as jobs may be behind, and the jobs that later entries found busy."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.checkpoint import approvals
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.progress import allows_overtaking, missing
from tidegate.protocol.view import Entry, View

__all__ = ["all_below", "beyond", "lacking", "lowest_ack", "passed_by", "sync_acks"]


def all_below(ledger: Ledger, entry: Entry | None, base: Entry | None) -> list[Entry]:
    """Return the entries that the base rests on, down to the last ack of the job that is furthest behind. Empty if all
    jobs are at the base."""
    ancestors: list[Entry] = []
    if entry is None or base is None or not allows_overtaking([entry, base]):
        return ancestors
    ancestor: Entry | None = base
    low: int | None = None
    while ancestor is not None:
        if ancestor.manifest is not None and low is None:
            low = lowest_ack(ancestor)
        if ancestor.restart is not None or ancestor.plan.base is None or (low is not None and ancestor.id <= low):
            break
        ancestor = ledger.entry(ancestor.plan.base)
        if ancestor is not None:
            ancestors.append(ancestor)
    return ancestors


def lowest_ack(entry: Entry) -> int:
    """Return the lowest entry whose acks a completed entry rests on: itself, unless jobs are behind."""
    if entry.manifest is None:
        return entry.id
    without_ack = any(job not in entry.manifest.jobs for job in entry.manifest.in_flight)
    waiting = [part.ack.entry for unread in entry.manifest.in_flight.values() for part in unread]
    if without_ack:  # such a job continues from below all that it has not read
        return max(min(waiting) - 1, 0)
    return min([entry.id, *waiting, *(handle.entry for handle in entry.manifest.jobs.values())])


def passed_by(ledger: Ledger, entry: Entry | None) -> frozenset[str]:
    """Return the jobs that entries above have found busy."""
    if entry is None or not entry.open or not entry.overtakable:
        return frozenset()
    return frozenset(job for above in ledger.view().entries if above.id > entry.id for job in above.overtaken)


def lacking(ledger: Ledger, entry: Entry) -> list[str]:
    """Return the jobs whose acks the entry waits for."""
    return missing(entry, passed_by(ledger, entry))


def beyond(view: View, entry: Entry, job: str) -> bool:
    """Return whether a completed entry above holds a later ack of the job."""
    handles = [above.manifest.jobs.get(job) for above in view.entries if above.manifest is not None]
    return any(handle is not None and handle.entry > entry.id for handle in handles)


def sync_acks(ledger: Ledger, entry: Entry, base: Entry | None, below: Sequence[Entry]) -> None:
    """W2: sync every record that the decision rests on, before the decision is created."""
    line = [entry, *([base] if base is not None else ()), *below]
    for settled in line if allows_overtaking(line) else [entry]:
        for acked in settled.acks.values():
            ledger.sync_ack(acked)
    approvals.sync_answers(ledger, entry)
    if base is not None:
        ledger.sync_decision(base.id)
