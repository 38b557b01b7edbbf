"""Check files before Spark reads them: the headers of CSV files, the columns of Parquet files.

Spark would report the same, but later, for one file only, and as a Java exception. It would fill missing columns with
nulls.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import re
from typing import IO, TYPE_CHECKING, Any, Final

from tidegate.connectors.ddl import Column, parse_ddl
from tidegate.connectors.files.folder import Folder
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid

if TYPE_CHECKING:
    from tidegate.connectors.files.source import Files

__all__ = ["check_contents"]

SHOWN: Final = 20
HEADER_BYTES: Final = 256 << 10

# By the name of a Parquet column's Arrow type: the Spark types that it can be read as without loss.
_FITS: Final[dict[str, tuple[str, ...]]] = {
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
    """Raise Invalid unless every file has the columns of the schema, as far as this shows without reading its rows.
    Return the number of rows, if the files record it."""
    columns = parse_ddl(source.schema)
    rows: int | None = None
    if source.format == "parquet":
        rows, problems = _parquet_contents(source, folder, names, columns)
    elif source.format == "csv" and _option(source, "header").lower() == "true":
        problems = [
            f"{name!r}: {problem}" for name in names for problem in _header_problems(source, folder, name, columns)
        ]
    else:
        return None
    if problems:
        more = f"\n  … and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise Invalid(
            f"source {context.source!r}: files in {folder.url} do not fit the schema:"
            + "".join(f"\n  {problem}" for problem in problems[:SHOWN])
            + more,
            expected=f"columns {source.schema}",
            help="correct the schema of Files(…), or the files"
            + (
                "; columns that older files lack are read as null with missing_columns='null'"
                if source.format == "parquet"
                else "; the columns of a CSV file must be in the order of the schema"
            ),
            reason="SCHEMA_MISMATCH",
        )
    return rows


def _parquet_contents(source: Files, folder: Folder, names: list[str], columns: list[Column]) -> tuple[int, list[str]]:
    """Return how many rows the files have, and all problems with them."""
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
            problems.append(f"column {column.name!r} is there {len(types)} times")
        elif not _fits(types[0], column.type):
            problems.append(f"column {column.name!r} is {types[0]}, which Spark cannot read as {column.type}")
    return problems


def _fits(arrow: Any, spark: str) -> bool:
    """Return whether Spark reads an Arrow type (of a Parquet file's footer) as `spark` without loss. Of nested types
    only the outer type is compared."""
    text = str(arrow)
    if match := _DECIMAL.fullmatch(text):
        declared = _DECIMAL.fullmatch(spark)
        if declared is None:
            return False
        precision, scale = int(match[1]), int(match[2])
        declared_precision, declared_scale = int(declared[1]), int(declared[2])
        return declared_scale >= scale and declared_precision - declared_scale >= precision - scale
    if text.startswith("timestamp["):
        return not text.startswith("timestamp[ns") and (
            spark == "timestamp" or (spark == "timestamp_ntz" and "tz=" not in text)
        )
    if text.startswith("dictionary<"):
        return _fits(arrow.value_type, spark)
    for prefixes, kind in (
        (("list<", "large_list<", "fixed_size_list<"), "array<"),
        (("struct<",), "struct<"),
        (("map<",), "map<"),
    ):
        if text.startswith(prefixes):
            return spark.startswith(kind)
    if spark.startswith(("char(", "varchar(")):
        return "string" in text
    if text in ("int32", "int64") and (match := _DECIMAL.fullmatch(spark)):
        return int(match[1]) - int(match[2]) >= (10 if text == "int32" else 20)
    return spark in _FITS.get(text, ())


def _header_problems(source: Files, folder: Folder, name: str, columns: list[Column]) -> list[str]:
    """Apply Spark's own rule: the header has the schema's names in the same order, ignoring upper and lower case."""
    if _option(source, "enforceSchema").lower() == "true":
        return []
    header = _header(source, folder, name)
    if header is None:
        return []
    expected = [column.name for column in columns]
    if [name.strip().lower() for name in header] == [name.lower() for name in expected]:
        return []
    return [f"its header is {', '.join(header)}"]


def _header(source: Files, folder: Folder, name: str) -> list[str] | None:
    """Return the fields of the first line that is not empty. None: the file is empty, or Python cannot decode it."""
    encoding = _option(source, "encoding") or _option(source, "charset") or "utf-8"
    try:
        codecs.lookup(encoding)
        with folder.open(name) as stream:
            opener: Any = {"gz": gzip.open, "bz2": bz2.open}.get(name.rpartition(".")[2], lambda s: s)
            data: IO[bytes] = opener(stream)
            text = data.read(HEADER_BYTES).decode(encoding, errors="replace").removeprefix("\ufeff")
    except (LookupError, OSError, EOFError):
        return None
    comment = _option(source, "comment")
    lines = [line for line in text.splitlines() if line.strip() and not (comment and line.startswith(comment))]
    if not lines:
        return None
    separator = (_option(source, "sep") or _option(source, "delimiter") or ",").replace("\\t", "\t")
    if len(separator) != 1:
        return lines[0].split(separator)
    return next(csv.reader(lines, delimiter=separator, quotechar=_option(source, "quote") or '"'))


def _option(source: Files, name: str) -> str:
    return next((str(value) for key, value in source.options.items() if key.lower() == name.lower()), "")
