"""The kernel of a join of what both sides hold now, whatever its time.

Where both sides only add rows, an inner join gives the pairs that are new, and a semi join the left side's rows that
have a partner only now. Everything else replaces rows: of each key that has changed it gives the result as it is now,
and takes back the one that there was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.kernel import FROM_RIGHT, JoinSide, Pairs, Ranges, joined, repeat_positions
from tidegate.state.arrow.kernel_worker import IS_CURRENT, Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CurrentRowsJoin"]


@dataclass(frozen=True)
class CurrentRowsJoin(Kernel):
    """The batch has by how many copies (`_n`) each row changes; `_row` identifies it."""

    join_keys: Sequence[str]
    sides: tuple[JoinSide, JoinSide]
    how: str
    replaces: bool
    """Whether results are taken back."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        sides = [_CurrentRows.of(self, place, arrived, stored[place]) for place in (0, 1)]
        codes = codes_of([rows.rows.select(self.join_keys) for rows in sides], self.join_keys)
        for rows, own in zip(sides, codes, strict=True):
            rows.codes = own
        changes = [rows.changes() for rows in sides]
        return KernelResult(changes, self._replacing(*sides) if self.replaces else self._adding(*sides))

    def needs_match(self, arrived: pa.Table, place: int) -> Any:
        """Return a mask of the rows that meet all that is stored on a side."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.replaces and (place == 1 or self.how in ("right", "full")):
            return pa.repeat(pa.scalar(True), arrived.num_rows)
        return pc.invert(arrived[FROM_RIGHT]) if place else arrived[FROM_RIGHT]

    def _adding(self, left: _CurrentRows, right: _CurrentRows) -> Iterator[pa.Table]:
        import numpy as np

        every, untouched = np.ones(len(right.now), bool), ~left.touched
        pairs = Pairs([_meeting(left, left.touched, right, every), _meeting(left, untouched, right, right.touched)])
        for left_of, right_of in pairs.chunks():
            if self.how == "semi":
                had = np.where(right.was[right_of] > 0, left.was[left_of], 0)
                copies = left.now[left_of] - had
            else:
                copies = left.now[left_of] * right.now[right_of] - left.was[left_of] * right.was[right_of]
            for chosen, _ in repeat_positions(np.maximum(copies, 0)):
                yield joined(self.join_keys, self.sides, (left.rows, left_of[chosen]), (right.rows, right_of[chosen]))

    def _replacing(self, left: _CurrentRows, right: _CurrentRows) -> Iterator[pa.Table]:
        import numpy as np

        counts = np.ones(len(left.now), bool)
        if self.how not in ("right", "full"):  # there a row of the right side depends on all of the left ones
            counts = left.touched | np.isin(left.codes, right.codes[right.touched])
        for is_now in (True, False):
            for rows in self._result(left, right, counts, is_now=is_now):
                yield rows.append_column(IS_CURRENT, _all(rows.num_rows, is_now))

    def _result(self, left: _CurrentRows, right: _CurrentRows, counts: Any, *, is_now: bool) -> Iterator[pa.Table]:
        """Yield the result of the join as it is, or as it was."""
        import numpy as np

        left_copies, right_copies = left.copies(is_now=is_now), right.copies(is_now=is_now)
        there = counts & (left_copies > 0)
        ranges = _meeting(left, there, right, right_copies > 0)
        pairs = Pairs([ranges])
        left_alone, right_alone = there.copy(), right_copies > 0
        left_alone[pairs.positions_of_left()] = False
        right_alone[pairs.positions_of_right()] = False
        if self.how in ("semi", "anti"):
            alone = np.flatnonzero(left_alone if self.how == "anti" else there & ~left_alone)
            for chosen, _ in repeat_positions(left_copies[alone]):
                yield joined(self.join_keys, self.sides, (left.rows, alone[chosen]), (right.rows, None))
            return
        for left_of, right_of in pairs.chunks():
            for chosen, _ in repeat_positions(left_copies[left_of] * right_copies[right_of]):
                yield joined(self.join_keys, self.sides, (left.rows, left_of[chosen]), (right.rows, right_of[chosen]))
        if self.how in ("left", "full"):
            alone = np.flatnonzero(left_alone)
            for chosen, _ in repeat_positions(left_copies[alone]):
                yield joined(self.join_keys, self.sides, (left.rows, alone[chosen]), (right.rows, None))
        if self.how in ("right", "full"):
            alone = np.flatnonzero(right_alone)
            for chosen, _ in repeat_positions(right_copies[alone]):
                yield joined(self.join_keys, self.sides, (left.rows, None), (right.rows, alone[chosen]))


@dataclass
class _CurrentRows:
    """The rows of one side that the checkpoint is about, each once."""

    rows: pa.Table
    was: Any
    """The copies of each, as of the base, and now."""
    now: Any
    touched: Any
    """Whether that has changed."""
    may_match: Any
    """False: a null in the keys, which equals nothing."""
    codes: Any = None
    """Numbers of their keys, which both sides share."""

    @classmethod
    def of(cls, join: CurrentRowsJoin, place: int, arrived: pa.Table, stored: pa.Table) -> _CurrentRows:
        """Put a side's rows of the batch and the stored ones together."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        side, keys = join.sides[place], [*join.join_keys, "_row"]
        names = [GROUP, *keys, *side.stored]
        came = arrived.filter(arrived[FROM_RIGHT] if place else pc.invert(arrived[FROM_RIGHT]))
        own = [GROUP, *keys, *(side.values[name] for name in side.stored)]
        new = came.select(own).rename_columns(names)
        both = pa.concat_tables([stored.select(names), new], promote_options="permissive")
        codes = np.concatenate(codes_of([stored.select(keys), new.select(keys)], keys))
        _, first, of = np.unique(codes, return_index=True, return_inverse=True)
        old = stored.num_rows
        was = np.bincount(of[:old], weights=stored["_n"].to_numpy(), minlength=len(first)).astype(np.int64)
        change = np.bincount(of[old:], weights=came["_n"].to_numpy(), minlength=len(first)).astype(np.int64)
        rows = both.take(pa.array(first)).combine_chunks()
        may_match = np.ones(rows.num_rows, bool)
        for name in join.join_keys:
            may_match &= pc.is_valid(rows[name]).to_numpy()
        return cls(rows, was, was + change, change != 0, may_match)

    def copies(self, *, is_now: bool) -> Any:
        """Return how many copies there are of each, or were."""
        return self.now if is_now else self.was

    def changes(self) -> pa.Table:
        """Return the changes of the state."""
        import pyarrow as pa

        rows = self.rows.append_column("_n", pa.array(self.now)).append_column(DELETED, pa.array(self.now <= 0))
        return rows.filter(pa.array(self.touched))


def _meeting(left: _CurrentRows, of_left: Any, right: _CurrentRows, of_right: Any) -> Ranges:
    """Return the pairs of some left rows and some right ones that have the same key."""
    import numpy as np

    left_places, right_places = np.flatnonzero(of_left & left.may_match), np.flatnonzero(of_right & right.may_match)
    order = np.argsort(right.codes[right_places], kind="stable")
    ordered, sought = right.codes[right_places][order], left.codes[left_places]
    first = np.searchsorted(ordered, sought, side="left")
    last = np.searchsorted(ordered, sought, side="right")
    return Ranges(left_places, right_places[order], first, last - first)


def _all(count: int, value: bool) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value), count)
