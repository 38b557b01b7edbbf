"""The types of Parquet files, as their footers give them, and those as which Spark reads them."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["fits"]

# The Spark types as which a column of a Parquet file can be read without loss, by the name of its Arrow type.
_LOSSLESS_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "bool": ("boolean",),
    "int8": ("tinyint", "smallint", "int", "bigint", "double"),
    "int16": ("smallint", "int", "bigint", "double"),
    "int32": ("int", "bigint", "double"),
    "int64": ("bigint",),
    "uint8": ("smallint", "int", "bigint"),
    "uint16": ("int", "bigint"),
    "uint32": ("bigint",),
    "uint64": ("decimal(20,0)",),
    "float": ("float", "double"),
    "double": ("double",),
    "string": ("string", "binary"),
    "large_string": ("string", "binary"),
    "string_view": ("string", "binary"),
    "binary": ("binary", "string"),
    "large_binary": ("binary", "string"),
    "date32[day]": ("date", "timestamp_ntz"),
    "null": (),
}
_DECIMAL: Final = re.compile(r"decimal(?:128|256|32|64)?\((\d+),\s*(-?\d+)\)")


def fits(arrow: Any, spark: str) -> bool:
    """Return whether Spark reads an Arrow type, from a Parquet footer, as the type `spark` without loss.

    Only the outermost part of nested types is compared.
    """
    text = str(arrow)
    match = _DECIMAL.fullmatch(text)
    if match:
        declared = _DECIMAL.fullmatch(spark)
        if declared is None:
            return False
        precision, scale = int(match[1]), int(match[2])
        declared_precision, declared_scale = int(declared[1]), int(declared[2])
        return declared_scale >= scale and declared_precision - declared_scale >= precision - scale
    if text.startswith("timestamp["):
        if text.startswith("timestamp[ns"):
            return False
        return spark == "timestamp" or (spark == "timestamp_ntz" and "tz=" not in text)
    if text.startswith("dictionary<"):
        return fits(arrow.value_type, spark)
    if text.startswith(("list<", "large_list<", "fixed_size_list<")):
        return spark.startswith("array<")
    for prefix in ("struct<", "map<"):
        if text.startswith(prefix):
            return spark.startswith(prefix)
    if spark.startswith(("char(", "varchar(")):
        return "string" in text
    match = _DECIMAL.fullmatch(spark)
    if match and text in ("int32", "int64"):
        return int(match[1]) - int(match[2]) >= (10 if text == "int32" else 20)
    return spark in _LOSSLESS_TYPES.get(text, ())
