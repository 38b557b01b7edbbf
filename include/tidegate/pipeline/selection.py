"""Columns computed in SQL, of some rows: a stage like any other, without a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["refuse_unfit", "selected", "selection", "sql_of"]

_OF_A_ROW = "_tidegate_row"


def selection(where: str | None, columns: Sequence[str]) -> Callable[[DataFrame], DataFrame]:
    """Return the function of a stage. Its fingerprint has the texts in it, unlike that of a function within another."""
    return partial(selected, where=where, columns=tuple(columns))


def selected(rows: DataFrame, *, where: str | None, columns: Sequence[str]) -> DataFrame:
    """Return the columns of those rows for which the condition is true."""
    chosen = rows if where is None else rows.where(where)
    if list(columns) == ["*"]:
        return chosen
    if not any("(" in text for text in columns):
        return chosen.selectExpr(*columns)
    # Beside a column of the row Spark refuses what is computed of all rows, such as sum(amount).
    first = f"{quoted(rows.columns[0])} AS {_OF_A_ROW}"
    return chosen.selectExpr(first, *columns).drop(_OF_A_ROW)


def sql_of(function: Callable[..., Any]) -> str | None:
    """Return the SQL of a stage that is a selection, for errors. None: it is another function."""
    if not isinstance(function, partial) or function.func is not selected:
        return None
    columns, where = function.keywords["columns"], function.keywords["where"]
    return ", ".join(columns) + (f" where {where}" if where is not None else "")


def refuse_unfit(subject: str, texts: Sequence[Any]) -> None:
    """Raise Invalid if one of them cannot be SQL. subject: the call, as in "select of 'orders'"."""
    if not texts:
        raise Invalid(
            f"{subject} has neither columns nor a condition",
            expected='at least one column, or where="…"',
            help='name the columns, as in select("id", "amount * 2 AS twice")',
            reason="BAD_PIPELINE",
        )
    if unfit := [text for text in texts if not isinstance(text, str) or not text.strip()]:
        raise Invalid(
            f"{subject} has {', '.join(map(repr, unfit))}",
            expected='SQL as text, such as "amount * 2 AS twice" or where="amount > 0"',
            help="write SQL, or use @pipeline.stage for a function of DataFrames",
            reason="BAD_PIPELINE",
        )
