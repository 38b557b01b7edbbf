"""Whether a pipeline is suspended, stopped, cancelled or finished, and what a trigger refuses then.

Only people's actions are stored, as entries in the same log as checkpoints (lifecycle/control.py). Whether the pipeline
is suspended is derived from the end of the log each time: after a suspension no checkpoint can be planned, because the
planner has seen every lower entry. So a pipeline is suspended if a suspension is the last entry of its log (without
rollbacks), or if more checkpoints in a row have failed than its settings tolerate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tidegate.errors import Rejected
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.verdicts import QUARANTINED, REJECTED
from tidegate.protocol.view import Entry, View
from tidegate.records.records import Control, Drain

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = [
    "FINISHED",
    "STATE_AFTER",
    "STOPPED",
    "SuspensionState",
    "approval_pending",
    "check_may_plan",
    "current_suspension",
    "draining",
    "final_cancel",
    "finished",
    "help_after_end",
    "in_progress",
    "inherited_suspension",
    "is_quarantining_all",
    "quarantines_pending_verdict",
    "refuse_after_final_cancel",
    "refuse_suspended",
    "suspended",
]

FINISHED = "FINISHED"
"""The reason for which a run plans no checkpoint after event time has ended."""

STATE_AFTER = {
    "suspend": "suspended",
    "resume": "resumed",
    "stop": "stopped",
    "cancel": "cancelled",
    "drain": "finished",
    "move source": "source moved",
    "drop source": "source dropped",
    "accept source": "source accepted",
}
"""By action, the resulting state of the pipeline and of the action's entry."""

STOPPED = "STOPPED"
"""The reason for which a run plans no checkpoint in a stopped or cancelled pipeline, and of an abort by a
cancellation."""


@dataclass(frozen=True)
class SuspensionState:
    """Why no checkpoint may be planned."""

    cause: str
    why: str
    failed_checkpoints: tuple[int, ...] = ()
    """The checkpoints that failed in a row, oldest first. Empty if the pipeline was suspended by a person or
    process."""
    action: Literal["suspend", "stop", "cancel", "drain"] = "suspend"
    """The action that caused it."""
    rejected_checkpoint: int | None = None
    """The checkpoint whose rejection caused it."""
    entry: int | None = None
    """The entry of the action that caused it."""


def suspended(view: View, tolerable: int) -> SuspensionState | None:
    """T4: return the suspension at the end of the log, or None. No checkpoint is planned after a suspension.

    Failures count from the last completed checkpoint on, or from the last resumption. A rejected checkpoint suspends at
    once, because its rows would be held again. A rollback does not lift a suspension, but inherits it.
    """
    failed: list[Entry] = []
    for entry in reversed(view.entries):
        if entry.rollback is not None and not entry.aborted and entry.rollback.suspended is not None:
            return _suspension_from(entry.rollback.suspended, entry.id)
        if entry.control is not None and entry.control.action == "resume":
            break
        if entry.control is not None and entry.control.source is None:
            return _suspension_from(entry.control, entry.id)
        if entry.completed:
            drain = entry.plan.drain
            if drain is not None:
                return SuspensionState(drain.by, drain.reason, action="drain")
            break
        if entry.decision is not None and entry.decision.counts:
            failed.append(entry)
        if entry.decision is not None and entry.decision.reason == REJECTED:
            author = f"the rejection of checkpoint {entry.id}"
            return SuspensionState(author, entry.decision.detail, rejected_checkpoint=entry.id)
    if len(failed) <= tolerable:
        return None
    decision = failed[0].decision
    assert decision is not None
    if decision.detail:
        why = f"{decision.reason}: {decision.detail}"
    else:
        why = decision.reason
    return SuspensionState("", why, tuple(entry.id for entry in reversed(failed)))


def current_suspension(pipeline: PipelineContext) -> SuspensionState | None:
    """Return why no checkpoint of the pipeline may be planned now, or None."""
    return suspended(pipeline.ledger.view(), pipeline.settings.tolerable_failed_checkpoints)


