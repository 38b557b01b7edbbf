"""Takes samples of the streams of a job, for people to look at, if the settings ask for them.

    taken    from the staged frames, when everything is staged and durable
    stored   after the ack and next to it, by the attempt whose ack counts (records/hints.py: Samples)

No checkpoint depends on samples. They are an attempt's last use of Spark, and a query that fails or takes too long only
means that a sample is missing. They are bounded in rows, columns, characters, bytes and time. Rows that Spark has
cached are read from its cache. Other rows are computed again from the same input, so the samples of a stage that is not
deterministic may differ from its results.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidegate import seams
from tidegate.records.records import SampledRows
from tidegate.spark.errors import translate
from tidegate.spark.frame_facts import is_known_empty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

__all__ = ["Sampling", "samples_of"]

MAX_SAMPLING_S: Final = 5.0
"""Time limit for all samples of a job together."""
COLUMNS: Final = 50
"""Maximum number of columns of a sample. It records how many are left out."""
LETTERS: Final = 256
"""Maximum number of characters of a value. Longer ones are cut."""
BYTES: Final = 64 << 10
"""Maximum size of one sample. Further rows are left out."""
ALL_BYTES: Final = 1 << 20
"""Maximum size of all samples of a job, which is well below the limit of a record."""
_JOB_TAGS: Final = ("addJobTag", "removeJobTag", "cancelJobsWithTag")
_MAX_ERROR_LETTERS: Final = 300
_CANCEL_AGAIN_S: Final = 0.2


@dataclass(frozen=True)
class Sampling:
    """The settings for samples."""

    rows: int
    hidden: frozenset[str]
    """Names of columns, in lower case."""

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Sampling:
        """Return the settings that a plan has recorded. Plans of earlier versions have none."""
        names = str(config.get("sample_hidden", "")).lower().split(",")
        return Sampling(int(config.get("sample_rows", 0)), frozenset(filter(None, map(str.strip, names))))

    def hides(self, name: str, kind: DataType) -> bool:
        """Return whether a column is hidden, because of its name or that of a nested field."""
        if name.lower() in self.hidden:
            return True
        if any(self.hides(field.name, field.dataType) for field in getattr(kind, "fields", ())):
            return True
        element_types = []
        for part in ("elementType", "keyType", "valueType"):
            element_types.append(getattr(kind, part, None))
        return any(self.hides("", element) for element in element_types if element is not None)


def samples_of(
    spark: SparkSession, streams: Iterable[tuple[str, Callable[[], DataFrame]]], sampling: Sampling
) -> dict[str, SampledRows]:
    """Return a sample of each stream. If Spark fails, the sample has the error."""
    until = seams.monotonic() + MAX_SAMPLING_S
    samples: dict[str, SampledRows] = {}
    listed = list(streams)
    budget = min(BYTES, ALL_BYTES // max(len(listed), 1))
    for name, frame in listed:
        remaining_s = until - seams.monotonic()
        if remaining_s <= 0:
            samples[name] = SampledRows(
                problem=f"the samples before it have used up the {MAX_SAMPLING_S:g} s that a job has for all"
            )
            continue
        limit = _Limit(spark, remaining_s)
        try:
            with limit:
                samples[name] = _sample(frame(), sampling, budget)
        except Exception as error:  # the rows are staged, so no error here matters to the checkpoint
            samples[name] = SampledRows(problem=limit.timeout_text() or _describe_failure(error))
    return samples


def _sample(frame: DataFrame, sampling: Sampling, budget: int) -> SampledRows:
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType

    hidden = []
    for field in frame.schema.fields:
        if sampling.hides(field.name, field.dataType):
            hidden.append(field.name)
    open_fields = [field for field in frame.schema.fields if field.name not in hidden]
    fields = open_fields[:COLUMNS]
    texts = []
    for field in fields:
        value = f.col(f"`{field.name.replace('`', '``')}`")
        if isinstance(field.dataType, BinaryType):
            text = f.hex(value)
        else:
            text = value.cast("string")
        texts.append(f.substring(text, 1, LETTERS).alias(field.name))
    rows: list[list[str | None]] = []
    if texts and not is_known_empty(frame):
        for row in frame.limit(sampling.rows).select(*texts).collect():
            values = list(row)
            budget -= len(msgspec.json.encode(values))
            if budget < 0:
                break
            rows.append(values)
    left_out = len(open_fields) - len(fields)
    return SampledRows(columns=[field.name for field in fields], rows=rows, hidden=hidden, left_out=left_out)


class _Limit:
    """Cancels this thread's Spark queries in the block after some time."""

    def __init__(self, spark: Any, seconds: float) -> None:
        self._tag = f"tidegate-sample-{seams.new_id()}"
        is_remote = type(spark).__module__.startswith("pyspark.sql.connect")
        # In a local session, the jobs of its queries do not carry the session's tags, only the context's.
        context = spark if is_remote else spark.sparkContext
        names = ("addTag", "removeTag", "interruptTag") if is_remote else _JOB_TAGS
        self._add, self._remove, self._cancel = (getattr(context, name) for name in names)
        self._seconds = seconds
        self._ended = threading.Event()
        self._is_over = False

    def __enter__(self) -> _Limit:
        self._add(self._tag)
        threading.Thread(target=self._interrupt, daemon=True, name="sampling-limit").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._remove(self._tag)

    def _interrupt(self) -> None:
        """Cancel the block's queries once the time is up. Repeat it: a query that Spark still plans has no job to
        cancel."""
        wait_s = self._seconds
        while not self._ended.wait(wait_s):
            wait_s = _CANCEL_AGAIN_S
            self._is_over = True
            with contextlib.suppress(Exception):  # the query then runs to its end
                self._cancel(self._tag)

    def timeout_text(self) -> str:
        """Return the problem of the sample if time was up, else ""."""
        if not self._is_over:
            return ""
        return f"it took longer than the {MAX_SAMPLING_S:g} s that a job has for all samples"


def _describe_failure(error: Exception) -> str:
    translated = translate(error)
    if translated is not None:
        text = translated.what
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_MAX_ERROR_LETTERS]
