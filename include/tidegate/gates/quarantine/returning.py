"""Rows that come back from quarantine: those that requests are about, what they go on as, and how they are marked."""

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
    """Rows of a gate's quarantine that the plan's requests are about. The first request for a row counts."""

    def __init__(self, rows: DataFrame, requests: list[Request], checkpoint: int) -> None:
        from pyspark.sql import functions as f

        self.requests = requests
        self.checkpoint = checkpoint
        which = f.coalesce(*[f.when(_meant(request), request.number) for request in requests])
        self.rows = materialize(rows.withColumn(_REQUEST, which).where(f.col(_REQUEST).isNotNull()))
        counts = {row[0]: row[1] for row in self.rows.groupBy(_REQUEST).count().collect()}
        self.settled = sum(counts.values())
        self.released = sum(counts.get(each.number, 0) for each in requests if each.action == "release")

    def marked(self) -> DataFrame:
        """The rows as they stay in quarantine, with what has become of them."""
        from pyspark.sql import functions as f

        fate = {"release": "released", "discard": "discarded"}
        return self.rows.withColumns(
            {
                q.SETTLED: self._by_request(lambda each: f.lit(fate[each.action])),
                q.SETTLED_IN: f.lit(self.checkpoint).cast("long"),
                q.SETTLED_BY: self._by_request(lambda each: f.lit(each.by)),
            }
        ).drop(_REQUEST)

    def joined(self, passed: DataFrame) -> DataFrame:
        """The rows that passed, and with them those that are released, corrected and in the same columns."""
        from pyspark.sql import functions as f

        if not self.released:
            return passed
        self._refuse_lost(passed.columns)
        numbers = [each.number for each in self.requests if each.action == "release"]
        rows = self.rows.where(f.col(_REQUEST).isin(numbers))
        columns = [self._column(rows, field).alias(field.name) for field in passed.schema.fields]
        return passed.unionByName(rows.select(*columns))

    def _refuse_lost(self, there: list[str]) -> None:
        """Invalid if rows would go on without a value that they have, because the stream has no such column any more:
        the value that they were set aside with, or that somebody has set. A null that was asked for loses nothing."""
        from pyspark.sql import functions as f

        known = {*(name.casefold() for name in there), *q.OWN_COLUMNS, _REQUEST}
        gone = [name for name in self.rows.columns if name.casefold() not in known and name not in known]
        lost: dict[int, list[str]] = {}
        for each in self.requests:
            if each.action != "release" or not gone:
                continue
            found = {name for name in gone if each.correct.get(name) is not None}
            asked = [name for name in gone if name not in each.correct]
            if asked:
                mine = self.rows.where(f.col(_REQUEST) == each.number)
                counts = mine.agg(*(f.count(quoted(name)) for name in asked)).first()
                assert counts is not None
                found |= {name for name, count in zip(asked, counts, strict=True) if count}
            if found:
                lost[each.number] = sorted(found)
        if lost:
            number, gate = next(iter(lost)), self.requests[0].gate
            columns = ", ".join(dict.fromkeys(name for names in lost.values() for name in names))
            raise Invalid(
                f"request {', '.join(map(str, lost))} releases rows of gate {gate!r} with values in {columns}, which "
                "the stream does not have any more: they would go on without them",
                expected=f"a stream with {columns}, or rows whose values there are given up",
                help=f"withdraw it: tidegate quarantine withdraw PIPELINE {gate} {number}; then let the stage in front "
                f"of the gate give {columns} again, or release with --null {columns.split(', ')[0]}, which gives it up",
                reason="VALUES_LOST",
            )

    def _column(self, rows: DataFrame, field: Any) -> Column:
        """A column as the stream has it now: corrected, as it was set aside, or null if it is new since."""
        from pyspark.sql import functions as f

        held = f.col(quoted(field.name)) if field.name in rows.columns else f.lit(None)
        for each in self.requests:
            if field.name in each.correct:
                held = f.when(
                    f.col(_REQUEST) == each.number, f.lit(each.correct[field.name]).cast(field.dataType)
                ).otherwise(held.cast(field.dataType))
        return held.cast(field.dataType)

    def _by_request(self, value: Any) -> Column:
        from pyspark.sql import functions as f

        return f.coalesce(*[f.when(f.col(_REQUEST) == each.number, value(each)) for each in self.requests])


def _meant(request: Request) -> Column:
    """Whether a row is one that the request is about."""
    from pyspark.sql import functions as f

    every = [f.col(q.CHECKPOINT) <= request.seen]
    every += [f.col(q.SETTLED).isNull()]
    if request.ids:
        every.append(f.col(q.ID).isin(request.ids))
    if request.checkpoints:
        every.append(f.col(q.CHECKPOINT).isin(request.checkpoints))
    if request.rules:
        every.append(f.arrays_overlap(f.col(q.RULES), f.array(*map(f.lit, request.rules))))
    return reduce(lambda all, one: all & one, every)
