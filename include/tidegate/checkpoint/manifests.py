"""The manifest: what a completed decision makes true, computed from what is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate import seams
from tidegate.errors import Corrupt
from tidegate.ledger.ledger import stamp
from tidegate.protocol import rules as protocol
from tidegate.protocol.progress import allows_overtaking, progress_of
from tidegate.protocol.view import Entry
from tidegate.records.records import Ack, Handle, InFlight, Manifest, Position, PublishedTable, TablePart

__all__ = ["manifest_flaws", "manifest_of"]


def manifest_of(entry: Entry, base: Entry | None, below: Sequence[Entry] = ()) -> Manifest:
    """What completing `entry` makes true. Carries on what its base says of sources and sinks now gone.

    below: what the base rests on, where jobs may be behind.
    """
    before = base.manifest if base else None
    jobs, acks, in_flight = _counted([entry, *([base] if base is not None else ()), *below])
    positions = dict(before.positions) if before else {}
    positions |= {name: Position(kind=r.kind, at=r.end) for name, r in entry.plan.sources.items()}
    tables = {}
    for name in [*(before.tables if before else ()), *entry.plan.commits]:
        staged = [ack.sinks[name] for ack in acks if name in ack.sinks]
        after = protocol.after_publish([before], name) if before else None
        tables[name] = TablePart(after=after, committables=staged, through=_through(name, entry, acks, before))
    manifest = Manifest(
        **stamp(seams.new_id()),
        id=entry.id,
        base=base.id if base else None,
        base_manifest=base.decision.manifest if base and base.decision else None,
        positions=positions,
        jobs=jobs,
        tables=tables,
        in_flight=in_flight,
    )
    if flaw := next(manifest_flaws(manifest, entry), None):
        raise Corrupt(
            f"checkpoint {entry.id} would not be consistent: {flaw}",
            expected="each job at the checkpoint, or behind it with all that it has not taken in flight",
            help="nothing was decided; this is a fault of tidegate: report it, with the ledger's folder",
            reason="BAD_MANIFEST",
        )
    return manifest


def _through(name: str, entry: Entry, acks: Sequence[Ack], before: Manifest | None) -> PublishedTable | None:
    """Where a table stood once jobs had written to it themselves: the last of them, or as before."""
    if name not in (entry.plan.through or ()):
        return None
    part = before.tables.get(name) if before is not None else None
    found = (ack.through[name] for ack in reversed(acks) if name in ack.through)
    return next(found, part.through if part is not None else None)


def _counted(line: Sequence[Entry]) -> tuple[dict[str, Handle], list[Ack], dict[str, list[InFlight]]]:
    """The ack that each job is at, all acks that have come to these since the base, and what nobody has taken."""
    entry = line[0]
    if not allows_overtaking(line):
        acks = [entry.acks[job].ack for job in entry.plan.acks]
        return {job: acked.handle for job, acked in entry.acks.items()}, acks, {}
    progress = progress_of(line)
    chained = [acked.ack for job in entry.plan.acks for acked in progress.chains[job]]
    return dict(progress.chosen), chained, {job: list(left) for job, left in progress.in_flight.items()}


def manifest_flaws(manifest: Manifest, entry: Entry) -> Iterator[str]:
    """What of it cannot be: sources are at the checkpoint, no job is before those that it takes from, and what lies
    between is in flight."""
    at = {job: handle.entry for job, handle in manifest.jobs.items()}
    for name, part in entry.plan.sources.items():
        if manifest.positions.get(name) != Position(kind=part.kind, at=part.end):
            yield f"source {name!r} is not where its plan ends"
    for job in entry.plan.acks:
        behind = at.get(job, 0)
        if behind != entry.id and job not in entry.overtakable:
            yield f"job {job!r} is at {behind or 'nothing'}, and may not be behind"
        for maker in dict.fromkeys(entry.plan.takes.get(job, {}).values()):
            waiting = [each.ack.entry for each in manifest.in_flight.get(job, ()) if each.job == maker]
            if behind > at.get(maker, 0):
                yield f"job {job!r} is at {behind}, before job {maker!r}, from which it takes, at {at.get(maker, 0)}"
            if waiting != sorted(set(waiting)):
                yield f"what job {job!r} has yet to take from {maker!r} is {waiting}, which is no order"
            if waiting and waiting[-1] != at.get(maker):
                yield f"job {job!r} has yet to take {waiting} from {maker!r}, which is at {at.get(maker)}"
            if not waiting and behind < at.get(maker, 0):
                yield f"job {job!r} is at {behind}, {maker!r} at {at[maker]}, and nothing is in flight between them"
