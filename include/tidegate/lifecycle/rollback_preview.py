"""Examine a rollback before anything is touched: its effects, and every reason against it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tidegate.checkpoint.publishing.table_mismatch import deleted_table_error
from tidegate.checkpoint.references import blobs_within
from tidegate.connectors.sink import RestorePlan, Sink
from tidegate.errors import Corrupt, Invalid, Rejected, TidegateError, Unavailable
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.refusals import no_such_checkpoint
from tidegate.protocol import rules
from tidegate.protocol.view import Entry, View, rollback_of
from tidegate.records import typed
from tidegate.records.records import Blob, Json, Payload, PublishedTable, Restored
from tidegate.state.table import STATE

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = [
    "CHOICES",
    "How",
    "RollbackPreview",
    "TableChange",
    "claimed",
    "examine",
    "table_changes",
    "undecided_choices",
    "unreadable",
]

How = Literal["restore", "discard", "retract", "keep", "leave"]
CHOICES: tuple[How, ...] = ("discard", "retract", "keep", "leave")
"""The choices for a table to which other writers have committed, and "leave" for one that cannot be repaired."""


@dataclass(frozen=True)
class TableChange:
    """The effect on one table."""

    table: str
    method: How | None
    """None if nothing was published there since."""
    way: RestorePlan = field(default_factory=RestorePlan)
    state: Payload | None = None
    """For a keyed state: its content as of the target."""
    written_directly: bool = False
    """At least once: its rows stay, so rows that are read again exist twice."""
    last_held: int | None = None
    """For an abandoned table: the last checkpoint that it holds, if known."""

    @property
    def restored(self) -> Restored | None:
        """The form in the records."""
        if self.method is None or self.method == "leave":
            return None
        return Restored(how=self.method, to=self.way.target_version)


@dataclass(frozen=True)
class RowsInFlight:
    """Rows that, as of a checkpoint, one job had yet to read from another one."""

    job: str
    stream: str
    checkpoint: int
    """The checkpoint in which they were sent."""
    rows: int | None
    """None if the record of them cannot be read."""


@dataclass(frozen=True)
class RollbackPreview:
    """The effects of a rollback, and the reasons against it."""

    target: Entry
    base: Entry
    """The last completed entry, from which it rolls back."""
    undone: tuple[int, ...]
    """Completed checkpoints that would no longer count."""
    aborted: tuple[int, ...]
    """Open checkpoints, which would be aborted."""
    undone_swaps: tuple[tuple[int, str], ...]
    """Swaps that would no longer count: the entry, and its backfill."""
    changes: tuple[TableChange, ...]
    problems: tuple[str, ...]
    """The reasons against it. Empty if it is possible."""
    lacking: tuple[str, ...]
    """Tables to which the target, or a later entry, must be published first."""
    in_flight: tuple[RowsInFlight, ...] = ()
    """The rows in flight as of the target: they are read after it, or dropped."""
    drops_in_flight: bool = False
    """True if they are dropped."""

    @property
    def dropped(self) -> dict[str, list[int]]:
        """The checkpoints whose rows are dropped, by the job that had yet to read them."""
        if not self.drops_in_flight:
            return {}
        jobs: dict[str, set[int]] = {}
        for part in self.in_flight:
            jobs.setdefault(part.job, set()).add(part.checkpoint)
        return {job: sorted(ids) for job, ids in jobs.items()}


def examine(
    pipeline: PipelineContext,
    to: int,
    choices: Mapping[str, How],
    view: View | None = None,
    *,
    drop_in_flight: bool = False,
) -> RollbackPreview:
    """Return the effects of a rollback to checkpoint `to`. Checks every record, version, hash and file that it
    needs. drop_in_flight: the rows in flight at the time are dropped, so none of their files are needed."""
    view = view or pipeline.ledger.view(reach=to)
    target, base = _target(pipeline, to, view)
    _refuse_unknown_choices(pipeline, base, choices)
    if drop_in_flight:
        _require_rows_in_flight(pipeline, target)
    try:
        preview = _examined(pipeline, view, target, base, choices, drop_in_flight)
    except Corrupt:
        if pipeline.ledger.is_retained(to):
            raise
        raise claimed(pipeline, to) from None  # retention has just removed it
    if preview.problems and not pipeline.ledger.is_retained(to):
        raise claimed(pipeline, to)
    return preview


def _examined(
    pipeline: PipelineContext, view: View, target: Entry, base: Entry, choices: Mapping[str, How], drop_in_flight: bool
) -> RollbackPreview:
    problems = list(unreadable(pipeline.ledger, target, with_in_flight=not drop_in_flight))
    if not problems and not drop_in_flight:
        problems = list(_lost_in_flight(pipeline, target))
    if problems:
        changes = []
    else:
        changes = list(table_changes(pipeline, view, target, base, choices))
    lacking = []
    for change in changes:
        if change.method == "leave":
            continue
        problems += change.way.problems
        problems += undecided_choices(change, choices)
        is_missing = not change.way.exists and _has_pending_since(target, base, change.table)
        if change.way.not_published_yet or is_missing:
            lacking.append(change.table)
    problems += _removed(pipeline, target, base, choices)
    problems += _diverted_since(pipeline, view, target)
    rollbacks = pipeline.ledger.rollbacks()
    undone, undone_swaps = [], []
    for entry in _between(pipeline.ledger, target.id, view):
        if not entry.completed or rollback_of(entry.id, rollbacks) is not None:
            continue
        if entry.rollback is None:
            undone.append(entry.id)
        elif entry.rollback.line is not None:
            undone_swaps.append((entry.id, entry.rollback.line.name))
    return RollbackPreview(
        target=target,
        base=base,
        undone=tuple(undone),
        undone_swaps=tuple(undone_swaps),
        aborted=tuple(entry.id for entry in view.still_open()),
        changes=tuple(changes),
        problems=tuple(problems),
        lacking=tuple(lacking),
        in_flight=tuple(_rows_in_flight(pipeline.ledger, target)),
        drops_in_flight=drop_in_flight,
    )


# -- the target --------------------------------------------------------------------------------------------


def _target(pipeline: PipelineContext, to: int, view: View) -> tuple[Entry, Entry]:
    """Return the target and the last completed checkpoint. Raise Invalid or Rejected if the target is impossible."""
    ledger, name = pipeline.ledger, pipeline.graph.name
    if pipeline.graph.by_interval:
        raise Invalid(
            f"pipeline {name!r} reads by data interval: its checkpoints do not rest on each other",
            expected="a pipeline that reads all new input",
            help="process the interval again, with corrected input or code: its rows are replaced",
            reason="BY_INTERVAL",
        )
    last, target = view.last_completed, pipeline.real_entry(to)
    if target is None or not target.completed or last is None:
        if target is None:
            problem = "does not exist (retired, or never made)"
        else:
            problem = "was not completed"
        completed = []
        for id in ledger.ids():
            decision = ledger.decision(id)
            if decision is not None and decision.outcome == "completed":
                completed.append(str(id))
        expected = f"a completed one that is retained: {', '.join(completed) or 'none exists'}"
        raise no_such_checkpoint(name, to, problem=problem, expected=expected)
    will_not_be_published = to <= view.settled or view.rollback_of(to) is not None
    never_published = will_not_be_published and ledger.published(to) is None
    if not ledger.is_retained(to):
        raise claimed(pipeline, to)
    if never_published:
        raise Rejected(
            f"checkpoint {to} of pipeline {name!r} was rolled back before it was on every table",
            expected="one that was published to all tables",
            help="return to the checkpoint before it: its input is read again",
            reason="NEVER_PUBLISHED",
        )
    return target, last


def claimed(pipeline: PipelineContext, to: int) -> Rejected:
    """Return the error for a target that retention has claimed."""
    return Rejected(
        f"checkpoint {to} of pipeline {pipeline.graph.name!r} is claimed by retention",
        expected="a checkpoint that is retained",
        help="choose another one; num_retained says how many are kept",
        reason="RETIRED",
    )


def unreadable(ledger: Ledger, target: Entry, *, with_in_flight: bool = True) -> Iterator[str]:
    """Yield the problems of the target's own records and side files: missing or changed ones."""
    assert target.manifest is not None
    blobs: set[Blob] = set()
    for part in target.plan.sources.values():
        blobs.update(blobs_within(part.end))
    for job, handle in target.manifest.jobs.items():
        try:
            ack = ledger.chosen_ack(handle, job)
        except Corrupt as error:
            yield error.what
            continue
        for payload in ack.states.values():
            if payload.blob is not None:
                blobs.add(payload.blob)
    if with_in_flight:
        for _, payload in _waiting(target):
            if payload.blob is not None:
                blobs.add(payload.blob)
    for blob in sorted(blobs, key=lambda blob: blob.path):
        try:
            ledger.get_blob(blob)
        except Corrupt as error:
            yield error.what


