"""The kernel of `over`: running aggregates, values of earlier rows, and row numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.operators.kernels.frames import Frames
from tidegate.operators.kernels.waiting import WaitingRows
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, order, order_by, ranks_and_values
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NUMBER", "PLACE", "RowsInOrder", "of_one_row"]

PLACE: Final = "_place"
NUMBER: Final = "_number"
"""A row's number among all rows of its key, from 1."""


def of_one_row(name: str) -> str:
    """Return the column that holds one row's contribution to a result or a partial value."""
    return f"_of_{name}"


@dataclass(frozen=True)
class RowsInOrder(Kernel):
    """Emits each ready row with values over it and the rows before it, in order of time.

    The state is a ring buffer: it holds as many rows of each key as a row may look back.
    """

    key_columns: Sequence[str]
    waiting: WaitingRows
    values: Sequence[str]
    """The other columns, which are stored and emitted."""
    ops: Mapping[str, str]
    """Each partial value's column, and how two are merged: "sum", "min" or "max"."""
    lags: Mapping[str, int]
    """The results that are the value of an earlier row, each with the distance in rows."""
    numbers: Sequence[str]
    """The results that are the row's number."""
    frame: int | None
    """The number of rows that are aggregated, the row itself included. None: all rows so far."""
    places: int
    """The number of rows of a key that are stored."""
    together: bool
    """Whether a new row rewrites all stored rows of its key, so that they expire together."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        waited = self.waiting(arrived, stored[0])
        rows = _Sequence.build(self, waited.ready, stored[1])
        running = rows.aggregated()
        return KernelResult(
            [waited.changes, rows.changes(running)], [rows.emitted(running)], waited.counts, {LATE_OUTPUT: waited.late}
        )

    def needs_match(self, arrived: pa.Table, state_number: int) -> Any:
        """Waiting rows need only copies of themselves. The last rows are needed for keys with ready rows."""
        if state_number == 0:
            return self.waiting.none(arrived)
        return self.waiting.are_ready(arrived)

    @property
    def one_row_columns(self) -> list[str]:
        """The columns of one row's contributions that are stored, because later rows need them."""
        names = [*self.lags, *(self.ops if self.frame is not None else ())]
        return [of_one_row(name) for name in names]


