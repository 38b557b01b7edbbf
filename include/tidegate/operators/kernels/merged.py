"""The kernel of aggregates whose partial values are sums and extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.state.arrow.kernel_worker import Kernel, KernelResult, current_and_retracted
from tidegate.state.arrow.keys_as_numbers import codes_of, positions_in
from tidegate.state.arrow.reducing import combined, reduced
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MergeAggregates", "merge_partials", "reduced_rows", "with_columns"]


@dataclass(frozen=True)
class MergeAggregates(Kernel):
    """Merges the batch's partial values with those of their keys. Emits each key's new row, and retracts the old."""

    key_columns: Sequence[str]
    ops: Mapping[str, str]
    """Each partial value's column, and how two are merged: "sum", "min" or "max"."""
    rows: str | None = None
    """The column that counts a key's rows: at 0 the key is removed. None: the input has no retractions."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """The partial values that are the same for all rows, which the batch need not contain."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        names = [GROUP, *self.key_columns, *self.ops]
        before = stored[0].select(names)
        changed = reduced_rows(arrived.select(names), self.key_columns, self.ops)
        now, positions = merge_partials(changed, before, self.key_columns, self.ops)
        is_removed = np.zeros(now.num_rows, bool)
        if self.rows is not None:
            is_removed = now[self.rows].to_numpy() <= 0
        never_stored = is_removed & (positions < 0)  # its rows arrived and were retracted in this checkpoint
        changes = now.append_column(DELETED, pa.array(is_removed)).filter(pa.array(~never_stored))
        retracted = before.take(pa.array(positions[positions >= 0]))
        parts = ((True, now.filter(pa.array(~is_removed))), (False, retracted))
        return KernelResult([changes], current_and_retracted(parts, [*self.key_columns, *self.ops]), sorted_by_key=True)

    def add_columns(self, arrived: pa.Table) -> pa.Table:
        """Return the rows with all of their partial values."""
        return with_columns(arrived, self.fixed)

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Merge the rows of each key into one."""
        return reduced_rows(arrived, self.key_columns, self.ops)


def with_columns(rows: pa.Table, fixed: Mapping[str, int]) -> pa.Table:
    """Return the rows with these constant columns, if they lack them."""
    import pyarrow as pa

    for name, value in fixed.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
    return rows


def reduced_rows(rows: pa.Table, keys: Sequence[str], ops: Mapping[str, str]) -> pa.Table:
    """Merge the rows of each key into one. The result is sorted by key."""
    merged = reduced(rows.to_batches(), keys, ops)
    if merged is None:
        return rows
    return merged.select(rows.column_names)


def merge_partials(
    now: pa.Table, before: pa.Table, key_columns: Sequence[str], ops: Mapping[str, str]
) -> tuple[pa.Table, Any]:
    """Merge each row with the stored row of its key. Return with them the stored rows' positions, or -1 for new keys.

    Both tables have one row per key.
    """
    import pyarrow as pa

    codes, codes_before = codes_of([now.select(key_columns), before.select(key_columns)], key_columns)
    positions = positions_in(codes_before, codes)
    indices = pa.array(positions, mask=positions < 0)
    for name, op in ops.items():
        if before.num_rows:
            column = before[name].combine_chunks()
        else:
            column = pa.array([], before.schema.field(name).type)
        stored = column.take(indices)
        values = combined(stored, now[name].combine_chunks().cast(stored.type), op)
        now = now.set_column(now.schema.get_field_index(name), name, values)
    return now, positions
