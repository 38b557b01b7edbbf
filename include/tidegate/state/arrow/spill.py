"""Buffers a worker's rows of a range of key groups in memory, and spills them to local disk if they are too many.

Spilled rows are split by key group, and a single group by a hash of its keys. The parts are processed one after the
other. The rows of one key cannot be split, so memory has to hold them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.delta.as_python import python_value
from tidegate.spark.row_id import with_row_ids
from tidegate.state.arrow.keys_as_numbers import comparable, integers, is_whole, order
from tidegate.state.columns import GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KIND", "Arriving", "BufferedBatch", "Fewer", "Limits", "Share", "Spilled", "TooMany", "spilling"]

Fewer = Callable[["pa.Table"], "pa.Table"]
KIND: Final = "kind"
"""The column with the kind of a row, in a frame with rows of several kinds."""
PARTS: Final = 16
"""The number of parts that rows are split into at a time."""
DEPTH: Final = 8
"""The number of times that keys are split. Keys that are still together count as one key."""
ALONE: Final = 8
"""The factor by which the limits are higher for a single key, which cannot be split."""
_MIXED: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The constants of splitmix64."""


class TooMany(Exception):
    """More rows than a worker should hold at once."""

    def __init__(self, size: int) -> None:
        """size: a lower bound of their bytes."""
        self.size = size
        super().__init__(f"{size} bytes")


@dataclass(frozen=True)
class Limits:
    """The number of bytes that a worker holds in memory."""

    batch: int
    """The limit for rows of the batch."""
    stored: int
    """The limit for rows of each state."""

    def of_one_key(self) -> Limits:
        """Return the limits for a single key."""
        return Limits(self.batch * ALONE, self.stored * ALONE)


@dataclass(frozen=True)
class Share:
    """A share of the keys, by their hash."""

    key_group_columns: Sequence[str]
    salt: int
    numbers: range
    inner: Share | None = None
    """The share that this is a share of."""

    def mask(self, rows: pa.Table) -> Any:
        """Return a mask of the rows whose keys are in the share."""
        parts = _parts_of(_hashes(rows, self.key_group_columns, self.salt))
        mask = (parts >= self.numbers.start) & (parts < self.numbers.stop)
        if self.inner is None:
            return mask
        return mask & self.inner.mask(rows)


def _parts_of(hashes: Any) -> Any:
    """Return the part that each key is in."""
    import numpy as np

    return (hashes % np.uint64(PARTS)).astype(int)


def _hashes(rows: pa.Table, key_columns: Sequence[str], salt: int) -> Any:
    """Return a hash of each row's key. Within a process, equal keys have equal hashes."""
    import numpy as np

    step, *mixing = (np.uint64(constant) for constant in _MIXED)
    hashes = np.full(rows.num_rows, salt + 1, np.uint64)
    for name in key_columns:
        hashes = (hashes ^ _numbers(comparable(rows[name]))) + step
        for constant, shift in zip(mixing, (30, 27), strict=True):
            hashes = (hashes ^ (hashes >> np.uint64(shift))) * constant
        hashes ^= hashes >> np.uint64(31)
    return hashes


def _numbers(column: Any) -> Any:
    """Return a number for each value. Equal values have equal numbers."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_whole(column.type):
        missing = np.asarray(pc.is_null(column)).astype(np.uint64)
        if column.null_count:
            filled = pc.fill_null(column, pa.scalar(0, column.type))
        else:
            filled = column
        return integers(filled).astype(np.uint64) + (missing << np.uint64(63))
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())  # Spark's strings may be invalid UTF-8
    coded = pc.dictionary_encode(column, null_encoding="encode")
    value_hashes = [hash(str(value)) & (1 << 63) - 1 for value in coded.dictionary.to_pylist()]
    return np.array(value_hashes, np.uint64)[coded.indices.to_numpy(zero_copy_only=False)]


@contextmanager
def spilling() -> Iterator[Spilled]:
    """Yield a folder for spilled rows, and remove it in the end."""
    spilled = Spilled()
    try:
        yield spilled
    finally:
        spilled.remove()


@dataclass
class Spilled:
    """A folder on local disk, among Spark's local directories if it names them. It is created when it is needed."""

    bytes: int = 0
    """The number of bytes written to it."""
    _folder: Path | None = None
    _files: int = 0

    def path(self) -> Path:
        """Return the path of a new file."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tidegate-spill-", dir=_local_directory()))
        self._files += 1
        return self._folder / f"{self._files}.arrow"

    def remove(self) -> None:
        """Remove the folder and its files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _local_directory() -> str | None:
    """Return Spark's first local directory that is writable."""
    for directory in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if directory and os.access(directory, os.W_OK):
            return directory
    return None


