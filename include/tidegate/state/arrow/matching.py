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
    """The keys of a batch, each once, prepared for lookups in many row groups.

    A single whole number comes sorted. Where nobody asks for the rows of the batch (`rows_in`), other keys may
    be repeated.
    """

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        import numpy as np

        self.keys = list(keys)
        self.rows = rows.num_rows
        self.plain = integers(comparable(rows[keys[0]])) if len(keys) == 1 else None
        """The only key, if it is a whole number."""
        self.steps: list[tuple[_Digit, Any]] = []
        """A digit for each key; with it, if the codes so far had become too large, these codes, sorted and distinct."""
        codes, size = np.zeros(self.rows, np.int64), 1
        for name in keys if self.rows and self.plain is None else ():
            (digit, places), known = _Digit.of(comparable(rows[name]), CODE_LIMIT // size), None
            if digit.size >= CODE_LIMIT // size:
                known, codes = np.unique(codes, return_inverse=True)
                size = len(known)
            codes, size = codes * digit.size + places, size * digit.size
            self.steps.append((digit, known))
        self.row_of = order(codes)
        self.codes = codes[self.row_of]

    def may_be_in(self, group: Any, place: int | None) -> bool:
        """Return whether a row group can hold one of the keys, by its statistics. place: the first key's column
        there. None: it is made of several."""
        first = self.steps[0][0].bounds if self.steps else None
        looked_at = place if self.plain is not None or first is not None else None
        bounds = None if looked_at is None else raw_bounds(group, looked_at)
        if bounds is None:
            return bool(self.rows)
        if first is not None:
            return first[0] <= bounds[1] and first[1] >= bounds[0]
        low, high = _between(self.plain, *bounds)
        return low < high

    def rows_in(self, columns: Sequence[Any]) -> tuple[Any, Any]:
        """Return which rows of a file hit, and which row of the batch each of them hits. columns: the file's keys."""
        import numpy as np
        import pyarrow.compute as pc

        columns = [comparable(column) for column in columns]
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
        hits, codes = np.arange(len(columns[0]) if self.rows else 0), 0
        for column, (digit, known) in zip(columns, self.steps, strict=bool(self.rows)):
            if known is not None:
                hits, codes = _found(hits, codes, known)
            place = digit.places(column)[hits]
            codes = codes * digit.size + place
            if (missing := place < 0).any():
                hits, codes = hits[~missing], codes[~missing]
        hits, place = _found(hits, codes, self.codes)
        return hits, self.row_of[place]

    def all_rows_in(self, columns: Sequence[Any]) -> Any:
        """Return which rows of a file have one of these keys, if several may have the same. columns: as `rows_in`."""
        import numpy as np

        if self.plain is None or (stored := integers(comparable(columns[0]))) is None:
            return self.rows_in(columns)[0]
        position = np.minimum(np.searchsorted(self.plain, stored), len(self.plain) - 1)
        return np.flatnonzero(self.plain[position] == stored)


def _found(hits: Any, codes: Any, known: Any) -> tuple[Any, Any]:
    """Return those of the hits whose codes are known, and their places among these, which are sorted."""
    import numpy as np

    if not len(known) or not len(hits):
        return hits[:0], hits[:0]
    position = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    same = known[position] == codes
    return hits[same], position[same]


@dataclass(frozen=True)
class _Digit:
    """The possible values of one key of a batch, numbered from 0. In their order, where it is known: then what is
    looked up in a sorted file comes in nearly that order, too, which is several times faster."""

    size: int
    bounds: tuple[int, int] | None
    """The least and the greatest, of whole numbers without nulls."""
    values: Any = None
    """Otherwise the values."""
    has_null: bool = False

    @classmethod
    def of(cls, column: pa.ChunkedArray, most: int) -> tuple[_Digit, Any]:
        """Return the digit for a column, and the number of each of its rows. most: whole numbers that span
        more than this are ranked instead."""
        import numpy as np
        import pyarrow.compute as pc

        if (plain := integers(column)) is not None:
            low, high = int(plain.min()), int(plain.max())
            if high - low + 1 < most:
                return cls(high - low + 1, (low, high)), plain - low
        if (once := ranks_and_values(column)) is not None:
            ranks, values = once
            return cls(len(values) + 1, None, values, column.null_count > 0), np.where(ranks < 0, len(values), ranks)
        values = pc.unique(pc.drop_null(column))
        digit = cls(len(values) + 1, None, values, column.null_count > 0)
        return digit, digit.places(column.combine_chunks())

    def places(self, column: pa.Array) -> Any:
        """Return a number for each row; -1 for what the batch does not have."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.bounds is None:
            places = pc.fill_null(pc.index_in(column, value_set=self.values), -1).to_numpy().astype(np.int64)
            return np.where(column.is_null().to_numpy(False), len(self.values), places) if self.has_null else places
        low, high = self.bounds
        filled = pc.fill_null(column, pa.scalar(0, column.type)) if column.null_count else column
        numbers = integers(filled)
        outside = (numbers < low) | (numbers > high)
        if column.null_count:
            outside |= column.is_null().to_numpy(False)
        return np.where(outside, -1, numbers - low) if outside.any() else numbers - low


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
