"""Values in the order that Spark gives them, for kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.delta.order_by import sortable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ordered"]


def ordered(*columns: pa.Array) -> list[Any]:
    """Return columns of one type in a form that Arrow sorts and compares as Spark sorts these; also across columns."""
    import pyarrow as pa

    if not pa.types.is_nested(columns[0].type):
        return [sortable(column) for column in columns]
    keys = [[_key(value) if value.is_valid else None for value in column] for column in columns]
    ranks = {key: rank for rank, key in enumerate(sorted({key for own in keys for key in own if key is not None}))}
    return [pa.array([None if key is None else ranks[key] for key in own], pa.int64()) for own in keys]


def _key(value: pa.Scalar) -> tuple[Any, ...]:
    """Return what sorts as a value does in Spark: within structs and arrays null is least, NaN is the greatest."""
    import pyarrow.types as types

    kind = value.type
    if not value.is_valid:
        return (0,)
    if types.is_struct(kind):
        return (1, tuple(_key(value[place]) for place in range(kind.num_fields)))
    if types.is_list(kind) or types.is_large_list(kind):
        return (1, tuple(map(_key, value.values)))
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return (1, bytes(value.as_buffer()))
    if types.is_temporal(kind):
        return (1, value.value)
    plain = value.as_py()
    if isinstance(plain, float):
        return (2,) if plain != plain else (1, plain + 0.0)
    return (1, plain)
