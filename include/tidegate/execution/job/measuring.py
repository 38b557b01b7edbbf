"""Measurements of one attempt at a job, for its ack (records/records.py defines each)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tidegate import seams
from tidegate.delta import Syncing, seconds_beside
from tidegate.execution.job.exchange import Exchange
from tidegate.execution.job.operators import OperatorRunner
from tidegate.pipeline.graph.graph import Job
from tidegate.records.records import Amount, JobStats, Verdict
from tidegate.sinks.base import Prepared

__all__ = ["JobMeter"]


class JobMeter:
    """One attempt's clock and counts."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.started = seams.now().isoformat(timespec="milliseconds")
        self.seconds: dict[str, float] = {}
        self.taken: dict[str, Amount] = {}
        """By source, the amount in its planned range."""
        self._began = seams.monotonic()

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Time one phase. A phase that occurs twice counts with both durations."""
        began = seams.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seams.monotonic() - began

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
        return JobStats(
            started=self.started,
            seconds={name: round(value, 3) for name, value in self.seconds.items()},
            aligned_s=exchange.aligned_s,
            sync_s=round(seams.monotonic() - self._began - waited, 3),
            async_s=round(seconds_beside(beside), 3),
            taken=self._told(operating, verdicts),
            received=exchange.received,
            sent=exchange.amounts,
            processed=exchange.processed,
            rows={name: prepared.rows for name, prepared in staged.items()},
            bytes={name: prepared.bytes for name, prepared in staged.items()},
            files={name: prepared.files for name, prepared in staged.items()},
            watermarks=operating.event_times.told(),
            idle=operating.event_times.idle(),
            counts=operating.counts,
        )

    def _told(self, operating: OperatorRunner, verdicts: Mapping[str, Verdict]) -> dict[str, Amount]:
        """Return the amounts, completed for sources that do not know their number of rows by counts made in passing: by
        the lookup of the highest event time, or by a gate directly after the source. Rows are never read only to be
        counted."""
        judged = {gated.input: verdicts[gated.name].rows for gated in self.job.gates if gated.name in verdicts}
        counted = {**judged, **operating.event_times.counted}
        return {
            name: msgspec.structs.replace(amount, rows=counted.get(name)) if amount.rows is None else amount
            for name, amount in self.taken.items()
        }
