"""Suspend, stop, cancel and resume a pipeline, by entries in the same log as its checkpoints.

Only the action itself is stored. Whether the pipeline is suspended is derived from the end of the log each time: after
a suspension no checkpoint can be planned, because the planner has seen every lower entry. So a pipeline is suspended if
a suspension is the last entry of its log (not counting rollbacks), or if more checkpoints in a row have failed than its
settings tolerate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tidegate import seams
from tidegate.errors import Rejected
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.protocol.rules import CONTROL
from tidegate.protocol.verdicts import REJECTED
from tidegate.protocol.view import Entry, View
from tidegate.records.codec import fingerprint
from tidegate.records.names import check_run
from tidegate.records.records import Control, Decision, Drain, Plan

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = [
    "FINISHED",
    "STATE_AFTER",
    "STOPPED",
    "SuspensionState",
    "abort_open",
    "approval_pending",
    "cancel",
    "check_may_plan",
    "check_resume",
    "create_entry_after",
    "final_cancel",
    "finished",
    "in_progress",
    "inherited_suspension",
    "is_quarantining_all",
    "lift_abandoned",
    "lift_suspension",
    "refuse_after_final_cancel",
    "refuse_suspended",
    "resume",
    "stop",
    "suspend",
    "suspended",
    "sync_below",
    "waits_for_process",
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

_PERSON = "control:"
"""Prefix of the run of an entry that was made for a person."""

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
    why = f"{decision.reason}: {decision.detail}" if decision.detail else decision.reason
    return SuspensionState("", why, tuple(entry.id for entry in reversed(failed)))


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


def suspend(ledger: Ledger, by: str, reason: str, run: str = "") -> int:
    """Suspend the pipeline: no run plans a checkpoint until it is resumed. Planned checkpoints continue. Return the id
    of the entry.

    run: the process that suspends it, if it is not a person. Once that has ended, any process may lift the suspension.
    """
    return _create_entry_for(ledger, Control(action="suspend", by=by, reason=reason), run)


def lift_suspension(ledger: Ledger, tolerable: int, by: str, reason: str) -> bool:
    """Resume the pipeline if its last suspension is by `by`. Return whether it was."""
    while True:
        view = ledger.view()
        current = suspended(view, tolerable)
        if current is None or current.cause != by:
            return False
        if create_entry_after(ledger, view, Control(action="resume", by=by, reason=reason)):
            return True


def waits_for_process(ledger: Ledger, tolerable: int) -> Plan | None:
    """Return the entry with which a process has suspended the pipeline, as a swap does. None if a person has suspended
    it, or if it is not suspended."""
    current = suspended(ledger.view(), tolerable)
    plan = ledger.plan(current.entry) if current is not None and current.entry is not None else None
    if plan is None or plan.control is None or plan.run.startswith(_PERSON):
        return None
    return plan


def lift_abandoned(ledger: Ledger, tolerable: int, give_up: Callable[[Plan], str | None]) -> bool:
    """Resume the pipeline if a process or run has suspended it and has ended. Return whether it did.

    give_up: returns a reason if that process has ended; a hint. If it is wrong, a swap finds new checkpoints, and reads
    them too.
    """
    plan = waits_for_process(ledger, tolerable)
    if plan is None or plan.control is None or give_up(plan) is None:
        return False
    return lift_suspension(ledger, tolerable, plan.control.by, "what it waited for has ended")


def stop(ledger: Ledger, by: str, reason: str) -> int:
    """End the pipeline: no run plans a checkpoint unless it is resumed. Planned checkpoints continue."""
    return _create_entry_for(ledger, Control(action="stop", by=by, reason=reason))


def cancel(ledger: Ledger, by: str, reason: str, *, final: bool = False) -> tuple[int, tuple[int, ...]]:
    """Stop the pipeline, and abort its open checkpoints at once. Return the id of the entry, and the aborted ids.

    final: for good. The pipeline cannot be resumed, and lifecycle/cancel.py cleans up after it. A second call continues
    an interrupted one. Refused while the pipeline has a backfill, which could never be swapped in any more.
    """
    earlier = final_cancel(ledger.view()) if final else None
    if earlier is not None:
        id = earlier.id
    else:
        if final:
            refuse_backfills(ledger)
        id = _create_entry_for(ledger, Control(action="cancel", by=by, reason=reason, final=final))
    return id, abort_open(ledger, id, by)


def refuse_backfills(ledger: Ledger) -> None:
    """Raise Rejected if the pipeline has a backfill, even one that was interrupted as it began."""
    # The pin is created before the backfill's record.
    pinned = [pin.owner.removeprefix("line-") for pin in ledger.pins() if pin.kind == "line"]
    names = sorted({*pinned, *(line.name for line in ledger.lines())})
    if names:
        raise Rejected(
            f"pipeline {ledger.pipeline!r} has backfill {', '.join(names)}, which could not be swapped in any more",
            expected="a pipeline without a backfill, before it is cancelled for good",
            help=f"swap it in, or discard it: tidegate backfill MODULE:PIPELINE --discard {names[0]}",
            reason="BACKFILL_IN_PROGRESS",
        )


def abort_open(ledger: Ledger, id: int, by: str) -> tuple[int, ...]:
    """Abort all open checkpoints of a pipeline that entry `id` has cancelled. Return those aborted by this call."""
    aborted = set()
    while open_ones := [entry.id for entry in ledger.view(reach=id).still_open()]:
        for open_id in open_ones:
            decision = Decision(
                **stamp(seams.new_id()), id=open_id, outcome="aborted", reason=STOPPED, detail=f"cancelled by {by}"
            )
            if ledger.create_decision(decision).is_new:
                aborted.add(open_id)
    return tuple(sorted(aborted))


def resume(
    ledger: Ledger, by: str, reason: str = "", *, after_end: bool = False, quarantine_all: bool = False
) -> int | None:
    """Allow checkpoints to be planned again, and reset the failure count. Return the id of the entry, or None if there
    was nothing to resume.

    after_end: resume even if event time has ended; otherwise that is refused. quarantine_all: after a rejection, the
    next checkpoint quarantines the rows that a gate would hold again; without it, unchanged rows are held again.
    """
    if not check_resume(ledger, ledger.view(), after_end=after_end, quarantine_all=quarantine_all):
        return None
    return _create_entry_for(ledger, Control(action="resume", by=by, reason=reason, quarantine_all=quarantine_all))


def check_resume(ledger: Ledger, view: View, *, after_end: bool, quarantine_all: bool) -> bool:
    """Raise Rejected if the pipeline cannot be resumed with these options. Return False if it is not suspended."""
    refuse_after_final_cancel(ledger, view)
    if suspended(view, tolerable=0) is None and draining(view) is None:
        return False
    if quarantine_all and not _rejected(view):
        raise Rejected(
            f"no checkpoint of pipeline {ledger.pipeline!r} was rejected since the last one completed",
            expected="rows that a gate has held, and that a person has rejected",
            help=f"resume it as it is: tidegate resume {ledger.pipeline}",
            reason="NOT_REJECTED",
        )
    last = finished(view)
    if last is not None and not after_end:
        raise Rejected(
            f"pipeline {ledger.pipeline!r} is finished: event time ended with checkpoint {last.id}",
            expected="a pipeline that has only been stopped or suspended",
            help=_help_after_end(ledger.pipeline, view),
            reason=FINISHED,
        )
    return True


def _rejected(view: View) -> bool:
    """Return whether a checkpoint was rejected since the last one completed, or since the last resumption."""
    for entry in reversed(view.entries):
        if entry.completed or (entry.control is not None and entry.control.action == "resume"):
            return False
        if entry.decision is not None and entry.decision.reason == REJECTED:
            return True
    return False


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
        raise Rejected(message, expected="an active pipeline", help=_help_after_end(name, view), reason=FINISHED)
    if suspension.action == "suspend":
        when, expected, reason = "when the cause is fixed", "a pipeline that is not suspended", "SUSPENDED"
    else:
        when, expected, reason = "to let it continue", "an active pipeline", STOPPED
    help = f"{when}: {pipeline.resuming}; nothing is lost, its input waits"
    if finished(view) is not None:
        help = _help_after_end(name, view)
    raise Rejected(message, expected=expected, help=help, reason=reason)


def _help_after_end(name: str, view: View) -> str:
    """Return the advice for a pipeline that is finished."""
    last = finished(view)
    before = last.plan.base if last is not None and last.rollback is None else None
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
    age = pipeline.ledger.age_of_decision(last.id) if last is not None and pause_s > 0 else None
    if last is None or age is None or not 0 <= age < pause_s:
        return
    early = Rejected(
        f"checkpoint {last.id} was completed {age:.1f} s ago, and min_pause is {pause_s:g} s",
        help="nothing to do: it is retried automatically",
        reason="MIN_PAUSE",
    )
    early.wait_s = pause_s - age
    raise early


def _create_entry_for(ledger: Ledger, control: Control, run: str = "") -> int:
    """Create the entry at the current end of the log. Return its id."""
    check_run(control.by)
    ledger.start()
    reach: int | None = None
    while True:
        view = ledger.view(reach=reach)
        refuse_after_final_cancel(ledger, view)
        reach = view.last_id + 1
        if create_entry_after(ledger, view, control, run):
            return reach


def create_entry_after(ledger: Ledger, view: View, control: Control, run: str = "") -> bool:
    """Create the entry right after those of the view. Return False if another process has created one since."""
    sync_below(ledger, view, 0)
    plan = _plan(view.last_id + 1, control, run or f"{_PERSON}{seams.new_id()}")
    if not ledger.create_entry(plan).is_new:
        return False
    ledger.index_run(plan)
    ledger.create_decision(Decision(**stamp(seams.new_id()), id=plan.id, outcome="aborted", reason=CONTROL))
    return True


def sync_below(ledger: Ledger, view: View, low: int) -> None:
    """W2: sync the records that the next entry rests on.

    If a power loss took the abort of a checkpoint that the entry skips, that one could be completed after all, and its
    input would be read twice. If it took a plan, an id would be missing from the log permanently.
    """
    for entry in view.entries:
        if entry.id >= low:
            sync = ledger.sync_plan if entry.decision is None else ledger.sync_decision
            sync(entry.id)


def _plan(id: int, control: Control, run: str) -> Plan:
    """Return the plan of an entry without input, jobs or output."""
    return Plan(
        **stamp(seams.new_id()),
        quotes_rows=False,
        id=id,
        kind="control",
        run=run,
        base=None,
        control=control,
        sources={},
        triggers=[],
        acks=[],
        commits=[],
        timeout_s=0.0,
        config={},
        config_fingerprint=fingerprint({}),
        code_fingerprint="",
    )
