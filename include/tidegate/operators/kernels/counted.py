"""The kernel of count windows whose partial values are sums and extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.operators.kernels.merged import reduced_rows
from tidegate.operators.kernels.over import of_one_row
from tidegate.operators.kernels.waiting import WaitingRows
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, order_by, ranks_and_values
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PLACE", "ROWS", "CountedWindows"]

ROWS: Final = "_rows"
"""The number of a window's rows."""
PLACE: Final = "_place"
"""The number of a row's window within its key, counted from the open one."""
_KEY: Final = "_key"


@dataclass(frozen=True)
class CountedWindows(Kernel):
    """Assigns the ready rows of each key to windows of `count` rows, and emits the windows that are full."""

    key_columns: Sequence[str]
    waiting: WaitingRows
    start: str
    end: str
    ops: Mapping[str, str]
    """Each partial value's column, and how two are merged: "sum", "min" or "max"."""
    count: int

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        waited = self.waiting(arrived, stored[0])
        new = waited.ready.take(pa.array(np.repeat(np.arange(waited.ready.num_rows), waited.ready["_n"].to_numpy())))
        codes, stored_codes = codes_of(
            [new.select(self.key_columns), stored[1].select(self.key_columns)], self.key_columns
        )
        is_touched = np.isin(stored_codes, codes)
        before, codes_before = stored[1].filter(pa.array(is_touched)), stored_codes[is_touched]
        pieces = self._pieces(new, codes, before, codes_before)
        windows = reduced_rows(pieces, [_KEY, PLACE], {self.start: "min", self.end: "max", ROWS: "sum", **self.ops})
        is_full = integers(windows[ROWS]) >= self.count
        still_open = windows.filter(pa.array(~is_full))
        removed = before.filter(pa.array(~np.isin(codes_before, still_open[_KEY].to_numpy())))
        columns = [GROUP, *self.key_columns, self.start, self.end, ROWS, *self.ops]
        changes = pa.concat_tables([still_open.select(columns), removed.select(columns)], promote_options="default")
        deleted = np.repeat([False, True], [still_open.num_rows, removed.num_rows])
        return KernelResult(
            [waited.changes, changes.append_column(DELETED, pa.array(deleted))],
            [windows.filter(pa.array(is_full))],
            waited.counts,
            {LATE_OUTPUT: waited.late},
        )

    def needs_match(self, arrived: pa.Table, state_number: int) -> Any:
        """Waiting rows need only copies of themselves. Open windows are needed for keys with ready rows."""
        if state_number == 0:
            return self.waiting.none(arrived)
        return self.waiting.are_ready(arrived)

    def _pieces(self, new: pa.Table, codes: Any, before: pa.Table, codes_before: Any) -> pa.Table:
        """Return open windows and single rows in order, each with the number of its window."""
        import numpy as np
        import pyarrow as pa

        ids = ranks_and_values(new["_row"])
        assert ids is not None
        in_order = order_by(codes, integers(new["_at"]), ids[0])
        new, codes = new.take(pa.array(in_order)), codes[in_order]
        rows_in_open_window = np.zeros(max(codes.max(initial=-1), codes_before.max(initial=-1)) + 1, np.int64)
        rows_in_open_window[codes_before] = integers(before[ROWS])
        position = np.arange(len(codes)) - np.searchsorted(codes, codes) + rows_in_open_window[codes]
        times = new["_at"].combine_chunks().cast(before.schema.field(self.start).type)
        single = new.select([GROUP, *self.key_columns])
        for name, column in ((self.start, times), (self.end, times), (ROWS, pa.array(np.ones(len(codes), np.int64)))):
            single = single.append_column(name, column)
        for name in self.ops:
            single = single.append_column(name, new[of_one_row(name)])
        single = single.append_column(_KEY, pa.array(codes)).append_column(PLACE, pa.array(position // self.count))
        open_windows = before.select([GROUP, *self.key_columns, self.start, self.end, ROWS, *self.ops])
        open_windows = open_windows.append_column(_KEY, pa.array(codes_before))
        open_windows = open_windows.append_column(PLACE, pa.array(np.zeros(len(codes_before), np.int64)))
        return pa.concat_tables([open_windows, single], promote_options="default").combine_chunks()
