"""Maps the keys of rows to integers, by which sorting, grouping and lookups are many times faster than by texts or
several columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.delta.as_python import python_values
from tidegate.delta.order_by import sortable
from tidegate.state.columns import CHECKPOINT

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CODE_LIMIT",
    "Packing",
    "codes_of",
    "comparable",
    "distinct_codes",
    "firsts",
    "integers",
    "is_whole",
    "order",
    "order_and_firsts",
    "order_by",
    "order_of",
    "packed",
    "positions_in",
    "ranks_and_values",
]

CODE_LIMIT = 1 << 62
"""Codes are below this, so that they can be multiplied and added without overflowing."""


def integers(column: Any) -> Any:
    """Return a column of integers, days or timestamps without nulls as int64, or None if it is none."""
    import pyarrow as pa

    if column.null_count or not is_whole(column.type):
        return None
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return column.cast(pa.int64()).to_numpy()


def is_whole(kind: pa.DataType) -> bool:
    """Return whether values of this type are integers, days or timestamps."""
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def comparable(column: Any) -> Any:
    """Return a column of keys in a form in which values are equal if they are equal in Spark, and sort as in Spark, if
    they have an order there.

    Floats become integers, with one number for NaN, and the same one for 0.0 and -0.0. Structs and arrays become bytes.
    """
    import pyarrow as pa

    if pa.types.is_nested(column.type):
        texts = [None if value is None else repr(_plain(value)).encode() for value in python_values(column)]
        plain = pa.array(texts, pa.binary())
    else:
        plain = sortable(column)
    if isinstance(column, pa.ChunkedArray) and not isinstance(plain, pa.ChunkedArray):
        return pa.chunked_array([plain])
    return plain


def _plain(value: Any) -> Any:
    """Return a value whose text is the same for equal values."""
    if isinstance(value, dict):
        return [_plain(inner) for inner in value.values()]
    if isinstance(value, list | tuple):
        return tuple(_plain(inner) for inner in value)
    return value + 0.0 if isinstance(value, float) else value


@dataclass(frozen=True)
class Packing:
    """Packs one number per column, each within bounds, into a single number, with the first column as the most
    significant digit."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]

    @classmethod
    def fit(cls, columns: Sequence[Any]) -> Packing | None:
        """Return the packing for these columns, or None if they have no rows, or do not fit into one number."""
        if not len(columns[0]):
            return None
        lows = tuple(int(column.min()) for column in columns)
        highs = tuple(int(column.max()) for column in columns)
        sizes = (high - low + 1 for low, high in zip(lows, highs, strict=True))
        if math.prod(sizes) < 1 << 63:
            return cls(lows, highs)
        return None

    def pack(self, columns: Sequence[Any]) -> Any:
        """Return one number for each row, or -1 where one of its values is out of bounds."""
        import numpy as np

        codes, inside = np.zeros(len(columns[0]), np.int64), np.ones(len(columns[0]), bool)
        for column, low, high in zip(columns, self.lows, self.highs, strict=True):
            inside &= (column >= low) & (column <= high)
            codes *= high - low + 1
            codes += column - low  # may overflow where the value is out of bounds
        if inside.all():
            return codes
        return np.where(inside, codes, -1)


def order(numbers: Any) -> Any:
    """Return the positions that sort the numbers. The sort is stable.

    A number and its position are sorted as one integer, which is several times faster than a stable argsort. Numbers
    that are too large for that are sorted by their lower bits, and then by their higher ones.
    """
    import numpy as np

    count = len(numbers)
    if not count:
        return np.zeros(0, np.int64)
    offsets = numbers.view(np.uint64) - np.uint64(int(numbers.min()) % (1 << 64))
    free_bits = 62 - count.bit_length()
    if int(offsets.max()) >> free_bits == 0:
        return _order_of_small(offsets.view(np.int64))
    by_lower_bits = _order_of_small((offsets & np.uint64((1 << free_bits) - 1)).view(np.int64))
    higher_bits = (offsets >> np.uint64(free_bits)).view(np.int64)
    return by_lower_bits[_order_of_small(higher_bits[by_lower_bits])]


