"""Emits the spans of a checkpoint (history/spans.py) as spans of OpenTelemetry, below the one that is current.

The records of a checkpoint have the times of all its steps, so each span is emitted after the fact, with its start and
its end. Nothing is imported for it: where nobody traces, `opentelemetry` is not loaded, or its current span records
nothing. A collector that is away is the exporter's affair, which sends from a thread of its own.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from tidegate.history.details import JobDetails
from tidegate.history.query import view_of
from tidegate.history.spans import Span, span_tree
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import Ledger
from tidegate.records.moments import EPOCH, moment_of
from tidegate.records.records import SparkWork, sum_of

__all__ = ["emit_parts"]

log = logging.getLogger(__name__)

PREFIX = "tidegate"
_MICRO = timedelta(microseconds=1)


def emit_parts(ledger: Ledger, id: int, names: Collection[str]) -> None:
    """Emit these parts of a checkpoint, such as "planning" or "job main", with the steps in them. Never raises."""
    trace = sys.modules.get("opentelemetry.trace")
    try:
        if trace is None or not trace.get_current_span().is_recording():
            return
        entry = ledger.entry(id)
        if entry is None:
            return
        view = view_of(ledger, entry, sizes=False)
        planned = moment_of(view.planned)
        for part in span_tree(view).parts:
            if part.name in names and planned is not None:
                _Emitter(trace, ledger.pipeline, view, planned).emit(part)
    except Exception as error:
        log.warning("Could not emit spans of checkpoint %s: %r. The checkpoint is not affected", id, error)


class _Emitter:
    """Emits spans of one checkpoint."""

    def __init__(self, trace: Any, pipeline: str, view: CheckpointView, planned: datetime) -> None:
        self.trace = trace
        self.tracer = trace.get_tracer(PREFIX)
        self.view = view
        self.planned = planned
        self.common = {f"{PREFIX}.pipeline": pipeline, f"{PREFIX}.checkpoint": view.id}

    def emit(self, span: Span) -> None:
        """Emit a part of the checkpoint: for a job, also its steps, as children."""
        job = self.view.details.jobs.get(span.name.removeprefix("job "))
        if job is None:
            self._emit(span, {}, None)
            return
        about = {f"{PREFIX}.job": span.name.removeprefix("job "), f"{PREFIX}.attempt": job.attempt}
        rows = _rows_of(job)
        emitted = self._emit(span, about | {f"{PREFIX}.rows": sum(job.rows.values())}, None)
        if emitted is None:
            return
        below = self.trace.set_span_in_context(emitted)
        for step in span.parts:
            counted = {f"{PREFIX}.rows": rows[step.name]} if step.name in rows else {}
            self._emit(step, {**about, f"{PREFIX}.step": step.name, **counted}, below)

    def _emit(self, span: Span, attributes: dict[str, Any], context: Any) -> Any:
        """Emit one span, and return it. None if its records do not say when it was."""
        if span.start_s is None or span.seconds is None:
            return None
        begin = self.planned + timedelta(seconds=span.start_s)
        emitted = self.tracer.start_span(
            span.name,
            context=context,
            start_time=_nanoseconds(begin),
            attributes={**self.common, **attributes, **_work(span.spark)},
        )
        emitted.end(_nanoseconds(begin + timedelta(seconds=span.seconds)))
        return emitted


def _nanoseconds(moment: datetime) -> int:
    return (moment - EPOCH) // _MICRO * 1000


def _rows_of(job: JobDetails) -> dict[str, int]:
    """Return the rows of each step that reads, stages or sends some, where they are known."""
    counted: dict[str, int | None] = {"read": sum_of(job.read.values()).rows}
    for sink, rows in job.rows.items():
        counted |= {f"stage {sink}": rows, f"write {sink}": rows}
    for stream, amount in job.sent.items():
        counted[f"send {stream}"] = amount.rows
    return {step: rows for step, rows in counted.items() if rows is not None}


def _work(spark: SparkWork | None) -> dict[str, Any]:
    """Return the known figures of Spark's work."""
    if spark is None:
        figures = {}
    else:
        figures = {name: getattr(spark, name) for name in SparkWork.__struct_fields__}
    return {f"{PREFIX}.spark.{name}": value for name, value in figures.items() if value is not None}
