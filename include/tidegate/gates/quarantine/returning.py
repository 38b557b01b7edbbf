"""Rows that leave quarantine: which ones requests select, how they rejoin the stream, and how they are marked.

A row that comes too late for an operator behind the gate would be lost there. So it stays, marked with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import Invalid
from tidegate.gates.quarantine import columns as q
from tidegate.records.moments import micros_of
from tidegate.records.names import quoted
from tidegate.records.records import LateBehind, Request
from tidegate.spark.materialize import materialize
from tidegate.state.lateness import Lateness

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

__all__ = [
    "LateLimit",
    "ReleasedInPlace",
    "ReleasedRows",
    "late_text",
    "lateness_of",
    "untold_text",
    "without_time_text",
]

_REQUEST, _CONTENT, _COPY = "_tidegate_request", "_tidegate_content", "_tidegate_copy"
_REASON = "_tidegate_reason"


@dataclass(frozen=True)
class LateLimit:
    """An operator behind the gate, and the watermark that it has in front of this checkpoint's rows."""

    operator: LateBehind
    watermark: datetime | None
    rows_there: Callable[[DataFrame], DataFrame | None] | None = None
    """Returns what the stages on the way make of rows that pass the gate; None: nobody can tell. Unset: there are no
    stages on the way."""


class ReleasedRows:
    """The rows of a gate's quarantine that the plan's requests select. The first request for a row counts."""

    def __init__(
        self,
        rows: DataFrame,
        requests: list[Request],
        checkpoint: int,
        fields: Sequence[StructField] = (),
        takers: Sequence[LateLimit] = (),
        *,
        numbered: DataFrame | None = None,
    ) -> None:
        """fields: the stream's columns. takers: the operators behind the gate that take no late rows. numbered: the
        rows, if it is known which request each is for."""
        from pyspark.sql import functions as f

        self.requests = requests
        self.checkpoint = checkpoint
        self._had_reasons = q.STAYS in rows.columns
        if numbered is None:
            number = f.coalesce(*[f.when(_selects(request), request.number) for request in requests])
            numbered = rows.withColumn(_REQUEST, number).where(f.col(_REQUEST).isNotNull())
        self.rows = materialize(self._with_reasons(numbered.drop(q.STAYS), fields, takers))
        counts = self.rows.groupBy(_REQUEST, q.STAYS).count().collect()
        self.selected = sum(row[2] for row in counts)
        """All rows that requests are about."""
        self.stays: dict[str, int] = {}
        """Rows that were to be released and stay, by the reason."""
        self.released = 0
        for request, reason, count in counts:
            if reason is not None:
                self.stays[reason] = self.stays.get(reason, 0) + count
            elif request in self._releasing:
                self.released += count

    @property
    def _releasing(self) -> list[int]:
        return [request.number for request in self.requests if request.action == "release"]

    def _with_reasons(self, rows: DataFrame, fields: Sequence[StructField], takers: Sequence[LateLimit]) -> DataFrame:
        """Add why a row is not released, if it is not: the reason of the first operator that would lose it, or of which
        nobody can tell whether it would."""
        from pyspark.sql import functions as f

        reasons: list[Column] = []
        own = rows.columns
        for place, taker in enumerate(takers if self._releasing else ()):
            if taker.rows_there is None:
                by_name = {field.name: self._current_column(rows, field) for field in fields}
                reasons.append(_reason(taker, fields, by_name))
                continue
            name = f"{_REASON}{place}"
            of_requests = [self._reasons_after_stages(rows, number, fields, taker, name) for number in self._releasing]
            rows = rows.join(reduce(_union, of_requests), [q.ID], "left")
            reasons.append(f.col(name))
        reason = f.coalesce(*reasons) if reasons else f.lit(None)
        stays = f.when(f.col(_REQUEST).isin(self._releasing), reason) if reasons else reason
        return rows.withColumn(q.STAYS, stays.cast("string")).select(*map(quoted, own), q.STAYS)

    def _reasons_after_stages(
        self, rows: DataFrame, number: int, fields: Sequence[StructField], taker: LateLimit, name: str
    ) -> DataFrame:
        """Return, by the ids of the rows of a request that would stay, why: by what stages make of their times. Where
        these leave the ids out, a row that would stay lets all of them stay."""
        from pyspark.sql import functions as f

        chosen = rows.where(f.col(_REQUEST) == number)
        values = [self._current_column(chosen, field).alias(field.name) for field in fields]
        there, has_ids = _rows_at_operator(taker, chosen.select(*values, q.ID))
        if there is None:
            return chosen.select(q.ID, f.lit(untold_text(taker.operator)).alias(name))
        columns = {field.name: f.col(quoted(field.name)) for field in there.schema.fields}
        reason = _reason(taker, there.schema.fields, columns)
        if has_ids:
            late = there.select(q.ID, reason.alias(name)).where(f.col(name).isNotNull())
            return late.groupBy(q.ID).agg(f.min(name).alias(name))
        found = there.select(reason.alias(name)).agg(f.min(name)).first()
        text = found[0] if found is not None else None
        text = f"{text}; or that is so of another row of its request: release it alone" if text else None
        return chosen.select(q.ID, f.lit(text).cast("string").alias(name))

    def released_again(
        self, rows: DataFrame, since: int, fields: Sequence[StructField], takers: Sequence[LateLimit]
    ) -> ReleasedRows:
        """Return those of another quarantine's waiting rows that are the same: with the same values, and breaking the
        same rules. Of equal ones, as many as there are here.

        since: of the rows here, only those that were quarantined after this checkpoint. fields, takers: as above.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        def counted(frame: DataFrame) -> DataFrame:
            number = f.row_number().over(Window.partitionBy(_CONTENT).orderBy(q.CHECKPOINT, q.ID))
            return frame.withColumn(_CONTENT, _content(frame)).withColumn(_COPY, number)

        wanted = counted(self.rows.where(f.col(q.CHECKPOINT) > since)).select(_CONTENT, _COPY, _REQUEST)
        there = counted(rows.where(f.col(q.SETTLED).isNull()))
        numbered = there.join(wanted, [_CONTENT, _COPY]).drop(_CONTENT, _COPY)
        return ReleasedRows(rows, self.requests, self.checkpoint, fields, takers, numbered=numbered)

    def marked(self) -> DataFrame:
        """Return the rows as they stay in quarantine, marked with their outcome."""
        from pyspark.sql import functions as f

        outcomes = {"release": "released", "discard": "discarded"}
        leaves = f.col(q.STAYS).isNull()
        marked = self.rows.withColumns(
            {
                q.SETTLED: f.when(leaves, self._rows_by_request(lambda request: f.lit(outcomes[request.action]))),
                q.SETTLED_IN: f.when(leaves, f.lit(self.checkpoint).cast("long")),
                q.SETTLED_BY: f.when(leaves, self._rows_by_request(lambda request: f.lit(request.by))),
            }
        ).drop(_REQUEST)
        return marked if self.stays or self._had_reasons else marked.drop(q.STAYS)

    def joined(self, passed: DataFrame) -> DataFrame:
        """Return the rows that passed together with the released ones, corrected and in the same columns."""
        from pyspark.sql import functions as f

        if not self.released:
            return passed
        self._refuse_lost_values(passed.columns)
        rows = self.rows.where(f.col(_REQUEST).isin(self._releasing) & f.col(q.STAYS).isNull())
        columns = [self._current_column(rows, field).alias(field.name) for field in passed.schema.fields]
        return passed.unionByName(rows.select(*columns))

    def _refuse_lost_values(self, stream_columns: list[str]) -> None:
        """Raise Invalid if rows would be released without one of their values, because the stream no longer has the
        column: a value from when they were quarantined, or one that somebody has set. A column that the request sets to
        null loses nothing."""
        from pyspark.sql import functions as f

        present = {*(name.casefold() for name in stream_columns), *q.OWN_COLUMNS, _REQUEST}
        absent = [name for name in self.rows.columns if name.casefold() not in present and name not in present]
        lost_columns: dict[int, list[str]] = {}
        for request in self.requests:
            if request.action != "release" or not absent:
                continue
            with_values = {name for name in absent if request.correct.get(name) is not None}
            uncorrected = [name for name in absent if name not in request.correct]
            if uncorrected:
                rows = self.rows.where(f.col(_REQUEST) == request.number)
                counts = rows.agg(*(f.count(quoted(name)) for name in uncorrected)).first()
                assert counts is not None
                with_values |= {name for name, count in zip(uncorrected, counts, strict=True) if count}
            if with_values:
                lost_columns[request.number] = sorted(with_values)
        if lost_columns:
            number, gate = next(iter(lost_columns)), self.requests[0].gate
            columns = ", ".join(dict.fromkeys(name for names in lost_columns.values() for name in names))
            raise Invalid(
                f"request {', '.join(map(str, lost_columns))} releases rows of gate {gate!r} with values in {columns}, "
                "which the stream no longer has: these values would be lost",
                expected=f"a stream with {columns}, or a release that gives up these values",
                help=f"withdraw it: tidegate quarantine withdraw PIPELINE {gate} {number}; then let the stage before "
                f"the gate return {columns} again, or release with --null {columns.split(', ')[0]}, "
                "which gives it up",
                reason="VALUES_LOST",
            )

    def _current_column(self, rows: DataFrame, field: Any) -> Column:
        """Return a column as the stream has it now: corrected, as it was quarantined, or null if it is newer than the
        row."""
        from pyspark.sql import functions as f

        value = f.col(quoted(field.name)) if field.name in rows.columns else f.lit(None)
        value = value.cast(field.dataType)
        for request in self.requests:
            if field.name in request.correct:
                correction = f.lit(request.correct[field.name]).cast(field.dataType)
                value = f.when(f.col(_REQUEST) == request.number, correction).otherwise(value)
        return value

    def _rows_by_request(self, value: Any) -> Column:
        from pyspark.sql import functions as f

        return f.coalesce(*[f.when(f.col(_REQUEST) == request.number, value(request)) for request in self.requests])


@dataclass(frozen=True)
class ReleasedInPlace:
    """Bad rows of a line's checkpoint, some of which it lets out at once: where the pipeline has held them back."""

    all: DataFrame
    """All of them, as the quarantine has them."""
    unrequested: DataFrame
    """Those that nobody has asked for."""
    released: ReleasedRows

    def rows(self, back: ReleasedRows | None) -> DataFrame:
        """Return the rows to stage. back: returning rows."""
        rows = self.unrequested.unionByName(self.released.marked(), allowMissingColumns=True)
        return rows.unionByName(back.marked(), allowMissingColumns=True) if back is not None else rows


