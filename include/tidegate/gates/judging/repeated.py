"""Find rows of Arrow tables that have the same values as another row, by hash numbers.

Equal values have equal numbers. The few rows that share a number with another row are compared again by their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["find_repeated", "first_positions", "positions_among", "row_numbers", "scramble"]

_ODD = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
"""Odd factors: multiplication by one of them keeps different numbers different."""
_NULL = 0x165667B19E3779F9
_SIEVE = 1 << 20
_WORD = 8
_HASHED_BYTES = 256
"""Bytes of a text that are hashed: texts of the same length that agree in these have the same number."""


def row_numbers(rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    """Return a number for each row, computed from its values in these columns."""
    first, *other_names = names
    numbers = _column_numbers(rows[first])
    for name in other_names:
        numbers = scramble(numbers) + _column_numbers(rows[name])
    return numbers


def find_repeated(numbers: Sequence[np.ndarray]) -> np.ndarray:
    """Return the numbers that occur more than once, sorted."""
    import numpy as np

    every = np.sort(np.concatenate(numbers)) if numbers else np.zeros(0, np.uint64)
    return np.unique(every[1:][every[1:] == every[:-1]])


def positions_among(numbers: np.ndarray, few: np.ndarray) -> np.ndarray:
    """Return the positions of the numbers that are among `few`, which is sorted."""
    import numpy as np

    sieve = np.zeros(_SIEVE, np.bool_)
    sieve[few % _SIEVE] = True
    candidates = np.flatnonzero(sieve[numbers % _SIEVE])
    place = np.minimum(np.searchsorted(few, numbers[candidates]), len(few) - 1)
    positions: np.ndarray = candidates[few[place] == numbers[candidates]]
    return positions


def first_positions(numbers: np.ndarray) -> np.ndarray:
    """Return the position at which each number occurs first."""
    import numpy as np

    return np.unique(numbers, return_index=True)[1]


def scramble(numbers: np.ndarray) -> np.ndarray:
    """Scramble numbers so that all bits are in use. Different numbers stay different."""
    import numpy as np

    for odd in _ODD:
        numbers = numbers * np.uint64(odd)
        numbers ^= numbers >> np.uint64(32)
    return numbers


def _column_numbers(column: pa.ChunkedArray) -> np.ndarray:
    import numpy as np

    return np.concatenate([np.zeros(0, np.uint64), *map(_array_numbers, column.chunks)])


def _array_numbers(array: Any) -> np.ndarray:
    """Return a number for each value; nulls have one, too."""
    import numpy as np
    import pyarrow as pa

    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        numbers = _text_numbers(array)
    elif pa.types.is_decimal128(kind):
        words = np.frombuffer(array.buffers()[1], np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
        numbers = words[::2] + scramble(words[1::2])
    else:
        numbers = _as_int64(array).to_numpy(zero_copy_only=False).view(np.uint64)
    if not array.null_count:
        return numbers
    return np.where(array.is_null().to_numpy(zero_copy_only=False), np.uint64(_NULL), numbers)


def _as_int64(array: Any) -> Any:
    """Cast booleans, integers, dates and times to 64-bit integers."""
    import pyarrow as pa

    if pa.types.is_date32(array.type) or pa.types.is_boolean(array.type):
        array = array.cast(pa.int32())
    return array.cast(pa.int64()).fill_null(0)


def _text_numbers(array: Any) -> np.ndarray:
    """Return a number for each text, by its length and its bytes, eight at a time for all texts that are long
    enough."""
    import numpy as np

    _, ends, data = array.buffers()
    if data is None or not len(array):
        return np.zeros(len(array), np.uint64)
    begins = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    padded = np.concatenate([np.frombuffer(data, np.uint8)[: begins[-1]], np.zeros(_WORD, np.uint8)])
    words = np.lib.stride_tricks.as_strided(padded, (len(padded) - _WORD + 1, _WORD), (1, 1))
    length = np.diff(begins)
    numbers = length.astype(np.uint64)
    for begin in range(0, min(int(length.max()), _HASHED_BYTES), _WORD):
        long = np.flatnonzero(length > begin)
        word = words[begins[long] + begin].view(np.uint64)[:, 0]
        unused = np.maximum(_WORD - (length[long] - begin), 0).astype(np.uint64) * np.uint64(8)
        numbers[long] = scramble(numbers[long]) + (word << unused)
    return numbers
