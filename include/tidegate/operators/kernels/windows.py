"""The kernel of fixed windows whose partial values are sums and extremes."""

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
"""The column of the batch with the number of input rows that a row counts for, should it be late."""


@dataclass(frozen=True)
class MergeWindows(Kernel):
    """Merges the batch's partial values with those of their windows. Emits windows that close, or all that change.

    A row of the batch has the start of its window, or null if it has no time.
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
    """The partial values that are the same for all rows, which the batch need not contain."""
    late_columns: Mapping[str, str] | None = None
    """The columns of late rows, each with its name in the batch. None: late rows are not used."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        names = [GROUP, self.start, *self.key_columns, *self.ops]
        timed, is_late = late_mask(arrived[self.start].combine_chunks(), self.size, self.limits.late)
        weight = integers(arrived[WEIGHT])
        counts = {"late": int(weight[is_late].sum()), "without_time": int(weight[~timed].sum())}
        side_outputs = {}
        if self.late_columns is not None:
            names_in_batch = list(self.late_columns.values())
            late_rows = arrived.filter(pa.array((is_late | ~timed) & (weight > 0))).select(names_in_batch)
            side_outputs["late"] = late_rows.rename_columns(list(self.late_columns))
        on_time = timed & ~is_late
        rows = arrived.select(names)
        if not on_time.all():
            rows = rows.filter(pa.array(on_time))
        before = stored[0].select([*names, self.end])
        now, positions = merge_partials(reduced_rows(rows, self._keys, self.ops), before, self._keys, self.ops)
        now = now.append_column(self.end, self._ends_of(now[self.start]))
        staying = now.filter(pa.array(~ended_mask(now[self.end], self.limits.closed_for_rows)))
        changes = staying.append_column(DELETED, pa.array(np.zeros(staying.num_rows, bool)))
        changed_before = before.take(pa.array(positions[positions >= 0]))
        parts = [
            (True, self._emitted(now, self.limits.closed)),
            (True, self._due(now, before)),
            (False, self._emitted(changed_before, self.limits.closed_before)),
        ]
        emitted = current_and_retracted(parts, [self.start, self.end, *self.key_columns, *self.ops])
        return KernelResult([changes], emitted, counts, side_outputs, sorted_by_key=True)

    @property
    def _keys(self) -> list[str]:
        return [self.start, *self.key_columns]

    def add_columns(self, arrived: pa.Table) -> pa.Table:
        """Return the rows with all of their partial values, and their weight."""
        return with_columns(arrived, {**self.fixed, WEIGHT: 1})

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Merge the rows of each window and key into one. Late rows stay as they are if they are used."""
        import pyarrow as pa

        ops = {**self.ops, WEIGHT: "sum"}
        if self.late_columns is None:
            return reduced_rows(arrived, self._keys, ops)
        timed, is_late = late_mask(arrived[self.start].combine_chunks(), self.size, self.limits.late)
        on_time = arrived.filter(pa.array(timed & ~is_late))
        late_rows = arrived.filter(pa.array(is_late | ~timed))
        return pa.concat_tables([reduced_rows(on_time, self._keys, ops), late_rows])

    def _ends_of(self, starts: pa.ChunkedArray) -> pa.Array:
        """Return the ends of windows with these starts, at most the largest 64-bit integer."""
        import numpy as np
        import pyarrow as pa

        latest = np.iinfo(np.int64).max - self.size
        return pa.array(np.minimum(integers(starts), latest) + self.size).cast(starts.type)

    def _emitted(self, rows: pa.Table, closed: int | None) -> pa.Table:
        """Return those of changed windows that are emitted, or were, with this limit."""
        import pyarrow as pa

        if self.on_update:
            return rows
        return rows.filter(pa.array(ended_mask(rows[self.end], closed)))

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
