"""The figures of a job and of a checkpoint: amounts, times, and the work of Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tidegate.records.base import Id, Struct

__all__ = [
    "Amount",
    "Computed",
    "JobStats",
    "Pace",
    "SparkWork",
    "StepStats",
    "Timed",
    "sum_of",
    "work_of",
]


class Timed(Struct, frozen=True, kw_only=True):
    """A completed checkpoint: the amount it read from the source, and its duration by its writers' clocks."""

    id: Id
    amount: int
    seconds: float


class Pace(Struct, frozen=True, kw_only=True):
    """One source's pace in one plan."""

    unit: str
    """The unit of amounts: bytes or rows."""
    at_most: int | None
    """None if nothing is known yet: only the source's own bounds apply."""
    planned: int = msgspec.field(name="taken")
    """The amount that the plan reads."""
    target_s: float
    """How long a checkpoint should take."""
    fixed_s: float = 0.0
    """The part of its duration that does not depend on its input, as far as observed."""
    based_on: list[Timed] = msgspec.field(default_factory=list, name="seen")
    """The checkpoints on which the pace is based, oldest first."""
    why: str
    """For display."""


class Amount(Struct, frozen=True, kw_only=True):
    """An amount of data. None means unknown."""

    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """Return the total. A figure that is unknown in one amount is unknown in the total."""
    parts = list(amounts)
    return Amount(
        rows=_sum(part.rows for part in parts),
        bytes=_sum(part.bytes for part in parts),
        files=_sum(part.files for part in parts),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


class SparkWork(Struct, frozen=True, kw_only=True):
    """Spark's work for a part of a job (spark/work.py). A figure is None if the connection to Spark does not show
    it."""

    queries: int | None = None
    """Requests to compute something, each of which Spark plans: a write, a count, a frame that is computed once."""
    query_s: float | None = None
    """Their total duration. Like all durations here, it counts concurrent work several times."""
    analyses: int | None = None
    """Requests to analyze a plan without computing it, such as for a frame's columns: round trips to a server."""
    analysis_s: float | None = None
    planning_s: float | None = None
    """The part of `query_s` in which Spark analyzed, optimized and planned."""
    jobs: int | None = None
    stages: int | None = None
    tasks: int | None = None
    running_s: float | None = None
    """The part of `query_s` in which a Spark job of the query ran, scheduling included."""
    task_s: float | None = None
    """The total duration of all tasks."""
    slowest_task_s: float | None = None
    """The duration of the slowest task. Many times the average means that rows are skewed."""
    spilled_bytes: int | None = None
    """Bytes that tasks spilled to disk for lack of memory."""
    read_bytes: int | None = None
    """Bytes read from files and shuffles."""
    written_bytes: int | None = None
    """Bytes written to files and shuffles."""


def work_of(parts: Iterable[SparkWork | None]) -> SparkWork:
    """Return the total. A figure that is unknown in one part is unknown in the total, as all are if there are no
    parts."""
    works = [part or SparkWork() for part in parts]
    if not works:
        return SparkWork()
    totals: dict[str, Any] = {}
    for field in SparkWork.__struct_fields__:
        figures = [getattr(work, field) for work in works]
        if None in figures:
            continue
        total = max(figures) if field == "slowest_task_s" else sum(figures)
        totals[field] = round(total, 3) if isinstance(total, float) else total
    return SparkWork(**totals)


class Computed(Struct, frozen=True, kw_only=True):
    """How an operator was computed."""

    workers: bool = False
    """True if its kernel ran in workers: in one query, if they read and write the state's files themselves."""
    spark: bool = False
    """True if Spark moved rows to the workers and back, or computed all of it, in several queries one after another."""
    why: list[str] = []
    """Why workers alone could not, unless the kind of operator says so."""
    spilled: int = 0
    """Bytes that workers spilled to local disk for lack of memory."""
    row_groups_read: int = 0
    """The row groups of the state's files that workers searched."""
    row_groups: int = 0
    """All row groups of these files. Statistics ruled out the rest. One that several workers reached counts for
    each."""
    rows_in: int | None = None
    """The rows that workers got from upstream; of a sum, those that Spark had not yet added up. None: not counted."""
    rows_out: int | None = None
    """The rows that workers emitted, without retractions and side outputs. None: not counted."""

    @property
    def text(self) -> str:
        """The same for people."""
        text = " and ".join(name for name, used in (("workers", self.workers), ("Spark", self.spark)) if used)
        if self.rows_in is not None and self.rows_out is not None:
            text += f", {self.rows_in:,} rows in, {self.rows_out:,} out"
        if self.row_groups:
            text += f", read {self.row_groups_read:,} of {self.row_groups:,} row groups"
        if self.spilled:
            text += f", {max(self.spilled / 1e6, 0.1):,.1f} MB spilled to disk"
        if self.why:
            return f"{text}: {'; '.join(self.why)}"
        return text


class StepStats(Struct, frozen=True, kw_only=True):
    """One step of a job. A job's steps are listed in the order in which they ran; one that ran twice is listed
    twice."""

    name: str
    after_s: float
    """When it began, in seconds since the start of the attempt."""
    seconds: float
    spark: SparkWork | None = None
    computed: Computed | None = None
    """For the step of an operator that had work to do."""


class JobStats(Struct, frozen=True, kw_only=True):
    """A job's measurements of itself, for display. No decision depends on them."""

    started: str = ""
    """The start of the attempt, by its machine's clock. Empty if a version wrote it that did not record this."""
    seconds: dict[str, float] = {}
    """The duration of each step, by name."""
    steps: list[StepStats] = []
    """Each step by itself. Empty if a version wrote it that did not record them."""
    between_steps: SparkWork | None = msgspec.field(default=None, name="between")
    """Spark's work outside of all steps."""
    aligned_s: float | None = None
    sync_s: float | None = None
    async_s: float | None = None
    read: dict[str, Amount] = msgspec.field(default_factory=dict, name="taken")
    """The amount read, by source."""
    received: dict[str, Amount] = {}
    """The amount read from channels of other jobs, by stream."""
    sent: dict[str, Amount] = {}
    """The amount written to channels for other jobs, by stream."""
    processed: Amount | None = None
    """The part of `received` that was in flight, that is, sent in earlier checkpoints."""
    rows: dict[str, int] = {}
    """The number of rows staged, by sink; bytes and files likewise."""
    bytes: dict[str, int] = {}
    files: dict[str, int] = {}
    watermarks: dict[str, str] = {}
    """The watermarks, by source and operator."""
    idle: list[str] = []
    """Idle sources, for which event time did not wait."""
    counts: dict[str, dict[str, int]] = {}
    """Counters of operators, such as late rows."""

    @property
    def spark(self) -> SparkWork:
        """All of Spark's work for the job."""
        if not self.steps:
            return SparkWork()
        return work_of([*(step.spark for step in self.steps), self.between_steps])

    def spark_of(self, *prefixes: str) -> SparkWork:
        """Return Spark's work in the steps whose names begin with one of these prefixes, such as `state totals`."""
        return work_of(step.spark for step in self.steps if step.name.startswith(prefixes))
