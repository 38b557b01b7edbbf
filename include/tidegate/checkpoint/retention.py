"""Retention: forget old checkpoints, by reference and never by age or by "what looks unused".

The rule (design: 3b-protocol.md, section 10). An entry may go when it lies below the last `num_retained`
completed ones and below everything that is still open or owed. First its tombstone is created, then the
log is read again: if anything still rests on the entry, it stays. Then what its attempts staged and no
table names, its side files and its records are deleted, in an order that can break off anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.errors import TidegateError, Unavailable
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.model.records import Blob, Retired
from tidegate.model.view import Entry
from tidegate.sinks.base import Staging

if TYPE_CHECKING:
    from tidegate.checkpoint.coordinator import Coordinator

__all__ = ["release", "retire_old"]


def retire_old(coordinator: Coordinator) -> list[int]:
    """Retire what is below the floor; answers with the ids that are gone now."""
    ledger = coordinator.ledger
    floor = retention_floor(ledger, coordinator.limits.num_retained)
    gone = []
    for id in ledger.ids():
        if id >= floor:
            break
        if _retire(coordinator, id):
            gone.append(id)
    return gone


def retention_floor(ledger: Ledger, num_retained: int) -> int:
    """The lowest id that must stay: the num_retained-th last completed one, or lower if something rests there."""
    view = ledger.view()
    if not view.settled:
        return 0
    kept = 0
    for id in reversed([id for id in ledger.ids() if id <= view.settled]):
        decision = ledger.decision(id)
        kept += decision is not None and decision.outcome == "completed"
        if kept == num_retained:
            return id
    return 0


def release(coordinator: Coordinator, entry: Entry) -> None:
    """Remove what the attempts of an aborted entry staged. A failure leaves files that nobody names."""
    for name, sinking in coordinator.graph.sinks.items():
        context = coordinator.context(name)
        with contextlib.suppress(TidegateError):
            for attempt in sinking.sink.attempts(entry.id, context):
                sinking.sink.discard(context, Staging(entry.id, attempt))


def _retire(coordinator: Coordinator, id: int) -> bool:
    ledger = coordinator.ledger
    if not ledger.retired(id):
        entry = ledger.entry(id)
        if entry is None or entry.open:
            return False
        ledger.create_retired(Retired(**stamp(seams.new_id()), id=id))
        # Tombstone first, then look again: whoever wants to rest on the entry looks for the tombstone.
        if id >= retention_floor(ledger, coordinator.limits.num_retained):
            return False
    entry = ledger.entry(id)
    blobs = _blobs(entry) if entry else set()
    if blobs:
        blobs -= _kept_blobs(ledger, id)
    if entry is not None:
        try:
            _clear_staged(coordinator, entry)
        except Unavailable:
            return False  # next time
    ledger.delete_entry(id, blobs)
    return True


def _clear_staged(coordinator: Coordinator, entry: Entry) -> None:
    """Staged files of attempts that lost, and those of the winner that its table does not name."""
    winners = {acked.ack.attempt for acked in entry.acks.values()} if entry.completed else set()
    for name, sinking in coordinator.graph.sinks.items():
        context = coordinator.context(name)
        for attempt in sinking.sink.attempts(entry.id, context):
            remove = sinking.sink.retire if attempt in winners else sinking.sink.discard
            remove(context, Staging(entry.id, attempt))


def _kept_blobs(ledger: Ledger, below: int) -> set[Blob]:
    """Side files that any later entry names: positions carry theirs on from plan to plan."""
    kept: set[Blob] = set()
    for id in ledger.ids(after=below):
        entry = ledger.entry(id)
        if entry is not None:
            kept |= _blobs(entry)
    return kept


def _blobs(entry: Entry) -> set[Blob]:
    """Every side file that the entry's records name, wherever in them."""
    payloads = [part.splits for part in entry.plan.sources.values()]
    payloads += [payload for acked in entry.acks.values() for payload in acked.ack.sinks.values()]
    found = {payload.blob for payload in payloads if payload.blob is not None}
    for part in entry.plan.sources.values():
        found |= set(_blobs_in(part.end)) | set(_blobs_in(part.start))
    return found


def _blobs_in(value: object) -> Iterator[Blob]:
    """Side files inside a source's own JSON: objects of exactly the shape of Blob."""
    if isinstance(value, dict):
        if value.keys() == {"path", "sha", "size"}:
            yield Blob(path=value["path"], sha=value["sha"], size=value["size"])
        else:
            for inner in value.values():
                yield from _blobs_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _blobs_in(inner)
