"""The status of backfills, from their records: for the pages, metrics, and the backfill itself.

The pipeline's code is not needed for it (docs/protocol.md, section 14).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidegate.checkpoint import approvals
from tidegate.errors import Invalid, TidegateError
from tidegate.history.without_values import entry_without_rows
from tidegate.ledger.ledger import Ledger, folder_ledger
from tidegate.protocol.backfill import BackfillProgress, Refuse, Replay, Swapped, on_replay
from tidegate.protocol.verdicts import unanswered
from tidegate.protocol.view import View
from tidegate.records.records import BackfillCompared, BackfillRecord

__all__ = [
    "BackfillStatus",
    "HeldBackfillCheckpoint",
    "backfill_progress",
    "backfill_status",
    "backfill_statuses",
    "find_rollbacks",
    "open_backfill_ledger",
    "view_from",
]


@dataclass(frozen=True)
class HeldBackfillCheckpoint:
    """A backfill's checkpoint that waits for a person."""

    checkpoint: int
    """A number in the backfill's own log."""
    gates: tuple[str, ...]
    why: str
    """The rules that hold it, and what happens at the time limit."""
    can_quarantine: bool
    """Whether an answer can quarantine the rows that broke the rules."""


@dataclass(frozen=True)
class BackfillStatus:
    """The status of a backfill at one moment."""

    record: BackfillRecord
    checkpoints: int
    """How many checkpoints it has made itself."""
    head: int | None
    """Its last completed checkpoint, or None. Its log begins with a copy of its origin."""
    caught_up_to: int
    """The pipeline's checkpoint up to which it has read all input, or 0."""
    caught_up_at: str | None
    """When that checkpoint was completed."""
    pending: tuple[int, ...]
    """The pipeline's completed checkpoints whose input it has not read yet."""
    oldest_pending: str | None
    """When the first of these was decided."""
    swap: int | None
    """The entry that has swapped it in. The rest of the backfill then waits to be cleaned up."""
    blocked_by: str
    """Why it cannot continue, or empty."""
    last_comparison: BackfillCompared | None
    """The last comparison with the pipeline's tables, if one was made."""
    held_checkpoint: HeldBackfillCheckpoint | None = None
    stop_reason: str = ""
    """Why its last checkpoint was aborted, if it has not continued since."""

    @property
    def state(self) -> str:
        """One of: replaying, held, stopped, caught_up, blocked, swapped."""
        if self.swap is not None:
            return "swapped"
        if self.blocked_by:
            return "blocked"
        if self.held_checkpoint is not None:
            return "held"
        if self.stop_reason:
            return "stopped"
        if self.head is not None and not self.pending:
            return "caught_up"
        return "replaying"


def backfill_statuses(ledger: Ledger, options: Mapping[str, str], *, with_values: bool = True) -> list[BackfillStatus]:
    """Return the status of all backfills that are not discarded, without proposals. An unreadable one is blocked.

    with_values: the user may read rows, and so also the texts of older versions, which may quote some.
    """
    statuses = []
    for record in ledger.backfills():
        try:
            statuses.append(backfill_status(ledger, record, options, with_values=with_values))
        except TidegateError as error:
            if ledger.line_discarded(record.name) is None:  # otherwise its records are being deleted
                statuses.append(_unreadable(record, error))
    return statuses


def _unreadable(record: BackfillRecord, error: TidegateError) -> BackfillStatus:
    return BackfillStatus(
        record=record,
        checkpoints=0,
        head=None,
        caught_up_to=record.origin,
        caught_up_at=None,
        pending=(),
        oldest_pending=None,
        swap=None,
        blocked_by=f"its records cannot be read: {error.what}",
        last_comparison=None,
    )


