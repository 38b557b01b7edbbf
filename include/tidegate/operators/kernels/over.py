"""The kernel of values over the rows before: running sums, the row before it, its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.operators.kernels.frames import Frames
from tidegate.operators.kernels.waiting import WaitingRows
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, ranks_and_values
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NUMBER", "PLACE", "RowsInOrder", "of_one_row"]

PLACE: Final = "_place"
NUMBER: Final = "_number"
"""A row's number among all rows of its key, from 1."""


def of_one_row(name: str) -> str:
    """Return the column with what a result or a partial value is computed from, of one row."""
    return f"_of_{name}"


@dataclass(frozen=True)
class RowsInOrder(Kernel):
    """Gives each row that is ready with values over it and the rows before it, in the order of time.

    Of each key the last rows are kept, in as many places as it looks back, one overwriting the other.
    """

    by: Sequence[str]
    waiting: WaitingRows
    values: Sequence[str]
    """The columns apart from the keys that are kept and given."""
    ops: Mapping[str, str]
    """Each partial value's column, and how two are merged: "sum", "min" or "max"."""
    lags: Mapping[str, int]
    """The results that are the value of an earlier row, each with how many rows before."""
    numbers: Sequence[str]
    """The results that are the row's number."""
    frame: int | None
    """How many rows are aggregated, the row itself included. None: all so far."""
    places: int
    """How many rows of a key are kept."""
    together: bool
    """Whether all rows of a key are written anew with each new one, so that they expire together."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        waited = self.waiting(arrived, stored[0])
        rows = _Sequence.of(self, waited.ready, stored[1])
        running = rows.aggregated()
        return KernelResult(
            [waited.changes, rows.changes(running)], [rows.given(running)], waited.counts, {LATE_OUTPUT: waited.late}
        )

    def needs_match(self, arrived: pa.Table, place: int) -> Any:
        """Of rows that wait only copies are needed; of the last rows those of keys that get a new one."""
        return self.waiting.none(arrived) if place == 0 else self.waiting.are_ready(arrived)

    @property
    def kept(self) -> list[str]:
        """The columns of single rows that are kept with them, as later rows go by them."""
        return [*map(of_one_row, self.lags), *(map(of_one_row, self.ops) if self.frame is not None else ())]


@dataclass(frozen=True)
class _Sequence:
    """The rows of the keys that get new ones: of each key the stored ones, then the new ones, in order."""

    work: RowsInOrder
    rows: pa.Table
    is_new: Any
    number: Any
    begins: Any
    """For each row the place of its key's first one."""
    before: pa.Table
    """What is stored of partial values: null in new rows."""

    @classmethod
    def of(cls, work: RowsInOrder, ready: pa.Table, stored: pa.Table) -> _Sequence:
        import numpy as np
        import pyarrow as pa

        new = ready.take(pa.array(np.repeat(np.arange(ready.num_rows), ready["_n"].to_numpy())))
        codes, of_stored = codes_of([new.select(work.by), stored.select(work.by)], work.by)
        touched = np.isin(of_stored, codes)
        stored, of_stored = stored.filter(pa.array(touched)), of_stored[touched]
        ids = ranks_and_values(new["_row"])
        assert ids is not None
        in_order = np.lexsort((ids[0], integers(new["_at"]), codes))
        numbers = integers(stored[NUMBER])
        by_number = np.lexsort((numbers, of_stored))
        count = len(numbers)
        code = np.concatenate([of_stored[by_number], codes[in_order]])
        together = np.argsort(code, kind="stable")  # of each key the stored ones come first
        code = code[together]
        first = np.ones(len(code), bool)
        first[1:] = code[1:] != code[:-1]
        starts, key = np.flatnonzero(first), np.cumsum(first) - 1
        begins = starts[key]
        is_new = together >= count
        number = np.concatenate([numbers[by_number], np.zeros(new.num_rows, np.int64)])[together]
        carried = (np.maximum.reduceat(number, starts) if len(starts) else number)[key]
        upto = np.cumsum(is_new)
        number = np.where(is_new, carried + upto - (upto - is_new)[begins], number)

        own = [GROUP, *work.by, *work.values, "_at", "_row", *map(of_one_row, work.lags)]
        singles = {of_one_row(name): name for name in work.ops}
        old = stored.select([*own, *(singles if work.frame is not None else singles.values())])
        old = old.rename_columns([*own, *singles]).take(pa.array(by_number))
        if work.frame is None:  # the last of the stored rows stands for all before it
            carries = pa.array(_last_of_each(of_stored[by_number]))
            for name in singles:
                old = _with_nulls(old, name, carries)
        fresh = new.select([*own, *singles]).take(pa.array(in_order))
        partials = stored.select(list(work.ops)).take(pa.array(by_number))
        places = pa.array(together, mask=is_new)
        rows = pa.concat_tables([old, fresh], promote_options="default").combine_chunks().take(pa.array(together))
        return cls(work, rows, is_new, number, begins, partials.take(places))

    def aggregated(self) -> dict[str, pa.Array]:
        """Return the partial values up to each row."""
        import numpy as np

        first, size = self.begins, self.work.frame
        if size is not None:
            first = np.maximum(first, np.arange(len(first)) - (size - 1))
        frames = Frames(first, moving=size is not None)
        return {
            name: frames.aggregated(op, self.rows[of_one_row(name)].combine_chunks())
            for name, op in self.work.ops.items()
        }

    def given(self, running: Mapping[str, pa.Array]) -> pa.Table:
        """Return the new rows with their results."""
        import numpy as np
        import pyarrow as pa

        rows = self.rows.select([*self.work.by, *self.work.values])
        for name, values in running.items():
            rows = rows.append_column(name, values)
        for name in self.work.numbers:
            rows = rows.append_column(name, pa.array(self.number))
        for name, back in self.work.lags.items():
            places = np.arange(rows.num_rows) - back
            values = self.rows[of_one_row(name)].take(pa.array(places, mask=places < self.begins))
            rows = rows.append_column(name, values)
        return rows.filter(pa.array(self.is_new))

    def changes(self, running: Mapping[str, pa.Array]) -> pa.Table:
        """Return the last rows of each key, each in the place of the one that is that many rows before it."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        work, count = self.work, len(self.number)
        ends = np.append(self.begins[1:] != self.begins[:-1], True)[:count]
        newest = self.number[ends][np.cumsum(ends) - ends]
        stays = self.number > newest - work.places
        if not work.together:
            stays &= self.is_new
        rows = self.rows.select([GROUP, *work.by, *work.values, "_at", "_row", *work.kept])
        is_new = pa.array(self.is_new)
        for name, values in running.items():
            rows = rows.append_column(name, pc.if_else(is_new, values, self.before[name].combine_chunks()))
        rows = rows.append_column(PLACE, pa.array(self.number % work.places, pa.int32()))
        rows = rows.append_column(NUMBER, pa.array(self.number))
        return rows.append_column(DELETED, pa.array(np.zeros(count, bool))).filter(pa.array(stays))


def _last_of_each(codes: Any) -> Any:
    """Return a mask of the last row of each key, of rows that are together."""
    import numpy as np

    return np.append(codes[1:] != codes[:-1], True)[: len(codes)]


def _with_nulls(rows: pa.Table, name: str, known: pa.Array) -> pa.Table:
    """Return rows with null in a column where it is not known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows[name].combine_chunks()
    nulls = pc.if_else(known, column, pa.scalar(None, column.type))
    return rows.set_column(rows.schema.get_field_index(name), name, nulls)
