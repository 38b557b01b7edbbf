"""Frames that are known to be empty: they are judged, computed and written without calling Spark.

The mark is on the object. What is made of a frame is another one, of which nothing is known, unless it is marked, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["empty_by_plan", "empty_if", "empty_like", "is_known_empty"]

_MARK: Final = "_tidegate_nothing"
_OPTIMIZED: Final = re.compile(r"== Optimized Logical Plan ==\s*LocalRelation <empty>")


def empty_like(like: DataFrame) -> DataFrame:
    """Return an empty frame with the columns of this one."""
    none = like.limit(0)
    vars(none)[_MARK] = True
    return none


def empty_if(origin: DataFrame, made: DataFrame) -> DataFrame:
    """Return `made`; if `origin` is known to be empty, as a frame without rows. For what has no rows of its own."""
    return empty_like(made) if is_known_empty(origin) else made


def empty_by_plan(frame: DataFrame) -> DataFrame:
    """Return the frame, marked as empty if Spark finds so while planning it: without a query."""
    plan = getattr(frame, "_explain_string", None)  # pyspark's own way to print a plan; without it nothing is known
    if plan is not None and _OPTIMIZED.search(plan(extended=True)):
        vars(frame)[_MARK] = True
    return frame


def is_known_empty(frame: DataFrame) -> bool:
    """Return whether a frame is known to have no rows."""
    return _MARK in vars(frame)
