"""Finds the rows of a frame that are new or changed compared with another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.operators.inputs import null_safe_equality
from tidegate.operators.join.sides import changed_rows, copies
from tidegate.records.names import quoted
from tidegate.spark.row_id import row_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.context import OperatorContext

__all__ = ["changed_by_hand", "differences"]


def changed_by_hand(before: DataFrame, after: DataFrame, keys: Sequence[str]) -> tuple[DataFrame, DataFrame]:
    """Return a state's rows that are new or changed, and those whose keys are gone.

    Unchanged rows are not written again, so that they expire when they would have.
    """
    from pyspark.sql import functions as F

    asides = [f"_aside{place}" for place in range(len(keys))]

    def told(frame: DataFrame) -> DataFrame:
        named = (F.col(quoted(key)).alias(name) for key, name in zip(keys, asides, strict=True))
        return frame.select(*named, row_id(frame).alias("_held"))

    as_before = null_safe_equality(keys, asides, nulls=True) & (F.col("_given") == F.col("_held"))
    changed = after.withColumn("_given", row_id(after)).join(told(before), as_before, "left_anti").drop("_given")
    removed = before.join(told(after).drop("_held"), null_safe_equality(keys, asides, nulls=True), "left_anti")
    return changed, removed


def differences(now: DataFrame, before: DataFrame, context: OperatorContext) -> tuple[DataFrame, DataFrame]:
    """Return the rows that are there now and were not before, and the reverse: each as often as the counts differ."""
    changed = changed_rows(now, before, (), context)
    columns = list(map(quoted, now.columns))
    new, removed = (copies(changed.where(f"{sign}_n > 0"), f"{sign}_n").select(*columns) for sign in ("", "-"))
    return new, removed
