"""Suspend, stop and resume: entries of the one log, so that they have their place among the checkpoints.

Nothing is stored but the act itself. Whether the pipeline is suspended is read off the end of the log each time:
after a suspension no checkpoint can be planned, for whoever plans one has seen every lower entry. So a pipeline is
suspended if a suspension is the last thing in its log (but for rollbacks), or if more checkpoints in a row have failed
than its settings tolerate.
"""

from __future__ import annotations

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
    "Suspended",
    "busy",
    "cancel",
    "end_open",
    "finished",
    "for_good",
    "refuse",
    "refuse_for_good",
    "refuse_suspended",
    "resume",
    "sets_aside",
    "settle_below",
    "stop",
    "suspend",
    "suspended",
]


FINISHED = "FINISHED"
"""Why a run makes no checkpoint when event time has come to its end."""

STATE_AFTER = {
    "suspend": "suspended",
    "resume": "resumed",
    "stop": "stopped",
    "cancel": "cancelled",
    "drain": "finished",
}
"""By action, the state in which it leaves the pipeline, and the entry by which somebody did it."""

STOPPED = "STOPPED"
"""Why a run makes no checkpoint when the pipeline is over; and of an abort, that it was cancelled."""


@dataclass(frozen=True)
class Suspended:
    """No checkpoint may be planned."""

    by: str
    why: str
    failed: tuple[int, ...] = ()
    """The checkpoints that failed in a row, oldest first; empty if somebody said so."""
    action: Literal["suspend", "stop", "cancel", "drain"] = "suspend"
    """What was said."""
    rejected: int | None = None
    """The checkpoint whose rejection it follows from."""
    entry: int | None = None
    """The entry by which somebody said so."""


def suspended(view: View, tolerable: int) -> Suspended | None:
    """T4, read off the end of the log: nobody plans behind a suspension, so it is the last entry, or none is.

    Failures count from the last completed checkpoint on, or from the last time that somebody resumed. One that was
    rejected suspends at once: its rows would be held again. A rollback answers nothing: it carries a suspension on.
    """
    failed: list[Entry] = []
    for entry in reversed(view.entries):
        if entry.restart is not None and not entry.aborted and (held := entry.restart.suspended) is not None:
            return _said(held, entry.id)
        if entry.control is not None:
            if entry.control.action != "resume":
                return _said(entry.control, entry.id)
            break
        if entry.completed and (drain := entry.plan.drain) is not None:
            return Suspended(drain.by, drain.reason, action="drain")
        if entry.completed:
            break
        if entry.decision is not None and entry.decision.counts:
            failed.append(entry)
        if entry.decision is not None and entry.decision.reason == REJECTED:
            by = f"the rejection of checkpoint {entry.id}"
            return Suspended(by, entry.decision.detail, rejected=entry.id)
    if len(failed) <= tolerable:
        return None
    decision = failed[0].decision
    assert decision is not None
    why = f"{decision.reason}: {decision.detail}" if decision.detail else decision.reason
    return Suspended("", why, tuple(entry.id for entry in reversed(failed)))


def finished(view: View) -> Entry | None:
    """The checkpoint at the end of time, if the pipeline has come to it and nobody has resumed it on purpose."""
    for entry in reversed(view.entries):
        if entry.completed or (entry.control is not None and entry.control.action == "resume"):
            return entry if entry.plan.drain is not None else None
    return None


def draining(view: View) -> Drain | None:
    """Who has asked for the end, if input still waits before it. To resume, or to go back, takes that back."""
    for entry in reversed(view.entries):
        if entry.control is not None and entry.control.action == "resume":
            return None
        if not entry.aborted:  # as acts are, too
            return entry.plan.draining
    return None


def for_good(view: View) -> Entry | None:
    """The entry that has cancelled the pipeline for good, if there is one: it is the last one."""
    return next((e for e in reversed(view.entries) if e.control is not None and e.control.final), None)


def _said(control: Control, entry: int) -> Suspended:
    assert control.action != "resume"
    return Suspended(control.by, control.reason, action=control.action, entry=entry)


def suspend(ledger: Ledger, by: str, reason: str) -> int:
    """Let no run plan a checkpoint until somebody resumes; what is planned already goes on. The entry's id."""
    return _act(ledger, Control(action="suspend", by=by, reason=reason))


def stop(ledger: Ledger, by: str, reason: str) -> int:
    """The pipeline is over: no run plans a checkpoint, until somebody resumes it after all. What is planned goes on."""
    return _act(ledger, Control(action="stop", by=by, reason=reason))


