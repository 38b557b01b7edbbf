"""The kernel of distinct values: finds those of the batch that are new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, distinct_codes, integers, order
from tidegate.state.arrow.reducing import reduced
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ARRIVED_LIFE",
    "CARRIES_AGGREGATES",
    "COUNT_BITS",
    "LIFE",
    "MAX_COUNTS",
    "MULTIPLICITY",
    "ROWS_AFTER",
    "ROWS_BEFORE",
    "NewValues",
    "new_column",
]

COUNT_BITS: Final = "_tidegate_counts"
"""The column of the batch with a bit for each count, set if a row's value is for the count."""
CARRIES_AGGREGATES: Final = "_tidegate_first"
"""The column of the batch that is true in just one of the rows of an input row: the one that carries the partial values
of other aggregates. The distinct value of this row may be null."""
LIFE: Final = "_since"
"""The column of the states with the life of the key that a value counts for: the checkpoint in which it began.
Null: the value was written before keys could expire."""
ARRIVED_LIFE: Final = "_tidegate_since"
"""The column of the batch with the life of the row's key."""
MULTIPLICITY: Final = "_tidegate_alike"
"""The column of the batch with the number of rows that Spark has merged into a row, if it has pre-aggregated them."""
ROWS_BEFORE: Final = "rows"
"""The kernel's counter of rows before Spark pre-aggregated them."""
ROWS_AFTER: Final = "reduced rows"
"""The kernel's counter of rows after Spark pre-aggregated them."""
MAX_COUNTS: Final = 60
"""The number of counts for which `COUNT_BITS` has bits."""


def new_column(count: int) -> str:
    """Return the column with the number of values that are new for a count."""
    return f"_tidegate_new{count}"


@dataclass(frozen=True)
class NewValues(Kernel):
    """Stores the values that are new for a count, and emits their numbers, with a row for each key."""

    key_columns: Sequence[str]
    values: Sequence[str]
    """The columns that make up a value. None of them is null."""
    states: Sequence[Sequence[str]]
    """For each state the columns of its counts, which are above 0 if a value is stored for the count. Without
    retractions, multiplicity is irrelevant."""
    co_aggregates: Mapping[str, str] = field(default_factory=dict)
    """The columns with partial values of other aggregates, each with the operation that merges it. They are emitted in
    the same rows, so that the batch need not be read again for them."""
    has_lives: bool = False
    """Whether keys have lives (`key_lives.py`). Values of earlier lives do not count."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        keys = [*self.key_columns, *self.values]
        merged, counters = self._merged(arrived), _rows_before_and_after(arrived)
        columns = [GROUP, *keys, COUNT_BITS]
        if self.has_lives:
            columns.append(ARRIVED_LIFE)
        arrived = arrived.select(columns)
        if self.co_aggregates:
            arrived = _with_values(arrived, self.values)
        codes, *codes_of_states = codes_of([rows.select(keys) for rows in (arrived, *stored)], keys, small=False)
        in_order = order(codes)
        ascending = codes[in_order]
        starts = np.flatnonzero(np.diff(ascending, prepend=-1))
        values, first, bits = ascending[starts], in_order[starts], arrived[COUNT_BITS].to_numpy()[in_order]
        lives = integers(arrived[ARRIVED_LIFE])[first] if self.has_lives else None
        changes, new_values, bit = [], [], 0
        for names, stored_codes, rows in zip(self.states, codes_of_states, stored, strict=True):
            now, is_new, matches = {}, {}, _match(stored_codes, values)
            is_current = self._is_current(rows, matches, lives)
            for name in names:
                before = np.where(is_current, _numbers(rows[name], *matches, len(values)), 0)
                added = np.add.reduceat(bits >> bit & 1, starts) if len(starts) else before
                is_new[bit] = (added > 0) & (before <= 0)
                now[name] = np.where(is_new[bit], added, before)
                bit += 1
            changed = np.logical_or.reduce(list(is_new.values()))
            changed_values = arrived.select([GROUP, *keys]).take(pa.array(first[changed]))
            change: dict[str, Any] = {}
            for name in changed_values.column_names:
                change[name] = changed_values[name]
            if lives is not None:
                change[LIFE] = pa.array(lives[changed])
            for name, numbers in now.items():
                change[name] = pa.array(numbers[changed])
            change[DELETED] = pa.array(np.zeros(changed_values.num_rows, bool))
            changes.append(pa.table(change))
            new_values.append((changed_values, {count: mask[changed] for count, mask in is_new.items()}))
        return KernelResult(changes, self._growth_per_key(new_values, merged), counters)

    def _is_current(self, rows: pa.Table, matches: tuple[Any, Any], lives: Any) -> Any:
        """Return which of the values are stored for the present life of their key."""
        if lives is None:
            return True
        return _numbers(rows[LIFE], *matches, len(lives)) == lives

    def _merged(self, arrived: pa.Table) -> pa.Table:
        """Return the partial values of other aggregates by key."""
        rows = arrived.select([*self.key_columns, *self.co_aggregates])
        if not self.co_aggregates:
            return rows.slice(0, 0)
        merged = reduced(rows.filter(arrived[CARRIES_AGGREGATES]).to_batches(), self.key_columns, self.co_aggregates)
        return rows.slice(0, 0) if merged is None else merged

    def _growth_per_key(
        self, new_values: Sequence[tuple[pa.Table, Mapping[int, Any]]], merged: pa.Table
    ) -> Iterator[pa.Table]:
        """Yield a row for each key: the growth of its counts, and its partial values of other aggregates.

        new_values: for each state its new values, with a mask for each count. merged: the partial values.
        """
        import numpy as np
        import pyarrow as pa

        tables = [rows.select(self.key_columns) for rows, _ in new_values]
        tables.append(merged.select(self.key_columns))
        codes = codes_of(tables, self.key_columns)
        every_code = np.concatenate(codes)
        first, _ = distinct_codes(every_code)
        if not len(first):
            return
        distinct = every_code[first]
        keys = pa.concat_tables(tables).take(pa.array(first))
        columns: dict[str, Any] = {name: keys[name] for name in self.key_columns}
        for (_, is_new), numbers in zip(new_values, codes, strict=False):
            for count, mask in is_new.items():
                sums = np.bincount(numbers[mask], minlength=distinct[-1] + 1)
                columns[new_column(count)] = pa.array(sums[distinct], pa.int64())
        position = np.full(distinct[-1] + 1, -1)
        position[codes[-1]] = np.arange(merged.num_rows)
        partials = merged.take(pa.array(position[distinct], mask=position[distinct] < 0))
        for name in self.co_aggregates:
            columns[name] = partials[name]
        yield pa.table(columns)


def _rows_before_and_after(arrived: pa.Table) -> dict[str, int]:
    """Return the numbers of rows before and after pre-aggregation, if Spark has done it."""
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


def _match(codes: Any, values: Any) -> tuple[Any, Any]:
    """Return a mask of the codes that are among the sorted values, and their positions there."""
    import numpy as np

    if not len(values):
        return np.zeros(len(codes), bool), np.zeros(0, np.int64)
    positions = np.minimum(np.searchsorted(values, codes), len(values) - 1)
    is_match = values[positions] == codes
    return is_match, positions[is_match]


def _numbers(column: Any, is_match: Any, positions: Any, count: int) -> Any:
    """Return the stored number of each of `count` values, or 0 for a value that is not stored."""
    import numpy as np
    import pyarrow.compute as pc

    numbers = np.zeros(count, np.int64)
    numbers[positions] = integers(pc.fill_null(column, 0))[is_match]
    return numbers