def _waiting(target: Entry) -> Iterator[tuple[str, Payload]]:
    """Yield the input in flight as of a checkpoint, by stream."""
    assert target.manifest is not None
    for unread in target.manifest.in_flight.values():
        for part in unread:
            yield from part.channels.items()


def _rows_in_flight(ledger: Ledger, target: Entry) -> Iterator[RowsInFlight]:
    """Yield how many rows were in flight as of the target."""
    from tidegate.connectors.channel import Sent

    assert target.manifest is not None
    for job, parts in target.manifest.in_flight.items():
        for part in parts:
            for stream, payload in part.channels.items():
                rows = None
                with contextlib.suppress(Corrupt):
                    rows = typed.convert(ledger.unpack(payload), Sent).amount.rows
                yield RowsInFlight(job, stream, part.ack.entry, rows)


def _require_rows_in_flight(pipeline: PipelineContext, target: Entry) -> None:
    if target.manifest is not None and not target.manifest.in_flight:
        raise Invalid(
            f"as of checkpoint {target.id} of pipeline {pipeline.graph.name!r}, nothing was in flight: every job had "
            "read all rows",
            expected="a checkpoint that overtook a busy job",
            help="roll back without dropping anything",
            reason="NOTHING_IN_FLIGHT",
        )


def _lost_in_flight(pipeline: PipelineContext, target: Entry) -> Iterator[str]:
    """Yield the channels with missing files that would be read again."""
    from tidegate.connectors.channel import Channel, Sent, channel_name

    for stream, payload in _waiting(target):
        sent = typed.convert(pipeline.ledger.unpack(payload), Sent)
        missing = Channel(stream).missing_files(sent, pipeline.context(channel_name(stream)))
        if missing:
            yield f"channel {stream!r}: {len(missing)} files that were in flight are missing, first {missing[0]!r}"


