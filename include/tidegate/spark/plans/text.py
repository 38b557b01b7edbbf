"""Reads Spark's analysed plans as text: Spark prints them alike with and without Spark Connect.

    Project [id#12L, (amount#14 * 2) AS twice#31]
    +- Join Inner, (id#12L = id#37L)
       :- SubqueryAlias orders
       :  +- ...
       +- SubqueryAlias customers
          +- ...

Values in expressions are printed without quotes, so a text may look like anything. Whoever reads an expression has to
check every name and id in it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PlanNode", "analysed_plan", "items_of", "tree_of"]

_FIELDS: Final = "spark.sql.debug.maxToStringFields"
_ALL_FIELDS: Final = "100000"
_ANALYSED: Final = re.compile(r"== Analyzed Logical Plan ==\n[^\n]*\n(.*?)(?:\n\n== |\Z)", re.DOTALL)
_LINE: Final = re.compile(r"((?:[: ]  )*)[+:]- (.*)", re.DOTALL)
_INDENT: Final = 3

_printing: Final = threading.Lock()
"""Held while the session's setting is changed, so that a concurrent call does not restore a changed value."""


def analysed_plan(frame: DataFrame) -> str:
    """Return the plan as text, with all columns, or an empty text if this pyspark cannot print it."""
    spark = frame.sparkSession
    with _printing:
        before = spark.conf.get(_FIELDS, None)
        spark.conf.set(_FIELDS, _ALL_FIELDS)
        try:
            if hasattr(frame, "_jdf"):
                return str(frame._jdf.queryExecution().analyzed().toString())
            explain: Callable[..., str] | None = getattr(frame, "_explain_string", None)
            if explain is None:
                return ""
            plan = _ANALYSED.search(explain(extended=True))
            return plan[1] if plan is not None else ""
        finally:
            if before is None:
                spark.conf.unset(_FIELDS)
            else:
                spark.conf.set(_FIELDS, before)


@dataclass
class PlanNode:
    """A node of a plan, such as a projection, and what it reads."""

    name: str
    text: str
    """What the plan says about it."""
    children: list[PlanNode] = field(default_factory=list)


def tree_of(plan: str) -> PlanNode | None:
    """Return the root of a plan. Plans of subqueries inside expressions are left out."""
    path: list[PlanNode] = []
    for line in _lines_of_nodes(plan):
        marked = _LINE.fullmatch(line)
        depth = len(marked[1]) // _INDENT + 1 if marked is not None else 0
        if depth > len(path):
            continue  # a node of a subquery is printed two levels below the node that has the expression
        name, _, text = (marked[2] if marked is not None else line).partition(" ")
        node = PlanNode(name, text)
        del path[depth:]
        if path:
            path[-1].children.append(node)
        path.append(node)
    return path[0] if path else None


def _lines_of_nodes(plan: str) -> list[str]:
    """Split a plan into its nodes. A line without the marks of a node continues a value that has line breaks."""
    lines: list[str] = []
    for line in plan.rstrip().split("\n"):
        if lines and _LINE.fullmatch(line) is None:
            lines[-1] += f"\n{line}"
        else:
            lines.append(line)
    return lines


def items_of(text: str) -> list[str]:
    """Split at the commas that are outside of brackets."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    if text.strip():
        return [*parts, text[begin:].strip()]
    return []
