"""Read what an entry rests on, as far as jobs may be behind; and which jobs later entries have found busy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidegate.checkpoint import approvals as holding
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.progress import allows_overtaking, missing
from tidegate.protocol.view import Entry, View

__all__ = ["all_below", "beyond", "lacking", "lowest_ack", "passed_by", "settle_acks"]


def all_below(ledger: Ledger, entry: Entry | None, base: Entry | None) -> list[Entry]:
    """What the base rests on, down to where the last ack of the job lies that is furthest behind. Nothing, where all
    jobs are at the base."""
    found: list[Entry] = []
    if entry is None or base is None or not allows_overtaking([entry, base]):
        return found
    at: Entry | None = base
    low: int | None = None
    while at is not None:
        if at.manifest is not None and low is None:
            low = lowest_ack(at)
        if at.restart is not None or at.plan.base is None or (low is not None and at.id <= low):
            break
        at = ledger.entry(at.plan.base)
        if at is not None:
            found.append(at)
    return found


def lowest_ack(entry: Entry) -> int:
    """The lowest entry whose acks a completed entry rests on: its own, unless jobs are behind."""
    if entry.manifest is None:
        return entry.id
    never = any(job not in entry.manifest.jobs for job in entry.manifest.in_flight)
    waiting = [each.ack.entry for left in entry.manifest.in_flight.values() for each in left]
    if never:  # what such a job goes on from lies below all that it has yet to take
        return max(min(waiting) - 1, 0)
    return min([entry.id, *waiting, *(handle.entry for handle in entry.manifest.jobs.values())])


def passed_by(ledger: Ledger, entry: Entry | None) -> frozenset[str]:
    """The jobs that entries above have found busy."""
    if entry is None or not entry.open or not entry.overtakable:
        return frozenset()
    return frozenset(job for above in ledger.view().entries if above.id > entry.id for job in above.overtaken)


def lacking(ledger: Ledger, entry: Entry) -> list[str]:
    """The jobs whose acks the entry waits for."""
    return missing(entry, passed_by(ledger, entry))


def beyond(view: View, entry: Entry, job: str) -> bool:
    """Whether a completed entry above holds a later ack of the job."""
    held: Collection[int] = [
        handle.entry for above in view.entries if above.manifest and (handle := above.manifest.jobs.get(job))
    ]
    return any(each > entry.id for each in held)


def settle_acks(ledger: Ledger, entry: Entry, base: Entry | None, below: Sequence[Entry]) -> None:
    """W2: what the decision rests on survives a power loss before it does."""
    line = [entry, *([base] if base is not None else ()), *below]
    for each in line if allows_overtaking(line) else [entry]:
        for acked in each.acks.values():
            ledger.settle_ack(acked)
    holding.settle(ledger, entry)
    if base is not None:
        ledger.settle_decision(base.id)
