"""Sums, least and greatest values of the rows up to each row of a sequence: the same as Spark's windows give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.kernels.ordered import ordered
from tidegate.state.arrow.reducing import sum_does_not_fit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Frames"]

_WORD: Final = 1 << 64
"""Decimals are made of two words of 64 bits each."""


@dataclass(frozen=True)
class Frames:
    """For each row of a sequence, the rows that are aggregated: from `first` up to itself."""

    first: Any
    """The place of each row's first one."""
    moving: bool
    """Whether frames begin anywhere: otherwise all of a key begin with the key's first row."""

    def aggregated(self, op: str, column: pa.Array) -> pa.Array:
        """Return for each row the sum, min or max of its frame. Nulls do not count; of nulls alone it is null."""
        return self._sums(column) if op == "sum" else self._extremes(column, greatest=op == "max")

    @property
    def _lengths(self) -> Any:
        import numpy as np

        return np.arange(len(self.first)) - self.first + 1

    def _sums(self, column: pa.Array) -> pa.Array:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.is_valid(column).to_numpy(zero_copy_only=False)
        missing = self._differences(np.cumsum(known)) == 0
        if pa.types.is_floating(column.type):
            values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy()
            sums = self._sums_one_by_one(values) if self.moving else self._running_sums(values)
            return pa.array(sums, mask=missing).cast(column.type)
        whole = _whole_numbers(column, known)
        return _as_type(self._differences(_added_up(whole)), missing, column.type)

    def _differences(self, upto: Any) -> Any:
        """Return what each frame adds to sums of all rows up to each row."""
        import numpy as np

        return upto - np.concatenate([np.zeros(1, upto.dtype), upto])[self.first]

    def _running_sums(self, values: Any) -> Any:
        """Add floats up from each key's first row on: one after the other, for another order gives another sum."""
        import numpy as np

        sums = 0.0 + values
        starts, lengths = np.unique(self.first, return_counts=True)
        longest = int(lengths.max(initial=0))
        if longest > len(starts):
            for start, length in zip(starts, lengths, strict=True):
                sums[start : start + length] = np.add.accumulate(sums[start : start + length])
            return sums
        for step in range(1, longest):  # many keys with few rows each: all keys at once
            places = starts[lengths > step] + step
            sums[places] += sums[places - 1]
        return sums

    def _sums_one_by_one(self, values: Any) -> Any:
        import numpy as np

        lengths, places = self._lengths, np.arange(len(values))
        sums = np.zeros(len(values))
        for back in range(int(lengths.max(initial=0)) - 1, -1, -1):
            inside = places[lengths > back]
            sums[inside] += values[inside - back]
        return sums

    def _extremes(self, column: pa.Array, *, greatest: bool) -> pa.Array:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        (plain,) = ordered(column)
        way = "ascending" if greatest else "descending"
        ranks = pc.rank(plain, sort_keys=way, tiebreaker="dense").to_numpy()
        places, count = np.arange(len(ranks)), len(ranks)
        # Of equal ones the first: so a row's rank and its place are one number.
        numbers = np.where(pc.is_valid(plain).to_numpy(zero_copy_only=False), ranks.astype(np.int64), -1)
        numbers = numbers * count + (count - 1 - places)
        found = _greatest_of(numbers, self.first, self._lengths)
        return column.take(pa.array(count - 1 - found % max(count, 1), mask=found < 0))


def _greatest_of(numbers: Any, first: Any, lengths: Any) -> Any:
    """Return the greatest number of each frame: of the two halves of twice a power of two, which may overlap."""
    import numpy as np

    found, places = np.copy(numbers), np.arange(len(numbers))
    upto, size = numbers, 1  # the greatest of the next `size` numbers from each place on
    while size <= int(lengths.max(initial=0)):
        here = places[(lengths >= size) & (lengths < 2 * size)]
        found[here] = np.maximum(upto[first[here]], upto[here - size + 1])
        if len(upto) > size:
            upto = np.maximum(upto[:-size], upto[size:])
        size *= 2
    return found


def _whole_numbers(column: pa.Array, known: Any) -> Any:
    """Return whole numbers, or decimals without their point, with 0 in place of null: Python's own, if need be."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(column.type):
        return pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    if not len(column):
        return np.zeros(0, np.int64)
    words = np.frombuffer(column.buffers()[1], "<i8")[2 * column.offset : 2 * (column.offset + len(column))]
    low, high = np.where(known, words[::2], 0), np.where(known, words[1::2], 0)
    if (low >> 63 == high).all():
        return low
    return high.astype(object) * _WORD + low.view(np.uint64).astype(object)


def _added_up(numbers: Any) -> Any:
    """Return the sums of all up to each: of Python's own numbers where sums might not fit otherwise."""
    import numpy as np

    if numbers.dtype != object and np.abs(numbers.astype(float)).sum() >= 9e18:
        numbers = numbers.astype(object)
    return np.cumsum(numbers)


def _as_type(sums: Any, missing: Any, kind: pa.DataType) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    is_decimal = pa.types.is_decimal(kind)
    limit = 10**kind.precision if is_decimal else 1 << 63
    least = 1 - limit if is_decimal else -limit
    if len(sums) and not (least <= sums.min() and sums.max() < limit):
        raise sum_does_not_fit(kind)
    if not is_decimal:
        return pa.array(sums.astype(np.int64), mask=missing).cast(kind)
    words = np.empty((len(sums), 2), "<i8")
    if sums.dtype == object:
        words[:, 0] = (sums % _WORD).astype(np.uint64).view(np.int64)
        words[:, 1] = (sums // _WORD).astype(np.int64)
    else:
        words[:, 0], words[:, 1] = sums, sums >> 63
    whole = pa.Array.from_buffers(kind, len(sums), [None, pa.py_buffer(words.tobytes())])
    return whole.take(pa.array(np.arange(len(sums)), mask=missing))
