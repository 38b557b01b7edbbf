"""Rows that gates have set aside: how many wait, which ones, and what is to become of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidegate import seams
from tidegate.checkpoint.quarantine_requests import ask, taken_up
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.reader import QuarantineCounts, SetAside, open_quarantine
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.records.records import Json, Request
from tidegate.ui.pipelines import Known

__all__ = ["request", "rows", "waiting"]

LETTERS = 256
"""So much of a value is shown."""


def waiting(known: Known) -> Json:
    """By gate: rows that wait, were released, were given up; by rule; and requests that no checkpoint has taken up.

    Looked at every few seconds by everybody who has the overview open. So it costs no more than what has come since; of
    a large backlog it counts a part, and says so. While somebody else has rows read, it tells what is known.
    """
    ledger = known.ledger()
    view = ledger.view()
    found: Json = {}
    for gate in known.card.gates:
        aside = open_quarantine(ledger.home, gate, known.options)
        pending = ledger.requests(gate, after=taken_up(view, gate))
        told = QuarantineCounts()
        if aside is not None:
            alone = _reading.acquire(blocking=False)
            try:
                told = aside.counts() if alone else aside.counts(budget=0)
            finally:
                if alone:
                    _reading.release()
        found[gate] = {
            "waiting": told.waiting,
            "settled": dict(told.settled),
            "rules": dict(told.rules),
            "complete": told.complete,
            "requests": [{"number": r.number, "action": r.action, "by": r.by, "at": r.created} for r in pending],
        }
    return found


def rows(known: Known, gate: str, rules: Sequence[str], offset: int, limit: int) -> Json:
    """Rows that wait, a page of them, as they were when they were set aside."""
    aside = open_quarantine(known.ledger().home, _gate(known, gate), known.options)
    if aside is None:
        return {"gate": gate, "total": 0, "complete": True, "columns": [], "rows": []}
    with _alone():
        page = aside.page(rules, offset, limit)
    shown = [
        {
            "id": row[q.ID],
            "checkpoint": row[q.CHECKPOINT],
            "rules": row[q.RULES] or [],
            "values": {name: _text(row[name]) for name in page.columns},
        }
        for row in page.rows
    ]
    return {"gate": gate, "total": page.total, "complete": page.complete, "columns": page.columns, "rows": shown}


_reading = threading.Semaphore(1)
"""Rows are read for one request at a time: this process is Airflow's web server, and has others to answer."""
_PATIENCE_S = 10.0


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Read rows while nobody else does, or say that others do."""
    if not _reading.acquire(timeout=_PATIENCE_S):
        raise Unavailable(
            "rows in quarantine are being read for somebody else",
            expected="one at a time, so that Airflow's pages go on",
            help="try again in a moment; `tidegate quarantine show` reads them elsewhere",
            reason="BUSY",
        )
    try:
        yield
    finally:
        _reading.release()


def request(known: Known, ledger: Ledger, gate: str, **words: Any) -> tuple[Request, int]:
    """Ask for what is to become of rows; answers with the request, and how many rows it is about."""
    aside = open_quarantine(ledger.home, _gate(known, gate), known.options)
    made, count = None, 0
    if aside is not None:
        with _alone():
            made = _request(aside, **words)
            count = aside.count(made)
    if made is None or not count:
        raise Rejected(
            f"no row that waits in quarantine of gate {gate!r} is meant",
            expected="rows that wait",
            help="the page Quarantine shows them",
            reason="NO_ROWS",
        )
    return ask(ledger, made), count


def _request(
    aside: SetAside,
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
