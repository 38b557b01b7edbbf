"""What this process knows of a session and its frames, so that pyspark need not ask the server: a round trip each.

Frames that are known to be empty are judged, computed and written without calling Spark at all. What is known is noted
on the object. What is made of a frame is another one, of which nothing is known unless it is noted, too.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

__all__ = [
    "constant_setting",
    "empty_if",
    "empty_like",
    "fields_before",
    "is_known_empty",
    "like_before",
    "mark_empty_by_plan",
    "name_callers_quickly",
    "no_rows",
    "no_rows_like",
    "not_streaming",
    "renamed",
    "select_sql",
    "with_callers",
    "with_fields",
    "without_callers",
]

_IS_NOTING: Final = "is_debugging_enabled"
_ASKS: Final = "_tidegate_asks"
_PYSPARK: Final = f"{os.sep}pyspark{os.sep}"
_NOTHING: Final = "_tidegate_nothing"
_OPTIMIZED: Final = re.compile(r"== Optimized Logical Plan ==\s*LocalRelation <empty>")
_ANSWERS: Final = "_tidegate_settings"
_SHAPES: Final = "_tidegate_shapes"
_CACHED: Final = "_cached_schema"
"""Where a frame of Spark Connect keeps its schema once it has asked."""
_SCHEMA: Final = "schema"
"""Where any other frame does."""
_FIELDS: Final = "_tidegate_fields"
_SPLITS: Final = "_tidegate_splits"
_SEPARATOR: Final = "\x01"
"""What stands between texts that go to Java as one."""


def empty_like(like: DataFrame) -> DataFrame:
    """Return an empty frame with the columns of this one."""
    none = like.limit(0)
    vars(none)[_NOTHING] = True
    return none


def no_rows_like(frame: DataFrame) -> DataFrame:
    """Do the same with nothing of the frame but its schema: then Spark's planner knows, too, that it is empty."""
    return no_rows(frame.sparkSession, frame.schema)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty frame with these columns."""
    return empty_like(spark.createDataFrame([], schema))


def empty_if(origin: DataFrame, made: DataFrame) -> DataFrame:
    """Return `made`; if `origin` is known to be empty, as a frame without rows. For what has no rows of its own."""
    return empty_like(made) if is_known_empty(origin) else made


def mark_empty_by_plan(frame: DataFrame) -> DataFrame:
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


def select_sql(frame: DataFrame, texts: Iterable[str]) -> DataFrame:
    """Return `frame.selectExpr(*texts)`: with a Spark in this process, in two round trips instead of one for each."""
    texts = list(texts)
    array = _java_array(frame, texts)
    return frame.selectExpr(*texts) if array is None else _wrap_java_frame(frame, frame._jdf.selectExpr(array))


def renamed(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """Return `frame.toDF(*names)`, likewise."""
    names = list(names)
    array = _java_array(frame, names)
    return frame.toDF(*names) if array is None else _wrap_java_frame(frame, frame._jdf.toDF(array))


def _wrap_java_frame(frame: Any, java: Any) -> DataFrame:
    """Return the frame of pyspark's for one of Java's."""
    made: DataFrame = type(frame)(java, frame.sparkSession)
    return made


def _java_array(frame: DataFrame, texts: Sequence[str]) -> Any:
    """Return the texts as an array of Java's. None: there is no Java in this process, or they cannot be one text."""
    if not hasattr(frame, "_jdf") or not texts or any(_SEPARATOR in text for text in texts):
        return None
    held: Any = vars(frame.sparkSession)
    if _SPLITS not in held:
        jvm: Any = frame.sparkSession._jvm
        held[_SPLITS] = jvm.java.util.regex.Pattern.compile(_SEPARATOR)
    return held[_SPLITS].split(_SEPARATOR.join(texts), -1)


def is_known_empty(frame: DataFrame) -> bool:
    """Return whether a frame is known to have no rows."""
    return _NOTHING in vars(frame)


def name_callers_quickly() -> None:
    """Let pyspark note the line that makes an expression, for its errors, without trying to import IPython each time.

    Python looks through all folders for what is not there: a twentieth of a small checkpoint. Where there is an
    IPython, pyspark's own way stays.
    """
    from pyspark.errors import utils

    if hasattr(utils, "_capture_call_site") and importlib.util.find_spec("IPython") is None:
        utils._capture_call_site = _call_site


def _call_site(depth: int) -> str:
    """Return the innermost lines that are not pyspark's, so many of them."""
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < depth:
        if _PYSPARK not in frame.f_code.co_filename:
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return "\n".join(lines)


def constant_setting(spark: SparkSession, key: str) -> str:
    """Return the value of a setting that does not change while the session lives; empty: it has none."""
    answers: dict[str, str] = vars(spark).setdefault(_ANSWERS, {})
    if key not in answers:
        answers[key] = str(spark.conf.get(key, None) or "")
    return answers[key]


def like_before(frame: DataFrame, shape: str) -> DataFrame:
    """Return the frame. If this session has had another one of this shape, and somebody asked for its columns, they are
    known.

    shape: says everything that the columns depend on.
    """
    frames: dict[str, DataFrame] = vars(frame.sparkSession).setdefault(_SHAPES, {})
    before = _cached_schema(frames[shape]) if shape in frames else None
    if before is None:
        frames[shape] = frame
        return frame
    return with_fields(frame, before.fields)


def fields_before(spark: SparkSession, shape: str, made: Callable[[], DataFrame]) -> Sequence[StructField]:
    """Return the columns of the frame that `made` would return: this session is asked once for each shape.

    shape: says everything that the columns depend on.
    """
    known: dict[str, Sequence[StructField]] = vars(spark).setdefault(_FIELDS, {})
    if shape not in known:
        known[shape] = made().schema.fields
    return known[shape]


def with_fields(frame: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Return the frame, which is known to have these columns."""
    from pyspark.sql.types import StructType

    if _cached_schema(frame) is None:
        vars(frame)[_CACHED if _CACHED in vars(frame) else _SCHEMA] = StructType(list(fields))
    return frame


def _cached_schema(frame: DataFrame) -> StructType | None:
    return vars(frame).get(_CACHED if _CACHED in vars(frame) else _SCHEMA)


_OWN: Final = contextvars.ContextVar("_OWN", default=False)
"""Whether what makes expressions now is our own code."""


@contextlib.contextmanager
def without_callers() -> Iterator[None]:
    """Let pyspark not note which line makes an expression: our own say nothing to users, and each costs round trips."""
    _patch_call_sites()
    token = _OWN.set(True)
    try:
        yield
    finally:
        _OWN.reset(token)


@contextlib.contextmanager
def with_callers() -> Iterator[None]:
    """Let pyspark note which line makes an expression, as its settings say: what users write."""
    token = _OWN.set(False)
    try:
        yield
    finally:
        _OWN.reset(token)


def _patch_call_sites() -> None:
    """See to it that pyspark asks whose code it is before it notes a line."""
    from pyspark.errors import utils

    before = getattr(utils, _IS_NOTING, None)
    if before is None or hasattr(before, _ASKS):
        return

    def is_noting() -> bool:
        return not _OWN.get() and bool(before())

    setattr(is_noting, _ASKS, True)
    setattr(utils, _IS_NOTING, is_noting)
