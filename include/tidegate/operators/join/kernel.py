"""The kernel of interval joins, and parts that all kernels of joins share.

An interval join emits the pairs in which at least one row is new, and the unmatched rows of an outer side once they can
no longer match. A semi join emits the left rows that have just found a match, an anti join those that no longer can.
Both sides are stored under their keys and an id that is computed from the row's content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.join.time_bounds import LATE_SIDES
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import CODE_LIMIT, codes_of, distinct_codes, integers, order, order_by
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import late_rows_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FROM_RIGHT", "IntervalJoinKernel", "JoinSide", "Pairs", "Ranges", "joined", "repeat_positions"]

FROM_RIGHT: Final = "_tidegate_right"
"""The column of the batch that is true for rows of the right side."""
CHUNK_ROWS: Final = 1 << 17
"""The number of rows that are materialized at once."""


@dataclass(frozen=True)
class JoinSide:
    """One side of the join."""

    values: Mapping[str, str]
    """The other columns, each with its name in the batch."""
    stored: Sequence[str]
    """Those of them that the state stores."""
    result: Sequence[tuple[str, str]]
    """The columns of the result that this side provides, each with its name on this side."""
    expire_before: int | None
    """Rows before this time can no longer match. None: there is no watermark yet."""
    emits_unmatched: bool
    """Whether unmatched rows are emitted once they can no longer match."""
    emits_once_matched: bool = False
    """Whether a row is emitted, without its partner, as soon as it has a match."""
    expires: bool = False
    """Whether the state itself drops rows that can no longer match."""


@dataclass(frozen=True)
class IntervalJoinKernel(Kernel):
    """Joins rows with equal keys whose times are within bounds of each other."""

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
    """Whether pairs are emitted. Otherwise only single rows are."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        counts = {"late": 0, "without_time": 0}
        late_rows: dict[str, pa.Table] = {}
        sides = []
        for place in (0, 1):
            on_time = self._split_late(arrived, place, counts, late_rows)
            sides.append(_Rows(self, place, on_time, stored[place]))
        pairs = _pairs(self, *sides)
        left, right = sides[0].settle(pairs.positions_of_left()), sides[1].settle(pairs.positions_of_right())
        emitted = self._emit_rows(sides, pairs, [left.single_rows, right.single_rows])
        return KernelResult([left.changes, right.changes], emitted, counts, late_rows)

    def needs_match(self, arrived: pa.Table, state_number: int) -> Any:
        """Return a mask of the rows of the other side: they may match any row that is stored on this one."""
        import pyarrow.compute as pc

        if state_number:
            return pc.invert(arrived[FROM_RIGHT])
        return arrived[FROM_RIGHT]

    def _split_late(
        self, arrived: pa.Table, place: int, counts: dict[str, int], late_rows: dict[str, pa.Table]
    ) -> pa.Table:
        """Return the rows of a side that are on time. Add the rest to the counts and to the late rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        side = self.sides[place]
        is_on_side = arrived[FROM_RIGHT].to_numpy() == bool(place)
        timed, late = late_rows_mask(arrived["_at"], self.late)
        counts["late"] += int((is_on_side & late).sum())
        counts["without_time"] += int((is_on_side & ~timed).sum())
        not_on_time = arrived.filter(pa.array(is_on_side & (late | ~timed)))
        columns = {name: not_on_time[name] for name in self.join_keys}
        for name, batch_name in side.values.items():
            columns[name] = not_on_time[batch_name]
        late_rows[LATE_SIDES[place]] = pa.table(columns)
        mask = is_on_side & timed & ~late
        if not self.nulls_wait:
            for name in self.join_keys:
                mask &= pc.is_valid(arrived[name]).to_numpy()
        keys = [GROUP, *self.join_keys, "_row", "_at"]
        rows = arrived.select([*keys, *(side.values[name] for name in side.stored)]).filter(pa.array(mask))
        return rows.rename_columns([*keys, *side.stored])

    def _emit_rows(
        self, sides: Sequence[_Rows], pairs: Pairs, single_rows: Sequence[tuple[Any, Any]]
    ) -> Iterator[pa.Table]:
        left, right = sides
        if self.emits_pairs:
            for left_positions, right_positions in pairs.chunks():
                copies = left.counts[left_positions] * right.counts[right_positions]
                if (copies == 1).all():
                    yield joined(self.join_keys, self.sides, (left.rows, left_positions), (right.rows, right_positions))
                    continue
                for chosen, _ in repeat_positions(copies):
                    left_chosen, right_chosen = left_positions[chosen], right_positions[chosen]
                    yield joined(self.join_keys, self.sides, (left.rows, left_chosen), (right.rows, right_chosen))
        for place, (positions, copies) in enumerate(single_rows):
            for chosen, _ in repeat_positions(copies):
                both: list[Any] = [(side.rows, None) for side in sides]
                both[place] = (sides[place].rows, positions[chosen])
                yield joined(self.join_keys, self.sides, *both)


class _Rows:
    """The rows of one side that the checkpoint touches: stored rows first, then new ones.

    Copies are counted: a row occurs once among the stored and once among the new rows at most.
    """

    def __init__(self, join: IntervalJoinKernel, place: int, arrived: pa.Table, stored: pa.Table) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        self.side = join.sides[place]
        names = [GROUP, *join.join_keys, "_row", *self.side.stored, "_at"]
        codes_stored, codes_arrived = codes_of([stored.select(["_row"]), arrived.select(["_row"])], ["_row"])
        first, row_number = distinct_codes(codes_arrived)
        new = arrived.select(names).take(pa.array(first))
        self.rows = pa.concat_tables([stored.select(names), new], promote_options="permissive").combine_chunks()
        self.counts = np.concatenate([stored["_n"].to_numpy(), np.bincount(row_number, minlength=len(first))])
        self.is_new = np.repeat([False, True], [len(codes_stored), len(first)])
        self.was_matched = np.concatenate([stored["_matched"].to_numpy(), np.zeros(len(first), bool)])
        self.times = integers(self.rows["_at"])
        self.may_match = np.ones(len(self.times), bool)
        """False for rows with a null key, which equals nothing."""
        for name in join.join_keys:
            self.may_match &= pc.is_valid(self.rows[name]).to_numpy()
        _, self.identities = distinct_codes(np.concatenate([codes_stored, codes_arrived[first]]))
        """The same number for a new row and a stored one that it is a copy of."""

    def settle(self, paired: Any) -> _Settled:
        """Return the changes of the state, and the rows to emit without a partner. paired: positions of rows in
        pairs."""
        import numpy as np
        import pyarrow as pa

        identities = self.identities
        first, _ = distinct_codes(identities)
        distinct = len(first)
        counts = np.bincount(identities, weights=self.counts, minlength=distinct).astype(np.int64)
        was_stored = _any_per_identity(~self.is_new, identities, distinct)
        is_new = _any_per_identity(self.is_new, identities, distinct)
        was_matched = _any_per_identity(self.was_matched, identities, distinct)
        is_matched = was_matched.copy()
        if self.side.emits_unmatched or self.side.emits_once_matched:
            is_matched[identities[paired]] = True
        is_over = np.zeros(distinct, bool)
        if self.side.expire_before is not None:
            is_over = self.times[first] < self.side.expire_before
        is_written = ~is_over & (is_new | (is_matched & ~was_matched))
        if not self.side.expires:
            is_written |= is_over & was_stored  # to delete it
        chosen = np.flatnonzero(is_written)
        rows = self.rows.take(pa.array(first[chosen]))
        for name, values in (("_n", counts), ("_matched", is_matched), (DELETED, is_over)):
            rows = rows.append_column(name, pa.array(values[chosen]))
        single = np.zeros(0, np.int64)
        if self.side.emits_unmatched:
            single = np.flatnonzero(is_over & ~is_matched)
        if self.side.emits_once_matched:
            new_counts = np.bincount(identities, weights=self.counts * self.is_new, minlength=distinct)
            counts = np.where(was_matched, new_counts.astype(np.int64), counts)
            single = np.flatnonzero(is_matched & (counts > 0))
        return _Settled(rows, (first[single], counts[single]))


@dataclass(frozen=True)
class _Settled:
    """The outcome for a side's rows."""

    changes: pa.Table
    """The changes of its state."""
    single_rows: tuple[Any, Any]
    """The positions of rows that are emitted without a partner, and the number of copies of each."""


