"""Releases rows from quarantine: selects those that requests are about, adds them to the stream, and marks them.

A row that is too late for an operator downstream of the gate would be lost there. So it stays in quarantine, marked
with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.correcting import CANNOT, FLAW, REQUEST, Corrections
from tidegate.gates.row_rules import RowRules
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
    "is_late",
    "late_text",
    "lateness_of",
    "unknown_text",
    "without_time_text",
]

_CONTENT, _COPY = "_tidegate_content", "_tidegate_copy"
_REASON = "_tidegate_reason"
_KEPT = "_tidegate_kept"
_BROKEN = "_tidegate_broken"
"""The names of the rules that a row breaks which is corrected, or judged again."""
_UNJUDGED = "_tidegate_unjudged"
"""Why a row cannot be judged again, or null."""
_RULES_SHOWN, _REASONS_SHOWN = 5, 20
_OTHER_REASONS = "other reasons; the quarantine has the reason of each row"
BREAKS, BREAKS_CORRECTED, BREAKS_AGAIN = "it breaks ", "corrected, it breaks ", "judged again, it breaks "
NO_ROW_RULES = "the gate has no rules about single rows, so it cannot judge this row again"


@dataclass(frozen=True)
class LateLimit:
    """A downstream operator that drops late rows, and its watermark before this checkpoint's rows."""

    operator: LateBehind
    watermark: datetime | None
    run_stages: Callable[[DataFrame], DataFrame | None] | None = None
    """Runs the stages between the gate and the operator on rows. Returns None if their result cannot be known. None: no
    stage is in between."""


