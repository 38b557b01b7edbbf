"""SQL aggregates that gates compute of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["need_number"]

_VALUE = "_tidegate_value"


def need_number(frame: DataFrame, function: str, gate: str) -> None:
    """Raise Invalid unless the function is an aggregate that Spark can compute of these rows, and a number."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f
    from pyspark.sql import types as T

    try:
        (field,) = frame.groupBy().agg(f.expr(function).alias(_VALUE)).schema.fields
    except (AnalysisException, ParseException) as error:
        message = str(error).strip().splitlines()[0]
        raise Invalid(
            f"gate {gate!r}: {function!r} cannot be computed: {message}",
            expected=f"an SQL aggregate of {', '.join(frame.columns)}",
            help='correct it, such as "avg(amount)" or "count_if(amount < 0) / count(*)"',
            reason="BAD_GATE",
        ) from error
    if not isinstance(field.dataType, T.NumericType):
        raise Invalid(
            f"gate {gate!r}: {function!r} is a {field.dataType.simpleString()}",
            expected="an aggregate that returns a number",
            help='compare numbers: of a time, for example, "unix_seconds(max(at))"',
            reason="BAD_GATE",
        )
