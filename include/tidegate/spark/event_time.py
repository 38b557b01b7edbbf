"""Event time in Spark: microseconds since 1970 in UTC, so that it does not depend on the session's time zone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.config.keys import seconds_in
from tidegate.errors import Invalid
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["duration_problem", "micros_in", "moment", "time_micros", "time_micros_sql", "time_problems"]


def micros_in(duration: object) -> int:
    """Return the microseconds of a duration such as "10 min"."""
    return round(seconds_in(duration) * 1_000_000)


def duration_problem(name: str, value: object, minimum: int = 1) -> str | None:
    """Return what is wrong with a duration of at least `minimum` microseconds."""
    expected = 'expected a duration such as "90 s", "10 min", "1 hour" or "1 day"'
    try:
        if micros_in(value) >= minimum:
            return None
        return f"{name}={value!r} is too short: {expected}"
    except ValueError as error:
        return f"{name}={value!r}{f' ({error})' if str(error) else ''}: {expected}"


def moment(micros: int, column: str) -> str:
    """Return SQL for a moment that changes with every checkpoint, to compare a column with.

    A plain number would become part of the code that Spark generates, which would be compiled again each time and never
    get warm. An array is passed to the code; and as its index depends on the row, Spark does not evaluate it
    beforehand.
    """
    return f"get(array({micros}L, {micros}L), CAST({column} IS NULL AS INT))"


def time_problems(columns: Sequence[str], chosen: object, whose: str = "its") -> list[str]:
    """Return the problems of event time for an operator that needs it. columns: those that the sources declare."""
    if not columns:
        return [f'none of {whose} sources has event time: name the column, pipeline.source(…, event_time="at")']
    if chosen is None and len(columns) > 1:
        return [f'{whose} sources have several columns of event time ({", ".join(columns)}): name one, event_time="…"']
    if chosen is not None and (not isinstance(chosen, str) or not chosen):
        return [f"event_time={chosen!r}: name a column"]
    return []


def time_micros(frame: DataFrame, column: str, subject: str) -> Column:
    """Return the frame's event time in microseconds. Raise Invalid if the column is missing or is not a time."""
    from pyspark.sql import functions as F

    return F.expr(time_micros_sql(frame, column, subject))


def time_micros_sql(frame: DataFrame, column: str, subject: str) -> str:
    """Return the same as SQL. A date means its first moment in UTC; a timestamp without time zone is read as UTC."""
    from pyspark.sql import types as T

    fields = {field.name.lower(): field for field in frame.schema.fields}
    field = fields.get(column.lower())
    if field is None:
        raise Invalid(
            f"{subject} uses event-time column {column!r}, but its input has no such column",
            expected=f"one of {', '.join(frame.columns)}",
            help='name the column that holds the time, event_time="…"',
            reason="NO_EVENT_TIME",
        )
    if not isinstance(field.dataType, T.TimestampType | T.TimestampNTZType | T.DateType):
        raise Invalid(
            f"{subject} uses event-time column {column!r}, which is of type {field.dataType.simpleString()}",
            expected="a timestamp or a date",
            help=f"read it as one, or convert it in a stage, as in withColumn({column!r}, to_timestamp(…))",
            reason="NO_EVENT_TIME",
        )
    return f"unix_micros(CAST({quoted(field.name)} AS TIMESTAMP))"
