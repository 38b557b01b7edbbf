"""Finds the rows of a state's files that have one of the keys of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Matcher", "Packing", "integers", "order", "packed", "raw_bounds"]


def integers(column: Any) -> Any:
    """Return a column of whole numbers without nulls as int64; None: it is not one."""
    import pyarrow as pa

    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return None
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return column.cast(pa.int64()).to_numpy()


@dataclass(frozen=True)
class Packing:
    """Numbers between bounds, one per column, as digits of a single one: the first weighs the most."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]

    @classmethod
    def of(cls, columns: Sequence[Any]) -> Packing | None:
        """Return the packing for the numbers of these columns. None: there are none, or together they are too large."""
        if not len(columns[0]):
            return None
        lows, highs = (tuple(int(bound(column)) for column in columns) for bound in (_least, _greatest))
        sizes = (high - low + 1 for low, high in zip(lows, highs, strict=True))
        return cls(lows, highs) if math.prod(sizes) < 1 << 63 else None

    def pack(self, columns: Sequence[Any]) -> Any:
        """Return one number for each row; -1 where one of its numbers is outside the bounds."""
        import numpy as np

        codes, inside = np.zeros(len(columns[0]), np.int64), np.ones(len(columns[0]), bool)
        for column, low, high in zip(columns, self.lows, self.highs, strict=True):
            inside &= (column >= low) & (column <= high)
            codes *= high - low + 1
            codes += column - low  # wraps around where it is outside
        return codes if inside.all() else np.where(inside, codes, -1)


def _least(column: Any) -> Any:
    return column.min()


def _greatest(column: Any) -> Any:
    return column.max()


def order(numbers: Any) -> Any:
    """Return the places of the numbers in ascending order; equal ones in the order in which they stand.

    Where a number and its place fit into one: sorting such is several times quicker than sorting places.
    """
    import numpy as np

    count = len(numbers)
    low, high = (int(numbers.min()), int(numbers.max())) if count else (0, 0)
    bits = count.bit_length()
    if (high - low).bit_length() + bits > 62:
        return np.argsort(numbers, kind="stable")
    both = ((numbers - low) << bits) | np.arange(count)
    both.sort()
    return both & ((1 << bits) - 1)


def packed(rows: pa.Table, keys: Sequence[str]) -> Any:
    """Return the rows' keys as a number each; None: they are no whole numbers, some are null, or they are too large."""
    columns = [integers(rows[name]) for name in keys]
    if any(column is None for column in columns):
        return None
    if len(columns) == 1:
        return columns[0]
    packing = Packing.of(columns)
    return packing.pack(columns) if packing is not None else None


class Matcher:
    """The keys of a batch, sorted and distinct, prepared for lookups in many row groups."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        import numpy as np
        import pyarrow.compute as pc

        self.keys = list(keys)
        self.rows = rows.num_rows
        whole = [integers(rows[name]) for name in keys]
        self.plain: Any = whole[0] if len(keys) == 1 else None
        self.packing = None if len(keys) == 1 or any(column is None for column in whole) else Packing.of(whole)
        self.packed: Any = self.packing.pack(whole) if self.packing is not None else None
        self.steps: list[tuple[Any, Any]] = []
        codes = np.zeros(rows.num_rows, np.int64)
        for name in () if self.plain is not None or self.packing is not None else keys:
            column = rows[name].combine_chunks()
            distinct = pc.unique(column)
            place = pc.index_in(column, distinct).to_numpy().astype(np.int64)
            codes_known, codes = np.unique(codes * len(distinct) + place, return_inverse=True)
            self.steps.append((distinct, codes_known))
        self.row_of = np.argsort(codes)

    def may_be_in(self, group: Any, place: int) -> bool:
        """Return whether a row group can hold one of the keys, by its statistics. place: the first key's column
        there."""
        bounds = raw_bounds(group, place) if self.plain is not None or self.packing is not None else None
        if bounds is None:
            return True
        if self.packing is not None:
            return bool(bounds[0] <= self.packing.highs[0] and bounds[1] >= self.packing.lows[0])
        low, high = _between(self.plain, *bounds)
        return low < high

    def rows_in(self, columns: Sequence[Any]) -> tuple[Any, Any]:
        """Return which rows of a file hit, and which row of the batch each of them hits. columns: the file's keys."""
        import numpy as np
        import pyarrow.compute as pc

        if self.packing is not None:
            return self._packed_in(self.packing, columns)
        if self.plain is not None and (stored := integers(columns[0])) is not None and len(stored):
            low, high = _between(self.plain, stored[0], stored[-1])
            sought = self.plain[low:high]
            place = np.minimum(np.searchsorted(stored, sought), len(stored) - 1)
            hit = stored[place] == sought
            return place[hit], np.arange(low, high)[hit]
        if self.plain is not None:
            place = pc.index_in(columns[0].cast(columns[0].type), value_set=_like(self.plain, columns[0].type))
            codes = pc.fill_null(place, -1).to_numpy().astype(np.int64)
            hits = np.flatnonzero(codes >= 0)
            return hits, codes[hits]
        codes = np.zeros(len(columns[0]), np.int64)
        for column, (distinct, step_codes) in zip(columns, self.steps, strict=True):
            place = pc.fill_null(pc.index_in(column, value_set=distinct), -1).to_numpy().astype(np.int64)
            sought = np.where((codes < 0) | (place < 0), -1, codes * len(distinct) + place)
            position = np.minimum(np.searchsorted(step_codes, sought), len(step_codes) - 1)
            codes = np.where(step_codes[position] == sought, position, -1)
        hits = np.flatnonzero(codes >= 0)
        return hits, self.row_of[codes[hits]]

    def _packed_in(self, packing: Packing, columns: Sequence[Any]) -> tuple[Any, Any]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        filled = [
            pc.fill_null(column, pa.scalar(0, column.type)) if column.null_count else column for column in columns
        ]
        codes = packing.pack([integers(column) for column in filled])
        for column in columns:
            if column.null_count:  # none of the batch's keys is null
                codes = np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), codes, -1)
        position = np.minimum(np.searchsorted(self.packed, codes), len(self.packed) - 1)
        hits = np.flatnonzero(self.packed[position] == codes)
        return hits, position[hits]


def _between(plain: Any, lowest: int, highest: int) -> tuple[int, int]:
    """Return the range of places of the sorted numbers from the lowest to the highest, both included.

    It does not look for the next number after the highest, which may not exist; and both are made int64, for a list of
    numbers that do not fit would be compared as floats.
    """
    import numpy as np

    low, high = np.searchsorted(plain, np.int64(lowest)), np.searchsorted(plain, np.int64(highest), side="right")
    return int(low), int(high)


def raw_bounds(group: Any, place: int) -> tuple[int, int] | None:
    """Return the least and the greatest number in a row group's column, by its statistics. None: they do not say."""
    stats = group.column(place).statistics
    if stats is None or not stats.has_min_max or not isinstance(stats.min_raw, int):
        return None
    return stats.min_raw, stats.max_raw


def _like(plain: Any, kind: Any) -> Any:
    import pyarrow as pa

    whole = pa.array(plain)
    return whole.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else whole.cast(kind)
