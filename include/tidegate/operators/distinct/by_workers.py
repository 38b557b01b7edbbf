"""Distinct values as workers find them, for one range of key groups: which of the batch's have never been there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.state.arrow.folding import Folded
from tidegate.state.arrow.sorted_files import codes_of, order
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MOST_PARTS", "PARTS", "NewValues", "new_column"]

PARTS: Final = "_tidegate_parts"
"""The column of the batch that says which of the states a row's value is for: a bit for each."""
MOST_PARTS: Final = 60
"""The most states that such a number has bits for."""


def new_column(part: int) -> str:
    """Return the column with the number of a part's new values."""
    return f"_tidegate_new{part}"


@dataclass(frozen=True)
class NewValues:
    """Keeps the values that are new, and emits how many there are: a row for each key, and part."""

    by: Sequence[str]
    values: Sequence[str]
    """The columns that are one value together. None of them is null."""
    parts: int

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> Folded:
        import numpy as np
        import pyarrow as pa

        keys = [*self.by, *self.values]
        codes, *known = codes_of([rows.select(keys) for rows in (arrived, *stored)], keys, small=False)
        in_order = order(codes)
        ascending = codes[in_order]
        starts = np.flatnonzero(np.diff(ascending, prepend=-1))
        values, first, bits = ascending[starts], in_order[starts], arrived[PARTS].to_numpy()[in_order]
        changes, found = [], []
        for number, before in enumerate(known):
            counts = np.add.reduceat(bits >> number & 1, starts)
            is_new = (counts > 0) & ~np.isin(values, before)
            rows = arrived.take(pa.array(first[is_new])).select([GROUP, *keys])
            counted = rows.append_column("_n", pa.array(counts[is_new]))
            changes.append(counted.append_column(DELETED, pa.array(np.zeros(rows.num_rows, bool))))
            found.append(rows)
        return Folded(changes, self._numbers(found))

    def _numbers(self, found: Sequence[pa.Table]) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        for number, rows in enumerate(found):
            if not rows.num_rows:
                continue
            codes = codes_of([rows.select(self.by)], self.by)[0]
            _, first, counts = np.unique(codes, return_index=True, return_counts=True)
            keys = rows.select(self.by).take(pa.array(first))
            columns: dict[str, Any] = {name: keys[name] for name in self.by}
            for part in range(self.parts):
                columns[new_column(part)] = pa.array(counts) if part == number else pa.nulls(len(counts), pa.int64())
            yield pa.table(columns)
