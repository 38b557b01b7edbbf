"""Checks files before Spark reads them: the headers of CSV files, and the columns of Parquet files.

Spark would only report the first problem, later and as a Java exception, and would fill missing columns with nulls.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
from typing import IO, TYPE_CHECKING, Any, Final

from tidegate.connectors.files.folder import Folder
from tidegate.connectors.files.formats.parquet_types import fits
from tidegate.connectors.schema.ddl import Column, parse_ddl
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid

if TYPE_CHECKING:
    from tidegate.connectors.files.source import Files

__all__ = ["check_contents"]

MAX_PROBLEMS: Final = 20
HEADER_BYTES: Final = 256 << 10


def check_contents(source: Files, folder: Folder, names: list[str], context: SourceContext) -> int | None:
    """Raise Invalid if a file lacks the columns of the schema, as far as that shows without reading rows.

    Return the number of rows if the files record it, else None.
    """
    columns = parse_ddl(source.schema)
    rows: int | None = None
    if source.format == "parquet":
        rows, problems = _parquet_contents(source, folder, names, columns)
    elif source.format == "csv" and _option(source, "header").lower() == "true":
        problems = []
        for name in names:
            problem = _header_problem(source, folder, name, columns)
            if problem:
                problems.append(f"{name!r}: {problem}")
    else:
        return None
    if not problems:
        return rows
    lines = problems[:MAX_PROBLEMS]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"… and {len(problems) - MAX_PROBLEMS} more")
    if source.format == "parquet":
        hint = "columns that older files lack are read as null with missing_columns='null'"
    else:
        hint = "the columns of a CSV file must be in the order of the schema"
    raise Invalid(
        f"source {context.source!r}: files in {folder.url} do not fit the schema:"
        + "".join(f"\n  {line}" for line in lines),
        expected=f"columns {source.schema}",
        help=f"correct the schema of Files(…), or the files; {hint}",
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
        elif not fits(types[0], column.type):
            problems.append(f"column {column.name!r} is {types[0]}, which Spark cannot read as {column.type}")
    return problems


def _header_problem(source: Files, folder: Folder, name: str, columns: list[Column]) -> str:
    """Return "" if the header has the schema's names in the same order, ignoring case, which is Spark's own rule."""
    if _option(source, "enforceSchema").lower() == "true":
        return ""
    header = _header(source, folder, name)
    if header is None or [name.strip().lower() for name in header] == [column.name.lower() for column in columns]:
        return ""
    return f"its header is {', '.join(header)}"


def _header(source: Files, folder: Folder, name: str) -> list[str] | None:
    """Return the fields of the first line that is not empty, or None if there is none or Python cannot decode it."""
    encoding = _option(source, "encoding") or _option(source, "charset") or "utf-8"
    try:
        codecs.lookup(encoding)
        with folder.open(name) as stream:
            data: IO[bytes] = _decompressed(stream, name)
            text = data.read(HEADER_BYTES).decode(encoding, errors="replace").removeprefix("\ufeff")
    except (LookupError, OSError, EOFError):
        return None
    comment = _option(source, "comment")
    lines = [line for line in text.splitlines() if line.strip()]
    if comment:
        lines = [line for line in lines if not line.startswith(comment)]
    if not lines:
        return None
    separator = (_option(source, "sep") or _option(source, "delimiter") or ",").replace("\\t", "\t")
    if len(separator) != 1:
        return lines[0].split(separator)
    return next(csv.reader(lines, delimiter=separator, quotechar=_option(source, "quote") or '"'))


def _decompressed(stream: Any, name: str) -> Any:
    suffix = name.rpartition(".")[2]
    if suffix == "gz":
        return gzip.open(stream)
    if suffix == "bz2":
        return bz2.open(stream)
    return stream


def _option(source: Files, name: str) -> str:
    """Return an option as text, or "". Spark ignores case in the names of options."""
    for key, value in source.options.items():
        if key.lower() == name.lower():
            return str(value)
    return ""
