"""The stage of `Stream.select` and `Stream.where`, which is made of SQL expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.operators.retractions.key import ChangelogKey
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["names_of", "outputs_of", "refuse_unfit", "selected", "selection", "sql_of"]

_OF_A_ROW = "_tidegate_row"


def selection(where: str | None, columns: Sequence[str]) -> Callable[[DataFrame], DataFrame]:
    """Return the function of a stage. It is a partial, so that its fingerprint covers the texts."""
    return partial(selected, where=where, columns=tuple(columns))


_EXPRESSIONS = "_tidegate_expressions"


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


def with_expressions(function: Callable[..., Any], of: Callable[[str], str | None]) -> Callable[..., Any]:
    """Note beside a stage's function by which SQL it computes a column, for the lineage of columns.

    of: returns that SQL, "" if there is no such column, or None if it is unknown.
    """
    vars(function)[_EXPRESSIONS] = of
    return function


def expression_of(function: Callable[..., Any]) -> Callable[[str], str | None] | None:
    """Return what `with_expressions` has noted, if anything."""
    of: Callable[[str], str | None] | None = getattr(function, _EXPRESSIONS, None)
    return of


def sql_of(function: Callable[..., Any]) -> str | None:
    """Return the SQL of a stage's function if it is a selection, for errors."""
    if not isinstance(function, partial) or function.func is not selected:
        return None
    columns, where = function.keywords["columns"], function.keywords["where"]
    return ", ".join(columns) + (f" where {where}" if where is not None else "")


def refuse_unfit(subject: str, texts: Sequence[Any]) -> None:
    """Raise Invalid unless all texts may be SQL. subject: the call, as in "select of 'orders'"."""
    if not texts:
        raise Invalid(
            f"{subject} has neither columns nor a condition",
            expected='at least one column, or where="…"',
            help='name the columns, as in select("id", "amount * 2 AS twice")',
            reason="BAD_PIPELINE",
        )
    unfit = [text for text in texts if not isinstance(text, str) or not text.strip()]
    if unfit:
        raise Invalid(
            f"{subject} has {', '.join(map(repr, unfit))}",
            expected='SQL as text, such as "amount * 2 AS twice" or where="amount > 0"',
            help="write SQL, or use @pipeline.stage for a function of DataFrames",
            reason="BAD_PIPELINE",
        )


_PLAIN = re.compile(r"\s*(?P<name>`[^`]+`|[^\W\d]\w*)(?:\s+(?:as\s+)?(?P<alias>`[^`]+`|[^\W\d]\w*))?\s*", re.IGNORECASE)
"""Matches a column with an optional alias."""
_ALL = re.compile(r"\s*\*(?:\s+except\s*\(([^()]*)\))?\s*", re.IGNORECASE)
"""Matches * with an optional EXCEPT."""


def names_of(function: Callable[..., Any], key: ChangelogKey) -> dict[str, set[str]] | None:
    """Return the names that the columns of a key have after a selection.

    None for other functions, and for expressions that may emit several rows for one.
    """
    if not isinstance(function, partial) or function.func is not selected:
        return None
    key_columns = set[str]().union(*key)
    names: dict[str, set[str]] = {}
    for text in function.keywords["columns"]:
        star, plain = _ALL.fullmatch(text), _PLAIN.fullmatch(text)
        if star is not None:
            excluded = {name.strip().strip("`").casefold() for name in (star[1] or "").split(",")}
            for name in key_columns - excluded:
                names.setdefault(name, set()).add(name)
        elif "(" in text:
            return None
        elif plain is not None:
            name = plain["name"].strip("`")
            alias = (plain["alias"] or "").strip("`")
            names.setdefault(name.casefold(), set()).add(alias or name)
    return names


_OUTPUT = re.compile(r"(?:^\s*|\bas\s+)(`[^`]+`|\w+)\s*$", re.IGNORECASE)
"""Finds the name of an expression's result."""


def outputs_of(function: Callable[..., Any]) -> set[str] | None:
    """Return the columns of a selection, in lower case. None for other functions, or if a column has no name."""
    if not isinstance(function, partial) or function.func is not selected:
        return None
    columns = set()
    for text in function.keywords["columns"]:
        match = _OUTPUT.search(text)
        if match is None:
            return None
        columns.add(match[1].strip("`").casefold())
    return columns
