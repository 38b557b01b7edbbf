"""Runs of a state as a Python worker of Spark sees them: plain Parquet files, sorted by key, read and written by Arrow.

    reduced   rows of a batch, several per key        →  one row per key, sorted
    found     the keys of a batch, and the files      →  the newest row of each key that is stored
    merged    several files                           →  the newest row of each of their keys
    Writer    sorted rows                             →  one more file

A lookup reads the key columns only, one row group at a time, and skips groups whose statistics rule out a hit; of the
other columns it keeps only the rows that were hit. So memory follows the batch, whatever the size of the state.
The results are those of the DataFrame algebra of state/keyed.py, which works for every type.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.delta import WrittenFile
from tidegate.delta.arrow_types import dictionary_columns
from tidegate.delta.files.access import create_path, open_path
from tidegate.errors import Invalid
from tidegate.records.place import is_url
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, TOUCHED

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Matcher",
    "Packing",
    "SortedFile",
    "StateLayout",
    "Writer",
    "codes_of",
    "combined",
    "firsts",
    "found",
    "integers",
    "merged",
    "newest",
    "opened",
    "order",
    "order_of",
    "packed",
    "raw_bounds",
    "read",
    "reduced",
    "sorted_chunks",
]


def integers(column: Any) -> Any:
    """Return a column of whole numbers without nulls as int64; None: it is not one."""
    import pyarrow as pa

    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return None
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return column.cast(pa.int64()).to_numpy()


@dataclass(frozen=True)
class Packing:
    """Numbers between bounds, one per column, as digits of a single one: the first weighs the most."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]

    @classmethod
    def of(cls, columns: Sequence[Any]) -> Packing | None:
        """Return the packing for the numbers of these columns. None: there are none, or together they are too large."""
        if not len(columns[0]):
            return None
        lows, highs = (tuple(int(bound(column)) for column in columns) for bound in (_least, _greatest))
        sizes = (high - low + 1 for low, high in zip(lows, highs, strict=True))
        return cls(lows, highs) if math.prod(sizes) < 1 << 63 else None

    def pack(self, columns: Sequence[Any]) -> Any:
        """Return one number for each row; -1 where one of its numbers is outside the bounds."""
        import numpy as np

        codes, inside = np.zeros(len(columns[0]), np.int64), np.ones(len(columns[0]), bool)
        for column, low, high in zip(columns, self.lows, self.highs, strict=True):
            inside &= (column >= low) & (column <= high)
            codes *= high - low + 1
            codes += column - low  # wraps around where it is outside
        return codes if inside.all() else np.where(inside, codes, -1)


def _least(column: Any) -> Any:
    return column.min()


def _greatest(column: Any) -> Any:
    return column.max()


def order(numbers: Any) -> Any:
    """Return the places of the numbers in ascending order; equal ones in the order in which they stand.

    Where a number and its place fit into one: sorting such is several times quicker than sorting places.
    """
    import numpy as np

    count = len(numbers)
    low, high = (int(numbers.min()), int(numbers.max())) if count else (0, 0)
    bits = count.bit_length()
    if (high - low).bit_length() + bits > 62:
        return np.argsort(numbers, kind="stable")
    both = ((numbers - low) << bits) | np.arange(count)
    both.sort()
    return both & ((1 << bits) - 1)


def packed(rows: pa.Table, keys: Sequence[str]) -> Any:
    """Return the rows' keys as a number each; None: they are no whole numbers, some are null, or they are too large."""
    columns = [integers(rows[name]) for name in keys]
    if any(column is None for column in columns):
        return None
    if len(columns) == 1:
        return columns[0]
    packing = Packing.of(columns)
    return packing.pack(columns) if packing is not None else None


