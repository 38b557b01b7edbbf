"""The kernel that finds the top rows of each key. `operators/ranking.py` explains the ways to rank them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.kernels.ordered import ordered
from tidegate.state.arrow.kernel_worker import IS_CURRENT, Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, distinct_codes
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RankedRows", "TopRows", "in_order"]


@dataclass(frozen=True)
class TopRows(Kernel):
    """Keeps the first `n` rows of each key in an order, and emits the rows that enter or leave them.

    A row of the batch has its id in `_row`, and the change of its number of copies in `_n`.
    """

    key_columns: Sequence[str]
    values: Sequence[str]
    """The other columns."""
    order: Sequence[tuple[str, bool]]
    """The columns to order by, and whether they ascend. Null comes last. Ties are broken by `_row`."""
    n: int
    keeps_all: bool
    """Whether all rows are kept, because the input can retract the first ones."""
    columns: Sequence[str]
    """The columns of the result, without `rank`."""
    number: str
    """The column with the rank."""
    rank: str = "row_number"

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        rows = RankedRows.rank(arrived, stored[0], self)
        return KernelResult([rows.changes()], rows.entering_and_leaving())

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the rows that may be among the first `n` of their key."""
        import numpy as np
        import pyarrow as pa

        if self.keeps_all:
            return arrived
        (key,) = codes_of([arrived.select(self.key_columns)], self.key_columns)
        order = in_order(arrived, key, [*self.order, ("_row", True)])
        rows, key = arrived.take(pa.array(order)), key[order]
        return rows.filter(pa.array(self.places(rows, np.ones(len(order), np.int64), key) < self.n))

    def places(self, rows: pa.Table, counts: Any, keys: Any) -> Any:
        """Return the rank of each row, or of the first of its copies, from 0. The rows are in order."""
        import numpy as np

        rows_before = _count_before(counts, keys)
        if self.rank == "row_number":
            return rows_before
        begins = _begins(rows, keys, [name for name, _ in self.order])
        group = np.cumsum(begins) - 1
        if self.rank == "rank":
            return rows_before[np.flatnonzero(begins)][group]
        groups = group[-1] + 1 if len(group) else 0
        has_rows = np.bincount(group, weights=np.maximum(counts, 0), minlength=groups) > 0
        return _count_before(has_rows.astype(np.int64), keys[np.flatnonzero(begins)])[group]


