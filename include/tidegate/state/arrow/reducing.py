"""Merges the partial values of rows into one row for each key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.state.arrow.keys_as_numbers import integers, is_whole, order_and_firsts, ranks_and_values

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["combined", "reduced", "sum_does_not_fit"]


def reduced(batches: Iterable[pa.RecordBatch], keys: Sequence[str], ops: Mapping[str, str]) -> pa.Table | None:
    """Return one row per key, sorted, or None if there are no rows.

    Rows are reduced as they arrive, so memory only has to hold the keys.
    """
    import pyarrow as pa

    tables: list[Any] = []
    for batch in batches:
        tables.append(pa.Table.from_batches([batch]))
        if sum(table.num_rows for table in tables[1:]) > REDUCE_AT:
            tables = [_reduced(pa.concat_tables(tables), keys, ops)]
    rows = pa.concat_tables(tables) if tables else None
    if rows is not None and rows.num_rows:
        return _reduced(rows, keys, ops)
    return None


REDUCE_AT = 4_000_000


def _reduced(rows: pa.Table, keys: Sequence[str], ops: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    positions, starts = order_and_firsts(rows, keys)
    rows = rows.take(pa.array(positions))
    if len(starts) == rows.num_rows:
        return rows
    firsts_only = rows.take(pa.array(starts))
    for name, op in ops.items():
        index = firsts_only.schema.get_field_index(name)
        firsts_only = firsts_only.set_column(index, firsts_only.schema.field(name), _segments(rows[name], op, starts))
    return firsts_only


def _segments(column: Any, op: str, starts: Any) -> Any:
    """Return the sum, min or max of the rows from each start to the next. Nulls are ignored; without other values it
    is null."""
    import numpy as np
    import pyarrow as pa

    kind, rows = column.type, len(column)
    lengths = np.diff(np.append(starts, rows))
    numbers = _with_neutral(column, op)
    if numbers is not None and not (op == "sum" and _may_overflow(numbers)):
        reduced_numbers = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op].reduceat(numbers, starts)
        result = pa.array(reduced_numbers, mask=_only_nulls(column, starts, lengths))
        if pa.types.is_date32(kind):
            return result.cast(pa.int32()).cast(kind)
        return result.cast(kind)
    if op != "sum" and (ranked := ranks_and_values(column, rows // _ROWS_PER_VALUE)) is not None:
        ranks, values = ranked
        if op == "min":
            ranks = np.where(ranks < 0, len(values), ranks)
        indexes = {"min": np.minimum, "max": np.maximum}[op].reduceat(ranks, starts)
        return values.take(pa.array(indexes, mask=(indexes < 0) | (indexes == len(values))))
    if op == "sum" and pa.types.is_integer(kind):
        column = column.cast(pa.decimal128(38, 0))  # Arrow's sum overflows silently, the cast back raises an error
    segment = np.repeat(np.arange(len(starts)), lengths)
    with _fitting(kind):
        grouped = pa.table({"s": segment, "v": column}).group_by("s", use_threads=False).aggregate([("v", op)])
        return grouped[f"v_{op}"].cast(kind)


_ROWS_PER_VALUE = 4
"""With fewer rows for each distinct text, sorting the texts takes longer than comparing them row by row."""


def _with_neutral(column: Any, op: str) -> Any:
    """Return a column of integers as int64, with the neutral element in place of nulls, or None if it is none."""
    import numpy as np
    import pyarrow.compute as pc

    if not column.null_count or not is_whole(column.type):
        return integers(column)
    bounds = np.iinfo(np.int64)
    neutral = {"sum": 0, "min": bounds.max, "max": bounds.min}[op]
    numbers = np.full(len(column), neutral, np.int64)
    numbers[column.is_valid().to_numpy()] = integers(pc.drop_null(column))
    return numbers


def _only_nulls(column: Any, starts: Any, lengths: Any) -> Any:
    """Return for each start whether all values up to the next are null, or None if no value is."""
    import numpy as np

    if not column.null_count:
        return None
    return np.add.reduceat(column.is_null().to_numpy().astype(np.int64), starts) == lengths


@contextlib.contextmanager
def _fitting(kind: pa.DataType) -> Iterator[None]:
    """Raise a clear error where a sum does not fit into its type."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowInvalid as error:
        raise sum_does_not_fit(kind) from error


def sum_does_not_fit(kind: pa.DataType) -> Invalid:
    """Return the error for a sum that is too large."""
    return Invalid(
        f"overflow: a sum is more than its type {kind} holds", help="Sum a wider type, such as decimal(38,0)."
    )


def _may_overflow(numbers: Any) -> bool:
    largest = max(abs(float(numbers.min())), abs(float(numbers.max())))
    return bool(largest * len(numbers) >= 9e18)


def combined(before: Any, now: Any, op: str) -> Any:
    """Merge two columns of partial values. Null means no value."""
    import pyarrow.compute as pc

    if op == "sum":
        with _fitting(now.type):
            result = pc.add_checked(before, now).cast(now.type)
    else:  # not Arrow's min_element_wise, which does not support timestamps with a time zone
        is_before = {"min": pc.less, "max": pc.greater}[op](before, now)
        result = pc.if_else(is_before, before, now)
    return pc.coalesce(result, before, now)
