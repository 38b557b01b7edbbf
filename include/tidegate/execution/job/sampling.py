"""Samples of what a job's stages, gates and operators let through, for people to look at. None unless settings ask.

    taken    when everything is staged and durable, from the frames that were staged
    kept     after the ack, beside it, by the attempt whose ack counts (records/records.py: Samples)

What a checkpoint does never depends on them. They are taken last of all that Spark does in an attempt, when nothing of
it needs Spark any more; a query that fails or takes too long is a sample that is missing. They are bounded in rows,
columns, letters, bytes and time. Rows that Spark keeps in its memory are read from there; others are computed again,
from the same input, so a stage that is not deterministic may show other rows than it gave.
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
"""For all samples of a job together."""
COLUMNS: Final = 50
"""The most columns of a sample; it says how many it leaves out."""
LETTERS: Final = 256
"""Longer values are cut."""
BYTES: Final = 64 << 10
"""The size of one sample. Further rows are left out."""
ALL_BYTES: Final = 1 << 20
"""The size of all samples of a job: much less than a record may have."""
_JOB_TAGS: Final = ("addJobTag", "removeJobTag", "cancelJobsWithTag")
_TOLD: Final = 300
"""How much of an error is told."""


@dataclass(frozen=True)
class Sampling:
    """What the settings say about samples."""

    rows: int
    hidden: frozenset[str]
    """Names of columns, in small letters."""

    @staticmethod
    def of(config: Mapping[str, Any]) -> Sampling:
        """Return what a plan has recorded. A plan of an earlier version asks for none."""
        names = str(config.get("sample_hidden", "")).lower().split(",")
        return Sampling(int(config.get("sample_rows", 0)), frozenset(filter(None, map(str.strip, names))))

    def hides(self, name: str, kind: DataType) -> bool:
        """Return whether a column is hidden, for its own name or that of a field in it, however deep."""
        if name.lower() in self.hidden:
            return True
        parts = [getattr(kind, part, None) for part in ("elementType", "keyType", "valueType")]
        fields = [(field.name, field.dataType) for field in getattr(kind, "fields", ())]
        return any(self.hides(*each) for each in [*fields, *(("", part) for part in parts if part is not None)])


def samples_of(
    spark: SparkSession, streams: Iterable[tuple[str, Callable[[], DataFrame]]], sampling: Sampling
) -> dict[str, SampledRows]:
    """Return a sample of each stream. Never raises for what Spark says."""
    until = seams.monotonic() + MAX_SAMPLING_S
    found: dict[str, SampledRows] = {}
    listed = list(streams)
    budget = min(BYTES, ALL_BYTES // max(len(listed), 1))
    for name, frame in listed:
        left_s = until - seams.monotonic()
        if left_s <= 0:
            found[name] = SampledRows(
                problem=f"the samples before it have taken the {MAX_SAMPLING_S:g} s that a job has for all"
            )
            continue
        limit = _Limit(spark, left_s)
        try:
            with limit:
                found[name] = _sample(frame(), sampling, budget)
        except Exception as error:  # whatever it is, the rows themselves are staged
            found[name] = SampledRows(problem=limit.timeout_text() or _describe_failure(error))
    return found


def _sample(frame: DataFrame, sampling: Sampling, budget: int) -> SampledRows:
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType

    hidden = [field.name for field in frame.schema.fields if sampling.hides(field.name, field.dataType)]
    open_fields = [field for field in frame.schema.fields if field.name not in hidden]
    shown, left_out = open_fields[:COLUMNS], len(open_fields[COLUMNS:])
    texts = []
    for field in shown:
        value = f.col(f"`{field.name.replace('`', '``')}`")
        text = f.hex(value) if isinstance(field.dataType, BinaryType) else value.cast("string")
        texts.append(f.substring(text, 1, LETTERS).alias(field.name))
    found = [] if is_known_empty(frame) or not texts else frame.limit(sampling.rows).select(*texts).collect()
    rows: list[list[str | None]] = []
    for row in found:
        values = list(row)
        budget -= len(msgspec.json.encode(values))
        if budget < 0:
            break
        rows.append(values)
    return SampledRows(columns=[field.name for field in shown], rows=rows, hidden=hidden, left_out=left_out)


class _Limit:
    """Interrupts what this thread asks Spark for in the block, after some time."""

    def __init__(self, spark: Any, seconds: float) -> None:
        self._tag = f"tidegate-sample-{seams.new_id()}"
        is_remote = type(spark).__module__.startswith("pyspark.sql.connect")
        context = spark if is_remote else spark.sparkContext  # tags of a session here are on none of its queries' jobs
        names = ("addTag", "removeTag", "interruptTag") if is_remote else _JOB_TAGS
        self._add, self._remove, self._cancel = (getattr(context, name) for name in names)
        self._timer = threading.Timer(seconds, self._interrupt)
        self._timer.daemon = True
        self._is_over = False

    def __enter__(self) -> _Limit:
        self._add(self._tag)
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._remove(self._tag)

    def _interrupt(self) -> None:
        self._is_over = True
        with contextlib.suppress(Exception):  # then it takes longer
            self._cancel(self._tag)

    def timeout_text(self) -> str:
        """Return what is to be said if the time was over."""
        return f"it took longer than the {MAX_SAMPLING_S:g} s that a job has for all samples" if self._is_over else ""


def _describe_failure(error: Exception) -> str:
    translated = translate(error)
    text = translated.what if translated is not None else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_TOLD]
