"""The rules, as pure functions from a view of the log and an event to the next step.

No I/O, no clock, no randomness. The coordinator performs the answers, the model in tests/model explores every
interleaving of them, and the simulator runs them on a broken store. docs/protocol.md defines the rules by their codes
(T3, D2, P2 …).

The invariants, and the rules that they follow from:

  - Ids are positions in one log. An entry is created at last + 1, so its creator has seen every lower entry; ids are
    never reused, not even after an abort.                                                      (T5, T6)
  - A view may be old. So an answer is only ever "create this if absent", and after each create that may have lost
    a race, the log is read again.                                                              (T3, W3)
  - A checkpoint completes only on a completed base. Aborting is always safe, for anyone.       (D1, D2)
  - A table takes the completed checkpoints in order, each once, by compare-and-swap.           (P1 to P3)
  - A rollback to c is an ordinary entry at the end of the log, created when all lower entries are decided. Once it is
    completed, the entries between c and it no longer count: their unpublished parts are never published, and its own
    publish, which restores a table as of c, comes after everything on the table.               (R2 to R4)

In an interval pipeline (section 8) entries rest on nothing and complete in any order. Its invariants are:

  - The intervals of all entries that are not aborted are equal or disjoint, and each interval has at most one open
    entry.
  - For each interval a table shows the rows of its highest completed entry, in whatever order entries completed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.protocol.progress import allows_overtaking, job_progress, missing
from tidegate.protocol.verdicts import Undecided, gate_failure, rejection, unanswered
from tidegate.protocol.view import Entry, View
from tidegate.records.interval import Interval
from tidegate.records.records import Handle, Manifest, TablePart

__all__ = [
    "Abort",
    "Adopt",
    "AwaitDivert",
    "Complete",
    "Covered",
    "CreateEntry",
    "Damaged",
    "DoneAlready",
    "Misfit",
    "NothingToPublish",
    "Publish",
    "RunJob",
    "SettleDivert",
    "SkipJob",
    "Stop",
    "Triggering",
    "Undecided",
    "Wait",
    "WantedInterval",
    "after_publish",
    "last_abandoning_rollback",
    "on_completion",
    "on_job",
    "on_job_behind",
    "on_publish",
    "on_publish_interval",
    "on_rollback",
    "on_trigger",
    "pending_checkpoints",
    "unfinished",
]


# -- answers: each is a single next step, with the values that it needs ---------------------------------


@dataclass(frozen=True)
class Adopt:
    """The run already has an entry: continue with that one and plan nothing."""

    id: int


@dataclass(frozen=True)
class Abort:
    """Create the abort of `id`, read back which decision holds, and call again."""

    id: int
    reason: str
    detail: str
    counts: bool


@dataclass(frozen=True)
class Wait:
    """Other entries are in progress: call again when one of `ids` is decided."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Covered:
    """The run's interval is already done, by checkpoint `id` (None if that is below the view): plan nothing."""

    id: int | None


@dataclass(frozen=True)
class Misfit:
    """The run's interval conflicts with `other`, which already exists."""

    other: Interval
    early: bool = False
    """True if it begins before the first interval of the pipeline."""


@dataclass(frozen=True)
class CreateEntry:
    """Plan from where `base` ends and create entry `id`. If that entry exists, call again."""

    id: int
    base: int | None
    generation: int


@dataclass(frozen=True)
class Stop:
    """This work no longer counts; write nothing more."""

    why: str


@dataclass(frozen=True)
class DoneAlready:
    """The record that the caller would create already exists."""


@dataclass(frozen=True)
class RunJob:
    """Run the job. Its own last snapshot is the ack `prev`."""

    prev: Handle | None


@dataclass(frozen=True)
class SkipJob:
    """Skip the job in checkpoint `id`, which does not wait for it.

    Record that, so that the checkpoint can complete without the job.
    """

    id: int
    busy_with: int | None
    """The checkpoint that the job is working on. None if already recorded, or if a job upstream was overtaken."""