class ReleasedRows:
    """The rows of a gate's quarantine that the plan's requests select. If several select a row, the first counts."""

    def __init__(
        self,
        rows: DataFrame,
        requests: list[Request],
        checkpoint: int,
        fields: Sequence[StructField] = (),
        takers: Sequence[LateLimit] = (),
        row_rules: Callable[[], RowRules | None] | None = None,
        *,
        numbered: DataFrame | None = None,
    ) -> None:
        """fields: the stream's columns; without them, the rows are only selected. takers: the downstream operators that
        drop late rows. row_rules: returns the gate's rules about single rows. numbered: the selected rows with the
        numbers of their requests, if these are known already."""
        from pyspark.sql import functions as f

        self.requests = requests
        self.checkpoint = checkpoint
        self._had_reasons = q.STAYS in rows.columns
        if numbered is None:
            number = f.coalesce(*[f.when(_selects(request), request.number) for request in requests])
            numbered = rows.withColumn(REQUEST, number).where(f.col(REQUEST).isNotNull())
        stored = numbered.drop(q.STAYS, q.SETTLED_REQUEST, q.CORRECTED)
        self._stored_columns = [name for name in stored.columns if name != REQUEST]
        self.corrections = Corrections(requests, fields)
        self._judges_again = False
        selected = self.corrections.computed(stored) if fields else stored
        if fields and row_rules is not None:
            selected = self._judged(selected, fields, row_rules)
        self.rows = materialize(self._with_reasons(selected, fields, takers))
        self.persisted = [*self.corrections.helpers, self.rows]
        """Frames that are cached in Spark. The caller releases them."""
        counts = self.rows.groupBy(REQUEST, q.STAYS).count().collect()
        self.selected = sum(row[2] for row in counts)
        """Number of rows that requests are about."""
        self.stays: dict[str, int] = {}
        """Number of rows that cannot be released, by reason."""
        self.released = 0
        for request, reason, count in sorted(counts, key=lambda row: (-row[2], str(row[1]))):
            if reason is not None:
                shown = reason if reason in self.stays or len(self.stays) < _REASONS_SHOWN else _OTHER_REASONS
                self.stays[shown] = self.stays.get(shown, 0) + count
            elif request in self._releasing:
                self.released += count

    @property
    def _releasing(self) -> list[int]:
        return [request.number for request in self.requests if request.action in ("release", "rejudge")]

    def _judged(
        self, rows: DataFrame, fields: Sequence[StructField], row_rules: Callable[[], RowRules | None]
    ) -> DataFrame:
        """Add the names of the rules that a row breaks which is judged; null for all others.

        Rows are judged that are corrected, or to be judged again, and all rows if the rules are binding.
        """
        from pyspark.sql import functions as f

        again = [request.number for request in self.requests if request.action == "rejudge"]
        judged = [request.number for request in self.requests if request.judges]
        if not self._releasing:
            return rows
        rules = row_rules()
        if rules is not None and rules.binding:
            judged = self._releasing
        if not judged:
            return rows
        self._judges_again = bool(again)
        if rules is None:
            unknown = f.when(f.col(REQUEST).isin(again), f.lit(NO_ROW_RULES))
            return rows.withColumn(_UNJUDGED, unknown).withColumn(_BROKEN, f.lit(None).cast("array<string>"))
        # Rules name the stream's columns, with their corrected values; the stored ones are kept aside meanwhile.
        corrected = [self.corrections.current(rows, field).alias(field.name) for field in fields]
        kept = f.struct(*map(quoted, rows.columns)).alias(_KEPT)
        request, stored = f.col(f"{_KEPT}.{REQUEST}"), f.col(f"{_KEPT}.{q.RULES}")
        none = f.array().cast("array<string>")
        unjudged = f.array(*map(f.lit, rules.unjudged)) if rules.unjudged else none
        still_broken = f.array_intersect(f.coalesce(stored, none), unjudged)
        broken = f.when(request.isin(again), f.array_union(rules.broken, still_broken)).otherwise(rules.broken)
        named = rows.select(kept, *corrected).select(f"{_KEPT}.*", f.when(request.isin(judged), broken).alias(_BROKEN))
        return named.withColumn(_UNJUDGED, f.lit(None).cast("string"))

    @property
    def has_values(self) -> Column:
        """Whether the corrections of a row do not fail."""
        from pyspark.sql import functions as f

        return f.col(FLAW).isNull() if FLAW in self.rows.columns else f.lit(True)

    @property
    def broken(self) -> Column | None:
        """The names of the rules that a row breaks, if it is corrected or judged again. None: no row is judged."""
        from pyspark.sql import functions as f

        return f.col(_BROKEN) if _BROKEN in self.rows.columns else None

    def _flaws(self, rows: DataFrame) -> list[Column]:
        """Return the reasons why a row stays that its correction and the gate's rules give."""
        from pyspark.sql import functions as f

        flaws = [f.col(FLAW)] if FLAW in rows.columns else []
        if _BROKEN not in rows.columns:
            return flaws
        shown = f.array_join(f.slice(_BROKEN, 1, _RULES_SHOWN), ", ")
        more = f.when(f.size(_BROKEN) > _RULES_SHOWN, f.lit(" and others")).otherwise(f.lit(""))
        again = [request.number for request in self.requests if request.action == "rejudge"]
        corrected = [request.number for request in self.requests if request.corrects]
        what = f.when(f.col(REQUEST).isin(again), f.lit(BREAKS_AGAIN))
        what = what.when(f.col(REQUEST).isin(corrected), f.lit(BREAKS_CORRECTED)).otherwise(f.lit(BREAKS))
        broken = f.when(f.size(_BROKEN) > 0, f.concat(what, shown, more))
        return [*flaws, f.col(_UNJUDGED), broken]

    def _with_reasons(self, rows: DataFrame, fields: Sequence[StructField], takers: Sequence[LateLimit]) -> DataFrame:
        """Add the column with the reason why a row cannot be released: the first operator that drops it, or may."""
        from pyspark.sql import functions as f

        if not self._releasing:
            return rows.withColumn(q.STAYS, f.lit(None).cast("string"))
        original_columns = rows.columns
        reasons: list[Column] = self._flaws(rows)
        for index, taker in enumerate(takers):
            if taker.run_stages is None:
                by_name = {field.name: self.corrections.current(rows, field) for field in fields}
                reasons.append(_reason(taker, fields, by_name))
                continue
            name = f"{_REASON}{index}"
            by_request = [self._reasons_after_stages(rows, number, fields, taker, name) for number in self._releasing]
            rows = rows.join(reduce(_union, by_request), [q.ID], "left")
            reasons.append(f.col(name))
        reason = f.lit(None)
        if reasons:
            reason = f.when(f.col(REQUEST).isin(self._releasing), f.coalesce(*reasons))
        return rows.withColumn(q.STAYS, reason.cast("string")).select(*map(quoted, original_columns), q.STAYS)

    def _reasons_after_stages(
        self, rows: DataFrame, number: int, fields: Sequence[StructField], taker: LateLimit, name: str
    ) -> DataFrame:
        """Return the ids of a request's rows that an operator drops, with the reasons, after the stages in between.

        If the stages do not keep the ids, it is unknown which row is late: then none of the request's rows is released.
        """
        from pyspark.sql import functions as f

        selected = rows.where(f.col(REQUEST) == number)
        values = [self.corrections.current(selected, field).alias(field.name) for field in fields]
        arriving, has_ids = _rows_before_operator(taker, selected.select(*values, q.ID))
        if arriving is None:
            return selected.select(q.ID, f.lit(unknown_text(taker.operator)).alias(name))
        columns = {field.name: f.col(quoted(field.name)) for field in arriving.schema.fields}
        reason = _reason(taker, arriving.schema.fields, columns)
        if has_ids:
            late = arriving.select(q.ID, reason.alias(name)).where(f.col(name).isNotNull())
            return late.groupBy(q.ID).agg(f.min(name).alias(name))
        first_reason = arriving.select(reason.alias(name)).agg(f.min(name)).first()
        text = None
        if first_reason is not None and first_reason[0]:
            text = f"{first_reason[0]}; or another row of its request is: release it alone"
        return selected.select(q.ID, f.lit(text).cast("string").alias(name))

    def released_again(
        self,
        rows: DataFrame,
        since: int,
        fields: Sequence[StructField],
        takers: Sequence[LateLimit],
        row_rules: Callable[[], RowRules | None] | None,
    ) -> ReleasedRows:
        """Return the same rows of another quarantine: with the same values, broken rules and number of copies.

        rows: the other quarantine, of which only unsettled rows are considered.
        since: considers only rows here that were quarantined after this checkpoint.
        fields, takers, row_rules: as for the constructor.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        def number_copies(frame: DataFrame) -> DataFrame:
            number = f.row_number().over(Window.partitionBy(_CONTENT).orderBy(q.CHECKPOINT, q.ID))
            return frame.withColumn(_CONTENT, _content(frame)).withColumn(_COPY, number)

        requested = number_copies(self.rows.where(f.col(q.CHECKPOINT) > since)).select(_CONTENT, _COPY, REQUEST)
        unsettled = number_copies(rows.where(f.col(q.SETTLED).isNull()))
        numbered = unsettled.join(requested, [_CONTENT, _COPY]).drop(_CONTENT, _COPY)
        return ReleasedRows(rows, self.requests, self.checkpoint, fields, takers, row_rules, numbered=numbered)

    def marked(self) -> DataFrame:
        """Return the rows as the quarantine stores them, marked with their outcome."""
        from pyspark.sql import functions as f

        outcomes = {"release": "released", "rejudge": "released", "discard": "discarded"}
        is_settled = f.col(q.STAYS).isNull()
        marks = {
            q.SETTLED: f.when(is_settled, self._rows_by_request(lambda request: f.lit(outcomes[request.action]))),
            q.SETTLED_IN: f.when(is_settled, f.lit(self.checkpoint).cast("long")),
            q.SETTLED_BY: f.when(is_settled, self._rows_by_request(lambda request: f.lit(request.by))),
            q.SETTLED_REQUEST: f.when(is_settled, f.col(REQUEST).cast("long")),
            q.CORRECTED: f.when(is_settled, self.corrections.corrected_values(self.rows)),
        }
        if self._judges_again:
            is_judged = self._rows_by_request(lambda request: f.lit(request.action == "rejudge"))
            broken = f.when(is_judged & (f.size(_BROKEN) > 0), f.col(_BROKEN))
            marks[q.RULES] = f.coalesce(broken, f.col(q.RULES))
        marked = self.rows.withColumns(marks)
        marked = marked.select(*map(quoted, dict.fromkeys([*self._stored_columns, *marks, q.STAYS])))
        return marked if self.stays or self._had_reasons else marked.drop(q.STAYS)

    def joined(self, passed: DataFrame) -> DataFrame:
        """Return the rows that passed and the released ones, which are corrected and have the same columns."""
        from pyspark.sql import functions as f

        if not self.released:
            return passed
        self._refuse_lost_values(passed.columns)
        rows = self.rows.where(f.col(REQUEST).isin(self._releasing) & f.col(q.STAYS).isNull())
        columns = [self.corrections.current(rows, field).alias(field.name) for field in passed.schema.fields]
        return passed.unionByName(rows.select(*columns))

    def _refuse_lost_values(self, stream_columns: list[str]) -> None:
        """Raise Invalid if released rows have values in columns that the stream no longer has.

        Both stored and corrected values count. A release that sets such a column to null gives up its values.
        """
        from pyspark.sql import functions as f

        present = {*(name.casefold() for name in stream_columns), *q.OWN_COLUMNS}
        absent = [name for name in self._stored_columns if name.casefold() not in present and name not in present]
        if not absent:
            return
        lost_columns: dict[int, list[str]] = {}
        for request in self.requests:
            if request.number not in self._releasing:
                continue
            with_values = {name for name in absent if request.correct.get(name) is not None}
            with_values |= request.correct_sql.keys() & set(absent)
            uncorrected = [name for name in absent if name not in request.correct and name not in with_values]
            if uncorrected:
                rows = self.rows.where(f.col(REQUEST) == request.number)
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

    def _rows_by_request(self, value: Any) -> Column:
        from pyspark.sql import functions as f

        return f.coalesce(*[f.when(f.col(REQUEST) == request.number, value(request)) for request in self.requests])


@dataclass(frozen=True)
class ReleasedInPlace:
    """The bad rows of a backfill's checkpoint. It releases some at once that the pipeline released later."""

    all: DataFrame
    """All bad rows, with the quarantine's columns."""
    unrequested: DataFrame
    """Those that no request is about."""
    released: ReleasedRows

    def rows(self, earlier: ReleasedRows | None) -> DataFrame:
        """Return the rows to stage. earlier: rows of earlier checkpoints that the plan releases as well."""
        rows = self.unrequested.unionByName(self.released.marked(), allowMissingColumns=True)
        if earlier is not None:
            rows = rows.unionByName(earlier.marked(), allowMissingColumns=True)
        return rows


