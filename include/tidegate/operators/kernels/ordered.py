"""Sorts and compares values as Spark does, for kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.delta.order_by import sortable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ordered"]


def ordered(*columns: pa.Array) -> list[Any]:
    """Return columns of one type in a form that Arrow sorts as Spark sorts the originals, also across the columns."""
    import pyarrow as pa

    if not pa.types.is_nested(columns[0].type):
        return [sortable(column) for column in columns]
    keys_of_columns = []
    distinct_keys: set[Any] = set()
    for column in columns:
        keys = [_sort_key(value) if value.is_valid else None for value in column]
        keys_of_columns.append(keys)
        distinct_keys.update(key for key in keys if key is not None)
    ranks: dict[Any, int | None] = {key: rank for rank, key in enumerate(sorted(distinct_keys))}
    ranks[None] = None
    return [pa.array([ranks[key] for key in keys], pa.int64()) for keys in keys_of_columns]


def _sort_key(value: pa.Scalar) -> tuple[Any, ...]:
    """Return a tuple that sorts as the value does in Spark: inside structs and arrays null is least, NaN greatest."""
    import pyarrow.types as types

    kind = value.type
    if not value.is_valid:
        return (0,)
    if types.is_struct(kind):
        return (1, tuple(_sort_key(value[index]) for index in range(kind.num_fields)))
    if types.is_list(kind) or types.is_large_list(kind):
        return (1, tuple(map(_sort_key, value.values)))
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return (1, bytes(value.as_buffer()))
    if types.is_temporal(kind):
        return (1, value.value)
    plain = value.as_py()
    if isinstance(plain, float):
        return (2,) if plain != plain else (1, plain + 0.0)
    return (1, plain)