def _order_of_small(numbers: Any) -> Any:
    """Return the positions that sort numbers from 0, each of which fits into 62 bits together with its position."""
    import numpy as np

    bits = len(numbers).bit_length()
    both = (numbers << bits) | np.arange(len(numbers))
    both.sort()
    return both & ((1 << bits) - 1)


def packed(rows: pa.Table, keys: Sequence[str]) -> Any:
    """Return each row's key as one number, or None if keys are no integers, are null, or do not fit into one."""
    columns = [integers(comparable(rows[name])) for name in keys]
    if any(column is None for column in columns):
        return None
    if len(columns) == 1:
        return columns[0]
    packing = Packing.fit(columns)
    if packing is not None:
        return packing.pack(columns)
    return None


def order_of(rows: pa.Table, keys: Sequence[str], newest_first: bool = False, are_newest_first: bool = False) -> Any:
    """Return the positions that sort the rows by key, and equal keys newest first if requested.

    are_newest_first: rows with equal keys already are in this order.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    sorts_by_age = newest_first and not are_newest_first
    if (ranks := _ranks(rows, keys)) is not None:
        return _order_of_ranks(rows, ranks, sorts_by_age)
    columns = {f"k{index}": comparable(rows[name]) for index, name in enumerate(keys)}
    sort_keys = [(name, "ascending") for name in columns]
    if sorts_by_age:
        columns["age"] = rows[CHECKPOINT]
        sort_keys.append(("age", "descending"))
    return pc.sort_indices(pa.table(columns), sort_keys=sort_keys).to_numpy()


def order_and_firsts(
    rows: pa.Table, keys: Sequence[str], newest_first: bool = False, are_newest_first: bool = False
) -> tuple[Any, Any]:
    """Return the positions that sort the rows, as `order_of`, and the indexes in these of each key's first row."""
    import numpy as np
    import pyarrow as pa

    ranks = _ranks(rows, keys)
    if ranks is None or not rows.num_rows:
        positions = order_of(rows, keys, newest_first, are_newest_first)
        return positions, firsts(rows.select(list(keys)).take(pa.array(positions)), keys)
    positions = _order_of_ranks(rows, ranks, newest_first and not are_newest_first)
    ascending = ranks[positions]
    return positions, np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))


def _order_of_ranks(rows: pa.Table, ranks: Any, newest_first: bool) -> Any:
    if not newest_first:
        return order(ranks)
    return order_by(ranks, -rows[CHECKPOINT].to_numpy())


def _ranks(rows: pa.Table, keys: Sequence[str]) -> Any:
    """Return a number for each row that sorts as its key does, nulls last, or None if a key's type has no order here,
    or the keys do not fit into one number."""
    numbers = packed(rows, keys)
    if numbers is not None or not rows.num_rows:
        return numbers
    columns = []
    for name in keys:
        ranks = _ranked(rows[name])
        if ranks is None:
            return None
        columns.append(ranks)
    packing = Packing.fit(columns)
    if packing is not None:
        return packing.pack(columns)
    return None


def _ranked(column: pa.ChunkedArray) -> Any:
    """Return a number for each value that sorts as the value does, nulls last, or None if the type has no order here.

    Sorting each distinct text once, and then rows by integers, takes half the time of sorting rows by several columns.
    """
    import numpy as np

    column = comparable(column)
    if (numbers := integers(column)) is not None:
        return numbers
    ranked = ranks_and_values(column)
    if ranked is None:
        return None
    ranks, values = ranked
    return np.where(ranks < 0, len(values), ranks)


def ranks_and_values(column: pa.ChunkedArray, max_values: int | None = None) -> tuple[Any, pa.Array] | None:
    """Return the rank of each row's value, -1 for null, and the sorted distinct values, or None if the type has no
    order here, or there are more than `max_values`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if not (is_whole(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind)):
        return None
    coded = pc.dictionary_encode(column).combine_chunks()
    if max_values is not None and len(coded.dictionary) > max_values:
        return None
    in_order = pc.sort_indices(coded.dictionary)
    ranks = np.full(len(in_order) + 1, -1, np.int64)
    ranks[in_order.to_numpy()] = np.arange(len(in_order))
    return ranks[pc.fill_null(coded.indices, len(in_order)).to_numpy()], coded.dictionary.take(in_order)


def firsts(rows: pa.Table, keys: Sequence[str]) -> Any:
    """Return the position of each key's first row among sorted rows."""
    import numpy as np
    import pyarrow.compute as pc

    differ = np.zeros(max(rows.num_rows - 1, 0), bool)
    for name in keys:
        column = comparable(rows[name].combine_chunks())
        previous, following = column[:-1], column[1:]
        changed = pc.fill_null(pc.not_equal(previous, following), False)
        nulls = pc.not_equal(pc.is_null(previous), pc.is_null(following))
        differ |= pc.or_(changed, nulls).to_numpy(zero_copy_only=False)
    if rows.num_rows:
        return np.concatenate([[0], np.flatnonzero(differ) + 1])
    return np.zeros(0, int)


