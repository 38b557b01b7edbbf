"""Decides by an order which rows count: those of the batch, or those that the table holds already.

Without this, a row that comes late, in a later checkpoint, would replace a newer one; and the table would
depend on how the input was cut into checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.delta.keys import Keys
from tidegate.delta.rewrite import InputFile, Table, key_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Newest", "newest"]

_RANK = "rank"


@dataclass(frozen=True)
class Newest:
    """The rows that a merge keeps and drops."""

    won: Keys
    """Keys whose row comes from the batches: the table's rows with these keys are dropped."""
    late: dict[str, Any]
    """By file of the batches: a mask of the rows that do not count."""


def newest(
    table: Table,
    live: Sequence[InputFile],
    batches: Sequence[Sequence[InputFile]],
    keys: Sequence[str],
    order: Sequence[str],
) -> Newest:
    """Settle each key of the batches: the greatest `order` counts, null is least, and of equals the last batch.

    live: the table's files that may hold one of the keys. Only rows with such a key are held in memory.
    """
    import numpy as np
    import pyarrow as pa

    names = list(dict.fromkeys([*keys, *order]))
    parts = [
        (rank, source, key_rows(table, source, names)) for rank, batch in enumerate(batches, 1) for source in batch
    ]
    batch_keys = Keys(_joined([rows for _, _, rows in parts], names, table).select(list(keys)))
    stored = [_held(key_rows(table, source, names), keys, batch_keys) for source in live]
    rows = _joined([*stored, *(rows for _, _, rows in parts)], names, table)
    ranks = np.repeat(
        [0] * len(stored) + [rank for rank, _, _ in parts], [*map(len, stored), *(len(p[2]) for p in parts)]
    )
    first = _first_of_each(
        batch_keys.codes(rows.select(list(keys))), rows.select(list(order)), pa.array(ranks, pa.int64())
    )
    won = rows.filter(pa.array(first & (ranks > 0))).select(list(keys))
    late, start = {}, sum(map(len, stored))
    for _, source, part in parts:
        superseded = ~first[start : start + len(part)]
        start += len(part)
        if superseded.any():
            late[source.path] = pa.array(superseded)
    return Newest(Keys(won), late)


def _held(rows: pa.Table, keys: Sequence[str], batch_keys: Keys) -> pa.Table:
    return rows.filter(batch_keys.held(rows.select(list(keys))))


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
    rows = pa.table([codes, *order.columns, ranks], names=["code", *columns, _RANK])
    descending = [(name, "descending") for name in (*columns, _RANK)]
    places = pc.sort_indices(rows, sort_keys=[("code", "ascending"), *descending]).to_numpy()  # nulls last: least
    ordered = rows["code"].to_numpy()[places]
    mask = np.zeros(len(places), dtype=bool)
    mask[places[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(places) else places] = True
    return mask
