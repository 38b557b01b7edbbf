"""New distinct values in one query, for all exact counts whose values have the same types: the driver's part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.operators.distinct.by_workers import COUNTS, MOST_COUNTS, NewValues, new_column
from tidegate.operators.functions import Function
from tidegate.records.names import quoted
from tidegate.spark.known import fields_before, is_known_empty
from tidegate.state.folding import Remembered, fold_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

    from tidegate.operators.base import OperatorContext

__all__ = ["Parts", "computed_if_any", "conditions", "new_values", "value_names"]

Parts = Mapping[str, Sequence[Function]]
"""By state, the counts of its values: of the same argument, each under a condition of its own or none."""


def value_names(members: Sequence[Function]) -> list[str]:
    """Return the names under which values are kept: one for each argument."""
    return [f"_value{number}" for number in range(len(members[0].distinct_arguments))]


def conditions(members: Sequence[Function]) -> dict[str, str]:
    """Return the SQL condition under which a value counts, by the state's column that says how often it is there."""
    return {function.distinct_column: function.distinct_where or "true" for function in members}


def computed_if_any(members: Sequence[Function]) -> list[str]:
    """Return the SQL of a value: it is computed only where one of the conditions holds."""
    wheres = list(conditions(members).values())
    arguments = members[0].distinct_arguments
    if "true" in wheres:
        return list(arguments)
    return [f"CASE WHEN {' OR '.join(wheres)} THEN {text} END" for text in arguments]


def new_values(
    rows: DataFrame, by: Sequence[str], parts: Parts, context: OperatorContext
) -> tuple[list[DataFrame], Parts]:
    """Let workers keep the values that are new, and return by how much each count grows; also the parts that they
    could not do. A frame has the keys, any number of rows for each, and a column for each of its counts."""
    done: list[DataFrame] = []
    left: dict[str, Sequence[Function]] = {}
    for members in _alike(rows, by, parts).values():
        fields, names = members
        some = {name: parts[name] for name in names}
        frame = _folded(rows, by, some, fields, context)
        if frame is None:
            left |= some
        else:
            done.append(frame)
    return done, left


def _alike(
    rows: DataFrame, by: Sequence[str], parts: Parts
) -> dict[tuple[str, ...], tuple[Sequence[StructField], list[str]]]:
    """Return the parts whose values have the same types, with the columns of keys and values."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField

    texts = [text for members in parts.values() for text in members[0].distinct_arguments]

    def valued() -> DataFrame:
        return rows.select(*map(quoted, by), *(F.expr(text).alias(f"c{n}") for n, text in enumerate(texts)))

    fields = fields_before(rows.sparkSession, repr((rows.schema.json(), list(by), texts)), valued)
    keys, types = fields[: len(by)], iter(fields[len(by) :])
    found: dict[tuple[str, ...], tuple[Sequence[StructField], list[str]]] = {}
    for name, members in parts.items():
        values = [StructField(value, next(types).dataType) for value in value_names(members)]
        kinds = tuple(value.dataType.simpleString() for value in values)
        found.setdefault(kinds, ([*keys, *values], []))[1].append(name)
    return found


def _folded(
    rows: DataFrame, by: Sequence[str], parts: Parts, fields: Sequence[StructField], context: OperatorContext
) -> DataFrame | None:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    columns = [list(conditions(members)) for members in parts.values()]
    total = sum(map(len, columns))
    if total > MOST_COUNTS:
        return None
    values = value_names(next(iter(parts.values())))
    keys = [*by, *values]
    each, first = [], 0
    for members, names in zip(parts.values(), columns, strict=True):
        each.append(_value(values, members, first))
        first += len(names)
    batch = rows.select(*map(quoted, by), F.inline(F.array(*each)))
    batch = batch.where(" AND ".join(f"{name} IS NOT NULL" for name in values)).select(*map(quoted, keys), COUNTS)
    long = T.LongType()
    states = [
        Remembered(context.state(keys, part), [*fields, *(T.StructField(name, long) for name in names)])
        for part, names in zip(parts, columns, strict=True)
    ]
    given = [*fields[: len(by)], *(T.StructField(new_column(n), long) for n in range(total))]
    arriving = [*fields, T.StructField(COUNTS, long)]
    work = NewValues(list(by), values, columns)
    folded = fold_rows(batch, arriving, keys, states, work, given, is_empty=is_known_empty(rows))
    if folded is None:
        return None
    results: dict[tuple[str, str], list[str]] = defaultdict(list)
    for part, members in parts.items():
        for function in members:
            results[part, function.distinct_column] += function.columns
    counted = [(part, name) for part, names in zip(parts, columns, strict=True) for name in names]
    counts = (F.col(new_column(n)).alias(name) for n, key in enumerate(counted) for name in results[key])
    return folded.rows.select(*map(quoted, by), *counts)


def _value(values: Sequence[str], members: Sequence[Function], first: int) -> Column:
    """Return a value with the counts that it is for. first: the number of the first of them."""
    from pyspark.sql import functions as F

    bits = " | ".join(
        f"IF({where}, {1 << number}L, 0L)" for number, where in enumerate(conditions(members).values(), first)
    )
    named = (F.expr(text).alias(name) for name, text in zip(values, computed_if_any(members), strict=True))
    return F.struct(F.expr(bits).alias(COUNTS), *named)
