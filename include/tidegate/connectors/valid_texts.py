"""Texts on their way into JSON: Spark writes bytes that are not valid UTF-8 as U+FFFD there, without a word.

So two keys would become one, and a value another. Rows with such texts are refused, however deep these lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.delta.files.partitions import refuse_rows
from tidegate.records.names import field_of, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

__all__ = ["columns_for_json", "holds_invalid_text"]


def columns_for_json(frame: DataFrame, names: Iterable[str]) -> list[Column]:
    """Return these columns of a frame. A row with a text that JSON cannot hold fails the write."""
    from pyspark.sql import functions as F

    columns = []
    for name in names:
        column = F.col(quoted(name))
        if condition := holds_invalid_text(quoted(name), frame.schema[name].dataType.jsonValue()):
            why = f"column {name!r} holds text that is not valid UTF-8, which JSON cannot hold"
            column = refuse_rows(column, F.expr(condition), why).alias(name)
        columns.append(column)
    return columns


def holds_invalid_text(value: str, kind: Any, depth: int = 0) -> str:
    """Return SQL that is true if a value holds such a text, and otherwise false. Empty: values of this type hold none.

    kind: the type in Spark's JSON form. depth: the number of functions of an item that it is in.
    """
    if isinstance(kind, str):
        is_text = kind.startswith(("string", "varchar", "char"))
        return f"coalesce(NOT is_valid_utf8({value}), false)" if is_text else ""
    if kind["type"] == "struct":
        fields = ((field_of(value, field["name"]), field["type"]) for field in kind["fields"])
        return " OR ".join(filter(None, (holds_invalid_text(*field, depth) for field in fields)))
    if kind["type"] == "map":
        parts = ((f"map_keys({value})", kind["keyType"]), (f"map_values({value})", kind["valueType"]))
        lists = (holds_invalid_text(part, {"type": "array", "elementType": inner}, depth) for part, inner in parts)
        return " OR ".join(filter(None, lists))
    item = f"_item{depth}"
    inner = holds_invalid_text(item, kind["elementType"], depth + 1) if kind["type"] == "array" else ""
    return f"coalesce(exists({value}, {item} -> {inner}), false)" if inner else ""
