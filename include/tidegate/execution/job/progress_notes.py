"""What a job is doing while it does it, noted beside the log now and then for whoever watches.

A note costs a write. So a job that is soon over makes none, and a long one makes one every few seconds. Nothing is
decided by a note; to be unable to write one is no failure.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.execution.job.measuring import JobMeter
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.records.records import JobNote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["noting_progress"]

FIRST_S = 3.0
"""A job that takes less makes no note."""
EVERY_S = 5.0
_PATIENCE_S = 2.0


@contextlib.contextmanager
def noting_progress(
    ledger: Ledger, id: int, meter: JobMeter, attempt: str, spark: SparkSession | None
) -> Iterator[None]:
    """Note the progress of an attempt at a job of checkpoint `id` in the block."""
    if spark is None:
        yield
        return
    over, tasks = threading.Event(), _Tasks()

    def work() -> None:
        wait_s = FIRST_S
        while not over.wait(wait_s):
            wait_s = EVERY_S
            with contextlib.suppress(Exception):
                ledger.hint_progress(_note(id, meter, attempt, tasks))

    with tasks.heard(spark):
        thread = threading.Thread(target=work, daemon=True, name="note-progress")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_PATIENCE_S)  # a store that hangs holds up no ack


class _Tasks:
    """How far Spark has come with the query that it works at, if it tells: a Connect server does."""

    def __init__(self) -> None:
        self.done: int | None = None
        self.total: int | None = None
        self.bytes_read: int | None = None

    @contextlib.contextmanager
    def heard(self, spark: Any) -> Iterator[None]:
        if not type(spark).__module__.startswith("pyspark.sql.connect"):
            yield
            return
        spark.registerProgressHandler(self.hear)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                spark.removeProgressHandler(self.hear)

    def hear(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """As pyspark calls it, in the middle of a query: so it never raises. A query that is done is no longer worked
        at."""
        with contextlib.suppress(Exception):
            listed = [] if done else list(stages or ())
            self.done = sum(stage.num_completed_tasks for stage in listed) if listed else None
            self.total = sum(stage.num_tasks for stage in listed) if listed else None
            self.bytes_read = sum(stage.num_bytes_read for stage in listed) if listed else None


def _note(id: int, meter: JobMeter, attempt: str, tasks: _Tasks) -> JobNote:
    step, step_s = meter.current_phase()
    return JobNote(
        **stamp(attempt),
        id=id,
        job=meter.job.name,
        started=meter.started,
        step=step,
        current_step_seconds=step_s,
        step_seconds={name: round(seconds, 3) for name, seconds in dict(meter.seconds).items()},
        read=dict(meter.taken),
        tasks_done=tasks.done,
        tasks=tasks.total,
        bytes_read=tasks.bytes_read,
    )
