"""Files to DataFrames: exactly these files, and no row dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidegate.connectors.ddl import Column, parse_ddl
from tidegate.connectors.files.folder import Folder
from tidegate.connectors.files.formats.exact_values import as_declared, as_read, doubt
from tidegate.connectors.files.formats.json_lines import as_text, no_utf8, strange_keys, unread
from tidegate.connectors.files.formats.json_records import parse_records, split_arrays
from tidegate.connectors.files.formats.malformed import fail_at_malformed, flag_malformed, note
from tidegate.connectors.files.formats.plain_json import are_plain
from tidegate.connectors.files.formats.utf8 import decode_lines, is_utf8
from tidegate.connectors.source import SourceContext
from tidegate.records.names import free_name, quoted
from tidegate.spark.storage.exact_files import escaped, exact_reader, parquet_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CORRUPT", "empty_frame", "no_rows_of", "nulled", "read_files"]

CORRUPT: Final = "_corrupt_record"

_LINES: Final = ("encoding", "lineSep", "compression")
"""Options that define what a line is."""

_ABOUT_FILES: Final = ("encoding", "charset", "linesep", "compression", "multiline")
"""Options that a parser of single records does not know."""


class FileOptions(Protocol):
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


def no_rows_of(spark: SparkSession, source: FileOptions) -> DataFrame:
    """Return the columns that the rows of files have, without rows."""
    columns = parse_ddl(source.schema)
    return empty_frame(spark, [*columns, Column(CORRUPT, "string")] if source.on_corrupt == "keep" else columns)


def read_files(
    spark: SparkSession, source: FileOptions, folder: Folder, names: list[str], context: SourceContext
) -> DataFrame:
    """Return the rows of these files, lazily."""
    columns = parse_ddl(source.schema)
    keep = source.on_corrupt == "keep"
    if not names:
        return no_rows_of(spark, source)
    options = {key: _option_text(value) for key, value in source.options.items()}
    paths = [folder.full(name) for name in names]
    if source.format == "parquet" and not options:
        return parquet_files(spark, paths, _schema_ddl(columns))
    reader = exact_reader(spark, paths).options(**options)
    if source.format == "parquet":
        return reader.schema(_schema_ddl(columns)).format("parquet").load(escaped(paths))
    all_keys = source.unknown_keys == "refuse"
    if source.format == "json" and keep:
        plain = not options and are_plain(folder, names, columns, all_keys_known=all_keys)
        return _read_json_keeping_malformed(
            _lines(spark, source, paths, options), source, columns, options, plain=plain
        )
    corrupt = free_name(CORRUPT, [column.name for column in columns])
    read = [*as_read(columns), Column(corrupt, "string")]
    reader = reader.schema(_schema_ddl(read)).option("columnNameOfCorruptRecord", corrupt)
    if "enforceschema" not in {key.lower() for key in options}:
        reader = reader.option("enforceSchema", "false")  # else Spark takes columns by position, whatever the header
    frame = reader.option("mode", "PERMISSIVE").format(str(source.format)).load(escaped(paths))
    if keep:
        return flag_malformed(frame, columns, corrupt, replaced=is_utf8(_encoding(options)))
    judged = fail_at_malformed(frame, columns, corrupt, context.source)
    if source.format == "json" and not options and are_plain(folder, names, columns, all_keys_known=all_keys):
        return judged
    if source.format == "csv" and not is_utf8(_encoding(options)):
        return judged
    lines = _lines(spark, source, paths, options)
    return judged.unionByName(_fail_at_overlooked(lines, source, columns, options, context))


def empty_frame(spark: SparkSession, columns: list[Column]) -> DataFrame:
    """Return a frame with all columns and no rows."""
    from pyspark.sql import functions as F

    return spark.range(0).select(*(F.lit(None).cast(column.type).alias(column.name) for column in columns))


def _lines(spark: SparkSession, source: FileOptions, paths: list[str], options: dict[str, str]) -> DataFrame:
    """Return the lines of the files, as they are: column `value`. With JSON of several lines, the files."""
    whole = source.format == "json" and _is_true(options, "multiLine")
    about_lines = {key: value for key, value in options.items() if key.lower() in {name.lower() for name in _LINES}}
    reader = exact_reader(spark, paths).options(**about_lines)
    return (reader.option("wholetext", "true") if whole else reader).format("text").load(escaped(paths))


def _parser(options: dict[str, str]) -> dict[str, str]:
    """Return the options that a parser of single records knows."""
    return {key: value for key, value in options.items() if key.lower() not in _ABOUT_FILES}


def _read_json_keeping_malformed(
    lines: DataFrame, source: FileOptions, columns: list[Column], options: dict[str, str], *, plain: bool
) -> DataFrame:
    """Return one row for each record: those that are malformed with their text in a column of its own.

    Lines are read once, as text, and judged before they are parsed. Spark's reader of JSON would not tell which of its
    rows are of a line that holds more than it reads, so such a record would come twice.
    plain: each line is known to be one object with keys of the schema.
    """
    from pyspark.sql import functions as F

    parser = _parser(options)
    decoded = decode_lines(lines, _encoding(options))
    texts = decoded.select(as_text("").alias("value"), F.when(F.col("broken"), "bytes").alias("flaw"))
    texts = split_arrays(texts, parser) if not plain else texts.where(F.btrim("value", F.lit(" \t\r\n")) != F.lit(""))
    names = [column.name for column in columns]
    text, why, corrupt = (free_name(name, names) for name in ("_text", "_why", CORRUPT))
    all_keys = source.unknown_keys == "refuse"
    frame = parse_records(texts, columns, [], parser, text=text, why=why, all_keys=all_keys, judge_keys=not plain)
    bad = f"CASE WHEN {why} IS NOT NULL OR {doubt(columns)} THEN {text} END"
    # What Spark's parser understood of a malformed record stays; of one that is something else altogether, nothing.
    made = as_declared(columns)
    made = [nulled(sql, column, f"coalesce({quoted(why)}, '') = ''") for sql, column in zip(made, columns, strict=True)]
    return frame.withColumn(corrupt, F.expr(bad)).selectExpr(*made, quoted(corrupt))


def nulled(sql: str, column: Column, unless: str) -> str:
    """Return SQL of a column that is null unless a condition holds."""
    name = quoted(column.name)
    return f"CASE WHEN {unless} THEN {sql.removesuffix(f' AS {name}')} END AS {name}"


def _fail_at_overlooked(
    lines: DataFrame, source: FileOptions, columns: list[Column], options: dict[str, str], context: SourceContext
) -> DataFrame:
    """Return a frame that fails at the first line (or whole file) that holds more than Spark's reader reads, or bytes
    that it replaces, and has no rows."""
    from pyspark.sql import functions as F

    if source.format == "csv":
        bad, why = no_utf8(), "bytes"
    else:
        parser, encoding = _parser(options), _encoding(options)
        text = as_text(encoding)
        strange = strange_keys(text, columns, parser, all_of_them=source.unknown_keys == "refuse")
        broken = no_utf8() if is_utf8(encoding) else F.lit(False)
        lines = lines.select("value", strange.alias("strange"), broken.alias("broken"))
        bad = F.col("broken") | unread(text, parser) | F.col("strange")
        why = "CASE WHEN broken THEN 'bytes' WHEN strange THEN 'keys' ELSE 'unread' END"
    overlooked = lines.where(bad)
    fail = F.expr(f"raise_error({note('value', [Column('value', 'string')], context.source, why)})")
    # Not literal nulls: with those, a filter downstream proves that it needs no row of this branch.
    parsed = F.from_json("value", _schema_ddl(columns))
    return overlooked.where(fail.cast("boolean")).select(
        *(parsed[column.name].alias(column.name) for column in columns)
    )


def _encoding(options: dict[str, str]) -> str:
    return _option(options, "encoding") or _option(options, "charset")


def _option(options: dict[str, str], name: str) -> str:
    return next((value for key, value in options.items() if key.lower() == name.lower()), "")


def _schema_ddl(columns: list[Column]) -> str:
    return ", ".join(column.ddl for column in columns)


def _is_true(options: dict[str, str], name: str) -> bool:
    return any(key.lower() == name.lower() and value.lower() == "true" for key, value in options.items())


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