class Matcher:
    """The keys of a batch, sorted and distinct, prepared for lookups in many row groups."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        import numpy as np
        import pyarrow.compute as pc

        self.keys = list(keys)
        self.rows = rows.num_rows
        whole = [integers(rows[name]) for name in keys]
        self.plain: Any = whole[0] if len(keys) == 1 else None
        self.packing = None if len(keys) == 1 or any(column is None for column in whole) else Packing.of(whole)
        self.packed: Any = self.packing.pack(whole) if self.packing is not None else None
        self.steps: list[tuple[Any, Any]] = []
        codes = np.zeros(rows.num_rows, np.int64)
        for name in () if self.plain is not None or self.packing is not None else keys:
            column = rows[name].combine_chunks()
            distinct = pc.unique(column)
            place = pc.index_in(column, distinct).to_numpy().astype(np.int64)
            codes_known, codes = np.unique(codes * len(distinct) + place, return_inverse=True)
            self.steps.append((distinct, codes_known))
        self.row_of = np.argsort(codes)

    def may_be_in(self, group: Any, place: int) -> bool:
        """Return whether a row group can hold one of the keys, by its statistics. place: the first key's column
        there."""
        bounds = raw_bounds(group, place) if self.plain is not None or self.packing is not None else None
        if bounds is None:
            return True
        if self.packing is not None:
            return bool(bounds[0] <= self.packing.highs[0] and bounds[1] >= self.packing.lows[0])
        low, high = _between(self.plain, *bounds)
        return low < high

    def rows_in(self, columns: Sequence[Any]) -> tuple[Any, Any]:
        """Return which rows of a file hit, and which row of the batch each of them hits. columns: the file's keys."""
        import numpy as np
        import pyarrow.compute as pc

        if self.packing is not None:
            return self._packed_in(self.packing, columns)
        if self.plain is not None and (stored := integers(columns[0])) is not None and len(stored):
            low, high = _between(self.plain, stored[0], stored[-1])
            sought = self.plain[low:high]
            place = np.minimum(np.searchsorted(stored, sought), len(stored) - 1)
            hit = stored[place] == sought
            return place[hit], np.arange(low, high)[hit]
        if self.plain is not None:
            place = pc.index_in(columns[0].cast(columns[0].type), value_set=_like(self.plain, columns[0].type))
            codes = pc.fill_null(place, -1).to_numpy().astype(np.int64)
            hits = np.flatnonzero(codes >= 0)
            return hits, codes[hits]
        codes = np.zeros(len(columns[0]), np.int64)
        for column, (distinct, step_codes) in zip(columns, self.steps, strict=True):
            place = pc.fill_null(pc.index_in(column, value_set=distinct), -1).to_numpy().astype(np.int64)
            sought = np.where((codes < 0) | (place < 0), -1, codes * len(distinct) + place)
            position = np.minimum(np.searchsorted(step_codes, sought), len(step_codes) - 1)
            codes = np.where(step_codes[position] == sought, position, -1)
        hits = np.flatnonzero(codes >= 0)
        return hits, self.row_of[codes[hits]]

    def all_rows_in(self, columns: Sequence[Any]) -> Any:
        """Return which rows of a file have one of these keys, if several may have the same. columns: as `rows_in`."""
        import numpy as np

        if self.plain is None or (stored := integers(columns[0])) is None:
            return self.rows_in(columns)[0]
        position = np.minimum(np.searchsorted(self.plain, stored), len(self.plain) - 1)
        return np.flatnonzero(self.plain[position] == stored)

    def _packed_in(self, packing: Packing, columns: Sequence[Any]) -> tuple[Any, Any]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        filled = [
            pc.fill_null(column, pa.scalar(0, column.type)) if column.null_count else column for column in columns
        ]
        codes = packing.pack([integers(column) for column in filled])
        for column in columns:
            if column.null_count:  # none of the batch's keys is null
                codes = np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), codes, -1)
        position = np.minimum(np.searchsorted(self.packed, codes), len(self.packed) - 1)
        hits = np.flatnonzero(self.packed[position] == codes)
        return hits, position[hits]