@dataclass
class BufferedBatch:
    """Rows of some key groups by kind: kind 0 is the batch, and, if Spark brings stored rows, kind n is state n - 1."""

    schemas: Sequence[pa.Schema]
    key_group_columns: Sequence[str]
    """The columns that decide a row's key group."""
    groups: range
    limits: Limits
    spilled: Spilled
    fewer: Fewer | None = None
    """Reduces rows of the batch to fewer rows with the same result."""
    share: Share | None = None
    """The share of the groups' keys, if it has not all of them."""
    is_alone: bool = False
    """Whether it has a single key, which cannot be split."""
    arrived: int = 0
    """The number of rows of the batch that have arrived, before any of them were reduced."""
    _tables: list[list[Any]] = field(init=False)
    _bytes: int = 0
    _is_hot: bool = False
    """Whether it has a single key whose rows do not fit into memory."""
    _reduce_at: int = field(init=False)
    _files: _SpilledFiles | None = None

    def __post_init__(self) -> None:
        self._tables = [[] for _ in self.schemas]
        self._reduce_at = self.limits.batch // 4

    def add(self, rows: pa.Table, number: int = 0) -> None:
        """Add rows. number: their kind."""
        if not rows.num_rows:
            return
        if self._files is not None:
            self._files.write(rows, number)
            return
        self._bytes += rows.nbytes
        if self._is_hot:
            return
        self._tables[number].append(rows)
        if self._bytes > self._reduce_at:
            self._reduce()
        if self._bytes > self._max_bytes and self.is_alone:
            self._is_hot = True  # the kernel cannot run, so only a row of the key is needed, for the error
            for tables in self._tables:
                tables[:] = [table.slice(0, 1) for table in tables[:1]]
        elif self._bytes > self._max_bytes:
            self._split()

    @property
    def _max_bytes(self) -> int:
        return self.limits.batch + self.limits.stored * (len(self.schemas) - 1)

    def tables(self) -> list[pa.Table]:
        """Return the rows by kind. Raise TooMany if memory should not hold them."""
        import pyarrow as pa

        if self._files is not None or self._bytes > self._max_bytes:
            raise TooMany(self._bytes)
        rows = []
        for schema, tables in zip(self.schemas, self._tables, strict=True):
            rows.append(pa.concat_tables([schema.empty_table(), *tables]).combine_chunks())
        return rows

    def one_key(self) -> str:
        """Return the key of the first row as text. Only for people who may read rows."""
        for tables in self._tables:
            for rows in tables:
                return ", ".join(f"{name} = {python_value(rows[name][0])}" for name in self.key_group_columns)
        return "a key of stored rows alone"

    def parts(self) -> Iterator[BufferedBatch]:
        """Yield the rows in parts with fewer groups or keys. This removes them here."""
        min_parts = 1
        if self._files is None:  # these rows fit into memory, but the stored ones of their keys do not
            min_parts = PARTS
            self._split()
        files, self._files = self._files, None
        assert files is not None
        if files.by_group:
            ranges = _ranges(self.groups)
            for numbers in files.combine_parts(len(ranges), self._max_bytes, min_parts):
                yield self._part(files, numbers, range(ranges[numbers.start].start, ranges[numbers.stop - 1].stop))
            return
        single_key_part = files.only_part if files.has_one_key else None
        for numbers in files.combine_parts(PARTS, self._max_bytes, min_parts):
            share = Share(self.key_group_columns, files.salt, numbers, self.share)
            is_alone = files.salt == DEPTH or (single_key_part is not None and single_key_part in numbers)
            yield self._part(files, numbers, self.groups, share, is_alone=is_alone)

    def _part(
        self, files: _SpilledFiles, numbers: range, groups: range, share: Share | None = None, *, is_alone: bool = False
    ) -> BufferedBatch:
        limits = self.limits.of_one_key() if is_alone else self.limits
        part = BufferedBatch(
            self.schemas,
            self.key_group_columns,
            groups,
            limits,
            self.spilled,
            self.fewer,
            share or self.share,
            is_alone=is_alone,
        )
        for kind in range(len(self.schemas)):
            for number in numbers:
                for rows in files.read(kind, number):
                    part.add(rows, kind)
        return part

    def _reduce(self) -> None:
        import pyarrow as pa

        self._reduce_at = max(self._reduce_at, 2 * self._bytes)
        if self.fewer is None or not self._tables[0]:
            return
        before = sum(table.nbytes for table in self._tables[0])
        rows = pa.concat_tables(self._tables[0]).combine_chunks()
        if (reduced := self.fewer(rows)) is rows:
            return  # this kernel cannot reduce them
        self._tables[0] = [reduced]
        self._bytes += reduced.nbytes - before
        self._reduce_at = max(self.limits.batch // 4, 2 * self._bytes)

    def _split(self) -> None:
        """Move the rows from memory to files. Rows that are added later also go there."""
        by_group = len(self.groups) > 1
        salt = 0 if self.share is None else self.share.salt + 1
        self._files = _SpilledFiles(
            self.spilled, len(self.schemas), self.groups if by_group else None, self.key_group_columns, salt
        )
        in_memory, self._tables, self._bytes = self._tables, [[] for _ in self.schemas], 0
        for number, tables in enumerate(in_memory):
            while tables:  # pop, so that memory is freed on the way
                self._files.write(tables.pop(), number)


def _ranges(groups: range) -> list[range]:
    count = min(PARTS, len(groups))
    bounds = [groups.start + len(groups) * index // count for index in range(count + 1)]
    return [range(low, high) for low, high in itertools.pairwise(bounds)]


class _SpilledFiles:
    """Rows in files by kind and part."""

    def __init__(
        self, spilled: Spilled, kinds: int, groups: range | None, key_columns: Sequence[str], salt: int
    ) -> None:
        """groups: split rows into ranges of these. None: split them by a hash of their keys."""
        self.spilled, self.groups, self.key_columns, self.salt = spilled, groups, key_columns, salt
        self.by_group = groups is not None
        if groups is not None:
            self._starts = [part.start for part in _ranges(groups)]
        else:
            self._starts = []
        self._open: dict[tuple[int, int], tuple[Path, Any, Any]] = {}
        self._sizes = [0] * PARTS
        """The bytes of each part."""
        self._hashes: set[int] = set()

    def write(self, rows: pa.Table, kind: int) -> None:
        """Write each of a kind's rows to its part."""
        import numpy as np
        import pyarrow as pa

        if self.groups is not None:
            parts = np.searchsorted(self._starts, rows[GROUP].to_numpy(), side="right") - 1
        else:
            hashes = _hashes(rows, self.key_columns, self.salt)
            if len(self._hashes) < 2:
                self._hashes |= {int(hashes.min()), int(hashes.max())}
            parts = _parts_of(hashes)
        by_part = order(parts)
        rows, counts = rows.take(pa.array(by_part)), np.bincount(parts, minlength=PARTS)
        start = 0
        for part in np.flatnonzero(counts):
            count = int(counts[part])
            self._write(rows.slice(start, count), kind, int(part))
            start += count

    def _write(self, rows: pa.Table, kind: int, part: int) -> None:
        import pyarrow as pa

        if (kind, part) not in self._open:
            path = self.spilled.path()
            sink = pa.OSFile(str(path), "wb")
            self._open[kind, part] = path, sink, pa.ipc.new_stream(sink, rows.schema)
        self._open[kind, part][2].write_table(rows.combine_chunks())
        self._sizes[part] += rows.nbytes
        self.spilled.bytes += rows.nbytes

    def combine_parts(self, count: int, max_bytes: int, min_ranges: int) -> list[range]:
        """Return ranges of parts that fit into memory: as few as possible, because each range needs a lookup of its
        stored rows.

        count: the number of parts.
        """
        if min_ranges >= count:
            return [range(part, part + 1) for part in range(count)]
        ranges, start, size = list[range](), 0, 0
        for part in range(count):
            if part > start and size + self._sizes[part] > max_bytes // 2:  # rows may take more room in memory
                ranges.append(range(start, part))
                start, size = part, 0
            size += self._sizes[part]
        return [*ranges, range(start, count)]

    @property
    def has_one_key(self) -> bool:
        """Whether all rows have the same key, judged by hashes."""
        return len(self._hashes) == 1

    @property
    def only_part(self) -> int | None:
        """The only part that has rows."""
        parts = {part for _, part in self._open}
        return next(iter(parts)) if len(parts) == 1 else None

    def read(self, kind: int, part: int) -> Iterator[pa.Table]:
        """Yield the rows of a kind in a part, and remove them."""
        import pyarrow as pa

        open_file = self._open.pop((kind, part), None)
        if open_file is None:
            return
        path, sink, writer = open_file
        writer.close()
        sink.close()
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as batches:
            for batch in batches:
                yield pa.Table.from_batches([batch])
        path.unlink()


@dataclass(frozen=True)
class Arriving:
    """The form of the rows that a worker gets: only rows of the batch, or rows of several kinds, tagged by `KIND`."""

    schemas: Sequence[pa.Schema]
    """The columns of each kind: of the batch's rows, and, if Spark brings stored rows, of each state's."""
    columns: Sequence[Mapping[str, str]] = ()
    """For each kind its columns, each with its name in the tagged rows. Empty: rows are not tagged."""
    prepared: Callable[[pa.Table], pa.Table] | None = None
    """Adds to the batch's rows the columns that Spark does not transfer."""
    keys: Sequence[str] = ()
    """The keys. Their negative zeros become 0.0, so that it does not matter which zero arrives first."""

    def add(self, batch: pa.RecordBatch, buffered: BufferedBatch) -> None:
        """Add the rows of a record batch of Spark's to the buffer."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = pa.Table.from_batches([batch])
        if not self.columns:
            buffered.arrived += rows.num_rows
            buffered.add(self._prepare(rows, 0))
            return
        for number, columns in enumerate(self.columns):
            rows_of_kind = rows.filter(pc.equal(rows[KIND], number))
            rows_of_kind = rows_of_kind.select(list(columns.values())).rename_columns(list(columns))
            if number == 0:
                buffered.arrived += rows_of_kind.num_rows
            buffered.add(self._prepare(rows_of_kind, number), number)

    def _prepare(self, rows: pa.Table, number: int) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = with_row_ids(rows.cast(self.schemas[number]))
        for name in self.keys:
            if pa.types.is_floating(rows.schema.field(name).type):
                index = rows.schema.get_field_index(name)
                rows = rows.set_column(index, name, pc.add(rows[name], 0.0).cast(rows[name].type))
        if number == 0 and self.prepared is not None:
            return self.prepared(rows)
        return rows

    def buffered_schemas(self) -> list[pa.Schema]:
        """Return the columns of the buffered rows of each kind."""
        return [self._prepare(schema.empty_table(), number).schema for number, schema in enumerate(self.schemas)]
