"""SQL aggregates that gates compute of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.connectors.unrepeatable import unrepeatable_in_text
from tidegate.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["need_number", "repeatable_problems"]

_VALUES = "_tidegate_values"


def repeatable_problems(name: str, function: object) -> list[str]:
    """Return why a gate cannot use an aggregate: attempts at a checkpoint would not find the same value."""
    called = unrepeatable_in_text(function) if isinstance(function, str) else []
    return [f"{name} is {function!r}: {call} has another value each time that it is computed" for call in called]


def need_number(frame: DataFrame, function: str, gate: str, parameter: str = "") -> None:
    """Raise Invalid unless the function is an aggregate that Spark can compute of these rows, and one number.

    parameter: the gate's argument, if the rows are not those that it judges.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f
    from pyspark.sql import types as T

    where = f"gate {gate!r}: {parameter} " if parameter else f"gate {gate!r}: "
    try:  # in an array, Spark refuses what returns several rows, such as explode
        (field,) = frame.groupBy().agg(f.array(f.expr(function)).alias(_VALUES)).schema.fields
    except (AnalysisException, ParseException) as error:
        message = str(error).strip().splitlines()[0]
        raise Invalid(
            f"{where}{function!r} cannot be computed: {message}",
            expected=f"an SQL aggregate of {', '.join(frame.columns)}",
            help='correct it, such as "avg(amount)" or "count_if(amount < 0) / count(*)"',
            reason="BAD_GATE",
        ) from error
    assert isinstance(field.dataType, T.ArrayType)
    kind = field.dataType.elementType
    if not isinstance(kind, T.NumericType):
        raise Invalid(
            f"{where}{function!r} is a {kind.simpleString()}",
            expected="an aggregate that returns a number",
            help='compare numbers: of a time, for example, "unix_seconds(max(at))"',
            reason="BAD_GATE",
        )
