"""Joins of two streams as workers compute them: both sides in one pass, for one range of key groups.

The rows are those of `IntervalJoin` and `LatestJoin` in DataFrame algebra: pairs in which at least one row is new, and
for an outer side the rows for which it no longer waits. Both sides are kept under their keys and an id of all that a
row holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.join.time_bounds import LATE_SIDES
from tidegate.state.arrow.folding import Folded, TooMany
from tidegate.state.arrow.keys_as_numbers import codes_of, integers
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FROM_RIGHT", "JoinInWorkers", "JoinSide"]

FROM_RIGHT: Final = "_tidegate_right"
"""The column of the batch that says which side a row is from."""
CHUNK_ROWS: Final = 1 << 17
"""The number of pairs that are put together at once."""


@dataclass(frozen=True)
class JoinSide:
    """One side of the join."""

    values: Mapping[str, str]
    """Its columns apart from the keys, each with its name in the batch."""
    result: Sequence[tuple[str, str]]
    """The columns of the result that come from it, each with the name here."""
    ends: int | None
    """Rows before this time can no longer match any other. None: there is no watermark yet."""
    outer: bool
    """Whether its rows are emitted without a partner when their time is over."""
    expires: bool = False
    """Whether its stored rows are forgotten by themselves when their time is over."""


@dataclass(frozen=True)
class JoinInWorkers:
    """The work on the rows of one range of key groups."""

    on: Sequence[str]
    sides: tuple[JoinSide, JoinSide]
    low: int
    high: int
    """How much later than the left row the right one may be, in microseconds: from low to high."""
    late: int | None
    """Rows before this time are late."""
    nulls_wait: bool
    """Whether rows with null keys are kept, although they match nothing."""
    most_pairs: int = 1 << 62
    """The most pairs that a worker finds. More are left to Spark, which spills."""
    timed: bool = True
    """Whether times matter. If not, all rows are of one time, and their states hold none."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> Folded:
        import numpy as np

        counts = {"late": 0, "without_time": 0}
        apart: dict[str, pa.Table] = {}
        stored = stored if self.timed else [_of_one_time(rows) for rows in stored]
        sides = [_Rows(self, place, self._arrived(arrived, place, counts, apart), stored[place]) for place in (0, 1)]
        left_of, right_of = _pairs(self, *sides)
        settled = [rows.settle(met) for rows, met in zip(sides, (left_of, right_of), strict=True)]
        alone = [np.repeat(places, copies) for _, places, copies in settled]
        given = self._given(sides, left_of, right_of, alone)
        return Folded([changes for changes, _, _ in settled], given, counts, apart)

    def meeting(self, arrived: pa.Table, place: int) -> Any:
        """Return a mask of the rows of the other side: they meet all that is stored on this one."""
        import pyarrow.compute as pc

        return pc.invert(arrived[FROM_RIGHT]) if place else arrived[FROM_RIGHT]

    def _arrived(self, arrived: pa.Table, place: int, counts: dict[str, int], apart: dict[str, pa.Table]) -> pa.Table:
        """Return the rows of a side that are on time; count the others, and put them apart."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        side = self.sides[place]
        rows = arrived.filter(arrived[FROM_RIGHT] if place else pc.invert(arrived[FROM_RIGHT]))
        timed = pc.is_valid(rows["_at"]).to_numpy()
        late = np.zeros(rows.num_rows, bool)
        if self.late is not None:
            late = timed & (integers(pc.fill_null(rows["_at"], 0)) < self.late)
        counts["late"] += int(late.sum())
        counts["without_time"] += int((~timed).sum())
        keep = timed & ~late
        others = rows.filter(pa.array(~keep))
        here = {**{name: name for name in self.on}, **side.values}
        apart[LATE_SIDES[place]] = pa.table({name: others[column] for name, column in here.items()})
        if not self.nulls_wait:
            for name in self.on:
                keep &= pc.is_valid(rows[name]).to_numpy()
        rows = rows.filter(pa.array(keep))
        own = [GROUP, *self.on, "_row", "_at"]
        names = [*own, *side.values.values()]
        return rows.select(names).rename_columns([*own, *side.values])

    def _given(self, sides: Sequence[_Rows], left_of: Any, right_of: Any, alone: Sequence[Any]) -> Iterator[pa.Table]:
        import numpy as np

        left, right = sides
        copies = left.counts[left_of] * right.counts[right_of]
        if copies.sum() > self.most_pairs:
            raise TooMany
        if (copies != 1).any():
            left_of, right_of = np.repeat(left_of, copies), np.repeat(right_of, copies)
        for start in range(0, len(left_of), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            yield self._joined((left, left_of[chunk]), (right, right_of[chunk]))
        for place, lone in enumerate(alone):
            if len(lone):
                chosen: list[Any] = [(side, None) for side in sides]
                chosen[place] = (sides[place], lone)
                yield self._joined(*chosen)

    def _joined(self, left: tuple[_Rows, Any], right: tuple[_Rows, Any]) -> pa.Table:
        """Return keys, left columns and right ones. Places None: null in all rows."""
        import pyarrow as pa

        keys, places = left if left[1] is not None else right
        taken = pa.array(places)
        columns = {name: keys.rows[name].take(taken) for name in self.on}
        for side, (rows, chosen) in zip(self.sides, (left, right), strict=True):
            for name, here in side.result:
                kind = rows.rows[here].type
                columns[name] = (
                    pa.nulls(len(places), kind) if chosen is None else rows.rows[here].take(pa.array(chosen))
                )
        return pa.table(columns)


class _Rows:
    """The rows of one side that the checkpoint is about: stored ones, and then new ones. In each of the two a row is
    there once, however many copies of it there are."""

    def __init__(self, join: JoinInWorkers, place: int, arrived: pa.Table, stored: pa.Table) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        self.side = join.sides[place]
        keys = [*join.on, "_row"]
        names = [GROUP, *keys, *self.side.values, "_at"]
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
        for name in join.on:
            self.may_match &= pc.is_valid(self.rows[name]).to_numpy()
        _, self.identities = np.unique(np.concatenate([codes_stored, codes_new]), return_inverse=True)
        """The same number for a new row and a stored one that it is a copy of."""

    def settle(self, met: Any) -> tuple[pa.Table, Any, Any]:
        """Return the changes of the state, the places of rows that are emitted without a partner, and how often each.

        met: the places of rows in pairs.
        """
        import numpy as np
        import pyarrow as pa

        place, of = np.unique(self.identities, return_index=True)[1], self.identities
        counts = np.bincount(of, weights=self.counts, minlength=len(place)).astype(np.int64)
        was_stored, is_new, was_matched = (_any(mask, of, len(place)) for mask in self._masks())
        matched = was_matched.copy()
        if self.side.outer:
            matched[of[met]] = True
        ends = self.side.ends
        over = np.zeros(len(place), bool) if ends is None else self.at[place] < ends
        live = ~over & (is_new | (matched & ~was_matched))
        chosen = np.flatnonzero(live if self.side.expires else live | (over & was_stored))
        rows = self.rows.take(pa.array(place[chosen]))
        for name, values in (("_n", counts), ("_matched", matched), (DELETED, over)):
            rows = rows.append_column(name, pa.array(values[chosen]))
        lone = np.flatnonzero(over & ~matched) if self.side.outer else np.zeros(0, np.int64)
        return rows, place[lone], counts[lone]

    def _masks(self) -> tuple[Any, Any, Any]:
        return ~self.is_new, self.is_new, self.was_matched


def _of_one_time(rows: pa.Table) -> pa.Table:
    """Return stored rows with what the state of a join without bounds does not hold."""
    import numpy as np
    import pyarrow as pa

    rows = rows.append_column("_at", pa.array(np.zeros(rows.num_rows, np.int64)))
    return rows.append_column("_matched", pa.array(np.zeros(rows.num_rows, bool)))


def _any(mask: Any, of: Any, count: int) -> Any:
    """Return for each identity whether the mask is true for one of its rows."""
    import numpy as np

    return np.bincount(of[mask], minlength=count) > 0


def _pairs(join: JoinInWorkers, left: _Rows, right: _Rows) -> tuple[Any, Any]:
    """Return the places of the left and the right rows of all pairs in which at least one row is new."""
    import numpy as np

    codes = codes_of([left.rows.select(join.on), right.rows.select(join.on)], join.on)
    new, old, every = np.flatnonzero(left.is_new), np.flatnonzero(~left.is_new), np.arange(len(right.at))
    found = [_near(join, (left, codes[0], new), (right, codes[1], every))]
    found.append(_near(join, (left, codes[0], old), (right, codes[1], np.flatnonzero(right.is_new))))
    return np.concatenate([pair[0] for pair in found]), np.concatenate([pair[1] for pair in found])


def _near(join: JoinInWorkers, left: tuple[_Rows, Any, Any], right: tuple[_Rows, Any, Any]) -> tuple[Any, Any]:
    """Return the pairs of rows with equal keys whose times are within the bounds. Each side: rows, codes, places."""
    import numpy as np

    (left_rows, left_codes, left_places), (right_rows, right_codes, right_places) = left, right
    left_places = left_places[left_rows.may_match[left_places]]
    times = right_rows.at[right_places]
    distinct = np.unique(times)
    ranks = len(distinct) + 1  # a key and a time as one number: all of a key lie together, in the order of time
    order = right_codes[right_places] * ranks + np.searchsorted(distinct, times)
    by_order = np.argsort(order, kind="stable")
    ordered = order[by_order]
    codes, at = left_codes[left_places] * ranks, left_rows.at[left_places]
    first = np.searchsorted(ordered, codes + np.searchsorted(distinct, at + join.low, side="left"))
    last = np.searchsorted(ordered, codes + np.searchsorted(distinct, at + join.high, side="right"))
    sizes = np.maximum(last - first, 0)
    if sizes.sum() > join.most_pairs:
        raise TooMany
    offsets = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(left_places, sizes), right_places[by_order[np.repeat(first, sizes) + offsets]]
