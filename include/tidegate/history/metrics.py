"""A pipeline's metrics, the same for StatsD, OpenTelemetry, Prometheus and `tidegate metrics`.

Names and units are Flink's where Flink has them (milliseconds, bytes), so that what people know, and panels that they
have, keep their meaning. All are gauges, as in Flink: each is read off ledger and history anew, by whoever asks. So no
process has to count, a lost sample is made up for by the next, and two that tell the same thing tell the same number.
`metrics` is a pure function of what `figures` has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import MAXYEAR, datetime
from typing import Final

from tidegate.checkpoint import skipping, troubles
from tidegate.history.health import Health, HealthLimits, Observations, condition, look
from tidegate.history.query import CheckpointHistory
from tidegate.ledger.ledger import Ledger
from tidegate.records.moments import moment_of
from tidegate.records.records import Json, Plan
from tidegate.state.table import STATE

__all__ = ["METRICS", "Figures", "Metric", "figures", "metrics"]

METRICS: Final[Mapping[str, str]] = {
    # Flink's
    "totalNumberOfCheckpoints": "Checkpoints ever triggered.",
    "numberOfCompletedCheckpoints": "Checkpoints ever completed.",
    "numberOfFailedCheckpoints": "Checkpoints ever aborted.",
    "numberOfInProgressCheckpoints": "Checkpoints that are planned and not decided.",
    "lastCompletedCheckpointId": "The last completed checkpoint.",
    "lastCheckpointCompletedTimestamp": "When it was completed, in ms since 1970.",
    "lastCheckpointDuration": "From its plan to its decision, in ms.",
    "lastCheckpointSize": "Bytes that it has written: output, and what changed of the state.",
    "lastCheckpointFullSize": "Bytes of all state as of it, and of its output.",
    "lastCheckpointRestoreTimestamp": "When somebody last went back to a checkpoint, in ms since 1970; -1: never.",
    "checkpointStartDelay": "From its plan until its last job began, in ms.",
    "lastCheckpointProcessedData": "Bytes that were in flight, and that its jobs have taken.",
    "lastCheckpointPersistedData": "Bytes in flight as of it, past which it went.",
    "checkpointAlignmentTime": "From the first ack that a job takes from to the last, in ms.",
    "checkpointSyncDuration": "Reading, computing, state, gates and staging of its slowest job, in ms.",
    "checkpointAsyncDuration": "Making files durable beside that, in ms.",
    "currentInputWatermark": "How far event time has come, by source or operator, in ms since 1970.",
    "numLateRecordsDropped": "Rows of it that came too late, by operator.",
    "numRecordsIn": "Rows that it has read from each source, where that is known.",
    "numBytesIn": "Bytes of these.",
    "numRecordsOut": "Rows that it has given to each sink.",
    # Ours
    "publishDuration": "From its decision until every table showed it, in ms.",
    "numRecordsJudged": "Rows that each gate has seen.",
    "numRecordsQuarantined": "Rows that each gate has set aside.",
    "numRecordsReleased": "Rows that each gate has let back in from quarantine.",
    "gateFailures": "Rules that were broken, by gate.",
    "stateSize": "Bytes of each keyed state.",
    "stateRows": "Rows of each keyed state.",
    "watermarkLag": "How far event time is behind the clock, in ms.",
    "heldCheckpoints": "Checkpoints that wait for a person.",
    "unpublishedCheckpoints": "Completed checkpoints that are not on all tables yet.",
    "unpublishedTables": "Tables of these.",
    "numberOfConsecutiveFailures": "Checkpoints that have failed since the last one completed, or somebody resumed.",
    "numberOfConsecutivePlanFailures": "Runs in a row that could not even plan a checkpoint.",
    "suspended": "1: no run plans a checkpoint until somebody resumes the pipeline.",
    "neverRead": "Files and the like that lie at each source and that no run will ever read by itself.",
    "intervalGaps": "Of an interval pipeline: stretches of time between its intervals that no checkpoint has made.",
    "readable": "0: ledger or settings cannot be read, so it has no other metrics.",
    "needsAttention": "1: `tidegate explain` names a cause and something to do.",
}
"""What each is. That of "it": the last completed checkpoint."""


@dataclass(frozen=True)
class Metric:
    """One number. `labels` are those beside the pipeline's name."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """What metrics are made of."""

    seen: Observations
    condition: Health
    counts: Mapping[str, int]
    last: Json | None
    """The last completed checkpoint's row of the history, with details."""
    restored: Json | None
    """The last rollback's."""
    now: datetime


def figures(
    ledger: Ledger, limits: HealthLimits, options: Mapping[str, str], gone: Callable[[Plan], str | None], now: datetime
) -> Figures:
    """Read them. A history that is lost is left out: then only what the ledger has is counted."""
    past = CheckpointHistory(ledger, options)
    seen = look(ledger, limits, gone)
    return Figures(seen, condition(seen), past.counts(), past.newest("completed"), past.newest("rollback"), now)


def metrics(found: Figures) -> list[Metric]:
    """All of them, in the order of METRICS."""
    told = [*_counts(found), *_last(found), *_standing(found)]
    order = list(METRICS)
    return sorted(told, key=lambda metric: (order.index(metric.name), sorted(metric.labels.items())))


