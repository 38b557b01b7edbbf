"""Files to DataFrames: exactly these files, and no row dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidegate.records.names import quoted
from tidegate.sources.base import SourceContext
from tidegate.sources.ddl import Column, parse_ddl
from tidegate.sources.files.exact import escaped, exact_reader, parquet_files
from tidegate.sources.files.exact_values import as_read
from tidegate.sources.files.folder import Folder
from tidegate.sources.files.json_lines import as_text, no_utf8, strange_keys, unread
from tidegate.sources.files.malformed import fail_at_malformed, flag_malformed, free_name, note
from tidegate.sources.files.plain_json import are_plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CORRUPT", "empty_frame", "read_files"]

CORRUPT: Final = "_corrupt_record"

_LINES: Final = ("encoding", "lineSep", "compression")
"""Options that define what a line is."""

_ABOUT_FILES: Final = ("encoding", "charset", "linesep", "compression", "multiline")
"""Options that a parser of single records does not know."""


class Declared(Protocol):
    """The options by which a source of files, such as `Files`, reads them."""

    @property
    def schema(self) -> str: ...
    @property
    def format(self) -> str | None: ...
    @property
    def on_corrupt(self) -> str: ...
    @property
    def unknown_keys(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


def read_files(
    spark: SparkSession, source: Declared, folder: Folder, names: list[str], context: SourceContext
) -> DataFrame:
    """Return the rows of these files, lazily."""
    columns = parse_ddl(source.schema)
    keep = source.on_corrupt == "keep"
    if not names:
        return empty_frame(spark, [*columns, Column(CORRUPT, "string")] if keep else columns)
    options = {key: _option_text(value) for key, value in source.options.items()}
    paths = [folder.full(name) for name in names]
    if source.format == "parquet" and not options:
        return parquet_files(spark, paths, _schema_ddl(columns))
    reader = exact_reader(spark, paths).options(**options)
    if source.format == "parquet":
        return reader.schema(_schema_ddl(columns)).format("parquet").load(escaped(paths))
    corrupt = free_name(CORRUPT, columns)
    read = [*as_read(columns), Column(corrupt, "string")]
    reader = reader.schema(_schema_ddl(read)).option("columnNameOfCorruptRecord", corrupt)
    if "enforceschema" not in {key.lower() for key in options}:
        reader = reader.option("enforceSchema", "false")  # else Spark takes columns by position, whatever the header
    frame = reader.option("mode", "PERMISSIVE").format(str(source.format)).load(escaped(paths))
    if keep:
        replaced = source.format == "csv" and _is_utf8(options)
        judged = flag_malformed(frame, columns, corrupt, replaced=replaced)
    else:
        judged = fail_at_malformed(frame, columns, corrupt, context.source)
    all_keys_known = source.unknown_keys == "refuse"
    if source.format == "json" and not options and are_plain(folder, names, columns, all_keys_known=all_keys_known):
        return judged
    overlooked = _overlooked(spark, source, paths, columns, options, context)
    return judged if overlooked is None else judged.unionByName(overlooked)


def empty_frame(spark: SparkSession, columns: list[Column]) -> DataFrame:
    """Return a frame with all columns and no rows."""
    from pyspark.sql import functions as F

    return spark.range(0).select(*(F.lit(None).cast(column.type).alias(column.name) for column in columns))


def _overlooked(
    spark: SparkSession,
    source: Declared,
    paths: list[str],
    columns: list[Column],
    options: dict[str, str],
    context: SourceContext,
) -> DataFrame | None:
    """Return the lines (or whole files) that hold more than Spark's reader reads, or a frame that fails at the first of
    them. None: there cannot be any. With on_corrupt='keep', records that the reader already reported as malformed are
    not reported again."""
    from pyspark.sql import functions as F

    keep = source.on_corrupt == "keep"
    whole = source.format == "json" and _is_true(options, "multiLine")
    about_lines = {key: value for key, value in options.items() if key.lower() in {name.lower() for name in _LINES}}
    reader = exact_reader(spark, paths).options(**about_lines)
    lines = (reader.option("wholetext", "true") if whole else reader).format("text").load(escaped(paths))
    if source.format == "csv":
        if keep or not _is_utf8(options):
            return None
        bad, why = no_utf8(), "bytes"
    else:
        parser = {key: value for key, value in options.items() if key.lower() not in _ABOUT_FILES}
        text = as_text(_option(options, "encoding") or _option(options, "charset"))
        strange = strange_keys(text, columns, parser, all_of_them=source.unknown_keys == "refuse")
        bad, why = unread(text, parser) | strange, "CASE WHEN strange THEN 'keys' ELSE 'unread' END"
        lines = lines.withColumn("strange", F.lit(False)) if keep else lines.select("value", strange.alias("strange"))
        if keep:
            corrupt = free_name("_corrupt", columns)
            fields = f"{_schema_ddl(columns)}, {quoted(corrupt)} string"
            read = F.from_json(text, fields, {**parser, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt})
            rows = F.from_json(text, f"array<struct<{_schema_ddl(columns)}>>", {**parser, "mode": "PERMISSIVE"})
            is_array = F.btrim(text, F.lit(" \t\r\n")).startswith("[")
            joined = lines.where(bad & F.when(is_array, rows.isNotNull()).otherwise(read[corrupt].isNull()))
            nothing = (F.lit(None).cast(column.type).alias(column.name) for column in columns)
            return joined.select(*nothing, F.col("value").alias(CORRUPT))
        bad = unread(text, parser) | F.col("strange")
    joined = lines.where(bad)
    fail = F.expr(f"raise_error({note('value', [Column('value', 'string')], context.source, why)})")
    # Not literal nulls: with those, a filter downstream proves that it needs no row of this branch.
    parsed = F.from_json("value", _schema_ddl(columns))
    return joined.where(fail.cast("boolean")).select(*(parsed[column.name].alias(column.name) for column in columns))


def _is_utf8(options: dict[str, str]) -> bool:
    return (_option(options, "encoding") or _option(options, "charset") or "utf-8").lower() in ("utf-8", "utf8")


def _option(options: dict[str, str], name: str) -> str:
    return next((value for key, value in options.items() if key.lower() == name.lower()), "")


def _schema_ddl(columns: list[Column]) -> str:
    return ", ".join(column.ddl for column in columns)


def _is_true(options: dict[str, str], name: str) -> bool:
    return any(key.lower() == name.lower() and value.lower() == "true" for key, value in options.items())


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
