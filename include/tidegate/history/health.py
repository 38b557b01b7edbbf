"""A pipeline's health in one answer: its state, the cause, what to do about it. For `explain`, `watch` and the pages.

`condition` is a pure function of what `observe` has read. It names one cause, the one to begin with: a full disk before
the failures that follow from it, a suspension before the checkpoint that led to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from tidegate import seams
from tidegate.checkpoint import approvals, control, skipping, troubles
from tidegate.checkpoint.control import SuspensionState
from tidegate.errors import TidegateError, Unavailable
from tidegate.history.without_values import entry_without_rows, trouble_without_rows
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.rules import BAD_DECLARATION
from tidegate.protocol.view import Entry, View
from tidegate.records.interval import Interval
from tidegate.records.moments import moment_of
from tidegate.records.place import is_url
from tidegate.records.records import Decision, Plan, Range, Trouble

__all__ = [
    "REASONS",
    "SPARE_BYTES",
    "STATES",
    "Health",
    "Observations",
    "condition",
    "describe_texts",
    "free_bytes",
    "local_folders",
    "observe",
]

REASONS = {
    "CANCELLED": "a person stopped it",
    "JOB_FAILED": "one of its jobs failed for good",
    "ENVIRONMENT_FAILED": "there was no Spark to work with, which is not the pipeline's fault",
    "BAD_DECLARATION": "its code, settings or suites are wrong, or do not fit a table; the same ones plan nothing more",
    "GATE_FAILED": "a gate found what must not be published",
    "GATE_REJECTED": "a gate held it, and a person or the time limit said no",
    "CHECKPOINT_EXPIRED": "not all of its jobs had acknowledged it when its timeout was over",
    "ROLLED_BACK": "somebody went back to an earlier checkpoint",
    "STOPPED": "somebody cancelled the pipeline",
    "BASE_ABORTED": "the checkpoint that it was built on was aborted",
    "RUN_GONE": "the process that ran it had died; a later run found that and ended it",
    "SWAP_INTERRUPTED": "the process that was swapping a line in ended before it could decide that",
    "LINE_DISCARDED": "the line that it would have swapped in was discarded",
    "ACK_VOID": "it was built on an attempt at a job that does not count, because another attempt does",
    "TOO_LATE": "its process was paused for so long that its number had been used and retired before",
    "CONTROL": "it is no checkpoint but an act, such as a suspension, which takes a number and never completes",
}
"""What an abort's reason code means."""

STATES = {
    "new": "started, and without a checkpoint",
    "well": "its last checkpoint is completed and published",
    "behind": "it completes checkpoints, but input has waited at a source after each of the last ones",
    "losing": "its last checkpoint left out rows behind a gate that came too late, or have no time",
    "working": "a checkpoint is open, or is being published, and somebody works at it",
    "held": "a gate waits for a person",
    "late": "a checkpoint is open beyond its timeout: the next run ends it",
    "paused": "a checkpoint is open, and Airflow has paused the DAG: no further task of it begins",
    "orphaned": "a checkpoint is open whose process has died: the next run ends it",
    "unpublished": "a completed checkpoint is not on all tables yet: the next run publishes it",
    "failed": "its last checkpoint was aborted, which is tolerated: the next run continues",
    "troubled": "a run meets an error that no checkpoint tells of: it cannot plan, or publish, or tries a job again",
    "skipping": "input lies at a source, or an interval was missed, that no run will ever take up by itself",
    "disk full": "what holds its ledger or its data has no room",
    "suspended": "no run plans a checkpoint until somebody resumes it",
    "stopped": "ended by `tidegate stop`, until somebody resumes it",
    "cancelled": "ended by `tidegate cancel`; if that was final, it cannot be resumed",
    "finished": "event time has come to its end",
}
"""What a pipeline can be."""

