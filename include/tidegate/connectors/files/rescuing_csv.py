"""Reads CSV files with fields that the schema lacks, or with values of another type, and keeps these beside each row.

The headers show which fields a file has. Files with the same header are read together, and their records are parsed
twice: into the columns of the schema, and into texts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidegate.connectors.files.folder import Folder
from tidegate.connectors.files.formats.csv_headers import CsvHeader, group_files_per_header
from tidegate.connectors.files.formats.exact_values import as_read, doubt, doubt_of
from tidegate.connectors.files.formats.misfits import (
    EXACT_IN_DOUBLES,
    NO_MISFITS,
    Names,
    rounds,
    sql_literal,
    summarize,
)
from tidegate.connectors.files.formats.utf8 import is_utf8
from tidegate.connectors.files.reading import (
    FileOptions,
    csv_records,
    csv_rows,
    encoding_of,
    fail_on_overlooked,
    option_text,
    parser_options,
)
from tidegate.connectors.files.rescuing import rows_with_rescued
from tidegate.connectors.schema.ddl import Column, parse_ddl
from tidegate.connectors.schema.drift import Survey
from tidegate.connectors.source import SourceContext
from tidegate.records.names import quoted
from tidegate.spark.refusals.malformed_record import MISFIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_rescuing_csv", "survey_csv"]

_PLAIN_NUMBER: Final = "^[-+]?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$"
_DOUBLE: Final = "^[-+]?(([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?|Infinity|NaN)$"
"""What counts as a double. Java's parser also takes `12d` and `0x1p4`, which are no numbers to an int column."""
_WHOLE: Final = "^[-+]?[0-9]+[.]?0*$"
_SPACE_AROUND: Final = "^[\t-\r ]+|[\t-\r ]+$"
_NAMES_OF_DOUBLES: Final = {"nanvalue": "NaN", "positiveinf": "Inf", "negativeinf": "-Inf"}
"""Options with further texts of doubles, and their defaults."""


def survey_csv(spark: SparkSession, source: FileOptions, folder: Folder, names: list[str]) -> Survey:
    """Return what in these files does not fit the schema."""
    from pyspark.sql import functions as F

    columns = parse_ddl(source.schema)
    checks = Names.beside(columns)
    frame = _judged_files(spark, source, folder, names, columns, checks, skip_clean=True)
    if frame is None:
        return Survey(None, is_clean=True)
    frame = frame.withColumn(checks.misfits, F.expr(_with_numbers(quoted(checks.misfits))))
    return summarize(frame, columns, source.schema_policy, checks).with_names_in(folder.url)


def read_rescuing_csv(
    spark: SparkSession, source: FileOptions, folder: Folder, names: list[str], context: SourceContext
) -> DataFrame:
    """Return the rows of these files, lazily, with what does not fit the schema in the rescue column."""
    from pyspark.sql import functions as F

    columns = parse_ddl(source.schema)
    options = {key: option_text(value) for key, value in source.options.items()}
    checks = Names.beside(columns)
    frame = _judged_files(spark, source, folder, names, columns, checks, skip_clean=False)
    assert frame is not None
    rows = rows_with_rescued(frame, source, columns, checks, context)
    if source.on_corrupt == "keep" or not is_utf8(encoding_of(options)):
        return rows
    paths = [folder.full(name) for name in names]
    overlooked = fail_on_overlooked(spark, source, paths, columns, options, context)
    rescued = F.lit(None).cast("string").alias(source.schema_policy.rescue_column)
    return rows.unionByName(overlooked.select("*", rescued))