@dataclass(frozen=True)
class Complete:
    """Write a manifest from these acks, index the run, create the decision."""

    id: int
    base: Entry | None
    acks: Mapping[str, Handle]


@dataclass(frozen=True)
class Publish:
    """Commit `id` on the table, at exactly the version after the head that was read."""

    id: int
    after: int | None
    diverted: bool = False
    """Whether with what its divert has for the table."""


@dataclass(frozen=True)
class SettleDivert:
    """Record whether the divert of entry `id` applied, and call again."""

    id: int
    applied: bool


@dataclass(frozen=True)
class AwaitDivert:
    """The table's next entry is the divert `id`. Whether that applies is decided on another table."""

    id: int
    table: str


@dataclass(frozen=True)
class NothingToPublish:
    """The table holds every completed entry."""


@dataclass(frozen=True)
class Damaged:
    """The table and the log contradict each other. Never worked around."""

    why: str


# -- trigger (T1 to T6) --------------------------------------------------------------------------------


@dataclass(frozen=True)
class WantedInterval:
    """The data interval that a run requests."""

    interval: Interval
    independent: bool
    """True for an interval pipeline, whose intervals do not rest on each other."""
    reprocess: bool = False
    """True to process the interval again, even if it is done."""
    indexed: Collection[Interval] = ()
    """All overlapping intervals that were completed below the view. Read these after the view: an entry is indexed
    before it drops out of the view."""


Triggering: TypeAlias = Adopt | Abort | Covered | Misfit | Wait | CreateEntry


def on_trigger(
    view: View, run: str, max_open: int, give_up: Mapping[int, str], wanted: WantedInterval | None = None
) -> Triggering:
    """Decide the next step of a run that requests a checkpoint.

    give_up: open entries to abort, each with the reason (it expired, its process died, a person chose it). Such hints
    may be wrong: an abort loses against a completion, and costs only time if it wins.
    """
    own_id = entry_of_run(view, run)
    if own_id is not None:
        return Adopt(own_id)
    doomed = next_abort(view, give_up)
    if doomed is not None:
        return doomed
    independent = wanted is not None and wanted.independent
    if wanted is not None:
        settled = _conflict(view, wanted) if independent else _covered(view, wanted)
        if settled is not None:
            return settled
    open_ids = tuple(entry.id for entry in view.still_open())
    if len(open_ids) >= max_open:
        return Wait(open_ids)
    base = None if independent else plan_base(view)
    generation = base.plan.generation if base else 0
    return CreateEntry(id=view.last_id + 1, base=base.id if base else None, generation=generation)


def entry_of_run(view: View, run: str) -> int | None:
    """T2: return the run's entry that is undecided or completed. After an abort the run may get another one."""
    for entry in reversed(view.entries):
        if entry.plan.run == run and not entry.aborted:
            return entry.id
    for outside in reversed(view.own_outside_view):
        if isinstance(outside, int):
            return outside  # retired: it was decided, and its effects remain
        if not outside.aborted:
            return outside.id
    return None


def next_abort(view: View, give_up: Mapping[int, str]) -> Abort | None:
    """T3: abort the lowest open entry that is dead: its base is aborted, or it is to be given up."""
    for entry in view.entries:
        if entry.control is not None and entry.decision is None:
            return Abort(entry.id, CONTROL, "", counts=False)  # its creator stopped before deciding it
    for entry in view.still_open():
        if base_aborted(view, entry):
            return Abort(entry.id, "BASE_ABORTED", f"checkpoint {entry.plan.base}, its base, was aborted", False)
        if entry.id in give_up:
            counts = give_up[entry.id] in COUNTED and entry.rollback is None
            return Abort(entry.id, give_up[entry.id], "", counts)
    return None


