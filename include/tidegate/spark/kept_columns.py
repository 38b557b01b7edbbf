"""What a function does to the columns of a frame: read from the plan that Spark analyses for what it returns.

The function is called with a probe, of which nothing can be computed, and which stands in plans under a name of its
own. What it returns must be a chain of projections and filters above that probe, so that each row is one of the rows
that came in. Then a column is still itself, maybe under another name, where the projections only pass its id on.

A function that looks at rows, such as one that returns something else if there are none, fails on a probe: nobody knows
what it does to others. Spark prints plans alike with and without Spark Connect; what is not understood in the text
counts as another column.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidegate.spark.frame_facts import with_fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["find_kept_columns", "make_probe"]

_FIELDS: Final = "spark.sql.debug.maxToStringFields"
_ALL_FIELDS: Final = "100000"
_ANALYSED: Final = re.compile(r"== Analyzed Logical Plan ==\n[^\n]*\n(.*?)(?:\n\n== |\Z)", re.DOTALL)
_PROBE: Final = "_tidegate_probe"
_PROBE_LINE: Final = f"SubqueryAlias {_PROBE}"
_REFUSED: Final = "tidegate asks what a stage does to the columns of its input: its rows cannot be computed here."
_PROJECT: Final = re.compile(r"Project \[(.*)\]")
_PASSING: Final = re.compile(r"(?:Filter|SubqueryAlias) .*")
_COLUMN: Final = re.compile(r"\w+#(\d+)L?(?: AS .+#(\d+)L?)?")
_MADE: Final = re.compile(r".+ AS .+#(\d+)L?")
"""A column in the topmost projection of a probe itself."""


def make_probe(like: DataFrame) -> DataFrame:
    """Return a frame with the columns of this one, of which every query fails that would depend on its rows."""
    from pyspark.sql import functions as F

    fields = like.schema
    refused = F.raise_error(F.lit(_REFUSED))
    # The values fail, too: else Spark finds a condition on a constant false without computing the row.
    row = like.sparkSession.range(1).where(refused.cast("boolean")).select(refused.cast(fields).alias("row"))
    return with_fields(row.select("row.*").alias(_PROBE), fields.fields)


def find_kept_columns(result: DataFrame, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the names that the columns of a probe have in a frame that a function has made of it. Empty: the frame may
    have other rows."""
    lines = [line.lstrip(" +-") for line in _analysed_plan(result).rstrip().split("\n")]
    if lines.count(_PROBE_LINE) != 1 or any(":-" in line for line in lines):
        return {}
    above, below = lines[: lines.index(_PROBE_LINE)], lines[lines.index(_PROBE_LINE) + 1 :]
    made = _PROJECT.fullmatch(below[0])
    ids = [match[1] if (match := _MADE.fullmatch(item)) else "" for item in _items(made[1])] if made is not None else []
    if len(ids) != len(columns):
        return {}
    origins: list[tuple[str, str]] = list(zip(ids, columns, strict=True))
    for line in reversed(above):
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


_printing: Final = threading.Lock()
"""Held while plans are printed with all columns: whoever changes a setting of the session back must have found it as it
was."""


def _analysed_plan(frame: DataFrame) -> str:
    """Return the plan as text, with all columns, however many there are. Empty: this pyspark does not tell."""
    spark = frame.sparkSession
    with _printing:
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
