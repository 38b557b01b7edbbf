"""Rows that wait until the watermark has passed them, so that an operator gets them in the order of event time.

What it does with them then cannot depend on how the input was cut into checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.operators.base import Operator
from tidegate.operators.expiry import ExpiringOperator
from tidegate.operators.inputs import recalled
from tidegate.operators.join.sides import copies, side_rows
from tidegate.operators.join.time_bounds import LATE, split_late
from tidegate.records.names import quoted
from tidegate.spark.event_time import time_problems
from tidegate.state.columns import DELETED
from tidegate.state.lateness import Lateness, passed_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.base import OperatorContext

__all__ = ["WAITING", "EventTimeOperator", "InOrderOperator", "ready_rows"]

WAITING: Final = "waiting"
"""The state with the rows that wait."""


class EventTimeOperator(Operator):
    """An operator of one stream whose rows may be late."""

    event_time: str | None

    @property
    def outputs(self) -> tuple[str, ...]:
        return (LATE,)

    @property
    def uses_event_time(self) -> bool:
        """True if it needs watermarks."""
        return True

    def lateness(self, place: int) -> Lateness | None:
        """Later rows have been given already."""
        return Lateness()

    @property
    def goes_by(self) -> tuple[str | None, ...]:
        return (self.event_time,)

    def event_time_problems(self, columns: Sequence[Sequence[str]]) -> list[str]:
        return time_problems(columns[0], self.event_time)


class InOrderOperator(EventTimeOperator, ExpiringOperator):
    """One that gets its rows in the order of event time."""

    @property
    def takes_in_order(self) -> bool:
        return True


def ready_rows(rows: DataFrame, by: Sequence[str], time: str, context: OperatorContext) -> tuple[DataFrame, DataFrame]:
    """Return the rows that the watermark has passed, with `_at` and `_row`; and those that are late, unchanged.

    Rows of the watermark's own moment wait: more of them may come. Of history, no row is late, and none waits.
    """
    from pyspark.sql import functions as F

    on_time, late = split_late(rows, time, context)
    state = context.state([*by, "_row"], WAITING)
    arrived = context.persist(side_rows(on_time, rows, by, extra=["_at"]))
    columns = list(map(quoted, arrived.columns))
    is_ready = passed_sql("_at", context.watermarks.now_micros) if not context.history else "true"
    ready, waiting = arrived.where(is_ready), arrived.where(f"NOT ({is_ready})")
    same = state.of(waiting)
    if same is not None:  # copies of rows that wait already
        both = waiting.unionByName(recalled(state, same, arrived, context))
        firsts = (F.first(name).alias(column) for name, column in zip(columns, arrived.columns, strict=True)
                  if column not in (*by, "_row", "_n"))  # fmt: skip
        waiting = both.groupBy(*map(quoted, by), "_row").agg(*firsts, F.sum("_n").alias("_n")).select(*columns)
    changes = waiting.withColumn(DELETED, F.lit(False))
    waiting_before = state.rows(is_ready)
    if waiting_before is not None:
        waiting_before = context.persist(recalled(state, waiting_before, arrived, context))
        ready = ready.unionByName(waiting_before)
        changes = changes.unionByName(waiting_before.withColumn(DELETED, F.lit(True)))
    state.put(changes, deletes=True)
    return copies(ready, "_n").select(*map(quoted, rows.columns), "_at", "_row"), late
