"""The rows that a worker holds of a range of key groups: in memory, and on this machine's disk if they are too many.

Rows that do not fit are written to local files by key group, and worked on a part after the other: first by groups,
then, of a single group, by keys. What cannot be split any further is one key, and memory has to hold it.
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
from tidegate.state.arrow.keys_as_numbers import comparable, integers, is_whole
from tidegate.state.columns import GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KIND", "Arriving", "BufferedBatch", "Fewer", "Limits", "Share", "Spilled", "TooMany", "spilling"]

Fewer = Callable[["pa.Table"], "pa.Table"]
KIND: Final = "kind"
"""The column that says of which kind a row is, where rows of several come together."""
PARTS: Final = 16
"""The parts that rows are split into at once."""
DEPTH: Final = 8
"""How often keys are split: what is together even then is one key, as far as a hash can tell."""
ALONE: Final = 8
"""How many times more a worker holds of a single key, which cannot be split."""
_MIXED: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The constants of splitmix64."""


class TooMany(Exception):
    """More rows than a worker should hold at once."""

    def __init__(self, size: int) -> None:
        """size: at least so many bytes."""
        self.size = size
        super().__init__(f"{size} bytes")


@dataclass(frozen=True)
class Limits:
    """How much a worker holds, in bytes."""

    batch: int
    """Of what has arrived."""
    stored: int
    """Of each state."""

    def of_one_key(self) -> Limits:
        """Return those for a key that is alone."""
        return Limits(self.batch * ALONE, self.stored * ALONE)


@dataclass(frozen=True)
class Share:
    """A part of the keys, by a hash of theirs."""

    key_group_columns: Sequence[str]
    salt: int
    numbers: range
    inner: Share | None = None
    """The part that it is a part of."""

    def mask(self, rows: pa.Table) -> Any:
        """Return which rows are in it."""
        parts = _parts_of(_hashes(rows, self.key_group_columns, self.salt))
        own = (parts >= self.numbers.start) & (parts < self.numbers.stop)
        return own if self.inner is None else own & self.inner.mask(rows)


def _parts_of(hashes: Any) -> Any:
    """Return the part that each key is in."""
    import numpy as np

    return (hashes % np.uint64(PARTS)).astype(int)


def _hashes(rows: pa.Table, by: Sequence[str], salt: int) -> Any:
    """Return a hash of each row's key: the same in this process wherever the key comes from."""
    import numpy as np

    step, *mixing = (np.uint64(each) for each in _MIXED)
    hashes = np.full(rows.num_rows, salt + 1, np.uint64)
    for name in by:
        hashes = (hashes ^ _numbers(comparable(rows[name]))) + step
        for constant, shift in zip(mixing, (30, 27), strict=True):
            hashes = (hashes ^ (hashes >> np.uint64(shift))) * constant
        hashes ^= hashes >> np.uint64(31)
    return hashes


