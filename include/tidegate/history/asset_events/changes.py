"""What asset events say of an entry: which sinks' tables it has changed, and why.

A task sends the events of the entries that its own run has made. What a command has decided, or a run that failed at
its very end, is told by whoever comes first: Airflow's web server (`ui/asset_events`), or the next task
(`dag/tasks/asset_events.py`). They claim the entry in the ledger (`Announced`), so one of them tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry
from tidegate.records.names import BACKFILL, COMPLETE, SWAP, dag_run_of
from tidegate.records.records import Announced, Published

__all__ = [
    "MAX_ENTRIES",
    "EventSender",
    "SenderTasks",
    "SinkChange",
    "changes_of",
    "find_sender",
    "is_sent_by_task",
    "unannounced_entries",
]

MAX_ENTRIES: Final = 100
"""The maximum number of entries to search for unannounced changes."""
PARTITION_KEY: Final = "%Y-%m-%dT%H:%M:%S"
"""The form in which Airflow's own timetables write the beginning of an interval."""


@dataclass(frozen=True)
class EventSender:
    """The task that sends the events of an entry."""

    dag_id: str
    run_id: str
    task_id: str


class SenderTasks(Protocol):
    """What Airflow knows of tasks that send events: it answers a task in another way than its own web server."""

    def find_state(self, sender: EventSender) -> str | None:
        """Return the state of the task, or None if there is none."""

    def has_returned(self, sender: EventSender) -> bool:
        """Return whether the task has returned something. One that was marked as success by hand has not."""


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


def changes_of(
    ledger: Ledger, entry: Entry, sinks: Mapping[str, Collection[str]], *, always: bool
) -> Iterator[tuple[str, SinkChange]]:
    """Yield the changes that a completed entry made, by sink.

    sinks: each sink, with the gates that its rows pass.
    always: whether a checkpoint without rows for a sink counts as a change, too.
    """
    rollback = entry.rollback
    if rollback is not None:
        backfill = rollback.line.name if rollback.line is not None else ""
        for sink, restored in rollback.tables.items():
            if sink in sinks and restored.how != "keep":
                yield sink, SinkChange(entry.id, back_to=rollback.target, backfill=backfill, reason=rollback.reason)
        return
    replaced = _replaced_sinks(ledger, entry)
    if entry.interval is not None:
        partitions = {f"{entry.interval.start:{PARTITION_KEY}}"}
    else:
        partitions = set()
    acks = [acked.ack for acked in entry.acks.values()]
    for sink, gates in sinks.items():
        rows = sum(ack.stats.rows.get(sink, 0) for ack in acks)
        if rows or sink in replaced or always:
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


def unannounced_entries(ledger: Ledger, last: int, is_announced: Callable[[Entry], bool]) -> list[Entry]:
    """Return the completed entries up to `last`, back to the newest one that is announced, ascending."""
    entries: list[Entry] = []
    for id in reversed(ledger.ids(before=last + 1)):
        entry = ledger.entry(id)
        if entry is None or len(entries) == MAX_ENTRIES:
            break
        if not entry.completed:
            continue
        if is_announced(entry):
            break
        entries.append(entry)
    return entries[::-1]


def _sender_of(run: str) -> EventSender | None:
    """Return the task that sends the events of a run, by the run's name in the ledger, or None if it is no run of
    Airflow's."""
    ids = dag_run_of(run)
    if ids is None:
        return None
    dag_id, run_id = ids
    return EventSender(dag_id, run_id, SWAP if dag_id.endswith(BACKFILL) else COMPLETE)


def find_sender(entry: Entry, claim: Announced | None) -> EventSender | None:
    """Return the task that sends the events of an entry: the one that has claimed it, or else that of its own run.
    None if it is up to somebody else."""
    return _sender_of(claim.by if claim is not None else entry.plan.responsible_run)


def is_sent_by_task(sender: EventSender, tasks: SenderTasks, *, claimed: bool) -> bool:
    """Return whether a task has sent its events, or will, as far as Airflow knows. Airflow sends what a task has for it
    only when the task succeeds.

    claimed: it has claimed the entry. If it is skipped then, it had sent them before its run was cleared.
    """
    state = tasks.find_state(sender)
    if state == "success":
        return tasks.has_returned(sender)
    if state == "skipped":
        return claimed
    return state not in ("failed", "upstream_failed")


def _replaced_sinks(ledger: Ledger, entry: Entry) -> Iterable[str]:
    """Return the sinks that had rows of this interval before. Those rows are gone, even if no new ones arrived."""
    if not entry.plan.by_interval or entry.interval is None:
        return ()
    filled = ledger.filled(entry.interval, before=entry.id)
    return filled.traces if filled is not None else ()
