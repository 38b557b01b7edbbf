"""The kernel of sessions: `window/sessions.py` says what a session is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.state.arrow.kernel_worker import Kernel, KernelResult, current_and_retracted
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, order_by
from tidegate.state.arrow.reducing import reduced
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import WindowLimits, ended_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MergeSessions"]

_ISLAND = "_island"


@dataclass(frozen=True)
class MergeSessions(Kernel):
    """Merges the batch's rows with the open sessions of their keys, and emits those that are complete.

    A row of the batch has its time in `_at`, and its partial values.
    """

    key_columns: Sequence[str]
    start: str
    end: str
    ops: Mapping[str, str]
    """Each partial value's column, and how two are merged: "sum", "min" or "max"."""
    gap: int
    limits: WindowLimits
    on_update: bool = False
    """Whether every changed session is emitted."""
    late: Mapping[str, str] | None = None
    """The columns of late rows, each with its name in the batch. None: late rows are not used."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        timed = pc.is_valid(arrived["_at"]).to_numpy()
        times = integers(pc.fill_null(arrived["_at"], 0))
        times = np.minimum(times, np.iinfo(np.int64).max - self.gap)  # so that the end fits
        late = timed & ended_mask(pa.array(times + self.gap), self.limits.late)
        counts = {"late": int(late.sum()), "without_time": int((~timed).sum())}
        on_time = timed & ~late
        side_outputs = {}
        if self.late is not None:
            late_rows = arrived.filter(pa.array(~on_time))
            side_outputs["late"] = late_rows.select(list(self.late.values())).rename_columns(list(self.late))
        new, times = arrived.filter(pa.array(on_time)), times[on_time]
        # The rows of one stored session, or one new row, are a piece. Pieces that touch form an island: a session.
        old = stored[0].filter(pa.array(~ended_mask(stored[0][self.end], self.limits.late)))
        starts = np.concatenate([times, integers(old[self.start])])
        ends = np.concatenate([times + self.gap, integers(old[self.end])])
        is_new = np.repeat([True, False], [new.num_rows, old.num_rows])
        island = self._islands(new, old, starts, ends)
        sessions = self._reduced(new, old, island, starts, ends)
        changed = np.bincount(island[is_new], minlength=sessions.num_rows) > 0
        begins = integers(sessions[self.start])
        stays = sessions.filter(pa.array(changed & ~ended_mask(sessions[self.end], self.limits.closed_for_rows)))
        # A session's start is part of its key in the state: one with a new start leaves the old row to delete.
        moved = old.filter(pa.array((changed[island] & (starts != begins[island]))[new.num_rows :]))
        names = [GROUP, self.start, *self.key_columns, self.end, *self.ops]
        changes = pa.concat_tables([stays.select(names), moved.select(names)])
        deleted = np.repeat([False, True], [stays.num_rows, moved.num_rows])
        changed_before = old.filter(pa.array(changed[island][new.num_rows :]))
        unchanged = old.filter(pa.array(~changed[island][new.num_rows :]))
        parts = [
            (True, self._emitted(sessions.filter(pa.array(changed)), self.limits.closed)),
            (True, self._due(unchanged)),
            (False, self._emitted(changed_before, self.limits.closed_before)),
        ]
        emitted = current_and_retracted(parts, [self.start, self.end, *self.key_columns, *self.ops])
        return KernelResult([changes.append_column(DELETED, pa.array(deleted))], emitted, counts, side_outputs)

    def _emitted(self, rows: pa.Table, closed: int | None) -> pa.Table:
        """Return those of changed sessions that are emitted, or were, with this limit."""
        import pyarrow as pa

        if self.on_update:
            return rows
        return rows.filter(pa.array(ended_mask(rows[self.end], closed)))

    def _due(self, rows: pa.Table) -> pa.Table:
        """Return the sessions that close without a change."""
        import pyarrow as pa

        ends, limits = rows[self.end], self.limits
        if self.on_update:
            return rows.slice(0, 0)
        return rows.filter(pa.array(ended_mask(ends, limits.closed) & ~ended_mask(ends, limits.closed_before)))

    def _islands(self, new: pa.Table, old: pa.Table, starts: Any, ends: Any) -> Any:
        """Return the number of the session that each piece is part of. The new pieces come first."""
        import numpy as np

        codes = np.concatenate(codes_of([new.select(self.key_columns), old.select(self.key_columns)], self.key_columns))
        order = order_by(codes, starts)
        codes, starts, ends = codes[order], starts[order], ends[order]
        distinct, rank = np.unique(ends, return_inverse=True)
        last_end = np.maximum.accumulate(codes * len(distinct) + rank)  # the last end of the key so far, with its code
        begins = np.ones(len(codes), bool)
        begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] > distinct[last_end[:-1] - codes[:-1] * len(distinct)])
        island = np.empty(len(codes), np.int64)
        island[order] = np.cumsum(begins) - 1
        return island

    def _reduced(self, new: pa.Table, old: pa.Table, island: Any, starts: Any, ends: Any) -> pa.Table:
        """Return one row for each session, in the order of their numbers."""
        import pyarrow as pa

        names = [GROUP, *self.key_columns, *self.ops]
        kind = old.schema.field(self.start).type
        values = pa.concat_tables([new.select(names).cast(old.select(names).schema), old.select(names)])
        pieces = values.append_column(_ISLAND, pa.array(island))
        pieces = pieces.append_column(self.start, pa.array(starts).cast(kind))
        pieces = pieces.append_column(self.end, pa.array(ends).cast(kind))
        ops = {**self.ops, self.start: "min", self.end: "max"}
        rows = reduced(pieces.combine_chunks().to_batches(), [_ISLAND], ops)
        return pieces if rows is None else rows
