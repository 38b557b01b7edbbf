"""The files of a version, and what the log says about each, through delta-rs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
"""Delta's statistics keep only milliseconds of timestamps: the real maximum may be this much greater."""


@dataclass(frozen=True)
class LiveFile:
    """One data file of a version. Values have Arrow's types; a value that the log does not have is None."""

    path: str
    size: int
    rows: int | None
    partition: Json
    low: Json
    high: Json
    nulls: Json

    def staged(self) -> StagedFile:
        """Return the file in the form in which it can be committed again, with its statistics."""
        stats: Json = {"numRecords": self.rows} if self.rows is not None else {}
        if stats:
            stats |= {"minValues": _known(self.low), "maxValues": _known(self.high)}
            stats["nullCount"] = _known(self.nulls)
        return StagedFile(
            path=self.path,
            size=self.size,
            rows=self.rows or 0,
            partition=self.partition_texts(),
            stats=msgspec.json.encode(stats).decode() if stats else "",
        )

    def partition_texts(self) -> dict[str, str | None]:
        """Return the partition values in the log's form."""
        return {name: None if value is None else _text(value) for name, value in self.partition.items()}


def paths_outside(snapshot: Snapshot, column: str, low: datetime | date, high: datetime | date) -> pa.Array:
    """Return the paths of the files in which, by the log, no value of the column is in low <= value < high.

    Paths are in the log's form. There may be very many, so they are compared in bulk.
    """
    import pyarrow as pa

    table = pa.table(snapshot.handle.get_add_actions(flatten=False))
    return table.filter(_is_outside(table, column, low, high))["path"].combine_chunks()


def _is_outside(table: pa.Table, column: str, low: datetime | date, high: datetime | date) -> pa.Array:
    """Return a mask of the files in which the log rules out such values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if (values := _of_column(table, "partition", column)) is not None:
        inside = pc.and_(pc.greater_equal(values, _bound(low, values)), pc.less(values, _bound(high, values)))
        return pc.invert(pc.fill_null(inside, False))
    smallest, greatest = _of_column(table, "min", column), _of_column(table, "max", column)
    if smallest is None or greatest is None:
        return pa.array([False] * table.num_rows, pa.bool_())
    if pa.types.is_timestamp(greatest.type):
        greatest = pc.add_checked(greatest, pa.scalar(_TRUNCATED, pa.duration(greatest.type.unit)))
    outside = pc.or_(pc.greater_equal(smallest, _bound(high, smallest)), pc.less(greatest, _bound(low, greatest)))
    return pc.fill_null(outside, False)


def _of_column(table: pa.Table, part: str, column: str) -> pa.ChunkedArray | None:
    """Return a column's values in one of the log's structs; None: the log has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if part not in table.column_names or not pa.types.is_struct(table[part].type):
        return None
    names = [field.name for field in table[part].type]
    return pc.struct_field(table[part], [names.index(column)]) if column in names else None


def _bound(moment: datetime | date, values: pa.ChunkedArray) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(moment, values.type)


def live_files(
    snapshot: Snapshot, containing: str = "", within: tuple[str, datetime | date, datetime | date] | None = None
) -> list[LiveFile]:
    """Return every file of the version.

    containing: those whose path contains this text (plain letters, as in the log). within: a column and two bounds;
    those that the log does not rule out to have a value low <= value < high.
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
    """Return every file of the version by its path, without statistics of its columns: of a table without deletion
    vectors, such as all of our own.

    After commits that this process has made or followed they are known without opening the table.
    """
    if snapshot.listed:
        return snapshot.listed[0]
    files = (DataFile(each.path, each.size, each.partition_texts(), rows=each.rows) for each in live_files(snapshot))
    listed = {file.path: file for file in files}
    if len(listed) <= MAX_LISTED_FILES:
        snapshot.listed.append(listed)
    return listed


def files_that_differ(before: Snapshot, after: Snapshot) -> tuple[list[LiveFile], list[LiveFile]]:
    """Return the files of a table's version that a later one has no more, and those that it has in addition."""
    import pyarrow as pa
    import pyarrow.compute as pc

    old, new = (pa.table(each.handle.get_add_actions(flatten=False)) for each in (before, after))
    gone = old.filter(pc.invert(pc.is_in(old["path"], new["path"].combine_chunks())))
    come = new.filter(pc.invert(pc.is_in(new["path"], old["path"].combine_chunks())))
    return _files(gone), _files(come)


def _files(table: pa.Table) -> list[LiveFile]:
    return [
        LiveFile(
            path=unquote(row["path"]),  # The log's form, in which every path is percent-encoded once.
            size=row["size_bytes"],
            rows=row["num_records"],
            partition=row.get("partition") or {},
            low=row.get("min") or {},
            high=row.get("max") or {},
            nulls=row.get("null_count") or {},
        )
        for row in table.to_pylist()
    ]


def _known(values: Json) -> Json:
    """Return statistics in the log's form, without those that are unknown."""
    return dict(_known_items(values))


def _known_items(values: Json) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            if inner := _known(value):
                yield name, inner
        elif isinstance(value, Decimal):
            yield name, msgspec.Raw(decimal_text(value).encode())
        elif isinstance(value, float) and not math.isfinite(value):
            yield name, float_text(value)
        elif isinstance(value, date | str | int | float) and not isinstance(value, bool):
            yield name, _text(value) if isinstance(value, date) else value


def _text(value: Any) -> str:
    """Return a value as the log writes it: timestamps in UTC, or without any zone."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")[:26] + ("Z" if value.tzinfo else "")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, float):
        return float_text(value)
    return value.isoformat() if isinstance(value, date) else str(value)
