"""New distinct values in one query, for all exact counts whose values have the same types: the driver's part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.operators.calls import Call, parse_call
from tidegate.operators.distinct.by_workers import MOST_PARTS, PARTS, NewValues, new_column
from tidegate.operators.functions import Function
from tidegate.records.names import quoted
from tidegate.spark.known import fields_before, is_known_empty
from tidegate.state.folding import Remembered, fold_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

    from tidegate.operators.base import OperatorContext

__all__ = ["Parts", "new_values", "value_names"]

Parts = Mapping[str, Sequence[Function]]
"""By state, the counts of its values: they have the same argument."""


def value_names(members: Sequence[Function]) -> list[str]:
    """Return the names under which values are kept: one for each argument."""
    return [f"_value{number}" for number in range(len(members[0].call.arguments))]


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

    texts = [text for members in parts.values() for text in members[0].call.arguments]

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

    if len(parts) > MOST_PARTS:
        return None
    values = value_names(next(iter(parts.values())))
    keys = [*by, *values]
    each = [_value(values, same) for same in _by_value(parts).values()]
    batch = rows.select(*map(quoted, by), F.inline(F.array(*each)))
    batch = batch.where(" AND ".join(f"{name} IS NOT NULL" for name in values)).select(*map(quoted, keys), PARTS)
    stored = [*fields, T.StructField("_n", T.LongType())]
    states = [Remembered(context.state(keys, part), stored) for part in parts]
    work = NewValues(list(by), values, len(parts))
    given = [*fields[: len(by)], *(T.StructField(new_column(n), T.LongType()) for n in range(len(parts)))]
    arriving = [*fields, T.StructField(PARTS, T.LongType())]
    folded = fold_rows(batch, arriving, keys, states, work, given, is_empty=is_known_empty(rows))
    if folded is None:
        return None
    columns: dict[str, list[str]] = defaultdict(list)
    for number, members in enumerate(parts.values()):
        columns[new_column(number)] += [name for function in members for name in function.columns]
    counts = (F.col(new).alias(name) for new, names in columns.items() for name in names)
    return folded.rows.select(*map(quoted, by), *counts)


def _by_value(parts: Parts) -> dict[tuple[str, ...], list[tuple[int, Call]]]:
    """Return the numbers and calls of parts that count the same value, each under a condition of its own or none."""
    found: dict[tuple[str, ...], list[tuple[int, Call]]] = {}
    for number, members in enumerate(parts.values()):
        call = parse_call(members[0].call.text)
        assert isinstance(call, Call)
        found.setdefault(call.arguments, []).append((number, call))
    return found


def _value(values: Sequence[str], calls: Sequence[tuple[int, Call]]) -> Column:
    """Return a value with the parts that it is for. It is computed only where one of their conditions holds."""
    from pyspark.sql import functions as F

    bits = " | ".join(f"IF({call.where or 'true'}, {1 << number}L, 0L)" for number, call in calls)
    texts = calls[0][1].arguments
    arguments = (f"CASE WHEN ({bits}) <> 0 THEN {text} END" for text in texts)
    named = (F.expr(text).alias(name) for name, text in zip(values, arguments, strict=True))
    return F.struct(F.expr(bits).alias(PARTS), *named)