_WHOLE_MOMENTS: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""Spark leaves out what is below a millisecond unless it is told not to."""


def _content(rows: DataFrame) -> Column:
    """Return what tells a row from others. A column that is not there is one without a value."""
    from pyspark.sql import functions as f

    own = {q.ID, q.CHECKPOINT, q.SETTLED, q.SETTLED_IN, q.SETTLED_BY, q.STAYS, _REQUEST}
    names = sorted(name for name in rows.columns if name not in own)
    values = [f.array_sort(name).alias(name) if name == q.RULES else f.col(quoted(name)) for name in names]
    return f.to_json(f.struct(*values), _WHOLE_MOMENTS)  # it leaves out what is null


def _selects(request: Request) -> Column:
    """Return the condition that a request selects a row."""
    from pyspark.sql import functions as f

    waits = f.col(q.SETTLED).isNull()
    if request.in_place:  # a later line lets out again what an earlier one has let out
        waits |= f.col(q.SETTLED) == "released"
    conditions = [f.col(q.CHECKPOINT) <= request.seen, waits]
    if request.ids:
        conditions.append(f.col(q.ID).isin(request.ids))
    if request.checkpoints:
        conditions.append(f.col(q.CHECKPOINT).isin(request.checkpoints))
    if request.rules:
        conditions.append(f.arrays_overlap(f.col(q.RULES), f.array(*map(f.lit, request.rules))))
    return reduce(lambda first, second: first & second, conditions)


def _rows_at_operator(taker: LateLimit, rows: DataFrame) -> tuple[DataFrame | None, bool]:
    """Return what the stages on the way make of rows, and whether they leave the rows' ids in."""
    assert taker.rows_there is not None
    with contextlib.suppress(Exception):  # a stage may not expect a column more
        there = taker.rows_there(rows)
        if there is None or q.ID in there.columns:
            return there, True
    return taker.rows_there(rows.drop(q.ID)), False


