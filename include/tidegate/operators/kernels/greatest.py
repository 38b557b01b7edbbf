"""The greatest row of each key as workers find it, for one range of key groups: the rows of `Latest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.delta.as_python import python_rows
from tidegate.operators.kernels.ordered import ordered
from tidegate.operators.kernels.ranked import in_order
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult, Tied, current_and_retracted
from tidegate.state.arrow.keys_as_numbers import codes_of, firsts
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LatestRow", "compared", "positions_of_both"]


@dataclass(frozen=True)
class LatestRow(Kernel):
    """Keeps the row of each key that is the greatest in an order, and emits it, and the one before it.

    Of rows that are equal in the order that with the greatest `_row` counts, which tells them apart by all that they
    hold. Stored rows do not hold it: where one is equal in the order to a row that is no copy of it, Spark has to bring
    it along.
    """

    may_tie: ClassVar[bool] = True

    key_columns: Sequence[str]
    order: Sequence[str]
    columns: Sequence[str]
    """The columns of the result."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        rows = self.combine(arrived).combine_chunks()
        before = stored[0].combine_chunks()
        new, old = positions_of_both(rows, before, self.key_columns)
        is_greater = np.ones(rows.num_rows, bool)
        is_greater[new[~self._greater(rows.take(pa.array(new)), before.take(pa.array(old)))]] = False
        replaced = before.take(pa.array(old[is_greater[new]]))
        rows = rows.filter(pa.array(is_greater))
        changes = rows.select([GROUP, *dict.fromkeys([*self.key_columns, *self.columns])])
        changes = changes.append_column(DELETED, pa.array(np.zeros(rows.num_rows, bool)))
        return KernelResult([changes], current_and_retracted(((True, rows), (False, replaced)), self.columns))

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the greatest row of each key."""
        import pyarrow as pa

        descending = [(name, False) for name in (*self.order, "_row")]
        by_key = arrived.take(
            pa.array(in_order(arrived, codes_of([arrived.select(self.key_columns)], self.key_columns)[0], descending))
        )
        return by_key.take(pa.array(firsts(by_key, self.key_columns)))

    def _greater(self, rows: pa.Table, before: pa.Table) -> Any:
        """Return whether each row is greater than the stored one beside it: null is least."""
        import numpy as np

        if "_row" in before.column_names:
            return compared(rows, before, [*self.order, "_row"])[0]
        greater, equal = compared(rows, before, self.order)
        for place in np.flatnonzero(equal):
            if self._content(rows, int(place)) != self._content(before, int(place)):
                raise Tied
        return greater

    def _content(self, rows: pa.Table, place: int) -> str:
        """Return all that a row holds, as text: so NaN is the same as NaN."""
        return repr(python_rows(rows.select(list(self.columns)).slice(place, 1)))


def positions_of_both(rows: pa.Table, before: pa.Table, by: Sequence[str]) -> tuple[Any, Any]:
    """Return the places of rows, and of the stored rows under the same keys. Both have one row per key."""
    import numpy as np

    codes, known = codes_of([rows.select(by), before.select(by)], by)
    _, new, old = np.intersect1d(codes, known, assume_unique=True, return_indices=True)
    return new, old


def compared(rows: pa.Table, others: pa.Table, order: Sequence[str]) -> tuple[Any, Any]:
    """Return whether each row is greater in an order than the one beside it, and whether it is equal: null is least."""
    import numpy as np
    import pyarrow.compute as pc

    greater, equal = np.zeros(rows.num_rows, bool), np.ones(rows.num_rows, bool)
    for name in order:
        one, other = ordered(rows[name].combine_chunks(), others[name].combine_chunks())
        is_more = pc.or_(
            pc.fill_null(pc.greater(one, other), False), pc.and_(pc.is_valid(one), pc.is_null(other))
        ).to_numpy(zero_copy_only=False)
        is_same = pc.or_(
            pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other))
        ).to_numpy(zero_copy_only=False)
        greater |= equal & is_more
        equal &= is_same
    return greater, equal