BEHIND = 5
"""After so many checkpoints in a row that have left input waiting, it does not keep up."""
PUBLISHING_S = 60.0
"""For so long after its decision a checkpoint may be on its way to its tables: whoever has decided it publishes it."""
SPARE_BYTES = 16 << 20
"""With less room than this a disk counts as full: a checkpoint's records and a small file may still fit, no more."""
NO_ROOM_BYTES = 64 << 10
"""With less than this not even a checkpoint's records fit."""


class HealthLimits(Protocol):
    """The settings that it depends on; `tidegate.config.Settings` has them."""

    @property
    def tolerable_failed_checkpoints(self) -> int: ...
    @property
    def root(self) -> str: ...
    @property
    def data(self) -> str: ...


@dataclass(frozen=True)
class Observations:
    """All that a pipeline's health is derived from, read once."""

    pipeline: str
    view: View
    tolerable: int
    pending: frozenset[int] = frozenset()
    """Completed entries that are not on all tables yet."""
    publishing: frozenset[int] = frozenset()
    """Those of them that have just been decided, by a process that lives as far as anybody knows."""
    trouble: Trouble | None = None
    abandoned: frozenset[int] = frozenset()
    """Open entries whose process has died."""
    late: frozenset[int] = frozenset()
    """Open entries whose timeout is over."""
    gaps: tuple[Interval, ...] = ()
    """Of an interval pipeline: what its intervals leave out."""
    full: tuple[str, ...] = ()
    """Folders whose disk has no room left."""
    room: int = 0
    """How many bytes the fullest of these disks has left."""
    paused: bool = False
    """Airflow has paused the DAG. Only its web server knows."""
    recent: tuple[Entry, ...] = ()
    """The last BEHIND completed checkpoints, oldest first, if the last one has left input waiting."""

    def without_rows(self) -> Observations:
        """Return the same without texts that may quote the values of rows."""
        entries = tuple(map(entry_without_rows, self.view.entries))
        return replace(self, view=replace(self.view, entries=entries), trouble=trouble_without_rows(self.trouble))


@dataclass(frozen=True)
class Health:
    """The answer. `state` is stable, for scripts; the texts are not."""

    state: str
    """One of STATES."""
    summary: str
    """The state as a sentence."""
    cause: str = ""
    remedy: tuple[str, ...] = ()
    """What to do, in this order. Empty: nothing."""
    checkpoint: int | None = None
    """The checkpoint that it is about."""
    reason: str = ""
    """The stable code of what went wrong, if something did."""

    @property
    def needs_nothing(self) -> bool:
        """True if nobody has to act."""
        return not self.remedy


Command = Callable[..., str]
"""How a user calls a command about the pipeline: verb and words to text."""


def observe(
    ledger: Ledger, limits: HealthLimits, gone: Callable[[Plan], str | None], *, paused: bool = False
) -> Observations:
    """Read all that the answer depends on."""
    view = ledger.view()
    open_ones = list(view.still_open())
    pending = [e for e in view.entries if e.completed and e.id > view.settled and ledger.published(e.id) is None]
    full = {folder: free for folder in local_folders(limits) if (free := _room_if_full(folder)) is not None}
    return Observations(
        pipeline=ledger.pipeline,
        view=view,
        tolerable=limits.tolerable_failed_checkpoints,
        pending=frozenset(entry.id for entry in pending),
        publishing=frozenset(entry.id for entry in pending if _just_decided(entry) and not gone(entry.plan)),
        trouble=ledger.trouble(),
        abandoned=frozenset(entry.id for entry in open_ones if gone(entry.plan)),
        late=frozenset(entry.id for entry in open_ones if not approvals.awaits_person(entry) and _late(ledger, entry)),
        gaps=skipping.gaps(ledger, view),
        full=tuple(full),
        room=min(full.values(), default=0),
        paused=paused,
        recent=_recent(ledger, view),
    )


