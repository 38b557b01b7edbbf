"""Airflow's web server tells other DAGs of what no task tells them: what a command has decided, and what a run has
decided that failed at its very end. So they hear of a rollback within seconds, even if the pipeline's DAG is paused.

It reads each pipeline's ledger every few seconds, by its DAG's card, and registers events as Airflow's REST API does.
Each entry is claimed in the ledger before the events are committed, so that several web servers, and the pipeline's
own tasks, tell of it once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from airflow.models.asset import AssetModel
from airflow.models.dag import DagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from tidegate import seams
from tidegate.errors import name_of
from tidegate.history.asset_events.changes import (
    EventSender,
    SinkChange,
    changes_of,
    find_sender,
    is_sent_by_task,
    unannounced_entries,
)
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline.card import CardEvents, CardSink
from tidegate.protocol.view import Entry, rollback_of
from tidegate.records.place import is_url
from tidegate.records.records import Announced
from tidegate.ui.pipelines import PipelineRef, find_pipelines, tagged
from tidegate.versions.airflow import register_asset_event

__all__ = ["BY", "Announcer", "announce"]

log = logging.getLogger(__name__)

BY: Final = "web server"
"""Who claims an entry here."""
FOLDER_PAUSE_S: Final = 5.0
STORE_PAUSE_S: Final = 20.0
"""How often a ledger is looked at: in a folder, and in an object store, whose requests cost money."""
WORK_SHARE: Final = 0.02
"""The share of a core's time that looking at all ledgers together may take."""
MAX_PAUSE_S: Final = 60.0
"""The longest pause between two looks at all of them."""
MAX_BACKOFF_S: Final = 600.0
"""The longest pause after a ledger could not be read again and again."""
MAX_AGE_S: Final = 86_400.0
"""What was decided before that is left to the pipeline's next run: a history is no news."""


@dataclass
class _Looked:
    """What was seen when a pipeline was looked at last."""

    at: float
    last: int | None = None
    """The last entry, if nothing can become of the entries up to it that would have to be told."""
    failures: int = 0
    """How many times in a row the ledger could not be read."""

    def is_due(self, pipeline: PipelineRef, now: float) -> bool:
        """Return whether to look again. A store that does not answer takes minutes each time, so it comes rarely."""
        pause_s = STORE_PAUSE_S if is_url(pipeline.root) else 0.0
        if self.failures:
            pause_s = max(pause_s, min(STORE_PAUSE_S * 2.0**self.failures, MAX_BACKOFF_S))
        return now - self.at >= pause_s


@dataclass
class Announcer:
    """Looks at all pipelines, again and again."""

    looked: dict[str, _Looked] = field(default_factory=dict)

    def start(self) -> None:
        """Look in a thread, as long as this process lives."""
        threading.Thread(target=self._run, daemon=True, name="tidegate-asset-events").start()

    def _run(self) -> None:
        while True:
            began = time.thread_time()
            try:
                self.look()
            except Exception as error:  # Airflow's database does not answer, for one
                log.warning("Could not look for asset events to send: %s", name_of(error))
            work_s = time.thread_time() - began
            seams.sleep(min(max(FOLDER_PAUSE_S, work_s / WORK_SHARE), MAX_PAUSE_S))

    def look(self) -> None:
        """Send the events that are due now. A pipeline that cannot be read does not hold up the others."""
        pipelines, _ = find_pipelines(_present_dags())
        for pipeline in pipelines:
            seen = self.looked.get(pipeline.dag_id)
            if seen is not None and not seen.is_due(pipeline, seams.monotonic()):
                continue
            last, failures = (seen.last, seen.failures) if seen is not None else (None, 0)
            try:
                last, failures = announce(pipeline, last), 0
            except Exception as error:  # it may quote a login
                failures += 1
                log.warning("Could not look for asset events of DAG %s: %s", pipeline.dag_id, name_of(error))
            self.looked[pipeline.dag_id] = _Looked(seams.monotonic(), last, failures)


def _present_dags() -> set[str]:
    """Return the DAGs that are pipelines and still have their DAG file."""
    with create_session(scoped=False) as session:
        present = set(session.scalars(select(DagModel.dag_id).where(~DagModel.is_stale)))
    return tagged() & present


def announce(pipeline: PipelineRef, settled: int | None = None) -> int | None:
    """Send the events of a pipeline that nobody else sends. Return the last entry if all up to it are settled.

    settled: what the last call has returned: if nothing has come since, there is nothing to do.
    """
    events = pipeline.card.events
    if events is None:  # a DAG that an earlier version has built
        return None
    ledger = pipeline.ledger()
    ids = ledger.ids()
    if not ids or ids[-1] == settled:
        return settled
    last = ids[-1]
    is_settled = True
    for entry in _untold_entries(ledger, last):
        if ledger.published(entry.id) is not None:
            _send(pipeline, events, ledger, entry)
        elif rollback_of(entry.id, ledger.rollbacks()) is None:  # its tables do not show it yet, but will
            is_settled = False
            break
    newest = ledger.entry(last)
    if newest is None or newest.open or (newest.completed and _is_left_to_task(ledger, newest)):
        is_settled = False
    return last if is_settled else None


