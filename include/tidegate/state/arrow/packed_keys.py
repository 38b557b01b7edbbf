"""Packs keys of several whole numbers into one number in the same order: sorted and searched as fast as one plain
key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Packing", "integers", "order", "packed"]


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
