"""Pre-aggregation of distinct values in Spark, before workers get them, and whether it has paid off so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidegate.operators.distinct.kernel import (
    ARRIVED_LIFE,
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

__all__ = ["learn", "may_be_reduced", "reduce_values", "remember_reducing"]

REDUCED_FROM: Final = "rows_reduced_from"
"""The key in the operator's memory for the first checkpoint that tries pre-aggregation again, by the first state of
those whose values have the same types. 0: the last attempt paid off. Without an entry, it is tried."""
UNREDUCED: Final = 20
"""The number of checkpoints after which it is tried again."""
WORTH_REDUCING: Final = 100_000
"""With fewer rows than this, the stage for the pre-aggregation takes longer than it saves."""
ROWS_OF_A_VALUE: Final = 2
"""It pays off if there are at least this many rows for each remaining one."""


def remember_reducing(context: OperatorContext) -> None:
    """Keep the memory of earlier batches, even if there is no batch now."""
    remembered = context.memory.get(REDUCED_FROM)
    if isinstance(remembered, dict):
        context.remember[REDUCED_FROM] = dict(remembered)


def may_be_reduced(name: str, context: OperatorContext) -> bool:
    """Return whether to pre-aggregate, because it has paid off, or is to be tried. name: the first state."""
    waits: int = context.remember.get(REDUCED_FROM, {}).get(name, 0) - context.checkpoint
    return waits <= 0 or waits > UNREDUCED  # more if the memory is that of another pipeline, with higher ids


def learn(name: str, counts: Mapping[str, int], context: OperatorContext) -> None:
    """Remember whether it has paid off. With few rows, the last answer stays. counts: those of the kernel."""
    before = context.remember.get(REDUCED_FROM, {})
    rows_before, rows_after = counts.get(ROWS_BEFORE, 0), counts.get(ROWS_AFTER, 0)
    pays_off = before.get(name) == 0
    if rows_before >= WORTH_REDUCING:
        pays_off = rows_before >= ROWS_OF_A_VALUE * rows_after
    context.remember[REDUCED_FROM] = {**before, name: 0 if pays_off else context.checkpoint + UNREDUCED}


def reduce_values(batch: DataFrame, keys: Sequence[str], ops: Mapping[str, str]) -> DataFrame:
    """Merge the rows of each value into one, with their number. ops: how the co-aggregates are merged.

    Co-aggregates with texts are part of the grouping instead, because Spark would sort to find extremes of texts.
    """
    types = {field.name: field.dataType.typeName() for field in batch.schema.fields}
    texts = [name for name in ops if types[name] == "string"]
    all_ops = {COUNT_BITS: "bit_or", CARRIES_AGGREGATES: "bool_or", ARRIVED_LIFE: "max", **ops}
    merged = {name: op for name, op in all_ops.items() if name in types and name not in texts}
    rows = pre_aggregate(RowPartials(batch, merged), [*keys, *texts], weight=MULTIPLICITY).rows
    return select_sql(rows, map(quoted, [*types, MULTIPLICITY]))
