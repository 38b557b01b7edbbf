"""Rows of one batch that have the same key: an order settles which one counts, or the batch is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.delta.as_python import python_rows
from tidegate.delta.keys import Keys
from tidegate.delta.order_by import sortable
from tidegate.delta.rewrite import InputFile, Table, key_rows
from tidegate.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["outdated_rows"]

_SAMPLES = 5
_SAMPLE_WIDTH = 120


def outdated_rows(
    table: Table, sources: Sequence[InputFile], keys: Sequence[str], order_by: Sequence[str], marks: Sequence[object]
) -> dict[str, Any]:
    """Return, for each file that holds some, a mask of the rows that are not the last one of their key.

    The greatest `order_by` values win, null is least. Rows that share them must be equal in every column
    (and in their file's mark, which tells deletes from changes): a copy does no harm, a contradiction is
    refused.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    names = list(dict.fromkeys([*keys, *order_by]))
    parts = [key_rows(table, source, names) for source in sources]
    rows = pa.concat_tables(parts) if parts else None
    batch_keys = Keys(rows.select(list(keys))) if rows is not None else None
    if rows is None or batch_keys is None or len(batch_keys) == rows.num_rows:
        return {}
    ordered = pa.table(
        [batch_keys.codes(rows.select(list(keys))), *(sortable(rows[name]) for name in order_by)],
        names=["code", *(f"order {place}" for place in range(len(order_by)))],
    )
    sort_keys: list[tuple[str, str]] = [(name, "descending") for name in ordered.column_names[1:]]
    places = pc.sort_indices(ordered, sort_keys=[("code", "ascending"), *sort_keys])  # nulls last, that is least
    ordered = ordered.take(places)
    follows = _same_as_before(ordered, ["code"])
    tied = follows & _same_as_before(ordered, ordered.column_names)
    # Only rows that tie with the winner contradict anything: a run of ties that starts at a first row.
    starts = np.maximum.accumulate(np.where(~tied, np.arange(len(tied)), 0))
    contested = tied & ~follows[starts]
    if contested.any():
        pairs = [
            (int(places[int(starts[place])].as_py()), int(places[int(place)].as_py()))
            for place in np.flatnonzero(contested)
        ]
        _refuse_contradictions(table, sources, parts, rows, list(keys), pairs, order_by, marks)
    superseded = np.zeros(rows.num_rows, dtype=bool)
    superseded[places.to_numpy()[follows]] = True
    return _by_file(sources, parts, superseded)


def _same_as_before(rows: pa.Table, names: Sequence[str]) -> Any:
    """Return for each row whether it equals the one before it in these columns; null equals null."""
    import numpy as np
    import pyarrow.compute as pc

    same = np.ones(rows.num_rows, dtype=bool)
    same[0] = False
    for name in names:
        column = rows[name].combine_chunks()
        this, before = column.slice(1), column.slice(0, len(column) - 1)
        equal = pc.fill_null(pc.equal(this, before), False)
        equal = pc.or_(equal, pc.and_(pc.is_null(this), pc.is_null(before)))
        same[1:] &= equal.to_numpy(zero_copy_only=False)
    return same


def _by_file(sources: Sequence[InputFile], parts: Sequence[pa.Table], superseded: Any) -> dict[str, Any]:
    import pyarrow as pa

    masks, start = {}, 0
    for source, part in zip(sources, parts, strict=True):
        mask = superseded[start : start + part.num_rows]
        start += part.num_rows
        if mask.any():
            masks[source.path] = pa.array(mask)
    return masks


def _refuse_contradictions(
    table: Table,
    sources: Sequence[InputFile],
    parts: Sequence[pa.Table],
    rows: pa.Table,
    keys: list[str],
    pairs: Sequence[tuple[int, int]],
    order_by: Sequence[str],
    marks: Sequence[object],
) -> None:
    """Raise Invalid, with sample keys, if the rows of a pair differ in anything."""
    import numpy as np

    ends = np.cumsum([part.num_rows for part in parts])
    names = [field["name"] for field in table.schema["fields"]]
    loaded: dict[int, pa.Table] = {}

    def whole(row: int) -> str:
        place = int(np.searchsorted(ends, row, side="right"))
        if place not in loaded:
            loaded[place] = key_rows(table, sources[place], names)
        within = row - int(ends[place] - parts[place].num_rows)
        return f"{marks[place]} {python_rows(loaded[place].slice(within, 1))}"

    different = [first for first, second in pairs if whole(first) != whole(second)]
    if not different:
        return
    samples = [str(python_rows(rows.select(keys).slice(row, 1))[0])[:_SAMPLE_WIDTH] for row in different[:_SAMPLES]]
    raise Invalid(
        f"{len(different)} rows contradict another row with the same key",
        expected="one row for each key in a checkpoint"
        + (f", or different values of {', '.join(order_by)}" if order_by else ""),
        help="name more columns in order_by, so that the last row of a key is known"
        if order_by
        else "give the sink order_by=[…], or let a stage before it keep one row for each key",
        reason="DUPLICATE_KEYS",
        quoted=f"such as {', '.join(samples)}",
    )
