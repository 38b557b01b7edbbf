"""Sums and extremes over the rows up to each row of a sequence, with the results of Spark's window functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.kernels.ordered import ordered
from tidegate.state.arrow.reducing import sum_does_not_fit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Frames"]

_WORD: Final = 1 << 64
"""Decimals consist of two words of 64 bits each."""


@dataclass(frozen=True)
class Frames:
    """The frame of each row of a sequence: the rows that are aggregated, from `first` up to the row itself."""

    first: Any
    """The position of the first row of each row's frame."""
    moving: bool
    """Whether frames may begin at any row. Otherwise they all begin with the first row of the key."""

    def aggregated(self, op: str, column: pa.Array) -> pa.Array:
        """Return the sum, min or max of each row's frame. Nulls are ignored; without other values it is null."""
        if op == "sum":
            return self._sums(column)
        return self._extremes(column, greatest=op == "max")

    @property
    def _lengths(self) -> Any:
        import numpy as np

        return np.arange(len(self.first)) - self.first + 1

    def _sums(self, column: pa.Array) -> pa.Array:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        is_valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
        missing = self._differences(np.cumsum(is_valid)) == 0
        if pa.types.is_floating(column.type):
            values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy()
            if self.moving:
                sums = self._sequential_sums(values)
            else:
                sums = self._running_sums(values)
            return pa.array(sums, mask=missing).cast(column.type)
        numbers = _whole_numbers(column, is_valid)
        return _as_type(self._differences(_cumulative_sum(numbers)), missing, column.type)

    def _differences(self, running: Any) -> Any:
        """Return the sum of each frame. running: the sum of all rows up to each row."""
        import numpy as np

        return running - np.concatenate([np.zeros(1, running.dtype), running])[self.first]

    def _running_sums(self, values: Any) -> Any:
        """Add up floats from each key's first row on, one after the other: the order decides how the sum is rounded."""
        import numpy as np

        sums = 0.0 + values
        starts, lengths = np.unique(self.first, return_counts=True)
        longest = int(lengths.max(initial=0))
        if longest > len(starts):
            for start, length in zip(starts, lengths, strict=True):
                sums[start : start + length] = np.add.accumulate(sums[start : start + length])
            return sums
        for step in range(1, longest):  # many keys with few rows each are faster all at once
            positions = starts[lengths > step] + step
            sums[positions] += sums[positions - 1]
        return sums

    def _sequential_sums(self, values: Any) -> Any:
        import numpy as np

        lengths, positions = self._lengths, np.arange(len(values))
        sums = np.zeros(len(values))
        for distance in range(int(lengths.max(initial=0)) - 1, -1, -1):
            inside = positions[lengths > distance]
            sums[inside] += values[inside - distance]
        return sums

    def _extremes(self, column: pa.Array, *, greatest: bool) -> pa.Array:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        (plain,) = ordered(column)
        direction = "ascending" if greatest else "descending"
        ranks = pc.rank(plain, sort_keys=direction, tiebreaker="dense").to_numpy()
        count = len(ranks)
        # One number holds a row's rank and its position. Ties take the first row.
        numbers = np.where(pc.is_valid(plain).to_numpy(zero_copy_only=False), ranks.astype(np.int64), -1)
        numbers = numbers * count + (count - 1 - np.arange(count))
        greatest_numbers = _greatest_of(numbers, self.first, self._lengths)
        return column.take(pa.array(count - 1 - greatest_numbers % max(count, 1), mask=greatest_numbers < 0))


def _greatest_of(numbers: Any, first: Any, lengths: Any) -> Any:
    """Return the greatest number of each frame: a frame is the union of two, which may overlap, whose length is a power
    of two."""
    import numpy as np

    greatest, positions = np.copy(numbers), np.arange(len(numbers))
    size, greatest_from = 1, numbers  # the greatest of the `size` numbers from each position on
    while size <= int(lengths.max(initial=0)):
        chosen = positions[(lengths >= size) & (lengths < 2 * size)]
        greatest[chosen] = np.maximum(greatest_from[first[chosen]], greatest_from[chosen - size + 1])
        if len(greatest_from) > size:
            greatest_from = np.maximum(greatest_from[:-size], greatest_from[size:])
        size *= 2
    return greatest


def _whole_numbers(column: pa.Array, is_valid: Any) -> Any:
    """Return integers, or the unscaled values of decimals, with 0 in place of null: Python integers where 64 bits do
    not suffice."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(column.type):
        return pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    if not len(column):
        return np.zeros(0, np.int64)
    words = np.frombuffer(column.buffers()[1], "<i8")[2 * column.offset : 2 * (column.offset + len(column))]
    low, high = np.where(is_valid, words[::2], 0), np.where(is_valid, words[1::2], 0)
    if (low >> 63 == high).all():
        return low
    return high.astype(object) * _WORD + low.view(np.uint64).astype(object)


def _cumulative_sum(numbers: Any) -> Any:
    """Return the sum of all numbers up to each one, as Python integers where 64 bits might not suffice."""
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
    values = pa.Array.from_buffers(kind, len(sums), [None, pa.py_buffer(words.tobytes())])
    return values.take(pa.array(np.arange(len(sums)), mask=missing))