def cancel(ledger: Ledger, by: str, reason: str, *, final: bool = False) -> tuple[int, tuple[int, ...]]:
    """Stop it, and end what is open at once. The entry's id, and those of the checkpoints that were ended.

    final: for good. Nobody can resume it, and lifecycle/cancel.py removes what it leaves. Again: it goes on.
    """
    already = for_good(ledger.view()) if final else None
    act = Control(action="cancel", by=by, reason=reason, final=final)
    id = already.id if already is not None else _act(ledger, act)
    return id, end_open(ledger, id, by)


def end_open(ledger: Ledger, id: int, by: str) -> tuple[int, ...]:
    """Abort all that is open, of a pipeline that entry `id` has cancelled; answers with what was ended here."""
    ended = set()
    while open_ones := [entry.id for entry in ledger.view(reach=id).still_open()]:
        for each in open_ones:
            decision = Decision(
                **stamp(seams.new_id()), id=each, outcome="aborted", reason=STOPPED, detail=f"cancelled by {by}"
            )
            if ledger.create_decision(decision).mine:
                ended.add(each)
    return tuple(sorted(ended))


def resume(
    ledger: Ledger, by: str, reason: str = "", *, after_end: bool = False, set_aside: bool = False
) -> int | None:
    """Let checkpoints be planned again, and forget the failures so far. None: there was nothing to forget.

    after_end: also if event time has come to its end; else that is refused. set_aside: after a rejection, the next
    checkpoint sets aside what a gate would hold again; without it, rows that are as they were are held once more.
    """
    view = ledger.view()
    refuse_for_good(ledger, view)
    if suspended(view, tolerable=0) is None and draining(view) is None:
        return None
    if set_aside and not _rejected(view):
        raise Rejected(
            f"no checkpoint of pipeline {ledger.pipeline!r} was rejected since the last one completed",
            expected="rows that a gate has held, and that somebody has rejected",
            help=f"resume it as it is: tidegate resume {ledger.pipeline}",
            reason="NOT_REJECTED",
        )
    if (last := finished(view)) is not None and not after_end:
        raise Rejected(
            f"pipeline {ledger.pipeline!r} is finished: with checkpoint {last.id} event time came to its end",
            expected="a pipeline that has only been stopped or suspended",
            help=_behind_end(ledger.pipeline, view),
            reason=FINISHED,
        )
    return _act(ledger, Control(action="resume", by=by, reason=reason, set_aside=set_aside))


def _rejected(view: View) -> bool:
    """Whether a checkpoint was rejected since the last one completed, or since somebody resumed."""
    for entry in reversed(view.entries):
        if entry.completed or (entry.control is not None and entry.control.action == "resume"):
            return False
        if entry.decision is not None and entry.decision.reason == REJECTED:
            return True
    return False


def sets_aside(view: View) -> bool:
    """Whether the next checkpoint sets aside what a gate would hold: chosen at the last resumption, and taken up by no
    plan since that may still count. Read off the end of the log, as a suspension is."""
    for entry in reversed(view.entries):
        if entry.control is not None and entry.control.action == "resume":
            return entry.control.set_aside
        if entry.completed or (entry.plan.set_aside and not entry.aborted):
            return False
    return False


def refuse_for_good(ledger: Ledger, view: View) -> None:
    """What was cancelled for good has nothing left to go on from, but for savepoints: and these are forked."""
    ended = for_good(view)
    if ended is None or ended.control is None:
        return
    why = f": {ended.control.reason}" if ended.control.reason else ""
    raise Rejected(
        f"pipeline {ledger.pipeline!r} was cancelled for good by {ended.control.by}{why}",
        expected="a pipeline that goes on; of this one all is removed but its tables and its savepoints",
        help=f"to go on from a savepoint: tidegate fork {ledger.pipeline} --from NAME --as MODULE:pipeline; to begin "
        f"afresh: another name with tables of its own, or move {ledger.home} and its tables away",
        reason=STOPPED,
    )


