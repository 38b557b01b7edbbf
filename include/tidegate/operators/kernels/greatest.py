"""The kernel of `Latest`: the greatest row of each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.delta.as_python import python_rows
from tidegate.operators.kernels.ordered import ordered
from tidegate.operators.kernels.ranked import in_order
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult, Tied, current_and_retracted
from tidegate.state.arrow.keys_as_numbers import codes_of, firsts, positions_in
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LatestRow", "compared", "positions_in_common"]


@dataclass(frozen=True)
class LatestRow(Kernel):
    """Keeps the greatest row of each key. If it changes, emits the new one and retracts the old one.

    Ties take the row with the greatest `_row`, which is computed from the row's content. The state does not store it:
    if a stored row ties with a row that is no copy of it, Spark has to bring it along.
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
        new, old = positions_in_common(rows, before, self.key_columns)
        is_greater = np.ones(rows.num_rows, bool)
        is_greater[new[~self._greater(rows.take(pa.array(new)), before.take(pa.array(old)))]] = False
        retracted = before.take(pa.array(old[is_greater[new]]))
        rows = rows.filter(pa.array(is_greater))
        changes = rows.select([GROUP, *dict.fromkeys([*self.key_columns, *self.columns])])
        changes = changes.append_column(DELETED, pa.array(np.zeros(rows.num_rows, bool)))
        return KernelResult([changes], current_and_retracted(((True, rows), (False, retracted)), self.columns))

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return the greatest row of each key."""
        import pyarrow as pa

        descending = [(name, False) for name in (*self.order, "_row")]
        (codes,) = codes_of([arrived.select(self.key_columns)], self.key_columns)
        by_key = arrived.take(pa.array(in_order(arrived, codes, descending)))
        return by_key.take(pa.array(firsts(by_key, self.key_columns)))

    def _greater(self, rows: pa.Table, before: pa.Table) -> Any:
        """Return whether each row is greater than the stored one at the same position. Null is least."""
        import numpy as np

        if "_row" in before.column_names:
            greater, _ = compared(rows, before, [*self.order, "_row"])
            return greater
        greater, equal = compared(rows, before, self.order)
        for place in np.flatnonzero(equal):
            if self._content(rows, int(place)) != self._content(before, int(place)):
                raise Tied
        return greater

    def _content(self, rows: pa.Table, place: int) -> str:
        """Return a row's content as text, in which NaN equals NaN."""
        return repr(python_rows(rows.select(list(self.columns)).slice(place, 1)))


def positions_in_common(rows: pa.Table, before: pa.Table, key_columns: Sequence[str]) -> tuple[Any, Any]:
    """Return the positions of the keys that both tables have, in each. Both have one row per key."""
    import numpy as np

    codes, codes_before = codes_of([rows.select(key_columns), before.select(key_columns)], key_columns)
    old = positions_in(codes_before, codes)
    new = np.flatnonzero(old >= 0)
    return new, old[new]


def compared(left: pa.Table, right: pa.Table, order: Sequence[str]) -> tuple[Any, Any]:
    """Return masks of the left rows that are greater than, and equal to, the right row at the same position.

    Null is least.
    """
    import numpy as np
    import pyarrow.compute as pc

    greater, equal = np.zeros(left.num_rows, bool), np.ones(left.num_rows, bool)
    for name in order:
        one, other = ordered(left[name].combine_chunks(), right[name].combine_chunks())
        is_more = pc.or_(
            pc.fill_null(pc.greater(one, other), False), pc.and_(pc.is_valid(one), pc.is_null(other))
        ).to_numpy(zero_copy_only=False)
        is_same = pc.or_(
            pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other))
        ).to_numpy(zero_copy_only=False)
        greater |= equal & is_more
        equal &= is_same
    return greater, equal