def _recent(ledger: Ledger, view: View) -> tuple[Entry, ...]:
    last = view.last_completed
    if last is None or not any(part.more or (part.lag and part.lag.waits) for part in last.plan.sources.values()):
        return ()
    found = [last]
    for id in range(last.id - 1, max(last.id - 3 * BEHIND, 0), -1):  # others between them may have failed
        entry = view.get(id) or ledger.entry(id)
        if entry is not None and entry.completed and entry.control is None:
            found.append(entry)
        if len(found) == BEHIND:
            break
    return tuple(reversed(found))


def _late(ledger: Ledger, entry: Entry) -> bool:
    try:
        return ledger.expired(entry.plan)
    except TidegateError:  # to tell the time, the store writes a file: on a full disk it cannot
        return False


def local_folders(limits: HealthLimits) -> list[str]:
    """The folders on disks of this machine that it writes to. A store elsewhere reports by itself that it is full."""
    return [folder for folder in dict.fromkeys((limits.root, limits.data)) if not is_url(folder)]


def _just_decided(entry: Entry) -> bool:
    decided = moment_of(entry.decision.created) if entry.decision is not None else None
    return decided is not None and (seams.now() - decided).total_seconds() < PUBLISHING_S


def _room_if_full(folder: str) -> int | None:
    """Return how many bytes a disk has left that counts as full; None: it does not, or is not there."""
    free = free_bytes(folder)
    return free if free is not None and free < SPARE_BYTES else None


def free_bytes(folder: str) -> int | None:
    """Return the free bytes on a folder's disk; None if they cannot be read, or the folder is not there."""
    try:
        stats = os.statvfs(folder)
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize


def condition(observed: Observations, command: Command | None = None) -> Health:
    """Return the first of these answers that applies."""
    say = command or (lambda verb, *words: " ".join(["tidegate", verb, observed.pipeline, *map(str, words)]))
    health = (
        _disk(observed)
        or _suspended(observed, say)
        or _held_health(observed, say)
        or _troubled(observed, say)
        or _unpublished(observed, say)
        or _open(observed, say)
    )
    if health is not None and not health.needs_nothing:
        return health
    at_work = health or _publishing(observed) or _losing(observed)
    return _failed(observed, say) or _skipping(observed) or at_work or _backlog_health(observed) or _well(observed)


def describe_texts(text: str) -> tuple[str, str, tuple[str, ...]]:
    """An error's text in its three parts: what happened, what was expected, what to do next."""
    happened, expected, helps = [], [], []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("Help: "):
            helps.append(stripped.removeprefix("Help: "))
        elif stripped.startswith("Expected: "):
            expected.append(stripped.removeprefix("Expected: "))
        elif stripped:
            happened.append(stripped)
    return " ".join(happened), " ".join(expected), tuple(dict.fromkeys(helps))


# -- the answers, in their order -----------------------------------------------------------------------


def _disk(observed: Observations) -> Health | None:
    if not observed.full:
        return None
    folders = ", ".join(observed.full)
    is_full = observed.room < NO_ROOM_BYTES or _met_full_disk(observed)
    said = "cannot continue: a disk is full" if is_full else "may not be able to continue: a disk is nearly full"
    room = "no room" if observed.room < NO_ROOM_BYTES else f"{observed.room / (1 << 20):.1f} MiB"
    needed = "too little to write a checkpoint" if is_full else "a checkpoint that needs more than that fails"
    return Health(
        "disk full",
        f"Pipeline {observed.pipeline} {said}",
        f"The disk that holds {folders} has {room} left: {needed}.",
        (f"make room on the disk that holds {folders}; nothing is lost, the next run continues by itself",),
        checkpoint=next((entry.id for entry in observed.view.still_open()), None),
        reason="DISK_FULL",
    )


def _met_full_disk(observed: Observations) -> bool:
    """Return whether the last thing that was tried has failed for want of room."""
    trouble = observed.trouble
    if trouble is not None and troubles.is_current(trouble, observed.view, observed.pending):
        return trouble.reason == "DISK_FULL"
    last = observed.view.entries[-1] if observed.view.entries else None
    return last is not None and last.aborted and last.decision is not None and "disk is full" in last.decision.detail


