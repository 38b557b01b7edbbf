"""Finds the rows of a state's files that have one of the keys of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.state.arrow.packed_keys import Packing, integers

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Matcher", "raw_bounds"]


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
