"""What this process knows of a session and its frames, so that pyspark need not ask the server: a round trip each.

Frames that are known to be empty are judged, computed and written without calling Spark at all. What is known is noted
on the object. What is made of a frame is another one, of which nothing is known unless it is noted, too.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

__all__ = [
    "constant_setting",
    "empty_by_plan",
    "empty_if",
    "empty_like",
    "is_known_empty",
    "no_rows_like",
    "not_streaming",
    "note_missing_ipython",
    "with_fields",
]

_NOTHING: Final = "_tidegate_nothing"
_OPTIMIZED: Final = re.compile(r"== Optimized Logical Plan ==\s*LocalRelation <empty>")
_ANSWERS: Final = "_tidegate_settings"
_CACHED: Final = "_cached_schema"
"""Where a frame of Spark Connect keeps its schema once it has asked. Other frames have no such place."""


def empty_like(like: DataFrame) -> DataFrame:
    """Return an empty frame with the columns of this one."""
    none = like.limit(0)
    vars(none)[_NOTHING] = True
    return none


def no_rows_like(frame: DataFrame) -> DataFrame:
    """Do the same with nothing of the frame but its schema: then Spark's planner knows, too, that it is empty."""
    return empty_like(frame.sparkSession.createDataFrame([], frame.schema))


def empty_if(origin: DataFrame, made: DataFrame) -> DataFrame:
    """Return `made`; if `origin` is known to be empty, as a frame without rows. For what has no rows of its own."""
    return empty_like(made) if is_known_empty(origin) else made


def empty_by_plan(frame: DataFrame) -> DataFrame:
    """Return the frame, marked as empty if Spark finds so while planning it: without a query."""
    plan = getattr(frame, "_explain_string", None)  # pyspark's own way to print a plan; without it nothing is known
    if plan is not None and _OPTIMIZED.search(plan(extended=True)):
        vars(frame)[_NOTHING] = True
    return frame


def not_streaming(frame: DataFrame) -> DataFrame:
    """Return the frame, which is known to be no streaming one: pyspark asks before it observes it."""
    if _CACHED in vars(frame):
        vars(frame).setdefault("isStreaming", False)
    return frame


def is_known_empty(frame: DataFrame) -> bool:
    """Return whether a frame is known to have no rows."""
    return _NOTHING in vars(frame)


def note_missing_ipython() -> None:
    """Let Python know that there is no IPython, if so. pyspark tries to import it for every expression that is made,
    and Python looks through all folders each time: a twentieth of a small checkpoint."""
    if "IPython" not in sys.modules and importlib.util.find_spec("IPython") is None:
        sys.modules["IPython"] = None  # type: ignore[assignment]


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