def _suspended(observed: Observations, say: Command) -> Health | None:
    suspension = control.suspended(observed.view, observed.tolerable)
    if suspension is None:
        return None
    state = control.STATE_AFTER[suspension.action]
    if suspension.failed_checkpoints:
        return _suspended_by_failures(observed, suspension, say)
    last = observed.view.last_completed
    why = f": {suspension.why}" if suspension.why else "; no reason was given"
    cause, _, helps = describe_texts(f"It was {state} by {suspension.cause}{why}")
    resume = f"when the cause is fixed: {say('resume')}; nothing is lost, its input waits"
    if control.finished(observed.view) is not None:
        resume = f"nothing, if that was meant; to continue after the end: {say('resume', '--after-end')}"
    elif suspension.action != "suspend":
        resume = f"nothing, if that was meant; to let it continue: {say('resume')}"
    if (cancellation := control.final_cancel(observed.view)) is not None:
        by = f"it was cancelled for good by entry {cancellation.id}"
        resume = f"nothing: {by}; savepoints can be forked: {say('fork')}"
    about = suspension.rejected_checkpoint or (last.id if last is not None else None)
    return Health(state, f"Pipeline {observed.pipeline} is {state}", cause, (*helps, resume), about)


def _suspended_by_failures(observed: Observations, suspension: SuspensionState, say: Command) -> Health:
    id = suspension.failed_checkpoints[-1]
    entry = observed.view.get(id)
    assert entry is not None
    cause, helps = _why(entry, say)
    count = len(suspension.failed_checkpoints)
    several = f"its last {count} checkpoints" if count > 1 else f"checkpoint {id}"
    return Health(
        "suspended",
        f"Pipeline {observed.pipeline} is suspended: {several} failed;"
        f" tolerable_failed_checkpoints is {observed.tolerable}",
        cause,
        (*helps, f"then let it continue: {say('resume')}; its input waits, nothing is lost"),
        id,
        _reason(entry),
    )


def _held_health(observed: Observations, say: Command) -> Health | None:
    for entry in observed.view.still_open():
        if text := approvals.pending_approvals_text(View((entry,)), [entry.id]):
            remedy = f"{say('approve', entry.id)}, or {say('reject', entry.id)}"
            cause = " ".join(filter(None, (_sentence(text), approvals.hold_text(entry))))
            return Health("held", f"Pipeline {observed.pipeline} waits for a person", cause, (remedy,), entry.id)
    return None


def _troubled(observed: Observations, say: Command) -> Health | None:
    trouble = observed.trouble
    if trouble is None or not troubles.is_current(trouble, observed.view, observed.pending) or _tried_again(observed):
        return None
    about = f"checkpoint {trouble.entry}" if trouble.entry is not None else "no checkpoint could be planned"
    about += f" by {trouble.unplanned} runs in a row" if trouble.entry is None and trouble.unplanned > 1 else ""
    expected = f" Expected: {trouble.expected}." if trouble.expected else ""
    help = describe_texts(trouble.help)[0] or "see the log of the run that met it; the next one tries again"
    remedy: tuple[str, ...] = (help,)
    if trouble.kind == Unavailable.kind and not _comes_by_itself(observed.view):
        remedy = (help, f"no run comes by itself, since interval is never: then {say('trigger')}, or tidegate run")
    return Health(
        "troubled",
        f"Pipeline {observed.pipeline} meets an error at its step {trouble.step}: {about}",
        f"{trouble.reason}: {_sentence(describe_texts(trouble.what)[0])}{expected}",
        remedy,
        trouble.entry,
        trouble.reason,
    )