def _between(plain: Any, lowest: int, highest: int) -> tuple[int, int]:
    """Return the range of places of the sorted numbers from the lowest to the highest, both included.

    It does not look for the next number after the highest, which may not exist; and both are made int64, for a list of
    numbers that do not fit would be compared as floats.
    """
    import numpy as np

    low, high = np.searchsorted(plain, np.int64(lowest)), np.searchsorted(plain, np.int64(highest), side="right")
    return int(low), int(high)


def raw_bounds(group: Any, place: int) -> tuple[int, int] | None:
    """Return the least and the greatest number in a row group's column, by its statistics. None: they do not say."""
    stats = group.column(place).statistics
    if stats is None or not stats.has_min_max or not isinstance(stats.min_raw, int):
        return None
    return stats.min_raw, stats.max_raw


def _like(plain: Any, kind: Any) -> Any:
    import pyarrow as pa

    whole = pa.array(plain)
    return whole.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else whole.cast(kind)


GROUP_ROWS = 1 << 17
"""Rows in a row group: the unit that a reader skips, or holds in memory."""


@dataclass(frozen=True)
class SortedFile:
    """One file of a state."""

    path: str
    groups: tuple[int, int]
    """The least and the greatest key group in it."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """How to log in where it is."""

    def within(self, groups: range) -> bool:
        """Return whether it has rows of these groups only."""
        return self.groups[0] >= groups.start and self.groups[1] < groups.stop


@dataclass(frozen=True)
class StateLayout:
    """The columns that all files of a state share."""

    keys: tuple[str, ...]
    schema: pa.Schema
    """Keys, values and what tidegate adds, in this order."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """How to log in where they are."""

    @property
    def values(self) -> list[str]:
        """The columns that are neither keys nor tidegate's."""
        return [n for n in self.schema.names if n not in (*self.keys, GROUP, CHECKPOINT, DELETED, TOUCHED)]

    def table(self, columns: Mapping[str, Any], rows: int) -> pa.Table:
        """Return the rows of a file; a column that is no array has one value in all rows."""
        import pyarrow as pa

        def column(field: pa.Field) -> Any:
            value = columns[field.name]
            if isinstance(value, pa.Array | pa.ChunkedArray):
                return value.cast(field.type)
            return pa.repeat(pa.scalar(value, field.type), rows)

        return pa.table([column(field) for field in self.schema], schema=self.schema)


# -- sorting -------------------------------------------------------------------------------------------


def order_of(rows: pa.Table, keys: Sequence[str], newest_first: bool = False, are_so: bool = False) -> Any:
    """Return the places of the rows by key; for equal keys the newest first, if requested.

    are_so: of equal keys the newest stand first already.
    """
    import numpy as np
    import pyarrow.compute as pc

    if (plain := packed(rows, keys)) is not None:
        if newest_first and not are_so:
            return np.lexsort((-rows[CHECKPOINT].to_numpy(), plain))
        return order(plain)
    sort_keys = [(name, "ascending") for name in keys] + ([(CHECKPOINT, "descending")] if newest_first else [])
    return pc.sort_indices(rows, sort_keys=sort_keys).to_numpy()


def firsts(rows: pa.Table, keys: Sequence[str]) -> Any:
    """Return the place of each key's first row among sorted rows."""
    import numpy as np
    import pyarrow.compute as pc

    differ = np.zeros(max(rows.num_rows - 1, 0), bool)
    for name in keys:
        column = rows[name].combine_chunks()
        previous, following = column[:-1], column[1:]
        changed = pc.fill_null(pc.not_equal(previous, following), False)
        nulls = pc.not_equal(pc.is_null(previous), pc.is_null(following))
        differ |= pc.or_(changed, nulls).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(differ) + 1]) if rows.num_rows else np.zeros(0, int)


