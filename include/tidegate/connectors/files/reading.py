"""Reads exactly the given files into a DataFrame, and drops no row silently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidegate.connectors.files.folder import Folder
from tidegate.connectors.files.formats.csv_headers import CsvHeader, group_files_per_header
from tidegate.connectors.files.formats.exact_values import as_read
from tidegate.connectors.files.formats.json_lines import as_text, no_utf8, strange_keys, unread
from tidegate.connectors.files.formats.json_records import split_arrays
from tidegate.connectors.files.formats.judged_records import judge_records, values_of_rows
from tidegate.connectors.files.formats.malformed import fail_on_malformed, flag_malformed, note
from tidegate.connectors.files.formats.misfits import Names
from tidegate.connectors.files.formats.plain_json import are_plain
from tidegate.connectors.files.formats.plain_records import is_plain_record
from tidegate.connectors.files.formats.utf8 import decode_lines, is_utf8
from tidegate.connectors.schema.ddl import Column, parse_ddl
from tidegate.connectors.schema.drift import SchemaPolicy
from tidegate.connectors.source import SourceContext
from tidegate.records.names import free_name, quoted
from tidegate.spark.refusals.malformed_record import MISFIT
from tidegate.spark.storage.exact_files import escaped, exact_reader, parquet_files

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "CORRUPT",
    "columns_of_rows",
    "csv_records",
    "csv_rows",
    "empty_column",
    "empty_frame",
    "encoding_of",
    "fail_on_overlooked",
    "no_rows_of",
    "option_text",
    "parser_options",
    "read_files",
    "read_lines",
    "texts_of",
]

CORRUPT: Final = "_corrupt_record"

_LINE_OPTIONS: Final = ("encoding", "linesep", "compression")
"""Options that define what a line is, in lower case."""

_FILE_OPTIONS: Final = ("encoding", "charset", "linesep", "compression", "multiline", "header", "enforceschema")
"""Options that do not apply to parsing single records, in lower case."""


class FileOptions(Protocol):
    """The arguments of a source of files, such as `Files`, that reading needs."""

    @property
    def schema(self) -> str: ...
    @property
    def format(self) -> str | None: ...
    @property
    def on_corrupt(self) -> str: ...
    @property
    def schema_policy(self) -> SchemaPolicy: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


def columns_of_rows(source: FileOptions) -> list[Column]:
    """Return the columns of the files' rows, in order."""
    columns = parse_ddl(source.schema)
    if source.schema_policy.rescues:
        columns = [*columns, Column(source.schema_policy.rescue_column, "string")]
    if source.on_corrupt == "keep":
        columns = [*columns, Column(CORRUPT, "string")]
    return columns


def no_rows_of(spark: SparkSession, source: FileOptions) -> DataFrame:
    """Return a frame with the columns of the files' rows, and no rows."""
    return empty_frame(spark, columns_of_rows(source))


def read_files(
    spark: SparkSession,
    source: FileOptions,
    folder: Folder,
    names: list[str],
    context: SourceContext,
    *,
    is_clean: bool = False,
) -> DataFrame:
    """Return the rows of these files, lazily.

    is_clean: a survey has found that every record of JSON fits the schema.
    """
    from pyspark.sql import functions as F

    if not names:
        return no_rows_of(spark, source)
    frame = _read(spark, source, folder, names, context, is_clean=is_clean)
    policy = source.schema_policy
    if not policy.rescues:
        return frame
    rows = [quoted(name) for name in frame.columns if name != CORRUPT]
    rescued = F.lit(None).cast("string").alias(policy.rescue_column)
    return frame.select(*rows, rescued, *([CORRUPT] if source.on_corrupt == "keep" else []))


def _read(
    spark: SparkSession,
    source: FileOptions,
    folder: Folder,
    names: list[str],
    context: SourceContext,
    *,
    is_clean: bool,
) -> DataFrame:
    columns = parse_ddl(source.schema)
    keep = source.on_corrupt == "keep"
    options = {key: option_text(value) for key, value in source.options.items()}
    paths = [folder.full(name) for name in names]
    if source.format == "parquet" and not options:
        return parquet_files(spark, paths, _schema_ddl(columns))
    reader = exact_reader(spark, paths).options(**options)
    if source.format == "parquet":
        return reader.schema(_schema_ddl(columns)).format("parquet").load(escaped(paths))
    all_keys = source.schema_policy.on_new_column == "refuse"
    if source.format == "json" and keep:
        plain = not options and are_plain(folder, names, columns, all_keys_known=all_keys)
        lines = read_lines(spark, source, paths, options)
        judge_keys = not (plain or is_clean)
        return _read_json_keeping_malformed(lines, source, columns, options, plain=plain, judge_keys=judge_keys)
    if source.format == "csv":
        return _read_csv(spark, source, folder, names, columns, options, context)
    corrupt = free_name(CORRUPT, [column.name for column in columns])
    read_columns = [*as_read(columns), Column(corrupt, "string")]
    reader = reader.schema(_schema_ddl(read_columns)).option("columnNameOfCorruptRecord", corrupt)
    frame = reader.option("mode", "PERMISSIVE").format("json").load(escaped(paths))
    checked = fail_on_malformed(frame, columns, corrupt, context.source)
    if is_clean or (not options and are_plain(folder, names, columns, all_keys_known=all_keys)):
        return checked
    return checked.unionByName(fail_on_overlooked(spark, source, paths, columns, options, context))