def _comes_by_itself(view: View) -> bool:
    """Return whether the next run is scheduled, by the settings of the last plan. Without any, it is assumed."""
    configs = (entry.plan.config for entry in reversed(view.entries) if entry.control is None)
    return next(configs, {}).get("interval") != "never"


def _tried_again(observed: Observations) -> bool:
    """Return true if the error may pass and a run is still trying: then nobody has to act."""
    trouble = observed.trouble
    entry = observed.view.get(trouble.entry) if trouble is not None and trouble.entry is not None else None
    if trouble is None or entry is None or not entry.open:
        return False
    return trouble.kind == Unavailable.kind and entry.id not in observed.abandoned and entry.id not in observed.late


def _unpublished(observed: Observations, say: Command) -> Health | None:
    overdue = observed.pending - observed.publishing
    if not overdue:
        return None
    id = min(overdue)
    return Health(
        "unpublished",
        f"Pipeline {observed.pipeline} has completed checkpoint {id}, which is not on all tables yet",
        "Whoever completed it did not come to publish it, or a table refused it.",
        (f"run the pipeline: the next run publishes it first; if that fails, {say('doctor')} tells why",),
        id,
    )


def _publishing(observed: Observations) -> Health | None:
    """Somebody is at it: it takes a moment from each decision until all tables have it."""
    if not observed.publishing:
        return None
    id = min(observed.publishing)
    said = f"Pipeline {observed.pipeline} is at work on checkpoint {id}, which is completed: it is being published"
    return Health("working", said, checkpoint=id)


def _open(observed: Observations, say: Command) -> Health | None:
    entry = next(observed.view.still_open(), None)
    if entry is None:
        return None
    missing = [job for job in entry.plan.acks if job not in entry.acks and job not in entry.overtaken]
    waits = f"job {', '.join(missing)} has not acknowledged it" if missing else "it waits to be decided"
    if entry.id in observed.abandoned:
        return Health(
            "orphaned",
            f"Pipeline {observed.pipeline} has an open checkpoint, {entry.id}, that nobody works at",
            f"The process that made it is gone; {waits}. Something has killed it: a person, the system for want of "
            "memory, or the machine went down.",
            (
                "run the pipeline again: the next run ends this checkpoint and takes its input again, nothing is lost",
                "if it is killed again, give it memory (spark.memory), or less input per checkpoint",
            ),
            entry.id,
            "RUN_GONE",
        )
    if observed.paused:
        return Health(
            "paused",
            f"Pipeline {observed.pipeline} has an open checkpoint, {entry.id}, and Airflow has paused its DAG",
            f"Tasks that are at work end, and no other one begins; {waits}.",
            (
                "unpause the DAG: its run continues, or, if the timeout is over, the next one ends this checkpoint and "
                "takes its input again; nothing is lost",
            ),
            entry.id,
            "DAG_PAUSED",
        )
    if entry.id in observed.late:
        return Health(
            "late",
            f"Pipeline {observed.pipeline} has an open checkpoint, {entry.id}, whose timeout is over",
            f"After {entry.plan.timeout_s:g} s {_sentence(waits)}",
            (f"run the pipeline: the next run ends it. If it needs longer, raise timeout; {say('watch')} shows it",),
            entry.id,
            "CHECKPOINT_EXPIRED",
        )
    cause = ""
    if (trouble := observed.trouble) is not None and trouble.entry == entry.id and _tried_again(observed):
        cause = f"It has met an error, and tries again. {trouble.reason}: {_sentence(describe_texts(trouble.what)[0])}"
    text = f"Pipeline {observed.pipeline} is at work on checkpoint {entry.id}: {waits}"
    return Health("working", text, cause, checkpoint=entry.id)


