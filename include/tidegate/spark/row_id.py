"""Identifies rows by all of their content."""

from __future__ import annotations

import binascii
import itertools
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from tidegate.records.names import field_of, quoted, quoted_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

__all__ = ["HALVES", "half_fields", "row_halves", "row_halves_of", "row_id", "rows_hash", "with_row_ids"]

HALVES: Final = ("_tidegate_high", "_tidegate_low")
"""The columns with both halves of an id. Workers format them as text, which takes Spark longer than the hashes."""


def row_id(frame: DataFrame) -> Column:
    """Return 128 bits that identify a row by all of its content, as text, equal in every attempt and checkpoint.

    The id does not change if null columns are added, columns are reordered, or their types become wider.
    """
    from pyspark.sql import functions as F

    first, second = _halves(frame.schema.fields)
    return F.expr(f"concat(lpad(hex({first}), 16, '0'), lpad(hex({second}), 16, '0'))")


def row_halves(frame: DataFrame) -> list[str]:
    """Return SQL for both halves of the id as numbers, for workers."""
    return row_halves_of(frame.schema.fields)


def row_halves_of(fields: Sequence[StructField]) -> list[str]:
    """Return SQL for both halves of the id of rows with these columns only."""
    return [f"{half} AS {name}" for half, name in zip(_halves(fields), HALVES, strict=True)]


def half_fields() -> list[StructField]:
    """Return the columns of the halves."""
    from pyspark.sql.types import LongType, StructField

    return [StructField(name, LongType()) for name in HALVES]


def with_row_ids(rows: pa.Table) -> pa.Table:
    """Return a worker's rows with ids instead of their halves, if they have any."""
    import numpy as np
    import pyarrow as pa

    if HALVES[0] not in rows.column_names:
        return rows
    halves = np.stack([rows[name].to_numpy() for name in HALVES], axis=1)
    letters = binascii.hexlify(halves.astype(">i8").tobytes()).upper()
    offsets = np.arange(rows.num_rows + 1, dtype=np.int32) * 32
    ids = pa.StringArray.from_buffers(rows.num_rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    return rows.drop_columns(list(HALVES)).append_column("_row", ids)


def _halves(fields: Sequence[StructField]) -> tuple[str, str]:
    """Return SQL for two hashes of a row."""
    columns = []
    for field in sorted(fields, key=lambda field: field.name):
        column = quoted(field.name)
        # A null does not change a hash, so a column with a value adds its name, too.
        columns += [f"IF({column} IS NOT NULL, {quoted_text(field.name)}, NULL)", _hashed(column, field.dataType)]
    return f"xxhash64({', '.join(columns)})", f"xxhash64({', '.join(['1', *columns])})"


def _hashed(column: str, kind: DataType, depth: int = 0) -> str:
    """Return SQL for a value in a form whose hash differs for different values, which covers nulls, lengths and the
    order of maps. depth: the number of enclosing functions of an item."""
    from pyspark.sql import types as T

    def entry(value: str, inner: DataType, depth: int) -> list[str]:
        return [f"{value} IS NULL", _hashed(value, inner, depth)]

    if isinstance(kind, T.ByteType | T.ShortType | T.IntegerType):
        return f"CAST({column} AS BIGINT)"
    if isinstance(kind, T.FloatType):
        return f"CAST({column} AS DOUBLE)"
    if isinstance(kind, T.DecimalType):
        return f"CAST({column} AS DECIMAL(38, {kind.scale}))"
    item = f"_item{depth}"
    if isinstance(kind, T.ArrayType):
        content = ", ".join(entry(item, kind.elementType, depth + 1))
        return f"struct(size({column}), transform({column}, {item} -> struct({content})))"
    if isinstance(kind, T.MapType):  # two equal maps may hold their entries in two orders
        parts = [(f"{item}['key']", kind.keyType), (f"{item}['value']", kind.valueType)]
        content = ", ".join(itertools.chain(*(entry(value, inner, depth + 1) for value, inner in parts)))
        entries = f"transform(map_entries({column}), {item} -> struct({content}))"
        return f"struct(size({column}), array_sort({entries}))"
    if isinstance(kind, T.StructType):
        fields: list[str] = []
        for field in kind.fields:
            fields += entry(field_of(column, field.name), field.dataType, depth)
        return f"struct({', '.join(fields)})" if fields else "0"
    if isinstance(kind, T.VariantType):
        return f"to_json({column})"
    return column


def rows_hash(frame: DataFrame) -> str:
    """Return the hash of a frame's rows as a multiset, and of the names and types of its columns. One query."""
    sums = [f"CAST(sum(CAST({half} AS DECIMAL(38, 0))) AS STRING)" for half in HALVES]
    (row,) = frame.selectExpr(*row_halves(frame)).selectExpr("CAST(count(*) AS STRING)", *sums).collect()
    columns = sorted(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)
    return sha256("\n".join([*columns, *map(str, row)]).encode()).hexdigest()
