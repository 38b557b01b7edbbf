"""Ranges of a Delta table to DataFrames.

Plain tables are read as Parquet files, ten times faster than through delta-spark; partition values come from
the log, never from the names of folders, which may be wrong. delta-spark reads what needs it: deletion vectors,
column mapping, widened types, the change feed.
"""

from __future__ import annotations

from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tidegate.connectors.delta.source.interval import only_interval
from tidegate.connectors.source import SourceContext
from tidegate.delta.files.access import Location
from tidegate.errors import Invalid
from tidegate.records.names import free_name, quoted
from tidegate.records.records import Json
from tidegate.spark.storage.exact_files import is_overlooked, parquet_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["read_delta"]

FEED_COLUMNS: Final = ("_change_type string", "_commit_version long", "_commit_timestamp timestamp")

MAX_FILES_IN_LITERAL: Final = 16
"""Up to this many files, partition values are looked up in a literal, which is searched for every row."""


def read_delta(
    spark: SparkSession, location: Location, splits: Json, layout: Json, context: SourceContext
) -> DataFrame:
    """Return the rows of a planned range, lazily."""
    from pyspark.sql.types import StructType

    schema: StructType = _bare(StructType.fromJson(layout["schema"]))
    if splits["feed"] is not None:
        return _read_feed(spark, location, splits, schema, context)
    files = splits["files"]
    if not files:
        frame = _empty_frame(spark, schema)
    # Spark's reader of plain files would leave out some names, which a table's log may have.
    elif splits["reader"] == "parquet" and not any(is_overlooked(file["path"]) for file in files):
        frame = _read_parquet(spark, location, files, schema, layout["partition_by"])
    else:
        frame = _read_with_delta(spark, location, splits, schema)
    return _as_inserts(frame, splits) if splits["mode"] == "changes" else only_interval(frame, splits)


def _read_parquet(
    spark: SparkSession, location: Location, files: list[Json], schema: StructType, partition_by: list[str]
) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    paths = [location.full(file["path"]) for file in files]
    stored = StructType([field for field in schema.fields if field.name not in partition_by])
    frame = parquet_files(spark, paths, stored)
    if not partition_by:
        return frame
    rows = [tuple(file["values"].get(name) or None for name in partition_by) for file in files]
    distinct = list(dict.fromkeys(rows))
    if len(distinct) == 1:
        values = {name: F.lit(value) for name, value in zip(partition_by, distinct[0], strict=True)}
    else:
        numbers = {row: number for number, row in enumerate(distinct)}
        keyed = [(_metadata_path(path), numbers[row]) for path, row in zip(paths, rows, strict=True)]
        frame, number = _with_file_numbers(spark, frame, keyed)
        values = {
            name: F.element_at(F.array(*(F.lit(row[index]) for row in distinct)), number + 1)
            for index, name in enumerate(partition_by)
        }
    columns = []
    for field in schema.fields:
        if field.name in values:
            columns.append(values[field.name].cast(field.dataType).alias(field.name))
        else:
            columns.append(F.col(quoted(field.name)))
    return frame.select(*columns)


def _with_file_numbers(spark: SparkSession, frame: DataFrame, keyed: list[tuple[str, int]]) -> tuple[DataFrame, Column]:
    """Return the frame and the number of each row's file. An unknown file fails: no row is left without partition
    values."""
    from pyspark.sql import functions as F

    path = F.regexp_replace(frame.metadataColumn("_metadata").getField("file_path"), "^[A-Za-z0-9+.-]+:/+", "/")
    missing = F.raise_error(F.concat(F.lit("tidegate: no partition values for file "), path)).cast("int")
    if len(keyed) <= MAX_FILES_IN_LITERAL:
        number = F.element_at(F.create_map(*(F.lit(part) for pair in keyed for part in pair)), path)
        return frame, F.coalesce(number, missing)
    key, column = free_name("_tidegate_key", frame.columns), free_name("_tidegate_number", frame.columns)
    lookup = spark.createDataFrame(keyed, f"{key} string, {column} int")
    joined = frame.withColumn(key, path).join(F.broadcast(lookup), key, "left")
    return joined, F.coalesce(
        F.col(column), F.raise_error(F.lit("tidegate: no partition values for a file")).cast("int")
    )


