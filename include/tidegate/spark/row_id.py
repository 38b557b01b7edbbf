"""Identifies rows by all of their content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.records.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["row_id"]


def row_id(frame: DataFrame) -> Column:
    """Return 128 bits that identify a row by all of its content, as text: the same in every attempt and checkpoint.

    It stays the same if columns are added that are null, change places, or become wider.
    """
    from pyspark.sql import functions as F

    columns = []
    for field in sorted(frame.schema.fields, key=lambda field: field.name):
        column = F.col(quoted(field.name))
        # Null leaves a hash as it was: so a column with a value adds its name, too.
        columns += [F.when(column.isNotNull(), F.lit(field.name)), _hashed(column, field.dataType)]
    first, second = F.xxhash64(*columns), F.xxhash64(F.lit(1), *columns)
    return F.concat(F.lpad(F.hex(first), 16, "0"), F.lpad(F.hex(second), 16, "0"))


def _hashed(column: Column, kind: DataType) -> Column:
    """Return a value in a form whose hashes differ for different values: covers nulls, lengths and the order of
    maps."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    def entry(value: Column, inner: DataType) -> list[Column]:
        return [value.isNull(), _hashed(value, inner)]

    if isinstance(kind, T.ByteType | T.ShortType | T.IntegerType):
        return column.cast("long")
    if isinstance(kind, T.FloatType):
        return column.cast("double")
    if isinstance(kind, T.DecimalType):
        return column.cast(T.DecimalType(38, kind.scale))
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        return F.struct(F.size(column), F.transform(column, lambda item: F.struct(*entry(item, inner))))
    if isinstance(kind, T.MapType):  # two equal maps may hold their entries in two orders
        key, value = kind.keyType, kind.valueType
        entries = F.transform(
            F.map_entries(column), lambda item: F.struct(*entry(item["key"], key), *entry(item["value"], value))
        )
        return F.struct(F.size(column), F.array_sort(entries))
    if isinstance(kind, T.StructType):
        fields = [part for f in kind.fields for part in entry(column.getField(f.name), f.dataType)]
        return F.struct(*fields) if fields else F.lit(0)
    return F.to_json(column) if isinstance(kind, T.VariantType) else column
