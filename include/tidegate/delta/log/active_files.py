"""The live files of a version with their statistics, through delta-rs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from tidegate.delta.files.footers import StagedFile
from tidegate.delta.files.stats import decimal_text, float_text
from tidegate.delta.log.files import MAX_LISTED_FILES, DataFile
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.delta.log.snapshot import Snapshot

__all__ = [
    "LiveFile",
    "data_files",
    "files_that_differ",
    "live_files",
    "paths_outside",
]

_TRUNCATED = timedelta(milliseconds=1)
"""Delta's statistics truncate timestamps to milliseconds: the real maximum may be greater by this."""


@dataclass(frozen=True)
class LiveFile:
    """A data file of a version. Values have Arrow's types, and are None if the log lacks them."""

    path: str
    size: int
    rows: int | None
    partition: Json
    low: Json
    high: Json
    nulls: Json

    def staged(self) -> StagedFile:
        """Return the file in the form in which it can be committed again, with its statistics."""
        stats = ""
        if self.rows is not None:
            fields = {
                "numRecords": self.rows,
                "minValues": _log_values(self.low),
                "maxValues": _log_values(self.high),
                "nullCount": _log_values(self.nulls),
            }
            stats = msgspec.json.encode(fields).decode()
        return StagedFile(
            path=self.path,
            size=self.size,
            rows=self.rows or 0,
            partition=self.partition_texts(),
            stats=stats,
        )

    def partition_texts(self) -> dict[str, str | None]:
        """Return the partition values in the log's form."""
        return {name: None if value is None else _text(value) for name, value in self.partition.items()}


def paths_outside(snapshot: Snapshot, column: str, low: datetime | date, high: datetime | date) -> pa.Array:
    """Return the paths, in the log's form, of the files that by the log have no value with low <= value < high.

    An Arrow array, because a table may have very many files.
    """
    import pyarrow as pa

    table = pa.table(snapshot.handle.get_add_actions(flatten=False))
    return table.filter(_is_outside(table, column, low, high))["path"].combine_chunks()


def _is_outside(table: pa.Table, column: str, low: datetime | date, high: datetime | date) -> pa.Array:
    """Return a mask of the files for which the log rules out such values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _column_of(table, "partition", column)
    if values is not None:
        inside = pc.and_(pc.greater_equal(values, _bound(low, values)), pc.less(values, _bound(high, values)))
        return pc.invert(pc.fill_null(inside, False))
    smallest, greatest = _column_of(table, "min", column), _column_of(table, "max", column)
    if smallest is None or greatest is None:
        return pa.array([False] * table.num_rows, pa.bool_())
    if pa.types.is_timestamp(greatest.type):
        greatest = pc.add_checked(greatest, pa.scalar(_TRUNCATED, pa.duration(greatest.type.unit)))
    outside = pc.or_(pc.greater_equal(smallest, _bound(high, smallest)), pc.less(greatest, _bound(low, greatest)))
    return pc.fill_null(outside, False)


def _column_of(table: pa.Table, part: str, column: str) -> pa.ChunkedArray | None:
    """Return a column's values in one of the log's structs, or None if the log has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if part not in table.column_names or not pa.types.is_struct(table[part].type):
        return None
    names = [field.name for field in table[part].type]
    if column not in names:
        return None
    return pc.struct_field(table[part], [names.index(column)])


def _bound(moment: datetime | date, values: pa.ChunkedArray) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(moment, values.type)


def live_files(
    snapshot: Snapshot, containing: str = "", within: tuple[str, datetime | date, datetime | date] | None = None
) -> list[LiveFile]:
    """Return the files of a version.

    containing: only files whose path contains this text (plain letters, as in the log).
    within: a column and two bounds. Only files that by the log may have a value with low <= value < high.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table(snapshot.handle.get_add_actions(flatten=False))
    if containing:
        table = table.filter(pc.match_substring(table["path"], containing))
    if within is not None:
        table = table.filter(pc.invert(_is_outside(table, *within)))
    return _files(table)


def data_files(snapshot: Snapshot) -> Mapping[str, DataFile]:
    """Return the files of a version by path, without column statistics. Only for tables without deletion vectors, such
    as all of tidegate's own.

    If this process has followed the table's commits, this needs no request.
    """
    if snapshot.listed:
        return snapshot.listed[0]
    listed = {}
    for file in live_files(snapshot):
        listed[file.path] = DataFile(file.path, file.size, file.partition_texts(), rows=file.rows)
    if len(listed) <= MAX_LISTED_FILES:
        snapshot.listed.append(listed)
    return listed


def files_that_differ(before: Snapshot, after: Snapshot) -> tuple[list[LiveFile], list[LiveFile]]:
    """Return the files that a table has only in the first, and only in the second version."""
    import pyarrow as pa
    import pyarrow.compute as pc

    old = pa.table(before.handle.get_add_actions(flatten=False))
    new = pa.table(after.handle.get_add_actions(flatten=False))
    removed = old.filter(pc.invert(pc.is_in(old["path"], new["path"].combine_chunks())))
    added = new.filter(pc.invert(pc.is_in(new["path"], old["path"].combine_chunks())))
    return _files(removed), _files(added)


def _files(table: pa.Table) -> list[LiveFile]:
    return [
        LiveFile(
            path=unquote(row["path"]),  # in the log, every path is percent-encoded once
            size=row["size_bytes"],
            rows=row["num_records"],
            partition=row.get("partition") or {},
            low=row.get("min") or {},
            high=row.get("max") or {},
            nulls=row.get("null_count") or {},
        )
        for row in table.to_pylist()
    ]


def _log_values(values: Json) -> Json:
    """Return statistics in the log's form, without unknown values."""
    result: Json = {}
    for name, value in values.items():
        if isinstance(value, dict):
            inner = _log_values(value)
            if inner:
                result[name] = inner
        elif isinstance(value, Decimal):
            result[name] = msgspec.Raw(decimal_text(value).encode())
        elif isinstance(value, float) and not math.isfinite(value):
            result[name] = float_text(value)
        elif isinstance(value, date):
            result[name] = _text(value)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            result[name] = value
    return result


def _text(value: Any) -> str:
    """Return a value as text in the log's form. Timestamps are in UTC, or without a zone."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")[:26] + ("Z" if value.tzinfo else "")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, date):
        return value.isoformat()
    return str(value)
