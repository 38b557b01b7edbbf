"""Finds rows of a batch with the same key. An order decides which of them counts, or the batch is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.delta.as_python import python_rows
from tidegate.delta.keys import Keys
from tidegate.delta.order_by import greatest_first
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
    """Return masks of the rows that another row of their key overrides, by path of the files that hold any.

    The greatest `order_by` values win; null is smallest. Rows with the same values must be equal in every column, and
    in their file's mark, which distinguishes deletes from changes. Copies are harmless, contradictions are refused.
    """
    import numpy as np
    import pyarrow as pa

    names = list(dict.fromkeys([*keys, *order_by]))
    parts = [key_rows(table, source, names) for source in sources]
    if not parts:
        return {}
    rows = pa.concat_tables(parts)
    key_columns = rows.select(list(keys))
    batch_keys = Keys(key_columns)
    if len(batch_keys) == rows.num_rows:
        return {}
    positions, ordered = greatest_first(batch_keys.codes(key_columns), [rows[name] for name in order_by])
    has_same_key = _equals_previous(ordered, ["code"])
    is_tied = has_same_key & _equals_previous(ordered, ordered.column_names)
    # Only rows that tie with the winner can contradict: those in a run of ties that starts at the key's first row.
    starts = np.maximum.accumulate(np.where(~is_tied, np.arange(len(is_tied)), 0))
    is_contested = is_tied & ~has_same_key[starts]
    if is_contested.any():
        pairs = []
        for position in np.flatnonzero(is_contested):
            pairs.append((int(positions[starts[position]]), int(positions[position])))
        _refuse_contradictions(table, sources, parts, rows, list(keys), pairs, order_by, marks)
    is_outdated = np.zeros(rows.num_rows, dtype=bool)
    is_outdated[positions[has_same_key]] = True
    return _split_per_file(sources, parts, is_outdated)


def _equals_previous(rows: pa.Table, names: Sequence[str]) -> Any:
    """Return for each row whether it equals the previous one in these columns. Null equals null."""
    import numpy as np
    import pyarrow.compute as pc

    is_equal = np.ones(rows.num_rows, dtype=bool)
    is_equal[0] = False
    for name in names:
        column = rows[name].combine_chunks()
        current, previous = column.slice(1), column.slice(0, len(column) - 1)
        equal = pc.fill_null(pc.equal(current, previous), False)
        equal = pc.or_(equal, pc.and_(pc.is_null(current), pc.is_null(previous)))
        is_equal[1:] &= equal.to_numpy(zero_copy_only=False)
    return is_equal


def _split_per_file(sources: Sequence[InputFile], parts: Sequence[pa.Table], is_outdated: Any) -> dict[str, Any]:
    import pyarrow as pa

    masks, start = {}, 0
    for source, part in zip(sources, parts, strict=True):
        mask = is_outdated[start : start + part.num_rows]
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
    """Raise Invalid, with sample keys, if the rows of any pair differ."""
    import numpy as np

    ends = np.cumsum([part.num_rows for part in parts])
    names = [field["name"] for field in table.schema["fields"]]
    loaded: dict[int, pa.Table] = {}

    def full_row(row: int) -> str:
        """Return the mark of the row's file and all values of the row, as text."""
        number = int(np.searchsorted(ends, row, side="right"))  # the file's number
        if number not in loaded:
            loaded[number] = key_rows(table, sources[number], names)
        index = row - int(ends[number] - parts[number].num_rows)
        return f"{marks[number]} {python_rows(loaded[number].slice(index, 1))}"

    different = [first for first, second in pairs if full_row(first) != full_row(second)]
    if not different:
        return
    samples = []
    for row in different[:_SAMPLES]:
        key = python_rows(rows.select(keys).slice(row, 1))[0]
        samples.append(str(key)[:_SAMPLE_WIDTH])
    expected = "one row for each key in a checkpoint"
    remedy = "give the sink order_by=[…], or let a stage before it keep one row for each key"
    if order_by:
        expected += f", or different values of {', '.join(order_by)}"
        remedy = "name more columns in order_by, so that they determine the last row of a key"
    raise Invalid(
        f"{len(different)} rows contradict another row with the same key",
        expected=expected,
        help=remedy,
        reason="DUPLICATE_KEYS",
        quoted=f"such as {', '.join(samples)}",
    )