def _between(ledger: Ledger, target: int, view: View) -> Iterator[Entry]:
    """Yield all entries above the target."""
    for id in range(target + 1, view.last_id + 1):
        entry = view.get(id) or ledger.entry(id)
        if entry is not None:
            yield entry


# -- tables ------------------------------------------------------------------------------------------------


def table_changes(
    pipeline: PipelineContext, view: View, target: Entry | None, base: Entry, choices: Mapping[str, How]
) -> Iterator[TableChange]:
    """Yield the effect on each table of the pipeline. target: None for the beginning, to which a swap may return."""
    assert base.manifest is not None
    published = None
    if target is not None:
        published = pipeline.ledger.published(target.id)
    states = _states(pipeline.ledger, target) if target is not None else {}
    through = (target.plan.through or ()) if target is not None else ()
    for name in base.manifest.tables:
        sinking = pipeline.graph.tables.get(name)
        if choices.get(name) == "leave" and name not in through:
            yield TableChange(name, "leave", last_held=_last_entry_on_table(pipeline, view, name))
            continue
        if sinking is None:
            continue  # nothing was published there since, or `_removed` reports it
        if name in through:
            yield _stays(pipeline, name, sinking.sink)
            continue
        to = _last_on_table(target, name)
        target_table: PublishedTable | None = None
        if published is not None:
            target_table = published.tables.get(name)
        state = states.get(name)
        if state is not None:
            state_record: list[Json] = [pipeline.ledger.unpack(state)]
        else:
            state_record = []
        try:
            way = sinking.sink.restore_plan(to, target_table, state_record, pipeline.context(name))
        except Unavailable:
            raise
        except TidegateError as error:
            problem = error.what
            if name in pipeline.graph.sinks:
                problem += f"; fix that, or choose --leave {name} (it stays as it is)"
            way = RestorePlan(problems=(problem,))
        if way.not_published_yet and not way.exists and target_table is not None and target_table.is_delta:
            deleted = deleted_table_error(
                name, target_table.uri, target.id if target else 0, target_table.version, base.id
            )
            way = RestorePlan(exists=False, problems=(f"{deleted.what}; {deleted.help}",))
        yield TableChange(name, choices.get(name, "restore") if way.exists else None, way, state)


def _last_on_table(target: Entry | None, table: str) -> int | None:
    """Return the last checkpoint on a table as of the target."""
    if target is None or target.manifest is None:
        return None
    return rules.after_publish([target.manifest], table)


def _last_entry_on_table(pipeline: PipelineContext, view: View, name: str) -> int | None:
    """Return the last checkpoint that a table holds, from the table itself, or else from the log."""
    sinking = pipeline.graph.tables.get(name)
    if sinking is not None:
        with contextlib.suppress(TidegateError):
            return sinking.sink.head(pipeline.context(name)).last_entry
    for entry in reversed(view.entries):
        published = pipeline.ledger.published(entry.id) if entry.completed else None
        if published is not None and name in published.tables and entry.manifest is not None:
            return rules.after_publish([entry.manifest], name)
    return None


