"""Sets of keys in Arrow, which find rows with a key of a batch, and files that may hold one. Null equals null.

A key of several columns is reduced to one number: each column's values are replaced by their position among the batch's
distinct values, and pairs of positions again by their position. A value without position is not in the batch. Memory
use depends on the batch's keys, never on the table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.delta.log.active_files import LiveFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Keys"]

_BELOW_A_MILLISECOND = 999
"""The number of microseconds by which the real maximum may exceed the one in the statistics."""


class Keys:
    """The distinct keys of `rows`, a table of just the key columns."""

    def __init__(self, rows: pa.Table) -> None:
        import pyarrow.compute as pc

        self._names: list[str] = rows.column_names
        self._values = [pc.unique(rows[name]) for name in self._names]
        self._pairs: list[Any] = []
        self._code(rows, learn=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only `may_touch` needs, since the set is sent to workers that do not call it."""
        return {name: value for name, value in vars(self).items() if name != "_ordered"}

    def __len__(self) -> int:
        return len(self._pairs[-1] if self._pairs else self._values[0])

    def codes(self, rows: pa.Table) -> Any:
        """Return a number for the key of each row, or null if the set does not contain it. Equal keys get equal
        numbers."""
        return self._code(rows, learn=False)

    def contains(self, rows: pa.Table) -> Any:
        """Return a mask of the rows whose key the set contains."""
        import pyarrow.compute as pc

        if len(self._names) == 1:
            return pc.is_in(rows[self._names[0]], value_set=self._values[0])
        return pc.is_valid(self.codes(rows))

    def may_touch(self, file: LiveFile) -> bool:
        """Return whether a file may hold one of the keys, by its entry in the log."""
        return all(self._may_contain(index, file) for index in range(len(self._names)))

    def _code(self, rows: pa.Table, *, learn: bool) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        code = None
        for index, name in enumerate(self._names):
            values = self._values[index]
            position = pc.index_in(rows[name], value_set=values).cast(pa.int64())
            if code is None:
                code = position
                continue
            pair = pc.add(pc.multiply(code, max(len(values), 1)), position)
            if learn:
                self._pairs.append(pc.unique(pair))
            code = pc.index_in(pair, value_set=self._pairs[index - 1]).cast(pa.int64())
        return code

    def _may_contain(self, index: int, file: LiveFile) -> bool:
        """Return whether a file may hold a value of one key column, by its number."""
        name = self._names[index]
        ordered, has_null = self._ordered[index]
        if name in file.partition:
            value = file.partition[name]
            if value is None:
                return has_null
            return ordered.between(value, value)
        if has_null and file.nulls.get(name) != 0:
            return True
        low, high = file.low.get(name), file.high.get(name)
        return low is None or high is None or ordered.between(low, high, truncated=True)

    @cached_property
    def _ordered(self) -> list[tuple[_Ordered, bool]]:
        return [(_Ordered(values), values.null_count > 0) for values in self._values]


class _Ordered:
    """A column's distinct values in order. Values are converted one by one, since a binary search needs only a few.

    Times are compared as numbers and texts as bytes, because Spark supports years that Python does not, and texts that
    are not valid UTF-8.
    """

    def __init__(self, values: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        present = values.drop_null()
        self._values = present.take(pc.array_sort_indices(present))
        self._kind = present.type
        self._is_time = pa.types.is_timestamp(self._kind) or pa.types.is_date(self._kind)
        self._is_text = pa.types.is_string(self._kind) or pa.types.is_large_string(self._kind)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        value = self._values[index]
        if self._is_text:
            return bytes(value.as_buffer())
        return value.value if self._is_time else value.as_py()

    def between(self, low: Any, high: Any, *, truncated: bool = False) -> bool:
        """Return whether any value is in [low, high].

        truncated: the bounds are statistics, in which other writers truncate times to milliseconds.
        """
        import pyarrow as pa

        if self._is_time:
            low, high = pa.scalar(low, self._kind).value, pa.scalar(high, self._kind).value
            if truncated and pa.types.is_timestamp(self._kind):
                high += _BELOW_A_MILLISECOND
        if self._is_text:
            low, high = low.encode(), high.encode()
        values: Sequence[Any] = self  # type: ignore[assignment]
        index = bisect_left(values, low)
        return index < len(self) and bool(self[index] <= high)