class RankedRows:
    """All rows of the keys in the batch, each once, in order."""

    def __init__(self, rows: pa.Table, was: Any, now: Any, work: TopRows) -> None:
        import pyarrow as pa

        (key,) = codes_of([rows.select(work.key_columns)], work.key_columns)
        order = in_order(rows, key, [*work.order, ("_row", True)])
        self.work = work
        self.rows = rows.take(pa.array(order))
        self.counts = {True: now[order], False: was[order]}
        """The number of copies of each row: now (True), and at the base (False)."""
        self.places = {time: work.places(self.rows, counts, key[order]) for time, counts in self.counts.items()}
        """The rank of each row, or of the first of its copies, from 0: now and at the base."""

    @classmethod
    def rank(cls, arrived: pa.Table, stored: pa.Table, work: TopRows) -> RankedRows:
        """Merge the batch's rows and the stored ones, and put them in order."""
        import numpy as np
        import pyarrow as pa

        names = [GROUP, *work.key_columns, "_row", *work.values]
        both = pa.concat_tables([stored.select(names), arrived.select(names)], promote_options="permissive")
        codes = np.concatenate(codes_of([stored.select(["_row"]), arrived.select(["_row"])], ["_row"]))
        first, row_number = distinct_codes(codes)
        old, distinct = stored.num_rows, len(first)
        was = np.bincount(row_number[:old], weights=stored["_n"].to_numpy(), minlength=distinct).astype(np.int64)
        change = np.bincount(row_number[old:], weights=arrived["_n"].to_numpy(), minlength=distinct).astype(np.int64)
        return cls(both.take(pa.array(first)).combine_chunks(), was, was + change, work)

    def changes(self, storable: Any = True) -> pa.Table:
        """Return the changed rows of the state. storable: a mask of the rows that it may hold."""
        import numpy as np
        import pyarrow as pa

        now, was = self.counts[True], self.counts[False]
        changed = (now != was) & storable
        if self.work.keeps_all:
            stays = now > 0
            chosen = np.flatnonzero(changed)
        else:
            stays = (now > 0) & (self.places[True] < self.work.n)
            chosen = np.flatnonzero((changed & stays) | ((was > 0) & ~stays & storable))
        if not self.work.keeps_all and self.work.rank == "row_number":
            # `combine` may have dropped copies beyond `n`. With the limit, the state is the same whether it has run.
            now = np.minimum(now, self.work.n)
        rows = self.rows.take(pa.array(chosen)).append_column("_n", pa.array(now[chosen]))
        return rows.append_column(DELETED, pa.array(~stays[chosen]))

    def entering_and_leaving(self) -> Iterator[pa.Table]:
        """Yield the rows that enter the first `n` of their key, and those that leave them."""
        import numpy as np
        import pyarrow as pa

        moved = (self.places[True] != self.places[False]) | (self._ends(True) != self._ends(False))
        for time in (True, False):
            rows = self.first(moved, time)
            yield rows.append_column(IS_CURRENT, pa.array(np.repeat(time, rows.num_rows)))

    def _ends(self, time: bool) -> Any:
        import numpy as np

        ends = self.places[time] + np.maximum(self.counts[time], 0)
        if self.work.rank != "row_number":
            return ends
        return np.minimum(ends, self.work.n)

    def first(self, mask: Any, time: bool = True) -> pa.Table:
        """Return the rows of a mask that are among the first `n`, once per copy, with their ranks."""
        import numpy as np
        import pyarrow as pa

        place, end = self.places[time], self._ends(time)
        chosen = np.flatnonzero(mask & (self.counts[time] > 0) & (place < self.work.n))
        copies = end[chosen] - place[chosen]
        ranks = np.repeat(place[chosen], copies) + 1
        if self.work.rank == "row_number":  # with the other ways, all copies have the same rank
            ranks += np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
        rows = self.rows.select(list(self.work.columns)).take(pa.array(np.repeat(chosen, copies)))
        return rows.append_column(self.work.number, pa.array(ranks.astype(np.int32)))


def _count_before(counts: Any, keys: Any) -> Any:
    """Return how many rows come before each row in its key. The rows of a key are contiguous."""
    import numpy as np

    counts = np.maximum(counts, 0)
    before = np.cumsum(counts) - counts
    starts = np.ones(len(keys), bool)
    starts[1:] = keys[1:] != keys[:-1]
    return before - before[starts][np.cumsum(starts) - 1]


def _begins(rows: pa.Table, keys: Any, order: Sequence[str]) -> Any:
    """Return whether each row differs from the previous one in the key or in the columns of the order."""
    import numpy as np
    import pyarrow.compute as pc

    begins = np.ones(len(keys), bool)
    begins[1:] = keys[1:] != keys[:-1]
    for name in order:
        (column,) = ordered(rows[name].combine_chunks())
        differs = pc.fill_null(pc.not_equal(column[1:], column[:-1]), True).to_numpy(zero_copy_only=False)
        both_null = pc.and_(pc.is_null(column[1:]), pc.is_null(column[:-1])).to_numpy(zero_copy_only=False)
        begins[1:] |= differs & ~both_null
    return begins


def in_order(rows: pa.Table, key: Any, order: Sequence[tuple[str, bool]]) -> Any:
    """Return the positions of the rows, sorted by key, then by these columns. Null comes last.

    order: each column, and whether it ascends.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns, sort_keys = {"k": pa.array(key)}, [("k", "ascending")]
    for number, (name, ascends) in enumerate(order):
        (columns[f"c{number}"],) = ordered(rows[name].combine_chunks())
        sort_keys.append((f"c{number}", "ascending" if ascends else "descending"))
    return pc.sort_indices(pa.table(columns), sort_keys=sort_keys).to_numpy()
