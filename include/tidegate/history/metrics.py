"""A pipeline's metrics, the same for StatsD, OpenTelemetry, Prometheus and `tidegate metrics`.

Names and units are Flink's where Flink has them (milliseconds, bytes), so that existing panels and knowledge of Flink
apply. All are gauges, as in Flink: each scrape reads them from the ledger and the history again. So no process has to
count, the next sample makes up for a lost one, and two exporters report the same number. `metrics` is a pure function
of the figures that `figures` reads.
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
from tidegate.history.schemas.drift import DriftDetails
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
    "lastCheckpointSize": "Bytes that it has written: output and changed state.",
    "lastCheckpointFullSize": "Bytes of all state as of it, and of its output.",
    "lastCheckpointRestoreTimestamp": "When the last rollback was made, in ms since 1970; -1: never.",
    "lastCheckpointProcessedData": "Bytes that were in flight, and that its jobs have read.",
    "lastCheckpointPersistedData": "Bytes in flight as of it, which it overtook.",
    "currentInputWatermark": "The watermark of each source and operator, in ms since 1970.",
    "numLateRecordsDropped": "Its late rows, by operator.",
    "numRecordsIn": "Rows that it has read from each source, where that is known.",
    "numBytesIn": "Bytes of these.",
    "pendingRecords": "At most this many rows waited at each source when it was planned, where that is known.",
    "pendingBytes": "Bytes that waited there, of files or of a database's log.",
    "numRecordsOut": "Rows that it has staged for each sink.",
    **{measure.metric: measure.metric_help for measure in MEASURES.values() if measure.metric},
    # Ours
    "numRecordsRescued": "Records of each source that follows its input with anything that did not fit the schema.",
    "newColumns": "Keys of each such source that become columns with the next checkpoint.",
    "newKeysWithoutColumn": "Keys of each such source that its schema lacks, and that become no columns.",
    "numRecordsJudged": "Rows that each gate has judged.",
    "numRecordsQuarantined": "Rows that each gate has quarantined.",
    "numRecordsReleased": "Rows that each gate has released from quarantine.",
    "gateFailures": "Rules that were broken, by gate.",
    "stateSize": "Bytes of each keyed state.",
    "stateRows": "Rows of each keyed state.",
    "stateFiles": "Files of each keyed state.",
    "stateRowsToMerge": "Rows in files of each keyed state that are due to be merged.",
    "watermarkLag": "How far event time is behind the clock, in ms.",
    "heldCheckpoints": "Checkpoints that wait for a person.",
    "unpublishedCheckpoints": "Completed checkpoints that are not on all tables yet.",
    "unpublishedTables": "Tables of these.",
    "numberOfConsecutiveFailures": "Checkpoints that have failed since the last completed one or the last resumption.",
    "numberOfConsecutivePlanFailures": "Runs in a row that could not even plan a checkpoint.",
    "suspended": "1: no run plans a checkpoint until the pipeline is resumed.",
    "pendingFiles": "Files that waited at each source when it was planned.",
    "oldestPendingRecord": "The age of the oldest row or file that waited at each source when it was planned, in ms.",
    "neverRead": "Files and the like at each source that no run will ever read by itself.",
    "intervalGaps": "Gaps between the intervals of an interval pipeline that no checkpoint has made.",
    "backfillCheckpoints": "Checkpoints that a backfill has made itself.",
    "backfillPendingCheckpoints": "Checkpoints of the pipeline whose input its backfill has not read yet.",
    "backfillLag": "How long ago the oldest of these was completed, in ms; 0: it has read all of them.",
    "tableAge": "How old the table of each sink is for which the pipeline makes a promise, in ms.",
    "promisedAge": "How old it may be, in ms.",
    "promiseBroken": "1: it is older than that.",
    "readable": "0: ledger or settings cannot be read, so it has no other metrics.",
    READ_AGE: "How long ago this was read, in ms: with very many pipelines, the web server reads only some per scrape.",
    "needsAttention": "1: `tidegate explain` names a cause and a remedy.",
}
"""The meaning of each. "It" is the last completed checkpoint."""


@dataclass(frozen=True)
class Metric:
    """One number. `labels` are in addition to the pipeline's name."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """The input of `metrics`."""

    observed: Observations
    health: Health
    counts: Mapping[str, int]
    last: CheckpointView | None
    """The last completed checkpoint."""
    restored: CheckpointView | None
    """The last rollback."""
    now: datetime
    forked: str | None = None
    """When it was forked from another pipeline, if it was."""
    lines: tuple[BackfillStatus, ...] = ()
    """Backfills that are not discarded."""


def figures(
    ledger: Ledger,
    limits: HealthLimits,
    options: Mapping[str, str],
    is_gone: Callable[[Plan], str | None],
    now: datetime,
) -> Figures:
    """Read the figures. If the history is lost, only the ledger's checkpoints are counted."""
    history = CheckpointHistory(ledger, options)
    observed = observe(ledger, limits, is_gone)
    last, restored = history.last_completed(), history.newest("rollback")
    lines = tuple(backfill_statuses(ledger, options))
    identity = ledger.identity_or_none()
    forked = None
    if identity is not None and identity.origin is not None:
        forked = identity.created
    return Figures(observed, condition(observed), history.counts(), last, restored, now, forked, lines)


