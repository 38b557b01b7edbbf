"""Files to DataFrames: exactly these files, no row dropped in silence.

Options that tidegate sets itself, whatever the session says: folders like `a=b` add no columns, and nothing
that is missing or damaged is skipped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tidegate.sources.base import SourceContext
from tidegate.sources.ddl import Column, parse_ddl
from tidegate.sources.folder import Folder
from tidegate.sources.malformed import flagged, free_name, joined_lines, note, refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from tidegate.sources.files import Files

__all__ = ["CORRUPT", "empty_frame", "escaped", "exact_reader", "read_files", "unreadable"]

CORRUPT: Final = "_corrupt_record"

_SPECIAL: Final = re.compile(r"[\\\[\]{}*?]")

_LINES: Final = ("encoding", "lineSep", "compression")
"""Options that say what a line is."""


def read_files(
    spark: SparkSession, source: Files, folder: Folder, names: list[str], context: SourceContext
) -> DataFrame:
    """The rows of these files, lazily."""
    columns = parse_ddl(source.schema)
    keep = source.on_corrupt == "keep"
    if not names:
        return empty_frame(spark, [*columns, Column(CORRUPT, "string")] if keep else columns)
    paths = [folder.full(name) for name in names]
    options = {key: _text(value) for key, value in source.options.items()}
    reader = exact_reader(spark, paths).options(**options)
    if source.format == "parquet":
        return reader.schema(_ddl(columns)).format("parquet").load(escaped(paths))
    corrupt = free_name(CORRUPT, columns)
    reader = reader.schema(_ddl([*columns, Column(corrupt, "string")])).option("columnNameOfCorruptRecord", corrupt)
    if "enforceschema" not in {key.lower() for key in options}:
        reader = reader.option("enforceSchema", "false")  # else Spark takes columns by position, whatever the header
    frame = reader.option("mode", "PERMISSIVE").format(str(source.format)).load(escaped(paths))
    judged = flagged(frame, columns, corrupt) if keep else refused(frame, columns, corrupt, context.source)
    if source.format == "csv" or _is_true(options, "multiLine"):
        return judged
    return judged.unionByName(_second_objects(spark, paths, columns, options, keep, context))


def empty_frame(spark: SparkSession, columns: list[Column]) -> DataFrame:
    """No rows, all columns."""
    from pyspark.sql import functions as F

    return spark.range(0).select(*(F.lit(None).cast(column.type).alias(column.name) for column in columns))


def exact_reader(spark: SparkSession, paths: list[str]) -> DataFrameReader:
    """A reader for exactly the files named. Load `escaped(paths)` with it."""
    options = {"recursiveFileLookup": "true", "ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
    if any(":" in path.rpartition("/")[2] for path in paths) and paths[0].startswith("/"):
        # Hadoop's checksumming file system cannot open a name with a colon; the plain one can.
        options |= {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
    return spark.read.options(**options)


def escaped(paths: list[str]) -> list[str]:
    """Paths that Spark, which takes each for a glob, takes for nothing but themselves."""
    return [_SPECIAL.sub(r"\\\g<0>", path) for path in paths]


def unreadable(path: str) -> bool:
    """Whether Spark cannot be told this local path: Hadoop's globs know no colon."""
    return ":" in path and _SPECIAL.search(path) is not None


def _second_objects(
    spark: SparkSession,
    paths: list[str],
    columns: list[Column],
    options: dict[str, str],
    keep: bool,
    context: SourceContext,
) -> DataFrame:
    """What Spark's JSON reader would lose: the rest of lines that hold more than one object."""
    from pyspark.sql import functions as F

    about_lines = {key: value for key, value in options.items() if key.lower() in {name.lower() for name in _LINES}}
    lines = exact_reader(spark, paths).options(**about_lines).format("text").load(escaped(paths))
    joined = lines.where(joined_lines(columns, options))
    if keep:
        nothing = (F.lit(None).cast(column.type).alias(column.name) for column in columns)
        return joined.select(*nothing, F.col("value").alias(CORRUPT))
    fail = F.expr(f"raise_error({note('value', [Column('value', 'string')], context.source)})")
    # Not literal nulls: with those, a filter downstream proves that it needs no row of this branch.
    parsed = F.from_json("value", _ddl(columns))
    return joined.where(fail.cast("boolean")).select(*(parsed[column.name].alias(column.name) for column in columns))


def _ddl(columns: list[Column]) -> str:
    return ", ".join(column.ddl for column in columns)


def _is_true(options: dict[str, str], name: str) -> bool:
    return any(key.lower() == name.lower() and value.lower() == "true" for key, value in options.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
