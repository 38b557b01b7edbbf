"""The kernel of aggregates whose partial values are sums and extremes: each key's row now, and before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.state.arrow.kernel_worker import Kernel, KernelResult, current_and_retracted
from tidegate.state.arrow.keys_as_numbers import codes_of
from tidegate.state.arrow.reducing import combined, reduced
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MergeAggregates", "merge_partials", "reduced_rows", "with_columns"]


@dataclass(frozen=True)
class MergeAggregates(Kernel):
    """Merges the batch's partial values with those of their keys, and emits what these are and what they were."""

    key_columns: Sequence[str]
    ops: Mapping[str, str]
    """Each partial value's column, and how two are merged: "sum", "min" or "max"."""
    rows: str | None = None
    """The column that counts a key's rows. None: none are taken back. At 0 the key is gone."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """The partial values that are the same in all rows: these come without them."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        names = [GROUP, *self.key_columns, *self.ops]
        before = stored[0].select(names)
        now, places = merge_partials(
            reduced_rows(arrived.select(names), self.key_columns, self.ops), before, self.key_columns, self.ops
        )
        gone = np.zeros(now.num_rows, bool)
        if self.rows is not None:
            gone = now[self.rows].to_numpy() <= 0
        never_there = gone & (places < 0)  # it came and was taken back in one checkpoint
        changes = now.append_column(DELETED, pa.array(gone)).filter(pa.array(~never_there))
        known = before.take(pa.array(places[places >= 0]))
        parts = ((True, now.filter(pa.array(~gone))), (False, known))
        return KernelResult([changes], current_and_retracted(parts, [*self.key_columns, *self.ops]), sorted_by_key=True)

    def add_columns(self, arrived: pa.Table) -> pa.Table:
        """Return rows as they come, with all of their partial values."""
        return with_columns(arrived, self.fixed)

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the rows of each key as one."""
        return reduced_rows(arrived, self.key_columns, self.ops)


def with_columns(rows: pa.Table, fixed: Mapping[str, int]) -> pa.Table:
    """Return the rows with columns that are the same in all, as far as they lack them."""
    import pyarrow as pa

    for name, value in fixed.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
    return rows


def reduced_rows(rows: pa.Table, keys: Sequence[str], ops: Mapping[str, str]) -> pa.Table:
    """Return the rows of each key as one, in the order of keys."""
    merged = reduced(rows.to_batches(), keys, ops)
    return rows if merged is None else merged.select(rows.column_names)


def merge_partials(now: pa.Table, before: pa.Table, by: Sequence[str], ops: Mapping[str, str]) -> tuple[pa.Table, Any]:
    """Merge each row with the stored one of its key. Return with it the place of that one: -1 if there is none.

    Both have a row for each key.
    """
    import numpy as np
    import pyarrow as pa

    codes, known = codes_of([now.select(by), before.select(by)], by)
    places = np.full(len(codes), -1, np.int64)
    _, here, there = np.intersect1d(codes, known, assume_unique=True, return_indices=True)
    places[here] = there
    take = pa.array(places, mask=places < 0)
    for name, op in ops.items():
        column = before[name].combine_chunks() if before.num_rows else pa.array([], before.schema.field(name).type)
        stored = column.take(take)
        values = combined(stored, now[name].combine_chunks().cast(stored.type), op)
        now = now.set_column(now.schema.get_field_index(name), name, values)
    return now, places
