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
from tidegate.protocol.view import Entry, View, rolled_back_by
from tidegate.records import typed
from tidegate.records.records import Json, Payload, PublishedTable, Restored
from tidegate.state.table import STATE

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = [
    "CHOICES",
    "How",
    "Proposal",
    "TableChange",
    "claimed",
    "examine",
    "table_changes",
    "undecided_choices",
    "unreadable",
]

How = Literal["restore", "discard", "retract", "keep", "leave"]
CHOICES: tuple[How, ...] = ("discard", "retract", "keep", "leave")
"""The choices for a table to which others have written; "leave": for one that is beyond help."""


@dataclass(frozen=True)
class TableChange:
    """The effect on one table."""

    table: str
    method: How | None
    """None: nothing was published there since."""
    way: RestorePlan = field(default_factory=RestorePlan)
    state: Payload | None = None
    """For a keyed state: its content as of the target."""
    written_directly: bool = False
    """At least once: its rows stay, so rows that are read again exist twice."""
    last_held: int | None = None
    """For a table that is let go of: the last checkpoint that it holds, as far as known."""

    @property
    def restored(self) -> Restored | None:
        """The form in the records."""
        if self.method is None or self.method == "leave":
            return None
        return Restored(how=self.method, to=self.way.target_version)


@dataclass(frozen=True)
class RowsInFlight:
    """Rows that, as of a checkpoint, one job had yet to take from another one."""

    job: str
    stream: str
    checkpoint: int
    """The one in which they were sent."""
    rows: int | None
    """None: the record of them cannot be read."""


@dataclass(frozen=True)
class Proposal:
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
    """The reasons against it. Without any, it is possible."""
    lacking: tuple[str, ...]
    """Tables to which the target, or a later entry, must be published first."""
    in_flight: tuple[RowsInFlight, ...] = ()
    """The rows in flight as of the target: they are read after it, or let go of."""
    drops_in_flight: bool = False
    """True: they are let go of."""

    @property
    def dropped(self) -> dict[str, list[int]]:
        """Return the checkpoints whose rows are let go of, by the job that had yet to take them."""
        jobs: dict[str, set[int]] = {}
        for part in self.in_flight if self.drops_in_flight else ():
            jobs.setdefault(part.job, set()).add(part.checkpoint)
        return {job: sorted(ids) for job, ids in jobs.items()}


def examine(
    pipeline: PipelineContext,
    to: int,
    choices: Mapping[str, How],
    view: View | None = None,
    *,
    drop_in_flight: bool = False,
) -> Proposal:
    """Return the effects of a rollback to checkpoint `to`. Checks every record, version, hash and file that it
    needs. drop_in_flight: what was in flight then is let go of, so nothing of it is needed."""
    view = view or pipeline.ledger.view(reach=to)
    target, base = _target(pipeline, to, view)
    _refuse_unknown_choices(pipeline, base, choices)
    if drop_in_flight:
        _refuse_nothing_in_flight(pipeline, target)
    try:
        proposal = _examined(pipeline, view, target, base, choices, drop_in_flight)
    except Corrupt:
        if pipeline.ledger.is_retained(to):
            raise
        raise claimed(pipeline, to) from None  # retention removed it meanwhile
    if proposal.problems and not pipeline.ledger.is_retained(to):
        raise claimed(pipeline, to)
    return proposal


def _examined(
    pipeline: PipelineContext, view: View, target: Entry, base: Entry, choices: Mapping[str, How], drop_in_flight: bool
) -> Proposal:
    problems = list(unreadable(pipeline.ledger, target, with_in_flight=not drop_in_flight))
    if not problems and not drop_in_flight:
        problems = list(_lost_in_flight(pipeline, target))
    changes = [] if problems else list(table_changes(pipeline, view, target, base, choices))
    lacking = []
    for change in changes:
        if change.method == "leave":
            continue
        problems += change.way.problems
        problems += undecided_choices(change, choices)
        if change.way.not_published_yet or (
            not change.way.exists and _has_pending_since(pipeline, target, base, change.table)
        ):
            lacking.append(change.table)
    problems += _removed(pipeline, target, base, choices)
    before = pipeline.ledger.rollbacks()
    above = [entry for entry in _between(pipeline.ledger, target.id, view) if rolled_back_by(entry.id, before) is None]
    swaps = ((entry.id, entry.rollback.line) for entry in above if entry.completed and entry.rollback is not None)
    return Proposal(
        target=target,
        base=base,
        undone=tuple(entry.id for entry in above if entry.completed and entry.rollback is None),
        undone_swaps=tuple((id, line.name) for id, line in swaps if line is not None),
        aborted=tuple(entry.id for entry in view.still_open()),
        changes=tuple(changes),
        problems=tuple(problems),
        lacking=tuple(lacking),
        in_flight=tuple(_rows_in_flight(pipeline.ledger, target)),
        drops_in_flight=drop_in_flight,
    )


