"""Batches that Spark reduces by value before workers get them: how, and whether that was worth it with earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidegate.operators.distinct.kernel import (
    ARRIVED_GENERATION,
    CARRIES_AGGREGATES,
    COUNT_BITS,
    MULTIPLICITY,
    ROWS_AFTER,
    ROWS_BEFORE,
)
from tidegate.operators.functions import RowPartials, pre_aggregate
from tidegate.records.names import quoted
from tidegate.spark.frame_facts import select_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.context import OperatorContext

__all__ = ["learn", "may_be_reduced", "reduce_by_value", "remember_reducing"]

REDUCED_FROM: Final = "rows_reduced_from"
"""What the operator remembers, by the first of the states whose values have the same types: from which checkpoint on
batches are reduced. 0: the last one was worth it. By default it is tried."""
UNREDUCED: Final = 20
"""For how many checkpoints it is not tried again where it was not worth it."""
WORTH_REDUCING: Final = 100_000
"""With fewer rows, the stage that reduces them takes longer than it saves …"""
ROWS_OF_A_VALUE: Final = 2
"""… and with fewer for each that is left."""


def remember_reducing(context: OperatorContext) -> None:
    """Keep what is known of earlier batches, even if there is none now."""
    told = context.memory.get(REDUCED_FROM)
    if isinstance(told, dict):
        context.remember[REDUCED_FROM] = dict(told)


def may_be_reduced(name: str, context: OperatorContext) -> bool:
    """Return whether it was worth it, or is to be tried. name: of the first state."""
    waits: int = context.remember.get(REDUCED_FROM, {}).get(name, 0) - context.checkpoint
    return waits <= 0 or waits > UNREDUCED  # the ids of another line of checkpoints may be far ahead


def learn(name: str, counts: Mapping[str, int], context: OperatorContext) -> None:
    """Remember whether it was worth it. Few rows do not tell. counts: what workers have reported."""
    before = context.remember.get(REDUCED_FROM, {})
    many, fewer = counts.get(ROWS_BEFORE, 0), counts.get(ROWS_AFTER, 0)
    was_worth_it = before.get(name) == 0
    is_worth_it = many >= ROWS_OF_A_VALUE * fewer if many >= WORTH_REDUCING else was_worth_it
    context.remember[REDUCED_FROM] = {**before, name: 0 if is_worth_it else context.checkpoint + UNREDUCED}


def reduce_by_value(batch: DataFrame, keys: Sequence[str], ops: Mapping[str, str]) -> DataFrame:
    """Return one row for all of the same value, and for how many it stands. ops: how what comes along is merged.

    Extremes of text Spark would find by sorting. So only rows with the same texts become one.
    """
    types = {field.name: field.dataType.typeName() for field in batch.schema.fields}
    texts = [name for name in ops if types[name] == "string"]
    merged = {COUNT_BITS: "bit_or", CARRIES_AGGREGATES: "bool_or", ARRIVED_GENERATION: "max", **ops}
    merged = {name: op for name, op in merged.items() if name in types and name not in texts}
    rows = pre_aggregate(RowPartials(batch, merged), [*keys, *texts], weight=MULTIPLICITY).rows
    return select_sql(rows, map(quoted, [*types, MULTIPLICITY]))
