"""The kernel of sessions: `window/sessions.py` says what a session is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.state.arrow.kernel_worker import Kernel, KernelResult, current_and_retracted
from tidegate.state.arrow.keys_as_numbers import codes_of, integers
from tidegate.state.arrow.reducing import reduced
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import WindowLimits, ended_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MergeSessions"]

_ISLAND = "_island"


@dataclass(frozen=True)
class MergeSessions(Kernel):
    """Puts the batch's rows together with the sessions that are held of their keys, and emits those that are complete.

    The batch has a row's time in `_at`, and its partial values.
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
    """The columns of late rows, each with its name in the batch. None: nobody takes them."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        timed = pc.is_valid(arrived["_at"]).to_numpy()
        at = integers(pc.fill_null(arrived["_at"], 0))
        at = np.minimum(at, np.iinfo(np.int64).max - self.gap)
        late = timed & ended_mask(pa.array(at + self.gap), self.limits.late)
        counts = {"late": int(late.sum()), "without_time": int((~timed).sum())}
        on_time = timed & ~late
        apart = {}
        if self.late is not None:
            lost = arrived.filter(pa.array(~on_time))
            apart["late"] = lost.select(list(self.late.values())).rename_columns(list(self.late))
        new, at = arrived.filter(pa.array(on_time)), at[on_time]
        held = stored[0].filter(pa.array(~ended_mask(stored[0][self.end], self.limits.late)))
        starts = np.concatenate([at, integers(held[self.start])])
        ends = np.concatenate([at + self.gap, integers(held[self.end])])
        is_new = np.repeat([True, False], [new.num_rows, held.num_rows])
        island = self._islands(new, held, starts, ends)
        pieces = self._reduced(new, held, island, starts, ends)
        changed = np.bincount(island[is_new], minlength=pieces.num_rows) > 0
        begins = integers(pieces[self.start])
        stays = pieces.filter(pa.array(changed & ~ended_mask(pieces[self.end], self.limits.closed_for_rows)))
        moved = held.filter(pa.array((changed[island] & (starts != begins[island]))[new.num_rows :]))
        names = [GROUP, self.start, *self.key_columns, self.end, *self.ops]
        changes = pa.concat_tables([stays.select(names), moved.select(names)])
        deleted = np.repeat([False, True], [stays.num_rows, moved.num_rows])
        joined = held.filter(pa.array(changed[island][new.num_rows :]))
        untouched = held.filter(pa.array(~changed[island][new.num_rows :]))  # each as it is
        given = [
            (True, self._emitted(pieces.filter(pa.array(changed)), self.limits.closed)),
            (True, self._due(untouched)),
            (False, self._emitted(joined, self.limits.closed_before)),
        ]
        changes = changes.append_column(DELETED, pa.array(deleted))
        return KernelResult(
            [changes], current_and_retracted(given, [self.start, self.end, *self.key_columns, *self.ops]), counts, apart
        )

    def _emitted(self, rows: pa.Table, closed: int | None) -> pa.Table:
        """Return those of changed sessions that are emitted, or were, as of a limit."""
        import pyarrow as pa

        return rows if self.on_update else rows.filter(pa.array(ended_mask(rows[self.end], closed)))

    def _due(self, rows: pa.Table) -> pa.Table:
        """Return the sessions that close without a change."""
        import pyarrow as pa

        ends, limits = rows[self.end], self.limits
        if self.on_update:
            return rows.slice(0, 0)
        return rows.filter(pa.array(ended_mask(ends, limits.closed) & ~ended_mask(ends, limits.closed_before)))

    def _islands(self, new: pa.Table, held: pa.Table, starts: Any, ends: Any) -> Any:
        """Return for each piece, the new ones first, the number of the session that it is part of."""
        import numpy as np

        codes = np.concatenate(
            codes_of([new.select(self.key_columns), held.select(self.key_columns)], self.key_columns)
        )
        order = np.lexsort((starts, codes))
        codes, starts, ends = codes[order], starts[order], ends[order]
        distinct, rank = np.unique(ends, return_inverse=True)
        reached = np.maximum.accumulate(codes * len(distinct) + rank)  # of one key, the last end so far
        begins = np.ones(len(codes), bool)
        begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] > distinct[reached[:-1] - codes[:-1] * len(distinct)])
        island = np.empty(len(codes), np.int64)
        island[order] = np.cumsum(begins) - 1
        return island

    def _reduced(self, new: pa.Table, held: pa.Table, island: Any, starts: Any, ends: Any) -> pa.Table:
        """Return one row for each session, in the order of their numbers."""
        import pyarrow as pa

        names = [GROUP, *self.key_columns, *self.ops]
        kind = held.schema.field(self.start).type
        values = pa.concat_tables([new.select(names).cast(held.select(names).schema), held.select(names)])
        pieces = values.append_column(_ISLAND, pa.array(island))
        pieces = pieces.append_column(self.start, pa.array(starts).cast(kind))
        pieces = pieces.append_column(self.end, pa.array(ends).cast(kind))
        ops = {**self.ops, self.start: "min", self.end: "max"}
        rows = reduced(pieces.combine_chunks().to_batches(), [_ISLAND], ops)
        return pieces if rows is None else rows