def _judged_files(
    spark: SparkSession,
    source: FileOptions,
    folder: Folder,
    names: list[str],
    columns: list[Column],
    checks: Names,
    *,
    skip_clean: bool,
) -> DataFrame | None:
    """Return the records of these files, as `_judged` does. skip_clean: leave out files without misfits.

    Files with the same header are read together.
    """
    options = {key: option_text(value) for key, value in source.options.items()}
    frame: DataFrame | None = None
    for header, with_header in group_files_per_header(options, folder, names, columns).items():
        paths = [folder.full(name) for name in with_header]
        has_further = source.schema_policy.rescues_keys and bool(header.further())
        if skip_clean and not has_further and not _has_misfits(spark, source, paths, header, columns, options):
            continue
        judged = _judged(spark, source, paths, header, columns, options, checks)
        frame = judged if frame is None else frame.unionByName(judged)
    return frame


def _has_misfits(
    spark: SparkSession,
    source: FileOptions,
    paths: list[str],
    header: CsvHeader,
    columns: list[Column],
    options: dict[str, str],
) -> bool:
    """Return whether any record has a value that its column cannot hold, and that is rescued."""
    if not source.schema_policy.rescues_types:
        return False
    policy = source.schema_policy
    judged_by_text = [column.name for column in columns if rounds(column, policy)]
    texts = [
        replace(column, type="string") if column is not None and column.name in judged_by_text else column
        for column in header.columns
    ]
    rows, read, corrupt = csv_rows(spark, paths, replace(header, columns=tuple(texts)), columns, options)
    unfit = [unfit_double(quoted(column.name), options) for column in read if column.name in judged_by_text]
    conditions = [f"{quoted(corrupt)} IS NOT NULL", doubt(read), *unfit]
    # Spark refuses to read only the texts of malformed records, as `isEmpty` would.
    return bool(rows.where(" OR ".join(conditions)).take(1))


