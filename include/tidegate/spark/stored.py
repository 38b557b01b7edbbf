"""Frames that are read from files of the attempt's own: they cost little to read again, and are not cached.

The mark is on the object. What is made of a frame is another one, which is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_stored", "mark_stored"]

_MARK: Final = "_tidegate_stored"


def mark_stored(frame: DataFrame) -> DataFrame:
    """Mark a frame that only reads files of this attempt, and return it."""
    vars(frame)[_MARK] = True
    return frame


def is_stored(frame: DataFrame) -> bool:
    """Return whether a frame only reads files of this attempt."""
    return _MARK in vars(frame)
