"""Emit asset events for the sinks' tables: which of them changed since the last events, and why.

    when      after a checkpoint, a rollback or a swap is published to its tables
    who       the last task of a run, also for entries that `tidegate` or an earlier, unfinished run decided
    how often at least once: an event that is sent twice names the same entry

Airflow fails a task whose asset is inactive because another DAG has an active one with the same name or address. So a
task here has no assets while it runs. At its end it gets those that Airflow knows, no matter which DAG declared them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

from tidegate.dag.assets import AssetEvents, asset, shared_uri_of
from tidegate.dag.names import COMPLETE, SWAP
from tidegate.dag.runs import dag_run_of
from tidegate.records.names import BACKFILL

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from tidegate.dag.tasks.task import Task
    from tidegate.protocol.view import Entry
    from tidegate.records.records import Published

__all__ = ["SinkChange", "send_events", "unannounced_changes"]

log = logging.getLogger(__name__)

MAX_ENTRIES = 100
"""The maximum number of entries to search for unannounced changes."""
SENT_NO_EVENTS = frozenset({"failed", "upstream_failed", "skipped"})
"""The states of a `complete` or `swap` task that has sent no events."""
SUCCESS = "success"
PARTITION_KEY = "%Y-%m-%dT%H:%M:%S"
"""The form in which Airflow's own timetables write the beginning of an interval."""


