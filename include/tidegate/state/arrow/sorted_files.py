"""Runs of a state as a Python worker of Spark sees them: plain Parquet files, sorted by key, read and written by Arrow.

    reduced   rows of a batch, several per key        →  one row per key, sorted
    found     the keys of a batch, and the files      →  the newest row of each key that is there
    merged    several files                           →  the newest row of each of their keys
    Writer    sorted rows                             →  one more file

Whoever reads looks at the key columns only, a row group at a time and only of those whose statistics allow a hit;
of the others, only the rows that were hit count. So memory follows the batch, whatever the size of the state.
All of this gives the same rows as the DataFrame algebra of state/keyed.py, which is there for every type.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.delta.arrow_types import dictionary_columns
from tidegate.state.arrow.matching import Matcher
from tidegate.state.arrow.packed_keys import integers, order, packed
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, TOUCHED

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "SortedFile",
    "StateLayout",
    "Writer",
    "combined",
    "found",
    "merged",
    "newest",
    "opened",
    "read",
    "reduced",
    "sorted_chunks",
]

GROUP_ROWS = 1 << 17
"""Rows in a row group: a reader skips, and holds in memory, that many."""


@dataclass(frozen=True)
class SortedFile:
    """One file."""

    path: str
    groups: tuple[int, int]
    """The least and the greatest key group in it."""

    def within(self, groups: range) -> bool:
        """Whether it has rows of these groups only."""
        return self.groups[0] >= groups.start and self.groups[1] < groups.stop


@dataclass(frozen=True)
class StateLayout:
    """What all files of a state have in common."""

    keys: tuple[str, ...]
    schema: pa.Schema
    """Keys, values and what tidegate adds, in this order."""

    @property
    def values(self) -> list[str]:
        """The columns that are neither keys nor tidegate's."""
        return [n for n in self.schema.names if n not in (*self.keys, GROUP, CHECKPOINT, DELETED, TOUCHED)]

    def table(self, columns: Mapping[str, Any], rows: int) -> pa.Table:
        """Rows of a file; what is no array is the same for all."""
        import pyarrow as pa

        def column(field: pa.Field) -> Any:
            given = columns[field.name]
            if isinstance(given, pa.Array | pa.ChunkedArray):
                return given.cast(field.type)
            return pa.repeat(pa.scalar(given, field.type), rows)

        return pa.table([column(field) for field in self.schema], schema=self.schema)


# -- sorting -------------------------------------------------------------------------------------------


def order_of(rows: pa.Table, keys: Sequence[str], newest_first: bool = False, are_so: bool = False) -> Any:
    """The places of the rows by key; of equal keys the newest first, if asked for.

    are_so: of equal keys the newest stand first already.
    """
    import numpy as np
    import pyarrow.compute as pc

    if (plain := packed(rows, keys)) is not None:
        if newest_first and not are_so:
            return np.lexsort((-rows[CHECKPOINT].to_numpy(), plain))
        return order(plain)
    by = [(name, "ascending") for name in keys] + ([(CHECKPOINT, "descending")] if newest_first else [])
    return pc.sort_indices(rows, sort_keys=by).to_numpy()


def firsts(rows: pa.Table, keys: Sequence[str]) -> Any:
    """Of sorted rows, the place of each key's first one."""
    import numpy as np
    import pyarrow.compute as pc

    differ = np.zeros(max(rows.num_rows - 1, 0), bool)
    for name in keys:
        column = rows[name].combine_chunks()
        one, other = column[:-1], column[1:]
        changed = pc.fill_null(pc.not_equal(one, other), False)
        nulls = pc.not_equal(pc.is_null(one), pc.is_null(other))
        differ |= pc.or_(changed, nulls).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(differ) + 1]) if rows.num_rows else np.zeros(0, int)


# -- one row per key ------------------------------------------------------------------------------------


def reduced(batches: Iterable[pa.RecordBatch], keys: Sequence[str], ops: Mapping[str, str]) -> pa.Table | None:
    """One row per key, sorted; None: there are no rows. Rows are reduced as they come, so only keys add up."""
    import pyarrow as pa

    held: list[Any] = []
    for batch in batches:
        held.append(pa.Table.from_batches([batch]))
        if sum(each.num_rows for each in held[1:]) > REDUCE_AT:
            held = [_reduced(pa.concat_tables(held), keys, ops)]
    rows = pa.concat_tables(held) if held else None
    return _reduced(rows, keys, ops) if rows is not None and rows.num_rows else None


REDUCE_AT = 4_000_000