def _counts(found: Figures) -> Iterator[Metric]:
    counts = found.counts
    yield Metric("totalNumberOfCheckpoints", counts["triggered"])
    yield Metric("numberOfCompletedCheckpoints", counts["completed"])
    yield Metric("numberOfFailedCheckpoints", counts["failed"])
    yield Metric("numberOfInProgressCheckpoints", counts["in_progress"])
    yield Metric("heldCheckpoints", counts["held"])
    restored = found.restored["decided"] if found.restored is not None else None
    yield Metric("lastCheckpointRestoreTimestamp", _epoch_ms(restored) if restored is not None else -1)


def _standing(found: Figures) -> Iterator[Metric]:
    view, owed = found.seen.view, found.seen.owed
    tables = {name for id in owed if (entry := view.get(id)) and entry.manifest for name in entry.manifest.tables}
    failed = 0
    for entry in reversed(view.entries):
        if entry.completed or (entry.control is not None and entry.control.action == "resume"):
            break
        failed += entry.decision is not None and entry.decision.counts
    yield Metric("unpublishedCheckpoints", len(owed))
    yield Metric("unpublishedTables", len(tables))
    yield Metric("numberOfConsecutiveFailures", failed)
    yield Metric("numberOfConsecutivePlanFailures", troubles.unplanned(found.seen.trouble, view))
    yield Metric("suspended", int(found.condition.state == "suspended"))
    yield from (Metric("neverRead", count, {"source": name}) for name, count in skipping.counts(view).items())
    yield Metric("intervalGaps", len(found.seen.gaps))
    yield Metric("readable", 1)
    yield Metric("needsAttention", int(not found.condition.good))


def _last(found: Figures) -> Iterator[Metric]:
    """Of the last completed checkpoint; what it did not measure is left out, not zero."""
    row = found.last
    if row is None:
        return
    details = row["details"]
    yield Metric("lastCompletedCheckpointId", row["id"])
    yield Metric("lastCheckpointCompletedTimestamp", _epoch_ms(row["decided"]))
    for name, column in {
        "lastCheckpointDuration": "seconds",
        "checkpointStartDelay": "delay_seconds",
        "checkpointAlignmentTime": "align_seconds",
        "checkpointSyncDuration": "sync_seconds",
        "checkpointAsyncDuration": "async_seconds",
        "publishDuration": "publish_seconds",
    }.items():
        if row.get(column) is not None:
            yield Metric(name, round(row[column] * 1000))
    written = row.get("bytes_out") or 0
    yield Metric("lastCheckpointSize", written + (row.get("state_delta") or 0))
    yield Metric("lastCheckpointFullSize", written + (row.get("state_bytes") or 0))
    yield Metric("lastCheckpointProcessedData", row.get("processed_bytes") or 0)
    yield Metric("lastCheckpointPersistedData", row.get("persisted_bytes") or 0)
    for name, state in details.get("states", {}).items():
        label = {"state": name.removeprefix(STATE)}
        yield Metric("stateSize", state["bytes"], label)
        yield Metric("stateRows", state["rows"], label)
    yield from _rows(details)
    yield from _event_time(row, details, found.now)


def _rows(details: Json) -> Iterator[Metric]:
    out: dict[str, int] = {}
    late: dict[str, int] = {}
    for job in details.get("jobs", {}).values():
        for source, told in job.get("taken", {}).items():
            for metric, what in {"numRecordsIn": "rows", "numBytesIn": "bytes"}.items():
                if told[what] is not None:
                    yield Metric(metric, told[what], {"source": source})
        for sink, count in job.get("rows", {}).items():
            out[sink] = out.get(sink, 0) + count
        for operator, counted in job.get("counts", {}).items():
            late[operator] = sum(count for what, count in counted.items() if what.startswith("late"))
    yield from (Metric("numRecordsOut", count, {"sink": sink}) for sink, count in out.items())
    yield from (Metric("numLateRecordsDropped", count, {"operator": name}) for name, count in late.items())
    for gate, said in details.get("gates", {}).items():
        yield Metric("numRecordsJudged", said["rows"], {"gate": gate})
        yield Metric("numRecordsQuarantined", said["quarantined"], {"gate": gate})
        yield Metric("numRecordsReleased", said["released"], {"gate": gate})
        yield Metric("gateFailures", len(said["broken"]), {"gate": gate})


def _event_time(row: Json, details: Json, now: datetime) -> Iterator[Metric]:
    for job in details.get("jobs", {}).values():
        for name, mark in job.get("watermarks", {}).items():
            moment = moment_of(mark)
            if moment is not None and moment.year < MAXYEAR:  # that is the end of time, after a drain
                yield Metric("currentInputWatermark", _epoch_ms(mark), {"of": name})
    mark = moment_of(row.get("watermark"))
    if mark is not None:
        yield Metric("watermarkLag", round((now - mark).total_seconds() * 1000))


def _epoch_ms(text: str) -> int:
    moment = moment_of(text)
    return round(moment.timestamp() * 1000) if moment is not None else -1