def codes_of(tables: Sequence[pa.Table], keys: Sequence[str], *, small: bool = True) -> list[Any]:
    """Return a number for each row of each table: equal where the keys are, null being a value like any other.

    small: below four times the number of rows, so that something else can be packed beside it. Otherwise below 2**62,
    which spares a sort.
    """
    import numpy as np
    import pyarrow as pa

    lengths = [table.num_rows for table in tables]
    codes, size = np.zeros(sum(lengths), np.int64), 1
    for name in keys if len(codes) else ():  # no chunks of decimals cannot be combined
        column = pa.chunked_array([chunk for table in tables for chunk in table[name].chunks], tables[0][name].type)
        place, places = _coded(column)
        if size * places >= _CODES:
            codes, size = _densely(codes)
        if size * places >= _CODES:
            place, places = _densely(place)
        codes, size = codes * places + place, size * places
    if small and size > 4 * len(codes):
        codes, size = _densely(codes)
    return np.split(codes, np.cumsum(lengths)[:-1])


_CODES = 1 << 62


def _coded(column: pa.ChunkedArray) -> tuple[Any, int]:
    """Return a number for each value, from 0 on, and a bound that all are below."""
    import numpy as np
    import pyarrow.compute as pc

    if (plain := integers(column)) is not None:
        low, high = int(plain.min()), int(plain.max())
        return (plain - low, high - low + 1) if high - low < _CODES else _densely(plain)
    coded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(coded.dictionary)


def _densely(numbers: Any) -> tuple[Any, int]:
    """Return the same numbers without gaps, and how many there are."""
    import numpy as np

    distinct, place = np.unique(numbers, return_inverse=True)
    return place, len(distinct)


# -- one row per key ------------------------------------------------------------------------------------


def reduced(batches: Iterable[pa.RecordBatch], keys: Sequence[str], ops: Mapping[str, str]) -> pa.Table | None:
    """Return one row per key, sorted; None: there are no rows. Rows are reduced as they come, so only keys add up."""
    import pyarrow as pa

    tables: list[Any] = []
    for batch in batches:
        tables.append(pa.Table.from_batches([batch]))
        if sum(table.num_rows for table in tables[1:]) > REDUCE_AT:
            tables = [_reduced(pa.concat_tables(tables), keys, ops)]
    rows = pa.concat_tables(tables) if tables else None
    return _reduced(rows, keys, ops) if rows is not None and rows.num_rows else None


REDUCE_AT = 4_000_000


def _reduced(rows: pa.Table, keys: Sequence[str], ops: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    rows = rows.take(pa.array(order_of(rows, keys)))
    starts = firsts(rows, keys)
    if len(starts) == rows.num_rows:
        return rows
    firsts_only = rows.take(pa.array(starts))
    for name, op in ops.items():
        place = firsts_only.schema.get_field_index(name)
        firsts_only = firsts_only.set_column(place, firsts_only.schema.field(name), _segments(rows[name], op, starts))
    return firsts_only


def _segments(column: Any, op: str, starts: Any) -> Any:
    """Return sum, min or max of the rows from each start to the next. Nulls do not count; of nulls alone it is null."""
    import numpy as np
    import pyarrow as pa

    kind, rows = column.type, len(column)
    if (plain := integers(column)) is not None and not (op == "sum" and _may_overflow(plain)):
        whole = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op].reduceat(plain, starts)
        result = pa.array(whole)
        return result.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else result.cast(kind)
    if op == "sum" and pa.types.is_integer(kind):
        column = column.cast(pa.decimal128(38, 0))  # Arrow's own sum wraps around; the cast back does not
    segment = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows)))
    with _fitting(kind):
        grouped = pa.table({"s": segment, "v": column}).group_by("s", use_threads=False).aggregate([("v", op)])
        return grouped[f"v_{op}"].cast(kind)


