"""Finds which columns a function on frames passes on unchanged, from Spark's analysed plan of its result.

The function is called with a probe (probe.py). Its result must be a chain of projections and filters on that probe, so
that each row is one of the input rows. Then a column is unchanged, perhaps renamed, if the projections only pass its id
on.

A function that inspects rows, such as one that handles empty input differently, fails on a probe, and its columns stay
unknown. Anything in the text that is not understood counts as another column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidegate.spark.plans.probe import PROBE
from tidegate.spark.plans.text import analysed_plan, items_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["find_kept_columns"]

_PROBE_LINE: Final = f"SubqueryAlias {PROBE}"
_PROJECT: Final = re.compile(r"Project \[(.*)\]")
_PASSING: Final = re.compile(r"(?:Filter|SubqueryAlias) .*")
_COLUMN: Final = re.compile(r"\w+#(\d+)L?(?: AS .+#(\d+)L?)?")
_PROBE_COLUMN: Final = re.compile(r".+ AS .+#(\d+)L?")
"""A column in the topmost projection of the probe itself."""


def find_kept_columns(result: DataFrame, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the names that the columns of a probe have in a function's result. Empty if it may have other rows."""
    lines = [line.lstrip(" +-") for line in analysed_plan(result).rstrip().split("\n")]
    if lines.count(_PROBE_LINE) != 1 or any(":-" in line for line in lines):
        return {}
    above, below = lines[: lines.index(_PROBE_LINE)], lines[lines.index(_PROBE_LINE) + 1 :]
    ids: list[str] = []
    probe_projection = _PROJECT.fullmatch(below[0])
    if probe_projection is not None:
        for item in items_of(probe_projection[1]):
            column = _PROBE_COLUMN.fullmatch(item)
            ids.append(column[1] if column is not None else "")
    if len(ids) != len(columns):
        return {}
    origins: list[tuple[str, str]] = list(zip(ids, columns, strict=True))
    for line in reversed(above):
        project = _PROJECT.fullmatch(line)
        if project is not None:
            origins = _projected(items_of(project[1]), {id: name for id, name in origins if id})
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