def _read_with_delta(spark: SparkSession, location: Location, splits: Json, schema: StructType) -> DataFrame:
    """Read version by version: each file as of the version that added it."""
    from pyspark.sql import functions as F

    frames = []
    for version, files in groupby(splits["files"], key=lambda file: int(file["version"])):
        frame = spark.read.format("delta").option("versionAsOf", version).load(location.url)
        if not splits["whole_snapshot"]:
            names = [_metadata_path(location.full(file["path"]), encoded=False) for file in files]
            path = F.col("_metadata.file_path")
            raw = F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))
            frame = frame.where(F.regexp_replace(raw, "^[A-Za-z0-9+.-]+:/+", "/").isin(names))
        frames.append(_fit(frame, schema))
    return reduce(lambda frame, other_frame: frame.unionAll(other_frame), frames)


def _read_feed(
    spark: SparkSession, location: Location, splits: Json, schema: StructType, context: SourceContext
) -> DataFrame:
    """Read Delta's change feed. Delta uses the table's current schema for it, so that is compared with the plan's."""
    first, last = splits["feed"]
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    frame = reader.option("startingVersion", first).option("endingVersion", last).load(location.url)
    types = {field.name: field.dataType for field in frame.schema.fields}
    changes = []
    for field in schema.fields:
        if field.name not in types:
            changes.append(f"{field.name} is gone")
        elif _bare(types[field.name]) != field.dataType:
            changes.append(f"{field.name} is {types[field.name].simpleString()}")
    if changes:
        raise Invalid(
            f"source {context.source!r}: the schema of {location.url} has changed since the plan: {', '.join(changes)}",
            expected=f"columns {schema.simpleString()}",
            help="let this checkpoint be aborted: the next plan uses the schema as it is then",
            reason="SCHEMA_CHANGED",
        )
    return frame.select(*(quoted(name) for name in [*schema.names, *(column.split()[0] for column in FEED_COLUMNS)]))


def _as_inserts(frame: DataFrame, splits: Json) -> DataFrame:
    """Return the table as it was at the first plan, in the form of its change feed."""
    from pyspark.sql import functions as F

    version = splits["files"][0]["version"] if splits["files"] else None
    moment = None if splits["millis"] is None else F.timestamp_millis(F.lit(splits["millis"]))
    values: tuple[Any, ...] = ("insert", version, moment)
    for column, value in zip(FEED_COLUMNS, values, strict=True):
        name, kind = column.split()
        frame = frame.withColumn(name, F.lit(value).cast(kind))
    return frame


def _fit(frame: DataFrame, schema: StructType) -> DataFrame:
    """Select exactly these columns. Those that an older version lacks are null."""
    from pyspark.sql import functions as F

    existing = set(frame.columns)
    columns = []
    for field in schema.fields:
        value = F.col(quoted(field.name)) if field.name in existing else F.lit(None)
        columns.append(value.cast(_bare(field.dataType)).alias(field.name))
    return frame.select(*columns)


def _empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    return _fit(spark.range(0).select(), schema)


def _bare(kind: Any) -> Any:
    """Return a type without the metadata of its fields (column ids, comments), in which the two readers differ."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _bare(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_bare(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_bare(kind.keyType), _bare(kind.valueType))
    return kind


def _metadata_path(path: str, *, encoded: bool = True) -> str:
    """Return a file's path without scheme, as in `_metadata.file_path`: encoded like java.net.URI does."""
    _, scheme_end, remainder = path.partition("://")
    bare = f"/{remainder.lstrip('/')}" if scheme_end else path
    return "".join(_encode(char) for char in bare) if encoded else bare


def _encode(char: str) -> str:
    if char.isascii():
        return quote(char, safe="/_-!.~'()*,;:$&+=@")
    return quote(char) if char.isspace() or not char.isprintable() else char