def _read_csv(
    spark: SparkSession,
    source: FileOptions,
    folder: Folder,
    names: list[str],
    columns: list[Column],
    options: dict[str, str],
    context: SourceContext,
) -> DataFrame:
    """Return the rows of CSV files. Those with the same header are read together."""
    keep = source.on_corrupt == "keep"
    selected = [quoted(column.name) for column in columns] + ([CORRUPT] if keep else [])
    frame: DataFrame | None = None
    for header, with_header in group_files_per_header(options, folder, names, columns).items():
        paths = [folder.full(name) for name in with_header]
        rows, read, corrupt = csv_rows(spark, paths, header, columns, options)
        if keep:
            rows = flag_malformed(rows, read, corrupt, replaced=is_utf8(encoding_of(options)))
        else:
            rows = fail_on_malformed(rows, read, corrupt, context.source)
        missing = [empty_column(column) for column in columns if column not in header.columns]
        rows = rows.select("*", *missing).select(*selected)
        frame = rows if frame is None else frame.unionByName(rows)
    assert frame is not None
    if keep or not is_utf8(encoding_of(options)):
        return frame
    paths = [folder.full(name) for name in names]
    return frame.unionByName(fail_on_overlooked(spark, source, paths, columns, options, context))


def csv_rows(
    spark: SparkSession, paths: list[str], header: CsvHeader, columns: list[Column], options: dict[str, str]
) -> tuple[DataFrame, list[Column], str]:
    """Return the rows of CSV files with this header as they are read, the columns of the schema that they have, and
    the name of a further column, with the text of each malformed record.
    """
    used = [column.name for column in columns]
    corrupt = free_name(CORRUPT, used)
    read = [column for column in header.columns if column is not None]
    fields = []
    for position, column in enumerate(header.columns):
        fields.append(column or Column(free_name(f"_field_{position}", used), "string"))
    # By default, Spark assigns the columns of CSV files by position and ignores the header.
    checked = {"enforceschema": "false"} | _lower_names(options)
    if header.further():
        # Spark knows only names of columns, so it cannot check a header with further ones. And it counts the fields of
        # a record only if it parses all of them, which it does not do for further ones, as nothing selects them.
        checked |= {"enforceschema": "true", "columnpruning": "false"}
    reader = exact_reader(spark, paths).options(**checked).option("mode", "PERMISSIVE")
    schema = _schema_ddl([*as_read(fields), Column(corrupt, "string")])
    reader = reader.schema(schema).option("columnNameOfCorruptRecord", corrupt)
    return reader.format("csv").load(escaped(paths)), read, corrupt


def csv_records(spark: SparkSession, paths: list[str], options: dict[str, str]) -> DataFrame:
    """Return the text and the file of each record, in the columns `text` and `place`."""
    from pyspark.sql import functions as F

    # Spark shows the text of a record only if it is malformed. To a schema with one column, each is that has more
    # fields. The text of a record with one field is made of this field: it differs at most in quotes.
    schema = "field string, text string"
    by_position = _lower_names(options) | {"enforceschema": "true"}
    reader = exact_reader(spark, paths).options(**by_position).option("mode", "PERMISSIVE")
    rows = reader.schema(schema).option("columnNameOfCorruptRecord", "text").format("csv").load(escaped(paths))
    again = F.to_csv(F.struct("field"), {**parser_options(options), "quoteAll": "true"})
    return rows.select(F.coalesce("text", again).alias("text"), F.input_file_name().alias("place"))


def empty_column(column: Column) -> SparkColumn:
    """Return a column of this type and name that is null."""
    from pyspark.sql import functions as F

    return F.lit(None).cast(column.type).alias(column.name)


def empty_frame(spark: SparkSession, columns: list[Column]) -> DataFrame:
    """Return a frame with these columns and no rows."""
    return spark.range(0).select(*map(empty_column, columns))


def read_lines(spark: SparkSession, source: FileOptions, paths: list[str], options: dict[str, str]) -> DataFrame:
    """Return the lines of the files, unchanged, in the column `value`. With multi-line JSON, a file is one value."""
    line_options = {key: value for key, value in options.items() if key.lower() in _LINE_OPTIONS}
    reader = exact_reader(spark, paths).options(**line_options)
    if source.format == "json" and _is_true(options, "multiLine"):
        reader = reader.option("wholetext", "true")
    return reader.format("text").load(escaped(paths))


