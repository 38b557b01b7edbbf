"""The kernel that finds the first rows of each key in each window, and emits them when the window closes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.operators.kernels.ranked import RankedRows, TopRows
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.columns import GROUP
from tidegate.state.lateness import WindowLimits, ended_mask, late_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FirstInWindows"]


@dataclass(frozen=True)
class FirstInWindows(Kernel):
    """Keeps the first rows of each open window. A row of the batch has the start of its window, or null if it has no
    time."""

    first: TopRows
    """The order of the rows. Its keys are the start of the window, and those of the operator."""
    start: str
    end: str
    size: int
    """Microseconds from start to end."""
    limits: WindowLimits
    late: Sequence[str] | None
    """The columns of late rows. None: late rows are not used."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import pyarrow as pa

        timed, late = late_mask(arrived[self.start].combine_chunks(), self.size, self.limits.late)
        counts = {"late": int(late.sum()), "without_time": int((~timed).sum())}
        on_time = timed & ~late
        side_outputs: Mapping[str, pa.Table] = {}
        if self.late is not None:
            side_outputs = {"late": arrived.filter(pa.array(~on_time)).select(list(self.late))}
        # The rows of windows that had closed before were emitted by an earlier checkpoint.
        open_before = ~ended_mask(stored[0][self.end], self.limits.closed_before)
        open_rows = stored[0].filter(pa.array(open_before))
        ranked = RankedRows.rank(arrived.filter(pa.array(on_time)), open_rows, self.first)
        closes = ended_mask(ranked.rows[self.end], self.limits.closed)
        names = [GROUP, self.start, *self.first.key_columns[1:], "_row", *self.first.values]
        changes = ranked.changes(~closes)
        return KernelResult([changes.select([*names, "_n", "_deleted"])], [ranked.first(closes)], counts, side_outputs)

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the rows that may be among the first ones, and those that are in no window."""
        import pyarrow as pa

        timed, late = late_mask(arrived[self.start].combine_chunks(), self.size, self.limits.late)
        on_time = pa.array(timed & ~late)
        in_no_window = arrived.filter(pa.array(late | ~timed))
        return pa.concat_tables([self.first.combine(arrived.filter(on_time)), in_no_window])
