"""Tell the pipeline's hooks how each checkpoint has ended: completed and on all its tables, or aborted.

    at least once   the hint told.json has the last checkpoint that each hook was told of; it is written after the call
    in order        a hook is told of a checkpoint only after all lower ones; one that fails is told again first
    recoverable     whoever ends the next checkpoint continues where the last process stopped

A hook holds back no checkpoint and no other hook.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from tidegate import seams
from tidegate.checkpoint import troubles
from tidegate.coordinator import Coordinator
from tidegate.errors import TidegateError, Unavailable
from tidegate.history.query import CheckpointHistory
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.hooks import Hook, Settled
from tidegate.protocol.rules import ROLLED_BACK
from tidegate.protocol.view import Entry, rolled_back_by
from tidegate.records.records import HookProgress
from tidegate.state.table import STATE

__all__ = ["notify_settled"]

log = logging.getLogger(__name__)


def notify_settled(coordinator: Coordinator) -> None:
    """Call the hooks for all checkpoints that have ended and of which they were not told yet."""
    for hook in coordinator.graph.hooks:
        if hook.is_notified:
            with contextlib.suppress(Unavailable):  # of storage: the end of the next checkpoint continues
                _notify(coordinator, hook)


def _notify(coordinator: Coordinator, hook: Hook) -> None:
    ledger = coordinator.ledger
    told = ledger.hook_progress()
    last = told.settled.get(hook.name, 0) if told is not None else 0
    passed = last
    for id, settled in _settled_after(coordinator, hook, last):
        if settled is not None:
            try:
                hook.settle(settled)
            except TidegateError as error:
                log.error("Hook %s was not told how checkpoint %s ended: %s", hook.name, id, error)
                troubles.record_error(ledger, settled.run, f"telling hook {hook.name}", error)
                break
            _remember(coordinator, hook, id)
        passed = id
    if passed > last:
        _remember(coordinator, hook, passed)


def _remember(coordinator: Coordinator, hook: Hook, id: int) -> None:
    """Write the hint, unless another process is further."""
    ledger = coordinator.ledger
    told = ledger.hook_progress() or HookProgress(**stamp(seams.new_id()))
    if told.settled.get(hook.name, 0) >= id:
        return
    ledger.record_hook_progress(
        HookProgress(**stamp(seams.new_id()), id=told.id, settled={**told.settled, hook.name: id})
    )


def _settled_after(coordinator: Coordinator, hook: Hook, last: int) -> Iterator[tuple[int, Settled | None]]:
    """Yield the entries after `last`, in order, up to the first one whose outcome is not certain yet. None: the hook is
    not told of the entry."""
    ids = coordinator.ledger.ids(after=last)
    if last and ids and ids[0] > last + 1 and _had_hook(coordinator, hook, ids):
        yield from _retired(coordinator, hook, last, ids[0])
    for id in ids:
        entry = coordinator.real_entry(id)
        if entry is None:  # retired by another process just now
            yield from _retired(coordinator, hook, id - 1, id + 1)
        elif entry.open:
            return
        elif hook.name not in entry.plan.notifies:
            yield id, None
        else:
            settled = _settled(coordinator, hook, entry)
            if settled is None:
                return
            yield id, settled


def _had_hook(coordinator: Coordinator, hook: Hook, ids: Sequence[int]) -> bool:
    """Return whether the pipeline had the hook when the oldest retained checkpoint was planned. If it had not, nobody
    wanted to be told of those that are retired since."""
    entries = (coordinator.real_entry(id) for id in ids)
    oldest = next((e for e in entries if e is not None and e.control is None and e.rollback is None), None)
    return oldest is not None and hook.name in oldest.plan.notifies


def _settled(coordinator: Coordinator, hook: Hook, entry: Entry) -> Settled | None:
    """Return what the hook is told of an entry that is decided. None: it is not on all its tables yet."""
    assert entry.decision is not None
    name, id, run = coordinator.graph.name, entry.id, entry.plan.run
    if not entry.completed:
        reason, detail = entry.decision.reason, entry.decision.detail
        return Settled(name, id, run, completed=False, reason=reason, detail=detail, operator=hook.operator)
    published = coordinator.ledger.published(id)
    if published is not None:
        prefix = f"{STATE}{hook.operator}" if hook.operator else ""
        versions = {
            table: shown.version
            for table, shown in published.tables.items()
            if shown.is_delta and (f"{table}.".startswith(f"{prefix}.") if prefix else not table.startswith(STATE))
        }
        return Settled(name, id, run, completed=True, operator=hook.operator, versions=versions)
    rollback = rolled_back_by(id, coordinator.ledger.rollbacks())
    if rollback is None:
        return None
    detail = f"rollback {rollback} came before it was on all its tables"
    return Settled(name, id, run, completed=False, reason=ROLLED_BACK, detail=detail, operator=hook.operator)


def _retired(coordinator: Coordinator, hook: Hook, after: int, before: int) -> Iterator[tuple[int, Settled]]:
    """Yield entries whose records are gone: the history has their outcomes."""
    rows = CheckpointHistory(coordinator.ledger, coordinator.place.options).rows.table
    for row in rows.select(["id", "outcome", "reason", "why", "run"]).sort_by("id").to_pylist():
        if after < row["id"] < before and row["outcome"] in ("completed", "aborted"):
            completed = row["outcome"] == "completed"
            yield (
                row["id"],
                Settled(
                    coordinator.graph.name,
                    row["id"],
                    row["run"],
                    completed=completed,
                    reason="" if completed else row["reason"],
                    detail="" if completed else row["why"],
                    operator=hook.operator,
                ),
            )
