"""Decides by an order which row of a key counts: one of the batch, or the one in the table.

Otherwise an outdated row in a later checkpoint would replace a newer one, and the table's content would depend on how
the input was divided into checkpoints.
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

__all__ = ["BatchRows", "Newest", "greatest_first", "newest", "rows_with_keys", "sortable"]


@dataclass(frozen=True)
class Newest:
    """The outcome of a merge: which rows it keeps and drops."""

    won: Keys
    """Keys whose winning row is in the batches: the table's rows with these keys are dropped."""
    outdated: dict[str, Any]
    """By path of a batch's file, a mask of the rows that lose."""


@dataclass(frozen=True)
class BatchRows:
    """The key and order columns of the rows in the batches of a merge."""

    table: Table
    keys: tuple[str, ...]
    order: tuple[str, ...]
    parts: list[tuple[int, InputFile, pa.Table]] = field(repr=False)
    """For each file: the number of its batch, from 1; the file; its rows."""

    @classmethod
    def read(
        cls, table: Table, batches: Sequence[Sequence[InputFile]], keys: Sequence[str], order: Sequence[str]
    ) -> BatchRows:
        """Read the rows from the batches' files."""
        names = list(dict.fromkeys([*keys, *order]))
        parts = []
        for number, batch in enumerate(batches, 1):
            for source in batch:
                parts.append((number, source, key_rows(table, source, names)))
        return cls(table, tuple(keys), tuple(order), parts)

    @property
    def names(self) -> list[str]:
        """The key and order columns."""
        return list(dict.fromkeys([*self.keys, *self.order]))

    @property
    def nbytes(self) -> int:
        """The size of the rows in memory."""
        return sum(rows.nbytes for _, _, rows in self.parts)

    @cached_property
    def distinct_keys(self) -> Keys:
        """The distinct keys of all rows."""
        return Keys(_joined([rows for _, _, rows in self.parts], self.names, self.table).select(list(self.keys)))

    def settle(self, stored: Sequence[pa.Table]) -> Newest:
        """Choose the row of each key: the greatest order wins (null is smallest), then the last batch.

        stored: the table's rows with one of the keys.
        """
        import numpy as np
        import pyarrow as pa

        rows = _joined([*stored, *(rows for _, _, rows in self.parts)], self.names, self.table)
        # The number of the batch, and 0 for the table.
        rank_of_part = [0] * len(stored) + [rank for rank, _, _ in self.parts]
        rows_of_part = [*map(len, stored), *(len(rows) for _, _, rows in self.parts)]
        ranks = np.repeat(rank_of_part, rows_of_part)
        first = _first_of_each(
            self.distinct_keys.codes(rows.select(list(self.keys))),
            rows.select(list(self.order)),
            pa.array(ranks, pa.int64()),
        )
        won = rows.filter(pa.array(first & (ranks > 0))).select(list(self.keys))
        outdated, start = {}, sum(map(len, stored))
        for _, source, part in self.parts:
            is_outdated = ~first[start : start + len(part)]
            start += len(part)
            if is_outdated.any():
                outdated[source.path] = pa.array(is_outdated)
        return Newest(Keys(won), outdated)


def newest(
    table: Table,
    live: Sequence[InputFile],
    batches: Sequence[Sequence[InputFile]],
    keys: Sequence[str],
    order: Sequence[str],
) -> Newest:
    """Choose the row of each key of the batches, among their rows and the table's.

    Only rows with one of the keys are held in memory.

    live: the table's files that may hold one of the keys.
    """
    staged = BatchRows.read(table, batches, keys, order)
    return staged.settle([rows_with_keys(table, source, staged.names, keys, staged.distinct_keys) for source in live])


def rows_with_keys(
    table: Table, source: InputFile, names: Sequence[str], keys: Sequence[str], wanted_keys: Keys
) -> pa.Table:
    """Return columns of those rows of a file that have one of the wanted keys."""
    rows = key_rows(table, source, names)
    return rows.filter(wanted_keys.contains(rows.select(list(keys))))


def _joined(parts: Sequence[pa.Table], names: Sequence[str], table: Table) -> pa.Table:
    import pyarrow as pa

    from tidegate.delta.arrow_types import arrow_schema

    return pa.concat_tables([arrow_schema(table.schema, names).empty_table(), *parts])


def _first_of_each(codes: Any, order: pa.Table, ranks: Any) -> Any:
    """Return a mask of one row for each code: the one with the greatest order, then with the highest rank."""
    import numpy as np

    positions, in_order = greatest_first(codes, [*order.columns, ranks])
    mask = np.zeros(len(positions), dtype=bool)
    if len(positions):
        ordered = in_order["code"].to_numpy()
        is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        mask[positions[is_first]] = True
    return mask


def greatest_first(codes: Any, order: Sequence[Any]) -> tuple[Any, pa.Table]:
    """Sort rows by their keys' codes, and rows of one key by `order`, greatest first and nulls last. Return their
    positions, and the codes and `order` columns, in this order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [f"order {number}" for number in range(len(order))]
    rows = pa.table([codes, *map(sortable, order)], names=["code", *names])
    descending = [(name, "descending") for name in names]
    positions = pc.sort_indices(rows, sort_keys=[("code", "ascending"), *descending])  # nulls last, as smallest
    return positions.to_numpy(), rows.take(positions)


def sortable(column: Any) -> Any:
    """Return values that Arrow sorts in Spark's order, in which NaN is the greatest number and -0 equals 0."""
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
