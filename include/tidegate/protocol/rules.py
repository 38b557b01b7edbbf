"""The rules, as pure functions from (what one reader saw, what happened) to what to do next.

No I/O, no clock, no randomness: the coordinator carries the answers out, the model in tests/model
explores every interleaving of them, the simulator runs them on a broken store. Read beside
docs/protocol.md, which defines the rules by their codes (T3, D2, P2 …).

What must hold, and where it comes from:

  - Ids are positions of one log. An entry is created at last + 1, so whoever creates it has seen every
    lower one; ids are never reused, not even after an abort.                                   (T5, T6)
  - A view may be old. So an answer is only ever "create this if absent", and after each create that
    may have lost against another, the log is read again.                                       (T3, W3)
  - A checkpoint completes only on a completed base. Aborting is always safe, for anyone.       (D1, D2)
  - A table takes the completed checkpoints in order, each once, by compare-and-swap.           (P1 to P3)
  - A rollback to c is an entry like any other, at the end of the log, made when all lower ones are decided. Once it is
    completed, those between c and it no longer count: what is not published of them never is, and its own publish,
    which puts a table back as of c, comes after whatever is there.                             (R2 to R4)

In an interval pipeline (section 8) entries rest on nothing and complete in any order. Then what must hold is:

  - The intervals of all entries that are not aborted are equal or disjoint; of one interval, one is open at most.
  - Of each interval a table shows the rows of its highest completed entry, whatever came first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.protocol.answers import (
    Abort,
    Adopt,
    Complete,
    Covered,
    CreateEntry,
    Damaged,
    DoneAlready,
    Misfit,
    Nothing,
    PassedBy,
    Publish,
    RunJob,
    Stop,
    Wait,
)
from tidegate.protocol.overtaking import on_job_behind
from tidegate.protocol.progress import allows_overtaking, missing, progress_of
from tidegate.protocol.verdicts import REJECTED, Undecided, gate_failure, rejection, unanswered
from tidegate.protocol.view import Entry, View
from tidegate.records.interval import Interval
from tidegate.records.records import Handle, Manifest, TablePart

__all__ = [
    "Abort",
    "Adopt",
    "Complete",
    "Covered",
    "CreateEntry",
    "Damaged",
    "DoneAlready",
    "Misfit",
    "Nothing",
    "PassedBy",
    "Publish",
    "RunJob",
    "Stop",
    "Triggering",
    "Undecided",
    "Wait",
    "WantedInterval",
    "after_publish",
    "left_by",
    "on_completion",
    "on_job",
    "on_publish",
    "on_publish_interval",
    "on_rollback",
    "on_trigger",
    "still_owed",
]


# -- trigger (T1 to T6) --------------------------------------------------------------------------------


@dataclass(frozen=True)
class WantedInterval:
    """The data interval of the run that asks."""

    interval: Interval
    independent: bool
    """True: of an interval pipeline; its intervals do not rest on each other."""
    reprocess: bool = False
    """True: make it once more, even if it is done."""
    indexed: Collection[Interval] = ()
    """Intervals that were completed below the view: all that overlap it. Read after the view: what leaves that is there
    by then."""


Triggering: TypeAlias = Adopt | Abort | Covered | Misfit | Wait | CreateEntry


def on_trigger(
    view: View, run: str, max_open: int, give_up: Mapping[int, str], wanted: WantedInterval | None = None
) -> Triggering:
    """What a run that wants a checkpoint does next.

    give_up: open entries that somebody has reason to end (expired, its process is gone, a person says
    so), with the reason. Such hints may be wrong: an abort loses against a completion, and costs only
    time if it wins.
    """
    own = own_entry(view, run)
    if own is not None:
        return Adopt(own)
    doomed = next_abort(view, give_up)
    if doomed is not None:
        return doomed
    independent = wanted is not None and wanted.independent
    if wanted is not None:
        settled = _beside_others(view, wanted) if independent else _covered(view, wanted)
        if settled is not None:
            return settled
    others = tuple(entry.id for entry in view.still_open())
    if len(others) >= max_open:
        return Wait(others)
    base = None if independent else plan_base(view)
    generation = base.plan.generation if base else 0
    return CreateEntry(id=view.last_id + 1, base=base.id if base else None, generation=generation)


def own_entry(view: View, run: str) -> int | None:
    """T2: the run's entry that is undecided or completed. After an abort the run may get another."""
    for entry in reversed(view.entries):
        if entry.plan.run == run and not entry.aborted:
            return entry.id
    for elsewhere in reversed(view.own_elsewhere):
        if isinstance(elsewhere, int):
            return elsewhere  # retired: it was decided, and what it did stays done
        if not elsewhere.aborted:
            return elsewhere.id
    return None


