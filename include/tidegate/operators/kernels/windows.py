"""The kernel of windows at fixed positions whose partial values are sums and extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate.operators.kernels.merged import merge_partials, reduced_rows, with_columns
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult, current_and_retracted
from tidegate.state.arrow.keys_as_numbers import codes_of, integers
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import WindowLimits, closing_starts, ended_mask, late_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WEIGHT", "MergeWindows"]

WEIGHT: Final = "_rows"
"""The column of the batch with the number of input rows that a row counts for, when it comes to late ones."""


@dataclass(frozen=True)
class MergeWindows(Kernel):
    """Merges the batch's partial values with those of their windows. Emits windows that close, or all that change.

    A row of the batch has the start of its window, which is null if it has no time.
    """

    key_columns: Sequence[str]
    start: str
    end: str
    ops: Mapping[str, str]
    """Each partial value's column, and how two are merged: "sum", "min" or "max"."""
    size: int
    """Microseconds from start to end."""
    limits: WindowLimits
    on_update: bool
    """Whether every changed window is emitted."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """The partial values that are the same in all rows: these come without them."""
    late: Mapping[str, str] | None = None
    """The columns of late rows, each with its name in the batch. None: nobody takes them."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        names = [GROUP, self.start, *self.key_columns, *self.ops]
        timed, late = late_mask(arrived[self.start].combine_chunks(), self.size, self.limits.late)
        weight = integers(arrived[WEIGHT])
        counts = {"late": int(weight[late].sum()), "without_time": int(weight[~timed].sum())}
        apart = {}
        if self.late is not None:
            lost = arrived.filter(pa.array((late | ~timed) & (weight > 0)))
            apart["late"] = lost.select(list(self.late.values())).rename_columns(list(self.late))
        on_time = timed & ~late
        rows = arrived.select(names)
        now = reduced_rows(rows if on_time.all() else rows.filter(pa.array(on_time)), self._keys, self.ops)
        before = stored[0].select([*names, self.end])
        now, places = merge_partials(now, before, self._keys, self.ops)
        now = now.append_column(self.end, self._ends_of(now[self.start]))
        staying = now.filter(pa.array(~ended_mask(now[self.end], self.limits.closed_for_rows)))
        changes = staying.append_column(DELETED, pa.array(np.zeros(staying.num_rows, bool)))
        known = before.take(pa.array(places[places >= 0]))
        given = [(True, self._emitted(now, self.limits.closed)), (True, self._due(now, before))]
        given.append((False, self._emitted(known, self.limits.closed_before)))
        emitted = current_and_retracted(given, [self.start, self.end, *self.key_columns, *self.ops])
        return KernelResult([changes], emitted, counts, apart, sorted_by_key=True)

    @property
    def _keys(self) -> list[str]:
        return [self.start, *self.key_columns]

    def add_columns(self, arrived: pa.Table) -> pa.Table:
        """Return rows as they come, with all of their partial values, and what they count for."""
        return with_columns(arrived, {**self.fixed, WEIGHT: 1})

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the rows of each window and key as one; late ones that are asked for stay as they are."""
        import pyarrow as pa

        ops = {**self.ops, WEIGHT: "sum"}
        if self.late is None:
            return reduced_rows(arrived, self._keys, ops)
        timed, late = late_mask(arrived[self.start].combine_chunks(), self.size, self.limits.late)
        taken, lost = (arrived.filter(pa.array(mask)) for mask in (timed & ~late, late | ~timed))
        return pa.concat_tables([reduced_rows(taken, self._keys, ops), lost])

    def _ends_of(self, starts: pa.ChunkedArray) -> pa.Array:
        """Return the ends of windows with these starts: never more than the largest number."""
        import numpy as np
        import pyarrow as pa

        latest = np.iinfo(np.int64).max - self.size
        return pa.array(np.minimum(integers(starts), latest) + self.size).cast(starts.type)

    def _emitted(self, rows: pa.Table, closed: int | None) -> pa.Table:
        """Return those of changed windows that are emitted, or were, as of a limit."""
        import pyarrow as pa

        return rows if self.on_update else rows.filter(pa.array(ended_mask(rows[self.end], closed)))

    def _due(self, now: pa.Table, before: pa.Table) -> pa.Table:
        """Return the stored windows that close without a change."""
        import numpy as np
        import pyarrow as pa

        starts = None if self.on_update else closing_starts(self.limits, self.size)
        if starts is None:
            return before.slice(0, 0)
        due = before.filter(pa.array(starts.mask(integers(before[self.start]))))
        codes, changed = codes_of([due.select(self._keys), now.select(self._keys)], self._keys)
        return due.filter(pa.array(~np.isin(codes, changed)))
