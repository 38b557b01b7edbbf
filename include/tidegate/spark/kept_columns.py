"""Finds which columns a function on frames passes on unchanged, from Spark's analysed plan of its result.

The function is called with a probe: a frame whose rows cannot be computed, with a unique name in plans. Its result must
be a chain of projections and filters on that probe, so that each row is one of the input rows. Then a column is
unchanged, perhaps renamed, if the projections only pass its id on.

A function that inspects rows, such as one that handles empty input differently, fails on a probe, and its columns stay
unknown. Spark prints plans alike with and without Spark Connect. Anything in the text that is not understood counts as
another column.
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
_REFUSED: Final = "tidegate checks which columns a stage passes on: it must not compute rows here."
_PROJECT: Final = re.compile(r"Project \[(.*)\]")
_PASSING: Final = re.compile(r"(?:Filter|SubqueryAlias) .*")
_COLUMN: Final = re.compile(r"\w+#(\d+)L?(?: AS .+#(\d+)L?)?")
_PROBE_COLUMN: Final = re.compile(r".+ AS .+#(\d+)L?")
"""A column in the topmost projection of the probe itself."""


def make_probe(like: DataFrame) -> DataFrame:
    """Return a frame with the columns of this one. Every query fails that depends on its rows."""
    from pyspark.sql import functions as F

    fields = like.schema
    refused = F.raise_error(F.lit(_REFUSED))
    # The values fail, too, otherwise Spark could evaluate a condition on a constant without computing the row.
    row = like.sparkSession.range(1).where(refused.cast("boolean")).select(refused.cast(fields).alias("row"))
    return with_fields(row.select("row.*").alias(_PROBE), fields.fields)


def find_kept_columns(result: DataFrame, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the names that the columns of a probe have in a function's result. Empty if it may have other rows."""
    lines = [line.lstrip(" +-") for line in _analysed_plan(result).rstrip().split("\n")]
    if lines.count(_PROBE_LINE) != 1 or any(":-" in line for line in lines):
        return {}
    above, below = lines[: lines.index(_PROBE_LINE)], lines[lines.index(_PROBE_LINE) + 1 :]
    ids: list[str] = []
    probe_projection = _PROJECT.fullmatch(below[0])
    if probe_projection is not None:
        for item in _items(probe_projection[1]):
            column = _PROBE_COLUMN.fullmatch(item)
            ids.append(column[1] if column is not None else "")
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
    names: dict[str, list[str]] = {}
    for (_, origin), name in zip(origins, result.columns, strict=True):
        if origin:
            names.setdefault(origin, []).append(name)
    return names


def _projected(items: Sequence[str], origins: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the id of each column of a projection, and the input column that it passes on, or empty texts."""
    columns = []
    for item in items:
        match = _COLUMN.fullmatch(item)
        columns.append((match[2] or match[1], origins.get(match[1], "")) if match is not None else ("", ""))
    return columns


def _items(text: str) -> list[str]:
    """Split at the commas that are outside of brackets."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    if text.strip():
        return [*parts, text[begin:].strip()]
    return []


_printing: Final = threading.Lock()
"""Held while the session's setting is changed, so that a concurrent call does not restore a changed value."""


def _analysed_plan(frame: DataFrame) -> str:
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
