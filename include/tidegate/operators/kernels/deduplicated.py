"""The kernel of deduplication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, order_by
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import late_rows_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DeduplicateWithin", "FirstPerKey", "MarkRepeats"]

_LAST = (1 << 63) - 1
"""Sorts rows without a time after all others."""


@dataclass(frozen=True)
class FirstPerKey(Kernel):
    """Emits the first row of each new key. A row has its time in `_at`, which may be null, and its id in `_row`."""

    key_columns: Sequence[str]
    columns: Mapping[str, str]
    """The columns of the rows to emit, each with its name in the batch."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        codes, stored_codes = codes_of(
            [arrived.select(self.key_columns), stored[0].select(self.key_columns)], self.key_columns
        )
        new = np.flatnonzero(~np.isin(codes, stored_codes))
        times = integers(pc.fill_null(arrived["_at"], _LAST))
        rows = arrived.take(pa.array(new[_firsts(arrived, codes[new], times[new], new)]))
        is_deleted = pa.array(np.zeros(rows.num_rows, bool))
        changes = rows.select([GROUP, *self.key_columns]).append_column(DELETED, is_deleted)
        return KernelResult([changes], [_renamed(rows, self.columns)])

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
    """Emits a row, in order of time, if it is far enough from every row of its key that was emitted before."""

    key_columns: Sequence[str]
    columns: Mapping[str, str]
    """The columns of the rows to emit, each with its name in the batch."""
    min_distance: int
    """In microseconds."""
    late: int | None
    """Rows before this time are late."""
    expire_before: int | None
    """Rows before this time are too old to be near a future row."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import pyarrow as pa

        rows, late, counts = self._on_time(arrived)
        rows = rows.take(pa.array(self.find_firsts(rows, stored[0])))
        return KernelResult(
            [self.changes(rows, stored[0])],
            [_renamed(rows, self.columns)],
            counts,
            {LATE_OUTPUT: _renamed(late, self.columns)},
        )

    def find_firsts(self, rows: pa.Table, stored: pa.Table) -> Any:
        """Return the positions of the rows that are far enough from every other one that is, and from stored ones."""
        import numpy as np

        times, stored_times = integers(rows["_at"]), integers(stored["_at"])
        codes, stored_codes = codes_of(
            [rows.select(self.key_columns), stored.select(self.key_columns)], self.key_columns
        )
        first = _firsts(rows, codes, times, np.arange(rows.num_rows), each_time=True)
        first = first[~_is_close_to_stored(codes[first], times[first], stored_codes, stored_times, self.min_distance)]
        return first[_pick_distant_rows(codes[first], times[first], self.min_distance)]

    def changes(self, firsts: pa.Table, stored: pa.Table) -> pa.Table:
        """Return how the state changes: these rows are added, and expired ones are deleted."""
        import numpy as np
        import pyarrow as pa

        expire_before = -_LAST if self.expire_before is None else self.expire_before
        names = [GROUP, *self.key_columns, "_at"]
        added = firsts.filter(pa.array(integers(firsts["_at"]) >= expire_before)).select(names)
        expired = stored.filter(pa.array(integers(stored["_at"]) < expire_before)).select(names)
        is_deleted = pa.array(np.repeat([False, True], [added.num_rows, expired.num_rows]))
        changes = pa.concat_tables([added, expired], promote_options="permissive")
        return changes.append_column(DELETED, is_deleted)

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the first row of each key and time, and all late rows."""
        import numpy as np
        import pyarrow as pa

        rows, late, _ = self._on_time(arrived)
        (codes,) = codes_of([rows.select(self.key_columns)], self.key_columns)
        firsts = _firsts(rows, codes, integers(rows["_at"]), np.arange(rows.num_rows), each_time=True)
        return pa.concat_tables([rows.take(pa.array(firsts)), late]).select(arrived.column_names)

    def _on_time(self, arrived: pa.Table) -> tuple[pa.Table, pa.Table, dict[str, int]]:
        """Return the rows that are on time, those that are late or have no time, and counts of the latter two."""
        import pyarrow as pa
        import pyarrow.compute as pc

        timed, late = late_rows_mask(arrived["_at"], self.late)
        counts = {"late": int(late.sum()), "without_time": int((~timed).sum())}
        on_time = pa.array(timed & ~late)
        return arrived.filter(on_time), arrived.filter(pc.invert(on_time)), counts


