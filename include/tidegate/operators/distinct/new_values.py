"""Runs the kernel of distinct values: the driver's part. One query serves all counts with values of the same types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.operators.distinct.kernel import (
    ARRIVED_LIFE,
    CARRIES_AGGREGATES,
    COUNT_BITS,
    LIFE,
    MAX_COUNTS,
    MULTIPLICITY,
    NewValues,
    new_column,
)
from tidegate.operators.distinct.pre_aggregation import learn, may_be_reduced, reduce_values
from tidegate.operators.functions import Function
from tidegate.operators.inputs import sql_type
from tidegate.records.names import quoted
from tidegate.spark.frame_facts import fields_before, is_known_empty, select_sql, with_fields
from tidegate.state.arrow.workers import merges
from tidegate.state.kernel_driver import StateLookup, run_kernel
from tidegate.state.keyed import KeyedState, schema_of, sums_that_do_not_fit_fail

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from tidegate.operators.context import OperatorContext

__all__ = [
    "NO_NEW_DISTINCT",
    "CoAggregates",
    "NewDistinct",
    "Parts",
    "computed_if_any",
    "conditions",
    "new_values",
    "value_names",
]

Parts = Mapping[str, Sequence[Function]]
"""For each state the counts of its values: they have the same argument, and different conditions."""


class CoAggregates(NamedTuple):
    """Partial values of other aggregates over the same rows, which workers merge in the same query."""

    texts: Mapping[str, str]
    """The SQL of a row's partial values, by column."""
    ops: Mapping[str, str]
    state: KeyedState
    """The state with the partial values."""
    fields: Sequence[StructField] = ()
    """Their columns with types."""


class NewDistinct(NamedTuple):
    """What workers have computed from the distinct values of a checkpoint's rows."""

    growth: Sequence[DataFrame]
    """The growth of counts: the keys, with any number of rows each, and a column for each count."""
    unhandled: Parts
    """The counts that workers cannot do."""
    co_aggregates: Mapping[str, str] | None = None
    """The partial values of other aggregates in the only frame of `growth`, with the operations that merge them."""


NO_NEW_DISTINCT = NewDistinct((), {})


def value_names(members: Sequence[Function]) -> list[str]:
    """Return the state's columns with a value: one for each argument."""
    return [f"_value{number}" for number in range(len(members[0].distinct_arguments))]


def conditions(members: Sequence[Function]) -> dict[str, str]:
    """Return the SQL condition of each count, by the state's column with the number of rows that have a value."""
    return {function.distinct_column: function.distinct_where or "true" for function in members}


def _counts_all(members: Sequence[Function]) -> bool:
    """Return whether one of the counts has no condition."""
    return "true" in conditions(members).values()


def computed_if_any(members: Sequence[Function]) -> list[str]:
    """Return the SQL of a value, which is only computed where one of the conditions holds."""
    wheres = list(conditions(members).values())
    arguments = members[0].distinct_arguments
    if _counts_all(members):
        return list(arguments)
    return [f"CASE WHEN {' OR '.join(wheres)} THEN {text} END" for text in arguments]


def new_values(
    rows: DataFrame,
    by: Sequence[str],
    parts: Parts,
    context: OperatorContext,
    co_aggregates: CoAggregates | None = None,
    *,
    has_lives: bool = False,
) -> NewDistinct:
    """Let workers store the new values. Return the growth of each count, and the parts that workers cannot do.

    co_aggregates: partial values to merge in the same query, if one query can do everything. has_lives: rows
    carry the life of their key.
    """
    growth: list[DataFrame] = []
    unhandled: dict[str, Sequence[Function]] = {}
    # Parts that count all values come first: the first part's values carry the co-aggregates.
    parts = dict(sorted(parts.items(), key=lambda part: not _counts_all(part[1])))
    co_aggregate_texts = {} if co_aggregates is None else co_aggregates.texts
    groups, keys, co_aggregate_fields = _group_parts_of_type(rows, by, parts, co_aggregate_texts)
    if co_aggregates is not None:
        if _fits_one_query(co_aggregates.ops, groups, [*keys, *co_aggregate_fields], parts):
            co_aggregates = co_aggregates._replace(fields=co_aggregate_fields)
        else:
            co_aggregates = None
    for fields, names in groups.values():
        group = {name: parts[name] for name in names}
        frame = _run_kernel(rows, by, group, fields, context, co_aggregates, has_lives=has_lives)
        if frame is None:
            unhandled |= group
        else:
            growth.append(frame)
    if co_aggregates is None or unhandled:
        return NewDistinct(growth, unhandled)
    return NewDistinct(growth, unhandled, co_aggregates.ops)


