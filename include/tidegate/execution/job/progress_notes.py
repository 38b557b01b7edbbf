"""Writes notes on the progress of a running job, for people who watch.

A note costs a write, so a short job writes none, and a long one writes one every few seconds. Nothing depends on notes,
and errors in writing them are ignored.
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
"""When the first note is written. Shorter jobs write none."""
EVERY_S = 5.0
_PATIENCE_S = 2.0


@contextlib.contextmanager
def noting_progress(
    ledger: Ledger, id: int, meter: JobMeter, attempt: str, spark: SparkSession | None
) -> Iterator[None]:
    """Write notes, while the block runs, on an attempt at a job of checkpoint `id`."""
    if spark is None:
        yield
        return
    ended, tasks = threading.Event(), _Tasks()

    def write_notes() -> None:
        wait_s = FIRST_S
        while not ended.wait(wait_s):
            wait_s = EVERY_S
            with contextlib.suppress(Exception):
                ledger.hint_progress(_note(id, meter, attempt, tasks))

    with tasks.listening(spark):
        thread = threading.Thread(target=write_notes, daemon=True, name="note-progress")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_PATIENCE_S)  # a store that hangs must not delay the ack


class _Tasks:
    """Progress of the running Spark query, if Spark reports it, as a Connect server does."""

    def __init__(self) -> None:
        self.done: int | None = None
        self.total: int | None = None
        self.bytes_read: int | None = None

    @contextlib.contextmanager
    def listening(self, spark: Any) -> Iterator[None]:
        if not type(spark).__module__.startswith("pyspark.sql.connect"):
            yield
            return
        spark.registerProgressHandler(self.on_progress)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                spark.removeProgressHandler(self.on_progress)

    def on_progress(
        self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        """Handle a progress report. pyspark calls this in the middle of a query, so it never raises."""
        with contextlib.suppress(Exception):
            running = [] if done else list(stages or ())
            if not running:
                self.done = self.total = self.bytes_read = None
                return
            self.done = sum(stage.num_completed_tasks for stage in running)
            self.total = sum(stage.num_tasks for stage in running)
            self.bytes_read = sum(stage.num_bytes_read for stage in running)


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
