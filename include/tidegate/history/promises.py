"""How old the tables of sinks are, beside what `pipeline.promise` promises.

A table is as old as the newest checkpoint that is published to it, counted from the moment at which that checkpoint's
input was fixed, and from the oldest input that it left waiting, where a source knows that. So an empty checkpoint makes
a table new again, and a rollback makes it old again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.config import duration_text
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry, View
from tidegate.records.moments import moment_of
from tidegate.records.records import Json, Plan, Promise

__all__ = ["PromiseStatus", "age_text", "promise_statuses", "promises_now"]

ENDED = ("stop", "cancel", "drain")
"""After these actions a pipeline has ended, and promises nothing."""


@dataclass(frozen=True)
class PromiseStatus:
    """One sink's promise, as of one moment."""

    sink: str
    fresh_s: float
    checkpoint: int | None
    """The checkpoint that read the last of the table's input, or None if nothing is published to the table yet."""
    input_until: datetime
    """The table has all input up to then. Without a checkpoint: when the first one with the promise was planned."""
    now: datetime

    @property
    def age_s(self) -> float:
        """The age of the table, in seconds."""
        return max((self.now - self.input_until).total_seconds(), 0.0)

    @property
    def is_kept(self) -> bool:
        """Whether the table is no older than promised."""
        return self.age_s <= self.fresh_s

    @property
    def lateness_s(self) -> float:
        """By how much the promise is broken, in seconds; 0: it is kept."""
        return max(self.age_s - self.fresh_s, 0.0)

    @property
    def breaks_at(self) -> datetime:
        """When the promise breaks, or was broken, unless a newer checkpoint is published."""
        return self.input_until + timedelta(seconds=self.fresh_s)

    @property
    def text(self) -> str:
        """The status in a sentence that stays the same until the status changes."""
        promised = duration_text(self.fresh_s)
        if self.checkpoint is None:
            content = "it has no completed checkpoint yet"
        else:
            content = f"it has the input up to {_utc(self.input_until)} (checkpoint {self.checkpoint})"
        if self.is_kept:
            return f"sink {self.sink} is at most {promised} old: {content}"
        return f"sink {self.sink} is more than {promised} old since {_utc(self.breaks_at)}: {content}"

    def document(self) -> Json:
        """Return it for scripts and pages."""
        return {
            "sink": self.sink,
            "fresh_seconds": self.fresh_s,
            "kept": self.is_kept,
            "breaks_at": self.breaks_at.isoformat(timespec="milliseconds"),
            "input_until": self.input_until.isoformat(timespec="milliseconds") if self.checkpoint is not None else None,
            "checkpoint": self.checkpoint,
        }


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def age_text(seconds: float) -> str:
    """Return an age in its two largest units, such as "2 h 5 min"."""
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    rest = round(seconds)
    for place, (unit, size) in enumerate(units):
        count, rest = divmod(rest, size)
        if count and rest:
            smaller, smaller_size = units[place + 1]
            below = rest // smaller_size
            if below:
                return f"{count} {unit} {below} {smaller}"
            return f"{count} {unit}"
        if count:
            return f"{count} {unit}"
    return "0 s"


def promise_statuses(
    ledger: Ledger, view: View, pending: frozenset[int], tolerable: int, now: datetime
) -> tuple[PromiseStatus, ...]:
    """Return the status of each promise that the last plan has. pending: entries that are not on all tables yet."""
    last = next((entry for entry in _newest_first(ledger, view) if _is_planned_from_code(entry)), None)
    if last is None or not last.plan.promises:
        return ()
    current = suspension.suspended(view, tolerable)
    if current is not None and current.action in ENDED:
        return ()
    on_tables = (entry for entry in _newest_first(ledger, view) if entry.completed and entry.id not in pending)
    published = next(on_tables, None)
    statuses = []
    for sink, promise in last.plan.promises.items():
        reached = None
        if published is not None and sink in published.plan.commits:
            reached = _interval_reached(ledger, view, pending, published) or _reached(ledger, published, promise)
        checkpoint, until = reached or (None, _promised_first(view, sink))
        if until is not None:
            statuses.append(PromiseStatus(sink, promise.fresh_s, checkpoint, until, now))
    return tuple(statuses)


