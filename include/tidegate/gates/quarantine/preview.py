"""Shows what a correction, or judging rows again, would do now: with counts, and a few rows before and after.

It computes the rows as the checkpoint will that takes the request up (`returning.py`), and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.expressions import first_line
from tidegate.gates.quarantine.returning import LateLimit, ReleasedRows
from tidegate.gates.row_rules import RowRules
from tidegate.records.names import quoted
from tidegate.records.records import Request
from tidegate.spark.materialize import release

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

__all__ = ["Preview", "RowBeforeAndAfter", "preview"]


@dataclass(frozen=True)
class RowBeforeAndAfter:
    """A row as it is in quarantine, with the values that it would get."""

    id: str
    rules: Sequence[str]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    """By corrected column."""
    stays: str | None
    """Why it would stay in quarantine, or None: it would continue."""


@dataclass(frozen=True)
class Preview:
    """What a request would do with the rows that it is about."""

    rows: int
    counts: int
    """The rows that would continue after the gate."""
    stays: Mapping[str, int] = field(default_factory=dict)
    """The rows that would stay in quarantine, by reason."""
    changed: int = 0
    """The rows of which a corrected column would get another value."""
    to_null: Mapping[str, int] = field(default_factory=dict)
    """By corrected column, the rows in which it would become null."""
    rules: Mapping[str, int] = field(default_factory=dict)
    """The rows by the rules that they are recorded with."""
    rules_after: Mapping[str, int] = field(default_factory=dict)
    """The rows that would stay, by the rules that they break now."""
    samples: Sequence[RowBeforeAndAfter] = ()
    failed: int = 0
    """The rows that an expression fails for."""
    error: str = ""
    """Spark's error for one of these rows. It may quote a value."""


def preview(
    quarantined: DataFrame,
    request: Request,
    takers: Sequence[LateLimit],
    row_rules: Callable[[], RowRules | None],
    limit: int,
) -> Preview:
    """Return what a request would do with rows of this quarantine. limit: how many rows to show that would continue,
    and how many that would stay."""
    stream = [each for each in quarantined.schema.fields if each.name not in q.OWN_COLUMNS]
    request = msgspec.structs.replace(request, number=1)  # it only gets one when it is recorded
    released = ReleasedRows(quarantined, [request], request.seen, stream, takers, row_rules)
    try:
        return _describe(released, request, stream, limit)
    finally:
        for frame in released.persisted:
            release(frame)


def _describe(released: ReleasedRows, request: Request, stream: Sequence[StructField], limit: int) -> Preview:
    from pyspark.sql import functions as f

    rows = released.rows
    corrected = [each for each in stream if each.name in request.correct or each.name in request.correct_sql]
    found = Preview(released.selected, released.released, released.stays)
    if corrected:
        after = {each.name: released.corrections.current(rows, each) for each in corrected}
        is_computed = released.has_values
        changed = [~after[name].eqNullSafe(f.col(quoted(name))) & is_computed for name in after]
        is_changed = changed[0]
        for each in changed[1:]:
            is_changed |= each
        nulls = [
            f.count(f.when(is_computed & after[name].isNull() & f.col(quoted(name)).isNotNull(), 1)) for name in after
        ]
        counted = rows.agg(f.count(f.when(is_changed, 1)), *nulls).collect()[0]
        to_null = {name: count for name, count in zip(after, counted[1:], strict=True) if count}
        failed, error = _failure(released, corrected)
        found = replace(found, changed=counted[0], to_null=to_null, failed=failed, error=error)
    found = replace(found, rules=_count_rows_per_rule(rows, f.col(q.RULES)))
    if released.broken is not None:
        found = replace(found, rules_after=_count_rows_per_rule(rows, released.broken))
    samples = []
    for stays in (False, True):
        chosen = rows.where(f.col(q.STAYS).isNotNull() if stays else f.col(q.STAYS).isNull())
        samples += _samples(chosen, released, stream, corrected, limit)
    return replace(found, samples=samples)


def _failure(released: ReleasedRows, corrected: Sequence[StructField]) -> tuple[int, str]:
    """Return the number of rows that an expression fails for, and Spark's error for one of them."""
    rows = released.rows.where(~released.has_values)
    failed = rows.count()
    for each in corrected if failed else ():
        value = released.corrections.uncaught(each)
        if value is not None:
            try:
                rows.limit(1).select(value).collect()
            except Exception as error:
                return failed, first_line(error)
    return failed, ""


def _count_rows_per_rule(rows: DataFrame, names: Column) -> dict[str, int]:
    """Return the number of rows for each name in an array, the most frequent first."""
    from pyspark.sql import functions as f

    counts = rows.select(f.explode(names).alias("rule")).groupBy("rule").count().collect()
    return {row[0]: row[1] for row in sorted(counts, key=lambda row: (-row[1], row[0]))}


def _samples(
    rows: DataFrame,
    released: ReleasedRows,
    stream: Sequence[StructField],
    corrected: Sequence[StructField],
    limit: int,
) -> list[RowBeforeAndAfter]:
    from pyspark.sql import functions as f

    names = [each.name for each in stream]
    before = [f.col(quoted(name)) for name in names]
    after = [released.corrections.current(rows, each) for each in corrected]
    found = []
    for row in rows.select(q.ID, q.RULES, q.STAYS, *before, *after).limit(limit).collect():
        id, rules, stays, *values = row
        found.append(
            RowBeforeAndAfter(
                id,
                rules or [],
                dict(zip(names, values[: len(names)], strict=True)),
                dict(zip([each.name for each in corrected], values[len(names) :], strict=True)),
                stays,
            )
        )
    return found