def backfill_status(
    live: Ledger, record: BackfillRecord, options: Mapping[str, str], *, with_values: bool = True
) -> BackfillStatus:
    """Return the status of a backfill, from its own ledger and the pipeline's."""
    ledger = folder_ledger(live.line_home(record.name), live.pipeline, options)
    view = ledger.view()  # before the live log, which must not be the older of the two
    progress = _progress_in(record, view)
    step = on_replay(view_from(live, progress), progress, *find_rollbacks(live))
    pending = step.ids if isinstance(step, Replay) else ()
    first_pending = live.decision(pending[0]) if pending else None
    reached = live.decision(progress.rests_on) if progress.rests_on else None
    head = view.last_completed
    if not with_values:
        view = replace(view, entries=tuple(map(entry_without_rows, view.entries)))
    return BackfillStatus(
        record=record,
        checkpoints=max(progress.head - record.origin, 0),
        head=head.id if head is not None else None,
        caught_up_to=progress.rests_on,
        caught_up_at=reached.created if reached is not None else None,
        pending=pending,
        oldest_pending=first_pending.created if first_pending is not None else None,
        swap=step.id if isinstance(step, Swapped) else None,
        blocked_by=_describe_refusal(step) if isinstance(step, Refuse) else "",
        last_comparison=live.line_compared(record.name),
        held_checkpoint=_find_held_checkpoint(view),
        stop_reason=_stopped(view),
    )


def open_backfill_ledger(live: Ledger, name: str, options: Mapping[str, str]) -> Ledger:
    """Return the ledger of a backfill, or raise Invalid if it does not exist."""
    record = live.line(name)
    if record is None or live.line_discarded(name) is not None:
        raise Invalid(
            f"pipeline {live.pipeline!r} has no backfill {name!r}",
            expected=" or ".join(line.name for line in live.backfills()) or "a backfill: the pipeline has none",
            help="name one of these",
            reason="NO_SUCH_BACKFILL",
        )
    return folder_ledger(live.line_home(record.name), live.pipeline, options)


def _find_held_checkpoint(view: View) -> HeldBackfillCheckpoint | None:
    for entry in view.still_open():
        gates = tuple(holding.gate for holding in unanswered(entry))
        if gates:
            can_quarantine = all(approvals.can_quarantine(entry, gate) for gate in gates)
            return HeldBackfillCheckpoint(entry.id, gates, approvals.approval_text(entry), can_quarantine)
    return None


def _stopped(view: View) -> str:
    last = next(reversed(view.entries), None)
    if last is None or last.decision is None or not last.aborted or last.control is not None:
        return ""
    detail = f": {last.decision.detail}" if last.decision.detail else ""
    return f"checkpoint {last.id} was aborted, {last.decision.reason}{detail}"


def _describe_refusal(refusal: Refuse) -> str:
    listed = ", ".join(map(str, refusal.ids))
    if listed:
        return f"{refusal.why} (checkpoint {listed})"
    return refusal.why


def backfill_progress(record: BackfillRecord, ledger: Ledger) -> BackfillProgress:
    """Return how far a backfill has replayed, from its own ledger."""
    return _progress_in(record, ledger.view())


def _progress_in(record: BackfillRecord, view: View) -> BackfillProgress:
    head = view.last_completed
    replayed = tuple(head.plan.replays) if head is not None else ()
    return BackfillProgress(record.run, record.origin, view.last_id, replayed)


def find_rollbacks(ledger: Ledger) -> tuple[list[tuple[int, int]], set[int]]:
    """Return all completed rollbacks that are retained, and which of them are swaps."""
    rollbacks = ledger.rollbacks()
    swaps = set()
    for id, _ in rollbacks:
        plan = ledger.plan(id)
        if plan is not None and plan.rollback is not None and plan.rollback.line is not None:
            swaps.add(id)
    return rollbacks, swaps


def view_from(ledger: Ledger, progress: BackfillProgress) -> View:
    """Return the log from the checkpoint that a backfill has reached, with all entries of its run."""
    view = ledger.view(progress.run)
    first = view.entries[0].id if view.entries else 0
    if progress.reached >= first:
        return view
    below = []
    for id in ledger.ids(after=max(progress.reached - 1, 0), before=first):
        entry = ledger.entry(id)
        if entry is not None:
            below.append(entry)
    return replace(view, entries=(*below, *view.entries))
