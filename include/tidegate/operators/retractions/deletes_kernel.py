"""The kernel of `RememberedDeletes`: the newest deletion of each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.operators.kernels.greatest import compared, positions_in_common
from tidegate.operators.kernels.ranked import in_order
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, firsts
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["GONE", "NewestDeletes"]

GONE: Final = "_gone"
"""The column of the batch that is true for a deletion."""


@dataclass(frozen=True)
class NewestDeletes(Kernel):
    """Stores the order of each key's newest deletion until a row arrives that is not older. Emits the stored deletions
    that are newer than some row of the batch."""

    key_columns: Sequence[str]
    order: Sequence[str]

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        before, arrived = stored[0].combine_chunks(), arrived.combine_chunks()
        newest = self._first(arrived, ascends=False)
        new, old = positions_in_common(newest, before, self.key_columns)
        is_outdated, is_stored = np.zeros(newest.num_rows, bool), np.zeros(newest.num_rows, bool)
        greater, equal = compared(newest.take(pa.array(new)), before.take(pa.array(old)), self.order)
        is_outdated[new[~(greater | equal)]] = True
        is_stored[new] = True
        is_deletion = np.asarray(newest[GONE].combine_chunks().to_numpy(zero_copy_only=False), bool)
        # A newer deletion replaces the stored one, and any other newer row removes it.
        chosen = np.flatnonzero(~is_outdated & (is_deletion | is_stored))
        columns = list(dict.fromkeys([GROUP, *self.key_columns, *self.order]))
        changes = newest.select(columns).take(pa.array(chosen))
        changes = changes.append_column(DELETED, pa.array(~is_deletion[chosen]))
        oldest = self._first(arrived, ascends=True)
        new, old = positions_in_common(oldest, before, self.key_columns)
        greater, _ = compared(before.take(pa.array(old)), oldest.take(pa.array(new)), self.order)
        return KernelResult([changes], [before.select(columns[1:]).take(pa.array(old[greater]))])

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the newest and the oldest row of each key."""
        import pyarrow as pa

        arrived = arrived.combine_chunks()
        return pa.concat_tables([self._first(arrived, ascends=False), self._first(arrived, ascends=True)])

    def _first(self, arrived: pa.Table, *, ascends: bool) -> pa.Table:
        """Return the oldest row of each key, or the newest. Ties take a row that is no deletion. Null is least."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table, order = arrived, []
        for number, name in enumerate(self.order):
            if ascends:  # `in_order` puts nulls last
                table = table.append_column(f"_valid{number}", pc.is_valid(arrived[name]))
                order.append((f"_valid{number}", True))
            order.append((name, ascends))
        (keys,) = codes_of([arrived.select(self.key_columns)], self.key_columns)
        rows = arrived.take(pa.array(in_order(table, keys, [*order, (GONE, True)])))
        return rows.take(pa.array(firsts(rows, self.key_columns)))
