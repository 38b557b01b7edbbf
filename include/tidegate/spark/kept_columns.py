"""What became of a frame's columns in another one that is made of it: read from the plan that Spark analyses.

The plan must be a chain of projections and filters above a frame made by `createDataFrame`, so that each row is one of
its rows. Then a column is still itself, maybe under another name, where the projections only pass its id on.
Spark prints plans alike with and without Spark Connect; what is not understood in the text counts as another column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["columns_kept"]

_FIELDS: Final = "spark.sql.debug.maxToStringFields"
_ALL_FIELDS: Final = "100000"
_ANALYSED: Final = re.compile(r"== Analyzed Logical Plan ==\n[^\n]*\n(.*?)(?:\n\n== |\Z)", re.DOTALL)
_LEAF: Final = re.compile(r"(?:LocalRelation (?:<empty>, )?|LogicalRDD )\[(.*)\](?:, false)?")
"""A frame without rows that was made of nothing but its columns: with Spark Connect, and without."""
_PROJECT: Final = re.compile(r"Project \[(.*)\]")
_PASSING: Final = re.compile(r"(?:Filter|SubqueryAlias) .*")
_COLUMN: Final = re.compile(r"\w+#(\d+)L?(?: AS .+#(\d+)L?)?")


def columns_kept(result: DataFrame, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the names that the columns of a frame that was made by `createDataFrame` have in one that is made of it.
    Empty: its rows may be others."""
    lines = [line.lstrip(" +-") for line in _analysed_plan(result).rstrip().split("\n")]
    leaf = _LEAF.fullmatch(lines[-1]) if lines else None
    if leaf is None or any(":-" in line for line in lines):
        return {}
    ids = [match[1] if (match := _COLUMN.fullmatch(item)) else "" for item in _items(leaf[1])]
    if len(ids) != len(columns):
        return {}
    origins: list[tuple[str, str]] = list(zip(ids, columns, strict=True))
    for line in reversed(lines[:-1]):
        project = _PROJECT.fullmatch(line)
        if project is not None:
            origins = _projected(_items(project[1]), {id: name for id, name in origins if id})
        elif not _PASSING.fullmatch(line):
            return {}
    if len(origins) != len(result.columns):
        return {}
    kept: dict[str, list[str]] = {}
    for (_, origin), name in zip(origins, result.columns, strict=True):
        if origin:
            kept.setdefault(origin, []).append(name)
    return kept


def _projected(items: Sequence[str], origins: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the id of each column of a projection, and the column of the input that it is; empty: it is none."""
    columns = []
    for item in items:
        match = _COLUMN.fullmatch(item)
        columns.append((match[2] or match[1], origins.get(match[1], "")) if match is not None else ("", ""))
    return columns


def _items(text: str) -> list[str]:
    """Return the parts between commas that are in no brackets."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return [*parts, text[begin:].strip()] if text.strip() else []


def _analysed_plan(frame: DataFrame) -> str:
    """Return the plan as text, with all columns, however many there are. Empty: this pyspark does not tell."""
    spark = frame.sparkSession
    before = spark.conf.get(_FIELDS, None)
    spark.conf.set(_FIELDS, _ALL_FIELDS)
    try:
        if hasattr(frame, "_jdf"):
            return str(frame._jdf.queryExecution().analyzed().toString())
        explain: Callable[..., str] | None = getattr(frame, "_explain_string", None)
        found = _ANALYSED.search(explain(extended=True)) if explain is not None else None
        return found[1] if found is not None else ""
    finally:
        if before is None:
            spark.conf.unset(_FIELDS)
        else:
            spark.conf.set(_FIELDS, before)
