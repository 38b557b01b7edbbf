"""Rows that gates have quarantined: how many wait, which ones, and what is to become of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidegate import seams
from tidegate.backfill.in_place import in_place
from tidegate.checkpoint.quarantine_requests import ask, expected_effect, pending_requests
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.reader import QuarantineCounts, QuarantinedRows, open_quarantine
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.records.records import Json, Request
from tidegate.ui.pipelines import PipelineRef

__all__ = ["alone", "chosen", "cut", "expected", "of_checkpoint", "request", "rows", "waiting"]

LETTERS = 256
"""Longer values are cut."""


def waiting(pipeline: PipelineRef) -> Json:
    """By gate: rows that wait, were released, were given up; by rule; and requests that no checkpoint has taken up.

    Every open overview calls this every few seconds. So it reads only what has come since; of a large backlog it counts
    a part, and says so. While another request reads rows, it returns what is known.
    """
    ledger = pipeline.ledger()
    view = ledger.view()
    by_gate: Json = {}
    for gate in pipeline.card.gates:
        reader = open_quarantine(ledger.home, gate, pipeline.options)
        pending = pending_requests(ledger, view, gate)
        counts = QuarantineCounts()
        if reader is not None:
            alone = _reading.acquire(blocking=False)
            try:
                counts = reader.counts() if alone else reader.counts(budget=0)
            finally:
                if alone:
                    _reading.release()
        by_gate[gate] = {
            "waiting": counts.waiting,
            "settled": dict(counts.settled),
            "rules": dict(counts.rules),
            "complete": counts.complete,
            "requests": [_request_answer(request) for request in pending],
        }
    return by_gate


def _request_answer(request: Request) -> Json:
    return {
        "number": request.number,
        "action": request.action,
        "requested_by": request.by,
        "requested_at": request.created,
    }


def rows(pipeline: PipelineRef, gate: str, rules: Sequence[str], offset: int, limit: int) -> Json:
    """Rows that wait, a page of them, as they were when they were quarantined."""
    reader = open_quarantine(pipeline.ledger().home, _gate(pipeline, gate), pipeline.options)
    if reader is None:
        return {"gate": gate, "total": 0, "complete": True, "columns": [], "rows": []}
    with alone():
        page = reader.page(rules, offset, limit)
    documents = [_describe_row(row, page.columns) for row in page.rows]
    return {"gate": gate, "total": page.total, "complete": page.complete, "columns": page.columns, "rows": documents}


def of_checkpoint(pipeline: PipelineRef, id: int, gate: str, limit: int) -> Json:
    """Some of the rows that a gate has quarantined at a checkpoint, and what has become of each since."""
    reader = open_quarantine(pipeline.ledger().home, _gate(pipeline, gate), pipeline.options)
    found: list[Json] = []
    if reader is not None:
        with alone():
            found = reader.of_checkpoint(id, limit)
    columns = reader.columns if reader is not None else []
    documents = [_describe_row(row, columns) | {"status": row[q.SETTLED] or "waiting"} for row in found]
    return {"gate": gate, "checkpoint": id, "columns": columns, "rows": documents}


def _describe_row(row: Json, columns: Sequence[str]) -> Json:
    answer = {"id": row[q.ID], "checkpoint": row[q.CHECKPOINT], "rules": row[q.RULES] or []}
    return answer | {"stays_because": row.get(q.STAYS), "values": {name: cut(row[name]) for name in columns}}


_reading = threading.Semaphore(1)
"""Rows are read for one request at a time: this process is Airflow's web server, and has others to answer."""
_PATIENCE_S = 10.0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Read rows while nobody else does, or say that others do."""
    if not _reading.acquire(timeout=_PATIENCE_S):
        raise Unavailable(
            "rows are being read for somebody else",
            expected="one at a time, so that Airflow's pages stay fast",
            help="try again in a moment; `tidegate quarantine show` and `tidegate read` read them elsewhere",
            reason="BUSY",
        )
    try:
        yield
    finally:
        _reading.release()


def request(pipeline: PipelineRef, ledger: Ledger, gate: str, **words: Any) -> tuple[Request, int]:
    """Ask for what is to become of rows; answers with the request, and how many rows it is about."""
    created, count = chosen(pipeline, ledger, gate, **words)
    return ask(ledger, created), count


def chosen(
    pipeline: PipelineRef, ledger: Ledger, gate: str, *, expected_rows: int | None = None, **words: Any
) -> tuple[Request, int]:
    """Return a request that nobody has made yet, and how many rows it is about. Refuse one that cannot be made.

    expected_rows: how many the user was shown. Rows may have come since, which nobody has looked at.
    """
    reader = open_quarantine(ledger.home, _gate(pipeline, gate), pipeline.options)
    created, count = None, 0
    if reader is not None:
        with alone():
            created = _request(reader, **words)
            count = reader.count(created)
    if created is None or not count:
        raise Rejected(
            f"no row that waits in quarantine of gate {gate!r} is meant",
            expected="rows that wait",
            help="the page Quarantine shows them",
            reason="NO_ROWS",
        )
    if expected_rows is not None and expected_rows != count:
        raise Rejected(
            f"{count:,} rows are meant by now, and you were shown {expected_rows:,}: some have come since or left",
            expected="the rows that you were shown",
            help="look at them again, then decide",
            reason="MORE_SINCE",
        )
    return created, count


def expected(pipeline: PipelineRef, ledger: Ledger, asked: Request) -> list[str]:
    """What each operator behind the gate would do with rows that are released, and which ones would stay."""
    reader = open_quarantine(ledger.home, _gate(pipeline, asked.gate), pipeline.options)
    if reader is None:
        return []
    with alone():
        told = expected_effect(ledger, reader, asked)
        found = in_place(ledger, reader, asked) if told.may_stay else None
    lines = [f"{line[:1].upper()}{line[1:]}." for line in told.lines()]
    if found is not None and found.rows:
        begin = f"checkpoint {found.origin}" if found.origin else "the beginning"
        lines.append(
            "Rows that stay can be let out where they were held back: tidegate quarantine release "
            f"{ledger.pipeline} {asked.gate} --all --in-place; then a backfill from {begin} with recorded cuts, as the "
            "page Backfills makes it."
        )
    return lines


def _request(
    reader: QuarantinedRows,
    *,
    by: str,
    discard: bool = False,
    ids: Sequence[str] = (),
    rules: Sequence[str] = (),
    correct: Mapping[str, str | None] | None = None,
    note: str = "",
) -> Request:
    reader.refuse_corrections(correct or {})
    return Request(
        **stamp(seams.new_id()),
        number=1,
        gate=reader.gate,
        action="discard" if discard else "release",
        seen=reader.last_checkpoint,
        ids=reader.whole_ids(ids),
        rules=list(rules),
        correct=dict(correct or {}),
        by=by,
        note=note,
    )


def _gate(pipeline: PipelineRef, gate: str) -> str:
    """Its name, if rows of it could be released."""
    if gate not in pipeline.card.gates or pipeline.card.by_interval:
        raise Invalid(
            f"the pipeline has no gate {gate!r} whose rows could be released",
            expected=" or ".join(pipeline.card.gates) or "a pipeline with gates that quarantine rows",
            help="in a pipeline that reads by data interval, make the interval again",
            reason="NO_SUCH_GATE",
        )
    return gate


def cut(value: Any) -> str | None:
    """A value for people. A null is none, and differs from an empty text."""
    return None if value is None else str(value)[:LETTERS]