@dataclass
class SinkChange:
    """A change of one sink's table."""

    entry: int
    """The last entry that changed it."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    released: int = 0
    """The number of rows that upstream gates released from quarantine."""
    back_to: int | None = None
    """The checkpoint that a rollback or a swap returned to."""
    backfill: str = ""
    reason: str = ""
    partitions: set[str] = field(default_factory=set)
    """The keys of the intervals whose rows have changed."""

    @property
    def cause(self) -> str:
        if self.back_to is not None:
            return "swap" if self.backfill else "rollback"
        return "release" if self.released else "checkpoint"

    def add(self, other: SinkChange) -> None:
        """Count the rows of another change of the same table."""
        self.rows += other.rows
        self.bytes += other.bytes
        self.files += other.files
        self.released += other.released
        self.partitions |= other.partitions

    def extra(self, sink: str, published: Published | None) -> dict[str, Any]:
        """Return the content of the asset event."""
        extra: dict[str, Any] = {"cause": self.cause, "checkpoint": self.entry, "rows": self.rows}
        if self.released:
            extra["released"] = self.released
        if self.back_to is not None:
            extra["back_to"] = self.back_to
            if self.backfill:
                extra["backfill"] = self.backfill
            if self.reason:
                extra["reason"] = self.reason
        table = published.tables.get(sink) if published is not None else None
        if table is not None:
            if table.is_delta:
                extra["version"] = table.version
            extra["table"] = table.uri
        return extra


def send_events(operator: BaseOperator, task: Task, id: int, when: AssetEvents, *, by_partition: bool) -> None:
    """Have Airflow send the events of each table that was changed up to entry `id`, once this task succeeds.

    by_partition: for interval pipelines: send one event per partition, keyed by the start of its interval.
    """
    published = task.coordinator.ledger.published(id)
    events: list[tuple[Any, str]] = []
    outlets: list[Any] = []
    for sink, change in unannounced_changes(task, id, when).items():
        for reference in _references(task, sink):
            accessor = _accessor(task, reference)
            if accessor is None:
                continue
            sinks = [event_sink for event_accessor, event_sink in events if event_accessor is accessor]
            if sink in sinks:  # a DAG declared one asset with both the name and the address
                continue
            if sinks:  # two sinks write to one table: send one event for both
                accessor.extra["rows"] += change.rows
            else:
                accessor.extra = change.extra(sink, published)
                outlets.append(reference)
            if by_partition:
                accessor.add_partitions(sorted(change.partitions))
            events.append((accessor, sink))
    operator.outlets = outlets


def unannounced_changes(task: Task, id: int, when: AssetEvents = "rows") -> dict[str, SinkChange]:
    """Return the changes up to entry `id` for which no event was sent yet, by sink."""
    changes: dict[str, SinkChange] = {}
    for entry in _unannounced_entries(task, id):
        for sink, change in _changes(task, entry, when):
            earlier = changes.setdefault(sink, change)
            if earlier is not change:
                change.add(earlier)
                if change.back_to is None:
                    change.back_to, change.backfill, change.reason = earlier.back_to, earlier.backfill, earlier.reason
                changes[sink] = change
    return changes


def _unannounced_entries(task: Task, id: int) -> list[Entry]:
    """Return entry `id` and the completed ones before it, back to the last one whose events were sent, ascending."""
    ledger = task.coordinator.ledger
    entries: list[Entry] = []
    for entry_id in reversed(ledger.ids(before=id + 1)):
        entry = ledger.entry(entry_id)
        if entry is None or len(entries) == MAX_ENTRIES:
            break
        if entry.id != id and entry.completed and _event_was_sent(task, entry):
            break
        if entry.completed:
            entries.append(entry)
    return entries[::-1]


def _event_was_sent(task: Task, entry: Entry) -> bool:
    """Return whether a task has sent events for the entry, or will, as far as Airflow knows."""
    made_by = dag_run_of(entry.plan)
    if made_by is None:
        return False
    dag_id, run_id = made_by
    sender = SWAP if dag_id.endswith(BACKFILL) else COMPLETE
    ti = task.context["ti"]
    try:
        states = ti.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {})
        state = states.get(sender)
        state = str(getattr(state, "value", state))
        if state == SUCCESS:  # a task that was marked as success by hand has returned nothing
            return ti.xcom_pull(dag_id=dag_id, run_id=run_id, task_ids=sender) is not None
    except Exception as error:
        log.warning("Could not check whether events of entry %s were sent: %r. Sending them again", entry.id, error)
        return False
    return state not in SENT_NO_EVENTS


def _changes(task: Task, entry: Entry, when: AssetEvents) -> Iterator[tuple[str, SinkChange]]:
    """Yield the changes that a completed entry made, by sink."""
    graph = task.coordinator.graph
    rollback = entry.rollback
    if rollback is not None:
        backfill = rollback.line.name if rollback.line is not None else ""
        for sink, restored in rollback.tables.items():
            if sink in graph.sinks and restored.how != "keep":
                yield sink, SinkChange(entry.id, back_to=rollback.target, backfill=backfill, reason=rollback.reason)
        return
    replaced = _replaced_sinks(task, entry)
    if entry.interval is not None:
        partitions = {f"{entry.interval.start:{PARTITION_KEY}}"}
    else:
        partitions = set()
    acks = [acked.ack for acked in entry.acks.values()]
    for sink, node in graph.sinks.items():
        rows = sum(ack.stats.rows.get(sink, 0) for ack in acks)
        if rows or sink in replaced or when == "always":
            gates = graph.lineage.gates(node.input)
            released = sum(verdict.released for ack in acks for gate, verdict in ack.gates.items() if gate in gates)
            yield (
                sink,
                SinkChange(
                    entry.id,
                    rows,
                    sum(ack.stats.bytes.get(sink, 0) for ack in acks),
                    sum(ack.stats.files.get(sink, 0) for ack in acks),
                    released if rows else 0,
                    partitions=set(partitions),
                ),
            )


def _replaced_sinks(task: Task, entry: Entry) -> Iterable[str]:
    """Return the sinks that had rows of this interval before. Those rows are gone, even if no new ones arrived."""
    if not entry.plan.by_interval or entry.interval is None:
        return ()
    filled = task.coordinator.ledger.filled(entry.interval, before=entry.id)
    return filled.traces if filled is not None else ()


def _references(task: Task, sink: str) -> Iterator[Any]:
    """Yield references to the sink's assets: by its own name, and by its address under any name."""
    graph = task.coordinator.graph
    yield Asset.ref(name=asset(graph.name, sink).name)
    uri = shared_uri_of(graph.sinks[sink], task.coordinator.place)
    if uri is not None:
        yield Asset.ref(uri=uri)


def _accessor(task: Task, reference: Any) -> Any:
    """Return the accessor that holds the content of an asset's event, or None if Airflow has no such active asset."""
    try:
        return task.context["outlet_events"][reference]
    except AirflowRuntimeError as error:
        if error.error.error != ErrorType.ASSET_NOT_FOUND:
            raise
        log.warning(
            "Airflow has no active asset %s: no DAG declares it, or another one of the same name or address is active",
            reference,
        )
        return None
