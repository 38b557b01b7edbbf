"""Rows that gates have quarantined: counts, pages of rows, and requests to release or discard them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from tidegate import seams
from tidegate.backfill.in_place import in_place
from tidegate.checkpoint.quarantine_requests import ask, expected_effect, pending_requests
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.reader import QuarantineCounts, QuarantinedRows, open_quarantine
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.records.records import Json, Request
from tidegate.ui.answers import (
    Quarantine,
    QuarantinedRow,
    QuarantinedRowsAt,
    QuarantinedRowStatus,
    Requested,
    RowsAnswer,
    Settlement,
    Waiting,
)
from tidegate.ui.pipelines import PipelineRef
from tidegate.ui.rows import outlooks

__all__ = ["alone", "chosen", "cut", "expected", "of_checkpoint", "request", "rows", "waiting"]

LETTERS = 256
"""The maximum length of a value; longer ones are cut."""


def waiting(pipeline: PipelineRef) -> Quarantine:
    """Return for each gate the rows that wait, were released or discarded, also by rule, and the pending requests.

    Every open overview calls this every few seconds. So it reads only new rows, counts only a part of a large backlog,
    and says so. While another request reads rows, it returns the counts so far.
    """
    ledger = pipeline.ledger()
    view = ledger.view()
    by_gate: dict[str, Waiting] = {}
    for gate in pipeline.card.gates:
        reader = open_quarantine(ledger.home, gate, pipeline.options)
        pending = pending_requests(ledger, view, gate)
        counts = QuarantineCounts()
        if reader is not None:
            is_reader = _reading.acquire(blocking=False)
            try:
                counts = reader.counts() if is_reader else reader.counts(budget=0)
            finally:
                if is_reader:
                    _reading.release()
        by_gate[gate] = Waiting(
            waiting=counts.waiting,
            settled=dict(counts.settled),
            rules=dict(counts.rules),
            complete=counts.complete,
            requests=[_requested(request) for request in pending],
        )
    return Quarantine(gates=by_gate)


def _requested(request: Request) -> Requested:
    return Requested(
        number=request.number, action=request.action, requested_by=request.by, requested_at=request.created
    )


def rows(pipeline: PipelineRef, gate: str, rules: Sequence[str], offset: int, limit: int) -> RowsAnswer:
    """Return a page of the rows that wait, as they were when they were quarantined."""
    reader = open_quarantine(pipeline.ledger().home, _gate(pipeline, gate), pipeline.options)
    if reader is None:
        return RowsAnswer(gate=gate, total=0, complete=True, columns=[], rows=[])
    with alone():
        page = reader.page(rules, offset, limit)
    rows = [QuarantinedRow(**_describe_row(row, page.columns)) for row in page.rows]
    return RowsAnswer(gate=gate, total=page.total, complete=page.complete, columns=page.columns, rows=rows)


def of_checkpoint(pipeline: PipelineRef, id: int, gate: str, limit: int) -> QuarantinedRowsAt:
    """Return some of the rows that a gate quarantined in a checkpoint, and the current status of each."""
    reader = open_quarantine(pipeline.ledger().home, _gate(pipeline, gate), pipeline.options)
    quarantined: list[Json] = []
    if reader is not None:
        with alone():
            quarantined = reader.of_checkpoint(id, limit)
    columns = reader.columns if reader is not None else []
    if quarantined:
        requests = {each.number: each for each in pipeline.ledger().requests(gate)}
    else:
        requests = {}
    rows = []
    for row in quarantined:
        rows.append(
            QuarantinedRowStatus(
                **_describe_row(row, columns), status=row[q.SETTLED] or "waiting", settled=_settled(row, requests)
            )
        )
    return QuarantinedRowsAt(gate=gate, checkpoint=id, columns=columns, rows=rows)


def _settled(row: Json, requests: Mapping[int, Request]) -> Settlement | None:
    if not row[q.SETTLED]:
        return None
    number = row.get(q.SETTLED_REQUEST)
    request = requests.get(number) if number is not None else None
    if row.get(q.CORRECTED):
        corrected = json.loads(row[q.CORRECTED], parse_float=str, parse_int=str)
    else:
        corrected = {}
    return Settlement(
        checkpoint=row[q.SETTLED_IN],
        settled_by=row[q.SETTLED_BY] or "",
        request=number,
        requested_at=request.created if request is not None else "",
        note=request.note if request is not None else "",
        sql=request.correct_sql if request is not None else {},
        corrected={name: cut(value) for name, value in corrected.items()},
    )


def _describe_row(row: Json, columns: Sequence[str]) -> Json:
    answer = {"id": row[q.ID], "checkpoint": row[q.CHECKPOINT], "rules": row[q.RULES] or []}
    why = {"stays_because": row.get(q.STAYS), "diverted_because": row.get(q.WHY)}
    return answer | why | {"values": {name: cut(row[name]) for name in columns}}


_reading = threading.Semaphore(1)
"""Only one request at a time reads rows, because this process is Airflow's web server."""
_MAX_WAIT_S = 10.0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the right to read rows. Raise Unavailable if another request keeps it for too long."""
    if not _reading.acquire(timeout=_MAX_WAIT_S):
        raise Unavailable(
            "another request is reading rows",
            expected="one at a time, so that Airflow's pages stay fast",
            help="try again in a moment; `tidegate quarantine show` and `tidegate read` read them elsewhere",
            reason="BUSY",
        )
    try:
        yield
    finally:
        _reading.release()


def request(pipeline: PipelineRef, ledger: Ledger, gate: str, **words: Any) -> tuple[Request, int]:
    """Record a request about rows. Return it, and the number of rows that it selects."""
    created, count = chosen(pipeline, ledger, gate, **words)
    if outlooks.needs_preview(created):
        outlooks.preview_request(pipeline, ledger, created)  # refuses what the command would refuse
    return ask(ledger, created), count


def chosen(
    pipeline: PipelineRef, ledger: Ledger, gate: str, *, expected_rows: int | None = None, **words: Any
) -> tuple[Request, int]:
    """Return a request that is not recorded yet, and the number of rows that it selects. Refuse an invalid one.

    expected_rows: the number of rows that the user was shown. More may have arrived since.
    """
    reader = open_quarantine(ledger.home, _gate(pipeline, gate), pipeline.options)
    created, count = None, 0
    if reader is not None:
        with alone():
            created = _request(reader, **words)
            count = reader.count(created)
    if created is None or not count:
        raise Rejected(
            f"the request selects no waiting row in the quarantine of gate {gate!r}",
            expected="rows that wait",
            help="the page Quarantine shows them",
            reason="NO_ROWS",
        )
    if expected_rows is not None and expected_rows != count:
        raise Rejected(
            f"the request now selects {count:,} rows, but you were shown {expected_rows:,}: some have arrived or left",
            expected="the rows that you were shown",
            help="look at them again, then decide",
            reason="MORE_SINCE",
        )
    return created, count


def expected(pipeline: PipelineRef, ledger: Ledger, request: Request) -> list[str]:
    """Return what each downstream operator would do with the released rows, and which rows would stay."""
    reader = open_quarantine(ledger.home, _gate(pipeline, request.gate), pipeline.options)
    if reader is None:
        return []
    with alone():
        effect = expected_effect(ledger, reader, request)
        replayable = in_place(ledger, reader, request) if effect.may_stay else None
    lines = [f"{line[:1].upper()}{line[1:]}." for line in effect.lines()]
    if replayable is not None and replayable.rows:
        if replayable.origin:
            start = f"checkpoint {replayable.origin}"
        else:
            start = "the beginning"
        lines.append(
            "Rows that stay can be released in place, where they were held back: tidegate quarantine release "
            f"{ledger.pipeline} {request.gate} --all --in-place; then a backfill from {start} with recorded cuts, on "
            "the page Backfills."
        )
    return lines


def _request(
    reader: QuarantinedRows,
    *,
    by: str,
    action: Literal["release", "rejudge", "discard"] = "release",
    ids: Sequence[str] = (),
    rules: Sequence[str] = (),
    correct: Mapping[str, str | None] | None = None,
    correct_sql: Mapping[str, str] | None = None,
    note: str = "",
) -> Request:
    reader.refuse_corrections(correct or {})
    reader.refuse_unknown_columns(correct_sql or {})
    return Request(
        **stamp(seams.new_id()),
        number=1,
        gate=reader.gate,
        action=action,
        seen=reader.last_checkpoint,
        ids=reader.whole_ids(ids),
        rules=list(rules),
        correct=dict(correct or {}),
        correct_sql=dict(correct_sql or {}),
        by=by,
        note=note,
    )


def _gate(pipeline: PipelineRef, gate: str) -> str:
    """Return the gate's name if its rows can be released, otherwise raise Invalid."""
    if gate not in pipeline.card.gates or pipeline.card.by_interval:
        raise Invalid(
            f"the pipeline has no gate {gate!r} whose rows could be released",
            expected=" or ".join(pipeline.card.gates) or "a pipeline with gates that quarantine rows",
            help="in an interval pipeline, run the interval again",
            reason="NO_SUCH_GATE",
        )
    return gate


def cut(value: Any) -> str | None:
    """Return a value as text, cut if it is long. A null stays None, unlike an empty text."""
    return None if value is None else str(value)[:LETTERS]