def _untold_entries(ledger: Ledger, last: int) -> list[Entry]:
    return unannounced_entries(ledger, last, lambda entry: _is_announced(ledger, entry))


def _is_announced(ledger: Ledger, entry: Entry) -> bool:
    """Return whether somebody has told other DAGs of the entry, or will; or it is too old to be told here."""
    claim = ledger.announced(entry.id)
    sender = find_sender(entry, claim)
    if sender is None:
        is_told = claim is not None  # by a web server
    else:
        is_told = is_sent_by_task(sender, _TASKS, claimed=claim is not None)
    return is_told or (claim is None and (ledger.age_of_decision(entry.id) or 0.0) > MAX_AGE_S)


def _is_left_to_task(ledger: Ledger, entry: Entry) -> bool:
    """Return whether a task is still at work that tells of the entry, or fails to."""
    sender = find_sender(entry, ledger.announced(entry.id))
    return sender is not None and _TASKS.find_state(sender) not in _ENDED


class _TasksOfDatabase:
    """What Airflow's database knows of tasks."""

    def find_state(self, sender: EventSender) -> str | None:
        of_task = select(TaskInstance.state).where(
            TaskInstance.dag_id == sender.dag_id,
            TaskInstance.run_id == sender.run_id,
            TaskInstance.task_id == sender.task_id,
        )
        with create_session(scoped=False) as session:
            row = session.execute(of_task).first()
        return None if row is None else str(getattr(row[0], "value", row[0]))

    def has_returned(self, sender: EventSender) -> bool:
        returned = select(XComModel.key).where(
            XComModel.dag_id == sender.dag_id,
            XComModel.run_id == sender.run_id,
            XComModel.task_id == sender.task_id,
            XComModel.key == "return_value",
        )
        with create_session(scoped=False) as session:
            return session.scalar(returned) is not None


_TASKS: Final = _TasksOfDatabase()
_ENDED: Final = ("success", "failed", "upstream_failed", "skipped", None)
"""States of a task of which nothing more is to come."""


def _send(pipeline: PipelineRef, events: CardEvents, ledger: Ledger, entry: Entry) -> None:
    """Register the events of one entry, unless somebody else claims it in the meantime.

    It is claimed before Airflow's database is written to, which must not wait for a store.
    """
    claim = ledger.announced(entry.id)
    sender = find_sender(entry, claim) if claim is not None else None
    if sender is not None and not is_sent_by_task(sender, _TASKS, claimed=True):
        ledger.delete_announced(entry.id)  # of a task that has failed
    if not ledger.create_announced(Announced(**stamp(seams.new_id()), id=entry.id, by=BY)).is_new:
        return
    try:
        sent = _register_events(pipeline, events, ledger, entry)
    except Exception:
        ledger.delete_announced(entry.id)
        raise
    log.info("Sent %d asset events of entry %d of pipeline %s, which no task sends", sent, entry.id, ledger.pipeline)


def _register_events(pipeline: PipelineRef, events: CardEvents, ledger: Ledger, entry: Entry) -> int:
    """Let Airflow know of each changed sink. Return the number of events."""
    gates = {sink.name: sink.gates for sink in events.sinks}
    changes = dict(changes_of(ledger, entry, gates, always=events.always))
    published = ledger.published(entry.id)
    with create_session(scoped=False) as session:
        sent = 0
        for asset, sink, change in _assets_of(session, pipeline, events.sinks, changes):
            keys: list[Any] = sorted(change.partitions) if events.by_partition else [None]
            for key in keys:
                register_asset_event(asset, change.extra(sink, published), pipeline.dag_id, key, session)
                sent += 1
    return sent


def _assets_of(
    session: Session, pipeline: PipelineRef, sinks: list[CardSink], changes: dict[str, SinkChange]
) -> Iterator[tuple[AssetModel, str, SinkChange]]:
    """Yield Airflow's active assets of each changed sink, by its own name and by its table's address. Several sinks
    that write to one table have one event of its address, with the rows of all."""
    found: dict[int, tuple[AssetModel, str, SinkChange]] = {}
    for sink in sinks:
        change = changes.get(sink.name)
        if change is None:
            continue
        is_known_by = [AssetModel.name == f"{pipeline.card.pipeline}/{sink.name}"]
        if sink.address:
            is_known_by.append(AssetModel.uri == sink.address)
        for asset in session.scalars(select(AssetModel).where(or_(*is_known_by), AssetModel.active.has())):
            if asset.id not in found:
                found[asset.id] = (asset, sink.name, SinkChange(**vars(change)))
            elif found[asset.id][1] != sink.name:
                found[asset.id][2].add(change)
    yield from found.values()