def on_rollback(view: View) -> Abort | CreateEntry:
    """R2: decide the next step of a rollback.

    Every lower entry is decided before the rollback's entry is created. So no entry in between can complete later, and
    every completed entry has a lower id.
    """
    for entry in view.entries:
        if entry.decision is None:
            reason = CONTROL if entry.control is not None else ROLLED_BACK
            return Abort(entry.id, reason, "ended by a rollback", counts=False)
    base = plan_base(view)
    generation = base.plan.generation if base else 0
    return CreateEntry(id=view.last_id + 1, base=base.id if base else None, generation=generation + 1)


def _conflict(view: View, wanted: WantedInterval) -> Covered | Misfit | Wait | None:
    """Section 8: find an existing interval that the requested one repeats, overlaps or must wait for."""
    interval = wanted.interval
    open_ids: list[int] = []
    covered = None
    for entry in view.entries:
        existing = entry.interval
        if entry.aborted or existing is None or not existing.overlaps(interval):
            continue
        if entry.open:
            open_ids.append(entry.id)
        elif existing != interval:
            return Misfit(existing)
        else:
            covered = Covered(entry.id)
    for existing in wanted.indexed:
        if existing.overlaps(interval) and existing != interval:
            return Misfit(existing)
    if covered is None and interval in wanted.indexed:
        covered = Covered(None)
    if covered is not None and not wanted.reprocess:
        return covered
    return Wait(tuple(open_ids)) if open_ids else None


def _covered(view: View, wanted: WantedInterval) -> Covered | Misfit | None:
    """Find whether a continuous pipeline has already passed the interval, or starts after it."""
    last = view.last_completed
    if last is None or last.plan.reach is None:
        return None
    reach = Interval.of_record(last.plan.reach)
    if wanted.interval.end > reach.end:
        return None
    if wanted.interval.start < reach.start:
        return Misfit(reach, early=True)
    return Covered(last.id)


CONTROL = "CONTROL"
"""The reason in the decision of an entry that is not a checkpoint."""

ROLLED_BACK = "ROLLED_BACK"
"""The reason of an abort by a rollback, which does not wait for open entries."""

VOID = "ACK_VOID"
"""The reason for aborting an entry with an ack of an attempt that does not count, and that cannot get another ack."""

ENVIRONMENT_FAILED = "ENVIRONMENT_FAILED"
"""The reason of an abort that is not the pipeline's fault: no Spark was available."""

BAD_DECLARATION = "BAD_DECLARATION"
"""The reason of an abort for an error in the code, the settings, a suite, or how these fit a table. The same code plans
nothing more, so the pipeline need not be suspended."""

COUNTED = frozenset({"CHECKPOINT_EXPIRED", "JOB_FAILED", "GATE_FAILED"})
"""Abort reasons that count towards `tolerable_failed_checkpoints`, as in Flink: the pipeline's own failures."""


def plan_base(view: View) -> Entry | None:
    """T5: return the highest entry that is not aborted, decided or not. Positions continue where its plan ends."""
    return next((entry for entry in reversed(view.entries) if not entry.aborted), None)


