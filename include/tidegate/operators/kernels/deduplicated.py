"""The kernel of deduplication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, integers
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import late_rows_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DeduplicateWithin", "FirstPerKey"]

_LAST = (1 << 63) - 1
"""Stands for no time: after all others."""


@dataclass(frozen=True)
class FirstPerKey(Kernel):
    """The first row of each key that has never been seen. `_at`: its time, which may be null; `_row`: its id."""

    key_columns: Sequence[str]
    columns: Mapping[str, str]
    """The columns of the rows to emit, each with its name in the batch."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        codes, known = codes_of(
            [arrived.select(self.key_columns), stored[0].select(self.key_columns)], self.key_columns
        )
        fresh = np.flatnonzero(~np.isin(codes, known))
        times = integers(pc.fill_null(arrived["_at"], _LAST))
        rows = arrived.take(pa.array(fresh[_firsts(arrived, codes[fresh], times[fresh], fresh)]))
        changes = rows.select([GROUP, *self.key_columns]).append_column(
            DELETED, pa.array(np.zeros(rows.num_rows, bool))
        )
        return KernelResult([changes], [_emitted(rows, self.columns)])

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the first row of each key."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        (codes,) = codes_of([arrived.select(self.key_columns)], self.key_columns)
        times = integers(pc.fill_null(arrived["_at"], _LAST))
        return arrived.take(pa.array(_firsts(arrived, codes, times, np.arange(arrived.num_rows))))


@dataclass(frozen=True)
class DeduplicateWithin(Kernel):
    """The rows that are at least `apart` microseconds from each other row of their key, taken in the order of time."""

    key_columns: Sequence[str]
    columns: Mapping[str, str]
    """The columns of the rows to emit, each with its name in the batch."""
    min_distance: int
    late: int | None
    """Rows before this time are late."""
    expire_before: int | None
    """Rows before this time can meet no other any more."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        rows, late, counts = self._on_time(arrived)
        times, before = integers(rows["_at"]), integers(stored[0]["_at"])
        codes, known = codes_of([rows.select(self.key_columns), stored[0].select(self.key_columns)], self.key_columns)
        first = _firsts(rows, codes, times, np.arange(rows.num_rows), each_time=True)
        first = first[~_is_near_stored(codes[first], times[first], known, before, self.min_distance)]
        rows = rows.take(pa.array(first[_pick_rows_apart(codes[first], times[first], self.min_distance)]))
        over = -_LAST if self.expire_before is None else self.expire_before
        stays = rows.filter(pa.array(integers(rows["_at"]) >= over)).select([GROUP, *self.key_columns, "_at"])
        gone = stored[0].filter(pa.array(before < over)).select([GROUP, *self.key_columns, "_at"])
        deleted = np.repeat([False, True], [stays.num_rows, gone.num_rows])
        changes = pa.concat_tables([stays, gone], promote_options="permissive").append_column(
            DELETED, pa.array(deleted)
        )
        return KernelResult(
            [changes], [_emitted(rows, self.columns)], counts, {LATE_OUTPUT: _emitted(late, self.columns)}
        )

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the first row of each key and time, and all that are late."""
        import numpy as np
        import pyarrow as pa

        rows, late, _ = self._on_time(arrived)
        (codes,) = codes_of([rows.select(self.key_columns)], self.key_columns)
        firsts = _firsts(rows, codes, integers(rows["_at"]), np.arange(rows.num_rows), each_time=True)
        return pa.concat_tables([rows.take(pa.array(firsts)), late]).select(arrived.column_names)

    def _on_time(self, arrived: pa.Table) -> tuple[pa.Table, pa.Table, dict[str, int]]:
        """Return the rows that are on time, the others, and the numbers of these."""
        import pyarrow as pa
        import pyarrow.compute as pc

        timed, late = late_rows_mask(arrived["_at"], self.late)
        counts = {"late": int(late.sum()), "without_time": int((~timed).sum())}
        on_time = pa.array(timed & ~late)
        return arrived.filter(on_time), arrived.filter(pc.invert(on_time)), counts


def _firsts(rows: pa.Table, codes: Any, times: Any, places: Any, *, each_time: bool = False) -> Any:
    """Return, of each key (or of each key and time), the earliest row; of several the one with the least id.

    codes, times: those of the rows at these places. The result: positions in these arrays, ordered by key and time.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    order = np.lexsort((times, codes))
    codes, times = codes[order], times[order]
    starts = np.ones(len(order), bool)  # a row whose key or time differs from that of the row before it
    starts[1:] = (codes[1:] != codes[:-1]) | (times[1:] != times[:-1])
    segment = np.cumsum(starts) - 1
    sizes = np.bincount(segment, minlength=0)
    firsts = np.flatnonzero(starts)
    tied = np.flatnonzero(sizes[segment] > 1) if len(sizes) else np.zeros(0, int)
    if len(tied):
        ids = rows["_row"].take(pa.array(places[order[tied]])).combine_chunks()
        by_id = pc.sort_indices(
            pa.table({"s": segment[tied], "id": ids}), sort_keys=[("s", "ascending"), ("id", "ascending")]
        ).to_numpy()
        segments, at = np.unique(segment[tied][by_id], return_index=True)
        firsts[segments] = tied[by_id[at]]
    if not each_time and len(firsts):
        earliest = np.ones(len(firsts), bool)
        earliest[1:] = codes[firsts][1:] != codes[firsts][:-1]
        firsts = firsts[earliest]
    return order[firsts]


def _is_near_stored(codes: Any, times: Any, known: Any, before: Any, apart: int) -> Any:
    """Return a mask of the rows that are less than `apart` from a stored one of their key."""
    import numpy as np

    near = np.zeros(len(codes), bool)
    if not len(known):
        return near
    order = np.lexsort((before, known))
    known, before = known[order], before[order]
    distinct = np.unique(before)
    ranks = len(distinct) + 1  # a key and a time as one number
    stored = known * ranks + np.searchsorted(distinct, before)
    low = np.searchsorted(stored, codes * ranks + np.searchsorted(distinct, times - apart, side="right"))
    high = np.searchsorted(stored, codes * ranks + np.searchsorted(distinct, times + apart, side="left"))
    near[:] = high > low
    return near


def _pick_rows_apart(codes: Any, times: Any, apart: int) -> Any:
    """Return the places of the rows to take: of each key the first, then each that is far enough from the last taken.

    The rows are ordered by key and time.
    """
    import numpy as np

    taken = np.ones(len(codes), bool)
    last_code, last_time = -1, 0
    same = np.zeros(len(codes), bool)
    same[1:] = codes[1:] == codes[:-1]
    for place in np.flatnonzero(same):  # keys with one time are taken as they are
        if codes[place] != last_code:
            last_code, last_time = codes[place], times[place - 1]
        if times[place] - last_time < apart:
            taken[place] = False
        else:
            last_time = times[place]
    return np.flatnonzero(taken)


def _emitted(rows: pa.Table, columns: Mapping[str, str]) -> pa.Table:
    return rows.select(list(columns.values())).rename_columns(list(columns))
