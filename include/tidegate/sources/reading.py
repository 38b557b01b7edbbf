"""Files to DataFrames: exactly these files, no row dropped in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.sources.base import SourceContext
from tidegate.sources.ddl import parse_ddl
from tidegate.sources.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.sources.files import Files

__all__ = ["CORRUPT", "check_columns", "empty_frame", "read_files"]

CORRUPT = "_corrupt_record"


def read_files(spark: SparkSession, source: Files, paths: list[str], context: SourceContext) -> DataFrame:
    """The rows of these files, lazily."""
    schema = source.schema if source.on_corrupt == "refuse" else f"{source.schema}, {CORRUPT} string"
    if not paths:
        return empty_frame(spark, schema)
    reader = spark.read.format(source.format or "").schema(schema).options(**source.options)
    reader = reader.option("mode", "FAILFAST" if source.on_corrupt == "refuse" else "PERMISSIVE")
    return reader.option("__globPaths__", "false").option("recursiveFileLookup", "true").load(paths)


def empty_frame(spark: SparkSession, ddl: str) -> DataFrame:
    """No rows, all columns."""
    from pyspark.sql import functions as F

    return spark.range(0).select(*(F.lit(None).cast(column.type).alias(column.name) for column in parse_ddl(ddl)))


def check_columns(source: Files, folder: Folder, names: list[str], context: SourceContext) -> None:
    """Parquet files hold what the schema asks for."""
