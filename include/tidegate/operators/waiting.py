"""Rows that wait in a state until the watermark has passed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.model.names import quoted
from tidegate.operators.event_time import moment
from tidegate.operators.inputs import recalled
from tidegate.operators.sides import copies, side_rows
from tidegate.operators.within import split_late
from tidegate.state.columns import DELETED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.base import OperatorContext

__all__ = ["WAITING", "ready_rows"]

WAITING: Final = "waiting"


def ready_rows(rows: DataFrame, by: Sequence[str], time: str, context: OperatorContext) -> tuple[DataFrame, DataFrame]:
    """The rows that the watermark has passed now, with `_at` and `_row`; and those that are too late, as they were.

    Rows of the watermark's own moment wait: more of them may come.
    """
    from pyspark.sql import functions as F

    on_time, late = split_late(rows, time, context)
    state = context.state([*by, "_row"], WAITING)
    arrived = context.keep(side_rows(on_time, rows, by, extra=["_at"]))
    columns = list(map(quoted, arrived.columns))
    now = context.watermarks.now_micros
    is_ready = "false" if now is None else f"_at < {moment(now, '_at')}"
    ready, waiting = arrived.where(is_ready), arrived.where(f"NOT ({is_ready})")
    same = state.of(waiting)
    if same is not None:  # copies of rows that wait already
        both = waiting.unionByName(recalled(state, same, arrived, context))
        firsts = (F.first(name).alias(column) for name, column in zip(columns, arrived.columns, strict=True)
                  if column not in (*by, "_row", "_n"))  # fmt: skip
        waiting = both.groupBy(*map(quoted, by), "_row").agg(*firsts, F.sum("_n").alias("_n")).select(*columns)
    changes = waiting.withColumn(DELETED, F.lit(False))
    held = state.rows(is_ready)
    if held is not None:
        held = context.keep(recalled(state, held, arrived, context))
        ready = ready.unionByName(held)
        changes = changes.unionByName(held.withColumn(DELETED, F.lit(True)))
    state.put(changes, deletes=True)
    return copies(ready, "_n").select(*map(quoted, rows.columns), "_at", "_row"), late
