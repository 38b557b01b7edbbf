"""Delta's types in Arrow, and the conversion of rows from older files to the table's current schema."""

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
    """Return the Arrow schema of some top-level columns of a Delta schema, in this order."""
    import pyarrow as pa
    from deltalake import Schema

    by_name = {field["name"]: field for field in schema["fields"]}
    chosen = {"type": "struct", "fields": [by_name[name] for name in names]}
    return pa.schema(Schema.from_json(msgspec.json.encode(chosen).decode()).to_arrow())


def conform(rows: pa.Table, schema: pa.Schema, count: int, fixed: Mapping[str, Any]) -> pa.Table:
    """Return `rows` with exactly the columns and types of `schema`. Columns in `fixed` are taken from there; other
    missing columns are null."""
    import pyarrow as pa

    present = set(rows.column_names)
    columns = []
    for field in schema:
        if field.name in fixed:
            columns.append(fixed[field.name])
        elif field.name in present:
            columns.append(_cast(rows[field.name], field.type))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.table(columns, schema=schema)


def with_dictionaries(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the schema with these text columns dictionary-encoded."""
    import pyarrow as pa

    coded = pa.dictionary(pa.int32(), pa.string())
    for index, field in enumerate(schema):
        if field.name in names and field.type == pa.string():
            schema = schema.set(index, field.with_type(coded))
    return schema


def dictionaries_of(schema: pa.Schema) -> list[str]:
    """Return the dictionary-encoded columns of a schema."""
    import pyarrow as pa

    return [field.name for field in schema if pa.types.is_dictionary(field.type)]


def without_unused(rows: pa.Table) -> pa.Table:
    """Return the rows without unused dictionary entries, which a file and its statistics would otherwise contain."""
    import pyarrow as pa

    for name in dictionaries_of(rows.schema):
        index = rows.schema.get_field_index(name)
        column = pa.chunked_array(map(_without_unused, rows[name].chunks), rows[name].type)
        rows = rows.set_column(index, rows.schema.field(index), column)
    return rows


def _without_unused(chunk: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    used = np.zeros(len(chunk.dictionary), bool)
    used[chunk.indices.drop_null().to_numpy(zero_copy_only=False)] = True
    if used.all():
        return chunk
    new_indexes = pa.array(np.cumsum(used) - 1, chunk.indices.type)
    return pa.DictionaryArray.from_arrays(new_indexes.take(chunk.indices), chunk.dictionary.filter(pa.array(used)))


def typed_partition(partition: Mapping[str, str | None], schema: pa.Schema, count: int) -> dict[str, Any]:
    """Return a file's partition values as columns of `count` equal values."""
    import pyarrow as pa

    columns = {}
    for name, value in partition.items():
        if name in schema.names:
            columns[name] = pa.repeat(_typed(value, schema.field(name).type), count)
    return columns


def dictionary_columns(rows: pa.Table) -> list[str] | bool:
    """Return the columns with few distinct values, or False if none has. For all other columns, a dictionary costs time
    and saves no space."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sample = rows.slice(0, _SAMPLE)
    names = []
    for field in sample.schema:
        if pa.types.is_nested(field.type) or pa.types.is_boolean(field.type):
            continue
        if len(pc.unique(sample[field.name])) < sample.num_rows // 4:
            names.append(field.name)
    return names or False


def _typed(value: str | None, kind: Any) -> Any:
    import pyarrow as pa

    if value is None:
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind):
        without_zone = pa.scalar(value.removesuffix("Z").replace("T", " "), pa.string()).cast(pa.timestamp("us"))
        return pa.scalar(without_zone.value, kind)
    return pa.scalar(value, pa.string()).cast(kind)


def _cast(column: Any, kind: Any) -> Any:
    """Cast a column to `kind`. Fields of structs are matched by name; missing fields become null."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        if isinstance(column, pa.ChunkedArray):
            array = column.combine_chunks()
        else:
            array = column
        stored = {field.name for field in array.type}
        parts = []
        for field in kind:
            if field.name in stored:
                parts.append(_cast(array.field(field.name), field.type))
            else:
                parts.append(pa.nulls(len(array), field.type))
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type) and column.type.tz is None and kind.tz:
        return column.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)  # INT96 has no zone and means UTC.
    return column.cast(kind)