def _content(rows: DataFrame) -> Column:
    """Return a text of a row's values and broken rules, by which equal rows are found.

    Nulls are not part of it, so a missing column equals a column of nulls.
    """
    from pyspark.sql import functions as f

    names = sorted(name for name in rows.columns if name in (q.RULES, q.STREAM) or not name.startswith(q.OWN_PREFIX))
    values = [f.array_sort(name).alias(name) if name == q.RULES else f.col(quoted(name)) for name in names]
    return f.to_json(f.struct(*values), q.WHOLE_MOMENTS)


def _selects(request: Request) -> Column:
    """Return the condition that a request selects a row."""
    from pyspark.sql import functions as f

    is_open = f.col(q.SETTLED).isNull()
    if request.in_place:  # a later backfill releases again what an earlier one has released
        is_open |= f.col(q.SETTLED) == "released"
    conditions = [f.col(q.CHECKPOINT) <= request.seen, is_open]
    if request.ids:
        conditions.append(f.col(q.ID).isin(request.ids))
    if request.checkpoints:
        conditions.append(f.col(q.CHECKPOINT).isin(request.checkpoints))
    if request.rules:
        conditions.append(f.arrays_overlap(f.col(q.RULES), f.array(*map(f.lit, request.rules))))
    return reduce(lambda first, second: first & second, conditions)


