"""Facts about a session and its frames, so that pyspark need not ask the server: each question is a round trip.

Frames that are known to be empty are judged, computed and written without calling Spark at all. Facts are attributes of
the frame object. A frame derived from it is another object, without these facts unless they are added to it, too.
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
    "mark_if_plan_is_empty",
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
"""The attribute in which a frame of Spark Connect caches its schema."""
_SCHEMA: Final = "schema"
"""The attribute in which any other frame does."""
_FIELDS: Final = "_tidegate_fields"
_SPLITS: Final = "_tidegate_splits"
_SEPARATOR: Final = "\x01"
"""The separator of texts that are passed to Java as one."""


def empty_like(like: DataFrame) -> DataFrame:
    """Return an empty frame with the columns of this one."""
    empty = like.limit(0)
    vars(empty)[_NOTHING] = True
    return empty


def no_rows_like(frame: DataFrame) -> DataFrame:
    """Return an empty frame with the same schema, but without the frame's plan, so that Spark knows that it is
    empty."""
    return no_rows(frame.sparkSession, frame.schema)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty frame with these columns."""
    return empty_like(spark.createDataFrame([], schema))


def empty_if(origin: DataFrame, derived: DataFrame) -> DataFrame:
    """Return `derived`, or an empty frame like it if `origin` is known to be empty. `derived` must not add rows."""
    if is_known_empty(origin):
        return empty_like(derived)
    return derived


def mark_if_plan_is_empty(frame: DataFrame) -> DataFrame:
    """Return the frame, marked as empty if Spark's optimized plan says so. This runs no query."""
    plan = getattr(frame, "_explain_string", None)  # private to pyspark; without it nothing is known
    if plan is not None and _OPTIMIZED.search(plan(extended=True)):
        vars(frame)[_NOTHING] = True
    return frame


def not_streaming(frame: DataFrame) -> DataFrame:
    """Return the frame, marked as not streaming, which pyspark would ask the server before it observes the frame."""
    if _CACHED in vars(frame):
        vars(frame).setdefault("isStreaming", False)
    return frame


def select_sql(frame: DataFrame, texts: Iterable[str]) -> DataFrame:
    """Return `frame.selectExpr(*texts)`. With a Spark in this process, it takes two round trips instead of one each."""
    texts = list(texts)
    array = _java_array(frame, texts)
    if array is None:
        return frame.selectExpr(*texts)
    return _wrap_java_frame(frame, frame._jdf.selectExpr(array))


def renamed(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """Return `frame.toDF(*names)`, with as few round trips as `select_sql`."""
    names = list(names)
    array = _java_array(frame, names)
    if array is None:
        return frame.toDF(*names)
    return _wrap_java_frame(frame, frame._jdf.toDF(array))


def _wrap_java_frame(frame: Any, java: Any) -> DataFrame:
    """Return pyspark's frame for a Java frame."""
    wrapped: DataFrame = type(frame)(java, frame.sparkSession)
    return wrapped


def _java_array(frame: DataFrame, texts: Sequence[str]) -> Any:
    """Return the texts as a Java array, or None without a JVM in this process, or if a text has the separator."""
    if not hasattr(frame, "_jdf") or not texts or any(_SEPARATOR in text for text in texts):
        return None
    attributes: Any = vars(frame.sparkSession)
    if _SPLITS not in attributes:
        jvm: Any = frame.sparkSession._jvm
        attributes[_SPLITS] = jvm.java.util.regex.Pattern.compile(_SEPARATOR)
    return attributes[_SPLITS].split(_SEPARATOR.join(texts), -1)


def is_known_empty(frame: DataFrame) -> bool:
    """Return whether a frame is known to have no rows."""
    return _NOTHING in vars(frame)


def name_callers_quickly() -> None:
    """Make pyspark record the line that creates an expression, for its errors, without trying to import IPython each
    time.

    A failing import searches all folders, which takes 5 % of a small checkpoint. If IPython is installed, pyspark's own
    function stays.
    """
    from pyspark.errors import utils

    if hasattr(utils, "_capture_call_site") and importlib.util.find_spec("IPython") is None:
        utils._capture_call_site = _call_site


def _call_site(depth: int) -> str:
    """Return the innermost `depth` lines of code outside of pyspark."""
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < depth:
        if _PYSPARK not in frame.f_code.co_filename:
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return "\n".join(lines)


def constant_setting(spark: SparkSession, key: str) -> str:
    """Return the value of a setting that does not change during the session, or an empty text if it is not set."""
    answers: dict[str, str] = vars(spark).setdefault(_ANSWERS, {})
    if key not in answers:
        answers[key] = str(spark.conf.get(key, None) or "")
    return answers[key]


def like_before(frame: DataFrame, shape: str) -> DataFrame:
    """Return the frame, with the columns of an earlier frame of the same shape if that has been asked for them.

    shape: a text with everything that the columns depend on.
    """
    frames: dict[str, DataFrame] = vars(frame.sparkSession).setdefault(_SHAPES, {})
    before = _cached_schema(frames[shape]) if shape in frames else None
    if before is None:
        frames[shape] = frame
        return frame
    return with_fields(frame, before.fields)


def fields_before(spark: SparkSession, shape: str, make: Callable[[], DataFrame]) -> Sequence[StructField]:
    """Return the columns of the frame that `make` returns. It is only called once per session for each shape.

    shape: a text with everything that the columns depend on.
    """
    fields: dict[str, Sequence[StructField]] = vars(spark).setdefault(_FIELDS, {})
    if shape not in fields:
        fields[shape] = make().schema.fields
    return fields[shape]


def with_fields(frame: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Return the frame, with these columns as its cached schema."""
    from pyspark.sql.types import StructType

    if _cached_schema(frame) is None:
        vars(frame)[_CACHED if _CACHED in vars(frame) else _SCHEMA] = StructType(list(fields))
    return frame


def _cached_schema(frame: DataFrame) -> StructType | None:
    return vars(frame).get(_CACHED if _CACHED in vars(frame) else _SCHEMA)


_OWN: Final = contextvars.ContextVar("_OWN", default=False)
"""Whether tidegate's own code creates expressions now."""


@contextlib.contextmanager
def without_callers() -> Iterator[None]:
    """Keep pyspark from recording which line creates an expression: ours do not help users, and cost round trips."""
    _patch_call_sites()
    token = _OWN.set(True)
    try:
        yield
    finally:
        _OWN.reset(token)


@contextlib.contextmanager
def with_callers() -> Iterator[None]:
    """Let pyspark record which line creates an expression, as its settings say. For calls of users' code."""
    token = _OWN.set(False)
    try:
        yield
    finally:
        _OWN.reset(token)


def _patch_call_sites() -> None:
    """Make pyspark check `_OWN` before it records a line."""
    from pyspark.errors import utils

    before = getattr(utils, _IS_NOTING, None)
    if before is None or hasattr(before, _ASKS):
        return

    def is_noting() -> bool:
        return not _OWN.get() and bool(before())

    setattr(is_noting, _ASKS, True)
    setattr(utils, _IS_NOTING, is_noting)