def inherited_suspension(view: View, tolerable: int, but: str = "") -> Control | None:
    """Return the suspension that stays in force after a rollback or a swap: only a person lifts it.

    A drain is not inherited: the checkpoint that the rollback returns to shows whether event time has ended. but: a
    suspension by this author is lifted.
    """
    current = suspended(view, tolerable)
    if current is None or current.action == "drain" or (but and current.cause == but):
        return None
    author = current.cause or f"the failure of checkpoint {', '.join(map(str, current.failed_checkpoints))}"
    return Control(action=current.action, by=author, reason=current.why)


def finished(view: View) -> Entry | None:
    """Return the checkpoint with which event time ended, unless the pipeline was resumed since."""
    for entry in reversed(view.entries):
        if entry.completed or (entry.control is not None and entry.control.action == "resume"):
            return entry if entry.plan.drain is not None else None
    return None


def draining(view: View) -> Drain | None:
    """Return the requested drain, if input still waits before it. A resumption or a rollback cancels the request."""
    for entry in reversed(view.entries):
        if entry.control is not None and entry.control.action == "resume":
            return None
        if not entry.aborted:  # control entries count as aborted
            return entry.plan.draining
    return None


def final_cancel(view: View) -> Entry | None:
    """Return the entry that cancelled the pipeline for good, or None. It is the last entry."""
    for entry in reversed(view.entries):
        if entry.control is not None and entry.control.final:
            return entry
    return None


def _suspension_from(control: Control, entry: int) -> SuspensionState:
    action = control.action
    assert action in ("suspend", "stop", "cancel")
    return SuspensionState(control.by, control.reason, action=action, entry=entry)


def is_quarantining_all(view: View) -> bool:
    """Return whether the next checkpoint quarantines rows that a gate would hold.

    True if that was chosen at the last resumption, and no later plan that may still count has done it. Derived from the
    end of the log, like a suspension.
    """
    for entry in reversed(view.entries):
        if entry.control is not None and entry.control.action == "resume":
            return entry.control.quarantine_all
        if entry.completed or (entry.plan.quarantine_all and not entry.aborted):
            return False
    return False


def quarantines_pending_verdict(view: View) -> bool:
    """Return whether the next checkpoint quarantines the rows that break a rule for which a gate would hold it.

    True if a person answered so, and no later plan that may still count has done it. A rejection at the same time or
    later goes first.
    """
    chosen = False
    for entry in reversed(view.entries):
        if chosen and entry.control is not None and entry.control.action == "resume":
            return True
        if entry.completed or (entry.plan.quarantine_held and not entry.aborted):
            return chosen
        reason = entry.decision.reason if entry.decision is not None else ""
        if reason == REJECTED:
            return False
        chosen = chosen or reason == QUARANTINED
    return chosen


def refuse_after_final_cancel(ledger: Ledger, view: View) -> None:
    """Raise Rejected if the pipeline was cancelled for good: only its savepoints remain, and these can be forked."""
    last = final_cancel(view)
    if last is None or last.control is None:
        return
    why = f": {last.control.reason}" if last.control.reason else ""
    raise Rejected(
        f"pipeline {ledger.pipeline!r} was cancelled for good by {last.control.by}{why}",
        expected="an active pipeline; everything of this one is removed except its tables and its savepoints",
        help=f"to continue from a savepoint: tidegate fork {ledger.pipeline} --from NAME --as MODULE:pipeline; to "
        f"start over: use another name and new tables, or move {ledger.home} and its tables away",
        reason=STOPPED,
    )