def _reduced(rows: pa.Table, keys: Sequence[str], ops: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    rows = rows.take(pa.array(order_of(rows, keys)))
    starts = firsts(rows, keys)
    if len(starts) == rows.num_rows:
        return rows
    one = rows.take(pa.array(starts))
    for name, op in ops.items():
        place = one.schema.get_field_index(name)
        one = one.set_column(place, one.schema.field(name), _segments(rows[name], op, starts))
    return one


def _segments(column: Any, op: str, starts: Any) -> Any:
    """Sum, min or max of the rows from each start to the next. Nulls do not count; of nothing but nulls it is null."""
    import numpy as np
    import pyarrow as pa

    kind, rows = column.type, len(column)
    if (plain := integers(column)) is not None and not (op == "sum" and _may_overflow(plain)):
        whole = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op].reduceat(plain, starts)
        made = pa.array(whole)
        return made.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else made.cast(kind)
    if op == "sum" and pa.types.is_integer(kind):
        column = column.cast(pa.decimal128(38, 0))  # Arrow's own sum wraps around; the cast back does not
    segment = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows)))
    grouped = pa.table({"s": segment, "v": column}).group_by("s", use_threads=False).aggregate([("v", op)])
    return grouped[f"v_{op}"].cast(kind)


def _may_overflow(plain: Any) -> bool:
    return bool(max(abs(float(plain.min())), abs(float(plain.max()))) * len(plain) >= 9e18)


def combined(before: Any, now: Any, op: str) -> Any:
    """What a key's partial value becomes: null is nothing known yet."""
    import pyarrow.compute as pc

    if op == "sum":
        both = pc.add_checked(before, now).cast(now.type)
    else:  # not Arrow's min_element_wise: it knows no timestamps with a zone
        keeps = {"min": pc.less, "max": pc.greater}[op](before, now)
        both = pc.if_else(keeps, before, now)
    return pc.coalesce(both, before, now)


# -- looking up -----------------------------------------------------------------------------------------


def found(layout: StateLayout, runs: Sequence[SortedFile], matcher: Matcher) -> tuple[Any, pa.Table] | None:
    """Which rows of the batch have been there before, and the newest row of each. None: none has.

    Rows that are deleted or expired are among them: they hide what is older.
    """
    import numpy as np
    import pyarrow as pa

    newest, place = np.full(matcher.rows, -1, np.int64), np.full(matcher.rows, -1, np.int64)
    held, count = [], 0
    for run in runs:
        for at, rows in _hits(layout, run, matcher):  # each row of the batch at most once, as keys in a file
            told = rows[CHECKPOINT].to_numpy()
            newer = np.flatnonzero(told >= newest[at])
            newest[at[newer]], place[at[newer]] = told[newer], count + newer
            held.append(rows)
            count += len(at)
    if not held:
        return None
    hit = np.flatnonzero(place >= 0)
    return hit, pa.concat_tables(held).take(pa.array(place[hit]))


def _hits(layout: StateLayout, run: SortedFile, matcher: Matcher) -> Iterator[tuple[Any, pa.Table]]:
    rest = [name for name in layout.schema.names if name not in (*layout.keys, GROUP)]
    with opened(run) as file:
        places = {file.metadata.schema.column(at).path: at for at in range(file.metadata.num_columns)}
        for group in range(file.num_row_groups):
            told = file.metadata.row_group(group)
            if not matcher.may_be_in(told, places[layout.keys[0]]):
                continue
            columns = read(file, layout, layout.keys, group)
            place, at = matcher.rows_in([columns[name].combine_chunks() for name in layout.keys])
            if len(place):
                same = {name: value for name in (CHECKPOINT, DELETED) for value in _same(told.column(places[name]))}
                yield at, _taken(read(file, layout, [n for n in rest if n not in same], group), place, same, rest)


def _same(column: Any) -> list[Any]:
    """The one value of a row group's column, if its statistics say that there is but one."""
    stats = column.statistics
    one = stats is not None and stats.has_min_max and stats.null_count == 0 and stats.min == stats.max
    return [stats.min] if one else []


def _taken(rows: pa.Table, place: Any, same: Mapping[str, Any], names: Sequence[str]) -> pa.Table:
    """Rows of these places, with the columns that are the same in all."""
    import pyarrow as pa

    taken = rows.take(pa.array(place))
    columns = {name: pa.repeat(pa.scalar(value), len(place)) for name, value in same.items()}
    return pa.table([columns[name] if name in columns else taken[name] for name in names], names=list(names))