def next_abort(view: View, give_up: Mapping[int, str]) -> Abort | None:
    """A1/T3: the lowest open entry that is dead: its base is aborted, or there is reason to give it up."""
    for entry in view.entries:
        if entry.control is not None and entry.decision is None:
            return Abort(entry.id, CONTROL, "", counts=False)  # whoever made it stopped in between
    for entry in view.still_open():
        if base_aborted(view, entry):
            return Abort(entry.id, "BASE_ABORTED", f"checkpoint {entry.plan.base}, its base, was aborted", False)
        if entry.id in give_up:
            counts = give_up[entry.id] in COUNTED and entry.restart is None
            return Abort(entry.id, give_up[entry.id], "", counts)
    return None


def on_rollback(view: View) -> Abort | CreateEntry:
    """R2: what somebody does next who rolls back. Everything below is decided before the entry is created: nothing
    that it leaves behind can be completed any more, and whatever is has a lower id."""
    for entry in view.entries:
        if entry.decision is None:
            reason = CONTROL if entry.control is not None else ROLLED_BACK
            return Abort(entry.id, reason, "ended by a rollback", counts=False)
    base = plan_base(view)
    generation = base.plan.generation if base else 0
    return CreateEntry(id=view.last_id + 1, base=base.id if base else None, generation=generation + 1)


def _beside_others(view: View, wanted: WantedInterval) -> Covered | Misfit | Wait | None:
    """Section 8: whether the interval can be made beside those that are there. What is open is waited for."""
    interval, open_ones, done = wanted.interval, [], None
    for entry in view.entries:
        other = entry.interval
        if entry.aborted or other is None or not other.overlaps(interval):
            continue
        if entry.open:
            open_ones.append(entry.id)
        elif other != interval:
            return Misfit(other)
        else:
            done = Covered(entry.id)
    for other in wanted.indexed:
        if other.overlaps(interval) and other != interval:
            return Misfit(other)
    if done is None and interval in wanted.indexed:
        done = Covered(None)
    if done is not None and not wanted.reprocess:
        return done
    return Wait(tuple(open_ones)) if open_ones else None


def _covered(view: View, wanted: WantedInterval) -> Covered | Misfit | None:
    """Whether checkpoints that build on each other have gone past the interval."""
    last = view.last_completed
    if last is None or last.plan.reach is None:
        return None
    reach = Interval.of_record(last.plan.reach)
    if wanted.interval.end > reach.end:
        return None
    return Misfit(reach, early=True) if wanted.interval.start < reach.start else Covered(last.id)


CONTROL = "CONTROL"
"""The reason in the decision of an entry that is no checkpoint."""

ROLLED_BACK = "ROLLED_BACK"
"""The reason of an abort that a rollback makes: what is still open is not waited for."""

VOID = "ACK_VOID"
"""The reason of an abort of what rests on an attempt that does not count, and waits for no other."""

ENVIRONMENT_FAILED = "ENVIRONMENT_FAILED"
"""The reason of an abort that is not the pipeline's fault: there was no Spark to work with."""

COUNTED = frozenset({"CHECKPOINT_EXPIRED", "JOB_FAILED", "GATE_FAILED"})
"""Abort reasons that count towards `tolerable_failed_checkpoints`, as in Flink: the pipeline's own failures."""


def plan_base(view: View) -> Entry | None:
    """T5: the highest entry that is not aborted, decided or not. Positions go on where its plan ends."""
    return next((entry for entry in reversed(view.entries) if not entry.aborted), None)


def base_aborted(view: View, entry: Entry) -> bool:
    """Whether the entry rests on one that will never count. (A base below the view is settled: completed.)"""
    base = view.get(entry.plan.base)
    return base is not None and base.aborted


