"""Which rows count where an order says so: those of the batch, or those that the table holds already.

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
    """What a merge keeps and what it drops."""

    won: Keys
    """Keys whose row comes from the batches: what the table holds under them goes."""
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
    parts = [(rank, source, key_rows(table, source, names)) for rank, each in enumerate(batches, 1) for source in each]
    known = Keys(_joined([rows for _, _, rows in parts], names, table).select(list(keys)))
    held = [_held(key_rows(table, source, names), keys, known) for source in live]
    rows = _joined([*held, *(rows for _, _, rows in parts)], names, table)
    ranks = np.repeat([0] * len(held) + [rank for rank, _, _ in parts], [*map(len, held), *(len(p[2]) for p in parts)])
    first = _first_of_each(known.codes(rows.select(list(keys))), rows.select(list(order)), pa.array(ranks, pa.int64()))
    won = rows.filter(pa.array(first & (ranks > 0))).select(list(keys))
    late, start = {}, sum(map(len, held))
    for _, source, part in parts:
        lost = ~first[start : start + len(part)]
        start += len(part)
        if lost.any():
            late[source.path] = pa.array(lost)
    return Newest(Keys(won), late)


def _held(rows: pa.Table, keys: Sequence[str], known: Keys) -> pa.Table:
    return rows.filter(known.held(rows.select(list(keys))))


def _joined(parts: Sequence[pa.Table], names: Sequence[str], table: Table) -> pa.Table:
    import pyarrow as pa

    from tidegate.delta.arrow_types import arrow_schema

    return pa.concat_tables([arrow_schema(table.schema, names).empty_table(), *parts])


def _first_of_each(codes: Any, order: pa.Table, ranks: Any) -> Any:
    """A mask of the rows that come first among those with their code: greatest order, then highest rank."""
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