def promises_now(ledger: Ledger, tolerable: int) -> tuple[PromiseStatus, ...]:
    """Return the status of each promise as of now."""
    view = ledger.view()
    unsettled = []
    for entry in view.entries:
        if entry.completed and entry.id > view.settled:
            unsettled.append(entry.id)
    pending = frozenset(id for id in unsettled if ledger.published(id) is None)
    return promise_statuses(ledger, view, pending, tolerable, seams.now())


def _newest_first(ledger: Ledger, view: View) -> Iterator[Entry]:
    """Yield the entries of the view, then those below it."""
    yield from reversed(view.entries)
    first = view.entries[0].id if view.entries else None
    for id in reversed(ledger.ids(before=first)):
        entry = ledger.entry(id)
        if entry is not None:
            yield entry


def _is_planned_from_code(entry: Entry) -> bool:
    """Return whether it is a checkpoint, whose plan has the promises of the code at the time."""
    return entry.control is None and entry.rollback is None and entry.plan.kind != "fork"


def _promised_first(view: View, sink: str) -> datetime | None:
    moments = []
    for entry in view.entries:
        if sink in entry.plan.promises:
            moments.append(moment_of(entry.plan.created))
    return min((moment for moment in moments if moment is not None), default=None)


def _interval_reached(
    ledger: Ledger, view: View, pending: frozenset[int], published: Entry
) -> tuple[int, datetime] | None:
    """Return for an interval pipeline the end of the latest interval, which need not be the last one processed."""
    if not published.plan.by_interval:
        return None
    ends = [(interval.end, published.id) for interval in ledger.intervals()[-1:]]
    for entry in view.entries:
        if entry.completed and entry.id not in pending and entry.interval is not None:
            ends.append((entry.interval.end, entry.id))
    end, id = max(ends)
    made = moment_of(published.plan.created) or end
    return id, min(end, made)


def _reached(ledger: Ledger, published: Entry, promise: Promise) -> tuple[int, datetime] | None:
    """Return the checkpoint whose input the table has, and up to when. None if it has no input yet.

    That is not always the published one: a rollback returns to an earlier one, and a checkpoint may overtake jobs.
    """
    manifest = published.manifest
    assert manifest is not None
    ids: list[int | None] = []
    for job in promise.jobs:
        if job in manifest.jobs:
            ids.append(manifest.jobs[job].entry)
    for job in promise.jobs:
        for unread in manifest.in_flight.get(job, ()):
            plan = ledger.plan(unread.ack.entry)
            ids.append(plan.base if plan is not None else None)
    reached = []
    for id in ids or [published.id]:
        input_time = _input_of(ledger, id, promise)
        if input_time is None:
            return None
        reached.append(input_time)
    moment, id = min(reached)
    return id, moment


def _input_of(ledger: Ledger, id: int | None, promise: Promise) -> tuple[datetime, int] | None:
    """Return up to when the input of these sources is in checkpoint `id` and those below it, and the checkpoint that
    read the last of it."""
    plan = ledger.plan(id) if id is not None else None
    while plan is not None and (plan.is_manual_edit or plan.rollback is not None):
        # It reads no input itself. A backfill has replayed all input up to the base of its swap.
        rollback = plan.rollback
        if rollback is None or rollback.line is not None:
            below = plan.base
        else:
            below = rollback.target
        plan = ledger.plan(below) if below is not None else None
    fixed = moment_of(plan.created) if plan is not None else None
    if plan is None or fixed is None:
        return None
    return fixed - timedelta(seconds=_oldest_waiting_s(plan, promise)), plan.id


def _oldest_waiting_s(plan: Plan, promise: Promise) -> float:
    lags = [plan.sources[name].lag for name in promise.sources if name in plan.sources]
    return max((lag.seconds for lag in lags if lag is not None and lag.seconds is not None), default=0.0)
