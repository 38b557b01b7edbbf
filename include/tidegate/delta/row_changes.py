"""Compares the rows of two versions of a table, for display. Works in memory, so the size is limited.

Files that both versions have are not read. In the other files, rows that were only copied from one file to another
cancel each other out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from tidegate.delta.as_python import python_rows, python_values
from tidegate.delta.dataset import dataset
from tidegate.delta.files.footers import open_parquet
from tidegate.delta.log.active_files import LiveFile, files_that_differ
from tidegate.delta.log.snapshot import Snapshot
from tidegate.errors import Invalid
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowChanges", "RowPair", "row_changes"]

MAX_ROWS, MAX_BYTES = 200_000, 64 << 20
"""Limits for the files that differ, of both versions together."""
_MAX_MEMORY_BYTES = 512 << 20
"""Limit for their rows in memory: a file may be much smaller than its uncompressed content."""
_BATCH = 16_384
_SIGN, _INDEX = "_tidegate_sign", "_tidegate_place"


@dataclass(frozen=True)
class RowPair:
    """A row before and after. None on either side if the row was added or removed."""

    before: Json | None
    after: Json | None


@dataclass(frozen=True)
class RowChanges:
    """The numbers of rows that differ, and some of these rows."""

    columns: list[str]
    keys: list[str]
    """The columns by which rows were matched. Without keys, a changed row counts as one removed and one added."""
    added: int
    removed: int
    changed: int
    rows: list[RowPair]


def row_changes(before: Snapshot, after: Snapshot, keys: Sequence[str], limit: int) -> RowChanges:
    """Compare two versions of one table by key, and return up to `limit` of the rows that differ."""
    import pyarrow as pa

    removed_files, added_files = files_that_differ(before, after)
    _refuse_too_much(before, [*removed_files, *added_files])
    columns = list(dict.fromkeys([*dataset(after).schema.names, *dataset(before).schema.names]))
    key_columns: list[str] = []
    for key in keys:
        for name in columns:
            if name.lower() == key.lower():
                key_columns.append(name)
    if len(key_columns) != len(keys):
        key_columns = []
    parts = [*_signed(before, removed_files, -1), *_signed(after, added_files, 1)]
    if not parts:
        return RowChanges(columns, key_columns, 0, 0, 0, [])
    rows = _comparable(pa.concat_tables(parts, promote_options="permissive"))
    return _compare(rows, columns, key_columns, limit)


def _refuse_too_much(snapshot: Snapshot, files: Sequence[LiveFile]) -> None:
    rows, size = sum(file.rows or 0 for file in files), sum(file.size for file in files)
    if rows > MAX_ROWS or size > MAX_BYTES:
        raise _too_much_error(snapshot, f"{len(files):,} files with {rows:,} rows and {size / 1e6:,.0f} MB differ")


def _too_much_error(snapshot: Snapshot, problem: str) -> Invalid:
    return Invalid(
        f"{problem} in {snapshot.location.url}: too much to be compared here",
        expected=f"at most {MAX_ROWS:,} rows and {MAX_BYTES >> 20} MB in files that differ",
        help="compare checkpoints that are closer together, or read both: `tidegate read … --checkpoint N`",
        reason="TOO_MUCH_CHANGED",
    )


def _signed(snapshot: Snapshot, files: Sequence[LiveFile], sign: int) -> Iterator[pa.Table]:
    """Yield the rows of files, with a column that holds `sign`."""
    import pyarrow as pa

    size = 0
    schema = dataset(snapshot).schema
    for file in files:
        partition = {}
        for name, value in file.partition.items():
            partition[name] = pa.scalar(value, schema.field(name).type)
        with open_parquet(snapshot.location, file.path) as parquet:
            for batch in parquet.iter_batches(batch_size=_BATCH):
                size += batch.nbytes
                if size > _MAX_MEMORY_BYTES:
                    raise _too_much_error(snapshot, f"more than {_MAX_MEMORY_BYTES >> 20} MB of rows differ")
                table = pa.Table.from_batches([batch])
                for name, value in partition.items():
                    table = table.append_column(name, pa.repeat(value, table.num_rows))
                yield table.append_column(_SIGN, pa.repeat(pa.scalar(sign, pa.int64()), table.num_rows))


def _comparable(rows: pa.Table) -> pa.Table:
    """Convert lists and structs to texts, because Arrow cannot group by them."""
    import pyarrow as pa

    for index, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type) or pa.types.is_null(field.type):
            texts = [None if value is None else str(value) for value in python_values(rows[field.name])]
            rows = rows.set_column(index, field.name, pa.array(texts, pa.string()))
    return rows


def _compare(rows: pa.Table, columns: list[str], keys: list[str], limit: int) -> RowChanges:
    """Return the net changes of rows with a sign, matched by key if the table has keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [name for name in rows.column_names if name != _SIGN]
    net = rows.group_by(names).aggregate([(_SIGN, "sum")]).rename_columns([*names, _SIGN])
    net = net.filter(pc.not_equal(net[_SIGN], 0))
    net = net.append_column(_INDEX, pa.array(range(net.num_rows), pa.int64()))
    groups = net.group_by(keys or names).aggregate([(_SIGN, "min"), (_SIGN, "max"), (_INDEX, "list")])
    has_new, has_old = pc.greater(groups[f"{_SIGN}_max"], 0), pc.less(groups[f"{_SIGN}_min"], 0)
    added, removed = groups.filter(pc.invert(has_old)), groups.filter(pc.invert(has_new))
    if keys:
        counts = (added.num_rows, removed.num_rows, groups.num_rows - added.num_rows - removed.num_rows)
        shown = groups.sort_by([(name, "ascending") for name in keys]).slice(0, limit)
    else:
        counts = (pc.sum(added[f"{_SIGN}_max"]).as_py() or 0, -(pc.sum(removed[f"{_SIGN}_min"]).as_py() or 0), 0)
        half = max(limit // 2, limit - added.num_rows)  # show some removed and some added rows
        shown_removed = removed.slice(0, half)
        shown = pa.concat_tables([shown_removed, added.slice(0, limit - shown_removed.num_rows)])
    changes: list[RowPair] = []
    for indexes in shown[f"{_INDEX}_list"].to_pylist():
        for old, new in _pairs(python_rows(net.take(indexes))):
            changes.append(RowPair(_row(old, columns), _row(new, columns)))
    return RowChanges(columns, keys, *counts, changes[:limit])


def _pairs(rows: Sequence[Json]) -> Iterator[tuple[Json | None, Json | None]]:
    """Pair the removed and the added rows of a group. A row with the sign n counts n times."""
    old: list[Json] = []
    new: list[Json] = []
    for row in rows:
        old += [row] * -row[_SIGN]  # empty for a positive sign
        new += [row] * row[_SIGN]
    yield from zip_longest(old, new)


def _row(row: Json | None, columns: Sequence[str]) -> Json | None:
    if row is None:
        return None
    return {name: row.get(name) for name in columns}
