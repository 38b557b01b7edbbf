"""The kernel of windows of a number of rows, whose partial values are sums and extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.operators.kernels.merged import reduced_rows
from tidegate.operators.kernels.over import of_one_row
from tidegate.operators.kernels.waiting import WaitingRows
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, ranks_and_values
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PLACE", "ROWS", "CountedWindows"]

ROWS: Final = "_rows"
"""The number of a window's rows."""
PLACE: Final = "_place"
"""Of a row, the number of its window, from the one that is open."""
_KEY: Final = "_key"


@dataclass(frozen=True)
class CountedWindows(Kernel):
    """Puts the rows of each key that are ready into windows of `count` rows, and gives those that are full."""

    by: Sequence[str]
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
        codes, of_stored = codes_of([new.select(self.by), stored[1].select(self.by)], self.by)
        touched = np.isin(of_stored, codes)
        before, of_before = stored[1].filter(pa.array(touched)), of_stored[touched]
        pieces = self._pieces(new, codes, before, of_before)
        windows = reduced_rows(pieces, [_KEY, PLACE], {self.start: "min", self.end: "max", ROWS: "sum", **self.ops})
        is_full = integers(windows[ROWS]) >= self.count
        still_open = windows.filter(pa.array(~is_full))
        gone = before.filter(pa.array(~np.isin(of_before, still_open[_KEY].to_numpy())))
        columns = [GROUP, *self.by, self.start, self.end, ROWS, *self.ops]
        changes = pa.concat_tables([still_open.select(columns), gone.select(columns)], promote_options="default")
        deleted = np.repeat([False, True], [still_open.num_rows, gone.num_rows])
        return KernelResult(
            [waited.changes, changes.append_column(DELETED, pa.array(deleted))],
            [windows.filter(pa.array(is_full))],
            waited.counts,
            {LATE_OUTPUT: waited.late},
        )

    def needs_match(self, arrived: pa.Table, place: int) -> Any:
        """Of rows that wait only copies are needed; of open windows those of keys that get rows."""
        return self.waiting.none(arrived) if place == 0 else self.waiting.are_ready(arrived)

    def _pieces(self, new: pa.Table, codes: Any, before: pa.Table, of_before: Any) -> pa.Table:
        """Return open windows and single rows in order, each with the number of its window."""
        import numpy as np
        import pyarrow as pa

        ids = ranks_and_values(new["_row"])
        assert ids is not None
        in_order = np.lexsort((ids[0], integers(new["_at"]), codes))
        new, codes = new.take(pa.array(in_order)), codes[in_order]
        begun = np.zeros(max(codes.max(initial=-1), of_before.max(initial=-1)) + 1, np.int64)
        begun[of_before] = integers(before[ROWS])
        place = np.arange(len(codes)) - np.searchsorted(codes, codes) + begun[codes]
        moment = before.schema.field(self.start).type
        times = new["_at"].combine_chunks().cast(moment)
        single = new.select([GROUP, *self.by])
        for name, column in ((self.start, times), (self.end, times), (ROWS, pa.array(np.ones(len(codes), np.int64)))):
            single = single.append_column(name, column)
        for name in self.ops:
            single = single.append_column(name, new[of_one_row(name)])
        single = single.append_column(_KEY, pa.array(codes)).append_column(PLACE, pa.array(place // self.count))
        whole = before.select([GROUP, *self.by, self.start, self.end, ROWS, *self.ops])
        whole = whole.append_column(_KEY, pa.array(of_before))
        whole = whole.append_column(PLACE, pa.array(np.zeros(len(of_before), np.int64)))
        return pa.concat_tables([whole, single], promote_options="default").combine_chunks()