@dataclass(frozen=True)
class MarkRepeats(DeduplicateWithin):
    """Emits all rows, with a mark on each that would not be emitted without repeats: why. Null keys are no repeats."""

    mark: str = ""
    """The column of the marks."""
    why_repeated: str = ""
    why_late: str = ""
    why_without_time: str = ""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        has_key = np.ones(arrived.num_rows, bool)
        for name in self.key_columns:
            has_key &= pc.is_valid(arrived[name]).to_numpy()
        timed, late = late_rows_mask(arrived["_at"], self.late)
        compared = np.flatnonzero(has_key & timed & ~late)
        marks = np.full(arrived.num_rows, None, object)
        marks[compared] = self.why_repeated
        marks[has_key & late] = self.why_late
        marks[has_key & ~timed] = self.why_without_time
        rows = arrived.take(pa.array(compared))
        firsts = self.find_firsts(rows, stored[0])
        marks[compared[firsts]] = None
        marked = _renamed(arrived, self.columns).append_column(self.mark, pa.array(marks, pa.string()))
        return KernelResult([self.changes(rows.take(pa.array(firsts)), stored[0])], [marked])

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return all rows: each is emitted."""
        return arrived


def _firsts(rows: pa.Table, codes: Any, times: Any, places: Any, *, each_time: bool = False) -> Any:
    """Return the earliest row of each key, or a row of each key and time. Ties take the row with the least id.

    codes, times: those of the rows at these places. The result: positions in these arrays, ordered by key and time.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    order = order_by(codes, times)
    codes, times = codes[order], times[order]
    starts = np.ones(len(order), bool)  # whether a row's key or time differs from that of the previous row
    starts[1:] = (codes[1:] != codes[:-1]) | (times[1:] != times[:-1])
    segment = np.cumsum(starts) - 1
    sizes = np.bincount(segment, minlength=0)
    firsts = np.flatnonzero(starts)
    if len(sizes):
        tied = np.flatnonzero(sizes[segment] > 1)
    else:
        tied = np.zeros(0, int)
    if len(tied):
        ids = rows["_row"].take(pa.array(places[order[tied]])).combine_chunks()
        by_id = pc.sort_indices(
            pa.table({"s": segment[tied], "id": ids}), sort_keys=[("s", "ascending"), ("id", "ascending")]
        ).to_numpy()
        segments, first_of_segment = np.unique(segment[tied][by_id], return_index=True)
        firsts[segments] = tied[by_id[first_of_segment]]
    if not each_time and len(firsts):
        earliest = np.ones(len(firsts), bool)
        earliest[1:] = codes[firsts][1:] != codes[firsts][:-1]
        firsts = firsts[earliest]
    return order[firsts]


def _is_close_to_stored(codes: Any, times: Any, stored_codes: Any, stored_times: Any, min_distance: int) -> Any:
    """Return a mask of the rows that are closer than `min_distance` to a stored one of their key."""
    import numpy as np

    is_near = np.zeros(len(codes), bool)
    if not len(stored_codes):
        return is_near
    order = order_by(stored_codes, stored_times)
    stored_codes, stored_times = stored_codes[order], stored_times[order]
    distinct = np.unique(stored_times)
    ranks = len(distinct) + 1  # with it, a key and a time are one number
    stored = stored_codes * ranks + np.searchsorted(distinct, stored_times)
    low = np.searchsorted(stored, codes * ranks + np.searchsorted(distinct, times - min_distance, side="right"))
    high = np.searchsorted(stored, codes * ranks + np.searchsorted(distinct, times + min_distance, side="left"))
    is_near[:] = high > low
    return is_near


def _pick_distant_rows(codes: Any, times: Any, min_distance: int) -> Any:
    """Return the positions of each key's first row, and of each row that is far enough from the last one picked.

    The rows are ordered by key and time.
    """
    import numpy as np

    is_picked = np.ones(len(codes), bool)
    last_code, last_time = -1, 0
    has_previous = np.zeros(len(codes), bool)
    has_previous[1:] = codes[1:] == codes[:-1]
    for position in np.flatnonzero(has_previous):  # the first row of a key is always picked
        if codes[position] != last_code:
            last_code, last_time = codes[position], times[position - 1]
        if times[position] - last_time < min_distance:
            is_picked[position] = False
        else:
            last_time = times[position]
    return np.flatnonzero(is_picked)


def _renamed(rows: pa.Table, columns: Mapping[str, str]) -> pa.Table:
    return rows.select(list(columns.values())).rename_columns(list(columns))