def metrics(figures: Figures) -> list[Metric]:
    """Return all metrics, in the order of METRICS."""
    listed = [*_counts(figures), *_last(figures), *_present_state(figures)]
    order = list(METRICS)
    return sorted(listed, key=lambda metric: (order.index(metric.name), sorted(metric.labels.items())))


def _counts(figures: Figures) -> Iterator[Metric]:
    counts = figures.counts
    yield Metric("totalNumberOfCheckpoints", counts["triggered"])
    yield Metric("numberOfCompletedCheckpoints", counts["completed"])
    yield Metric("numberOfFailedCheckpoints", counts["failed"])
    yield Metric("numberOfInProgressCheckpoints", counts["in_progress"])
    yield Metric("heldCheckpoints", counts["held"])
    if figures.restored is not None:
        restored = figures.restored.decided
    else:
        restored = figures.forked
    yield Metric("lastCheckpointRestoreTimestamp", _epoch_ms(restored) if restored is not None else -1)


def _present_state(figures: Figures) -> Iterator[Metric]:
    observed, view = figures.observed, figures.observed.view
    tables: set[str] = set()
    for id in observed.pending:
        pending = view.get(id)
        if pending is not None and pending.manifest is not None:
            tables |= pending.manifest.tables.keys()
    failed = 0
    for entry in reversed(view.entries):
        if entry.completed or (entry.control is not None and entry.control.action == "resume"):
            break
        if entry.decision is not None and entry.decision.counts:
            failed += 1
    yield Metric("unpublishedCheckpoints", len(observed.pending))
    yield Metric("unpublishedTables", len(tables))
    yield Metric("numberOfConsecutiveFailures", failed)
    yield Metric("numberOfConsecutivePlanFailures", troubles.unplanned(observed.trouble, view))
    yield Metric("suspended", int(figures.health.state == "suspended"))
    for name, count in skipping.counts(view).items():
        yield Metric("neverRead", count, {"source": name})
    yield Metric("intervalGaps", len(observed.gaps))
    for line in figures.lines:
        label = {"backfill": line.record.name}
        oldest = moment_of(line.oldest_pending)
        yield Metric("backfillCheckpoints", line.checkpoints, label)
        yield Metric("backfillPendingCheckpoints", len(line.pending), label)
        if oldest is not None:
            age_ms = round((figures.now - oldest).total_seconds() * 1000)
        else:
            age_ms = 0
        yield Metric("backfillLag", age_ms, label)
    for promise in observed.promises:
        label = {"sink": promise.sink}
        yield Metric("tableAge", round(promise.age_s * 1000), label)
        yield Metric("promisedAge", round(promise.fresh_s * 1000), label)
        yield Metric("promiseBroken", int(not promise.is_kept), label)
    yield Metric("readable", 1)
    yield Metric(READ_AGE, 0)
    yield Metric("needsAttention", int(not figures.health.needs_nothing))


def _last(figures: Figures) -> Iterator[Metric]:
    """Yield the metrics of the last completed checkpoint. Unmeasured ones are omitted, not zero."""
    view = figures.last
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
    yield from _event_time(view, figures.now)


def _measures(view: CheckpointView) -> Iterator[Metric]:
    """Yield the measures that are declared with a metric."""
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
        if part.schema:
            yield from _drift(part.drift or DriftDetails(), source)
    for sink, count in view.details.staged_rows.items():
        yield Metric("numRecordsOut", count, {"sink": sink})
    for job in view.details.jobs.values():
        for operator, rows in job.late_rows.items():
            yield Metric("numLateRecordsDropped", rows, {"operator": operator})
    for name, gate in view.details.gates.items():
        yield Metric("numRecordsJudged", gate.rows, {"gate": name})
        yield Metric("numRecordsQuarantined", gate.quarantined, {"gate": name})
        yield Metric("numRecordsReleased", gate.released, {"gate": name})
        yield Metric("gateFailures", len(gate.broken), {"gate": name})


def _drift(drift: DriftDetails, source: str) -> Iterator[Metric]:
    yield Metric("numRecordsRescued", drift.records, {"source": source})
    yield Metric("newColumns", drift.new_columns, {"source": source})
    yield Metric("newKeysWithoutColumn", drift.keys_without_column, {"source": source})


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
            if moment is not None and moment.year < MAXYEAR:  # MAXYEAR is the end of time, after a drain
                yield Metric("currentInputWatermark", _epoch_ms(watermark), {"of": name})
    lowest = moment_of(view.watermark)
    if lowest is not None:
        yield Metric("watermarkLag", round((now - lowest).total_seconds() * 1000))


def _epoch_ms(text: str) -> int:
    moment = moment_of(text)
    if moment is not None:
        return round(moment.timestamp() * 1000)
    return -1
