"""A hash of all rows of a frame, whatever their order: frames that have the same rows, each as often, have the same."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from tidegate.spark.row_id import HALVES, row_halves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["rows_hash"]


def rows_hash(frame: DataFrame) -> str:
    """Return the hash of a frame's rows as a multiset, and of the names and types of its columns. One query."""
    sums = [f"CAST(sum(CAST({half} AS DECIMAL(38, 0))) AS STRING)" for half in HALVES]
    (row,) = frame.selectExpr(*row_halves(frame)).selectExpr("CAST(count(*) AS STRING)", *sums).collect()
    columns = sorted(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)
    return sha256("\n".join([*columns, *map(str, row)]).encode()).hexdigest()
