"""Joins of two streams as workers compute them: both sides in one pass, for one range of key groups.

They give the pairs in which at least one row is new, and for an outer side the rows for which it no longer waits. A
semi join gives the left side's rows that have found a partner now, an anti join those that no longer can. Both sides
are kept under their keys and an id of all that a row holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.join.time_bounds import LATE_SIDES
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import CODE_LIMIT, codes_of, integers
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import late_rows_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FROM_RIGHT", "IntervalJoinKernel", "JoinSide", "Pairs", "Ranges", "joined", "repeat_positions"]

FROM_RIGHT: Final = "_tidegate_right"
"""The column of the batch that says which side a row is from."""
CHUNK_ROWS: Final = 1 << 17
"""The number of rows that are put together at once."""


@dataclass(frozen=True)
class JoinSide:
    """One side of the join."""

    values: Mapping[str, str]
    """Its columns apart from the keys, each with its name in the batch."""
    stored: Sequence[str]
    """Those of them that are kept."""
    result: Sequence[tuple[str, str]]
    """The columns of the result that come from it, each with the name here."""
    expire_before: int | None
    """Rows before this time can no longer match any other. None: there is no watermark yet."""
    emits_unmatched: bool
    """Whether its rows are emitted without a partner when their time is over."""
    emits_once_matched: bool = False
    """Whether its rows are emitted once they have a partner, by themselves."""
    expires: bool = False
    """Whether its stored rows are forgotten by themselves when their time is over."""


@dataclass(frozen=True)
class IntervalJoinKernel(Kernel):
    """The work on the rows of one range of key groups."""

    join_keys: Sequence[str]
    sides: tuple[JoinSide, JoinSide]
    low: int
    high: int
    """How much later than the left row the right one may be, in microseconds: from low to high."""
    late: int | None
    """Rows before this time are late."""
    nulls_wait: bool
    """Whether rows with null keys are kept, although they match nothing."""
    emits_pairs: bool = True
    """Whether pairs are emitted, and not only rows of one side."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        counts = {"late": 0, "without_time": 0}
        apart: dict[str, pa.Table] = {}
        sides = [_Rows(self, place, self._arrived(arrived, place, counts, apart), stored[place]) for place in (0, 1)]
        pairs = _pairs(self, *sides)
        settled = [
            rows.settle(met)
            for rows, met in zip(sides, (pairs.positions_of_left(), pairs.positions_of_right()), strict=True)
        ]
        given = self._emit_rows(sides, pairs, [each.lone for each in settled])
        return KernelResult([each.changes for each in settled], given, counts, apart)

    def needs_match(self, arrived: pa.Table, place: int) -> Any:
        """Return a mask of the rows of the other side: they meet all that is stored on this one."""
        import pyarrow.compute as pc

        return pc.invert(arrived[FROM_RIGHT]) if place else arrived[FROM_RIGHT]

    def _arrived(self, arrived: pa.Table, place: int, counts: dict[str, int], apart: dict[str, pa.Table]) -> pa.Table:
        """Return the rows of a side that are on time; count the others, and put them apart."""
        import pyarrow as pa
        import pyarrow.compute as pc

        side = self.sides[place]
        mine = arrived[FROM_RIGHT].to_numpy() == bool(place)
        timed, late = late_rows_mask(arrived["_at"], self.late)
        counts["late"] += int((mine & late).sum())
        counts["without_time"] += int((mine & ~timed).sum())
        others = arrived.filter(pa.array(mine & (late | ~timed)))
        here = {**{name: name for name in self.join_keys}, **side.values}
        apart[LATE_SIDES[place]] = pa.table({name: others[column] for name, column in here.items()})
        keep = mine & timed & ~late
        if not self.nulls_wait:
            for name in self.join_keys:
                keep &= pc.is_valid(arrived[name]).to_numpy()
        own = [GROUP, *self.join_keys, "_row", "_at"]
        rows = arrived.select([*own, *(side.values[name] for name in side.stored)]).filter(pa.array(keep))
        return rows.rename_columns([*own, *side.stored])

    def _emit_rows(self, sides: Sequence[_Rows], pairs: Pairs, alone: Sequence[tuple[Any, Any]]) -> Iterator[pa.Table]:
        left, right = sides
        for left_of, right_of in pairs.chunks() if self.emits_pairs else ():
            copies = left.counts[left_of] * right.counts[right_of]
            if (copies == 1).all():
                yield joined(self.join_keys, self.sides, (left.rows, left_of), (right.rows, right_of))
                continue
            for places, _ in repeat_positions(copies):
                yield joined(self.join_keys, self.sides, (left.rows, left_of[places]), (right.rows, right_of[places]))
        for place, (lone, copies) in enumerate(alone):
            for chosen, _ in repeat_positions(copies):
                both: list[Any] = [(side.rows, None) for side in sides]
                both[place] = (sides[place].rows, lone[chosen])
                yield joined(self.join_keys, self.sides, *both)


