"""One zero: in keys -0.0 becomes 0.0, as Spark's own groups and joins have it.

Spark's `cogroup` does without, and fails for a key that is 0.0 on one side and -0.0 on the other.
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
    """Return the frame with these columns free of -0.0, at any depth. A frame that cannot have one is returned as it
    is."""
    from pyspark.sql import functions as F

    changed = {
        name: F.expr(_expression(quoted(name), frame.schema[name].dataType, itertools.count()))
        for name in names
        if _has_reals(frame.schema[name].dataType)
    }
    return frame.withColumns(changed) if changed else frame


def _has_reals(kind: Any) -> bool:
    from pyspark.sql import types as T

    if isinstance(kind, T.ArrayType):
        return _has_reals(kind.elementType)
    if isinstance(kind, T.StructType):
        return any(_has_reals(field.dataType) for field in kind.fields)
    return isinstance(kind, T.FloatType | T.DoubleType)


def _expression(value: str, kind: Any, numbers: Any) -> str:
    """Return SQL for a value of this type. numbers: so that each variable has a name of its own."""
    from pyspark.sql import types as T

    if isinstance(kind, T.ArrayType) and _has_reals(kind):
        element = f"e{next(numbers)}"
        return f"transform({value}, {element} -> {_expression(element, kind.elementType, numbers)})"
    if isinstance(kind, T.StructType) and _has_reals(kind):
        fields = ", ".join(
            f"{quoted_text(field.name)}, {_expression(field_of(value, field.name), field.dataType, numbers)}"
            for field in kind.fields
        )
        return f"if({value} IS NULL, NULL, named_struct({fields}))"
    if isinstance(kind, T.FloatType | T.DoubleType):
        return f"if({value} = 0, CAST(0 AS {kind.simpleString()}), {value})"
    return value