# -- job (J1, J2, J5) ----------------------------------------------------------------------------------


def on_job(
    entry: Entry | None,
    base: Entry | None,
    job: str,
    after: Sequence[str] = (),
    below: Sequence[Entry] = (),
    gone: Collection[int] = (),
    *,
    time_up: bool = True,
    beyond: bool = False,
) -> Stop | DoneAlready | PassedBy | Wait | RunJob:
    """What a job of `entry` does before it touches anything, and again before it acks.

    after: the jobs whose channels it takes. If it waits for `entry` itself, it is for one of these.
    below, and the rest: where checkpoints may go past a busy job (protocol/overtaking.py); what the base rests on.
    """
    if entry is None:
        return Stop("the checkpoint is not in the log any more")
    if entry.control is not None:
        return Stop(f"entry {entry.id} is no checkpoint: it was made to {entry.control.action}")
    if entry.restart is not None:
        return Stop(f"entry {entry.id} is a rollback: it has no jobs")
    if job in entry.acks:
        return DoneAlready()
    line = [entry, *([base] if base is not None else ()), *below]
    loose = bool(after) and allows_overtaking(line)
    if entry.decision is not None and not (loose and entry.completed):
        return Stop(f"checkpoint {entry.id} was {entry.decision.outcome} without job {job!r}")
    if dead := next((each for each in line[1:] if each.aborted), None):
        what = "the base of" if dead is base else "on which rests"
        return Stop(f"checkpoint {dead.id}, {what} {entry.id}, was aborted")
    if after and (refused := gate_failure(entry)):
        return Stop(f"checkpoint {entry.id} cannot be completed any more: {refused}")
    waits_for_rollback = base is not None and base.restart is not None and base.open
    if loose and not waits_for_rollback:
        return on_job_behind(line, job, after, gone, time_up=time_up, beyond=beyond)
    if any(other not in entry.acks for other in after):
        return Wait((entry.id,))
    if base is None:
        return RunJob(prev=None)
    prev = last_ack(base, job)
    new = base.completed if base.restart is not None else job not in base.plan.acks
    if prev is None and new:
        return RunJob(prev=None)  # the job is new since then
    return RunJob(prev) if prev else Wait((base.id,))


def last_ack(base: Entry, job: str) -> Handle | None:
    """J2: the snapshot that the job continues: the ack that its base holds for it."""
    if base.manifest is not None:
        return base.manifest.jobs.get(job)
    acked = base.acks.get(job)
    return acked.handle if acked else None


# -- completion (D1, D2, D4) ---------------------------------------------------------------------------


def on_completion(
    entry: Entry | None,
    base: Entry | None,
    failure: tuple[str, str] | None = None,
    below: Sequence[Entry] = (),
    passed: Collection[str] = (),
) -> Abort | Complete | DoneAlready | Undecided | Wait:
    """Whether `entry` can be decided. `failure`: (reason, detail) if one of its jobs failed for good.

    below: what the base rests on, where jobs may be behind. passed: jobs that later entries have found busy.
    All facts that this rests on are write-once, so no check can go stale.
    """
    if entry is None or not entry.open:
        return DoneAlready()
    if entry.restart is not None:  # whoever rolls back decides it at once; others can only end it
        return Abort(entry.id, *failure, counts=False) if failure is not None else Wait((entry.id,))
    if base is not None and base.aborted:
        return Abort(entry.id, "BASE_ABORTED", f"checkpoint {base.id}, its base, was aborted", counts=False)
    if refused := gate_failure(entry):
        return Abort(entry.id, "GATE_FAILED", refused, counts=True)
    if said_no := rejection(entry):
        return Abort(entry.id, REJECTED, said_no, counts=False)
    lacking = missing(entry, passed)
    if lacking and failure is not None:
        return Abort(entry.id, *failure, counts=failure[0] in COUNTED)
    if holding := unanswered(entry):  # D5: whatever its other jobs have done, or have been passed by
        return Undecided(entry.id, holding)
    if lacking:
        return Wait((entry.id,))
    if base is not None and not base.completed:
        return Wait((base.id,))
    line = [entry, *([base] if base is not None else ()), *below]
    if not allows_overtaking(line):
        return Complete(entry.id, base, {job: acked.handle for job, acked in entry.acks.items()})
    chosen = progress_of(line).chosen
    for job, acked in entry.acks.items():
        if chosen.get(job) != acked.handle and job not in entry.overtakable:
            why = f"two attempts at job {job!r} went on from the same checkpoint, and the other one counts"
            return Abort(entry.id, VOID, why, counts=False)
    return Complete(entry.id, base, chosen)