class _Rows:
    """The rows of one side that the checkpoint is about: stored ones, and then new ones. In each of the two a row is
    there once, however many copies of it there are."""

    def __init__(self, join: IntervalJoinKernel, place: int, arrived: pa.Table, stored: pa.Table) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        self.side = join.sides[place]
        keys = [*join.join_keys, "_row"]
        names = [GROUP, *keys, *self.side.stored, "_at"]
        codes_stored, codes_arrived = codes_of([stored.select(keys), arrived.select(keys)], keys)
        codes_new, first, of = np.unique(codes_arrived, return_index=True, return_inverse=True)
        new = arrived.select(names).take(pa.array(first))
        self.rows = pa.concat_tables([stored.select(names), new], promote_options="permissive").combine_chunks()
        self.counts = np.concatenate([stored["_n"].to_numpy(), np.bincount(of, minlength=len(first))])
        self.is_new = np.repeat([False, True], [len(codes_stored), len(first)])
        self.was_matched = np.concatenate([stored["_matched"].to_numpy(), np.zeros(len(first), bool)])
        self.at = integers(self.rows["_at"])
        self.may_match = np.ones(len(self.at), bool)
        """False: a null in the keys, which equals nothing."""
        for name in join.join_keys:
            self.may_match &= pc.is_valid(self.rows[name]).to_numpy()
        _, self.identities = np.unique(np.concatenate([codes_stored, codes_new]), return_inverse=True)
        """The same number for a new row and a stored one that it is a copy of."""

    def settle(self, met: Any) -> _Settled:
        """Return what becomes of the rows. met: the places of rows in pairs."""
        import numpy as np
        import pyarrow as pa

        place, of = np.unique(self.identities, return_index=True)[1], self.identities
        counts = np.bincount(of, weights=self.counts, minlength=len(place)).astype(np.int64)
        was_stored, is_new, was_matched = (_any(mask, of, len(place)) for mask in self._masks())
        matched = was_matched.copy()
        if self.side.emits_unmatched or self.side.emits_once_matched:
            matched[of[met]] = True
        ends = self.side.expire_before
        over = np.zeros(len(place), bool) if ends is None else self.at[place] < ends
        live = ~over & (is_new | (matched & ~was_matched))
        chosen = np.flatnonzero(live if self.side.expires else live | (over & was_stored))
        rows = self.rows.take(pa.array(place[chosen]))
        for name, values in (("_n", counts), ("_matched", matched), (DELETED, over)):
            rows = rows.append_column(name, pa.array(values[chosen]))
        lone = np.zeros(0, np.int64)
        if self.side.emits_unmatched:
            lone = np.flatnonzero(over & ~matched)
        if self.side.emits_once_matched:
            arriving = np.bincount(of, weights=self.counts * self.is_new, minlength=len(place)).astype(np.int64)
            counts = np.where(was_matched, arriving, counts)
            lone = np.flatnonzero(matched & (counts > 0))
        return _Settled(rows, (place[lone], counts[lone]))

    def _masks(self) -> tuple[Any, Any, Any]:
        return ~self.is_new, self.is_new, self.was_matched


@dataclass(frozen=True)
class _Settled:
    """What becomes of a side's rows."""

    changes: pa.Table
    """The changes of its state."""
    lone: tuple[Any, Any]
    """The places of rows that are emitted by themselves, and how often each."""


def _any(mask: Any, of: Any, count: int) -> Any:
    """Return for each identity whether the mask is true for one of its rows."""
    import numpy as np

    return np.bincount(of[mask], minlength=count) > 0


def _pairs(join: IntervalJoinKernel, left: _Rows, right: _Rows) -> Pairs:
    """Return all pairs in which at least one row is new."""
    import numpy as np

    codes = codes_of([left.rows.select(join.join_keys), right.rows.select(join.join_keys)], join.join_keys)
    new, old, every = np.flatnonzero(left.is_new), np.flatnonzero(~left.is_new), np.arange(len(right.at))
    found = [_find_near_pairs(join, (left, codes[0], new), (right, codes[1], every))]
    found.append(_find_near_pairs(join, (left, codes[0], old), (right, codes[1], np.flatnonzero(right.is_new))))
    return Pairs(found)