def base_aborted(view: View, entry: Entry) -> bool:
    """Return whether the entry's base is aborted. (A base below the view is settled, so it is completed.)"""
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
) -> Stop | DoneAlready | SkipJob | Wait | RunJob:
    """Decide the next step of a job of `entry`. Call it before the job touches anything, and again before it acks.

    after: the jobs whose channels it reads. An answer to wait for `entry` itself means to wait for one of these.
    below: the entries that the base rests on. They and the remaining arguments matter only where a checkpoint may
    overtake a busy job (on_job_behind).
    """
    if entry is None:
        return Stop("the checkpoint is not in the log any more")
    if entry.control is not None:
        return Stop(f"entry {entry.id} is not a checkpoint: it was made to {entry.control.action}")
    if entry.rollback is not None:
        return Stop(f"entry {entry.id} is a rollback: it has no jobs")
    if job in entry.acks:
        return DoneAlready()
    lineage = _lineage(entry, base, below)
    may_overtake = bool(after) and allows_overtaking(lineage)
    if entry.decision is not None and not (may_overtake and entry.completed):
        return Stop(f"checkpoint {entry.id} was {entry.decision.outcome} without job {job!r}")
    dead = next((ancestor for ancestor in lineage[1:] if ancestor.aborted), None)
    if dead is not None:
        relation = "the base of" if dead is base else "an ancestor of"
        return Stop(f"checkpoint {dead.id}, {relation} {entry.id}, was aborted")
    if after and (refused := gate_failure(entry)):
        return Stop(f"checkpoint {entry.id} cannot be completed any more: {refused}")
    waits_for_rollback = base is not None and base.rollback is not None and base.open
    if may_overtake and not waits_for_rollback:
        return on_job_behind(lineage, job, after, gone, time_up=time_up, beyond=beyond)
    if any(upstream not in entry.acks for upstream in after):
        return Wait((entry.id,))
    if base is None:
        return RunJob(prev=None)
    prev = last_ack(base, job)
    if prev is not None:
        return RunJob(prev)
    if base.rollback is not None:
        is_new = base.completed
    else:
        is_new = job not in base.plan.acks
    return RunJob(prev=None) if is_new else Wait((base.id,))


def _lineage(entry: Entry, base: Entry | None, below: Sequence[Entry]) -> list[Entry]:
    if base is None:
        return [entry, *below]
    return [entry, base, *below]


def last_ack(base: Entry, job: str) -> Handle | None:
    """J2: return the ack from which the job continues: the one that its base holds for it."""
    if base.manifest is not None:
        return base.manifest.jobs.get(job)
    acked = base.acks.get(job)
    return acked.handle if acked else None


# -- a job that may lag: start, wait, or be overtaken (for on_job) -----------------------------------------


def on_job_behind(
    lineage: Sequence[Entry], job: str, after: Sequence[str], gone: Collection[int], *, time_up: bool, beyond: bool
) -> SkipJob | RunJob | Stop | Wait:
    """Decide the next step of a job in the lineage's first entry, in which it has no ack yet.

    gone: entries in which no process works on this job any more; a hint. time_up: alignment has lasted long enough.
    beyond: a later completed entry holds an ack of the job.
    """
    entry, progress = lineage[0], job_progress(lineage)
    passed = entry.overtaken & {job, *after}
    if passed:
        return SkipJob(entry.id, None)
    if entry.decision is not None and (beyond or job not in entry.overtakable):
        return Stop(f"checkpoint {entry.id} was completed without job {job!r}, which is further now")
    chosen = progress.chosen.get(job)
    earlier = unfinished(lineage, job, chosen)
    for candidate in earlier:
        if candidate.open and job not in candidate.overtakable:
            return Wait((candidate.id,))
    busy = min((candidate.id for candidate in earlier if candidate.id not in gone), default=None)
    lacking = [upstream for upstream in after if not progress.is_at(upstream, entry.id)]
    base_is_final = len(lineage) > 1 and lineage[1].completed
    if lacking and base_is_final and all(upstream in entry.acks for upstream in lacking):
        # They acked here, but did not continue from the acks in the base's manifest, which is final: they never count.
        if job in entry.overtakable:
            return SkipJob(entry.id, None)
        return Stop(f"what job {job!r} would take in checkpoint {entry.id} does not count: another attempt does")
    if lacking:
        return Wait((entry.id,))
    if busy is None:
        return RunJob(chosen)
    overtaking = entry.plan.overtaking if job in entry.overtakable else None
    if overtaking is not None and (time_up or overtaking.after_s <= 0):
        return SkipJob(entry.id, busy)
    return Wait((busy,))


def unfinished(lineage: Sequence[Entry], job: str, last_ack: Handle | None) -> list[Entry]:
    """Return the entries below the first in which the job may be running: no ack there, and not overtaken."""
    entries = []
    for entry in lineage[1:]:
        if entry.rollback is not None or (last_ack is not None and entry.id <= last_ack.entry):
            break
        upstream = set(entry.plan.takes.get(job, {}).values())
        may_run = upstream <= set(entry.acks) or job not in entry.overtakable
        overtaken = entry.overtaken & {job, *upstream}
        if job in entry.plan.acks and job not in entry.acks and not overtaken and may_run:
            entries.append(entry)
    return entries