def opened(run: SortedFile) -> Any:
    """The file, to be read where it lies."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(run.path, memory_map=True, pre_buffer=False)


def read(file: Any, layout: StateLayout, names: Sequence[str], group: int) -> pa.Table:
    """Some columns of a row group in the state's types; those that the file was written without are null."""
    import pyarrow as pa

    stored = set(file.schema_arrow.names)
    rows = file.read_row_group(group, columns=[n for n in names if n in stored], use_threads=False)
    fields = [layout.schema.field(name) for name in names]
    columns = [rows[f.name].cast(f.type) if f.name in stored else pa.nulls(rows.num_rows, f.type) for f in fields]
    return pa.table(columns, schema=pa.schema(fields))


# -- merging runs ---------------------------------------------------------------------------------------


def merged(layout: StateLayout, runs: Sequence[SortedFile], groups: range) -> pa.Table:
    """The newest row of each key in these files, as far as its group is one of `groups`; deleted ones included."""
    import pyarrow as pa

    parts = []
    for run in runs:
        with opened(run) as file:
            read_of_it = [read(file, layout, layout.schema.names, group) for group in range(file.num_row_groups)]
        parts.append(pa.concat_tables([layout.schema.empty_table(), *read_of_it]))
    return newest(layout, parts, groups if any(not run.within(groups) for run in runs) else None)


def newest(layout: StateLayout, parts: Sequence[pa.Table], groups: range | None = None) -> pa.Table:
    """The newest row of each key, sorted; of these groups alone, if given. In a part each key is there once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts, are_so = _newest_first(parts)
    rows = pa.concat_tables([layout.schema.empty_table(), *parts])
    if groups is not None:
        rows = rows.filter(pc.and_(pc.greater_equal(rows[GROUP], groups.start), pc.less(rows[GROUP], groups.stop)))
    rows = rows.take(pa.array(order_of(rows, layout.keys, newest_first=True, are_so=are_so)))
    return rows.take(pa.array(firsts(rows, layout.keys)))


def _newest_first(parts: Sequence[pa.Table]) -> tuple[list[pa.Table], bool]:
    """The parts that have rows, newest first; and whether no row of one is older than any of the next."""
    import pyarrow.compute as pc

    told = [(pc.min_max(part[CHECKPOINT]), part) for part in parts if part.num_rows]
    spans = sorted(((span["max"].as_py(), span["min"].as_py(), part) for span, part in told), key=_end, reverse=True)
    apart = all(one[1] >= other[0] for one, other in itertools.pairwise(spans))
    return [part for _, _, part in spans], apart


def _end(span: tuple[int, int, Any]) -> int:
    return span[0]


# -- writing --------------------------------------------------------------------------------------------


class Writer:
    """Writes one file of sorted rows, a row group at a time. Whole numbers that are keys are written as differences:
    an eighth of the size, and quicker to read than what is compressed."""

    def __init__(self, layout: StateLayout, path: str) -> None:
        self.layout = layout
        self.path = path
        self.rows = 0
        self._held: list[Any] = []
        self._file: Any = None

    def write(self, rows: pa.Table) -> None:
        """Add rows; they come in the order of their keys."""
        self._held.append(rows)
        if sum(each.num_rows for each in self._held) >= GROUP_ROWS:
            self._flush(GROUP_ROWS)

    def close(self) -> int:
        """Complete the file; how many rows there are. None at all: there is no file."""
        self._flush(1)
        if self._file is not None:
            self._file.close()
        return self.rows

    def _flush(self, least: int) -> None:
        import pyarrow as pa

        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        whole = rows.num_rows // least * least
        self._held = [rows.slice(whole)] if whole < rows.num_rows else []
        if not whole:
            return
        if self._file is None:
            self._file = self._create(rows)
        self._file.write_table(rows.slice(0, whole), row_group_size=GROUP_ROWS)
        self.rows += whole

    def _create(self, sample: pa.Table) -> Any:
        import pyarrow.parquet as pq

        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        numbers = [n for n in self.layout.keys if integers(sample[n].slice(0, 0)) is not None]
        repeated = dictionary_columns(sample.drop_columns(numbers)) or []
        return pq.ParquetWriter(
            self.path,
            self.layout.schema,
            compression="snappy",
            use_dictionary=repeated,
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED") or None,
            store_decimal_as_integer=True,
        )


def sorted_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches as tables, none of them empty."""
    import pyarrow as pa

    for batch in itertools.filterfalse(lambda each: each.num_rows == 0, batches):
        yield pa.Table.from_batches([batch])
