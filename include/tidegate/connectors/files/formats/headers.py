"""Checks files before Spark reads them: the headers of CSV files, and the columns of Parquet files.

Spark would only report the first problem, later and as a Java exception, and would fill missing columns with nulls.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import re
from typing import IO, TYPE_CHECKING, Any, Final

from tidegate.connectors.files.folder import Folder
from tidegate.connectors.schema.ddl import Column, parse_ddl
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid

if TYPE_CHECKING:
    from tidegate.connectors.files.source import Files

__all__ = ["check_contents"]

MAX_PROBLEMS: Final = 20
HEADER_BYTES: Final = 256 << 10

# The Spark types as which a column of a Parquet file can be read without loss, by the name of its Arrow type.
_LOSSLESS_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "bool": ("boolean",),
    "int8": ("tinyint", "smallint", "int", "bigint", "double"),
    "int16": ("smallint", "int", "bigint", "double"),
    "int32": ("int", "bigint", "double"),
    "int64": ("bigint",),
    "uint8": ("smallint", "int", "bigint"),
    "uint16": ("int", "bigint"),
    "uint32": ("bigint",),
    "uint64": ("decimal(20,0)",),
    "float": ("float", "double"),
    "double": ("double",),
    "string": ("string", "binary"),
    "large_string": ("string", "binary"),
    "string_view": ("string", "binary"),
    "binary": ("binary", "string"),
    "large_binary": ("binary", "string"),
    "date32[day]": ("date", "timestamp_ntz"),
    "null": (),
}
_DECIMAL: Final = re.compile(r"decimal(?:128|256|32|64)?\((\d+),\s*(-?\d+)\)")


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
    types_by_name: dict[str, list[Any]] = {}
    for field in schema:
        types_by_name.setdefault(field.name.lower(), []).append(field.type)
    problems = []
    for column in columns:
        types = types_by_name.get(column.name.lower(), [])
        if not types:
            if source.missing_columns == "refuse":
                problems.append(f"column {column.name!r} is missing (it has {', '.join(schema.names)})")
        elif len(types) > 1:
            problems.append(f"column {column.name!r} occurs {len(types)} times")
        elif not _fits(types[0], column.type):
            problems.append(f"column {column.name!r} is {types[0]}, which Spark cannot read as {column.type}")
    return problems


def _fits(arrow: Any, spark: str) -> bool:
    """Return whether Spark reads an Arrow type, from a Parquet footer, as the type `spark` without loss.

    Only the outermost part of nested types is compared.
    """
    text = str(arrow)
    match = _DECIMAL.fullmatch(text)
    if match:
        declared = _DECIMAL.fullmatch(spark)
        if declared is None:
            return False
        precision, scale = int(match[1]), int(match[2])
        declared_precision, declared_scale = int(declared[1]), int(declared[2])
        return declared_scale >= scale and declared_precision - declared_scale >= precision - scale
    if text.startswith("timestamp["):
        if text.startswith("timestamp[ns"):
            return False
        return spark == "timestamp" or (spark == "timestamp_ntz" and "tz=" not in text)
    if text.startswith("dictionary<"):
        return _fits(arrow.value_type, spark)
    if text.startswith(("list<", "large_list<", "fixed_size_list<")):
        return spark.startswith("array<")
    for prefix in ("struct<", "map<"):
        if text.startswith(prefix):
            return spark.startswith(prefix)
    if spark.startswith(("char(", "varchar(")):
        return "string" in text
    match = _DECIMAL.fullmatch(spark)
    if match and text in ("int32", "int64"):
        return int(match[1]) - int(match[2]) >= (10 if text == "int32" else 20)
    return spark in _LOSSLESS_TYPES.get(text, ())


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
