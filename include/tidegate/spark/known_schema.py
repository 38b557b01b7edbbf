"""Frames whose columns this process knows: pyspark need not ask the server for them, which takes a round trip each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

__all__ = ["with_fields"]

_CACHED: Final = "_cached_schema"
"""Where a frame of Spark Connect keeps its schema once it has asked. Other frames have no such place."""


def with_fields(frame: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Return the frame, which is known to have these columns."""
    from pyspark.sql.types import StructType

    if vars(frame).get(_CACHED, frame) is None:
        vars(frame)[_CACHED] = StructType(list(fields))
    return frame
