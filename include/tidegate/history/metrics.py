"""A pipeline's metrics, the same for StatsD, OpenTelemetry, Prometheus and `tidegate metrics`.

Names and units are Flink's where Flink has them (milliseconds, bytes), so that existing panels, and what users know of
Flink, keep their meaning. All are gauges, as in Flink: each scrape reads them from the ledger and the history again. So
no process has to count, the next sample makes up for a lost one, and two exporters report the same number.
`metrics` is a pure function of what `figures` has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import MAXYEAR, datetime
from typing import Final

from tidegate.checkpoint import skipping, troubles
from tidegate.history.backfill import BackfillStatus, backfill_statuses
from tidegate.history.health import Health, HealthLimits, Observations, condition, observe
from tidegate.history.query import CheckpointHistory
from tidegate.history.row import MEASURES
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import Ledger
from tidegate.records.moments import moment_of
from tidegate.records.records import Lag, Plan
from tidegate.state.table import STATE

__all__ = ["METRICS", "READ_AGE", "Figures", "Metric", "figures", "metrics"]

READ_AGE: Final = "readAge"

METRICS: Final[Mapping[str, str]] = {
    # Flink's
    "totalNumberOfCheckpoints": "Checkpoints ever triggered.",
    "numberOfCompletedCheckpoints": "Checkpoints ever completed.",
    "numberOfFailedCheckpoints": "Checkpoints ever aborted.",
    "numberOfInProgressCheckpoints": "Checkpoints that are planned and not decided.",
    "lastCompletedCheckpointId": "The last completed checkpoint.",
    "lastCheckpointCompletedTimestamp": "When it was completed, in ms since 1970.",
    "lastCheckpointSize": "Bytes that it has written: output, and what changed of the state.",
    "lastCheckpointFullSize": "Bytes of all state as of it, and of its output.",
    "lastCheckpointRestoreTimestamp": "When somebody last went back to a checkpoint, in ms since 1970; -1: never.",
    "lastCheckpointProcessedData": "Bytes that were in flight, and that its jobs have taken.",
    "lastCheckpointPersistedData": "Bytes in flight as of it, past which it went.",
    "currentInputWatermark": "How far event time has come, by source or operator, in ms since 1970.",
    "numLateRecordsDropped": "Rows of it that came too late, by operator.",
    "numRecordsIn": "Rows that it has read from each source, where that is known.",
    "numBytesIn": "Bytes of these.",
    "pendingRecords": "Rows that waited at each source when it was planned, if the source can tell; at most.",
    "pendingBytes": "Bytes that waited there, of files or of a database's log.",
    "numRecordsOut": "Rows that it has given to each sink.",
    **{measure.metric: measure.metric_help for measure in MEASURES.values() if measure.metric},
    # Ours
    "numRecordsJudged": "Rows that each gate has seen.",
    "numRecordsQuarantined": "Rows that each gate has quarantined.",
    "numRecordsReleased": "Rows that each gate has let back in from quarantine.",
    "gateFailures": "Rules that were broken, by gate.",
    "stateSize": "Bytes of each keyed state.",
    "stateRows": "Rows of each keyed state.",
    "stateFiles": "Files of each keyed state.",
    "stateRowsToMerge": "Rows in files of each keyed state that are due to be merged, and wait for their turn.",
    "watermarkLag": "How far event time is behind the clock, in ms.",
    "heldCheckpoints": "Checkpoints that wait for a person.",
    "unpublishedCheckpoints": "Completed checkpoints that are not on all tables yet.",
    "unpublishedTables": "Tables of these.",
    "numberOfConsecutiveFailures": "Checkpoints that have failed since the last one completed, or somebody resumed.",
    "numberOfConsecutivePlanFailures": "Runs in a row that could not even plan a checkpoint.",
    "suspended": "1: no run plans a checkpoint until somebody resumes the pipeline.",
    "pendingFiles": "Files that waited at each source when it was planned.",
    "oldestPendingRecord": "The age of the oldest row or file that waited at each source when it was planned, in ms.",
    "neverRead": "Files and the like that lie at each source and that no run will ever read by itself.",
    "intervalGaps": "Of an interval pipeline: stretches of time between its intervals that no checkpoint has made.",
    "backfillCheckpoints": "Checkpoints that a backfill has made itself.",
    "backfillPendingCheckpoints": "Checkpoints of the pipeline whose input its backfill has not read yet.",
    "backfillLag": "How long ago the oldest of these was completed, in ms; 0: it has read all of them.",
    "readable": "0: ledger or settings cannot be read, so it has no other metrics.",
    READ_AGE: "How long ago this was read, in ms: of very many pipelines, the web server reads only some for a scrape.",
    "needsAttention": "1: `tidegate explain` names a cause and something to do.",
}
"""The meaning of each. "It" is the last completed checkpoint."""


@dataclass(frozen=True)
class Metric:
    """One number. `labels` are those besides the pipeline's name."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """All that the metrics are computed from."""

    observed: Observations
    health: Health
    counts: Mapping[str, int]
    last: CheckpointView | None
    """The last completed checkpoint."""
    restored: CheckpointView | None
    """The last rollback."""
    now: datetime
    forked: str | None = None
    """When it began from a savepoint or a checkpoint of another pipeline, if it did."""
    lines: tuple[BackfillStatus, ...] = ()
    """Backfills that are not over."""


