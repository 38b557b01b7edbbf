"""New distinct values in one query, for all exact counts whose values have the same types: the driver's part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.operators.distinct.kernel import (
    ARRIVED_GENERATION,
    CARRIES_AGGREGATES,
    COUNT_BITS,
    GENERATION,
    MAX_COUNTS,
    MULTIPLICITY,
    NewValues,
    new_column,
)
from tidegate.operators.distinct.pre_aggregation import learn, may_be_reduced, reduce_by_value
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
"""By state, the counts of its values: of the same argument, each under a condition of its own or none."""


class CoAggregates(NamedTuple):
    """Partial values of other aggregates of the same rows, which workers merge while they have them."""

    texts: Mapping[str, str]
    """The SQL of a row's values, by column."""
    ops: Mapping[str, str]
    state: KeyedState
    """Where they are kept."""
    fields: Sequence[StructField] = ()
    """Their columns, as Spark knows them."""


class NewDistinct(NamedTuple):
    """What workers have made of the distinct values of a checkpoint's rows."""

    growth: Sequence[DataFrame]
    """By how much counts grow: the keys, any number of rows for each."""
    unhandled: Parts
    """The counts that workers could not do."""
    co_aggregates: Mapping[str, str] | None = None
    """The partial values of other aggregates that are in the only frame, too, with the operations that merge them."""


NO_NEW_DISTINCT = NewDistinct((), {})


def value_names(members: Sequence[Function]) -> list[str]:
    """Return the names under which values are kept: one for each argument."""
    return [f"_value{number}" for number in range(len(members[0].distinct_arguments))]


def conditions(members: Sequence[Function]) -> dict[str, str]:
    """Return the SQL condition under which a value counts, by the state's column that says how often it is there."""
    return {function.distinct_column: function.distinct_where or "true" for function in members}


def _counts_all(members: Sequence[Function]) -> bool:
    """Return whether one of them counts under no condition."""
    return "true" in conditions(members).values()


def computed_if_any(members: Sequence[Function]) -> list[str]:
    """Return the SQL of a value: it is computed only where one of the conditions holds."""
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
    along: CoAggregates | None = None,
    *,
    has_lives: bool = False,
) -> NewDistinct:
    """Let workers keep the values that are new, and return by how much each count grows; also the parts that they
    could not do. A frame has the keys, any number of rows for each, and a column for each of its counts.

    along: what they may merge on the way, if one query does all counts. has_lives: rows say when their key began.
    """
    done: list[DataFrame] = []
    left: dict[str, Sequence[Function]] = {}
    parts = dict(sorted(parts.items(), key=lambda part: not _counts_all(part[1])))
    alike, keys, others = _group_by_types(rows, by, parts, {} if along is None else along.texts)
    if along is not None:
        along = along._replace(fields=others) if _fits_one_query(along.ops, alike, [*keys, *others], parts) else None
    for fields, names in alike.values():
        some = {name: parts[name] for name in names}
        frame = _run_kernel(rows, by, some, fields, context, along, has_lives=has_lives)
        if frame is None:
            left |= some
        else:
            done.append(frame)
    return NewDistinct(done, left, along.ops if along is not None and not left else None)


def _fits_one_query(
    ops: Mapping[str, str], alike: Mapping[Any, Any], fields: Sequence[StructField], parts: Parts
) -> bool:
    """Return whether one query can do it all, and most rows have a value: those without have to be shuffled as well.

    fields: the keys, and what is to come along.
    """
    counts = range(sum(len(conditions(members)) for members in parts.values()))
    own = {
        CARRIES_AGGREGATES,
        COUNT_BITS,
        MULTIPLICITY,
        ARRIVED_GENERATION,
        *map(new_column, counts),
        *value_names(next(iter(parts.values()))),
    }
    if len(alike) != 1 or own & ops.keys() or not _counts_all(next(iter(parts.values()))):
        return False
    return merges(schema_of(fields), [field.name for field in fields if field.name not in ops], ops)


def _group_by_types(
    rows: DataFrame, by: Sequence[str], parts: Parts, named: Mapping[str, str]
) -> tuple[
    dict[tuple[str, ...], tuple[Sequence[StructField], list[str]]], Sequence[StructField], Sequence[StructField]
]:
    """Return the parts whose values have the same types, with the columns of keys and values; the columns of keys; and
    those of other values. named: the SQL of these."""
    from pyspark.sql.types import StructField

    texts = [text for members in parts.values() for text in members[0].distinct_arguments]

    def valued() -> DataFrame:
        others = (f"{text} AS {quoted(name)}" for name, text in named.items())
        return select_sql(rows, [*map(quoted, by), *others, *(f"{text} AS c{n}" for n, text in enumerate(texts))])

    fields = fields_before(rows.sparkSession, repr((rows.schema.json(), list(by), named, texts)), valued)
    keys, types = fields[: len(by)], iter(fields[len(by) + len(named) :])
    found: dict[tuple[str, ...], tuple[Sequence[StructField], list[str]]] = {}
    for name, members in parts.items():
        values = [StructField(value, next(types).dataType) for value in value_names(members)]
        kinds = tuple(value.dataType.simpleString() for value in values)
        found.setdefault(kinds, ([*keys, *values], []))[1].append(name)
    return found, keys, fields[len(by) : len(by) + len(named)]