# -- completion (D1, D2, D4) ---------------------------------------------------------------------------


def on_completion(
    entry: Entry | None,
    base: Entry | None,
    failure: tuple[str, str] | None = None,
    below: Sequence[Entry] = (),
    passed: Collection[str] = (),
) -> Abort | Complete | DoneAlready | Undecided | Wait:
    """Decide whether `entry` can be completed or must be aborted.

    failure: (reason, detail) if one of its jobs failed for good. below: the entries that the base rests on, where jobs
    may lag. passed: jobs that later entries found busy. Every fact used here is write-once, so no check can go stale.
    """
    if entry is None or not entry.open:
        return DoneAlready()
    if entry.rollback is not None:  # only the process that rolls back completes it; any process may abort it
        if failure is not None:
            return Abort(entry.id, *failure, counts=False)
        return Wait((entry.id,))
    if base is not None and base.aborted:
        return Abort(entry.id, "BASE_ABORTED", f"checkpoint {base.id}, its base, was aborted", counts=False)
    if refused := gate_failure(entry):
        return Abort(entry.id, "GATE_FAILED", refused, counts=True)
    if (rejected := rejection(entry)) is not None:
        return Abort(entry.id, *rejected, counts=False)
    lacking = missing(entry, passed)
    if lacking and failure is not None:
        return Abort(entry.id, *failure, counts=failure[0] in COUNTED)
    if holding := unanswered(entry):  # D5: even if other jobs are not done, or were overtaken
        return Undecided(entry.id, holding)
    if lacking:
        return Wait((entry.id,))
    if base is not None and not base.completed:
        return Wait((base.id,))
    lineage = _lineage(entry, base, below)
    if not allows_overtaking(lineage):
        return Complete(entry.id, base, {job: acked.handle for job, acked in entry.acks.items()})
    chosen = job_progress(lineage).chosen
    for job, acked in entry.acks.items():
        if chosen.get(job) != acked.handle and job not in entry.overtakable:
            why = f"two attempts at job {job!r} continued from the same checkpoint, and the other attempt counts"
            return Abort(entry.id, VOID, why, counts=False)
    return Complete(entry.id, base, chosen)


# -- publish (P1, P2, P4) ------------------------------------------------------------------------------


Publishing: TypeAlias = Publish | NothingToPublish | Damaged | SettleDivert | AwaitDivert


def on_publish(
    view: View, table: str, last: int | None, applied: Mapping[int, bool] | None = None, begun: int | None = None
) -> Publishing:
    """Decide what the table takes next. `last` was read from the table *before* the view was read from the log.

    applied: for the diverts of the view that are settled, whether they applied. Read after `last`, too. begun: the
    entry of which the table holds a part, read with `last`.
    """
    applied = applied or {}
    abandoned_by = last_abandoning_rollback(view, table)
    completed = []
    for entry in view.entries:
        if entry.manifest is not None and entry.id >= abandoned_by:
            completed.append(entry.manifest)
    if last is not None and last > view.last_id:
        return Damaged(f"the table holds checkpoint {last}, the log ends at {view.last_id}")
    # A process that was paused may still publish entries below the rollback, so the table's position proves nothing.
    any_position = abandoned_by and (last is None or last < abandoned_by)
    diverting = _on_diverts(view, completed, table, last, applied, begun)
    if diverting is not None:
        return diverting
    for manifest in completed:
        part = manifest.tables.get(table)
        if part is None or not has_unpublished(part) or (last is not None and manifest.id <= last):
            continue
        if view.rollback_of(manifest.id) is not None:
            continue
        if part.restore is None and part.after != last and not any_position:
            return Damaged(f"checkpoint {manifest.id} follows {part.after}, the table holds {last}")
        if part.diverted is None or part.diverted.table == table:
            return Publish(manifest.id, last)
        if manifest.id not in applied:
            if last_abandoning_rollback(view, part.diverted.table) > manifest.id:
                return SettleDivert(manifest.id, applied=True)  # rather in quarantine than nowhere
            return AwaitDivert(manifest.id, part.diverted.table)
        return Publish(manifest.id, last, diverted=applied[manifest.id])
    expected = after_publish(completed, table)
    if last != expected and not any_position:
        return Damaged(f"the table should hold checkpoint {expected}, it holds {last}")
    return NothingToPublish()


