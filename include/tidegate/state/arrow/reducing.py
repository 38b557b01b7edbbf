"""Partial values of rows, merged to one row for each key."""

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
    """Return one row per key, sorted; None: there are no rows. Rows are reduced as they come, so only keys add up."""
    import pyarrow as pa

    tables: list[Any] = []
    for batch in batches:
        tables.append(pa.Table.from_batches([batch]))
        if sum(table.num_rows for table in tables[1:]) > REDUCE_AT:
            tables = [_reduced(pa.concat_tables(tables), keys, ops)]
    rows = pa.concat_tables(tables) if tables else None
    return _reduced(rows, keys, ops) if rows is not None and rows.num_rows else None


REDUCE_AT = 4_000_000


def _reduced(rows: pa.Table, keys: Sequence[str], ops: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    places, starts = order_and_firsts(rows, keys)
    rows = rows.take(pa.array(places))
    if len(starts) == rows.num_rows:
        return rows
    firsts_only = rows.take(pa.array(starts))
    for name, op in ops.items():
        place = firsts_only.schema.get_field_index(name)
        firsts_only = firsts_only.set_column(place, firsts_only.schema.field(name), _segments(rows[name], op, starts))
    return firsts_only


def _segments(column: Any, op: str, starts: Any) -> Any:
    """Return sum, min or max of the rows from each start to the next. Nulls do not count; of nulls alone it is null."""
    import numpy as np
    import pyarrow as pa

    kind, rows = column.type, len(column)
    lengths = np.diff(np.append(starts, rows))
    if (plain := _with_neutral(column, op)) is not None and not (op == "sum" and _may_overflow(plain)):
        whole = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op].reduceat(plain, starts)
        result = pa.array(whole, mask=_only_nulls(column, starts, lengths))
        return result.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else result.cast(kind)
    few = rows // _ROWS_PER_VALUE
    if op != "sum" and (once := ranks_and_values(column, few)) is not None:
        ranks, values = once
        if op == "min":
            ranks = np.where(ranks < 0, len(values), ranks)
        places = {"min": np.minimum, "max": np.maximum}[op].reduceat(ranks, starts)
        return values.take(pa.array(places, mask=(places < 0) | (places == len(values))))
    if op == "sum" and pa.types.is_integer(kind):
        column = column.cast(pa.decimal128(38, 0))  # Arrow's own sum wraps around; the cast back does not
    segment = np.repeat(np.arange(len(starts)), lengths)
    with _fitting(kind):
        grouped = pa.table({"s": segment, "v": column}).group_by("s", use_threads=False).aggregate([("v", op)])
        return grouped[f"v_{op}"].cast(kind)


_ROWS_PER_VALUE = 4
"""With fewer rows for each distinct text, sorting the texts takes longer than comparing them row by row."""


def _with_neutral(column: Any, op: str) -> Any:
    """Return a column of whole numbers as int64, with numbers that change nothing in place of nulls; None: it is
    not such a column."""
    import numpy as np
    import pyarrow.compute as pc

    if not column.null_count or not is_whole(column.type):
        return integers(column)
    bounds = np.iinfo(np.int64)
    plain = integers(pc.drop_null(column))
    whole = np.full(len(column), {"sum": 0, "min": bounds.max, "max": bounds.min}[op], np.int64)
    whole[column.is_valid().to_numpy()] = plain
    return whole


def _only_nulls(column: Any, starts: Any, lengths: Any) -> Any:
    """Return for each start whether there are only nulls up to the next. None: there are no nulls."""
    import numpy as np

    if not column.null_count:
        return None
    return np.add.reduceat(column.is_null().to_numpy().astype(np.int64), starts) == lengths


@contextlib.contextmanager
def _fitting(kind: pa.DataType) -> Iterator[None]:
    """Say what is wrong where a sum does not fit into its type."""
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


def _may_overflow(plain: Any) -> bool:
    return bool(max(abs(float(plain.min())), abs(float(plain.max()))) * len(plain) >= 9e18)


def combined(before: Any, now: Any, op: str) -> Any:
    """Merge a key's partial values: null means that nothing is known yet."""
    import pyarrow.compute as pc

    if op == "sum":
        with _fitting(now.type):
            both = pc.add_checked(before, now).cast(now.type)
    else:  # not Arrow's min_element_wise: it knows no timestamps with a zone
        keeps = {"min": pc.less, "max": pc.greater}[op](before, now)
        both = pc.if_else(keeps, before, now)
    return pc.coalesce(both, before, now)
