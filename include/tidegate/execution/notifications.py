"""Notifies the pipeline's hooks when a checkpoint is settled: completed and published to all tables, or aborted.

    at least once   the hint told.json has the last checkpoint of which each hook was notified; it is written afterwards
    in order        a hook is notified of a checkpoint after all lower ones; if it fails, it is called again first
    recoverable     the process that ends the next checkpoint continues where the last one stopped

A hook that fails delays neither checkpoints nor other hooks.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from msgspec import structs

from tidegate import seams
from tidegate.checkpoint import troubles
from tidegate.checkpoint.context import PipelineContext
from tidegate.errors import TidegateError, Unavailable
from tidegate.history.query import CheckpointHistory
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline.hooks import Hook, Settled
from tidegate.protocol.rules import ROLLED_BACK
from tidegate.protocol.view import Entry, rollback_of
from tidegate.records.records import HookProgress
from tidegate.state.table import STATE

__all__ = ["notify_settled"]

log = logging.getLogger(__name__)


def notify_settled(pipeline: PipelineContext) -> None:
    """Call the hooks for all settled checkpoints of which they were not notified yet."""
    for hook in pipeline.graph.hooks:
        if hook.is_notified:
            with contextlib.suppress(Unavailable):  # storage does not answer: the end of the next checkpoint continues
                _notify(pipeline, hook)


def _notify(pipeline: PipelineContext, hook: Hook) -> None:
    ledger = pipeline.ledger
    progress = ledger.hook_progress()
    last = progress.settled.get(hook.name, 0) if progress is not None else 0
    passed = last
    for id, settled in _settled_after(pipeline, hook, last):
        if settled is not None:
            try:
                hook.settle(settled)
            except TidegateError as error:
                log.error("Hook %s could not be notified of checkpoint %s: %s", hook.name, id, error)
                troubles.record_error(ledger, settled.run, f"notifying hook {hook.name}", error)
                break
            _remember(ledger, hook, id)
        passed = id
    if passed > last:
        _remember(ledger, hook, passed)


def _remember(ledger: Ledger, hook: Hook, id: int) -> None:
    """Write the hint, unless another process has written a later checkpoint."""
    progress = ledger.hook_progress() or HookProgress(**stamp(seams.new_id()))
    if progress.settled.get(hook.name, 0) >= id:
        return
    settled = {**progress.settled, hook.name: id}
    ledger.record_hook_progress(structs.replace(progress, **stamp(seams.new_id()), settled=settled))


def _settled_after(pipeline: PipelineContext, hook: Hook, last: int) -> Iterator[tuple[int, Settled | None]]:
    """Yield the entries after `last`, in order, until one whose outcome is not certain yet.

    An entry of which the hook is not notified comes with None.
    """
    ids = pipeline.ledger.ids(after=last)
    if last and ids and ids[0] > last + 1 and _had_hook(pipeline, hook, ids):
        yield from _retired(pipeline, hook, last, ids[0])
    for id in ids:
        entry = pipeline.real_entry(id)
        if entry is None:  # retired by another process just now
            yield from _retired(pipeline, hook, id - 1, id + 1)
        elif entry.open:
            return
        elif hook.name not in entry.plan.notifies:
            yield id, None
        else:
            settled = _settled(pipeline, hook, entry)
            if settled is None:
                return
            yield id, settled


def _had_hook(pipeline: PipelineContext, hook: Hook, ids: Sequence[int]) -> bool:
    """Return whether the oldest retained checkpoint was planned with the hook.

    If not, the hook is new, and is not notified of checkpoints that were retired before.
    """
    for id in ids:
        entry = pipeline.real_entry(id)
        if entry is not None and entry.control is None and entry.rollback is None:
            return hook.name in entry.plan.notifies
    return False


def _settled(pipeline: PipelineContext, hook: Hook, entry: Entry) -> Settled | None:
    """Return the hook's argument for a decided entry, or None if it is not published to all tables yet."""
    assert entry.decision is not None
    name, id, run = pipeline.graph.name, entry.id, entry.plan.run
    if not entry.completed:
        reason, detail = entry.decision.reason, entry.decision.detail
        return Settled(name, id, run, completed=False, reason=reason, detail=detail, operator=hook.operator)
    published = pipeline.ledger.published(id)
    if published is not None:
        versions = {}
        for table, shown in published.tables.items():
            if hook.operator:
                is_reported = f"{table}.".startswith(f"{STATE}{hook.operator}.")
            else:
                is_reported = not table.startswith(STATE)
            if shown.is_delta and is_reported:
                versions[table] = shown.version
        return Settled(name, id, run, completed=True, operator=hook.operator, versions=versions)
    rollback = rollback_of(id, pipeline.ledger.rollbacks())
    if rollback is None:
        return None
    detail = f"rollback {rollback} came before it was on all its tables"
    return Settled(name, id, run, completed=False, reason=ROLLED_BACK, detail=detail, operator=hook.operator)


def _retired(pipeline: PipelineContext, hook: Hook, after: int, before: int) -> Iterator[tuple[int, Settled]]:
    """Yield entries whose records were removed, with their outcomes from the history."""
    rows = CheckpointHistory(pipeline.ledger, pipeline.place.options).rows.table
    for row in rows.select(["id", "outcome", "reason", "why", "run"]).sort_by("id").to_pylist():
        if after < row["id"] < before and row["outcome"] in ("completed", "aborted"):
            completed = row["outcome"] == "completed"
            settled = Settled(
                pipeline.graph.name,
                row["id"],
                row["run"],
                completed=completed,
                reason="" if completed else row["reason"],
                detail="" if completed else row["why"],
                operator=hook.operator,
            )
            yield row["id"], settled