# -- publish (P1, P2, P4) ------------------------------------------------------------------------------


def on_publish(view: View, table: str, last: int | None) -> Publish | Nothing | Damaged:
    """What the table takes next. `last` was read from the table *before* the view was read from the log."""
    left = left_by(view, table)
    completed = [entry.manifest for entry in view.entries if entry.manifest is not None and entry.id >= left]
    if last is not None and last > view.last_id:
        return Damaged(f"the table holds checkpoint {last}, the log ends at {view.last_id}")
    anything = left and (last is None or last < left)  # whoever slept meanwhile may still have published some of it
    for manifest in completed:
        part = manifest.tables.get(table)
        if part is None or not has_unpublished(part) or (last is not None and manifest.id <= last):
            continue
        if view.rolled_back_by(manifest.id) is not None:
            continue
        if part.restore is None and part.after != last and not anything:
            return Damaged(f"checkpoint {manifest.id} goes on top of {part.after}, the table holds {last}")
        return Publish(manifest.id, last)
    expected = after_publish(completed, table)
    if last != expected and not anything:
        return Damaged(f"the table should hold checkpoint {expected}, it holds {last}")
    return Nothing()


def left_by(view: View, table: str) -> int:
    """The last rollback that has let go of the table: what was owed to it before is owed no more. 0: none has."""
    for entry in reversed(view.entries):
        if entry.restart is not None and entry.completed and table in entry.restart.left:
            return entry.id
    return 0


def still_owed(view: View, table: str) -> list[int]:
    """The completed entries of the view that owe the table a commit, as far as the log tells."""
    left = left_by(view, table)
    return [
        entry.id
        for entry in view.entries
        if entry.id > max(left, view.settled)
        and entry.manifest is not None
        and (part := entry.manifest.tables.get(table)) is not None
        and has_unpublished(part)
        and view.rolled_back_by(entry.id) is None
    ]


def on_publish_interval(
    view: View, table: str, last: int | None, held: Callable[[int], bool], blocked: Collection[int] = ()
) -> Publish | Nothing | Damaged:
    """What the table takes next, in an interval pipeline (section 8): per interval its highest completed entry.

    last: the highest entry that was ever published on the table. held: whether the table has the commit of an entry.
    Both as of a version that was read *before* the view. The answer's `after` is the entry of the interval that the
    table shows now; None: that is no entry of this view. blocked: entries that the table does not take as it is; the
    others do not wait for them.
    """
    if last is not None and last > view.last_id:
        return Damaged(f"the table holds checkpoint {last}, the log ends at {view.last_id}")
    parts: dict[Interval, list[int]] = {}
    for entry in view.entries:
        if entry.manifest is not None and table in entry.manifest.tables and entry.interval is not None:
            parts.setdefault(entry.interval, []).append(entry.id)
            if entry.id <= view.settled and (last is None or last < entry.id):
                return Damaged(f"the table should hold checkpoint {entry.id}, the last one that it holds is {last}")
    for ids in parts.values():
        shown = next((id for id in reversed(ids) if id <= view.settled or held(id)), None)
        if shown != ids[-1] and ids[-1] not in blocked:
            return Publish(ids[-1], shown)
    return Nothing()


def has_unpublished(part: TablePart) -> bool:
    """Whether an entry makes a commit on the table."""
    return bool(part.committables) or part.restore is not None


def after_publish(completed: Sequence[Manifest], table: str) -> int | None:
    """The last entry that the table holds once these are all published on it."""
    for manifest in reversed(completed):
        part = manifest.tables.get(table)
        if part is not None:
            return manifest.id if has_unpublished(part) else part.after
    return None