def _any_per_identity(mask: Any, identities: Any, count: int) -> Any:
    """Return for each identity whether the mask is true for one of its rows."""
    import numpy as np

    return np.bincount(identities[mask], minlength=count) > 0


def _pairs(join: IntervalJoinKernel, left: _Rows, right: _Rows) -> Pairs:
    """Return all pairs in which at least one row is new."""
    import numpy as np

    left_codes, right_codes = codes_of(
        [left.rows.select(join.join_keys), right.rows.select(join.join_keys)], join.join_keys
    )
    left_new, left_old = np.flatnonzero(left.is_new), np.flatnonzero(~left.is_new)
    right_all, right_new = np.arange(len(right.times)), np.flatnonzero(right.is_new)
    return Pairs(
        [
            _find_pairs_within_bounds(join, (left, left_codes, left_new), (right, right_codes, right_all)),
            _find_pairs_within_bounds(join, (left, left_codes, left_old), (right, right_codes, right_new)),
        ]
    )


@dataclass(frozen=True)
class Ranges:
    """Pairs of rows: each left row with a range of right rows, which are ordered by key and time."""

    left: Any
    """Positions of left rows."""
    right: Any
    """Positions of right rows, in order."""
    first: Any
    """For each left row, the index in `right` at which its range begins."""
    sizes: Any
    """For each left row, the number of rows in its range."""


