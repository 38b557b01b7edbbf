"""A pipeline's health in one answer: its state, the cause, what to do about it. For `explain`, `watch` and the pages.

`condition` is a pure function of the observations that `observe` reads. It names one cause, the one to begin with: a
full disk before the failures that it causes, a suspension before the checkpoint that led to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Protocol

from tidegate import seams
from tidegate.checkpoint import approvals, skipping, suspension, troubles
from tidegate.checkpoint.suspension import SuspensionState
from tidegate.errors import TidegateError, Unavailable
from tidegate.history.promises import PromiseStatus, promise_statuses
from tidegate.history.without_values import entry_without_rows, trouble_without_rows
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.rules import BAD_DECLARATION
from tidegate.protocol.verdicts import unanswered
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
    "ENVIRONMENT_FAILED": "no Spark was available, which is not the pipeline's fault",
    "BAD_DECLARATION": "its code, settings or suites are wrong, or do not fit a table; the same ones plan nothing more",
    "GATE_FAILED": "a gate found rows that must not be published",
    "GATE_REJECTED": "a gate held it, and a person or the time limit rejected it",
    "GATE_QUARANTINED": "a gate held it, and a person chose that the next one quarantines what broke its rules",
    "CHECKPOINT_EXPIRED": "not all of its jobs had acknowledged it when its timeout was over",
    "ROLLED_BACK": "a person rolled the pipeline back to an earlier checkpoint",
    "STOPPED": "a person cancelled the pipeline",
    "BASE_ABORTED": "the checkpoint that it was built on was aborted",
    "RUN_GONE": "the process that ran it had died; a later run found that and ended it",
    "SWAP_INTERRUPTED": "the process that was swapping in a backfill ended before it could decide the swap",
    "LINE_DISCARDED": "the backfill that it would have swapped in was discarded",
    "ACK_VOID": "it was built on an attempt at a job that does not count, because another attempt does",
    "TOO_LATE": "its process was paused for so long that its number had already been used and retired",
    "CONTROL": "it is not a checkpoint but an action, such as a suspension, which takes a number and never completes",
}
"""The meaning of each reason code of aborts."""

STATES = {
    "new": "started, and without a checkpoint",
    "well": "its last checkpoint is completed and published",
    "behind": "it completes checkpoints, but input has waited at a source after each of the last ones",
    "losing": "its last checkpoint dropped rows after a gate that were late, or have no event time",
    "working": "a checkpoint is open, or is being published, and a process works on it",
    "held": "a gate waits for a person",
    "late": "a checkpoint is open beyond its timeout: the next run ends it",
    "paused": "a checkpoint is open, and Airflow has paused the DAG: no further task of it begins",
    "orphaned": "a checkpoint is open whose process has died: the next run ends it",
    "unpublished": "a completed checkpoint is not on all tables yet: the next run publishes it",
    "failed": "its last checkpoint was aborted, which is tolerated: the next run continues",
    "troubled": "a run has an error that no checkpoint records: it cannot plan or publish, or it retries a job",
    "stale": "a table is older than the pipeline promises, and no other cause is known",
    "skipping": "a source has input, or an interval was missed, that no run will ever process by itself",
    "disk full": "the disk of its ledger or its data has no room",
    "suspended": "no run plans a checkpoint until it is resumed",
    "stopped": "ended by `tidegate stop`, until it is resumed",
    "cancelled": "ended by `tidegate cancel`; if that was final, it cannot be resumed",
    "finished": "event time has ended",
}
"""The states of a pipeline, for people."""

BEHIND = 5
"""A pipeline is behind if this many checkpoints in a row have left input waiting."""
PUBLISHING_S = 60.0
"""How long after its decision a checkpoint counts as being published, by the process that decided it."""
SPARE_BYTES = 16 << 20
"""With less free space than this a disk counts as full: only a checkpoint's records and a small file may still fit."""
NO_ROOM_BYTES = 64 << 10
"""With less than this not even a checkpoint's records fit."""


