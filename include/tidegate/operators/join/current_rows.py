"""The kernel of a join of the current rows of both sides.

If both sides only add rows, an inner join emits the new pairs, and a semi join the left rows that have found their
first match. In all other cases, the join emits the new result for each changed key, and retracts the old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.kernel import FROM_RIGHT, JoinSide, Pairs, Ranges, joined, repeat_positions
from tidegate.state.arrow.kernel_worker import IS_CURRENT, Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, distinct_codes, order
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CurrentRowsJoin"]


@dataclass(frozen=True)
class CurrentRowsJoin(Kernel):
    """A row of the batch has its id in `_row`, and the change of its number of copies in `_n`."""

    join_keys: Sequence[str]
    sides: tuple[JoinSide, JoinSide]
    how: str
    retracts: bool
    """Whether the join emits retractions."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        sides = [_CurrentRows.merge(self, place, arrived, stored[place]) for place in (0, 1)]
        codes = codes_of([rows.rows.select(self.join_keys) for rows in sides], self.join_keys)
        for rows, side_codes in zip(sides, codes, strict=True):
            rows.codes = side_codes
        changes = [rows.changes() for rows in sides]
        if self.retracts:
            emitted = self._new_and_old_results(*sides)
        else:
            emitted = self._new_rows(*sides)
        return KernelResult(changes, emitted)

    def needs_match(self, arrived: pa.Table, state_number: int) -> Any:
        """Return a mask of the rows that need all stored rows of a side under their keys."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.retracts and (state_number == 1 or self.how in ("right", "full")):
            return pa.repeat(pa.scalar(True), arrived.num_rows)
        if state_number:
            return pc.invert(arrived[FROM_RIGHT])
        return arrived[FROM_RIGHT]

    def _new_rows(self, left: _CurrentRows, right: _CurrentRows) -> Iterator[pa.Table]:
        """Yield the rows that the result gains. Only for inner and semi joins of sides that only add rows."""
        import numpy as np

        all_right, unchanged = np.ones(len(right.now), bool), ~left.is_changed
        pairs = Pairs(
            [
                _matches(left, left.is_changed, right, all_right),
                _matches(left, unchanged, right, right.is_changed),
            ]
        )
        for left_positions, right_positions in pairs.chunks():
            left_now, left_was = left.now[left_positions], left.was[left_positions]
            right_now, right_was = right.now[right_positions], right.was[right_positions]
            if self.how == "semi":
                copies = left_now - np.where(right_was > 0, left_was, 0)
            else:
                copies = left_now * right_now - left_was * right_was
            yield from self._joined(left, left_positions, right, right_positions, np.maximum(copies, 0))

    def _new_and_old_results(self, left: _CurrentRows, right: _CurrentRows) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        left_mask = np.ones(len(left.now), bool)
        if self.how not in ("right", "full"):  # in these, a right row depends on all left rows of its key
            left_mask = left.is_changed | np.isin(left.codes, right.codes[right.is_changed])
        for is_now in (True, False):
            for rows in self._result(left, right, left_mask, is_now=is_now):
                yield rows.append_column(IS_CURRENT, pa.repeat(pa.scalar(is_now), rows.num_rows))

    def _result(self, left: _CurrentRows, right: _CurrentRows, left_mask: Any, *, is_now: bool) -> Iterator[pa.Table]:
        """Yield the result of the join, now or at the base. left_mask: the left rows whose results are needed."""
        import numpy as np

        left_copies, right_copies = left.copies(is_now=is_now), right.copies(is_now=is_now)
        left_exists = left_mask & (left_copies > 0)
        pairs = Pairs([_matches(left, left_exists, right, right_copies > 0)])
        left_unmatched, right_unmatched = left_exists.copy(), right_copies > 0
        left_unmatched[pairs.positions_of_left()] = False
        right_unmatched[pairs.positions_of_right()] = False
        if self.how in ("semi", "anti"):
            chosen = np.flatnonzero(left_unmatched if self.how == "anti" else left_exists & ~left_unmatched)
            yield from self._joined(left, chosen, right, None, left_copies[chosen])
            return
        for left_positions, right_positions in pairs.chunks():
            copies = left_copies[left_positions] * right_copies[right_positions]
            yield from self._joined(left, left_positions, right, right_positions, copies)
        if self.how in ("left", "full"):
            chosen = np.flatnonzero(left_unmatched)
            yield from self._joined(left, chosen, right, None, left_copies[chosen])
        if self.how in ("right", "full"):
            chosen = np.flatnonzero(right_unmatched)
            yield from self._joined(left, None, right, chosen, right_copies[chosen])

    def _joined(
        self, left: _CurrentRows, left_positions: Any, right: _CurrentRows, right_positions: Any, copies: Any
    ) -> Iterator[pa.Table]:
        """Yield rows of the result for these positions of each side, once per copy. None: a side without a match."""
        for chosen, _ in repeat_positions(copies):
            left_chosen = None if left_positions is None else left_positions[chosen]
            right_chosen = None if right_positions is None else right_positions[chosen]
            yield joined(self.join_keys, self.sides, (left.rows, left_chosen), (right.rows, right_chosen))


@dataclass
class _CurrentRows:
    """The rows of one side that the checkpoint touches, each once."""

    rows: pa.Table
    was: Any
    """The number of copies of each row at the base."""
    now: Any
    """The number of copies of each row now."""
    is_changed: Any
    may_match: Any
    """False for rows with a null key, which equals nothing."""
    codes: Any = None
    """Numbers for their keys, the same on both sides."""

    @classmethod
    def merge(cls, join: CurrentRowsJoin, place: int, arrived: pa.Table, stored: pa.Table) -> _CurrentRows:
        """Merge a side's rows of the batch with the stored ones."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        side, keys = join.sides[place], [GROUP, *join.join_keys, "_row"]
        names = [*keys, *side.stored]
        batch_names = [*keys, *(side.values[name] for name in side.stored)]
        arrived = arrived.filter(arrived[FROM_RIGHT] if place else pc.invert(arrived[FROM_RIGHT]))
        new = arrived.select(batch_names).rename_columns(names)
        both = pa.concat_tables([stored.select(names), new], promote_options="permissive")
        codes = np.concatenate(codes_of([stored.select(["_row"]), new.select(["_row"])], ["_row"]))
        first, row_number = distinct_codes(codes)
        old, distinct = stored.num_rows, len(first)
        was = np.bincount(row_number[:old], weights=stored["_n"].to_numpy(), minlength=distinct).astype(np.int64)
        change = np.bincount(row_number[old:], weights=arrived["_n"].to_numpy(), minlength=distinct).astype(np.int64)
        rows = both.take(pa.array(first)).combine_chunks()
        may_match = np.ones(rows.num_rows, bool)
        for name in join.join_keys:
            may_match &= pc.is_valid(rows[name]).to_numpy()
        return cls(rows, was, was + change, change != 0, may_match)

    def copies(self, *, is_now: bool) -> Any:
        """Return the number of copies of each row, now or at the base."""
        return self.now if is_now else self.was

    def changes(self) -> pa.Table:
        """Return the changes of the state."""
        import pyarrow as pa

        rows = self.rows.append_column("_n", pa.array(self.now)).append_column(DELETED, pa.array(self.now <= 0))
        return rows.filter(pa.array(self.is_changed))


def _matches(left: _CurrentRows, left_mask: Any, right: _CurrentRows, right_mask: Any) -> Ranges:
    """Return the pairs with equal keys among the left and right rows of these masks."""
    import numpy as np

    left_positions = np.flatnonzero(left_mask & left.may_match)
    left_positions = left_positions[order(left.codes[left_positions])]  # in order, they are found several times faster
    right_positions = np.flatnonzero(right_mask & right.may_match)
    right_codes, sought = right.codes[right_positions], left.codes[left_positions]
    by_code = order(right_codes)
    ordered = right_codes[by_code]
    first = np.searchsorted(ordered, sought, side="left")
    last = np.searchsorted(ordered, sought, side="right")
    return Ranges(left_positions, right_positions[by_code], first, last - first)
