"""Reads and writes the runs of a state in a Python worker of Spark: Parquet files, sorted by key, by Arrow.

merged    several files    →  the newest row of each of their keys
Writer    sorted rows      →  a new file
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.delta import WrittenFile
from tidegate.delta.arrow_types import dictionary_columns
from tidegate.delta.files.access import create_path, open_path
from tidegate.records.place import is_url
from tidegate.state.arrow.keys_as_numbers import codes_of, is_whole, order, order_and_firsts, order_by
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, TOUCHED

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "SortedFile",
    "StateLayout",
    "Writer",
    "merged",
    "newest",
    "only_value",
    "opened",
    "read",
    "sorted_chunks",
]


GROUP_ROWS = 1 << 17
"""The number of rows in a row group, the unit that a reader skips or loads into memory."""


@dataclass(frozen=True)
class SortedFile:
    """One file of a state."""

    path: str
    groups: tuple[int, int]
    """The least and the greatest key group in it."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The options of its object store, with credentials."""

    def within(self, groups: range) -> bool:
        """Return whether it only has rows of these groups."""
        return self.groups[0] >= groups.start and self.groups[1] < groups.stop


@dataclass(frozen=True)
class StateLayout:
    """The columns that all files of a state share."""

    keys: tuple[str, ...]
    schema: pa.Schema
    """Keys, values and tidegate's columns, in this order."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The options of the files' object store, with credentials."""

    @property
    def values(self) -> list[str]:
        """The columns that are neither keys nor tidegate's."""
        return [n for n in self.schema.names if n not in (*self.keys, GROUP, CHECKPOINT, DELETED, TOUCHED)]

    def table(self, columns: Mapping[str, Any], rows: int) -> pa.Table:
        """Return the rows of a file. columns: each an array, or the value of all rows."""
        import pyarrow as pa

        def column(field: pa.Field) -> Any:
            value = columns[field.name]
            if isinstance(value, pa.Array | pa.ChunkedArray):
                return value.cast(field.type)
            return pa.repeat(pa.scalar(value, field.type), rows)

        return pa.table([column(field) for field in self.schema], schema=self.schema)


# -- reading -------------------------------------------------------------------------------------------


def only_value(column: Any) -> list[Any]:
    """Return the value of a row group's column in a list, or an empty list if it may have several."""
    stats = column.statistics
    is_constant = stats is not None and stats.has_min_max and stats.null_count == 0 and stats.min == stats.max
    return [stats.min] if is_constant else []


def opened(run: SortedFile) -> Any:
    """Open the file, as a memory map on disk. For an object store, nearby reads are merged into one request."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(open_path(run.path, run.options), pre_buffer=is_url(run.path))


def read(file: Any, layout: StateLayout, names: Sequence[str], group: int) -> pa.Table:
    """Read some columns of a row group in the state's types. Columns that the file lacks are null."""
    import pyarrow as pa

    stored = set(file.schema_arrow.names)
    rows = file.read_row_group(group, columns=[name for name in names if name in stored], use_threads=False)
    fields = [layout.schema.field(name) for name in names]
    columns = []
    for target in fields:
        if target.name in stored:
            columns.append(rows[target.name].cast(target.type))
        else:
            columns.append(pa.nulls(rows.num_rows, target.type))
    return pa.table(columns, schema=pa.schema(fields))


# -- merging runs ---------------------------------------------------------------------------------------


def merged(layout: StateLayout, runs: Sequence[SortedFile], groups: range) -> pa.Table:
    """Return the newest row of each key of these groups, deleted rows included."""
    import pyarrow as pa

    parts = []
    for run in runs:
        with opened(run) as file:
            row_groups = []
            for group in range(file.num_row_groups):
                row_groups.append(read(file, layout, layout.schema.names, group))
        parts.append(pa.concat_tables([layout.schema.empty_table(), *row_groups]))
    needs_filter = any(not run.within(groups) for run in runs)
    return newest(layout, parts, groups if needs_filter else None)


