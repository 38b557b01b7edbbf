"""Reads the newest rows of a state's files as DataFrame algebra. A key may have several versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, OWN, TOUCHED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["merged", "newest", "rewritten", "spark_schema"]


def newest(versions: DataFrame, keys: Sequence[str], limit: int | None, *, once: bool) -> DataFrame:
    """Return the newest row of each key, if it is neither deleted nor expired. once: each key has just one row."""
    from pyspark.sql import functions as F

    values = [name for name in versions.columns if name not in keys and name not in OWN]
    hides = [name for name in (DELETED, TOUCHED) if name in versions.columns]
    if once:
        return versions.where(_lives(hides, limit)).select(*map(quoted, keys), *map(quoted, values))
    row = F.max_by(F.struct(*map(quoted, [*values, *hides])), F.col(CHECKPOINT)).alias("row")
    living = versions.groupBy(*map(quoted, keys)).agg(row).where(_lives(hides, limit, "row."))
    return living.select(*map(quoted, keys), *(F.col("row")[name].alias(name) for name in values))


def rewritten(versions: DataFrame, keys: Sequence[str], limit: int | None, schema: Json, group: str) -> DataFrame:
    """Return the newest live row of each key, in this schema. group: SQL for a row's key group."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    hides = _hiding_columns(versions)
    values = [name for name in versions.columns if name not in keys and name not in OWN]
    row = F.max_by(F.struct(*map(quoted, [CHECKPOINT, *hides, *values])), CHECKPOINT)
    grouped = versions.groupBy(*map(quoted, keys)).agg(row.alias("row")).withColumn(GROUP, F.expr(group))
    columns = []
    for field in StructType.fromJson(spark_schema(schema)).fields:
        if field.name in (*keys, GROUP):
            column = F.col(quoted(field.name))
        elif field.name in versions.columns:
            column = F.col("row").getField(field.name)
        else:
            column = F.lit(None)
        columns.append(column.cast(field.dataType).alias(field.name))
    return grouped.where(_lives(hides, limit, "row.")).select(*columns)


def merged(versions: DataFrame, keys: Sequence[str], limit: int | None, *, forgets: bool) -> DataFrame:
    """Return the newest row of each key, unchanged. forgets: without deleted and expired rows."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by_age = Window.partitionBy(*map(quoted, keys)).orderBy(F.col(CHECKPOINT).desc())
    rows = versions.withColumn("_age", F.row_number().over(by_age)).where("_age = 1").drop("_age")
    if forgets:
        return rows.where(_lives(_hiding_columns(rows), limit))
    return rows


def _lives(hides: Sequence[str], limit: int | None, row: str = "") -> str:
    """Return SQL for rows that are neither deleted nor expired."""
    not_deleted = f"NOT {row}{DELETED}"
    if limit is None or TOUCHED not in hides:
        return not_deleted
    return f"{not_deleted} AND ({row}{TOUCHED} IS NULL OR {row}{TOUCHED} > {limit})"


def _hiding_columns(rows: DataFrame) -> list[str]:
    """Return the columns by which a row may hide older ones of its key instead of being read itself."""
    if TOUCHED in rows.columns:
        return [DELETED, TOUCHED]
    return [DELETED]


def spark_schema(columns: Json) -> Json:
    """Return Delta's schema in the form that Spark reads, in which every field has metadata."""
    return {"type": "struct", "fields": [{"metadata": {}, "nullable": True, **field} for field in columns["fields"]]}