def _stays(pipeline: PipelineContext, name: str, sink: Sink) -> TableChange:
    """Return the change of a table to which jobs write directly: no checkpoint records which of its rows existed at the
    time."""
    version = sink.head(pipeline.context(name)).version
    method: How | None = "keep" if version is not None else None
    return TableChange(name, method, RestorePlan(version=version), written_directly=True)


def _states(ledger: Ledger, target: Entry) -> dict[str, Payload]:
    assert target.manifest is not None
    states: dict[str, Payload] = {}
    for job, handle in target.manifest.jobs.items():
        states |= ledger.chosen_ack(handle, job).states
    return states


def undecided_choices(change: TableChange, choices: Mapping[str, How]) -> Iterator[str]:
    """Yield the choices that a person still has to make, or that are impossible."""
    if change.written_directly and choices.get(change.table, "keep") != "keep":
        yield f"table {change.table!r}: jobs wrote to it at least once, so its rows stay: choose --keep, or nothing"
        return
    if change.way.rows_stay_reason and change.method not in ("keep", None):
        yield (
            f"table {change.table!r}: {change.way.rows_stay_reason}. Choose --keep {change.table} (its rows stay, and "
            f"rows that are read again are written to it again) or --leave {change.table} (the same, and it never gets "
            "its pending rows)"
        )
        return
    if change.method == "retract" and change.way.not_separable_reason:
        yield (
            f"table {change.table!r}: its own rows cannot be restored alone, because {change.way.not_separable_reason}"
        )
    if change.method != "restore" or not change.way.foreign_commits:
        return
    commits = ", ".join(change.way.foreign_commits[:10])
    if len(change.way.foreign_commits) > 10:
        commits += " …"
    if change.way.not_separable_reason:
        retract = ""
    else:
        retract = " --retract (restore this pipeline's rows only),"
    yield (
        f"table {change.table!r}: others have committed since: {commits}. Choose --discard (their commits are lost),"
        f"{retract} or --keep (its rows stay, and rows that are read again are added to them)"
    )


def _removed(pipeline: PipelineContext, target: Entry, base: Entry, choices: Mapping[str, How]) -> Iterator[str]:
    """Yield the tables that were published to since, and that the code no longer has."""
    assert base.manifest is not None
    for name in base.manifest.tables:
        if choices.get(name) == "leave":
            continue
        if name not in pipeline.graph.tables and _has_pending_since(target, base, name):
            advice = "is not in the code any more, but has been published since: put it back first"
            if name.startswith(STATE):
                yield f"state {name.removeprefix(STATE)} {advice}"
            else:
                yield f"sink {name!r} {advice}, or choose --leave {name} (its rows stay as they are)"


def _diverted_since(pipeline: PipelineContext, view: View, target: Entry) -> Iterator[str]:
    """Yield the tables that never were as of the target, since a divert came in place of what waited for them (V5)."""
    rollbacks = pipeline.ledger.rollbacks()
    for entry in _between(pipeline.ledger, target.id, view):
        divert = entry.plan.divert
        if divert is None or not entry.completed or rollback_of(entry.id, rollbacks) is not None:
            continue
        last = _last_on_table(target, divert.table)
        if last is None or last <= (divert.after or 0) or not pipeline.ledger.divert_applied(entry.id):
            continue
        if divert.after is not None:
            earlier = f", or {divert.after} or before"
        else:
            earlier = ""
        yield (
            f"table {divert.table!r} never was as of checkpoint {target.id}: its rows came with checkpoint {entry.id}, "
            f"which diverted some of them. Choose {entry.id} or later{earlier}"
        )


def _has_pending_since(target: Entry, base: Entry, table: str) -> bool:
    """Return whether an entry after the target makes a commit on the table."""
    assert base.manifest is not None
    last = rules.after_publish([base.manifest], table)
    return last is not None and last > target.id


def _refuse_unknown_choices(pipeline: PipelineContext, base: Entry, choices: Mapping[str, How]) -> None:
    assert base.manifest is not None
    names = sorted(pipeline.graph.sinks)
    removed = []
    for name in base.manifest.tables:
        if not name.startswith((STATE, QUARANTINE)):
            removed.append(name)
    for name, how in choices.items():
        if how == "leave" and name in removed:
            continue
        problem = ""
        if name not in names:
            problem = f"{name!r} has no choices"
        elif how not in CHOICES:
            problem = f"{how!r} is not a choice for {name!r}"
        if problem:
            raise Invalid(
                problem,
                expected=f"{' or '.join(CHOICES)} for one of {', '.join(names)}",
                help="states and quarantine are always restored",
                reason="BAD_CHOICE",
            )