# -- the target --------------------------------------------------------------------------------------------


def _target(pipeline: PipelineContext, to: int, view: View) -> tuple[Entry, Entry]:
    """Return the target and the last completed checkpoint. Raise Invalid or Rejected if it is no possible target."""
    ledger, name = pipeline.ledger, pipeline.graph.name
    if pipeline.graph.by_interval:
        raise Invalid(
            f"pipeline {name!r} reads by data interval: its checkpoints do not rest on each other",
            expected="a pipeline that reads whatever is new",
            help="make the interval again, with corrected input or code: its rows are replaced",
            reason="BY_INTERVAL",
        )
    last, target = view.last_completed, pipeline.real_entry(to)
    if target is None or not target.completed or last is None:
        problem = "is not there (retired, or never made)" if target is None else "was not completed"
        decisions = ((id, ledger.decision(id)) for id in ledger.ids())
        completed = [id for id, decision in decisions if decision is not None and decision.outcome == "completed"]
        expected = f"a completed one that is retained: {', '.join(map(str, completed)) or 'there is none'}"
        raise no_such_checkpoint(name, to, problem=problem, expected=expected)
    never = (to <= view.settled or view.rolled_back_by(to) is not None) and ledger.published(to) is None
    if not ledger.is_retained(to):
        raise claimed(pipeline, to)
    if never:
        raise Rejected(
            f"checkpoint {to} of pipeline {name!r} was rolled back before it was on every table",
            expected="one that all tables have been given",
            help="go back to the checkpoint before it: its input is read again",
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
    blobs = {blob for part in target.plan.sources.values() for blob in blobs_within(part.end)}
    for job, handle in target.manifest.jobs.items():
        try:
            ack = ledger.chosen_ack(handle, job)
        except Corrupt as error:
            yield error.what
            continue
        blobs |= {payload.blob for payload in ack.states.values() if payload.blob is not None}
    waiting = _waiting(target) if with_in_flight else ()
    blobs |= {payload.blob for _, payload in waiting if payload.blob is not None}
    for blob in sorted(blobs, key=lambda blob: blob.path):
        try:
            ledger.get_blob(blob)
        except Corrupt as error:
            yield error.what


def _waiting(target: Entry) -> Iterator[tuple[str, Payload]]:
    """Return the input in flight as of a checkpoint, by stream."""
    assert target.manifest is not None
    unread = (part for parts in target.manifest.in_flight.values() for part in parts)
    return ((stream, payload) for part in unread for stream, payload in part.channels.items())


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


def _refuse_nothing_in_flight(pipeline: PipelineContext, target: Entry) -> None:
    if target.manifest is not None and not target.manifest.in_flight:
        raise Invalid(
            f"as of checkpoint {target.id} of pipeline {pipeline.graph.name!r}, nothing was in flight: every job had "
            "taken all",
            expected="a checkpoint that went past a busy job",
            help="roll back without dropping anything",
            reason="NOTHING_IN_FLIGHT",
        )


def _lost_in_flight(pipeline: PipelineContext, target: Entry) -> Iterator[str]:
    """Yield the channels of which files that would be read again are gone."""
    from tidegate.connectors.channel import Channel, Sent, channel_name

    for stream, payload in _waiting(target):
        sent = typed.convert(pipeline.ledger.unpack(payload), Sent)
        missing = Channel(stream).missing_files(sent, pipeline.context(channel_name(stream)))
        if missing:
            yield f"channel {stream!r}: {len(missing)} files that were in flight are gone, first {missing[0]!r}"


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
    """Yield the effect on each table of the pipeline. target: None for the beginning, as a swap may go back to."""
    assert base.manifest is not None
    published = pipeline.ledger.published(target.id) if target is not None else None
    states = _states(pipeline.ledger, target) if target is not None else {}
    through = (target.plan.through or ()) if target is not None else ()
    for name in base.manifest.tables:
        sinking = pipeline.graph.tables.get(name)
        if choices.get(name) == "leave" and name not in through:
            yield TableChange(name, "leave", last_held=_last_held(pipeline, view, name))
            continue
        if sinking is None:
            continue  # nothing was published there since, or it is a problem
        if name in through:
            yield _stays(pipeline, name, sinking.sink)
            continue
        to = _last_there(target, name)
        target_table: PublishedTable | None = published.tables.get(name) if published is not None else None
        state = states.get(name)
        state_record: list[Json] = [pipeline.ledger.unpack(state)] if state is not None else []
        try:
            way = sinking.sink.restore_plan(to, target_table, state_record, pipeline.context(name))
        except Unavailable:
            raise
        except TidegateError as error:
            also = f"; fix that, or choose --leave {name} (it stays as it is)" if name in pipeline.graph.sinks else ""
            way = RestorePlan(problems=(f"{error.what}{also}",))
        if way.not_published_yet and not way.exists and target_table is not None and target_table.is_delta:
            gone = deleted_table_error(
                name, target_table.uri, target.id if target else 0, target_table.version, base.id
            )
            way = RestorePlan(exists=False, problems=(f"{gone.what}; {gone.help}",))
        yield TableChange(name, choices.get(name, "restore") if way.exists else None, way, state)


def _last_there(target: Entry | None, table: str) -> int | None:
    return rules.after_publish([target.manifest], table) if target is not None and target.manifest is not None else None


def _last_held(pipeline: PipelineContext, view: View, name: str) -> int | None:
    """Return the last checkpoint that a table holds, by the table itself, or else by the log."""
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
    """Return the change of a table to which jobs write directly: no checkpoint knows which of its rows existed by
    then."""
    version = sink.head(pipeline.context(name)).version
    return TableChange(
        name, "keep" if version is not None else None, RestorePlan(version=version), written_directly=True
    )


def _states(ledger: Ledger, target: Entry) -> dict[str, Payload]:
    assert target.manifest is not None
    acks = (ledger.chosen_ack(handle, job) for job, handle in target.manifest.jobs.items())
    return {name: payload for ack in acks for name, payload in ack.states.items()}


def undecided_choices(change: TableChange, choices: Mapping[str, How]) -> Iterator[str]:
    """Yield the choices that a person still has to make, or that are impossible."""
    if change.written_directly and choices.get(change.table, "keep") != "keep":
        yield f"table {change.table!r}: jobs wrote to it at least once, so its rows stay: choose --keep, or nothing"
        return
    if change.way.rows_stay_reason and change.method not in ("keep", None):
        yield (
            f"table {change.table!r}: {change.way.rows_stay_reason}. Choose --keep {change.table} (its rows stay, and "
            f"what is read again is written to it once more) or --leave {change.table} (the same, and it never gets "
            "what is still pending for it)"
        )
        return
    if change.method == "retract" and change.way.not_separable_reason:
        yield f"table {change.table!r}: its own rows cannot be put back alone, for {change.way.not_separable_reason}"
    if change.method != "restore" or not change.way.foreign_commits:
        return
    commits = ", ".join(change.way.foreign_commits[:10]) + (" …" if len(change.way.foreign_commits) > 10 else "")
    retract = "" if change.way.not_separable_reason else " --retract (put back this pipeline's rows only),"
    yield (
        f"table {change.table!r}: others have committed since: {commits}. Choose --discard (their commits are lost),"
        f"{retract} or --keep (its rows stay, and what is read again is added to them)"
    )


def _removed(pipeline: PipelineContext, target: Entry, base: Entry, choices: Mapping[str, How]) -> Iterator[str]:
    """Yield the tables that were published to since, and that the code no longer has."""
    assert base.manifest is not None
    for name in base.manifest.tables:
        if choices.get(name) == "leave":
            continue
        if name not in pipeline.graph.tables and _has_pending_since(pipeline, target, base, name):
            state = name.startswith(STATE)
            subject = f"state {name.removeprefix(STATE)}" if state else f"sink {name!r}"
            yield f"{subject} is not in the code any more, but has been published since: put it back first" + (
                "" if state else f", or choose --leave {name} (its rows stay as they are)"
            )


def _has_pending_since(pipeline: PipelineContext, target: Entry, base: Entry, table: str) -> bool:
    """Return whether an entry after the target makes a commit on the table."""
    assert base.manifest is not None
    last = rules.after_publish([base.manifest], table)
    return last is not None and last > target.id


def _refuse_unknown_choices(pipeline: PipelineContext, base: Entry, choices: Mapping[str, How]) -> None:
    assert base.manifest is not None
    names = sorted(pipeline.graph.sinks)
    removed = [name for name in base.manifest.tables if not name.startswith((STATE, QUARANTINE))]
    for name, how in choices.items():
        if how == "leave" and name in removed:
            continue
        if name not in names or how not in CHOICES:
            raise Invalid(
                f"there is nothing to choose for {name!r}"
                if name not in names
                else f"{how!r} is no choice for {name!r}",
                expected=f"{' or '.join(CHOICES)} for one of {', '.join(names)}",
                help="states and quarantine always go back",
                reason="BAD_CHOICE",
            )