def _failed(observed: Observations, say: Command) -> Health | None:
    """The last checkpoint was aborted, which is tolerated, and nobody has resumed since."""
    last = observed.view.entries[-1] if observed.view.entries else None
    if last is None or last.control is not None or last.decision is None or last.completed:
        return None
    cause, helps = _why(last, say)
    if last.decision.reason == BAD_DECLARATION:
        text = f"Pipeline {observed.pipeline} makes no checkpoints: its declaration is wrong, so {last.id} was aborted"
        retry = "the first run after that is mended takes the same input again"
        return Health("failed", text, cause, (*helps, retry), last.id, _reason(last))
    text = f"Pipeline {observed.pipeline} continues, but its last checkpoint, {last.id}, was aborted"
    return Health("failed", text, cause, (*helps, "the next run takes its input again"), last.id, _reason(last))


def _skipping(observed: Observations) -> Health | None:
    """It runs, but some of its input will never be in its tables."""
    last = observed.view.last_completed
    entry = last.id if last is not None else None
    if observed.gaps:
        gaps = ", ".join(map(str, observed.gaps[:5])) + (", …" if len(observed.gaps) > 5 else "")
        text = f"Pipeline {observed.pipeline} continues, but has left out time between its intervals"
        remedy: tuple[str, ...] = (skipping.making_up(observed.pipeline, observed.gaps),)
        cause = f"No checkpoint has made {gaps} (UTC), and no run will by itself."
        return Health("skipping", text, cause, remedy, entry, "INTERVALS_MISSING")
    unread = skipping.never_read(observed.view)
    if not unread:
        return None
    cause = " ".join(_sentence(f"source {name}: {source.what}") for name, source in unread.items())
    text = f"Pipeline {observed.pipeline} continues, but leaves input unread for good"
    remedy = tuple(dict.fromkeys(source.help for source in unread.values()))
    return Health("skipping", text, cause, remedy, entry, "INPUT_SKIPPED")


def _losing(observed: Observations) -> Health | None:
    """Operators behind a gate left out rows for being late, and nobody takes those."""
    last = observed.view.last_completed
    acks = [acked.ack for acked in last.acks.values()] if last is not None else []
    verdicts = [verdict for ack in acks for verdict in ack.gates.values()]
    counts = {operator: counts for ack in acks for operator, counts in ack.stats.counts.items()}
    lost = {}
    for behind in (behind for verdict in verdicts for behind in verdict.behind):
        counted = counts.get(behind.operator, {})
        rows = sum(number for name, number in counted.items() if name in ("late", "without_time"))
        if rows:
            lost[behind.what] = rows
    if last is None or not lost:
        return None
    left_out = "; ".join(f"{what} left out {_rows(rows)}: too late, or without a time" for what, rows in lost.items())
    text = f"Pipeline {observed.pipeline} continues, but checkpoint {last.id} lost rows that came too late"
    since = last.plan.base or "beginning"
    remedy = (
        "so that such rows count: give their source a longer watermark, or take the operator's late rows as a stream "
        f"of its own; then tidegate backfill MODULE:{observed.pipeline} --from {since} computes these again",
    )
    return Health("losing", text, _sentence(left_out), remedy, last.id, "LATE_ROWS")


def _backlog_health(observed: Observations) -> Health | None:
    """It completes checkpoints, but does not keep up: after each of the last ones input has waited.

    A backlog that is known to shrink is being worked off. It is no alarm: it may only be the busiest hour of the day.
    """
    last = observed.recent
    if len(last) < BEHIND:
        return None
    name, entry = observed.pipeline, last[-1].id
    growing, waiting = [], []
    for source in last[-1].plan.sources:
        ranges = [part for each in last if (part := each.plan.sources.get(source)) is not None]
        unit, amounts = _backlogs(ranges)
        if len(amounts) == BEHIND and all(before < after for before, after in pairwise(amounts)):
            growing.append(f"at source {source} {amounts[0]:,} {unit} waited, and {amounts[-1]:,} do now")
        elif len(ranges) == BEHIND and all(part.more for part in ranges) and not _shrinks(amounts):
            waiting.append(source)
    if growing:
        text = f"Pipeline {name} falls behind: more input has come than its last {BEHIND} checkpoints took"
        cause = _sentence(f"{BEHIND} checkpoints ago, {'; '.join(growing)}")
        cause += " If that stays so, raise the source's bound, shorten its interval, or give Spark more cores."
        return Health("behind", text, cause, checkpoint=entry)
    if waiting:
        text = f"Pipeline {name} is behind: input has waited after each of its last {BEHIND} checkpoints"
        cause = f"At source {', '.join(waiting)} there was more than its bound takes. If that stays so, raise it."
        return Health("behind", text, cause, checkpoint=entry)
    return None


