"""Checks files before Spark reads them: the headers of CSV files, and the columns of Parquet files.

Spark would only report the first problem, later and as a Java exception, and would fill missing columns with nulls.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tidegate.connectors.files.folder import Folder
from tidegate.connectors.files.formats.csv_headers import CsvHeader, csv_header, has_header, is_readable, separator_of
from tidegate.connectors.files.formats.parquet_types import fits
from tidegate.connectors.schema.ddl import Column, parse_ddl
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid

if TYPE_CHECKING:
    from tidegate.connectors.files.source import Files

__all__ = ["check_contents"]

MAX_PROBLEMS: Final = 20
MAX_SHOWN: Final = 200
"""How much is shown of a header that has no column of the schema. It may be anything."""


def check_contents(source: Files, folder: Folder, names: list[str], context: SourceContext) -> int | None:
    """Raise Invalid if a file lacks the columns of the schema, as far as that shows without reading rows.

    Return the number of rows if the files record it, else None.
    """
    columns = parse_ddl(source.schema)
    rows: int | None = None
    if source.format == "parquet":
        rows, problems = _parquet_contents(source, folder, names, columns)
    elif source.format == "csv" and has_header(source.options):
        problems = []
        for name in names:
            problems += [f"{name!r}: {problem}" for problem in _header_problems(source, folder, name, columns)]
    else:
        return None
    if not problems:
        return rows
    lines = problems[:MAX_PROBLEMS]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"… and {len(problems) - MAX_PROBLEMS} more")
    raise Invalid(
        f"source {context.source!r}: files in {folder.url} do not fit the schema:"
        + "".join(f"\n  {line}" for line in lines),
        expected=f"columns {source.schema}",
        help="correct the schema of Files(…), or the files; columns that older files lack are read as null with "
        "missing_columns='null'",
        reason="SCHEMA_MISMATCH",
    )


def _parquet_contents(source: Files, folder: Folder, names: list[str], columns: list[Column]) -> tuple[int, list[str]]:
    """Return the number of rows in the files, and all problems with their columns."""
    import pyarrow
    import pyarrow.parquet

    rows, problems = 0, []
    for name in names:
        try:
            with folder.open(name) as stream, pyarrow.parquet.ParquetFile(stream) as file:
                rows += file.metadata.num_rows
                schema = file.schema_arrow
        except pyarrow.ArrowException as error:
            problems.append(f"{name!r}: its footer cannot be read: {str(error).splitlines()[0]}")
            continue
        problems += [f"{name!r}: {problem}" for problem in _column_problems(source, schema, columns)]
    return rows, problems


def _column_problems(source: Files, schema: Any, columns: list[Column]) -> list[str]:
    problems = []
    if source.on_new_column == "refuse":
        known = {column.name.lower() for column in columns}
        unknown = [name for name in schema.names if name.lower() not in known]
        problems += [f"column {name!r} is not in the schema" for name in unknown]
    types_by_name: dict[str, list[Any]] = {}
    for field in schema:
        types_by_name.setdefault(field.name.lower(), []).append(field.type)
    for column in columns:
        if column.name in source.evolved_columns:
            continue  # what lacks it has null, and what does not fit is rescued
        types = types_by_name.get(column.name.lower(), [])
        if not types:
            if source.missing_columns == "refuse":
                problems.append(f"column {column.name!r} is missing (it has {', '.join(schema.names)})")
        elif len(types) > 1:
            problems.append(f"column {column.name!r} occurs {len(types)} times")
        elif not source.schema_policy.rescues_types and not fits(types[0], column.type):
            problems.append(f"column {column.name!r} is {types[0]}, which Spark cannot read as {column.type}")
    return problems


def _header_problems(source: Files, folder: Folder, name: str, columns: list[Column]) -> list[str]:
    """Return what is wrong with the header of a CSV file: fields are columns by their names, in any order."""
    if source.schema_policy.rescues and not is_readable(source.options, name):
        return ["its header can be read by Spark only, so nothing can be rescued: compress it as gz or bz2"]
    names = csv_header(source.options, folder, name)
    if names is None:
        return []  # Spark compares the header with the schema
    header = CsvHeader.from_names(names, columns)
    if not any(header.columns):
        found, separator = ", ".join(names), separator_of(source.options)
        found = found if len(found) <= MAX_SHOWN else f"{found[:MAX_SHOWN]}…"
        return [f"its header is {found!r}: split at {separator!r} (option sep), no field is a column of the schema"]
    shown = f"its header is {', '.join(names)}"
    problems = [f"{shown}, with {field!r} {count} times" for field, count in Counter(names).items() if count > 1]
    if source.missing_columns == "refuse":
        evolved = source.evolved_columns
        missing = [column.name for column in columns if column not in header.columns and column.name not in evolved]
        if missing:
            problems.append(f"{shown}, without {', '.join(missing)}")
    if source.on_new_column == "refuse":
        problems += [f"{shown}, and column {field!r} is not in the schema" for _, field in header.further()]
    return problems
