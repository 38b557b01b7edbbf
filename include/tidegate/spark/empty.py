"""Frames that are known to have no rows: nothing is written of them, so Spark need not be asked.

The mark is on the object. What is made of a frame is another one, of which nothing is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["empty_like", "is_known_empty"]

_MARK: Final = "_tidegate_nothing"


def empty_like(like: DataFrame) -> DataFrame:
    """No rows, in the columns of this frame."""
    none = like.limit(0)
    vars(none)[_MARK] = True
    return none


def is_known_empty(frame: DataFrame) -> bool:
    """Whether a frame is known to have no rows."""
    return _MARK in vars(frame)
