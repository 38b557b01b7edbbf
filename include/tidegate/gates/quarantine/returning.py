"""Rows that leave quarantine: which ones requests select, how they rejoin the stream, and how they are marked."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.gates.quarantine import columns as q
from tidegate.records.names import quoted
from tidegate.records.records import Request
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ReleasedRows"]

_REQUEST = "_tidegate_request"


class ReleasedRows:
    """The rows of a gate's quarantine that the plan's requests select. The first request for a row counts."""

    def __init__(self, rows: DataFrame, requests: list[Request], checkpoint: int) -> None:
        from pyspark.sql import functions as f

        self.requests = requests
        self.checkpoint = checkpoint
        number = f.coalesce(*[f.when(_selects(request), request.number) for request in requests])
        self.rows = materialize(rows.withColumn(_REQUEST, number).where(f.col(_REQUEST).isNotNull()))
        counts = {row[0]: row[1] for row in self.rows.groupBy(_REQUEST).count().collect()}
        self.settled = sum(counts.values())
        self.released = sum(counts.get(request.number, 0) for request in requests if request.action == "release")

    def marked(self) -> DataFrame:
        """Return the rows as they stay in quarantine, marked with their outcome."""
        from pyspark.sql import functions as f

        outcomes = {"release": "released", "discard": "discarded"}
        return self.rows.withColumns(
            {
                q.SETTLED: self._by_request(lambda request: f.lit(outcomes[request.action])),
                q.SETTLED_IN: f.lit(self.checkpoint).cast("long"),
                q.SETTLED_BY: self._by_request(lambda request: f.lit(request.by)),
            }
        ).drop(_REQUEST)

    def joined(self, passed: DataFrame) -> DataFrame:
        """Return the rows that passed together with the released ones, corrected and in the same columns."""
        from pyspark.sql import functions as f

        if not self.released:
            return passed
        self._refuse_lost_values(passed.columns)
        numbers = [request.number for request in self.requests if request.action == "release"]
        rows = self.rows.where(f.col(_REQUEST).isin(numbers))
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

    def _by_request(self, value: Any) -> Column:
        from pyspark.sql import functions as f

        return f.coalesce(*[f.when(f.col(_REQUEST) == request.number, value(request)) for request in self.requests])


def _selects(request: Request) -> Column:
    """Return the condition that a request selects a row."""
    from pyspark.sql import functions as f

    conditions = [f.col(q.CHECKPOINT) <= request.seen, f.col(q.SETTLED).isNull()]
    if request.ids:
        conditions.append(f.col(q.ID).isin(request.ids))
    if request.checkpoints:
        conditions.append(f.col(q.CHECKPOINT).isin(request.checkpoints))
    if request.rules:
        conditions.append(f.arrays_overlap(f.col(q.RULES), f.array(*map(f.lit, request.rules))))
    return reduce(lambda first, second: first & second, conditions)
