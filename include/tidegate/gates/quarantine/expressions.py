"""Checks SQL expressions that are to correct rows, before they are recorded.

Spark itself resolves them, over the columns and types of the quarantined rows and without reading any. What it would
accept in a query, but is no function of one row, is refused: aggregates, subqueries, and whatever differs from one
attempt to the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField

__all__ = ["first_line", "refuse_expressions"]

_OF_THE_MOMENT = (
    *("current_date", "current_time", "current_timestamp", "curdate", "localtimestamp", "now"),
    *("current_user", "session_user", "user"),
)
"""Functions whose value depends on when, or by whom, a query is run. Spark considers them the same throughout it."""
_WITHOUT_PARENTHESES = {"current_date", "current_time", "current_timestamp", "localtimestamp"} | {
    "current_user",
    "session_user",
    "user",
}
_NOT_CODE = re.compile(r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/""", re.DOTALL)


def refuse_expressions(spark: SparkSession, fields: Sequence[StructField], expressions: Mapping[str, str]) -> None:
    """Raise Invalid for an expression that is no function of one quarantined row, or of another type than its column.

    fields: the rows' own columns. expressions: by column, which exists.
    """
    from pyspark.sql.types import StructType

    rows = spark.createDataFrame([], StructType(list(fields)))
    by_name = {field.name: field for field in fields}
    for column, sql in expressions.items():
        kind = _type_of(rows, column, sql)
        _refuse_more_than_a_row(rows, column, sql)
        _refuse_the_moment(column, sql, {name.casefold() for name in by_name})
        wanted = by_name[column].dataType
        if not _fits(kind, wanted):
            short = _shorten_sql(sql)
            raise Invalid(
                f"column {column!r} is {wanted.simpleString()}, and {short} is {kind.simpleString()}",
                expected=f"an expression of type {wanted.simpleString()}",
                help=f"convert it, as in: {column} = cast({short} AS {wanted.simpleString().upper()}); rows for "
                "which that fails stay in quarantine",
                reason="BAD_SQL",
            )


def _type_of(rows: DataFrame, column: str, sql: str) -> DataType:
    """Return the type of an expression. Raise Invalid if Spark cannot resolve it."""
    from pyspark.sql import functions as f

    kind: list[DataType] = []
    error = _refusal(lambda: kind.append(rows.select(f.expr(sql).alias("value")).schema["value"].dataType))
    if error is None:
        return kind[0]
    help = "a text is written in quotes, as in: country = 'DE'. A constant needs none without the spaces around the "
    help += "equals sign, as in: country=DE"
    raise Invalid(
        f"column {column!r} cannot be {_shorten_sql(sql)}: {first_line(error)}",
        expected=f"a Spark SQL expression over the columns {', '.join(rows.columns)}",
        help=help,
        reason="BAD_SQL",
    )


def _refuse_more_than_a_row(rows: DataFrame, column: str, sql: str) -> None:
    """Raise Invalid for aggregates, window functions, generators and subqueries, and for what Spark calls
    nondeterministic. It refuses all of these itself in some place or other."""
    from pyspark.sql import functions as f

    if re.search(r"(?<![\w.])over\s*\(", _NOT_CODE.sub(" '' ", sql), re.IGNORECASE):
        raise _not_of_a_row(column, sql, "is about several rows")
    in_aggregate = _refusal(lambda: rows.agg(f.count(f.expr(sql))).schema)
    in_lambda = _refusal(lambda: rows.select(f.expr(f"transform(array(1), _tidegate_x -> ({sql}\n))")).schema)
    error = in_aggregate or in_lambda
    if error is None:
        return
    what = "is no expression over the values of one row"
    if "NONDETERMINISTIC" in _condition(error).replace("_", ""):
        what = "has another value each time that it is computed"
    elif "SUBQUERY" in _condition(error):
        what = "reads other rows, by a subquery"
    elif "AGGREGATE" in _condition(error) or "WINDOW" in _condition(error):
        what = "is about several rows"
    raise _not_of_a_row(column, sql, what)


def _not_of_a_row(column: str, sql: str, what: str) -> Invalid:
    return Invalid(
        f"column {column!r} cannot be {_shorten_sql(sql)}, which {what}",
        expected="an expression over the values of one row, the same whenever it is computed",
        help="an attempt that fails is repeated, and must release the same rows: use the row's own columns, and "
        "functions of these only",
        reason="BAD_SQL",
    )


def _refuse_the_moment(column: str, sql: str, columns: set[str]) -> None:
    code = _NOT_CODE.sub(" '' ", sql).casefold()
    for name in _OF_THE_MOMENT:
        is_called = re.search(rf"(?<![\w.]){name}\s*\(", code) is not None
        is_named = name in _WITHOUT_PARENTHESES and name not in columns
        if is_called or (is_named and re.search(rf"(?<![\w.]){name}(?![\w.])", code)):
            raise _of_the_moment(column, sql, name)
    if re.search(r"(?<![\w.])unix_timestamp\s*\(\s*\)", code):
        raise _of_the_moment(column, sql, "unix_timestamp")


def _of_the_moment(column: str, sql: str, name: str) -> Invalid:
    return Invalid(
        f"column {column!r} cannot be {_shorten_sql(sql)}: {name} has another value each time that it is computed",
        expected="an expression over the values of one row, the same whenever it is computed",
        help="write the time or the name itself, as in: corrected_at = timestamp'2026-01-31 12:00:00Z'",
        reason="BAD_SQL",
    )


def _fits(kind: DataType, wanted: DataType) -> bool:
    """Return whether a value of one type may be stored in a column of the other, as Spark does by its ANSI rules."""
    from pyspark.sql.types import (
        AtomicType,
        DateType,
        NullType,
        NumericType,
        StringType,
        TimestampNTZType,
        TimestampType,
    )

    moments = (DateType, TimestampType, TimestampNTZType)
    return (
        kind.simpleString() == wanted.simpleString()
        or isinstance(kind, NullType)
        or (isinstance(kind, NumericType) and isinstance(wanted, NumericType))
        or (isinstance(kind, moments) and isinstance(wanted, moments))
        or (isinstance(kind, AtomicType) and isinstance(wanted, StringType))
    )


def _refusal(resolve: Callable[[], Any]) -> Exception | None:
    """Return the error with which Spark refuses to resolve an expression, or None."""
    from pyspark.errors import AnalysisException

    try:
        resolve()
    except AnalysisException as error:
        return error
    return None


def _condition(error: Exception) -> str:
    """Return Spark's name of an error."""
    name = getattr(error, "getCondition", lambda: None)() or ""
    return name or first_line(error)


def first_line(error: Exception) -> str:
    """Return what Spark says first of an error."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def _shorten_sql(sql: str) -> str:
    return sql if len(sql) <= 200 else f"{sql[:199]}…"
