"""Which rows differ between two versions of a table: for a look, in memory, and so bounded.

Files that both versions have are not read. Of the others, rows that were only copied from one file to another cancel
each other out.
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

MOST_ROWS, MOST_BYTES = 200_000, 64 << 20
"""In the files that differ, of both versions together."""
_MAX_MEMORY_BYTES = 512 << 20
"""Their rows, once they are read: a file may be much smaller than what it holds."""
_BATCH = 16_384
_SIGN, _PLACE = "_tidegate_sign", "_tidegate_place"


@dataclass(frozen=True)
class RowPair:
    """One row before and after; None: there was none, or there is none any more."""

    before: Json | None
    after: Json | None


@dataclass(frozen=True)
class RowChanges:
    """How many rows differ, and some of them."""

    columns: list[str]
    keys: list[str]
    """The columns by which rows were matched. Without any, a row that has changed is one removed and one added."""
    added: int
    removed: int
    changed: int
    rows: list[RowPair]


def row_changes(before: Snapshot, after: Snapshot, keys: Sequence[str], limit: int) -> RowChanges:
    """Compare two versions of one table by key, and return up to `limit` of the rows that differ."""
    import pyarrow as pa

    gone, come = files_that_differ(before, after)
    _refuse_much(before, [*gone, *come])
    columns = list(dict.fromkeys(name for each in (after, before) for name in dataset(each).schema.names))
    matched = [name for key in keys for name in columns if name.lower() == key.lower()]
    matched = matched if len(matched) == len(keys) else []
    parts = [*_signed(before, gone, -1), *_signed(after, come, 1)]
    if not parts:
        return RowChanges(columns, matched, 0, 0, 0, [])
    rows = _comparable(pa.concat_tables(parts, promote_options="permissive"))
    return _as_text(rows, columns, matched, limit)


def _refuse_much(snapshot: Snapshot, files: Sequence[LiveFile]) -> None:
    rows, size = sum(file.rows or 0 for file in files), sum(file.size for file in files)
    if rows > MOST_ROWS or size > MOST_BYTES:
        raise _too_much(snapshot, f"{len(files):,} files with {rows:,} rows and {size / 1e6:,.0f} MB differ")


def _too_much(snapshot: Snapshot, what: str) -> Invalid:
    return Invalid(
        f"{what} in {snapshot.location.url}: too much to be compared here",
        expected=f"at most {MOST_ROWS:,} rows and {MOST_BYTES >> 20} MB in files that differ",
        help="compare checkpoints that are closer together, or read both elsewhere: `tidegate read … --checkpoint N`",
        reason="TOO_MUCH_CHANGED",
    )


def _signed(snapshot: Snapshot, files: Sequence[LiveFile], sign: int) -> Iterator[pa.Table]:
    """Yield the rows of files, with what each counts."""
    import pyarrow as pa

    size = 0
    schema = dataset(snapshot).schema
    for file in files:
        partition = {name: pa.scalar(value, schema.field(name).type) for name, value in file.partition.items()}
        with open_parquet(snapshot.location, file.path) as parquet:
            for batch in parquet.iter_batches(batch_size=_BATCH):
                size += batch.nbytes
                if size > _MAX_MEMORY_BYTES:
                    raise _too_much(snapshot, f"more than {_MAX_MEMORY_BYTES >> 20} MB of rows differ")
                table = pa.Table.from_batches([batch])
                for name, value in partition.items():
                    table = table.append_column(name, pa.repeat(value, table.num_rows))
                yield table.append_column(_SIGN, pa.repeat(pa.scalar(sign, pa.int64()), table.num_rows))


def _comparable(rows: pa.Table) -> pa.Table:
    """Turn lists and structs into texts: Arrow does not group by them."""
    import pyarrow as pa

    for place, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type) or pa.types.is_null(field.type):
            texts = [None if value is None else str(value) for value in python_values(rows[field.name])]
            rows = rows.set_column(place, field.name, pa.array(texts, pa.string()))
    return rows


def _as_text(rows: pa.Table, columns: list[str], keys: list[str], limit: int) -> RowChanges:
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [name for name in rows.column_names if name != _SIGN]
    net = rows.group_by(names).aggregate([(_SIGN, "sum")]).rename_columns([*names, _SIGN])
    net = net.filter(pc.not_equal(net[_SIGN], 0))
    net = net.append_column(_PLACE, pa.array(range(net.num_rows), pa.int64()))
    by = keys or names
    found = net.group_by(by).aggregate([(_SIGN, "min"), (_SIGN, "max"), (_PLACE, "list")])
    came, went = pc.greater(found[f"{_SIGN}_max"], 0), pc.less(found[f"{_SIGN}_min"], 0)
    added, removed = found.filter(pc.invert(went)), found.filter(pc.invert(came))
    if keys:
        counts = (added.num_rows, removed.num_rows, found.num_rows - added.num_rows - removed.num_rows)
        shown = found.sort_by([(name, "ascending") for name in keys]).slice(0, limit)
    else:
        counts = (pc.sum(added[f"{_SIGN}_max"]).as_py() or 0, -(pc.sum(removed[f"{_SIGN}_min"]).as_py() or 0), 0)
        half = max(limit // 2, limit - added.num_rows)  # of both, if there are both
        first = removed.slice(0, half)
        shown = pa.concat_tables([first, added.slice(0, limit - first.num_rows)])
    pairs = [pair for places in shown[f"{_PLACE}_list"].to_pylist() for pair in _pairs(python_rows(net.take(places)))]
    changes = [RowPair(_row(old, columns), _row(new, columns)) for old, new in pairs[:limit]]
    return RowChanges(columns, keys, *counts, changes)


def _pairs(rows: Sequence[Json]) -> Iterator[tuple[Json | None, Json | None]]:
    old = [row for row in rows for _ in range(-row[_SIGN])]
    new = [row for row in rows for _ in range(row[_SIGN])]
    yield from zip_longest(old, new)


def _row(row: Json | None, columns: Sequence[str]) -> Json | None:
    return None if row is None else {name: row.get(name) for name in columns}