class HealthLimits(Protocol):
    """The settings that health depends on; `tidegate.config.Settings` has them."""

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
    """Those of them that were just decided, by a process that seems to be alive."""
    trouble: Trouble | None = None
    abandoned: frozenset[int] = frozenset()
    """Open entries whose process has died."""
    late: frozenset[int] = frozenset()
    """Open entries whose timeout is over."""
    gaps: tuple[Interval, ...] = ()
    """For an interval pipeline: the gaps between its intervals."""
    full: tuple[str, ...] = ()
    """Folders whose disk is full."""
    room: int = 0
    """The free bytes of the fullest of these disks."""
    paused: bool = False
    """True if Airflow has paused the DAG. Only its web server knows."""
    promises: tuple[PromiseStatus, ...] = ()
    """How old the tables are for which the pipeline makes a promise."""
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
    """The steps to take, in this order. Empty if no action is needed."""
    checkpoint: int | None = None
    """The checkpoint that it is about."""
    reason: str = ""
    """The stable code of the error, if there is one."""

    @property
    def needs_nothing(self) -> bool:
        """True if no action is needed."""
        return not self.remedy


Command = Callable[..., str]
"""Formats a command about the pipeline for the user, from its verb and words."""


def observe(
    ledger: Ledger, limits: HealthLimits, gone: Callable[[Plan], str | None], *, paused: bool = False
) -> Observations:
    """Read all that the answer depends on."""
    view = ledger.view()
    open_entries = list(view.still_open())
    unsettled = [entry for entry in view.entries if entry.completed and entry.id > view.settled]
    pending = [entry for entry in unsettled if ledger.published(entry.id) is None]
    unpublished = frozenset(entry.id for entry in pending)
    full = {}
    for folder in local_folders(limits):
        free = _room_if_full(folder)
        if free is not None:
            full[folder] = free
    awaited = [entry for entry in open_entries if not approvals.awaits_person(entry)]
    return Observations(
        pipeline=ledger.pipeline,
        view=view,
        tolerable=limits.tolerable_failed_checkpoints,
        pending=unpublished,
        publishing=frozenset(entry.id for entry in pending if _just_decided(entry) and not gone(entry.plan)),
        trouble=ledger.trouble(),
        abandoned=frozenset(entry.id for entry in open_entries if gone(entry.plan)),
        late=frozenset(entry.id for entry in awaited if _late(ledger, entry)),
        gaps=skipping.gaps(ledger, view),
        full=tuple(full),
        room=min(full.values(), default=0),
        paused=paused,
        promises=promise_statuses(ledger, view, unpublished, limits.tolerable_failed_checkpoints, seams.now()),
        recent=_recent(ledger, view),
    )


def _recent(ledger: Ledger, view: View) -> tuple[Entry, ...]:
    last = view.last_completed
    if last is None or not any(part.more or (part.lag and part.lag.waits) for part in last.plan.sources.values()):
        return ()
    recent = [last]
    # Checkpoints between them may have failed, so look three times as far back.
    for id in range(last.id - 1, max(last.id - 3 * BEHIND, 0), -1):
        entry = view.get(id) or ledger.entry(id)
        if entry is not None and entry.completed and entry.control is None:
            recent.append(entry)
        if len(recent) == BEHIND:
            break
    return tuple(reversed(recent))


def _late(ledger: Ledger, entry: Entry) -> bool:
    try:
        return ledger.expired(entry.plan)
    except TidegateError:  # to read its clock, the store writes a file, which fails on a full disk
        return False


def local_folders(limits: HealthLimits) -> list[str]:
    """Return the folders on local disks that it writes to. An object store reports by itself that it is full."""
    return [folder for folder in dict.fromkeys((limits.root, limits.data)) if not is_url(folder)]


def _just_decided(entry: Entry) -> bool:
    decided = None
    if entry.decision is not None:
        decided = moment_of(entry.decision.created)
    return decided is not None and (seams.now() - decided).total_seconds() < PUBLISHING_S


def _room_if_full(folder: str) -> int | None:
    """Return the free bytes of a disk that counts as full. None if it is not full, or does not exist."""
    free = free_bytes(folder)
    if free is not None and free < SPARE_BYTES:
        return free
    return None


def free_bytes(folder: str) -> int | None:
    """Return the free bytes on a folder's disk. None if they cannot be read, or the folder does not exist."""
    try:
        stats = os.statvfs(folder)
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize


def condition(observed: Observations, command: Command | None = None) -> Health:
    """Return the pipeline's health: the first of these answers that applies."""
    command = command or partial(_command_text, observed.pipeline)
    health = (
        _disk(observed)
        or _suspended(observed, command)
        or _approval_health(observed, command)
        or _troubled(observed, command)
        or _unpublished(observed, command)
        or _open(observed, command)
    )
    if health is not None and not health.needs_nothing:
        return health
    return (
        _failed(observed, command)
        or _skipping(observed)
        or _stale(observed, command)
        or health
        or _publishing(observed)
        or _losing(observed)
        or _backlog_health(observed)
        or _well(observed)
    )


