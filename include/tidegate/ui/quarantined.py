"""Rows that gates have set aside: how many wait, which ones, and what is to become of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate import seams
from tidegate.checkpoint.asking import ask, taken_up
from tidegate.errors import Invalid, Rejected
from tidegate.gates import quarantine as q
from tidegate.gates.aside import Aside, open_quarantine
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.model.records import Json, Request
from tidegate.tables import read_table
from tidegate.ui.pipelines import Known

__all__ = ["request", "rows", "waiting"]

LETTERS = 256
"""So much of a value is shown."""


def waiting(known: Known) -> Json:
    """By gate: rows that wait, were released, were given up; by rule; and requests that no checkpoint has taken up."""
    ledger = known.ledger()
    view = ledger.view()
    found: Json = {}
    for gate in known.card.gates:
        aside = open_quarantine(ledger.home, gate, known.options)
        pending = ledger.requests(gate, after=taken_up(view, gate))
        there = read_table(aside.snapshot, [q.SETTLED, q.RULES]).to_pylist() if aside is not None else []
        left = [row for row in there if row[q.SETTLED] is None]
        found[gate] = {
            "waiting": len(left),
            "settled": dict(Counter(row[q.SETTLED] for row in there if row[q.SETTLED] is not None)),
            "rules": dict(Counter(rule for row in left for rule in row[q.RULES] or ())),
            "requests": [{"number": r.number, "action": r.action, "by": r.by, "at": r.created} for r in pending],
        }
    return found


def rows(known: Known, gate: str, rules: Sequence[str], offset: int, limit: int) -> Json:
    """Rows that wait, a page of them, as they were when they were set aside."""
    aside = open_quarantine(known.ledger().home, _gate(known, gate), known.options)
    if aside is None:
        return {"gate": gate, "total": 0, "columns": [], "rows": []}
    found = aside.matching(_request(aside, by="", rules=rules), whole=True)
    columns = [name for name in found.column_names if name not in q.OWN_COLUMNS]
    shown = [
        {
            "id": row[q.ID],
            "checkpoint": row[q.CHECKPOINT],
            "rules": row[q.RULES] or [],
            "values": {name: _text(row[name]) for name in columns},
        }
        for row in found.slice(offset, limit).to_pylist()
    ]
    return {"gate": gate, "total": found.num_rows, "columns": columns, "rows": shown}


def request(known: Known, ledger: Ledger, gate: str, **words: Any) -> tuple[Request, int]:
    """Ask for what is to become of rows; answers with the request, and how many rows it is about."""
    aside = open_quarantine(ledger.home, _gate(known, gate), known.options)
    made = _request(aside, **words) if aside is not None else None
    count = aside.matching(made).num_rows if aside is not None and made is not None else 0
    if made is None or not count:
        raise Rejected(
            f"no row that waits in quarantine of gate {gate!r} is meant",
            expected="rows that wait",
            help="the page Quarantine shows them",
            reason="NO_ROWS",
        )
    return ask(ledger, made), count


def _request(
    aside: Aside,
    *,
    by: str,
    discard: bool = False,
    ids: Sequence[str] = (),
    rules: Sequence[str] = (),
    correct: Mapping[str, str | None] | None = None,
    note: str = "",
) -> Request:
    aside.refuse_corrections(correct or {})
    return Request(
        **stamp(seams.new_id()),
        number=1,
        gate=aside.gate,
        action="discard" if discard else "release",
        seen=aside.last_checkpoint,
        ids=aside.whole_ids(ids),
        rules=list(rules),
        correct=dict(correct or {}),
        by=by,
        note=note,
    )


def _gate(known: Known, gate: str) -> str:
    """Its name, if rows of it could go on."""
    if gate not in known.card.gates or known.card.by_interval:
        raise Invalid(
            f"the pipeline has no gate {gate!r} whose rows could go on",
            expected=" or ".join(known.card.gates) or "a pipeline with gates that set rows aside",
            help="in a pipeline that reads by data interval, make the interval again",
            reason="NO_SUCH_GATE",
        )
    return gate


def _text(value: Any) -> str | None:
    """A value for people. A null is none, and differs from an empty text."""
    return None if value is None else str(value)[:LETTERS]
