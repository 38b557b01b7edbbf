"""Find the side files and states that an entry's records name. Retention deletes by these references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry
from tidegate.records import typed
from tidegate.records.records import Ack, Blob, Json, Payload
from tidegate.state.table import STATE

__all__ = ["acks_of", "blobs_of", "blobs_within", "memory_of", "states_as_of", "states_named", "states_of"]


def states_of(entry: Entry) -> dict[str, Payload]:
    """Return every keyed state as of the entry. A rollback has none: its target names them."""
    states: dict[str, Payload] = {}
    for acked in entry.acks.values():
        states |= acked.ack.states
    return states


def states_named(entry: Entry) -> dict[str, Payload]:
    """Return every keyed state whose files the entry's own records name. A rollback's records name the states that it
    restores."""
    if entry.rollback is None or entry.manifest is None:
        return states_of(entry)
    states = {}
    for name, part in entry.manifest.tables.items():
        if name.startswith(STATE) and part.committables:
            states[name] = part.committables[0]
    return states


def acks_of(ledger: Ledger, base: Entry) -> list[Ack]:
    """Return the acks that the base rests on: for a rollback those of its target, for a swap its copies of the
    backfill's, for a lagging job its last one."""
    if base.manifest is None:
        return [acked.ack for acked in base.acks.values()]
    handles = base.manifest.jobs
    to_read = set()
    for job, handle in handles.items():
        if handle.entry != base.id or base.rollback is not None:
            to_read.add(job)
    acks = []
    for job, acked in base.acks.items():
        if job in handles and job not in to_read:
            acks.append(acked.ack)
    return acks + [ledger.chosen_ack(handle, job) for job, handle in handles.items() if job in to_read]


def memory_of(acks: Iterable[Ack]) -> dict[str, Json]:
    """Return the small state of all operators, gates and sources in these acks, by name."""
    memory: dict[str, Json] = {}
    for ack in acks:
        memory |= ack.memory
    return memory


def states_as_of(ledger: Ledger, entry: Entry) -> dict[str, Payload]:
    """Return every keyed state as of a completed checkpoint; for a rollback, the states that it restores."""
    if entry.rollback is not None:
        return states_named(entry)
    states: dict[str, Payload] = {}
    for ack in acks_of(ledger, entry):
        states |= ack.states
    return states


def blobs_of(entry: Entry) -> set[Blob]:
    """Return every side file that the entry's records name."""
    payloads = [*(part.splits for part in entry.plan.sources.values()), *entry.plan.fixed_inputs.values()]
    for acked in entry.acks.values():
        ack = acked.ack
        payloads += [*ack.sinks.values(), *ack.states.values(), *ack.channels.values()]
        for verdict in ack.gates.values():
            payloads.append(verdict.results)
        if ack.diverted is not None:
            payloads += [*ack.diverted.rest, *ack.diverted.quarantined]
        if ack.columns is not None:
            payloads.append(ack.columns.stages)
    if entry.rollback is not None and entry.manifest is not None:
        for table in entry.manifest.tables.values():
            payloads += table.committables
    blobs = {payload.blob for payload in payloads if payload.blob is not None}
    for part in entry.plan.sources.values():
        blobs |= set(blobs_within(part.end)) | set(blobs_within(part.start))
    return blobs


def blobs_within(value: object) -> Iterator[Blob]:
    """Yield the side files inside a source's own JSON: objects with exactly the shape of Blob."""
    if isinstance(value, dict):
        try:
            yield typed.convert(value, Blob)
        except msgspec.ValidationError:
            for inner in value.values():
                yield from blobs_within(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from blobs_within(inner)