def _fits_one_query(
    ops: Mapping[str, str], groups: Mapping[Any, Any], fields: Sequence[StructField], parts: Parts
) -> bool:
    """Return whether one query can do everything, and most rows have a value, as rows without one also have to be
    shuffled then.

    fields: the keys, and the co-aggregates.
    """
    first_part = next(iter(parts.values()))
    if len(groups) != 1 or not _counts_all(first_part):
        return False
    counts = range(sum(len(conditions(members)) for members in parts.values()))
    reserved = {
        CARRIES_AGGREGATES,
        COUNT_BITS,
        MULTIPLICITY,
        ARRIVED_LIFE,
        *map(new_column, counts),
        *value_names(first_part),
    }
    if reserved & ops.keys():
        return False
    return merges(schema_of(fields), [field.name for field in fields if field.name not in ops], ops)


def _group_parts_of_type(
    rows: DataFrame, by: Sequence[str], parts: Parts, co_aggregates: Mapping[str, str]
) -> tuple[
    dict[tuple[str, ...], tuple[Sequence[StructField], list[str]]], Sequence[StructField], Sequence[StructField]
]:
    """Return the names of parts whose values have the same types, with the columns of keys and values. Return also the
    columns of the keys, and those of the co-aggregates, which are given as SQL."""
    from pyspark.sql.types import StructField

    texts: list[str] = []
    for members in parts.values():
        texts += members[0].distinct_arguments

    def with_values() -> DataFrame:
        columns = [*map(quoted, by)]
        for name, text in co_aggregates.items():
            columns.append(f"{text} AS {quoted(name)}")
        for number, text in enumerate(texts):
            columns.append(f"{text} AS c{number}")
        return select_sql(rows, columns)

    fields = fields_before(rows.sparkSession, repr((rows.schema.json(), list(by), co_aggregates, texts)), with_values)
    values_start = len(by) + len(co_aggregates)
    keys, types = fields[: len(by)], iter(fields[values_start:])
    groups: dict[tuple[str, ...], tuple[Sequence[StructField], list[str]]] = {}
    for name, members in parts.items():
        values = [StructField(value, next(types).dataType) for value in value_names(members)]
        type_names = tuple(value.dataType.simpleString() for value in values)
        _, names = groups.setdefault(type_names, ([*keys, *values], []))
        names.append(name)
    return groups, keys, fields[len(by) : values_start]