def codes_of(tables: Sequence[pa.Table], keys: Sequence[str], *, small: bool = True) -> list[Any]:
    """Return a number for each row of each table, equal for equal keys. Null equals null.

    small: the numbers are below four times the number of rows, so that a caller can pack something else with them.
    Otherwise they are only below 2**62, which saves a sort.
    """
    import numpy as np
    import pyarrow as pa

    lengths = [table.num_rows for table in tables]
    codes, size = np.zeros(sum(lengths), np.int64), 1
    if not len(codes):  # Arrow fails to combine an empty list of chunks of decimals
        return np.split(codes, np.cumsum(lengths)[:-1])
    for name in keys:
        chunks = []
        for table in tables:
            for chunk in table[name].chunks:
                chunks.append(chunk)
        column_codes, column_size = _column_codes(comparable(pa.chunked_array(chunks, tables[0][name].type)))
        if size * column_size >= CODE_LIMIT:
            codes, size = _without_gaps(codes)
        if size * column_size >= CODE_LIMIT:
            column_codes, column_size = _without_gaps(column_codes)
        codes, size = codes * column_size + column_codes, size * column_size
    if small and size > 4 * len(codes):
        codes, size = _without_gaps(codes)
    return np.split(codes, np.cumsum(lengths)[:-1])


def distinct_codes(codes: Any) -> tuple[Any, Any]:
    """Return the position of each distinct code's first row, in the order of the codes, and for each row the number of
    its code in that order.

    The codes are small, as those of `codes_of` are. So they can be counted, which is several times faster than the sort
    of `np.unique`.
    """
    import numpy as np

    count = len(codes)
    first = np.full(int(codes.max(initial=-1)) + 1, count)
    first[codes[::-1]] = np.arange(count - 1, -1, -1)  # of several rows with one code, the last one assigned stays
    is_used = first < count
    numbers = np.cumsum(is_used) - 1
    return first[is_used], numbers[codes]


def positions_in(codes: Any, sought: Any) -> Any:
    """Return for each sought code the position of the first row that has it, or -1. As small as those of `codes_of`."""
    import numpy as np

    positions = np.full(max(int(codes.max(initial=-1)), int(sought.max(initial=-1))) + 1, -1)
    positions[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # of rows with one code, the last one assigned stays
    return positions[sought]


def order_by(*columns: Any) -> Any:
    """Return the positions that sort rows by these columns of numbers, the most significant one first. Stable."""
    import numpy as np

    packing = Packing.fit(columns)
    if packing is not None:
        return order(packing.pack(columns))
    positions = np.arange(len(columns[0]))
    for column in reversed(columns):  # each sort keeps the order of those before it among equals
        positions = positions[order(column[positions])]
    return positions


def _column_codes(column: pa.ChunkedArray) -> tuple[Any, int]:
    """Return a number from 0 for each value, and an upper bound (exclusive) of these numbers."""
    import numpy as np
    import pyarrow.compute as pc

    if (numbers := integers(column)) is not None:
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < CODE_LIMIT:
            return (numbers - low, high - low + 1)
        return _without_gaps(numbers)
    coded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(coded.dictionary)


def _without_gaps(numbers: Any) -> tuple[Any, int]:
    """Renumber the distinct numbers from 0. Return the new numbers, and how many are distinct."""
    import numpy as np

    positions = order(numbers)
    ascending = numbers[positions]
    starts = np.ones(len(numbers), bool)
    starts[1:] = ascending[1:] != ascending[:-1]
    renumbered = np.empty(len(numbers), np.int64)
    renumbered[positions] = np.cumsum(starts) - 1
    return renumbered, int(starts.sum())
