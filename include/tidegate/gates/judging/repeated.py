"""Rows of Arrow tables that have the same values as another one, found by numbers.

Equal values have equal numbers. What has the number of another one is looked at again by its values, and few have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["among", "first_of_each", "groups", "mixed", "numbered", "twice"]

_ODD = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
"""Odd numbers: multiplied by one, no two numbers become the same."""
_NULL = 0x165667B19E3779F9
_SIEVE = 1 << 20
_WORD = 8
_LOOKED_AT = 256
"""Texts that begin with as many same bytes have the same number."""


def numbered(rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    """A number for each row, by its values in these columns."""
    first, *others = names
    found = _column(rows[first])
    for name in others:
        found = mixed(found) + _column(rows[name])
    return found


def twice(numbers: Sequence[np.ndarray]) -> np.ndarray:
    """Those that are there more than once, in order."""
    import numpy as np

    every = np.sort(np.concatenate(numbers)) if numbers else np.zeros(0, np.uint64)
    return np.unique(every[1:][every[1:] == every[:-1]])


def among(numbers: np.ndarray, few: np.ndarray) -> np.ndarray:
    """Where those are that are among a few, which are in order."""
    import numpy as np

    sieve = np.zeros(_SIEVE, np.bool_)
    sieve[few % _SIEVE] = True
    at = np.flatnonzero(sieve[numbers % _SIEVE])
    place = np.minimum(np.searchsorted(few, numbers[at]), len(few) - 1)
    found: np.ndarray = at[few[place] == numbers[at]]
    return found


def groups(rows: pa.Table) -> np.ndarray:
    """Which rows are the same in all columns: these have the same small number. Nulls are the same as each other."""
    import numpy as np

    found = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        coded = column.dictionary_encode().unify_dictionaries()
        places = [each.indices.fill_null(-1).to_numpy(zero_copy_only=False) + 1 for each in coded.chunks]
        each = np.concatenate([np.zeros(0, np.int64), *places])
        found = np.unique(found * (int(each.max(initial=0)) + 1) + each, return_inverse=True)[1]
    return found


def first_of_each(numbers: np.ndarray) -> np.ndarray:
    """Where each number is for the first time."""
    import numpy as np

    return np.unique(numbers, return_index=True)[1]


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Other numbers, as different from each other as these, with all bits in use."""
    import numpy as np

    for odd in _ODD:
        numbers = numbers * np.uint64(odd)
        numbers ^= numbers >> np.uint64(32)
    return numbers


def _column(column: pa.ChunkedArray) -> np.ndarray:
    import numpy as np

    return np.concatenate([np.zeros(0, np.uint64), *map(_array, column.chunks)])


def _array(array: Any) -> np.ndarray:
    """A number for each value; nulls have one, too."""
    import numpy as np
    import pyarrow as pa

    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = _texts(array)
    elif pa.types.is_decimal128(kind):
        words = np.frombuffer(array.buffers()[1], np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
        found = words[::2] + mixed(words[1::2])
    else:
        found = _whole(array).to_numpy(zero_copy_only=False).view(np.uint64)
    return (
        np.where(array.is_null().to_numpy(zero_copy_only=False), np.uint64(_NULL), found) if array.null_count else found
    )


def _whole(array: Any) -> Any:
    """Booleans, whole numbers, dates and times as numbers of 64 bits."""
    import pyarrow as pa

    if pa.types.is_date32(array.type) or pa.types.is_boolean(array.type):
        array = array.cast(pa.int32())
    return array.cast(pa.int64()).fill_null(0)


def _texts(array: Any) -> np.ndarray:
    """By the length of each text and its bytes, eight at a time, of all texts that are long enough."""
    import numpy as np

    _, ends, data = array.buffers()
    if data is None or not len(array):
        return np.zeros(len(array), np.uint64)
    begins = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    padded = np.concatenate([np.frombuffer(data, np.uint8)[: begins[-1]], np.zeros(_WORD, np.uint8)])
    words = np.lib.stride_tricks.as_strided(padded, (len(padded) - _WORD + 1, _WORD), (1, 1))
    length = np.diff(begins)
    found = length.astype(np.uint64)
    for begin in range(0, min(int(length.max()), _LOOKED_AT), _WORD):
        long = np.flatnonzero(length > begin)
        word = words[begins[long] + begin].view(np.uint64)[:, 0]
        unused = np.maximum(_WORD - (length[long] - begin), 0).astype(np.uint64) * np.uint64(8)
        found[long] = mixed(found[long]) + (word << unused)
    return found