@dataclass(frozen=True)
class Ranges:
    """Pairs of rows: of each left one with those of the right side in a range, ordered by key and time."""

    left: Any
    """Places of left rows."""
    right: Any
    """Places of right rows, in order."""
    first: Any
    """For each left row, where its range begins in that order."""
    sizes: Any
    """How many rows the range has."""


@dataclass(frozen=True)
class Pairs:
    """Pairs that nobody has put together yet: of a key with many rows on both sides there may be more than memory can
    hold."""

    ranges: Sequence[Ranges]

    def positions_of_left(self) -> Any:
        """Return the places of left rows in pairs."""
        import numpy as np

        return np.concatenate([each.left[each.sizes > 0] for each in self.ranges])

    def positions_of_right(self) -> Any:
        """Return the places of right rows in pairs."""
        import numpy as np

        met = []
        for each in self.ranges:
            steps = np.zeros(len(each.right) + 1, np.int64)
            np.add.at(steps, each.first, each.sizes > 0)
            np.subtract.at(steps, each.first + each.sizes, each.sizes > 0)
            met.append(each.right[np.cumsum(steps[:-1]) > 0])
        return np.concatenate(met)

    def chunks(self) -> Iterator[tuple[Any, Any]]:
        """Yield the places of left and right rows, some pairs at a time."""
        for each in self.ranges:
            for rows, offsets in repeat_positions(each.sizes):
                yield each.left[rows], each.right[each.first[rows] + offsets]


def joined(
    on: Sequence[str], sides: Sequence[JoinSide], left: tuple[pa.Table, Any], right: tuple[pa.Table, Any]
) -> pa.Table:
    """Return keys, left columns and right ones, of rows at these places of each side. None: null in all rows."""
    import pyarrow as pa

    keys, places = left if left[1] is not None else right
    columns = {name: keys[name].take(pa.array(places)) for name in on}
    for side, (rows, chosen) in zip(sides, (left, right), strict=True):
        for name, here in side.result:
            kind = rows[here].type
            columns[name] = pa.nulls(len(places), kind) if chosen is None else rows[here].take(pa.array(chosen))
    return pa.table(columns)


def repeat_positions(sizes: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the places of sizes, each as often as its size says, with how often before; some at once."""
    import numpy as np

    upto = np.cumsum(sizes)
    total = int(upto[-1]) if len(upto) else 0
    for start in range(0, total, CHUNK_ROWS):
        end = min(start + CHUNK_ROWS, total)
        low = int(np.searchsorted(upto, start, side="right"))
        high = int(np.searchsorted(upto, end - 1, side="right")) + 1
        before = upto[low:high] - sizes[low:high]
        some = np.minimum(upto[low:high], end) - np.maximum(before, start)
        places = np.repeat(np.arange(low, high), some)
        yield places, np.arange(start, end) - np.repeat(before, some)


def _find_near_pairs(join: IntervalJoinKernel, left: tuple[_Rows, Any, Any], right: tuple[_Rows, Any, Any]) -> Ranges:
    """Return the pairs of rows with equal keys whose times are within the bounds. Each side: rows, codes, places."""
    import numpy as np

    (left_rows, left_codes, left_places), (right_rows, right_codes, right_places) = left, right
    left_places = left_places[left_rows.may_match[left_places]]
    times = right_rows.at[right_places]
    least, greatest = (int(times.min()), int(times.max())) if len(times) else (0, 0)
    span = greatest - least + 1
    keys = 1 + max(int(codes.max(initial=0)) for codes in (left_codes, right_codes))
    if keys * (span + 1) >= CODE_LIMIT:
        distinct = np.unique(times)
        span = len(distinct)

        def place(moments: Any) -> Any:
            return np.searchsorted(distinct, moments)

    else:

        def place(moments: Any) -> Any:
            return np.clip(moments, least, greatest + 1) - least

    # A key and a time as one number: all of a key lie together, in the order of time.
    order = right_codes[right_places] * (span + 1) + place(times)
    by_order = np.argsort(order, kind="stable")
    ordered = order[by_order]
    codes, at = left_codes[left_places] * (span + 1), left_rows.at[left_places]
    first = np.searchsorted(ordered, codes + place(at + join.low))
    last = np.searchsorted(ordered, codes + place(at + join.high + 1))
    return Ranges(left_places, right_places[by_order], first, np.maximum(last - first, 0))
