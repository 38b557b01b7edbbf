"""The keys of a batch, prepared for lookups in many files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.state.arrow.keys_as_numbers import CODE_LIMIT, comparable, integers, order, ranks_and_values

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Matcher", "raw_bounds"]


class Matcher:
    """The keys of a batch, prepared for lookups in many row groups.

    The keys are distinct. A single integer key is sorted. If the caller does not need the rows of the batch that
    `rows_in` returns, other keys may repeat.
    """

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        import numpy as np

        self.keys = list(keys)
        self.rows = rows.num_rows
        self.plain = integers(comparable(rows[keys[0]])) if len(keys) == 1 else None
        """The only key, if it is an integer."""
        self.steps: list[tuple[_Digit, Any]] = []
        """The digit of each key. If the codes before it had become too large, also these: sorted and distinct, they are
        replaced by their positions."""
        codes, size = np.zeros(self.rows, np.int64), 1
        if self.rows and self.plain is None:
            for name in keys:
                digit, values = _Digit.from_column(comparable(rows[name]), CODE_LIMIT // size)
                codes_before = None
                if digit.size >= CODE_LIMIT // size:
                    codes_before, codes = np.unique(codes, return_inverse=True)
                    size = len(codes_before)
                codes, size = codes * digit.size + values, size * digit.size
                self.steps.append((digit, codes_before))
        self.row_of = order(codes)
        """The row of the batch that each of the sorted codes belongs to."""
        self.codes = codes[self.row_of]

    def may_be_in(self, group: Any, index: int | None) -> bool:
        """Return whether a row group can hold one of the keys, by its statistics.

        index: the first key's column in the file, or None if it is nested, and so has no single column.
        """
        first_bounds = self.steps[0][0].bounds if self.steps else None
        stored_bounds = None
        if index is not None and (self.plain is not None or first_bounds is not None):
            stored_bounds = raw_bounds(group, index)
        if stored_bounds is None:
            return bool(self.rows)
        if first_bounds is not None:
            return first_bounds[0] <= stored_bounds[1] and first_bounds[1] >= stored_bounds[0]
        low, high = _between(self.plain, *stored_bounds)
        return low < high

    def rows_in(self, columns: Sequence[Any]) -> tuple[Any, Any]:
        """Return the rows of a file that match, and the row of the batch that each matches. columns: the file's
        keys."""
        import numpy as np
        import pyarrow.compute as pc

        columns = [comparable(column) for column in columns]
        if self.plain is not None and (stored := integers(columns[0])) is not None and len(stored):
            low, high = _between(self.plain, stored[0], stored[-1])
            sought = self.plain[low:high]
            positions = np.minimum(np.searchsorted(stored, sought), len(stored) - 1)
            is_match = stored[positions] == sought
            return positions[is_match], np.arange(low, high)[is_match]
        if self.plain is not None:
            indexes = pc.index_in(columns[0].cast(columns[0].type), value_set=_like(self.plain, columns[0].type))
            codes = pc.fill_null(indexes, -1).to_numpy().astype(np.int64)
            hits = np.flatnonzero(codes >= 0)
            return hits, codes[hits]
        hits, codes = np.arange(len(columns[0]) if self.rows else 0), 0
        for column, (digit, codes_before) in zip(columns, self.steps, strict=bool(self.rows)):
            if codes_before is not None:
                hits, codes = _intersect(hits, codes, codes_before)
            values = digit.values_of(column)[hits]
            codes = codes * digit.size + values
            if (missing := values < 0).any():
                hits, codes = hits[~missing], codes[~missing]
        hits, positions = _intersect(hits, codes, self.codes)
        return hits, self.row_of[positions]

    def all_rows_in(self, columns: Sequence[Any]) -> Any:
        """Return the rows of a file that match, where several rows may have the same key. columns: as for
        `rows_in`."""
        import numpy as np

        if self.plain is None or (stored := integers(comparable(columns[0]))) is None:
            return self.rows_in(columns)[0]
        position = np.minimum(np.searchsorted(self.plain, stored), len(self.plain) - 1)
        return np.flatnonzero(self.plain[position] == stored)


def _intersect(hits: Any, codes: Any, sorted_codes: Any) -> tuple[Any, Any]:
    """Return the hits whose codes are among the sorted ones, and their positions there."""
    import numpy as np

    if not len(sorted_codes) or not len(hits):
        return hits[:0], hits[:0]
    position = np.minimum(np.searchsorted(sorted_codes, codes), len(sorted_codes) - 1)
    is_equal = sorted_codes[position] == codes
    return hits[is_equal], position[is_equal]


@dataclass(frozen=True)
class _Digit:
    """Numbers the values of one key of a batch from 0, in the order of the values if there is one.

    Lookups in a sorted file then happen nearly in sorted order, which is several times faster.
    """

    size: int
    bounds: tuple[int, int] | None
    """The least and the greatest value, if values are integers without nulls."""
    values: Any = None
    """Otherwise the distinct values."""
    has_null: bool = False

    @classmethod
    def from_column(cls, column: pa.ChunkedArray, max_span: int) -> tuple[_Digit, Any]:
        """Return the digit for a column, and the number of each of its rows. max_span: integers that span more than
        this are ranked instead."""
        import numpy as np
        import pyarrow.compute as pc

        if (numbers := integers(column)) is not None:
            low, high = int(numbers.min()), int(numbers.max())
            if high - low + 1 < max_span:
                return cls(high - low + 1, (low, high)), numbers - low
        if (ranked := ranks_and_values(column)) is not None:
            ranks, values = ranked
            return cls(len(values) + 1, None, values, column.null_count > 0), np.where(ranks < 0, len(values), ranks)
        values = pc.unique(pc.drop_null(column))
        digit = cls(len(values) + 1, None, values, column.null_count > 0)
        return digit, digit.values_of(column.combine_chunks())

    def values_of(self, column: pa.Array) -> Any:
        """Return a number for each row, or -1 for a value that the batch does not have."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.bounds is None:
            indexes = pc.fill_null(pc.index_in(column, value_set=self.values), -1).to_numpy().astype(np.int64)
            if not self.has_null:
                return indexes
            return np.where(column.is_null().to_numpy(False), len(self.values), indexes)
        low, high = self.bounds
        if column.null_count:
            filled = pc.fill_null(column, pa.scalar(0, column.type))
        else:
            filled = column
        numbers = integers(filled)
        outside = (numbers < low) | (numbers > high)
        if column.null_count:
            outside |= column.is_null().to_numpy(False)
        if outside.any():
            return np.where(outside, -1, numbers - low)
        return numbers - low


def _between(plain: Any, lowest: int, highest: int) -> tuple[int, int]:
    """Return the range of positions of the sorted numbers from the lowest to the highest (inclusive).

    It does not search for highest + 1, which may not fit into 64 bits. Both bounds are passed as int64, because numpy
    would compare larger Python integers as floats.
    """
    import numpy as np

    low, high = np.searchsorted(plain, np.int64(lowest)), np.searchsorted(plain, np.int64(highest), side="right")
    return int(low), int(high)


def raw_bounds(group: Any, index: int) -> tuple[int, int] | None:
    """Return the least and the greatest number in a row group's column, or None if its statistics lack them."""
    stats = group.column(index).statistics
    if stats is None or not stats.has_min_max or not isinstance(stats.min_raw, int):
        return None
    return stats.min_raw, stats.max_raw


def _like(plain: Any, kind: Any) -> Any:
    import pyarrow as pa

    numbers = pa.array(plain)
    if pa.types.is_date32(kind):
        return numbers.cast(pa.int32()).cast(kind)
    return numbers.cast(kind)