def _judged(
    spark: SparkSession,
    source: FileOptions,
    paths: list[str],
    header: CsvHeader,
    columns: list[Column],
    options: dict[str, str],
    checks: Names,
) -> DataFrame:
    """Return one row for each record: the columns as they are read, its text, its misfits, and why it is malformed."""
    from pyspark.sql import functions as F

    policy = source.schema_policy
    parser = {**parser_options(options), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    by_name = {column.name: column for column in as_read(columns)}
    types = [by_name[column.name].type if column is not None else "string" for column in header.columns]
    typed = ", ".join(f"c{position} {kind}" for position, kind in enumerate(types))
    texts = ", ".join(f"c{position} string" for position in range(len(types)))
    frame = csv_records(spark, paths, options)
    frame = frame.select(
        "text",
        "place",
        F.from_csv("text", f"{typed}, corrupt string", parser).alias("read"),
        F.from_csv("text", f"{texts}, corrupt string", parser).alias("texts"),
    )
    positions = {column.name: position for position, column in enumerate(header.columns) if column is not None}
    selected, rescued = [], []
    for column in columns:
        position = positions.get(column.name)
        read = f"read.c{position}" if position is not None else f"CAST(NULL AS {by_name[column.name].type})"
        selected.append(f"{read} AS {quoted(column.name)}")
        if policy.rescues_types and position is not None:
            value = f"texts.c{position}"
            unfit = unfit_double(value, options) if rounds(column, policy) else ""
            unread = " OR ".join(filter(None, [f"{read} IS NULL", doubt_of(column, read), unfit]))
            misfit = _misfit(sql_literal(column.name), "'type'", f"CAST({value} AS variant)")
            rescued.append(f"CASE WHEN {value} IS NOT NULL AND ({unread}) THEN {misfit} END")
    misfits = f"array_compact(array({', '.join(rescued)}))" if rescued else NO_MISFITS
    if policy.rescues_keys and header.further():
        misfits = f"concat({_further_misfits(header, columns)}, {misfits})"
    cases = ["WHEN texts.corrupt IS NOT NULL THEN ''"]
    if source.on_corrupt == "keep" and is_utf8(encoding_of(options)):
        cases.append("WHEN contains(text, '\ufffd') THEN 'bytes'")
    if not policy.rescues_types:
        cases += ["WHEN read.corrupt IS NOT NULL THEN ''", f"WHEN {_doubt_of_read(columns, positions)} THEN '{MISFIT}'"]
    return frame.selectExpr(
        *selected,
        f"text AS {quoted(checks.text)}",
        f"CASE {' '.join(cases)} END AS {quoted(checks.why)}",
        f"place AS {quoted(checks.place)}",
        f"{misfits} AS {quoted(checks.misfits)}",
    ).withColumn(checks.misfits, F.expr(f"CASE WHEN {quoted(checks.why)} IS NULL THEN {quoted(checks.misfits)} END"))


def unfit_double(text: str, options: dict[str, str]) -> str:
    """Return SQL that is true for a text that is no plain number, or a whole number that a double might round.

    Such a text does not fit a column of whole numbers either, so it stays rescued when the column has become wider.
    """
    lower = {key.lower(): value for key, value in options.items()}
    named = ", ".join(sql_literal(lower.get(option, default)) for option, default in _NAMES_OF_DOUBLES.items())
    trimmed = f"regexp_replace({text}, '{_SPACE_AROUND}', '')"
    is_double = f"(rlike({trimmed}, '{_DOUBLE}') OR {text} IN ({named}))"
    is_rounded = f"abs(try_cast({trimmed} AS decimal(38,0))) > {EXACT_IN_DOUBLES}"
    return f"coalesce(NOT {is_double} OR (rlike({trimmed}, '{_WHOLE}') AND {is_rounded}), false)"


def _number(text: str) -> str:
    """Return SQL for a text as a variant with its number, or null if it is not a plain number."""
    without_zeros = f"regexp_replace({text}, '^(-?)[+]?0*(?=[0-9])', '$1')"
    return f"CASE WHEN rlike({text}, '{_PLAIN_NUMBER}') THEN try_parse_json({without_zeros}) END"


def _with_numbers(misfits: str) -> str:
    """Return SQL for the misfits of a record with numbers in place of their texts, as in JSON. They show the type that
    their column needs."""
    number = _number("try_variant_get(e.value, '$', 'string')")
    value = f"CASE WHEN e.kind = 'type' THEN coalesce({number}, e.value) ELSE e.value END"
    return f"transform({misfits}, e -> {_misfit('e.path', 'e.kind', value)})"


def _further_misfits(header: CsvHeader, columns: list[Column]) -> str:
    """Return SQL for the misfits of fields that are no columns.

    There may be thousands of them, most of which are null. So they are found by their numbers in one structure, not by
    an expression for each.
    """
    lowered = {column.name.lower() for column in columns}
    names: list[str | None] = [None] * len(header.names)
    kinds = names.copy()
    for position, name in header.further():
        names[position] = name
        kinds[position] = "case" if name.lower() in lowered else "new"
    fields = "map_entries(from_json(to_json(texts), 'map<string,variant>'))"
    number = "try_cast(substring(e.key, 2) AS int)"
    path, kind = (f"get({_array_literal(values)}, {number})" for values in (names, kinds))
    misfits = f"transform({fields}, e -> {_misfit(path, kind, 'e.value')})"
    return f"filter({misfits}, e -> e.path IS NOT NULL)"


def _array_literal(values: list[str | None]) -> str:
    """Return SQL for a list of texts. Spark computes it once."""
    return f"from_json({sql_literal(json.dumps(values))}, 'array<string>')"


def _misfit(path: str, kind: str, value: str) -> str:
    """Return SQL for one misfit."""
    return f"named_struct('path', {path}, 'kind', {kind}, 'value', {value})"


def _doubt_of_read(columns: list[Column], positions: dict[str, int]) -> str:
    """Return SQL that is true if a value was read that its declared type cannot hold."""
    conditions = []
    for column in columns:
        if column.name in positions:
            conditions.append(doubt_of(column, f"read.c{positions[column.name]}"))
    return " OR ".join(filter(None, conditions)) or "false"