def _rows_before_operator(taker: LateLimit, rows: DataFrame) -> tuple[DataFrame | None, bool]:
    """Return the rows after the stages in between, and whether these keep the rows' ids."""
    assert taker.run_stages is not None
    with contextlib.suppress(Exception):  # a stage may fail on an additional column
        arriving = taker.run_stages(rows)
        if arriving is None or q.ID in arriving.columns:
            return arriving, True
    return taker.run_stages(rows.drop(q.ID)), False


def _reason(taker: LateLimit, fields: Sequence[StructField], columns: Mapping[str, Column]) -> Column:
    """Return why an operator would drop a row with these columns; null if it would not."""
    from pyspark.sql import functions as f

    time_column = (taker.operator.column or "").casefold()
    field = next((field for field in fields if field.name.casefold() == time_column), None)
    if field is None or field.dataType.typeName() not in ("timestamp", "timestamp_ntz", "date"):
        return f.lit(unknown_text(taker.operator))
    time = f.unix_micros(columns[field.name].cast("timestamp"))
    reason = f.when(time.isNull(), f.lit(without_time_text(taker.operator)))
    if taker.watermark is None:
        return reason
    late = lateness_of(taker.operator).column(time, micros_of(taker.watermark))
    return reason.when(late, f.lit(late_text(taker.operator, taker.watermark)))


def _union(first: DataFrame, second: DataFrame) -> DataFrame:
    return first.unionByName(second)


def lateness_of(operator: LateBehind) -> Lateness:
    """Return the rule by which an operator considers rows late."""
    return Lateness(operator.lasts, operator.slide, operator.allowed)


def late_text(operator: LateBehind, watermark: datetime | None) -> str:
    """Return the reason why a late row stays in quarantine."""
    text = f"too late for {operator.what}"
    if watermark is not None:
        text += f", whose watermark is at {watermark:%Y-%m-%d %H:%M:%S} UTC"
    return text


def is_late(reason: str | None) -> bool:
    """Return whether a row stays because of its time, which a release in place may mend."""
    if reason is None or reason.startswith((BREAKS_CORRECTED, BREAKS_AGAIN, NO_ROW_RULES)):
        return False
    return f" {CANNOT}: " not in reason


def without_time_text(operator: LateBehind) -> str:
    """Return the reason why a row without a time stays in quarantine."""
    return f"no time in {operator.column}, which {operator.what} needs"


def unknown_text(operator: LateBehind) -> str:
    """Return the reason why a row stays in quarantine that may be late or not."""
    return (
        f"maybe too late for {operator.what}: its time in {operator.column} is computed after the gate, "
        "not from this row alone"
    )