def refuse_suspended(pipeline: PipelineContext, view: View) -> None:
    """T4: from the log just listed. A suspension that comes later takes the id that the plan wanted."""
    refuse_for_good(pipeline.ledger, view)
    found = suspended(view, pipeline.limits.tolerable_failed_checkpoints)
    if found is None:
        return
    name = pipeline.graph.name
    if found.failed:
        what = (
            f"pipeline {name!r} is suspended: its last {len(found.failed)} checkpoint"
            f"{'s' if len(found.failed) > 1 else ''} failed, and tolerable_failed_checkpoints is "
            f"{pipeline.limits.tolerable_failed_checkpoints}. Checkpoint {found.failed[-1]}: {found.why}"
        )
    else:
        verb = "is" if found.action == "suspend" else "was"
        what = f"pipeline {name!r} {verb} {STATE_AFTER[found.action]} by {found.by}"
        what += f": {found.why}" if found.why else ""
    if found.action == "drain":
        raise Rejected(what, expected="a pipeline that goes on", help=_behind_end(name, view), reason=FINISHED)
    over = found.action != "suspend"
    raise Rejected(
        what,
        expected="a pipeline that goes on" if over else "a pipeline that is not suspended",
        help=f"{'to let it go on' if over else 'when the cause is mended'}: tidegate resume {name}; "
        "nothing is lost, its input waits",
        reason=STOPPED if over else "SUSPENDED",
    )


def _behind_end(name: str, view: View) -> str:
    """What can be done with a pipeline that is finished."""
    last = finished(view)
    before = last.plan.base if last is not None and last.restart is None else None
    return (
        f"to take the end back: tidegate rollback MODULE:pipeline --to {before or 'N'}; to go on behind it, where all "
        f"rows are late: tidegate resume {name} --after-end"
    )


def refuse(pipeline: PipelineContext, view: View, kind: str) -> None:
    """T4: the pre-checks. Nothing is planned behind what may be the last checkpoint before it is decided."""
    refuse_suspended(pipeline, view)
    if ending := tuple(entry.id for entry in view.still_open() if entry.plan.drain is not None):
        raise busy(ending)
    if kind == "scheduled":
        _refuse_early(pipeline, view, pipeline.limits.min_pause)


def busy(ids: tuple[int, ...], held: str = "") -> Rejected:
    """Others are at work, or wait for a person."""
    if held:
        return Rejected(
            held,
            expected="an answer to what its gates found",
            help=f"look at it with `tidegate explain`, then say `tidegate approve` or `tidegate reject`, and {ids[0]}",
            reason="CHECKPOINT_IN_PROGRESS",
        )
    listed = ", ".join(map(str, ids))
    return Rejected(
        f"checkpoint {listed} is still open and max_concurrent_checkpoints allows no more",
        expected=f"{listed} to be completed or aborted first",
        help="wait for it; it ends by itself at its timeout, if its run does not end before",
        reason="CHECKPOINT_IN_PROGRESS",
    )


def _refuse_early(pipeline: PipelineContext, view: View, pause_s: float) -> None:
    """At least `pause_s` between the end of a checkpoint and the next one, by the store's clock.

    A clock that went back tells nothing: then nobody waits.
    """
    last = view.last_completed
    age = pipeline.ledger.age_of_decision(last.id) if last is not None and pause_s > 0 else None
    if last is None or age is None or not 0 <= age < pause_s:
        return
    early = Rejected(
        f"checkpoint {last.id} was completed {age:.1f} s ago, and min_pause is {pause_s:g} s",
        help="nothing to do: it is tried again by itself",
        reason="MIN_PAUSE",
    )
    early.wait_s = pause_s - age
    raise early


def _act(ledger: Ledger, control: Control) -> int:
    """Create the entry at the end of the log, wherever that is by then."""
    check_run(control.by)
    ledger.start()
    reach: int | None = None
    while True:
        view = ledger.view(reach=reach)
        refuse_for_good(ledger, view)
        settle_below(ledger, view, 0)
        plan = _plan(view.last_id + 1, control)
        created = ledger.create_entry(plan)
        reach = plan.id
        if created.mine:
            ledger.index_run(plan)
            ledger.create_decision(Decision(**stamp(seams.new_id()), id=plan.id, outcome="aborted", reason=CONTROL))
            return plan.id


def settle_below(ledger: Ledger, view: View, low: int) -> None:
    """W2: what the next entry rests on survives a power loss. If the abort of a checkpoint that it skips did not,
    that one could be completed after all, and its input would be read twice; if a plan did not, the log would
    have a hole for ever."""
    for entry in view.entries:
        if entry.id >= low:
            settle = ledger.settle_plan if entry.decision is None else ledger.settle_decision
            settle(entry.id)


def _plan(id: int, control: Control) -> Plan:
    """An entry without input, jobs or output."""
    return Plan(
        **stamp(seams.new_id()),
        id=id,
        kind="control",
        run=f"control:{seams.new_id()}",
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