def _backlogs(ranges: Sequence[Range]) -> tuple[str, list[int]]:
    """Return what waited after each range, in a unit in which the source has always told it; nothing: in none."""
    for unit in ("rows", "bytes", "files"):
        told = [getattr(part.lag, unit, None) for part in ranges]
        amounts = [amount for amount in told if amount is not None]
        if len(amounts) == len(told):
            return unit, amounts
    return "", []


def _shrinks(amounts: Sequence[int]) -> bool:
    """Return whether less waits by now, or nothing."""
    return len(amounts) == BEHIND and (amounts[-1] < amounts[0] or not amounts[-1])


def _well(observed: Observations) -> Health:
    last = observed.view.last_completed
    if last is None:
        return Health("new", f"Pipeline {observed.pipeline} has no checkpoint yet")
    text = f"Pipeline {observed.pipeline} is well: checkpoint {last.id} is completed"
    return Health("well", text, checkpoint=last.id)


# -- why a checkpoint was aborted ----------------------------------------------------------------------


def _why(entry: Entry, say: Command) -> tuple[str, tuple[str, ...]]:
    """The cause of an abort, and what to do about it."""
    decision = entry.decision
    assert decision is not None
    happened, expected, helps = describe_texts(decision.detail)
    meaning = REASONS.get(decision.reason, decision.reason)
    happened += _rules(entry) if decision.reason == "GATE_FAILED" else ""
    cause = f"{decision.reason}, {meaning}" + (f": {_sentence(happened)}" if happened else ".")
    cause += f" Expected: {expected}." if expected else ""
    return cause, helps or (_remedy(entry, decision, say),)


def _rules(entry: Entry) -> str:
    """The rules that rows have broken: the verdict itself may only name how many rows there were."""
    rules = []
    for acked in entry.acks.values():
        for verdict in acked.ack.gates.values():
            if verdict.outcome == "abort":
                rules += [f"{broken.rule}: {broken.why}" for broken in verdict.broken if broken.policy != "abort"]
    return f" ({'; '.join(rules[:5])})" if rules else ""


def _remedy(entry: Entry, decision: Decision, say: Command) -> str:
    """The remedy for aborts whose detail has no help of its own."""
    return {
        "GATE_FAILED": "correct what writes the source, or the gate's rules and limits; values that broke them: "
        + say("explain", entry.id),
        "GATE_REJECTED": f"correct what writes the source, or quarantine the rows: {say('resume', '--quarantine-all')}",
        "CHECKPOINT_EXPIRED": "raise timeout, or take less input per checkpoint; under Airflow, look whether tasks "
        "wait for a slot",
        "JOB_FAILED": "the log of the task that failed says more; if its process was killed for want of memory, give "
        "it more (spark.memory), or less input per checkpoint",
        "ENVIRONMENT_FAILED": "fix what it says of Spark; the next run takes the same input",
        "RUN_GONE": "if it was killed for want of memory, give it more (spark.memory), or less input per checkpoint",
    }.get(decision.reason, f"{say('explain', entry.id)} tells all that is known; the log of the task that failed more")


def _reason(entry: Entry) -> str:
    return entry.decision.reason if entry.decision is not None else ""


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _sentence(text: str) -> str:
    """With a full stop, and a capital."""
    return (text[:1].upper() + text[1:]).rstrip(".") + "."
