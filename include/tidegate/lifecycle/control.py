"""Suspend, stop, cancel and resume a pipeline, by entries in the same log as its checkpoints.

Only the action itself is stored: checkpoint/suspension.py derives from the log what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate import seams
from tidegate.checkpoint.suspension import (
    FINISHED,
    STOPPED,
    draining,
    final_cancel,
    finished,
    help_after_end,
    refuse_after_final_cancel,
    suspended,
)
from tidegate.errors import Rejected
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.protocol.rules import CONTROL
from tidegate.protocol.verdicts import REJECTED
from tidegate.protocol.view import View
from tidegate.records.codec import fingerprint
from tidegate.records.names import check_run
from tidegate.records.records import Control, Decision, Plan

__all__ = [
    "abort_open",
    "cancel",
    "check_resume",
    "create_entry_after",
    "lift_abandoned",
    "lift_suspension",
    "refuse_backfills",
    "resume",
    "stop",
    "suspend",
    "sync_below",
    "waits_for_process",
]

_PERSON = "control:"
"""Prefix of the run of an entry that was made for a person."""


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
    plan = None
    if current is not None and current.entry is not None:
        plan = ledger.plan(current.entry)
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

    final: for good. The pipeline cannot be resumed, and lifecycle/final_cleanup.py removes its files. A second call
    continues an interrupted one. Refused while the pipeline has a backfill, which could never be swapped in any more.
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
            help=help_after_end(ledger.pipeline, view),
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