def _command_text(pipeline: str, verb: str, *words: object) -> str:
    return " ".join(["tidegate", verb, pipeline, *map(str, words)])


def describe_texts(text: str) -> tuple[str, str, tuple[str, ...]]:
    """Split an error's text into its three parts: what happened, what was expected, what to do next."""
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
    if observed.room < NO_ROOM_BYTES or _failed_on_full_disk(observed):
        problem = "cannot continue: a disk is full"
        consequence = "too little to write a checkpoint"
    else:
        problem = "may not be able to continue: a disk is nearly full"
        consequence = "a checkpoint that needs more than that fails"
    if observed.room < NO_ROOM_BYTES:
        room = "no room"
    else:
        room = f"{observed.room / (1 << 20):.1f} MiB"
    return Health(
        "disk full",
        f"Pipeline {observed.pipeline} {problem}",
        f"The disk that holds {folders} has {room} left: {consequence}.",
        (f"make room on the disk that holds {folders}; nothing is lost, the next run continues by itself",),
        checkpoint=next((entry.id for entry in observed.view.still_open()), None),
        reason="DISK_FULL",
    )


def _failed_on_full_disk(observed: Observations) -> bool:
    """Return whether the last action failed because of a full disk."""
    trouble = observed.trouble
    if trouble is not None and troubles.is_current(trouble, observed.view, observed.pending):
        return trouble.reason == "DISK_FULL"
    last = observed.view.entries[-1] if observed.view.entries else None
    return last is not None and last.aborted and last.decision is not None and "disk is full" in last.decision.detail


def _suspended(observed: Observations, command: Command) -> Health | None:
    current = suspension.suspended(observed.view, observed.tolerable)
    if current is None:
        return None
    state = suspension.STATE_AFTER[current.action]
    if current.failed_checkpoints:
        return _suspension_health(observed, current, command)
    why = f": {current.why}" if current.why else "; no reason was given"
    cause, _, helps = describe_texts(f"It was {state} by {current.cause}{why}")
    cancellation = suspension.final_cancel(observed.view)
    if cancellation is not None:
        remedy = (
            f"nothing: it was cancelled for good by entry {cancellation.id}; savepoints can be forked: "
            f"{command('fork')}"
        )
    elif suspension.finished(observed.view) is not None:
        remedy = f"nothing, if that was intended; to continue after the end: {command('resume', '--after-end')}"
    elif current.action != "suspend":
        remedy = f"nothing, if that was intended; to let it continue: {command('resume')}"
    else:
        remedy = f"when the cause is fixed: {command('resume')}; nothing is lost, its input waits"
    last = observed.view.last_completed
    checkpoint = current.rejected_checkpoint or (last.id if last is not None else None)
    return Health(state, f"Pipeline {observed.pipeline} is {state}", cause, (*helps, remedy), checkpoint)


def _suspension_health(observed: Observations, suspension: SuspensionState, command: Command) -> Health:
    id = suspension.failed_checkpoints[-1]
    entry = observed.view.get(id)
    assert entry is not None
    cause, helps = _why(entry, command)
    count = len(suspension.failed_checkpoints)
    if count > 1:
        several = f"its last {count} checkpoints"
    else:
        several = f"checkpoint {id}"
    return Health(
        "suspended",
        f"Pipeline {observed.pipeline} is suspended: {several} failed;"
        f" tolerable_failed_checkpoints is {observed.tolerable}",
        cause,
        (*helps, f"then let it continue: {command('resume')}; its input waits, nothing is lost"),
        id,
        _reason(entry),
    )


def _approval_health(observed: Observations, command: Command) -> Health | None:
    for entry in observed.view.still_open():
        if text := approvals.pending_approvals_text(View((entry,)), [entry.id]):
            remedy = f"{command('approve', entry.id)}, or {command('reject', entry.id)}"
            if all(approvals.can_quarantine(entry, holding.gate) for holding in unanswered(entry)):
                quarantining = command("reject", entry.id, "--quarantine")
                remedy += f"; to quarantine the rows that broke the rules: {quarantining}"
            cause = " ".join(filter(None, (_sentence(text), approvals.approval_text(entry))))
            return Health("held", f"Pipeline {observed.pipeline} waits for a person", cause, (remedy,), entry.id)
    return None


