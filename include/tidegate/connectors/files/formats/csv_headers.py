"""The headers of CSV files: which column of the schema each field of a record is.

Fields are matched by name. Upper and lower case do not matter, which is Spark's own rule; but if a header has two names
that differ in nothing else, the one that is spelled as in the schema is the column.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from tidegate.connectors.files.folder import Folder
from tidegate.connectors.schema.ddl import Column

__all__ = ["CsvHeader", "csv_header", "group_files_per_header", "has_header", "is_readable", "separator_of"]

HEADER_BYTES: Final = 1 << 20
"""How much of a file may be its header."""

_UNREADABLE_SUFFIXES: Final = ("deflate", "lz4", "snappy", "zst")
"""Suffixes of files that Spark decompresses, and Python does not."""


@dataclass(frozen=True)
class CsvHeader:
    """The fields of a file's records, in order, each with its column of the schema, if it has one."""

    names: tuple[str, ...]
    columns: tuple[Column | None, ...]

    @staticmethod
    def from_names(names: Sequence[str], columns: Sequence[Column]) -> CsvHeader:
        """Match the names of a header with the columns of the schema."""
        matched: list[Column | None] = [None] * len(names)
        for is_same in (str.__eq__, lambda one, other: one.lower() == other.lower()):
            for column in columns:
                if column in matched:
                    continue
                for position, name in enumerate(names):
                    if matched[position] is None and is_same(name, column.name):
                        matched[position] = column
                        break
        return CsvHeader(tuple(names), tuple(matched))

    @staticmethod
    def by_position(columns: Sequence[Column]) -> CsvHeader:
        """Return the fields of a file without a header, or whose header does not count."""
        return CsvHeader(tuple(column.name for column in columns), tuple(columns))

    def further(self) -> list[tuple[int, str]]:
        """Return the positions and names of fields that are no column of the schema."""
        pairs = enumerate(zip(self.names, self.columns, strict=True))
        return [(position, name) for position, (name, column) in pairs if column is None]


def has_header(options: Mapping[str, Any]) -> bool:
    """Return whether the names in a file's first line decide which column a field is."""
    return _option(options, "header").lower() == "true" and _option(options, "enforceSchema").lower() != "true"


def is_readable(options: Mapping[str, Any], name: str) -> bool:
    """Return whether Python can read the header of this file, as Spark can."""
    try:
        codecs.lookup(_encoding(options))
    except LookupError:
        return False
    return name.rpartition(".")[2] not in _UNREADABLE_SUFFIXES


def separator_of(options: Mapping[str, Any]) -> str:
    """Return what separates the fields of a record."""
    return (_option(options, "sep") or _option(options, "delimiter") or ",").replace("\\t", "\t")


def group_files_per_header(
    options: Mapping[str, Any], folder: Folder, names: Sequence[str], columns: Sequence[Column]
) -> dict[CsvHeader, list[str]]:
    """Return the names of files with the same fields, by these."""
    files: dict[CsvHeader, list[str]] = {}
    for name in names:
        header = csv_header(options, folder, name) if has_header(options) else None
        fields = CsvHeader.by_position(columns) if header is None else CsvHeader.from_names(header, columns)
        files.setdefault(fields, []).append(name)
    return files


def csv_header(options: Mapping[str, Any], folder: Folder, name: str) -> list[str] | None:
    """Return the fields of the first line that is not empty, or None if there is none or Python cannot read it."""
    if not is_readable(options, name):
        return None
    try:
        with folder.open(name) as stream:
            data: IO[bytes] = _decompressed(stream, name)
            text = data.read(HEADER_BYTES).decode(_encoding(options), errors="replace").removeprefix("\ufeff")
    except (OSError, EOFError):
        return None
    comment = _option(options, "comment")
    lines = [line for line in text.splitlines() if line.strip()]
    if comment:
        lines = [line for line in lines if not line.startswith(comment)]
    if not lines:
        return None
    separator = separator_of(options)
    if len(separator) != 1:
        fields = lines[0].split(separator)
    else:
        fields = next(csv.reader(lines, delimiter=separator, quotechar=_option(options, "quote") or '"'))
    return [field.strip() for field in fields]


def _decompressed(stream: Any, name: str) -> Any:
    suffix = name.rpartition(".")[2]
    if suffix == "gz":
        return gzip.open(stream)
    if suffix == "bz2":
        return bz2.open(stream)
    return stream


def _encoding(options: Mapping[str, Any]) -> str:
    return _option(options, "encoding") or _option(options, "charset") or "utf-8"


def _option(options: Mapping[str, Any], name: str) -> str:
    """Return an option as text, or "". Spark ignores case in the names of options."""
    for key, value in options.items():
        if key.lower() == name.lower():
            return str(value)
    return ""
