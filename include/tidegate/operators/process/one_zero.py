"""Replaces -0.0 by 0.0 in keys, as Spark does in groups and joins.

Spark's `cogroup` does not, and fails for a key that is 0.0 on one side and -0.0 on the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.records.names import field_of, quoted, quoted_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["with_one_zero"]


def with_one_zero(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Replace -0.0 in these columns at any depth. Without columns that may have it, the frame itself is returned."""
    from pyspark.sql import functions as F

    changed = {}
    for name in names:
        kind = frame.schema[name].dataType
        if _has_reals(kind):
            changed[name] = F.expr(_expression(quoted(name), kind, itertools.count()))
    return frame.withColumns(changed) if changed else frame


def _has_reals(kind: Any) -> bool:
    from pyspark.sql import types as T

    if isinstance(kind, T.ArrayType):
        return _has_reals(kind.elementType)
    if isinstance(kind, T.StructType):
        return any(_has_reals(field.dataType) for field in kind.fields)
    return isinstance(kind, T.FloatType | T.DoubleType)


def _expression(value: str, kind: Any, numbers: Any) -> str:
    """Return SQL for a value of this type. numbers: for unique names of variables."""
    from pyspark.sql import types as T

    if isinstance(kind, T.ArrayType) and _has_reals(kind):
        element = f"e{next(numbers)}"
        return f"transform({value}, {element} -> {_expression(element, kind.elementType, numbers)})"
    if isinstance(kind, T.StructType) and _has_reals(kind):
        fields = []
        for field in kind.fields:
            inner = _expression(field_of(value, field.name), field.dataType, numbers)
            fields.append(f"{quoted_text(field.name)}, {inner}")
        return f"if({value} IS NULL, NULL, named_struct({', '.join(fields)}))"
    if isinstance(kind, T.FloatType | T.DoubleType):
        return f"if({value} = 0, CAST(0 AS {kind.simpleString()}), {value})"
    return value
