"""The manifest: what a completed decision makes true, computed from what is acknowledged."""

from __future__ import annotations

from tidegate import seams
from tidegate.checkpoint import protocol
from tidegate.ledger.ledger import stamp
from tidegate.model.records import Manifest, Position, TablePart
from tidegate.model.view import Entry

__all__ = ["manifest_of"]


def manifest_of(entry: Entry, base: Entry | None) -> Manifest:
    """What completing `entry` makes true. Carries on what its base says of sources and sinks now gone."""
    before = base.manifest if base else None
    acks = [entry.acks[job] for job in entry.plan.acks]
    positions = dict(before.positions) if before else {}
    positions |= {name: Position(kind=r.kind, at=r.end) for name, r in entry.plan.sources.items()}
    tables = {}
    for name in [*(before.tables if before else ()), *entry.plan.commits]:
        staged = [acked.ack.sinks[name] for acked in acks if name in acked.ack.sinks]
        after = protocol.after_publish([before], name) if before else None
        tables[name] = TablePart(after=after, committables=staged)
    return Manifest(
        **stamp(seams.new_id()),
        id=entry.id,
        base=base.id if base else None,
        base_manifest=base.decision.manifest if base and base.decision else None,
        positions=positions,
        jobs={job: acked.handle for job, acked in entry.acks.items()},
        tables=tables,
    )
