"""A source that generates rows, always the same rows for the same offsets. For examples and tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidegate.connectors.source import (
    Planned,
    Source,
    SourceContext,
    foreign_position_error,
    is_at_least,
    smallest_bound,
)
from tidegate.connectors.unrepeatable import UNREPEATABLE
from tidegate.records.names import quoted
from tidegate.records.records import Amount, Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Generator"]

_LITERAL: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`")


class Generator(Source):
    """Generates rows from column expressions in Spark SQL over `id`, which counts from 0.

    Generator(rows=1000, columns={"id": "id", "amount": "cast(id % 100 as decimal(12,2))"})

    rows: the number of rows per checkpoint.
    total: the number of rows after which the source ends. None: it never ends.
    columns: a Spark SQL expression for each column.
    partitions: the number of Spark partitions of a range. None: Spark decides.
    """

    kind = "generator"
    can_stop = True
    unit = "rows"

    def __init__(
        self,
        rows: int = 1000,
        total: int | None = None,
        columns: Mapping[str, str] | None = None,
        partitions: int | None = None,
    ) -> None:
        self.rows = rows
        self.total = total
        self.columns = columns if columns is not None else {"id": "id"}
        self.partitions = partitions

    def describe(self) -> Json:
        """See Source."""
        return {
            "kind": self.kind,
            "rows": self.rows,
            "total": self.total,
            "columns": dict(self.columns),
            "partitions": self.partitions,
        }

    def problems(self) -> list[str]:
        """See Source."""
        problems = []
        for name, value, minimum in (
            ("rows", self.rows, 1),
            ("total", self.total, 0),
            ("partitions", self.partitions, 1),
        ):
            is_unset = value is None and name != "rows"
            if not is_unset and not _is_count(value, minimum):
                problems.append(f"{name} is {value!r}; it must be a whole number, at least {minimum}")
        if not isinstance(self.columns, Mapping) or not self.columns:
            return [*problems, 'columns must name at least one column, like {"id": "id"}']
        lowered_names: set[str] = set()
        for name, expression in self.columns.items():
            problems += _column_problems(name, expression, lowered_names)
        return problems

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """Plan the next `rows` offsets."""
        first = _offset_of(start, context)
        stop = None
        if context.stop_position is not None:
            stop = context.stop_position["offset"]
        end = smallest_bound([self.total, stop])
        last = first + (context.bound(self.rows) or 1)
        if end is not None:
            last = max(first, min(last, end))
        return Planned(
            end=start if first == last else {"offset": last},
            splits={"from": first, "to": last},
            is_empty=first == last,
            has_more=end is not None and first < last < end,  # an endless source has no backlog
            summary=f"{last - first:,} rows" if first != last else "at its end",
            amount=last - first,
        )

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        return is_at_least(position, other, "offset")

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        """Return the size of the range. It cannot have changed, since rows are computed from their offsets."""
        return Amount(rows=splits["to"] - splits["from"])

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the rows of the planned offsets."""
        ids = spark.range(splits["from"], splits["to"], 1, self.partitions)
        return ids.selectExpr(*(f"{expression} AS {quoted(name)}" for name, expression in self.columns.items()))


def _is_count(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _column_problems(name: object, expression: object, names_before: set[str]) -> list[str]:
    """Return a column's problems, and add its name to `names_before`, which is in lower case."""
    if not isinstance(name, str) or not name:
        return [f"column name {name!r} must be a string, and not empty"]
    problems = []
    if name.lower() in names_before:
        problems.append(f"column {name!r} occurs twice (Spark ignores upper and lower case)")
    names_before.add(name.lower())
    if not isinstance(expression, str) or not expression.strip():
        return [*problems, f"column {name!r}: {expression!r} is not an SQL expression; write it like 'id % 10'"]
    unrepeatable = UNREPEATABLE.search(_LITERAL.sub("''", expression))
    if unrepeatable:
        problems.append(
            f"column {name!r} uses {unrepeatable.group()}(), which returns different rows on every read; "
            "derive values from id, for example with hash(id)"
        )
    return problems


def _offset_of(start: Json | None, context: SourceContext) -> int:
    if start is None:
        return 0
    offset = start.get("offset")
    if not _is_count(offset, 0) or set(start) != {"offset"}:
        raise foreign_position_error(context.source, start, 'a position of a generator, like {"offset": 1000}')
    assert isinstance(offset, int)
    return offset
