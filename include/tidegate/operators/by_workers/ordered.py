"""Values in the order that Spark gives them, for kernels."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from tidegate.delta.as_python import python_values
from tidegate.delta.order_by import sortable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ordered"]


def ordered(*columns: pa.Array) -> list[Any]:
    """Return columns of one type in a form that Arrow sorts and compares as Spark sorts these; also across columns."""
    import pyarrow as pa

    if not pa.types.is_nested(columns[0].type):
        return [sortable(column) for column in columns]
    values = [python_values(column) for column in columns]
    keys = [_key(value) for value in itertools.chain(*values)]
    ranks = {repr(key): rank for rank, key in enumerate(sorted(keys))}
    numbers = iter([ranks[repr(key)] for key in keys])
    pairs = [[(value, next(numbers)) for value in own] for own in values]
    return [pa.array([None if value is None else rank for value, rank in own], pa.int64()) for own in pairs]


def _key(value: Any) -> tuple[Any, ...]:
    """Return what sorts as a value does in Spark: within structs and arrays null is least, NaN is the greatest."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, tuple(map(_key, value.values())))
    if isinstance(value, list | tuple):
        return (1, tuple(map(_key, value)))
    if isinstance(value, float) and value != value:
        return (2,)
    return (1, value.encode() if isinstance(value, str) else value)