@contextlib.contextmanager
def _fitting(kind: pa.DataType) -> Iterator[None]:
    """Say what is wrong where a sum does not fit into its type."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowInvalid as error:
        raise Invalid(
            f"overflow: a sum is more than its type {kind} holds", help="Sum a wider type, such as decimal(38,0)."
        ) from error


def _may_overflow(plain: Any) -> bool:
    return bool(max(abs(float(plain.min())), abs(float(plain.max()))) * len(plain) >= 9e18)


def combined(before: Any, now: Any, op: str) -> Any:
    """Merge a key's partial values: null means that nothing is known yet."""
    import pyarrow.compute as pc

    if op == "sum":
        with _fitting(now.type):
            both = pc.add_checked(before, now).cast(now.type)
    else:  # not Arrow's min_element_wise: it knows no timestamps with a zone
        keeps = {"min": pc.less, "max": pc.greater}[op](before, now)
        both = pc.if_else(keeps, before, now)
    return pc.coalesce(both, before, now)


# -- looking up -----------------------------------------------------------------------------------------


def found(layout: StateLayout, runs: Sequence[SortedFile], matcher: Matcher) -> tuple[Any, pa.Table] | None:
    """Return which rows of the batch are stored already, and the newest row of each. None: none is.

    Rows that are deleted or expired are among them: they hide what is older.
    """
    import numpy as np
    import pyarrow as pa

    newest, place = np.full(matcher.rows, -1, np.int64), np.full(matcher.rows, -1, np.int64)
    tables, count = [], 0
    for run in runs:
        for batch_rows, rows in _hits(layout, run, matcher):  # each row of the batch at most once, as keys in a file
            checkpoints = rows[CHECKPOINT].to_numpy()
            newer = np.flatnonzero(checkpoints >= newest[batch_rows])
            newest[batch_rows[newer]], place[batch_rows[newer]] = checkpoints[newer], count + newer
            tables.append(rows)
            count += len(batch_rows)
    if not tables:
        return None
    hit = np.flatnonzero(place >= 0)
    return hit, pa.concat_tables(tables).take(pa.array(place[hit]))


def _hits(layout: StateLayout, run: SortedFile, matcher: Matcher) -> Iterator[tuple[Any, pa.Table]]:
    value_names = [name for name in layout.schema.names if name not in (*layout.keys, GROUP)]
    with opened(run) as file:
        places = {file.metadata.schema.column(position).path: position for position in range(file.metadata.num_columns)}
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            if not matcher.may_be_in(metadata, places[layout.keys[0]]):
                continue
            columns = read(file, layout, layout.keys, group)
            place, batch_rows = matcher.rows_in([columns[name].combine_chunks() for name in layout.keys])
            if len(place):
                same = {name: value for name in (CHECKPOINT, DELETED) for value in _same(metadata.column(places[name]))}
                yield (
                    batch_rows,
                    _taken(
                        read(file, layout, [n for n in value_names if n not in same], group), place, same, value_names
                    ),
                )


def _same(column: Any) -> list[Any]:
    """Return the single value of a row group's column, if its statistics say that there is but one."""
    stats = column.statistics
    is_constant = stats is not None and stats.has_min_max and stats.null_count == 0 and stats.min == stats.max
    return [stats.min] if is_constant else []


def _taken(rows: pa.Table, place: Any, same: Mapping[str, Any], names: Sequence[str]) -> pa.Table:
    """Return rows at these places, with the columns that are the same in all."""
    import pyarrow as pa

    selected = rows.take(pa.array(place))
    columns = {name: pa.repeat(pa.scalar(value), len(place)) for name, value in same.items()}
    return pa.table([columns[name] if name in columns else selected[name] for name in names], names=list(names))


def opened(run: SortedFile) -> Any:
    """Open the file: as a memory map; from an object store, so that what is read together is asked for together."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(open_path(run.path, run.options), pre_buffer=is_url(run.path))


def read(file: Any, layout: StateLayout, names: Sequence[str], group: int) -> pa.Table:
    """Read some columns of a row group in the state's types; columns that the file lacks are null."""
    import pyarrow as pa

    stored = set(file.schema_arrow.names)
    rows = file.read_row_group(group, columns=[n for n in names if n in stored], use_threads=False)
    fields = [layout.schema.field(name) for name in names]
    columns = [rows[f.name].cast(f.type) if f.name in stored else pa.nulls(rows.num_rows, f.type) for f in fields]
    return pa.table(columns, schema=pa.schema(fields))