def _reason(taker: LateLimit, fields: Sequence[StructField], columns: Mapping[str, Column]) -> Column:
    """Return why a row would be lost that comes to an operator in this form; null: it would not."""
    from pyspark.sql import functions as f

    wanted = (taker.operator.column or "").casefold()
    field = next((field for field in fields if field.name.casefold() == wanted), None)
    if field is None or field.dataType.typeName() not in ("timestamp", "timestamp_ntz", "date"):
        return f.lit(untold_text(taker.operator))
    time = f.unix_micros(columns[field.name].cast("timestamp"))
    until = None if taker.watermark is None else micros_of(taker.watermark)
    late = f.lit(False) if until is None else lateness_of(taker.operator).column(time, until)
    return f.when(time.isNull(), f.lit(without_time_text(taker.operator))).when(
        late, f.lit(late_text(taker.operator, taker.watermark))
    )


def _union(first: DataFrame, second: DataFrame) -> DataFrame:
    return first.unionByName(second)


def lateness_of(behind: LateBehind) -> Lateness:
    """Return the rule by which an operator takes rows."""
    return Lateness(behind.lasts, behind.slide, behind.allowed)


def late_text(behind: LateBehind, watermark: datetime | None) -> str:
    """Return the reason why a row stays that an operator takes no more."""
    come_to = f", which has come to {watermark:%Y-%m-%d %H:%M:%S} UTC" if watermark is not None else ""
    return f"too late for {behind.what}{come_to}"


def without_time_text(behind: LateBehind) -> str:
    """Return the reason why a row stays that has no time."""
    return f"no time in {behind.column}, by which {behind.what} goes"


def untold_text(behind: LateBehind) -> str:
    """Return the reason why a row stays of which nobody can tell whether an operator still takes it."""
    return f"maybe too late for {behind.what}: its time in {behind.column} is made behind the gate, not from it alone"
