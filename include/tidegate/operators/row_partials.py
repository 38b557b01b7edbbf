"""Aggregates that are sums and extremes throughout: each input row is turned into partial values, to be merged as such.

Then reducing the batch and merging it with the state are the same thing, done in one go by `KeyedState.merge`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.operators.functions import Function
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["RowPartials", "lift", "merges_of"]

_PARTIAL = re.compile(r"(sum|min|max|count|count_if)\((.*)\)", re.DOTALL)
_MERGE = re.compile(r"(sum|min|max)\(\{p\w*\}\)")


@dataclass(frozen=True)
class RowPartials:
    """Rows with the keys and a column per partial value, and the operation that merges each."""

    rows: DataFrame
    ops: dict[str, str]
    fixed: dict[str, int] = field(default_factory=dict)
    """The columns with the same value in all rows."""


def merges_of(functions: Sequence[Function]) -> dict[str, str] | None:
    """Return partial value's column → "sum", "min" or "max", for `KeyedState.merge`; None: not all functions are
    such."""
    ops: dict[str, str] = {}
    for function in functions:
        for suffix, text in function.shape.merges.items():
            if function.distinct_part or (merge := _MERGE.fullmatch(text)) is None:
                return None
            ops[f"{function.name}{suffix}"] = merge[1]
    return ops


def lift(
    functions: Sequence[Function], rows: DataFrame, by: Sequence[str], before: Sequence[Column] = ()
) -> RowPartials | None:
    """Return the rows as partial values; None: some function has another shape. before: keys that are no columns
    yet."""
    from pyspark.sql import functions as F

    ops = merges_of(functions)
    texts: dict[str, str] = {}
    for function in functions:
        for suffix, partial in function.shape.partials.items():
            text = _row(partial, function.argument)
            if text is None:
                return None
            texts[f"{function.name}{suffix}"] = text
    if not ops or ops.keys() != texts.keys():
        return None
    partials = rows.groupBy(*map(quoted, by)).agg(*(column for f in functions for column in f.partials()))
    types = {field.name: field.dataType.simpleString() for field in partials.schema.fields}
    columns = (F.expr(text).cast(types[name]).alias(name) for name, text in texts.items())
    fixed = {function.name: 1 for function in functions if function.call.name == "count" and function.argument == "*"}
    return RowPartials(rows.select(*before, *map(quoted, by), *columns), ops, fixed)


def _row(partial: str, argument: str) -> str | None:
    """Return the partial value of a single row; None: it is not known."""
    match = _PARTIAL.fullmatch(partial)
    if match is None or not _is_one(argument):
        return None
    inner = match[2].replace("{x}", f"({argument})") if argument != "*" else "1"
    if "{" in inner or "(" in match[2].replace("CAST({x} AS DOUBLE)", ""):
        return None
    if match[1] == "count":
        return f"CASE WHEN {inner} IS NOT NULL THEN 1 ELSE 0 END"
    return f"CASE WHEN {inner} THEN 1 ELSE 0 END" if match[1] == "count_if" else inner


def _is_one(argument: str) -> bool:
    """Return whether it is one expression, without DISTINCT before it or FILTER after it."""
    if not argument.strip() or re.match(r"(distinct|all)\b", argument, re.IGNORECASE):
        return False
    depth, quote = 0, ""
    for letter in argument:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        if depth < 0 or (letter == "," and not depth and not quote):
            return False
    return depth == 0 and not quote