def _troubled(observed: Observations, command: Command) -> Health | None:
    trouble = observed.trouble
    if trouble is None or not troubles.is_current(trouble, observed.view, observed.pending) or _is_retrying(observed):
        return None
    if trouble.entry is not None:
        subject = f"checkpoint {trouble.entry}"
    elif trouble.unplanned > 1:
        subject = f"no checkpoint could be planned by {trouble.unplanned} runs in a row"
    else:
        subject = "no checkpoint could be planned"
    expected = f" Expected: {trouble.expected}." if trouble.expected else ""
    help = describe_texts(trouble.help)[0] or "see the log of the failed run; the next one tries again"
    remedy: tuple[str, ...] = (help,)
    if trouble.kind == Unavailable.kind and not _is_scheduled(observed.view):
        remedy = (help, f"no run is scheduled, since interval is never: then {command('trigger')}, or tidegate run")
    return Health(
        "troubled",
        f"Pipeline {observed.pipeline} has an error at its step {trouble.step}: {subject}",
        f"{trouble.reason}: {_sentence(describe_texts(trouble.what)[0])}{expected}",
        remedy,
        trouble.entry,
        trouble.reason,
    )


def _is_scheduled(view: View) -> bool:
    """Return whether the next run is scheduled, by the settings of the last plan. True if no plan is in the view."""
    for entry in reversed(view.entries):
        if entry.control is None:
            return entry.plan.config.get("interval") != "never"
    return True


def _is_retrying(observed: Observations) -> bool:
    """Return whether the error may pass and a run is still retrying, so that no action is needed."""
    trouble = observed.trouble
    if trouble is None or trouble.entry is None or trouble.kind != Unavailable.kind:
        return False
    entry = observed.view.get(trouble.entry)
    if entry is None or not entry.open:
        return False
    return entry.id not in observed.abandoned and entry.id not in observed.late


def _unpublished(observed: Observations, command: Command) -> Health | None:
    overdue = observed.pending - observed.publishing
    if not overdue:
        return None
    id = min(overdue)
    return Health(
        "unpublished",
        f"Pipeline {observed.pipeline} has completed checkpoint {id}, which is not on all tables yet",
        "The process that completed it ended before it could publish it, or a table refused it.",
        (f"run the pipeline: the next run publishes it first; if that fails, {command('doctor')} shows why",),
        id,
    )


def _publishing(observed: Observations) -> Health | None:
    """A checkpoint was just decided, and is being published, which takes a moment."""
    if not observed.publishing:
        return None
    id = min(observed.publishing)
    text = f"Pipeline {observed.pipeline} is working on checkpoint {id}, which is completed: it is being published"
    return Health("working", text, checkpoint=id)


def _open(observed: Observations, command: Command) -> Health | None:
    entry = next(observed.view.still_open(), None)
    if entry is None:
        return None
    missing = []
    for job in entry.plan.acks:
        if job not in entry.acks and job not in entry.overtaken:
            missing.append(job)
    if missing:
        waits = f"job {', '.join(missing)} has not acknowledged it"
    else:
        waits = "it waits to be decided"
    if entry.id in observed.abandoned:
        return Health(
            "orphaned",
            f"Pipeline {observed.pipeline} has an open checkpoint, {entry.id}, that no process works on",
            f"The process that made it has died; {waits}. It was killed by a person or for lack of memory, or the "
            "machine went down.",
            (
                "run the pipeline again: the next run ends this checkpoint and reads its input again, nothing is lost",
                "if it is killed again, give it memory (spark.memory), or less input per checkpoint",
            ),
            entry.id,
            "RUN_GONE",
        )
    if observed.paused:
        return Health(
            "paused",
            f"Pipeline {observed.pipeline} has an open checkpoint, {entry.id}, and Airflow has paused its DAG",
            f"Running tasks end, and no further one begins; {waits}.",
            (
                "unpause the DAG: its run continues, or, if the timeout is over, the next one ends this checkpoint and "
                "reads its input again; nothing is lost",
            ),
            entry.id,
            "DAG_PAUSED",
        )
    if entry.id in observed.late:
        return Health(
            "late",
            f"Pipeline {observed.pipeline} has an open checkpoint, {entry.id}, whose timeout is over",
            f"After {entry.plan.timeout_s:g} s {_sentence(waits)}",
            (
                f"run the pipeline: the next run ends it. If it needs longer, raise timeout; {command('watch')} shows "
                "its progress",
            ),
            entry.id,
            "CHECKPOINT_EXPIRED",
        )
    cause = ""
    trouble = observed.trouble
    if trouble is not None and trouble.entry == entry.id and _is_retrying(observed):
        cause = f"It has met an error, and retries. {trouble.reason}: {_sentence(describe_texts(trouble.what)[0])}"
    text = f"Pipeline {observed.pipeline} is working on checkpoint {entry.id}: {waits}"
    return Health("working", text, cause, checkpoint=entry.id)


