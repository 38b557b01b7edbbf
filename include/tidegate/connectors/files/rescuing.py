"""Reads JSON files some of whose records do not fit the schema, and keeps what does not fit beside its row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.connectors.files.folder import Folder
from tidegate.connectors.files.formats.json_lines import no_utf8
from tidegate.connectors.files.formats.judged_records import cases_of_malformed, judge_records, values_of_rows
from tidegate.connectors.files.formats.misfits import Names, is_plain_for, summarize
from tidegate.connectors.files.formats.plain_json import are_plain
from tidegate.connectors.files.reading import (
    CORRUPT,
    FileOptions,
    option_text,
    parser_options,
    read_lines,
    texts_of,
)
from tidegate.connectors.schema.ddl import Column as Field
from tidegate.connectors.schema.ddl import parse_ddl
from tidegate.connectors.schema.drift import Survey
from tidegate.connectors.source import SourceContext
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_rescuing", "rows_with_rescued", "survey_files"]


def survey_files(spark: SparkSession, source: FileOptions, folder: Folder, names: list[str]) -> Survey:
    """Return what in these files does not fit the schema."""
    columns = parse_ddl(source.schema)
    options = {key: option_text(value) for key, value in source.options.items()}
    keys_suffice = not source.schema_policy.rescues_types and not options
    if not names or (keys_suffice and are_plain(folder, names, columns, all_keys_known=True)):
        return Survey(None, is_clean=True)
    lines = read_lines(spark, source, [folder.full(name) for name in names], options)
    lines = lines.where(no_utf8() | ~is_plain_for("value", columns, source.schema_policy, parser_options(options)))
    checks = Names.beside(columns)
    survey = summarize(_judged(lines, source, columns, options, checks), columns, source.schema_policy, checks)
    return survey.with_names_in(folder.url)


def read_rescuing(
    spark: SparkSession, source: FileOptions, folder: Folder, names: list[str], context: SourceContext
) -> DataFrame:
    """Return the rows of these files, lazily, with what does not fit the schema in the rescue column."""
    columns = parse_ddl(source.schema)
    options = {key: option_text(value) for key, value in source.options.items()}
    lines = read_lines(spark, source, [folder.full(name) for name in names], options)
    checks = Names.beside(columns)
    return rows_with_rescued(_judged(lines, source, columns, options, checks), source, columns, checks, context)


def rows_with_rescued(
    frame: DataFrame, source: FileOptions, columns: list[Field], checks: Names, context: SourceContext
) -> DataFrame:
    """Return the rows, with their misfits in the rescue column. frame: has the results of all checks."""
    from pyspark.sql import functions as F

    policy, why, text = source.schema_policy, quoted(checks.why), quoted(checks.text)
    if source.on_corrupt == "keep":
        selected = values_of_rows(columns, policy, checks, is_kept=f"{why} IS NULL")
        return frame.selectExpr(*selected, f"CASE WHEN {why} IS NOT NULL THEN {text} END AS {CORRUPT}")
    is_good = F.expr(f"CASE {cases_of_malformed(columns, checks, context.source)} ELSE true END")
    return frame.where(is_good).selectExpr(*values_of_rows(columns, policy, checks))


def _judged(
    lines: DataFrame, source: FileOptions, columns: list[Field], options: dict[str, str], checks: Names
) -> DataFrame:
    """Return one row for each record: the columns as they are read, its text, its misfits, and why it is malformed."""
    from pyspark.sql import functions as F

    parser = parser_options(options)
    lines = lines.select("value", F.input_file_name().alias(checks.place))
    carried = [quoted(checks.place)]
    texts = texts_of(lines, options, carried)
    return judge_records(texts, columns, carried, source.schema_policy, parser, checks)
