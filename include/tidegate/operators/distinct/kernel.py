"""Distinct values as workers find them, for one range of key groups: which of the batch's have never been there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, order
from tidegate.state.arrow.reducing import reduced
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ARRIVED_GENERATION",
    "CARRIES_AGGREGATES",
    "COUNT_BITS",
    "GENERATION",
    "MAX_COUNTS",
    "MULTIPLICITY",
    "ROWS_AFTER",
    "ROWS_BEFORE",
    "NewValues",
    "new_column",
]

COUNT_BITS: Final = "_tidegate_counts"
"""The column of the batch that says which of the counts a row's value is for: a bit for each."""
CARRIES_AGGREGATES: Final = "_tidegate_first"
"""The column of the batch that is true in exactly one of the rows made of an input row: in that which carries the
partial values of the other aggregates; if Spark has reduced them, in the row that stands for it. Its own value may be
null."""
GENERATION: Final = "_since"
"""The column of the states with the checkpoint in which the life of the key began that a value counts for. Null: before
anything could expire."""
ARRIVED_GENERATION: Final = "_tidegate_since"
"""The column of the batch with the checkpoint in which the life of the row's key began."""
MULTIPLICITY: Final = "_tidegate_alike"
"""The column of the batch with the number of rows that a row stands for. Without it Spark has not reduced them."""
ROWS_BEFORE: Final = "rows"
"""What workers report: how many rows there were before Spark reduced them …"""
ROWS_AFTER: Final = "reduced rows"
"""… and how many there are since."""
MAX_COUNTS: Final = 60
"""The most counts that such a number has bits for."""


def new_column(count: int) -> str:
    """Return the column with the number of values that are new to a count."""
    return f"_tidegate_new{count}"


@dataclass(frozen=True)
class NewValues(Kernel):
    """Keeps the values that are new to a count, and emits how many there are: a row for each key."""

    key_columns: Sequence[str]
    values: Sequence[str]
    """The columns that are one value together. None of them is null."""
    states: Sequence[Sequence[str]]
    """For each state its columns: above 0 if a value is there, by count. Of values that nothing takes back it does not
    matter how often they are."""
    co_aggregates: Mapping[str, str] = field(default_factory=dict)
    """The columns with partial values of other aggregates, each with the operation that merges it. They are emitted, a
    row for each key, so that nobody has to read the batch again for them."""
    has_generations: bool = False
    """Whether keys begin anew (`key_generations.py`): values of an earlier life of their key are not there."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        keys = [*self.key_columns, *self.values]
        merged, fewer = self._merged(arrived), _rows_before_and_after(arrived)
        lives = [ARRIVED_GENERATION] if self.has_generations else []
        arrived = arrived.select([GROUP, *keys, COUNT_BITS, *lives])
        if self.co_aggregates:
            arrived = _with_values(arrived, self.values)
        codes, *known = codes_of([rows.select(keys) for rows in (arrived, *stored)], keys, small=False)
        in_order = order(codes)
        ascending = codes[in_order]
        starts = np.flatnonzero(np.diff(ascending, prepend=-1))
        values, first, bits = ascending[starts], in_order[starts], arrived[COUNT_BITS].to_numpy()[in_order]
        since = integers(arrived[ARRIVED_GENERATION])[first] if self.has_generations else None
        changes, given, bit = [], [], 0
        for names, before, rows in zip(self.states, known, stored, strict=True):
            now, is_new, places = {}, {}, _places(before, values)
            counts = self._counts(rows, places, since)
            for name in names:
                there = np.where(counts, _numbers(rows[name], *places, len(values)), 0)
                came = np.add.reduceat(bits >> bit & 1, starts) if len(starts) else there
                is_new[bit] = (came > 0) & (there <= 0)
                now[name] = np.where(is_new[bit], came, there)
                bit += 1
            changed = np.logical_or.reduce(list(is_new.values()))
            found = arrived.select([GROUP, *keys]).take(pa.array(first[changed]))
            counted = {name: pa.array(numbers[changed]) for name, numbers in now.items()}
            same = {name: found[name] for name in found.column_names}
            if since is not None:
                same[GENERATION] = pa.array(since[changed])
            changes.append(pa.table({**same, **counted, DELETED: pa.array(np.zeros(found.num_rows, bool))}))
            given.append((found, {count: mask[changed] for count, mask in is_new.items()}))
        return KernelResult(changes, self._growth_by_key(given, merged), fewer)

    def _counts(self, rows: pa.Table, places: tuple[Any, Any], since: Any) -> Any:
        """Return which of the values count for the life that their key has now. since: when it began."""
        return True if since is None else _numbers(rows[GENERATION], *places, len(since)) == since

    def _merged(self, arrived: pa.Table) -> pa.Table:
        """Return the partial values of other aggregates by key."""
        rows = arrived.select([*self.key_columns, *self.co_aggregates])
        if not self.co_aggregates:
            return rows.slice(0, 0)
        merged = reduced(rows.filter(arrived[CARRIES_AGGREGATES]).to_batches(), self.key_columns, self.co_aggregates)
        return rows.slice(0, 0) if merged is None else merged

    def _growth_by_key(
        self, given: Sequence[tuple[pa.Table, Mapping[int, Any]]], merged: pa.Table
    ) -> Iterator[pa.Table]:
        """Yield a row for each key: by how much its counts have grown, and the partial values that came along."""
        import numpy as np
        import pyarrow as pa

        tables = [rows.select(self.key_columns) for rows in (*(rows for rows, _ in given), merged)]
        codes = codes_of(tables, self.key_columns)
        there, first = np.unique(np.concatenate(codes), return_index=True)
        if not len(there):
            return
        keys = pa.concat_tables(tables).take(pa.array(first))
        columns: dict[str, Any] = {name: keys[name] for name in self.key_columns}
        for (_, is_new), numbers in zip(given, codes, strict=False):
            for count, mask in is_new.items():
                sums = np.bincount(numbers[mask], minlength=there[-1] + 1)
                columns[new_column(count)] = pa.array(sums[there], pa.int64())
        place = np.full(there[-1] + 1, -1)
        place[codes[-1]] = np.arange(merged.num_rows)
        came = merged.take(pa.array(place[there], mask=place[there] < 0))
        yield pa.table(columns | {name: came[name] for name in self.co_aggregates})


def _rows_before_and_after(arrived: pa.Table) -> dict[str, int]:
    """Return how many rows there were and are, if Spark has reduced them."""
    if MULTIPLICITY not in arrived.column_names:
        return {}
    return {ROWS_BEFORE: int(integers(arrived[MULTIPLICITY]).sum()), ROWS_AFTER: int(arrived.num_rows)}


def _with_values(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows in which none of these columns is null."""
    import pyarrow.compute as pc

    for name in names:
        if rows[name].null_count:
            rows = rows.filter(pc.is_valid(rows[name]))
    return rows.combine_chunks()


def _places(codes: Any, values: Any) -> tuple[Any, Any]:
    """Return which of the codes are among the values, which are sorted, and where."""
    import numpy as np

    if not len(values):
        return np.zeros(len(codes), bool), np.zeros(0, np.int64)
    places = np.minimum(np.searchsorted(values, codes), len(values) - 1)
    known = values[places] == codes
    return known, places[known]


def _numbers(column: Any, known: Any, places: Any, count: int) -> Any:
    """Return how often each of `count` values is there: 0 where it is not."""
    import numpy as np
    import pyarrow.compute as pc

    numbers = np.zeros(count, np.int64)
    numbers[places] = integers(pc.fill_null(column, 0))[known]
    return numbers