def figures(
    ledger: Ledger,
    limits: HealthLimits,
    options: Mapping[str, str],
    is_gone: Callable[[Plan], str | None],
    now: datetime,
) -> Figures:
    """Read them. A lost history is left out: then only what the ledger has is counted."""
    past = CheckpointHistory(ledger, options)
    observed = observe(ledger, limits, is_gone)
    last, restored = past.last_completed(), past.newest("rollback")
    lines = tuple(backfill_statuses(ledger, options))
    begun = ledger.identity_or_none()
    forked = begun.created if begun is not None and begun.origin is not None else None
    return Figures(observed, condition(observed), past.counts(), last, restored, now, forked, lines)


def metrics(found: Figures) -> list[Metric]:
    """All of them, in the order of METRICS."""
    listed = [*_counts(found), *_last(found), *_standing(found)]
    order = list(METRICS)
    return sorted(listed, key=lambda metric: (order.index(metric.name), sorted(metric.labels.items())))


def _counts(found: Figures) -> Iterator[Metric]:
    counts = found.counts
    yield Metric("totalNumberOfCheckpoints", counts["triggered"])
    yield Metric("numberOfCompletedCheckpoints", counts["completed"])
    yield Metric("numberOfFailedCheckpoints", counts["failed"])
    yield Metric("numberOfInProgressCheckpoints", counts["in_progress"])
    yield Metric("heldCheckpoints", counts["held"])
    restored = found.restored.decided if found.restored is not None else found.forked
    yield Metric("lastCheckpointRestoreTimestamp", _epoch_ms(restored) if restored is not None else -1)


def _standing(found: Figures) -> Iterator[Metric]:
    view, pending = found.observed.view, found.observed.pending
    tables = {name for id in pending if (entry := view.get(id)) and entry.manifest for name in entry.manifest.tables}
    failed = 0
    for entry in reversed(view.entries):
        if entry.completed or (entry.control is not None and entry.control.action == "resume"):
            break
        failed += entry.decision is not None and entry.decision.counts
    yield Metric("unpublishedCheckpoints", len(pending))
    yield Metric("unpublishedTables", len(tables))
    yield Metric("numberOfConsecutiveFailures", failed)
    yield Metric("numberOfConsecutivePlanFailures", troubles.unplanned(found.observed.trouble, view))
    yield Metric("suspended", int(found.health.state == "suspended"))
    yield from (Metric("neverRead", count, {"source": name}) for name, count in skipping.counts(view).items())
    yield Metric("intervalGaps", len(found.observed.gaps))
    for line in found.lines:
        label = {"backfill": line.record.name}
        oldest = moment_of(line.oldest_pending)
        yield Metric("backfillCheckpoints", line.checkpoints, label)
        yield Metric("backfillPendingCheckpoints", len(line.pending), label)
        age_ms = round((found.now - oldest).total_seconds() * 1000) if oldest is not None else 0
        yield Metric("backfillLag", age_ms, label)
    yield Metric("readable", 1)
    yield Metric(READ_AGE, 0)
    yield Metric("needsAttention", int(not found.health.needs_nothing))