def _failed(observed: Observations, command: Command) -> Health | None:
    """The last checkpoint was aborted, which is tolerated, and the pipeline was not resumed since."""
    last = observed.view.entries[-1] if observed.view.entries else None
    if last is None or last.control is not None or last.decision is None or last.completed:
        return None
    cause, helps = _why(last, command)
    if last.decision.reason == BAD_DECLARATION:
        text = f"Pipeline {observed.pipeline} makes no checkpoints: its declaration is wrong, so {last.id} was aborted"
        retry = "the first run after that is fixed reads the same input again"
    else:
        text = f"Pipeline {observed.pipeline} continues, but its last checkpoint, {last.id}, was aborted"
        retry = "the next run reads its input again"
    return Health("failed", text, cause, (*helps, retry), last.id, _reason(last))


def _skipping(observed: Observations) -> Health | None:
    """The pipeline runs, but some of its input will never be in its tables."""
    last = observed.view.last_completed
    entry = last.id if last is not None else None
    if observed.gaps:
        gaps = ", ".join(map(str, observed.gaps[:5]))
        if len(observed.gaps) > 5:
            gaps += ", …"
        text = f"Pipeline {observed.pipeline} continues, but has gaps between its intervals"
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


def _stale(observed: Observations, command: Command) -> Health | None:
    """A promise is broken, although nothing else is known to be wrong."""
    broken = [promise for promise in observed.promises if not promise.is_kept]
    if not broken:
        return None
    entry = next(observed.view.still_open(), None)
    if entry is not None:
        cause = f"Checkpoint {entry.id} is in progress, and took too long, or began too late."
        remedy = f"wait for it: {command('watch')} shows its progress. If that happens again, see {command('profile')}"
    elif observed.paused:
        cause, remedy = "Airflow has paused the DAG: no run begins.", "unpause the DAG"
    else:
        cause = "No checkpoint is in progress."
        remedy = (
            "if the next run does not begin by itself: see whether Airflow's scheduler works, and whether the DAG is "
            "paused"
        )
    text = f"Pipeline {observed.pipeline} breaks a promise: " + "; ".join(promise.text for promise in broken)
    checkpoint = entry.id if entry is not None else broken[0].checkpoint
    return Health("stale", text, cause, (remedy,), checkpoint, "PROMISE_BROKEN")


def _losing(observed: Observations) -> Health | None:
    """Operators after a gate dropped late rows, which no stream receives."""
    last = observed.view.last_completed
    if last is None:
        return None
    acks = [acked.ack for acked in last.acks.values()]
    counts: dict[str, dict[str, int]] = {}
    for ack in acks:
        counts |= ack.stats.counts
    lost = {}
    for ack in acks:
        for verdict in ack.gates.values():
            for late in verdict.behind:
                counted = counts.get(late.operator, {})
                rows = counted.get("late", 0) + counted.get("without_time", 0)
                if rows:
                    lost[late.what] = rows
    if not lost:
        return None
    dropped = "; ".join(f"{title} dropped {_rows(rows)}: late, or without event time" for title, rows in lost.items())
    text = f"Pipeline {observed.pipeline} continues, but checkpoint {last.id} lost late rows"
    since = last.plan.base or "beginning"
    remedy = (
        "so that such rows count: give their source a longer watermark, or use the operator's late rows as a separate "
        f"stream; then tidegate backfill MODULE:{observed.pipeline} --from {since} computes these again",
    )
    return Health("losing", text, _sentence(dropped), remedy, last.id, "LATE_ROWS")


