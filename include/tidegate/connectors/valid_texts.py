"""Refuses texts that are not valid UTF-8 in lines of JSON and CSV, where Spark silently replaces bytes by U+FFFD.

Values would change, and two keys could become equal. Texts nested in structs, maps and arrays are checked, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.delta.files.partitions import refuse_rows
from tidegate.records.names import field_of, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

__all__ = ["columns_of_valid_text", "invalid_text_condition", "invalid_text_problem"]


def columns_of_valid_text(frame: DataFrame, names: Iterable[str]) -> list[Column]:
    """Return these columns of a frame. A row with a text that a line of JSON or CSV cannot hold fails the write."""
    from pyspark.sql import functions as F

    columns = []
    for name in names:
        column = F.col(quoted(name))
        if condition := invalid_text_condition(quoted(name), frame.schema[name].dataType.jsonValue()):
            column = refuse_rows(column, F.expr(condition), invalid_text_problem(name)).alias(name)
        columns.append(column)
    return columns


def invalid_text_problem(name: str) -> str:
    """Return what is wrong with a row whose column holds such a text."""
    return f"column {name!r} holds text that is not valid UTF-8, which JSON and CSV cannot hold"


def invalid_text_condition(value: str, kind: Any, depth: int = 0) -> str:
    """Return a SQL condition that is true if a value holds an invalid text, else false. Empty if its type has no texts.

    kind: the type in Spark's JSON form. depth: the number of enclosing lambda functions, to name their variables.
    """
    if isinstance(kind, str):
        is_text = kind.startswith(("string", "varchar", "char"))
        if is_text:
            return f"coalesce(NOT is_valid_utf8({value}), false)"
        return ""
    if kind["type"] == "struct":
        conditions = []
        for field in kind["fields"]:
            conditions.append(invalid_text_condition(field_of(value, field["name"]), field["type"], depth))
        return " OR ".join(filter(None, conditions))
    if kind["type"] == "map":
        keys = invalid_text_condition(f"map_keys({value})", {"type": "array", "elementType": kind["keyType"]}, depth)
        values = invalid_text_condition(
            f"map_values({value})", {"type": "array", "elementType": kind["valueType"]}, depth
        )
        return " OR ".join(filter(None, (keys, values)))
    if kind["type"] != "array":
        return ""
    item = f"_item{depth}"
    condition = invalid_text_condition(item, kind["elementType"], depth + 1)
    if condition:
        return f"coalesce(exists({value}, {item} -> {condition}), false)"
    return ""