def _on_diverts(
    view: View,
    completed: Sequence[Manifest],
    table: str,
    last: int | None,
    applied: Mapping[int, bool],
    begun: int | None,
) -> Publish | SettleDivert | None:
    """V2 and V3: settle the diverts of the table's waiting rows, or publish the last one that may still apply.

    A divert is committed only on top of the entry that it names, and nothing is published over one that is not settled.
    So while the table holds that entry, it is open whether the divert applies; if it holds the divert, it has applied;
    and if it holds anything else above, or a part of it, it never will. If it held less when it was read, it has been
    read too early.
    """
    may_apply: int | None = None
    for manifest in completed:
        part = manifest.tables.get(table)
        if part is None or part.diverted is None or part.diverted.table != table or manifest.id in applied:
            continue
        after = part.diverted.after
        if last is not None and (after is None or last > after):
            return SettleDivert(manifest.id, applied=last == manifest.id)
        if last == after and begun not in (None, manifest.id):
            return SettleDivert(manifest.id, applied=False)
        if last == after and view.rollback_of(manifest.id) is None:
            may_apply = manifest.id
    if may_apply is not None:
        return Publish(may_apply, last, diverted=True)
    return None


def last_abandoning_rollback(view: View, table: str) -> int:
    """Return the last rollback that abandoned the table, or 0. Nothing of earlier entries is pending for it any
    more."""
    for entry in reversed(view.entries):
        if entry.rollback is not None and entry.completed and table in entry.rollback.left:
            return entry.id
    return 0


def pending_checkpoints(view: View, table: str) -> list[int]:
    """Return the completed entries of the view whose commits are pending on the table, as far as the log shows."""
    floor = max(last_abandoning_rollback(view, table), view.settled)
    ids = []
    for entry in view.entries:
        part = None
        if entry.manifest is not None:
            part = entry.manifest.tables.get(table)
        if entry.id <= floor or part is None or not has_unpublished(part):
            continue
        if view.rollback_of(entry.id) is None:
            ids.append(entry.id)
    return ids


def on_publish_interval(
    view: View, table: str, last: int | None, has_commit: Callable[[int], bool], blocked: Collection[int] = ()
) -> Publish | NothingToPublish | Damaged:
    """Decide what the table takes next in an interval pipeline (section 8): per interval its highest completed entry.

    last: the highest entry that was ever published on the table. has_commit: whether the table has the commit of an
    entry. Both are as of a version that was read *before* the view. The answer's `after` is the entry of the interval
    that the table shows now, or None if that is not in this view. blocked: entries that the table refuses in its
    present state; other entries do not wait for them.
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
        visible = next((id for id in reversed(ids) if id <= view.settled or has_commit(id)), None)
        highest = ids[-1]
        if visible != highest and highest not in blocked:
            return Publish(highest, visible)
    return NothingToPublish()


def has_unpublished(part: TablePart) -> bool:
    """Return whether an entry makes a commit on the table."""
    return bool(part.committables) or part.restore is not None or part.diverted is not None


def after_publish(completed: Sequence[Manifest], table: str) -> int | None:
    """Return the last entry that the table holds once all of these are published on it."""
    for manifest in reversed(completed):
        part = manifest.tables.get(table)
        if part is not None:
            if has_unpublished(part):
                return manifest.id
            return part.after
    return None
