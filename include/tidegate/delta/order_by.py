"""Decides by an order which rows count: those of the batch, or those that the table holds already.

Without this, a row that comes late, in a later checkpoint, would replace a newer one; and the table would
depend on how the input was cut into checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.delta.keys import Keys
from tidegate.delta.rewrite import InputFile, Table, key_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchRows", "Newest", "newest", "rows_with_keys", "sortable"]

_RANK = "rank"


@dataclass(frozen=True)
class Newest:
    """The rows that a merge keeps and drops."""

    won: Keys
    """Keys whose row comes from the batches: the table's rows with these keys are dropped."""
    late: dict[str, Any]
    """By file of the batches: a mask of the rows that do not count."""


@dataclass(frozen=True)
class BatchRows:
    """The keys and orders of the rows that some batches of a merge change or remove."""

    table: Table
    keys: tuple[str, ...]
    order: tuple[str, ...]
    parts: list[tuple[int, InputFile, pa.Table]] = field(repr=False)
    """The number of the batch, from 1; the file; its rows."""

    @classmethod
    def read(
        cls, table: Table, batches: Sequence[Sequence[InputFile]], keys: Sequence[str], order: Sequence[str]
    ) -> BatchRows:
        """Read them from the batches' files."""
        names = list(dict.fromkeys([*keys, *order]))
        parts = [
            (rank, source, key_rows(table, source, names)) for rank, batch in enumerate(batches, 1) for source in batch
        ]
        return cls(table, tuple(keys), tuple(order), parts)

    @property
    def names(self) -> list[str]:
        """The columns that decide."""
        return list(dict.fromkeys([*self.keys, *self.order]))

    @property
    def nbytes(self) -> int:
        """What the rows take in memory."""
        return sum(rows.nbytes for _, _, rows in self.parts)

    @cached_property
    def distinct_keys(self) -> Keys:
        """Their keys."""
        return Keys(_joined([rows for _, _, rows in self.parts], self.names, self.table).select(list(self.keys)))

    def settle(self, stored: Sequence[pa.Table]) -> Newest:
        """Settle each key: the greatest order counts, null is least, and of equals the last batch.

        stored: the table's rows with one of the keys.
        """
        import numpy as np
        import pyarrow as pa

        rows = _joined([*stored, *(rows for _, _, rows in self.parts)], self.names, self.table)
        ranks = np.repeat(
            [0] * len(stored) + [rank for rank, _, _ in self.parts],
            [*map(len, stored), *(len(rows) for _, _, rows in self.parts)],
        )
        first = _first_of_each(
            self.distinct_keys.codes(rows.select(list(self.keys))),
            rows.select(list(self.order)),
            pa.array(ranks, pa.int64()),
        )
        won = rows.filter(pa.array(first & (ranks > 0))).select(list(self.keys))
        late, start = {}, sum(map(len, stored))
        for _, source, part in self.parts:
            superseded = ~first[start : start + len(part)]
            start += len(part)
            if superseded.any():
                late[source.path] = pa.array(superseded)
        return Newest(Keys(won), late)


def newest(
    table: Table,
    live: Sequence[InputFile],
    batches: Sequence[Sequence[InputFile]],
    keys: Sequence[str],
    order: Sequence[str],
) -> Newest:
    """Settle each key of the batches against the rows of the table.

    live: the table's files that may hold one of the keys. Only rows with such a key are held in memory.
    """
    staged = BatchRows.read(table, batches, keys, order)
    return staged.settle([rows_with_keys(table, source, staged.names, keys, staged.distinct_keys) for source in live])


def rows_with_keys(
    table: Table, source: InputFile, names: Sequence[str], keys: Sequence[str], wanted: Keys
) -> pa.Table:
    """Return some columns of a file's rows that have one of the wanted keys."""
    rows = key_rows(table, source, names)
    return rows.filter(wanted.contains(rows.select(list(keys))))


def _joined(parts: Sequence[pa.Table], names: Sequence[str], table: Table) -> pa.Table:
    import pyarrow as pa

    from tidegate.delta.arrow_types import arrow_schema

    return pa.concat_tables([arrow_schema(table.schema, names).empty_table(), *parts])


def _first_of_each(codes: Any, order: pa.Table, ranks: Any) -> Any:
    """Return a mask of the first row for each code: greatest order, then highest rank."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [f"order {place}" for place in range(order.num_columns)]
    rows = pa.table([codes, *map(sortable, order.columns), ranks], names=["code", *columns, _RANK])
    descending = [(name, "descending") for name in (*columns, _RANK)]
    places = pc.sort_indices(rows, sort_keys=[("code", "ascending"), *descending]).to_numpy()  # nulls last: least
    ordered = rows["code"].to_numpy()[places]
    mask = np.zeros(len(places), dtype=bool)
    mask[places[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(places) else places] = True
    return mask


def sortable(column: Any) -> Any:
    """Return values whose order is Spark's. There, NaN is the greatest of all numbers, and -0 is 0."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8())
    if not pa.types.is_floating(column.type):
        return column
    numbers = np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0))
    bits = np.where(np.isnan(numbers), np.inf, numbers).view(np.int64)
    ordinals = np.where(bits < 0, np.iinfo(np.int64).min - bits, bits)
    ordinals = np.where(np.isnan(numbers), np.iinfo(np.int64).max, ordinals)
    return pa.array(ordinals, mask=np.asarray(pc.is_null(column)))
