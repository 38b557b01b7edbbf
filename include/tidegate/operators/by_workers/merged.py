"""Partial values of aggregates as workers merge them, for one range of key groups: each key's row now, and before.

`KeyedState.merge` does the same for aggregates that only add rows, and of which nobody asks what they were before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.state.arrow.folding import Folded
from tidegate.state.arrow.keys_as_numbers import codes_of
from tidegate.state.arrow.reducing import combined, reduced
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["IS_NOW", "MergedPartials"]

IS_NOW: Final = "_new"
"""The column of the result that says whether a row is what its key has now, or what it had at the base."""


@dataclass(frozen=True)
class MergedPartials:
    """Merges the batch's partial values with those of their keys, and emits what these are and what they were."""

    by: Sequence[str]
    ops: Mapping[str, str]
    """Each partial value's column, and how two are merged: "sum", "min" or "max"."""
    rows: str | None
    """The column that counts a key's rows. None: none are taken back. At 0 the key is gone."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> Folded:
        import numpy as np
        import pyarrow as pa

        names = [GROUP, *self.by, *self.ops]
        before = stored[0].select(names)
        batches = arrived.select(names).to_batches()
        now = reduced(batches, self.by, self.ops)
        if now is None:
            return Folded([before.slice(0, 0).append_column(DELETED, pa.array([], pa.bool_()))], [])
        codes, known = codes_of([now.select(self.by), before.select(self.by)], self.by)
        sources = np.full(len(codes), -1, np.int64)
        _, here, there = np.intersect1d(codes, known, assume_unique=True, return_indices=True)
        sources[here] = there
        take = pa.array(sources, mask=sources < 0)
        for name, op in self.ops.items():
            stored_values = before[name].combine_chunks().take(take)
            values = combined(stored_values, now[name].combine_chunks().cast(stored_values.type), op)
            now = now.set_column(now.schema.get_field_index(name), name, values)
        gone = np.zeros(now.num_rows, bool)
        if self.rows is not None:
            gone = now[self.rows].to_numpy() <= 0
        changes = now.append_column(DELETED, pa.array(gone))
        never_there = gone & (sources < 0)  # it came and was taken back in one checkpoint
        return Folded([changes.filter(pa.array(~never_there))], self._given(now.filter(pa.array(~gone)), before))

    def fewer(self, arrived: pa.Table) -> pa.Table:
        """Return the rows of each key as one."""
        names = [GROUP, *self.by, *self.ops]
        rows = reduced(arrived.select(names).to_batches(), self.by, self.ops)
        return arrived if rows is None else rows.select(arrived.column_names)

    def _given(self, now: pa.Table, before: pa.Table) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        for is_now, rows in ((True, now), (False, before)):
            said: Any = pa.array(np.repeat(is_now, rows.num_rows))
            yield rows.select([*self.by, *self.ops]).append_column(IS_NOW, said)
