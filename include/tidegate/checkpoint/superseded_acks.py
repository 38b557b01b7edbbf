"""Find acks that never count. Where checkpoints may overtake a busy job, two attempts may continue the same ack."""

from __future__ import annotations

from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Acked, Entry

__all__ = ["superseded_attempts"]


def superseded_attempts(ledger: Ledger, entry: Entry) -> set[str]:
    """Return the attempts of a completed entry whose acks no manifest has taken, and none will.

    That is certain only once a checkpoint above is completed in which the job is further, and so rests on another ack;
    and only while all entries in between exist, because a retired one may have taken the ack.
    """
    if not entry.completed or entry.manifest is None:
        return set()
    named = set(entry.manifest.jobs.values())
    late = {job: acked for job, acked in entry.acks.items() if acked.handle not in named}
    return {acked.ack.attempt for job, acked in late.items() if _is_void(ledger, entry, job, acked)}


def _is_void(ledger: Ledger, entry: Entry, job: str, acked: Acked) -> bool:
    for id in range(entry.id + 1, ledger.view().settled + 1):
        above = ledger.entry(id)
        if above is None:
            return False
        if above.manifest is None:
            continue
        handle = above.manifest.jobs.get(job)
        if handle == acked.handle:
            return False
        staged = {name: part.committables for name, part in above.manifest.tables.items()}
        if any(payload in staged.get(name, ()) for name, payload in acked.ack.sinks.items()):
            return False
        if above.rollback is None and handle is not None and handle.entry > entry.id:
            return True
    return False