def newest(
    layout: StateLayout, parts: Sequence[pa.Table], groups: range | None = None, *, in_order: bool = True
) -> pa.Table:
    """Return the newest row of each key, of just these groups if there are any. In a part, each key occurs once.

    in_order: sort the result by key. Without it, texts need not be sorted, which is most of the work.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    parts, are_newest_first = _newest_first(parts)
    rows = pa.concat_tables([layout.schema.empty_table(), *parts])
    if groups is not None:
        rows = rows.filter(pc.and_(pc.greater_equal(rows[GROUP], groups.start), pc.less(rows[GROUP], groups.stop)))
    if len(parts) < 2:  # it is sorted, and has each key once
        return rows
    if in_order:
        positions, starts = order_and_firsts(rows, layout.keys, newest_first=True, are_newest_first=are_newest_first)
        return rows.take(pa.array(positions[starts]))
    (codes,) = codes_of([rows.select(list(layout.keys))], layout.keys, small=False)
    if are_newest_first:
        positions = order(codes)
    else:
        positions = order_by(codes, -rows[CHECKPOINT].to_numpy())
    starts = np.flatnonzero(np.diff(codes[positions], prepend=-1))
    return rows.take(pa.array(positions[starts]))


def _newest_first(parts: Sequence[pa.Table]) -> tuple[list[pa.Table], bool]:
    """Return the parts that have rows, newest first, and whether no row of one is older than any row of the next."""
    import pyarrow.compute as pc

    spans = []
    for part in parts:
        if part.num_rows:
            bounds = pc.min_max(part[CHECKPOINT])
            spans.append((bounds["max"].as_py(), bounds["min"].as_py(), part))
    spans.sort(key=_newest_checkpoint, reverse=True)
    no_overlap = all(newer[1] >= older[0] for newer, older in itertools.pairwise(spans))
    return [part for _, _, part in spans], no_overlap


def _newest_checkpoint(span: tuple[int, int, Any]) -> int:
    return span[0]


# -- writing --------------------------------------------------------------------------------------------


class Writer:
    """Writes one file of sorted rows, a row group at a time. Integer keys are delta-encoded: this takes an eighth of
    the space, and reads faster than compressed pages."""

    _sink: Any
    """The open file, once there are rows to write."""

    def __init__(self, layout: StateLayout, path: str) -> None:
        self.layout = layout
        self.path = path
        self.rows = 0
        self._buffer: list[Any] = []
        self._file: Any = None
        self._block = ExitStack()

    def write(self, rows: pa.Table) -> None:
        """Add rows, in the order of their keys."""
        self._buffer.append(rows)
        if sum(table.num_rows for table in self._buffer) >= GROUP_ROWS:
            self._flush(GROUP_ROWS)

    def close(self) -> WrittenFile:
        """Complete the file. No file is created if it would have no rows."""
        self._flush(1)
        size = 0
        if self._file is not None:
            self._file.close()
            size = self._sink.tell()
        self._block.close()
        return WrittenFile(self.rows, size)

    def _flush(self, unit: int) -> None:
        import pyarrow as pa

        if not self._buffer:
            return
        rows = pa.concat_tables(self._buffer)
        count = rows.num_rows // unit * unit
        self._buffer = [rows.slice(count)] if count < rows.num_rows else []
        if not count:
            return
        if self._file is None:
            self._file = self._create(rows)
        self._file.write_table(rows.slice(0, count), row_group_size=GROUP_ROWS)
        self.rows += count

    def _create(self, sample: pa.Table) -> Any:
        import pyarrow.parquet as pq

        self._sink = self._block.enter_context(create_path(self.path, self.layout.options))
        numbers = [name for name in self.layout.keys if is_whole(sample.schema.field(name).type)]
        repeated = dictionary_columns(sample.drop_columns(numbers)) or []
        return pq.ParquetWriter(
            self._sink,
            self.layout.schema,
            compression="snappy",
            use_dictionary=repeated,
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED") or None,
            store_decimal_as_integer=True,
        )


def sorted_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the batches that have rows, as tables."""
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            yield pa.Table.from_batches([batch])