def _numbers(column: Any) -> Any:
    """Return a number for each value, equal where they are."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_whole(column.type):
        missing = np.asarray(pc.is_null(column)).astype(np.uint64)
        filled = pc.fill_null(column, pa.scalar(0, column.type)) if column.null_count else column
        return integers(filled).astype(np.uint64) + (missing << np.uint64(63))
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    column = column.cast(pa.binary()) if pa.types.is_string(column.type) else column  # it may be no text
    coded = pc.dictionary_encode(column, null_encoding="encode")
    of_values = [hash(str(value)) & (1 << 63) - 1 for value in coded.dictionary.to_pylist()]
    return np.array(of_values, np.uint64)[coded.indices.to_numpy(zero_copy_only=False)]


@contextmanager
def spilling() -> Iterator[Spilled]:
    """Yield where rows go that are too many, and remove it in the end."""
    spilled = Spilled()
    try:
        yield spilled
    finally:
        spilled.remove()


@dataclass
class Spilled:
    """A folder on this machine's disk: one of Spark's own, if it says which, made when it is needed."""

    bytes: int = 0
    """How much has been written to it."""
    _folder: Path | None = None
    _files: int = 0

    def path(self) -> Path:
        """Return a file that is not there."""
        if self._folder is None:
            places = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
            place = next((each for each in places if each and os.access(each, os.W_OK)), None)
            self._folder = Path(tempfile.mkdtemp(prefix="tidegate-spill-", dir=place))
        self._files += 1
        return self._folder / f"{self._files}.arrow"

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@dataclass
class BufferedBatch:
    """Rows of some key groups: by number what has arrived, and, if Spark brings them, the stored rows of each state."""

    schemas: Sequence[pa.Schema]
    key_group_columns: Sequence[str]
    """The columns that decide a row's key group."""
    groups: range
    limits: Limits
    spilled: Spilled
    fewer: Fewer | None = None
    """Returns the rows of the batch with which the result is the same."""
    share: Share | None = None
    """If these are not all of a group's keys: which of them."""
    is_alone: bool = False
    """Whether there is but one key: it cannot be split."""
    _tables: list[list[Any]] = field(init=False)
    _bytes: int = 0
    _is_hot: bool = False
    """Whether there is but one key, and memory cannot hold its rows."""
    _reduce_at: int = field(init=False)
    _files: _SpilledFiles | None = None

    def __post_init__(self) -> None:
        self._tables = [[] for _ in self.schemas]
        self._reduce_at = self.limits.batch // 4

    def add(self, rows: pa.Table, number: int = 0) -> None:
        """Take rows. number: of which kind they are."""
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
            self._is_hot = True  # nobody can work on it: what is left is to name it
            self._tables = [[table.slice(0, 1) for table in tables[:1]] for tables in self._tables]
        elif self._bytes > self._max_bytes:
            self._split()

    @property
    def _max_bytes(self) -> int:
        return self.limits.batch + self.limits.stored * (len(self.schemas) - 1)

    def tables(self) -> list[pa.Table]:
        """Return the rows, by kind. Raise TooMany if they are more than memory should hold."""
        import pyarrow as pa

        if self._files is not None or self._bytes > self._max_bytes:
            raise TooMany(self._bytes)
        pairs = zip(self.schemas, self._tables, strict=True)
        return [pa.concat_tables([schema.empty_table(), *tables]).combine_chunks() for schema, tables in pairs]

    def one_key(self) -> str:
        """Return the key of the first row, for people who may read rows."""
        for tables in self._tables:
            for rows in tables:
                return ", ".join(f"{name} = {python_value(rows[name][0])}" for name in self.key_group_columns)
        return "a key of stored rows alone"

    def parts(self) -> Iterator[BufferedBatch]:
        """Yield the rows in parts, of fewer groups or keys. What is here is gone then."""
        at_least = 1
        if self._files is None:  # it would fit: what is stored does not
            at_least = PARTS
            self._split()
        files, self._files = self._files, None
        assert files is not None
        if files.by_group:
            ranges = _ranges(self.groups)
            for numbers in files.together(len(ranges), self._max_bytes, at_least):
                yield self._part(files, numbers, range(ranges[numbers.start].start, ranges[numbers.stop - 1].stop))
            return
        alone = files.only_part if files.has_one_key else None
        for numbers in files.together(PARTS, self._max_bytes, at_least):
            share = Share(self.key_group_columns, files.salt, numbers, self.share)
            is_alone = files.salt == DEPTH or (alone is not None and alone in numbers)
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
            return  # this kernel needs all of them
        self._tables[0] = [reduced]
        self._bytes += reduced.nbytes - before
        self._reduce_at = max(self.limits.batch // 4, 2 * self._bytes)

    def _split(self) -> None:
        """Write all that is in memory to files, and what is still to come."""
        by_group = len(self.groups) > 1
        salt = 0 if self.share is None else self.share.salt + 1
        self._files = _SpilledFiles(
            self.spilled, len(self.schemas), self.groups if by_group else None, self.key_group_columns, salt
        )
        held, self._tables, self._bytes = self._tables, [[] for _ in self.schemas], 0
        for number, tables in enumerate(held):
            while tables:
                self._files.write(tables.pop(), number)


def _ranges(groups: range) -> list[range]:
    count = min(PARTS, len(groups))
    bounds = [groups.start + len(groups) * place // count for place in range(count + 1)]
    return [range(low, high) for low, high in itertools.pairwise(bounds)]


class _SpilledFiles:
    """Rows in files by kind and part."""

    def __init__(self, spilled: Spilled, kinds: int, groups: range | None, by: Sequence[str], salt: int) -> None:
        """groups: they are split into ranges of these. None: by a hash of their keys."""
        self.spilled, self.groups, self.by, self.salt = spilled, groups, by, salt
        self.by_group = groups is not None
        self._starts = [each.start for each in _ranges(groups)] if groups is not None else []
        self._open: dict[tuple[int, int], tuple[Path, Any, Any]] = {}
        self._sizes = [0] * PARTS
        """The bytes of each part."""
        self._hashes: set[int] = set()

    def write(self, rows: pa.Table, kind: int) -> None:
        """Write rows of a kind, each to its part."""
        import numpy as np
        import pyarrow as pa

        if self.groups is not None:
            parts = np.searchsorted(self._starts, rows[GROUP].to_numpy(), side="right") - 1
        else:
            hashes = _hashes(rows, self.by, self.salt)
            if len(self._hashes) < 2:
                self._hashes |= {int(hashes.min()), int(hashes.max())}
            parts = _parts_of(hashes)
        order = np.argsort(parts, kind="stable")
        rows, counts, start = rows.take(pa.array(order)), np.bincount(parts, minlength=PARTS), 0
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

    def together(self, count: int, most: int, at_least: int) -> list[range]:
        """Return the parts in as few ranges as memory holds one of: of each, stored rows have to be looked up anew.

        count: the number of parts. at_least: no fewer ranges than that.
        """
        if at_least >= count:
            return [range(part, part + 1) for part in range(count)]
        ranges, start, size = list[range](), 0, 0
        for part in range(count):
            if part > start and size + self._sizes[part] > most // 2:  # in memory they may take more room
                ranges.append(range(start, part))
                start, size = part, 0
            size += self._sizes[part]
        return [*ranges, range(start, count)]

    @property
    def has_one_key(self) -> bool:
        """Whether all rows have the same key, as far as hashes tell."""
        return len(self._hashes) == 1

    @property
    def only_part(self) -> int | None:
        """The only part that has rows."""
        parts = {part for _, part in self._open}
        return next(iter(parts)) if len(parts) == 1 else None

    def read(self, kind: int, part: int) -> Iterator[pa.Table]:
        """Yield the rows of a kind in a part, once."""
        import pyarrow as pa

        if (opened := self._open.pop((kind, part), None)) is None:
            return
        path, sink, writer = opened
        writer.close()
        sink.close()
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as batches:
            for batch in batches:
                yield pa.Table.from_batches([batch])
        path.unlink()


@dataclass(frozen=True)
class Arriving:
    """How rows come to a worker: as the batch's alone, or each with a number that says of which kind it is."""

    schemas: Sequence[pa.Schema]
    """The columns by kind: of the batch's rows, and, if Spark brings them, of each state's."""
    columns: Sequence[Mapping[str, str]] = ()
    """For each kind its columns, each with its name in what comes. Empty: the batch's rows come as they are."""
    prepared: Callable[[pa.Table], pa.Table] | None = None
    """Adds to the batch's rows what they come without."""
    keys: Sequence[str] = ()
    """The keys: of two zeros one is shown, whichever comes first."""

    def add(self, batch: pa.RecordBatch, held: BufferedBatch) -> None:
        """Give the rows of a batch of Spark's to those that are held."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = pa.Table.from_batches([batch])
        if not self.columns:
            held.add(self._made(rows, 0))
            return
        for number, columns in enumerate(self.columns):
            some = rows.filter(pc.equal(rows[KIND], number))
            some = some.select(list(columns.values())).rename_columns(list(columns))
            held.add(self._made(some, number), number)

    def _made(self, rows: pa.Table, number: int) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = with_row_ids(rows.cast(self.schemas[number]))
        for name in self.keys:
            if pa.types.is_floating(rows.schema.field(name).type):
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, name, pc.add(rows[name], 0.0).cast(rows[name].type))
        return rows if number or self.prepared is None else self.prepared(rows)

    def buffered_schemas(self) -> list[pa.Schema]:
        """Return the columns of the rows that are held."""
        return [self._made(schema.empty_table(), number).schema for number, schema in enumerate(self.schemas)]