def refuse_suspended(pipeline: PipelineContext, view: View) -> None:
    """T4: raise Rejected if the log just listed ends suspended. A later suspension takes the id that the plan needs."""
    refuse_after_final_cancel(pipeline.ledger, view)
    suspension = suspended(view, pipeline.settings.tolerable_failed_checkpoints)
    if suspension is None:
        return
    name = pipeline.graph.name
    failed = suspension.failed_checkpoints
    if failed:
        checkpoints = f"{len(failed)} checkpoint{'s' if len(failed) > 1 else ''}"
        message = (
            f"{pipeline.subject} is suspended: its last {checkpoints} failed, and tolerable_failed_checkpoints is "
            f"{pipeline.settings.tolerable_failed_checkpoints}. Checkpoint {failed[-1]}: {suspension.why}"
        )
    else:
        verb = "is" if suspension.action == "suspend" else "was"
        message = f"{pipeline.subject} {verb} {STATE_AFTER[suspension.action]} by {suspension.cause}"
        if suspension.why:
            message += f": {suspension.why}"
    if suspension.action == "drain":
        raise Rejected(message, expected="an active pipeline", help=help_after_end(name, view), reason=FINISHED)
    if suspension.action == "suspend":
        when, expected, reason = "when the cause is fixed", "a pipeline that is not suspended", "SUSPENDED"
    else:
        when, expected, reason = "to let it continue", "an active pipeline", STOPPED
    help = f"{when}: {pipeline.resuming}; nothing is lost, its input waits"
    if finished(view) is not None:
        help = help_after_end(name, view)
    raise Rejected(message, expected=expected, help=help, reason=reason)


def help_after_end(name: str, view: View) -> str:
    """Return the advice for a pipeline that is finished."""
    last = finished(view)
    before = None
    if last is not None and last.rollback is None:
        before = last.plan.base
    return (
        f"to undo the end: tidegate rollback MODULE:pipeline --to {before or 'N'}; to continue after it, where "
        f"all rows are late: tidegate resume {name} --after-end"
    )


def check_may_plan(pipeline: PipelineContext, view: View, kind: str) -> None:
    """T4: run the checks before planning. No checkpoint is planned on an open one that may be the last."""
    refuse_suspended(pipeline, view)
    draining_ids = tuple(entry.id for entry in view.still_open() if entry.plan.drain is not None)
    if draining_ids:
        raise in_progress(draining_ids, "it may be the last one, because the pipeline is being drained")
    if kind == "scheduled":
        _refuse_early(pipeline, view, pipeline.settings.min_pause)


def approval_pending(pipeline: PipelineContext, ids: tuple[int, ...], approvals: str) -> Rejected:
    """Return the error for checkpoints that wait for a person, as `approvals` describes."""
    return Rejected(
        approvals,
        expected="an answer to what its gates found",
        help=f"examine it, then run: tidegate approve {pipeline.graph.name} {ids[0]}{pipeline.option}, or reject",
        reason="CHECKPOINT_IN_PROGRESS",
    )


def in_progress(ids: tuple[int, ...], why: str) -> Rejected:
    """Return the error for a checkpoint that cannot be planned while others are in progress. why: the obstacle."""
    listed = ", ".join(map(str, ids))
    return Rejected(
        f"the next checkpoint waits for checkpoint {listed}: {why}",
        expected=f"{listed} to be completed or aborted first",
        help="wait for it; it ends by itself at its timeout, if its run does not end before",
        reason="CHECKPOINT_IN_PROGRESS",
    )


def _refuse_early(pipeline: PipelineContext, view: View, pause_s: float) -> None:
    """Raise Rejected within `pause_s` after the end of the last checkpoint, by the store's clock.

    If that clock went back, the age is meaningless and ignored.
    """
    last = view.last_completed
    age = None
    if last is not None and pause_s > 0:
        age = pipeline.ledger.age_of_decision(last.id)
    if last is None or age is None or not 0 <= age < pause_s:
        return
    early = Rejected(
        f"checkpoint {last.id} was completed {age:.1f} s ago, and min_pause is {pause_s:g} s",
        help="nothing to do: it is retried automatically",
        reason="MIN_PAUSE",
    )
    early.wait_s = pause_s - age
    raise early
