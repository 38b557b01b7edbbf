"""Tell other DAGs which tables have changed since the last time, and why: by events of the sinks' assets.

    when      a checkpoint is on its tables, and so is a rollback or a swap
    who       the task at the end of a run; also of what was decided by `tidegate` or by a run that ended before it told
    how often at least once: an event that is sent twice names the same entry

Airflow fails a task with an asset that is not active, because another DAG has one of the same name or address. So a
task here has no assets while it runs, and at its end only those that Airflow finds, whoever has declared them.
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

__all__ = ["SinkChange", "changes_since_told", "send_events"]

log = logging.getLogger(__name__)

MAX_ENTRIES = 100
"""How far to look back for entries that nobody was told of."""
UNTOLD = frozenset({"failed", "upstream_failed", "skipped"})
"""The states of a task that was to tell, and has told nothing or told it in an earlier try."""
SUCCESS = "success"
PARTITION_KEY = "%Y-%m-%dT%H:%M:%S"
"""The form in which Airflow's own timetables write the beginning of an interval."""


@dataclass
class SinkChange:
    """What has happened to one sink's table."""

    entry: int
    """The last entry that has changed it."""
    rows: int = 0
    released: int = 0
    """The number of rows released from quarantine by gates on the way to it."""
    back_to: int | None = None
    """The checkpoint that a rollback or a swap has returned to."""
    backfill: str = ""
    reason: str = ""
    partitions: set[str] = field(default_factory=set)
    """The keys of the intervals whose rows have changed."""

    @property
    def cause(self) -> str:
        if self.back_to is not None:
            return "swap" if self.backfill else "rollback"
        return "release" if self.released else "checkpoint"

    def extra(self, sink: str, published: Published | None) -> dict[str, Any]:
        """Return the content of its event."""
        extra: dict[str, Any] = {"cause": self.cause, "checkpoint": self.entry, "rows": self.rows}
        if self.released:
            extra["released"] = self.released
        if self.back_to is not None:
            extra["back_to"] = self.back_to
            extra |= {key: text for key in ("backfill", "reason") if (text := getattr(self, key))}
        table = published.tables.get(sink) if published is not None else None
        if table is not None:
            extra |= ({"version": table.version} if table.is_delta else {}) | {"table": table.uri}
        return extra


def send_events(operator: BaseOperator, task: Task, id: int, when: AssetEvents, *, by_partition: bool) -> None:
    """Have Airflow send, when this task ends well, the events of each table that was changed up to entry `id`.

    by_partition: of an interval pipeline: an event for each partition, which begins where its interval does.
    """
    published = task.coordinator.ledger.published(id)
    told: list[tuple[Any, str]] = []
    outlets: list[Any] = []
    for sink, change in changes_since_told(task, id, when).items():
        for reference in _references(task, sink):
            accessor = _accessor(task, reference)
            sinks = [other for known, other in told if known is accessor]
            if accessor is None or sink in sinks:  # somebody's asset has both the name and the address
                continue
            if sinks:  # two sinks on one table: one event for both
                accessor.extra["rows"] += change.rows
            else:
                accessor.extra = change.extra(sink, published)
                outlets.append(reference)
            if by_partition:
                accessor.add_partitions(sorted(change.partitions))
            told.append((accessor, sink))
    operator.outlets = outlets


def changes_since_told(task: Task, id: int, when: AssetEvents = "rows") -> dict[str, SinkChange]:
    """Return what has changed up to entry `id` that other DAGs were not told of yet, by sink."""
    changes: dict[str, SinkChange] = {}
    for entry in _untold(task, id):
        for sink, change in _changes(task, entry, when):
            earlier = changes.setdefault(sink, change)
            if earlier is not change:
                change.rows += earlier.rows
                change.released += earlier.released
                change.partitions |= earlier.partitions
                if change.back_to is None:
                    change.back_to, change.backfill, change.reason = earlier.back_to, earlier.backfill, earlier.reason
                changes[sink] = change
    return changes


def _untold(task: Task, id: int) -> list[Entry]:
    """Return entry `id` and those before it up to the last one that a task has told of, ascending."""
    ledger = task.coordinator.ledger
    found: list[Entry] = []
    for earlier in reversed(ledger.ids(before=id + 1)):
        entry = ledger.entry(earlier)
        if entry is None or len(found) == MAX_ENTRIES:
            break
        if entry.id != id and entry.completed and _event_was_sent(task, entry):
            break
        if entry.completed:
            found.append(entry)
    return found[::-1]


def _event_was_sent(task: Task, entry: Entry) -> bool:
    """Return whether a task has told of the entry, or will, as far as Airflow knows."""
    made_by = dag_run_of(entry.plan)
    if made_by is None:
        return False
    dag_id, run_id = made_by
    teller = SWAP if dag_id.endswith(BACKFILL) else COMPLETE
    ti = task.context["ti"]
    try:
        states = ti.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {})
        state = states.get(teller)
        state = str(getattr(state, "value", state))
        if state == SUCCESS:  # what was marked as that by hand has returned nothing
            return ti.xcom_pull(dag_id=dag_id, run_id=run_id, task_ids=teller) is not None
    except Exception as error:
        log.warning("Cannot tell whether events of entry %s were sent: %r. They are sent again", entry.id, error)
        return False
    return state not in UNTOLD


def _changes(task: Task, entry: Entry, when: AssetEvents) -> Iterator[tuple[str, SinkChange]]:
    """Yield what a completed entry has changed, by sink."""
    graph = task.coordinator.graph
    if entry.rollback is not None:
        back, line = entry.rollback, entry.rollback.line
        for sink, restored in back.tables.items():
            if sink in graph.sinks and restored.how != "keep":
                backfill = line.name if line is not None else ""
                yield sink, SinkChange(entry.id, back_to=back.target, backfill=backfill, reason=back.reason)
        return
    replaced = _replaced_sinks(task, entry)
    partitions = {f"{entry.interval.start:{PARTITION_KEY}}"} if entry.interval is not None else set()
    acks = [acked.ack for acked in entry.acks.values()]
    for sink, node in graph.sinks.items():
        rows = sum(ack.stats.rows.get(sink, 0) for ack in acks)
        if rows or sink in replaced or when == "always":
            gates = graph.lineage.gates(node.input)
            released = sum(verdict.released for ack in acks for gate, verdict in ack.gates.items() if gate in gates)
            yield sink, SinkChange(entry.id, rows, released if rows else 0, partitions=set(partitions))


def _replaced_sinks(task: Task, entry: Entry) -> Iterable[str]:
    """Return the sinks in which the interval had rows before: these are gone, even if no rows have come for them."""
    if not entry.plan.by_interval or entry.interval is None:
        return ()
    filled = task.coordinator.ledger.filled(entry.interval, before=entry.id)
    return filled.traces if filled is not None else ()


def _references(task: Task, sink: str) -> Iterator[Any]:
    """Yield the sink's assets, as references: by name, and by address whoever has declared it under which name."""
    graph = task.coordinator.graph
    yield Asset.ref(name=asset(graph.name, sink).name)
    uri = shared_uri_of(graph.sinks[sink], task.coordinator.place)
    if uri is not None:
        yield Asset.ref(uri=uri)


def _accessor(task: Task, reference: Any) -> Any:
    """Return what holds the content of an asset's event. None: Airflow has no such asset now."""
    try:
        return task.context["outlet_events"][reference]
    except AirflowRuntimeError as error:
        if error.error.error != ErrorType.ASSET_NOT_FOUND:
            raise
        log.warning(
            "Airflow has no active asset %s: no DAG has declared it, or another is active of the same name or address",
            reference,
        )
        return None
