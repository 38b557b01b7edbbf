"""Delta's types in Arrow: rows of older files brought into the form that the table has now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "arrow_schema",
    "conform",
    "dictionaries_of",
    "dictionary_columns",
    "typed_partition",
    "with_dictionaries",
    "without_unused",
]

_SAMPLE = 10_000


def arrow_schema(schema: Json, names: Sequence[str]) -> pa.Schema:
    """Return some top-level columns of a Delta schema, in this order."""
    import pyarrow as pa
    from deltalake import Schema

    by_name = {field["name"]: field for field in schema["fields"]}
    chosen = {"type": "struct", "fields": [by_name[name] for name in names]}
    return pa.schema(Schema.from_json(msgspec.json.encode(chosen).decode()).to_arrow())


def conform(rows: pa.Table, schema: pa.Schema, count: int, fixed: Mapping[str, Any]) -> pa.Table:
    """Return `rows` with exactly the columns and types of `schema`: absent ones are `fixed`, or null."""
    import pyarrow as pa

    present = set(rows.column_names)
    columns = [
        fixed[field.name]
        if field.name in fixed
        else _cast(rows[field.name], field.type)
        if field.name in present
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def with_dictionaries(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the schema with these text columns dictionary-encoded."""
    import pyarrow as pa

    coded = pa.dictionary(pa.int32(), pa.string())
    named = [field for field in schema if field.name in names and field.type == pa.string()]
    for field in named:
        schema = schema.set(schema.get_field_index(field.name), field.with_type(coded))
    return schema


def dictionaries_of(schema: pa.Schema) -> list[str]:
    """Return its dictionary-encoded columns."""
    import pyarrow as pa

    return [field.name for field in schema if pa.types.is_dictionary(field.type)]


def without_unused(rows: pa.Table) -> pa.Table:
    """Return the rows without unused dictionary entries: a file and its bounds would otherwise show them."""
    import pyarrow as pa

    for name in dictionaries_of(rows.schema):
        place = rows.schema.get_field_index(name)
        column = pa.chunked_array(map(_without_unused, rows[name].chunks), rows[name].type)
        rows = rows.set_column(place, rows.schema.field(place), column)
    return rows


def _without_unused(chunk: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    used = np.zeros(len(chunk.dictionary), bool)
    used[chunk.indices.drop_null().to_numpy(zero_copy_only=False)] = True
    if used.all():
        return chunk
    places = pa.array(np.cumsum(used) - 1, chunk.indices.type)
    return pa.DictionaryArray.from_arrays(places.take(chunk.indices), chunk.dictionary.filter(pa.array(used)))


def typed_partition(partition: Mapping[str, str | None], schema: pa.Schema, count: int) -> dict[str, Any]:
    """Return a file's partition values as columns of `count` equal values."""
    import pyarrow as pa

    return {
        name: pa.repeat(_typed(value, schema.field(name).type), count)
        for name, value in partition.items()
        if name in schema.names
    }


def dictionary_columns(rows: pa.Table) -> list[str] | bool:
    """Return the columns with few distinct values: for others, building a dictionary costs time and saves nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sample = rows.slice(0, _SAMPLE)
    chosen = [
        field.name
        for field in sample.schema
        if not pa.types.is_nested(field.type)
        and not pa.types.is_boolean(field.type)
        and len(pc.unique(sample[field.name])) < sample.num_rows // 4
    ]
    return chosen or False


def _typed(value: str | None, kind: Any) -> Any:
    import pyarrow as pa

    if value is None:
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind):
        bare = pa.scalar(value.removesuffix("Z").replace("T", " "), pa.string()).cast(pa.timestamp("us"))
        return pa.scalar(bare.value, kind)
    return pa.scalar(value, pa.string()).cast(kind)


def _cast(column: Any, kind: Any) -> Any:
    """Cast a column to `kind`. Fields of structs are matched by name; absent ones become null."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        stored = {field.name for field in array.type}
        parts = [
            _cast(array.field(field.name), field.type) if field.name in stored else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type) and column.type.tz is None and kind.tz:
        return column.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)  # INT96 has no zone and means UTC.
    return column.cast(kind)