@dataclass(frozen=True)
class Pairs:
    """Pairs as ranges: if a key has many rows on both sides, its pairs may not fit into memory."""

    ranges: Sequence[Ranges]

    def positions_of_left(self) -> Any:
        """Return the positions of left rows in pairs."""
        import numpy as np

        return np.concatenate([each.left[each.sizes > 0] for each in self.ranges])

    def positions_of_right(self) -> Any:
        """Return the positions of right rows in pairs."""
        import numpy as np

        positions = []
        for each in self.ranges:
            # Each range adds 1 where it begins and subtracts 1 behind its end: rows in a range have a sum above 0.
            first, sizes = each.first[each.sizes > 0], each.sizes[each.sizes > 0]
            steps = np.bincount(first, minlength=len(each.right) + 1)
            steps -= np.bincount(first + sizes, minlength=len(each.right) + 1)
            positions.append(each.right[np.cumsum(steps[:-1]) > 0])
        return np.concatenate(positions)

    def chunks(self) -> Iterator[tuple[Any, Any]]:
        """Yield the positions of left and right rows of the pairs, in chunks."""
        for each in self.ranges:
            for rows, offsets in repeat_positions(each.sizes):
                yield each.left[rows], each.right[each.first[rows] + offsets]


def joined(
    on: Sequence[str], sides: Sequence[JoinSide], left: tuple[pa.Table, Any], right: tuple[pa.Table, Any]
) -> pa.Table:
    """Return rows of the result: the keys, the left columns, the right columns.

    left, right: a table, and the positions of its rows, or None for nulls.
    """
    import pyarrow as pa

    keyed_rows, keyed_positions = left if left[1] is not None else right
    columns = {name: keyed_rows[name].take(pa.array(keyed_positions)) for name in on}
    for side, (rows, positions) in zip(sides, (left, right), strict=True):
        for name, side_name in side.result:
            if positions is None:
                columns[name] = pa.nulls(len(keyed_positions), rows[side_name].type)
            else:
                columns[name] = rows[side_name].take(pa.array(positions))
    return pa.table(columns)


def repeat_positions(sizes: Any) -> Iterator[tuple[Any, Any]]:
    """Repeat each position of `sizes` as often as its size says. Yield chunks: positions, and the number of each
    repetition from 0."""
    import numpy as np

    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, CHUNK_ROWS):
        end = min(start + CHUNK_ROWS, total)
        low = int(np.searchsorted(ends, start, side="right"))
        high = int(np.searchsorted(ends, end - 1, side="right")) + 1
        starts = ends[low:high] - sizes[low:high]
        repeats = np.minimum(ends[low:high], end) - np.maximum(starts, start)
        positions = np.repeat(np.arange(low, high), repeats)
        yield positions, np.arange(start, end) - np.repeat(starts, repeats)


def _find_pairs_within_bounds(
    join: IntervalJoinKernel, left: tuple[_Rows, Any, Any], right: tuple[_Rows, Any, Any]
) -> Ranges:
    """Return the pairs of rows with equal keys whose times are within the bounds. Each side: rows, codes, positions."""
    import numpy as np

    (left_rows, left_codes, left_positions), (right_rows, right_codes, right_positions) = left, right
    left_positions = left_positions[left_rows.may_match[left_positions]]
    right_times = right_rows.times[right_positions]
    least, greatest = (int(right_times.min()), int(right_times.max())) if len(right_times) else (0, 0)
    span = greatest - least + 1
    keys = 1 + max(int(codes.max(initial=0)) for codes in (left_codes, right_codes))
    if keys * (span + 1) >= CODE_LIMIT:  # the times have to be numbered, so that a key and a time fit into one number
        distinct = np.unique(right_times)
        span = len(distinct)

        def ranks(times: Any) -> Any:
            return np.searchsorted(distinct, times)

    else:

        def ranks(times: Any) -> Any:
            return np.clip(times, least, greatest + 1) - least

    # With a key and a time as one number, the rows of a key are contiguous, in order of time.
    numbers = right_codes[right_positions] * (span + 1) + ranks(right_times)
    by_number = order(numbers)
    ordered = numbers[by_number]
    # In order, they are found several times faster.
    left_positions = left_positions[order_by(left_codes[left_positions], left_rows.times[left_positions])]
    left_numbers, left_times = left_codes[left_positions] * (span + 1), left_rows.times[left_positions]
    first = np.searchsorted(ordered, left_numbers + ranks(left_times + join.low))
    last = np.searchsorted(ordered, left_numbers + ranks(left_times + join.high + 1))
    return Ranges(left_positions, right_positions[by_number], first, np.maximum(last - first, 0))
