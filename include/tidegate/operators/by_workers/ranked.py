"""The first rows of each key as workers find them, for one range of key groups: the rows of `operators/ranking.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.delta.order_by import sortable
from tidegate.state.arrow.folding import Folded
from tidegate.state.arrow.keys_as_numbers import codes_of
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ENTERS", "FirstInOrder", "in_order"]

ENTERS: Final = "_new"
"""The column of the result that says whether a row has entered the first ones of its key, or left them."""


@dataclass(frozen=True)
class FirstInOrder:
    """Keeps the rows of each key that come first in an order, and emits those that enter or leave them.

    The batch has by how many copies (`_n`) each row changes; `_row` identifies it.
    """

    by: Sequence[str]
    values: Sequence[str]
    """The other columns."""
    order: Sequence[tuple[str, bool]]
    """The columns to order by, and whether they ascend. Null comes last. What is equal in all is told apart by
    `_row`."""
    n: int
    keeps_all: bool
    """Whether all rows are kept: the input can take back those that come first."""
    columns: Sequence[str]
    """The columns of the result, without `rank`."""
    rank: str

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> Folded:
        import numpy as np
        import pyarrow as pa

        keys = [*self.by, "_row"]
        names = [GROUP, *keys, *self.values]
        both = pa.concat_tables([stored[0].select(names), arrived.select(names)], promote_options="permissive")
        codes = np.concatenate(codes_of([stored[0].select(keys), arrived.select(keys)], keys))
        _, place, of = np.unique(codes, return_index=True, return_inverse=True)
        old = stored[0].num_rows
        was = np.bincount(of[:old], weights=stored[0]["_n"].to_numpy(), minlength=len(place)).astype(np.int64)
        change = np.bincount(of[old:], weights=arrived["_n"].to_numpy(), minlength=len(place)).astype(np.int64)
        rows = _Placed(both.take(pa.array(place)).combine_chunks(), was, was + change, self)
        return Folded([rows.changes()], rows.given())

    def fewer(self, arrived: pa.Table) -> pa.Table:
        """Return the rows that may be among the first ones: what is behind `n` others of its key is not."""
        import numpy as np
        import pyarrow as pa

        if self.keeps_all:
            return arrived
        key = codes_of([arrived.select(self.by)], self.by)[0]
        order = in_order(arrived, key, [*self.order, ("_row", True)])
        first = _before(np.ones(len(order), np.int64), key[order]) < self.n
        return arrived.take(pa.array(order[first]))


class _Placed:
    """The rows of all keys that the batch is about, each once, in order."""

    def __init__(self, rows: pa.Table, was: Any, now: Any, work: FirstInOrder) -> None:
        import pyarrow as pa

        key = codes_of([rows.select(work.by)], work.by)[0]
        order = in_order(rows, key, [*work.order, ("_row", True)])
        self.work = work
        self.rows = rows.take(pa.array(order))
        self.counts = {True: now[order], False: was[order]}
        """The copies of each row: now (True), and at the base."""
        self.places = {time: _before(counts, key[order]) for time, counts in self.counts.items()}
        """How many rows of its key come before it."""

    def changes(self) -> pa.Table:
        """Return the changed rows of the state."""
        import numpy as np
        import pyarrow as pa

        now, was = self.counts[True], self.counts[False]
        changed = now != was
        if self.work.keeps_all:
            stays = now > 0
            chosen = np.flatnonzero(changed)
        else:
            stays = (now > 0) & (self.places[True] < self.work.n)
            chosen = np.flatnonzero((changed & stays) | ((was > 0) & ~stays))
        rows = self.rows.take(pa.array(chosen)).append_column("_n", pa.array(now[chosen]))
        return rows.append_column(DELETED, pa.array(~stays[chosen]))

    def given(self) -> Iterator[pa.Table]:
        """Yield the rows that enter the first ones of their key, and those that leave them."""
        moved = (self.places[True] != self.places[False]) | (self._ends(True) != self._ends(False))
        for time in (True, False):
            yield self._first(moved, time)

    def _ends(self, time: bool) -> Any:
        import numpy as np

        return np.minimum(self.places[time] + np.maximum(self.counts[time], 0), self.work.n)

    def _first(self, moved: Any, time: bool) -> pa.Table:
        """Return the moved rows that are among the first, as often as they are, with their ranks."""
        import numpy as np
        import pyarrow as pa

        place, end = self.places[time], self._ends(time)
        chosen = np.flatnonzero(moved & (self.counts[time] > 0) & (place < self.work.n))
        copies = end[chosen] - place[chosen]
        offsets = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
        ranks = np.repeat(place[chosen], copies) + offsets + 1
        rows = self.rows.select(list(self.work.columns)).take(pa.array(np.repeat(chosen, copies)))
        rows = rows.append_column(self.work.rank, pa.array(ranks.astype(np.int32)))
        return rows.append_column(ENTERS, pa.array(np.repeat(time, len(ranks))))


def _before(counts: Any, keys: Any) -> Any:
    """Return for each row how many come before it in its key. The rows of a key lie together."""
    import numpy as np

    counts = np.maximum(counts, 0)
    before = np.cumsum(counts) - counts
    starts = np.ones(len(keys), bool)
    starts[1:] = keys[1:] != keys[:-1]
    return before - before[starts][np.cumsum(starts) - 1]


def in_order(rows: pa.Table, key: Any, order: Sequence[tuple[str, bool]]) -> Any:
    """Return the places of the rows by key, and of a key in this order: columns, and whether they ascend. Null comes
    last."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns, sort_keys = {"k": pa.array(key)}, [("k", "ascending")]
    for number, (name, ascends) in enumerate(order):
        columns[f"c{number}"] = sortable(rows[name])
        sort_keys.append((f"c{number}", "ascending" if ascends else "descending"))
    return pc.sort_indices(pa.table(columns), sort_keys=sort_keys).to_numpy()