def _run_kernel(
    rows: DataFrame,
    by: Sequence[str],
    parts: Parts,
    fields: Sequence[StructField],
    context: OperatorContext,
    along: CoAggregates | None,
    *,
    has_lives: bool,
) -> DataFrame | None:
    from pyspark.sql import types as T

    columns = [list(conditions(members)) for members in parts.values()]
    total = sum(map(len, columns))
    if total > MAX_COUNTS:
        return None
    values = value_names(next(iter(parts.values())))
    keys = [*by, *values]
    long, first = T.LongType(), 0
    each: list[str] = []
    others = [] if along is None else along.fields
    for members, names in zip(parts.values(), columns, strict=True):
        each.append(
            _value(values, members, first, [] if along is None else _co_aggregate_columns(along, is_first=not each))
        )
        first += len(names)
    there = " AND ".join(f"{name} IS NOT NULL" for name in values)
    life = [f"{GENERATION} AS {ARRIVED_GENERATION}"] if has_lives else []
    batch = select_sql(rows, [*map(quoted, by), *life, f"inline(array({', '.join(each)}))"])
    batch = batch.where(there if along is None else f"{CARRIES_AGGREGATES} OR ({there})")
    kept = [GENERATION] if has_lives else []
    states = [
        StateLookup(context.state(keys, part), [*fields, *(T.StructField(name, long) for name in (*kept, *names))])
        for part, names in zip(parts, columns, strict=True)
    ]
    given = [*fields[: len(by)], *(T.StructField(new_column(n), long) for n in range(total)), *others]
    begun = [T.StructField(ARRIVED_GENERATION, long)] if has_lives else []
    arriving = [*fields[: len(by)], *begun, *fields[len(by) :], T.StructField(COUNT_BITS, long)]
    if along is not None:
        arriving += [*others, T.StructField(CARRIES_AGGREGATES, T.BooleanType())]
    name = next(iter(parts))
    is_reduced = (
        not states[0].state.little_arrives
        and may_be_reduced(name, context)
        and (along is None or sums_that_do_not_fit_fail(rows.sparkSession))
    )
    if is_reduced:
        batch = reduce_by_value(with_fields(batch, arriving), keys, {} if along is None else along.ops)
        arriving.append(T.StructField(MULTIPLICITY, long))
    work = NewValues(list(by), values, columns, along.ops if along is not None else {}, has_lives)
    folded = run_kernel(
        batch,
        arriving,
        keys,
        states,
        work,
        given,
        is_empty=is_known_empty(rows),
        size_hint=along.state if along is not None else None,
        keyless=None if along is None else f"NOT ({there})",
    )
    if is_reduced:
        learn(name, folded.counts, context)
    results: dict[tuple[str, str], list[str]] = defaultdict(list)
    for part, members in parts.items():
        for function in members:
            results[part, function.distinct_column] += function.columns
    counted = [(part, name) for part, names in zip(parts, columns, strict=True) for name in names]
    counts = (f"{new_column(n)} AS {quoted(name)}" for n, key in enumerate(counted) for name in results[key])
    return select_sql(folded.rows, [*map(quoted, by), *counts, *(quoted(field.name) for field in others)])


def _co_aggregate_columns(along: CoAggregates, *, is_first: bool) -> list[str]:
    """Return the SQL of the columns that only the first value of a row has."""
    nothing = {field.name: f"CAST(NULL AS {sql_type(field.dataType)})" for field in along.fields}
    texts = along.texts if is_first else nothing
    return [
        *(f"{texts[field.name]} AS {quoted(field.name)}" for field in along.fields),
        f"{is_first} AS {CARRIES_AGGREGATES}",
    ]


def _value(values: Sequence[str], members: Sequence[Function], first: int, carried: Sequence[str]) -> str:
    """Return the SQL of a value with the counts that it is for. first: the number of the first of them."""
    bits = " | ".join(
        f"IF({where}, {1 << number}L, 0L)" for number, where in enumerate(conditions(members).values(), first)
    )
    named = (f"{text} AS {name}" for name, text in zip(values, computed_if_any(members), strict=True))
    return f"struct({', '.join([*named, f'{bits} AS {COUNT_BITS}', *carried])})"
