"""Rows that gates have set aside, as counts: from each quarantine's own columns, never its rows."""

from __future__ import annotations

from collections import Counter

from tidegate.checkpoint.asking import taken_up
from tidegate.gates import quarantine as q
from tidegate.model.records import Json
from tidegate.tables import Location, open_table, read_table
from tidegate.ui.pipelines import Known

__all__ = ["waiting"]


def waiting(known: Known) -> Json:
    """By gate: rows that wait, were released, were given up; by rule; and requests that no checkpoint has taken up."""
    ledger = known.ledger()
    view = ledger.view()
    found: Json = {}
    for gate in known.card.gates:
        snapshot = open_table(Location(q.QuarantineSink(gate).path(ledger.home), known.options))
        pending = ledger.requests(gate, after=taken_up(view, gate))
        rows = read_table(snapshot, [q.SETTLED, q.RULES]).to_pylist() if snapshot is not None else []
        left = [row for row in rows if row[q.SETTLED] is None]
        found[gate] = {
            "waiting": len(left),
            "settled": dict(Counter(row[q.SETTLED] for row in rows if row[q.SETTLED] is not None)),
            "rules": dict(Counter(rule for row in left for rule in row[q.RULES] or ())),
            "requests": [{"number": r.number, "action": r.action, "by": r.by, "at": r.created} for r in pending],
        }
    return found