def parser_options(options: dict[str, str]) -> dict[str, str]:
    """Return the options that apply to parsing single records."""
    return {key: value for key, value in options.items() if key.lower() not in _FILE_OPTIONS}


def _read_json_keeping_malformed(
    lines: DataFrame,
    source: FileOptions,
    columns: list[Column],
    options: dict[str, str],
    *,
    plain: bool,
    judge_keys: bool,
) -> DataFrame:
    """Return one row for each record, with the text of malformed records in an additional column.

    Lines are read once, as text, and checked before they are parsed. Spark's JSON reader would not show which of its
    rows belong to a line that it did not read completely, so such a record would be emitted twice.

    plain: each line is known to be one object. judge_keys: False if all keys are known to be in the schema.
    """
    # What a policy rescues is read elsewhere: here, a survey has found nothing of it.
    policy = SchemaPolicy() if source.schema_policy.rescues else source.schema_policy
    checks = Names.beside(columns)
    texts = texts_of(lines, options, plain=plain)
    frame = judge_records(texts, columns, [], policy, parser_options(options), checks, judge_keys=judge_keys)
    why, text = quoted(checks.why), quoted(checks.text)
    # A malformed record keeps the values that Spark's parser could read. A record with another flaw keeps none.
    is_parsed = f"coalesce({why}, '') IN ('', '{MISFIT}')"
    corrupt_text = f"CASE WHEN {why} IS NOT NULL THEN {text} END AS {CORRUPT}"
    return frame.selectExpr(*values_of_rows(columns, policy, checks, is_kept=is_parsed), corrupt_text)


def texts_of(
    lines: DataFrame, options: dict[str, str], carried: Sequence[str] = (), *, plain: bool = False
) -> DataFrame:
    """Return one row for each record: its text in `value`, and in `flaw` why it is malformed, or null.

    carried: further columns of the lines, which the result has, too. plain: each line is known to be one object.
    """
    from pyspark.sql import functions as F

    decoded = decode_lines(lines, encoding_of(options), carried)
    texts = decoded.select(as_text("").alias("value"), F.when(F.col("broken"), "bytes").alias("flaw"), *carried)
    if not plain:
        return split_arrays(texts, parser_options(options), carried)
    return texts.where(F.btrim("value", F.lit(" \t\r\n")) != F.lit(""))


def fail_on_overlooked(
    spark: SparkSession,
    source: FileOptions,
    paths: list[str],
    columns: list[Column],
    options: dict[str, str],
    context: SourceContext,
) -> DataFrame:
    """Return a frame without rows that fails if Spark's reader overlooks something.

    It fails at the first line, or file of multi-line JSON, with more than Spark reads, or with bytes that it replaces.
    """
    from pyspark.sql import functions as F

    lines = read_lines(spark, source, paths, options)
    if source.format == "csv":
        is_bad, cause = no_utf8(), "bytes"
    else:
        parser, encoding = parser_options(options), encoding_of(options)
        text = as_text(encoding)
        all_keys = source.schema_policy.on_new_column == "refuse"
        strange = strange_keys(text, columns, parser, all_of_them=all_keys)
        broken = no_utf8() if is_utf8(encoding) else F.lit(False)
        is_bad = F.col("broken") | unread(text, parser) | F.col("strange")
        if is_utf8(encoding):
            lines = lines.where(broken | ~is_plain_record(F.col("value"), columns, all_keys_known=all_keys))
        lines = lines.select("value", broken.alias("broken"), strange.alias("strange"))
        cause = "CASE WHEN broken THEN 'bytes' WHEN strange THEN 'keys' ELSE 'unread' END"
    overlooked = lines.where(is_bad)
    fail = F.expr(f"raise_error({note('value', [Column('value', 'string')], context.source, cause)})")
    # With literal nulls, Spark could prove for a filter downstream that it needs no row of this branch, and drop it.
    parsed = F.from_json("value", _schema_ddl(columns))
    return overlooked.where(fail.cast("boolean")).select(
        *(parsed[column.name].alias(column.name) for column in columns)
    )


def encoding_of(options: dict[str, str]) -> str:
    """Return the encoding of the files, or "" for the default."""
    return _option(options, "encoding") or _option(options, "charset")


def _option(options: dict[str, str], name: str) -> str:
    for key, value in options.items():
        if key.lower() == name.lower():
            return value
    return ""


def _lower_names(options: dict[str, str]) -> dict[str, str]:
    """Return options with names in lower case, so that each can be replaced. Spark ignores case."""
    return {key.lower(): value for key, value in options.items()}


def _schema_ddl(columns: list[Column]) -> str:
    return ", ".join(column.ddl for column in columns)


def _is_true(options: dict[str, str], name: str) -> bool:
    return any(key.lower() == name.lower() and value.lower() == "true" for key, value in options.items())


def option_text(value: object) -> str:
    """Return the value of an option as Spark expects it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