@dataclass(frozen=True)
class _Sequence:
    """All rows of the keys with new rows: for each key first the stored rows, then the new ones, in order."""

    work: RowsInOrder
    rows: pa.Table
    is_new: Any
    number: Any
    begins: Any
    """The position of the first row of each row's key."""
    before: pa.Table
    """The stored partial values, null for new rows."""

    @classmethod
    def build(cls, work: RowsInOrder, ready: pa.Table, stored: pa.Table) -> _Sequence:
        import numpy as np
        import pyarrow as pa

        new = ready.take(pa.array(np.repeat(np.arange(ready.num_rows), ready["_n"].to_numpy())))
        codes, stored_codes = codes_of(
            [new.select(work.key_columns), stored.select(work.key_columns)], work.key_columns
        )
        is_touched = np.isin(stored_codes, codes)
        stored, stored_codes = stored.filter(pa.array(is_touched)), stored_codes[is_touched]
        ids = ranks_and_values(new["_row"])
        assert ids is not None
        in_order = order_by(codes, integers(new["_at"]), ids[0])
        numbers = integers(stored[NUMBER])
        by_number = order_by(stored_codes, numbers)
        count = len(numbers)
        code = np.concatenate([stored_codes[by_number], codes[in_order]])
        by_key = order(code)  # stable, so that the stored rows of each key stay first
        code = code[by_key]
        is_first = np.ones(len(code), bool)
        is_first[1:] = code[1:] != code[:-1]
        starts, key = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        begins = starts[key]
        is_new = by_key >= count
        number = np.concatenate([numbers[by_number], np.zeros(new.num_rows, np.int64)])[by_key]
        last_stored = (np.maximum.reduceat(number, starts) if len(starts) else number)[key]
        new_so_far = np.cumsum(is_new)
        number = np.where(is_new, last_stored + new_so_far - (new_so_far - is_new)[begins], number)

        common = [GROUP, *work.key_columns, *work.values, "_at", "_row", *map(of_one_row, work.lags)]
        singles = {of_one_row(name): name for name in work.ops}
        old = stored.select([*common, *(singles if work.frame is not None else singles.values())])
        old = old.rename_columns([*common, *singles]).take(pa.array(by_number))
        if work.frame is None:  # the last stored row holds the aggregate of all rows up to it
            is_last = pa.array(_last_of_each(stored_codes[by_number]))
            for name in singles:
                old = _with_nulls(old, name, is_last)
        new_in_order = new.select([*common, *singles]).take(pa.array(in_order))
        partials = stored.select(list(work.ops)).take(pa.array(by_number))
        rows = pa.concat_tables([old, new_in_order], promote_options="default").combine_chunks()
        stored_positions = pa.array(by_key, mask=is_new)
        return cls(work, rows.take(pa.array(by_key)), is_new, number, begins, partials.take(stored_positions))

    def aggregated(self) -> dict[str, pa.Array]:
        """Return the partial values up to each row."""
        import numpy as np

        first, size = self.begins, self.work.frame
        if size is not None:
            first = np.maximum(first, np.arange(len(first)) - (size - 1))
        frames = Frames(first, moving=size is not None)
        partials = {}
        for name, op in self.work.ops.items():
            partials[name] = frames.aggregated(op, self.rows[of_one_row(name)].combine_chunks())
        return partials

    def emitted(self, running: Mapping[str, pa.Array]) -> pa.Table:
        """Return the new rows with their results."""
        import numpy as np
        import pyarrow as pa

        rows = self.rows.select([*self.work.key_columns, *self.work.values])
        for name, values in running.items():
            rows = rows.append_column(name, values)
        for name in self.work.numbers:
            rows = rows.append_column(name, pa.array(self.number))
        for name, distance in self.work.lags.items():
            positions = np.arange(rows.num_rows) - distance
            values = self.rows[of_one_row(name)].take(pa.array(positions, mask=positions < self.begins))
            rows = rows.append_column(name, values)
        return rows.filter(pa.array(self.is_new))

    def changes(self, running: Mapping[str, pa.Array]) -> pa.Table:
        """Return the last rows of each key, each with its place in the ring buffer."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        work, count = self.work, len(self.number)
        ends = np.append(self.begins[1:] != self.begins[:-1], True)[:count]
        newest = self.number[ends][np.cumsum(ends) - ends]
        stays = self.number > newest - work.places
        if not work.together:
            stays &= self.is_new
        rows = self.rows.select([GROUP, *work.key_columns, *work.values, "_at", "_row", *work.one_row_columns])
        is_new = pa.array(self.is_new)
        for name, values in running.items():
            rows = rows.append_column(name, pc.if_else(is_new, values, self.before[name].combine_chunks()))
        rows = rows.append_column(PLACE, pa.array(self.number % work.places, pa.int32()))
        rows = rows.append_column(NUMBER, pa.array(self.number))
        return rows.append_column(DELETED, pa.array(np.zeros(count, bool))).filter(pa.array(stays))


def _last_of_each(codes: Any) -> Any:
    """Return a mask of the last row of each key. The rows of a key are contiguous."""
    import numpy as np

    return np.append(codes[1:] != codes[:-1], True)[: len(codes)]


def _with_nulls(rows: pa.Table, name: str, is_valid: pa.Array) -> pa.Table:
    """Return the rows with null in a column where the mask is false."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows[name].combine_chunks()
    values = pc.if_else(is_valid, column, pa.scalar(None, column.type))
    return rows.set_column(rows.schema.get_field_index(name), name, values)
