"""Frames that are known to be empty: they are written without calling Spark.

The mark is on the object. What is made of a frame is another one, of which nothing is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["empty_like", "is_known_empty"]

_MARK: Final = "_tidegate_nothing"


def empty_like(like: DataFrame) -> DataFrame:
    """Return an empty frame with the columns of this one."""
    none = like.limit(0)
    vars(none)[_MARK] = True
    return none


def is_known_empty(frame: DataFrame) -> bool:
    """Return whether a frame is known to have no rows."""
    return _MARK in vars(frame)