def _last(found: Figures) -> Iterator[Metric]:
    """Metrics of the last completed checkpoint; what it did not measure is left out, not zero."""
    view = found.last
    if view is None:
        return
    yield Metric("lastCompletedCheckpointId", view.id)
    if view.decided is not None:
        yield Metric("lastCheckpointCompletedTimestamp", _epoch_ms(view.decided))
    yield from _measures(view)
    written = view.bytes_out or 0
    yield Metric("lastCheckpointSize", written + (view.state_delta or 0))
    yield Metric("lastCheckpointFullSize", written + (view.state_bytes or 0))
    yield Metric("lastCheckpointProcessedData", view.processed_bytes or 0)
    yield Metric("lastCheckpointPersistedData", view.persisted_bytes or 0)
    for name, state in view.details.states.items():
        label = {"state": name.removeprefix(STATE)}
        yield Metric("stateSize", state.bytes, label)
        yield Metric("stateRows", state.rows, label)
        yield Metric("stateFiles", state.files, label)
        yield Metric("stateRowsToMerge", state.unmerged, label)
    yield from _rows(view)
    yield from _event_time(view, found.now)


def _measures(view: CheckpointView) -> Iterator[Metric]:
    """Return the measures that are declared with a metric of their own."""
    for name, measure in MEASURES.items():
        value = getattr(view, name)
        if measure.metric and value is not None:
            yield Metric(measure.metric, round(value * 1000) if measure.unit == "s" else value)


def _rows(view: CheckpointView) -> Iterator[Metric]:
    for source, amount in view.details.amounts_read.items():
        if amount.rows is not None:
            yield Metric("numRecordsIn", amount.rows, {"source": source})
        if amount.bytes is not None:
            yield Metric("numBytesIn", amount.bytes, {"source": source})
    for source, part in view.details.sources.items():
        if part.lag is not None:
            yield from _pending(part.lag, source)
    for sink, count in view.details.staged_rows.items():
        yield Metric("numRecordsOut", count, {"sink": sink})
    late = {operator: rows for job in view.details.jobs.values() for operator, rows in job.late_rows.items()}
    for operator, rows in late.items():
        yield Metric("numLateRecordsDropped", rows, {"operator": operator})
    for name, gate in view.details.gates.items():
        yield Metric("numRecordsJudged", gate.rows, {"gate": name})
        yield Metric("numRecordsQuarantined", gate.quarantined, {"gate": name})
        yield Metric("numRecordsReleased", gate.released, {"gate": name})
        yield Metric("gateFailures", len(gate.broken), {"gate": name})


def _pending(lag: Lag, source: str) -> Iterator[Metric]:
    age_ms = round(lag.seconds * 1000) if lag.seconds is not None else None
    pending = {"pendingRecords": lag.rows, "pendingBytes": lag.bytes, "pendingFiles": lag.files}
    for name, value in (pending | {"oldestPendingRecord": age_ms}).items():
        if value is not None:
            yield Metric(name, value, {"source": source})


def _event_time(view: CheckpointView, now: datetime) -> Iterator[Metric]:
    for job in view.details.jobs.values():
        for name, watermark in job.watermarks.items():
            moment = moment_of(watermark)
            if moment is not None and moment.year < MAXYEAR:  # that is the end of time, after a drain
                yield Metric("currentInputWatermark", _epoch_ms(watermark), {"of": name})
    lowest = moment_of(view.watermark)
    if lowest is not None:
        yield Metric("watermarkLag", round((now - lowest).total_seconds() * 1000))


def _epoch_ms(text: str) -> int:
    moment = moment_of(text)
    return round(moment.timestamp() * 1000) if moment is not None else -1
