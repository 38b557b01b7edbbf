"""Measurements of one attempt at a job, for its ack (records/measures.py defines each)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tidegate import seams
from tidegate.connectors.sink import Prepared
from tidegate.delta import Syncing, overlapping_seconds
from tidegate.execution.job.exchange import Exchange
from tidegate.execution.job.operators import OperatorRunner
from tidegate.pipeline.graph.graph import Job
from tidegate.records.records import Amount, Computed, JobStats, SparkWork, StepStats, Verdict
from tidegate.spark.work import SparkMeter, Unmetered, metered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobMeter"]


class JobMeter:
    """One attempt's clock and counts."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.started = seams.now().isoformat(timespec="milliseconds")
        self.seconds: dict[str, float] = {}
        self.taken: dict[str, Amount] = {}
        """By source, the amount in its planned range."""
        self._steps: list[StepStats] = []
        self._spark: SparkMeter = Unmetered()
        self._began = seams.monotonic()
        self._open: dict[int, tuple[str, float]] = {}
        """The phases that are open, by their numbers, and when each began."""
        self._lock = threading.Lock()

    def current_phase(self) -> tuple[str, float]:
        """Return the phase that has been open for longest, and for how many seconds by now; ("", 0): none is."""
        with self._lock:
            opened = next(iter(self._open.values()), None)
        if opened is not None:
            return (opened[0], round(seams.monotonic() - opened[1], 3))
        return ("", 0.0)

    @contextlib.contextmanager
    def watching(self, spark: SparkSession | None) -> Iterator[None]:
        """Count what Spark does for each phase in the block."""
        with metered(spark) as self._spark:
            yield

    def note_computed(self, number: int, computed: Computed | None) -> None:
        """Note how the operator of the phase with this number was computed."""
        with self._lock:
            self._steps[number] = msgspec.structs.replace(self._steps[number], computed=computed)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[int]:
        """Time one phase, which gets a number. In one thread they do not nest; several threads may each have one open.
        The duration of a phase that occurs twice counts both."""
        began = seams.monotonic()
        with self._lock:
            number = len(self._steps)
            self._steps.append(StepStats(name=phase, after_s=round(began - self._began, 3), seconds=0.0))
            self._open[number] = phase, began
        self._spark.enter(number)
        try:
            yield number
        finally:
            took = seams.monotonic() - began
            with self._lock:
                del self._open[number]
                self.seconds[phase] = self.seconds.get(phase, 0.0) + took
                self._steps[number] = msgspec.structs.replace(self._steps[number], seconds=round(took, 3))
            self._spark.enter(None)

    def stats(
        self,
        staged: Mapping[str, Prepared],
        operating: OperatorRunner,
        exchange: Exchange,
        verdicts: Mapping[str, Verdict],
    ) -> JobStats:
        """Return the measurements for the ack, once everything is staged and durable."""
        beside: Sequence[Syncing] = [*operating.syncing, *exchange.syncing]
        waited = sum(exchange.waited for exchange in beside)
        spark = self._spark.collect_work()
        steps = self._steps
        if spark:
            steps = [
                msgspec.structs.replace(step, spark=spark.get(number, SparkWork())) for number, step in enumerate(steps)
            ]
        return JobStats(
            started=self.started,
            seconds={name: round(value, 3) for name, value in self.seconds.items()},
            steps=list(steps),
            between_steps=spark.get(None),
            aligned_s=exchange.aligned_s,
            sync_s=round(seams.monotonic() - self._began - waited, 3),
            async_s=round(overlapping_seconds(beside), 3),
            read=self._count_missing_rows(operating, verdicts),
            received=exchange.received,
            sent=exchange.amounts,
            processed=exchange.processed,
            rows={name: prepared.rows for name, prepared in staged.items()},
            bytes={name: prepared.bytes for name, prepared in staged.items()},
            files={name: prepared.files for name, prepared in staged.items()},
            watermarks=operating.event_times.watermark_texts(),
            idle=operating.event_times.idle(),
            counts=operating.counts,
        )

    def _count_missing_rows(self, operating: OperatorRunner, verdicts: Mapping[str, Verdict]) -> dict[str, Amount]:
        """Return the amounts, completed for sources that do not know their number of rows by counts made in passing: by
        the lookup of the highest event time, or by a gate directly after the source. Rows are never read only to be
        counted."""
        judged = {}
        for gated in self.job.gates:
            if gated.name in verdicts:
                judged[gated.input] = verdicts[gated.name].rows
        counted = {**judged, **operating.event_times.counted}
        completed = dict(self.taken)
        for name, amount in self.taken.items():
            if amount.rows is None:
                completed[name] = msgspec.structs.replace(amount, rows=counted.get(name))
        return completed