# -- merging runs ---------------------------------------------------------------------------------------


def merged(layout: StateLayout, runs: Sequence[SortedFile], groups: range) -> pa.Table:
    """Return the newest row of each key in these files, deleted ones included, in groups among `groups`."""
    import pyarrow as pa

    parts = []
    for run in runs:
        with opened(run) as file:
            read_of_it = [read(file, layout, layout.schema.names, group) for group in range(file.num_row_groups)]
        parts.append(pa.concat_tables([layout.schema.empty_table(), *read_of_it]))
    return newest(layout, parts, groups if any(not run.within(groups) for run in runs) else None)


def newest(layout: StateLayout, parts: Sequence[pa.Table], groups: range | None = None) -> pa.Table:
    """Return the newest row of each key, sorted; only of these groups, if given. In a part each key occurs once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts, are_so = _newest_first(parts)
    rows = pa.concat_tables([layout.schema.empty_table(), *parts])
    if groups is not None:
        rows = rows.filter(pc.and_(pc.greater_equal(rows[GROUP], groups.start), pc.less(rows[GROUP], groups.stop)))
    if len(parts) < 2:  # sorted already, and each key once
        return rows
    order = pa.array(order_of(rows, layout.keys, newest_first=True, are_so=are_so))
    return rows.take(order.take(pa.array(firsts(rows.select(layout.keys).take(order), layout.keys))))


def _newest_first(parts: Sequence[pa.Table]) -> tuple[list[pa.Table], bool]:
    """Return the parts that have rows, newest first; and whether no row of one is older than any of the next."""
    import pyarrow.compute as pc

    ages = [(pc.min_max(part[CHECKPOINT]), part) for part in parts if part.num_rows]
    spans = sorted(((span["max"].as_py(), span["min"].as_py(), part) for span, part in ages), key=_end, reverse=True)
    apart = all(newer[1] >= older[0] for newer, older in itertools.pairwise(spans))
    return [part for _, _, part in spans], apart


def _end(span: tuple[int, int, Any]) -> int:
    return span[0]


# -- writing --------------------------------------------------------------------------------------------


class Writer:
    """Writes one file of sorted rows, a row group at a time. Whole-number keys are delta-encoded: an eighth of the
    size, and quicker to read than compressed."""

    def __init__(self, layout: StateLayout, path: str) -> None:
        self.layout = layout
        self.path = path
        self.rows = 0
        self._held: list[Any] = []
        self._file: Any = None
        self._sink: Any = None

    def write(self, rows: pa.Table) -> None:
        """Add rows, in the order of their keys."""
        self._held.append(rows)
        if sum(table.num_rows for table in self._held) >= GROUP_ROWS:
            self._flush(GROUP_ROWS)

    def close(self) -> WrittenFile:
        """Complete the file. Without any rows, there is none."""
        self._flush(1)
        size = 0
        if self._file is not None:
            self._file.close()
            size = self._sink.tell()
            self._sink.close()
        return WrittenFile(self.rows, size)

    def _flush(self, unit: int) -> None:
        import pyarrow as pa

        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        whole = rows.num_rows // unit * unit
        self._held = [rows.slice(whole)] if whole < rows.num_rows else []
        if not whole:
            return
        if self._file is None:
            self._file = self._create(rows)
        self._file.write_table(rows.slice(0, whole), row_group_size=GROUP_ROWS)
        self.rows += whole

    def _create(self, sample: pa.Table) -> Any:
        import pyarrow.parquet as pq

        self._sink = create_path(self.path, self.layout.options)
        numbers = [n for n in self.layout.keys if integers(sample[n].slice(0, 0)) is not None]
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
    """Yield batches as tables, none of them empty."""
    import pyarrow as pa

    for batch in itertools.filterfalse(lambda batch: batch.num_rows == 0, batches):
        yield pa.Table.from_batches([batch])
