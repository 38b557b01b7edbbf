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

__all__ = ["differences", "find_edited_rows"]


def find_edited_rows(before: DataFrame, after: DataFrame, keys: Sequence[str]) -> tuple[DataFrame, DataFrame]:
    """Return a state's rows that are new or changed, and those whose keys were removed.

    Unchanged rows are not written again, so their expiry does not change.
    """
    from pyspark.sql import functions as F

    other_keys = [f"_tidegate_key{index}" for index in range(len(keys))]

    def keys_and_ids(frame: DataFrame) -> DataFrame:
        renamed_keys = (F.col(quoted(key)).alias(name) for key, name in zip(keys, other_keys, strict=True))
        return frame.select(*renamed_keys, row_id(frame).alias("_tidegate_other_id"))

    same_key = null_safe_equality(keys, other_keys, nulls=True)
    is_unchanged = same_key & (F.col("_tidegate_id") == F.col("_tidegate_other_id"))
    changed = (
        after.withColumn("_tidegate_id", row_id(after))
        .join(keys_and_ids(before), is_unchanged, "left_anti")
        .drop("_tidegate_id")
    )
    removed = before.join(keys_and_ids(after).drop("_tidegate_other_id"), same_key, "left_anti")
    return changed, removed


def differences(now: DataFrame, before: DataFrame, context: OperatorContext) -> tuple[DataFrame, DataFrame]:
    """Return the rows that were added, and those that were removed, each as often as the counts differ."""
    changed = changed_rows(now, before, (), context)
    columns = list(map(quoted, now.columns))
    added = copies(changed.where("_n > 0"), "_n").select(*columns)
    removed = copies(changed.where("-_n > 0"), "-_n").select(*columns)
    return added, removed
