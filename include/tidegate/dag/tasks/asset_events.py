"""Emit asset events for the sinks' tables: which of them changed since the last events, and why.

    when      after a checkpoint, a rollback or a swap is published to its tables
    who       the last task of a run, also for entries that `tidegate` or an earlier, unfinished run decided, unless
              Airflow's web server was faster
    how often once, unless Airflow does not answer; an event that is sent twice names the same entry

Airflow fails a task whose asset is inactive because another DAG has an active one with the same name or address. So a
task here has no assets while it runs. At its end it gets those that Airflow knows, no matter which DAG declared them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

from tidegate import seams
from tidegate.dag.assets import AssetEvents, asset, shared_uri_of
from tidegate.history.asset_events.changes import (
    EventSender,
    SinkChange,
    changes_of,
    find_sender,
    is_sent_by_task,
    unannounced_entries,
)
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Announced

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from tidegate.dag.tasks.task import Task
    from tidegate.protocol.view import Entry

__all__ = ["send_events", "unannounced_changes"]

log = logging.getLogger(__name__)


def send_events(operator: BaseOperator, task: Task, id: int, when: AssetEvents, *, by_partition: bool) -> None:
    """Have Airflow send the events of each table that was changed up to entry `id`, once this task succeeds.

    by_partition: for interval pipelines: send one event per partition, keyed by the start of its interval.
    """
    published = task.coordinator.ledger.published(id)
    events: list[tuple[Any, str]] = []
    outlets: list[Any] = []
    for sink, change in _claimed_changes(task, id, when).items():
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
    """Return the changes up to entry `id` that no task of Airflow's has reported yet, by sink."""
    entries = unannounced_entries(
        task.coordinator.ledger, id, lambda entry: entry.id != id and _is_sent_by_another(task, entry, None)
    )
    return _merged(_changes_of(task, entry, when) for entry in entries)


def _claimed_changes(task: Task, id: int, when: AssetEvents) -> dict[str, SinkChange]:
    """Return the same, without what somebody else tells of. This task claims the rest."""
    entries = unannounced_entries(task.coordinator.ledger, id, lambda entry: _belongs_to_another(task, entry, id))
    claimed = []
    for entry in entries:
        changes = _changes_of(task, entry, when)
        if changes and _claim(task, entry):
            claimed.append(changes)
    return _merged(claimed)


def _changes_of(task: Task, entry: Entry, when: AssetEvents) -> dict[str, SinkChange]:
    graph = task.coordinator.graph
    sinks = {name: graph.lineage.gates(node.input) for name, node in graph.sinks.items()}
    return dict(changes_of(task.coordinator.ledger, entry, sinks, always=when == "always"))


def _merged(by_entry: Iterable[dict[str, SinkChange]]) -> dict[str, SinkChange]:
    """Return the changes of several entries, in their order, as one of each sink."""
    changes: dict[str, SinkChange] = {}
    for of_entry in by_entry:
        for sink, change in of_entry.items():
            earlier = changes.get(sink)
            if earlier is not None:
                change.add(earlier)
                if change.back_to is None:
                    change.back_to, change.backfill, change.reason = earlier.back_to, earlier.backfill, earlier.reason
            changes[sink] = change
    return changes


def _belongs_to_another(task: Task, entry: Entry, own: int) -> bool:
    """Return whether another task, or the web server, tells other DAGs of the entry."""
    claim = task.coordinator.ledger.announced(entry.id)
    if claim is None and entry.id == own:
        return False
    return _is_sent_by_another(task, entry, claim)


def _claim(task: Task, entry: Entry) -> bool:
    """Return whether this task is the one that tells of the entry."""
    claim = Announced(**stamp(seams.new_id()), id=entry.id, by=task.run)
    return not _is_sent_by_another(task, entry, task.coordinator.ledger.create_announced(claim).record)


def _is_sent_by_another(task: Task, entry: Entry, claim: Announced | None) -> bool:
    """Return whether somebody else has sent the events of an entry, or will."""
    if claim is not None and claim.by == task.run:
        return False
    sender = find_sender(entry, claim)
    if sender is None:
        return claim is not None  # the web server's
    try:
        return is_sent_by_task(sender, _TasksByClient(task), claimed=claim is not None)
    except Exception as error:
        log.warning("Could not check whether run %s sent its events: %r. Sending them again", sender.run_id, error)
        return False


class _TasksByClient:
    """What Airflow tells a task of others."""

    def __init__(self, task: Task) -> None:
        self._ti = task.context["ti"]

    def find_state(self, sender: EventSender) -> str | None:
        states = self._ti.get_task_states(dag_id=sender.dag_id, run_ids=[sender.run_id]).get(sender.run_id, {})
        state = states.get(sender.task_id)
        return None if state is None else str(getattr(state, "value", state))

    def has_returned(self, sender: EventSender) -> bool:
        names = {"dag_id": sender.dag_id, "run_id": sender.run_id, "task_ids": sender.task_id}
        return self._ti.xcom_pull(**names) is not None


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
