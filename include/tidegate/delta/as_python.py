"""Rows of a table as Python objects, whatever bytes are in its texts.

Spark checks no text that it writes, so a table may hold bytes that are not UTF-8. Arrow raises at the first of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.records.readable import readable_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["python_rows", "python_values"]


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as `to_pylist` does; bytes of a text that are not UTF-8 are written as `readable_text` writes
    them."""
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
        return found
    except UnicodeDecodeError:
        columns = [python_values(column) for column in rows.columns]
        return [dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column in the same way."""
    try:
        found: list[Any] = column.to_pylist()
        return found
    except UnicodeDecodeError:
        kind = column.type
        return [_readable(value, kind) for value in column.cast(_as_bytes(kind)).to_pylist()]


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes in place of texts."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _as_bytes(kind.value_type)
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_as_bytes(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_bytes(kind.value_type)))
    return kind


def _readable(value: Any, kind: pa.DataType) -> Any:
    """Return a value that was read with bytes in place of texts as one of its own type."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_dictionary(kind):
        return _readable(value, kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return readable_text(value)[0]
    if pa.types.is_struct(kind):
        return {field.name: _readable(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_readable(key, kind.key_type), _readable(item, kind.item_type)) for key, item in value]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_readable(item, kind.value_type) for item in value]
    return value