def _run_kernel(
    rows: DataFrame,
    by: Sequence[str],
    parts: Parts,
    fields: Sequence[StructField],
    context: OperatorContext,
    co_aggregates: CoAggregates | None,
    *,
    has_lives: bool,
) -> DataFrame | None:
    """Return the growth of the counts of these parts, or None if they are too many."""
    from pyspark.sql import types as T

    count_columns = [list(conditions(members)) for members in parts.values()]
    count_total = sum(map(len, count_columns))
    if count_total > MAX_COUNTS:
        return None
    key_fields, value_fields = fields[: len(by)], fields[len(by) :]
    values = [field.name for field in value_fields]
    keys = [*by, *values]
    long = T.LongType()
    co_fields: Sequence[StructField] = ()
    co_ops: Mapping[str, str] = {}
    if co_aggregates is not None:
        co_fields, co_ops = co_aggregates.fields, co_aggregates.ops

    # An input row becomes a row for each part's value.
    structs: list[str] = []
    first_count = 0
    for members, names in zip(parts.values(), count_columns, strict=True):
        if co_aggregates is not None:
            co_columns = _co_aggregate_columns(co_aggregates, is_first=not structs)
        else:
            co_columns = []
        structs.append(_value_struct(values, members, first_count, co_columns))
        first_count += len(names)
    has_value = " AND ".join(f"{name} IS NOT NULL" for name in values)
    columns = [*map(quoted, by)]
    arriving = list(key_fields)
    state_columns: list[str] = []
    if has_lives:
        columns.append(f"{LIFE} AS {ARRIVED_LIFE}")
        arriving.append(T.StructField(ARRIVED_LIFE, long))
        state_columns.append(LIFE)
    arriving += [*value_fields, T.StructField(COUNT_BITS, long)]
    batch = select_sql(rows, [*columns, f"inline(array({', '.join(structs)}))"])
    if co_aggregates is None:
        batch = batch.where(has_value)
    else:
        batch = batch.where(f"{CARRIES_AGGREGATES} OR ({has_value})")
        arriving += [*co_fields, T.StructField(CARRIES_AGGREGATES, T.BooleanType())]

    lookups = []
    for part, names in zip(parts, count_columns, strict=True):
        long_fields = [T.StructField(name, long) for name in (*state_columns, *names)]
        lookups.append(StateLookup(context.state(keys, part), [*fields, *long_fields]))
    name = next(iter(parts))
    is_reduced = not lookups[0].state.little_arrives and may_be_reduced(name, context)
    if co_aggregates is not None and not sums_that_do_not_fit_fail(rows.sparkSession):
        is_reduced = False
    if is_reduced:
        batch = reduce_values(with_fields(batch, arriving), keys, co_ops)
        arriving.append(T.StructField(MULTIPLICITY, long))
    new_fields = [T.StructField(new_column(number), long) for number in range(count_total)]
    output = run_kernel(
        batch,
        arriving,
        keys,
        lookups,
        NewValues(list(by), values, count_columns, co_ops, has_lives),
        [*key_fields, *new_fields, *co_fields],
        is_empty=is_known_empty(rows),
        size_hint=co_aggregates.state if co_aggregates is not None else None,
        keyless=f"NOT ({has_value})" if co_aggregates is not None else None,
    )
    if is_reduced:
        learn(name, output.counts, context)
    counts = _name_counts(parts, count_columns)
    return select_sql(output.rows, [*map(quoted, by), *counts, *(quoted(field.name) for field in co_fields)])


def _name_counts(parts: Parts, count_columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the SQL that renames the kernel's columns of new values to those of the functions."""
    results: dict[tuple[str, str], list[str]] = defaultdict(list)
    for part, members in parts.items():
        for function in members:
            results[part, function.distinct_column] += function.columns
    texts = []
    number = 0
    for part, names in zip(parts, count_columns, strict=True):
        for name in names:
            for result in results[part, name]:
                texts.append(f"{new_column(number)} AS {quoted(result)}")
            number += 1
    return texts


def _co_aggregate_columns(co_aggregates: CoAggregates, *, is_first: bool) -> list[str]:
    """Return the SQL of the columns with co-aggregates, which are null except in the first row of an input row."""
    columns = []
    for field in co_aggregates.fields:
        if is_first:
            text = co_aggregates.texts[field.name]
        else:
            text = f"CAST(NULL AS {sql_type(field.dataType)})"
        columns.append(f"{text} AS {quoted(field.name)}")
    return [*columns, f"{is_first} AS {CARRIES_AGGREGATES}"]


def _value_struct(
    values: Sequence[str], members: Sequence[Function], first_count: int, co_columns: Sequence[str]
) -> str:
    """Return the SQL of a part's value with the counts that it is for. first_count: the number of the part's first
    count."""
    bits = []
    for number, where in enumerate(conditions(members).values(), first_count):
        bits.append(f"IF({where}, {1 << number}L, 0L)")
    columns = []
    for name, text in zip(values, computed_if_any(members), strict=True):
        columns.append(f"{text} AS {name}")
    columns.append(f"{' | '.join(bits)} AS {COUNT_BITS}")
    return f"struct({', '.join([*columns, *co_columns])})"
