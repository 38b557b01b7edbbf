"""What this process knows of a session and its frames, so that pyspark need not ask the server: a round trip each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

__all__ = ["constant_setting", "with_fields"]

_ANSWERS: Final = "_tidegate_settings"
_CACHED: Final = "_cached_schema"
"""Where a frame of Spark Connect keeps its schema once it has asked. Other frames have no such place."""


def constant_setting(spark: SparkSession, key: str) -> str:
    """Return the value of a setting that does not change while the session lives; empty: it has none."""
    answers: dict[str, str] = vars(spark).setdefault(_ANSWERS, {})
    if key not in answers:
        answers[key] = str(spark.conf.get(key, "") or "")
    return answers[key]


def with_fields(frame: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Return the frame, which is known to have these columns."""
    from pyspark.sql.types import StructType

    if vars(frame).get(_CACHED, frame) is None:
        vars(frame)[_CACHED] = StructType(list(fields))
    return frame
