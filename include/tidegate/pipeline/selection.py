"""Columns computed in SQL, of some rows: a stage like any other, without a function of the user's."""

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


_PLAIN = re.compile(r"\s*(?P<name>`[^`]+`|[^\W\d]\w*)(?:\s+(?:as\s+)?(?P<alias>`[^`]+`|[^\W\d]\w*))?\s*", re.IGNORECASE)
"""Matches a column, by its own name or another one."""
_ALL = re.compile(r"\s*\*(?:\s+except\s*\(([^()]*)\))?\s*", re.IGNORECASE)
"""Matches all columns, or all but some."""


def names_of(function: Callable[..., Any], key: ChangelogKey) -> dict[str, set[str]] | None:
    """Return the names that the columns of a key have behind a stage that is a selection. None: its text does not tell,
    as what it computes may make several rows of one."""
    if not isinstance(function, partial) or function.func is not selected:
        return None
    names: dict[str, set[str]] = {}
    for text in function.keywords["columns"]:
        if (rest := _ALL.fullmatch(text)) is not None:
            left_out = {name.strip().strip("`").casefold() for name in (rest[1] or "").split(",")}
            for name in {name for column in key for name in column} - left_out:
                names.setdefault(name, set()).add(name)
        elif "(" in text:
            return None
        elif (match := _PLAIN.fullmatch(text)) is not None:
            name, alias = (part and part.strip("`") for part in match.group("name", "alias"))
            names.setdefault(name.casefold(), set()).add(alias or name)
    return names


_OUTPUT = re.compile(r"(?:^\s*|\bas\s+)(`[^`]+`|\w+)\s*$", re.IGNORECASE)
"""Finds the name of what a text computes, if it has one."""


def outputs_of(function: Callable[..., Any]) -> set[str] | None:
    """Return the columns of a stage that is a selection, in lower case. None: its text does not tell all of them."""
    if not isinstance(function, partial) or function.func is not selected:
        return None
    found = [_OUTPUT.search(text) for text in function.keywords["columns"]]
    return {match[1].strip("`").casefold() for match in found if match is not None} if all(found) else None