def _backlog_health(observed: Observations) -> Health | None:
    """The pipeline completes checkpoints, but does not keep up: input has waited after each of the last ones.

    A backlog that is known to shrink raises no alarm: it may only be the busiest hour of the day.
    """
    last = observed.recent
    if len(last) < BEHIND:
        return None
    name, entry = observed.pipeline, last[-1].id
    growing, waiting = [], []
    for source in last[-1].plan.sources:
        ranges = [recent.plan.sources[source] for recent in last if source in recent.plan.sources]
        unit, amounts = _backlogs(ranges)
        if len(amounts) == BEHIND and all(before < after for before, after in pairwise(amounts)):
            growing.append(f"at source {source} {amounts[0]:,} {unit} waited, and {amounts[-1]:,} do now")
        elif len(ranges) == BEHIND and all(part.more for part in ranges) and not _shrinks(amounts):
            waiting.append(source)
    if growing:
        text = f"Pipeline {name} falls behind: more input has arrived than its last {BEHIND} checkpoints read"
        cause = _sentence(f"{BEHIND} checkpoints ago, {'; '.join(growing)}")
        cause += " If that continues, raise the source's bound, shorten its interval, or give Spark more cores."
        return Health("behind", text, cause, checkpoint=entry)
    if waiting:
        text = f"Pipeline {name} is behind: input has waited after each of its last {BEHIND} checkpoints"
        cause = f"Source {', '.join(waiting)} had more than its bound allows. If that continues, raise the bound."
        return Health("behind", text, cause, checkpoint=entry)
    return None


def _backlogs(ranges: Sequence[Range]) -> tuple[str, list[int]]:
    """Return a unit in which the source reported its backlog after all of these ranges, and the amounts. "" and no
    amounts if no unit qualifies."""
    for unit in ("rows", "bytes", "files"):
        reported = [getattr(part.lag, unit, None) for part in ranges]
        amounts = [amount for amount in reported if amount is not None]
        if len(amounts) == len(reported):
            return unit, amounts
    return "", []


def _shrinks(amounts: Sequence[int]) -> bool:
    """Return whether the backlog has become smaller, or is empty."""
    return len(amounts) == BEHIND and (amounts[-1] < amounts[0] or not amounts[-1])


def _well(observed: Observations) -> Health:
    last = observed.view.last_completed
    if last is None:
        return Health("new", f"Pipeline {observed.pipeline} has no checkpoint yet")
    text = f"Pipeline {observed.pipeline} is well: checkpoint {last.id} is completed"
    return Health("well", text, checkpoint=last.id)


# -- why a checkpoint was aborted ----------------------------------------------------------------------


def _why(entry: Entry, command: Command) -> tuple[str, tuple[str, ...]]:
    """Return the cause of an abort, and what to do about it."""
    decision = entry.decision
    assert decision is not None
    happened, expected, helps = describe_texts(decision.detail)
    if decision.reason == "GATE_FAILED":
        happened += _rules(entry)
    cause = f"{decision.reason}, {REASONS.get(decision.reason, decision.reason)}"
    cause += f": {_sentence(happened)}" if happened else "."
    if expected:
        cause += f" Expected: {expected}."
    return cause, helps or (_remedy(entry, decision, command),)


def _rules(entry: Entry) -> str:
    """Return the rules that rows have broken: the verdict itself may only state the number of rows."""
    rules = []
    for acked in entry.acks.values():
        for verdict in acked.ack.gates.values():
            if verdict.outcome == "abort":
                for broken in verdict.broken:
                    if broken.policy != "abort":
                        rules.append(f"{broken.rule}: {broken.why}")
    return f" ({'; '.join(rules[:5])})" if rules else ""


def _remedy(entry: Entry, decision: Decision, command: Command) -> str:
    """Return the remedy for an abort whose detail has no help."""
    remedies = {
        "GATE_FAILED": "correct the writer of the source, or the gate's rules and limits; values that broke them: "
        + command("explain", entry.id),
        "GATE_REJECTED": "correct the writer of the source, or quarantine the rows: "
        + command("resume", "--quarantine-all"),
        "GATE_QUARANTINED": "nothing to do: the next run reads its input again, with those rows in quarantine",
        "CHECKPOINT_EXPIRED": "raise timeout, or read less input per checkpoint; under Airflow, check whether tasks "
        "wait for a slot",
        "JOB_FAILED": "see the log of the failed task; if its process was killed for lack of memory, give it more "
        "(spark.memory), or less input per checkpoint",
        "ENVIRONMENT_FAILED": "fix the error of Spark; the next run reads the same input",
        "RUN_GONE": "if it was killed for lack of memory, give it more (spark.memory), or less input per checkpoint",
    }
    fallback = f"{command('explain', entry.id)} shows the details; the log of the failed task has more"
    return remedies.get(decision.reason, fallback)


def _reason(entry: Entry) -> str:
    if entry.decision is not None:
        return entry.decision.reason
    return ""


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _sentence(text: str) -> str:
    """Return the text with a capital and a full stop."""
    return (text[:1].upper() + text[1:]).rstrip(".") + "."
