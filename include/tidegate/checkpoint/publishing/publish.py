"""Publish: bring every table up to the completed checkpoints (docs/protocol.md, section 5).

The rule. Repeatedly: read the heads of the tables, *then* read the log, ask the protocol for each table's next entry,
and commit that at exactly the next version of the table. If another writer committed in between, the commit fails and
everything is read again. So any number of publishers may run, and any of them may stop at any point: each finds the
checkpoint's id on the table and continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tidegate import seams
from tidegate.checkpoint import troubles
from tidegate.checkpoint.compatibility import PUT_BACK, may_lose
from tidegate.checkpoint.located import relative_paths
from tidegate.checkpoint.publishing import intervals as publish_intervals
from tidegate.checkpoint.publishing.table_hints import read_table_hint, write_table_hint
from tidegate.checkpoint.publishing.table_mismatch import (
    MAX_LOST_RACES,
    TABLE_GONE,
    busy_table_error,
    mismatch_error,
    missing_table_error,
    was_published,
)
from tidegate.connectors.sink import STAGED_FILES_GONE, Head, Publication, SinkContext
from tidegate.delta import Location
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.gates.quarantine.table import QUARANTINE, QuarantineSink, quarantine_name
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.graph import SinkNode
from tidegate.protocol import rules
from tidegate.protocol.view import Entry, View
from tidegate.records.interval import Interval
from tidegate.records.records import Divert, Diverted, LatestHint, Published, PublishedTable
from tidegate.state.table import STATE

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = [
    "Report",
    "publish_all",
    "publish_or_wait",
    "publish_pending",
    "refuse_damaged",
    "refuse_unpublished",
    "unpublishable_advice",
]

T = TypeVar("T")

_MAX_CONCURRENT = 16
"""How many tables on object stores are accessed concurrently."""


@dataclass
class Report:
    """The result of one pass."""

    published: dict[tuple[int, str], PublishedTable] = field(default_factory=dict)
    stuck: dict[str, TidegateError] = field(default_factory=dict)
    unpublished: int = 0
    upto: int = 0
    """Every table that answered holds all entries completed up to this id."""
    settled: set[int] | None = None
    """In an interval pipeline: the completed entries that are settled on every table that answered."""
    blocked: dict[int, Invalid] = field(default_factory=dict)
    """In an interval pipeline: completed entries that some table refuses in its present state, and why. They hold back
    only their own interval."""

    uid: str | None = None
    """The pipeline's uid, if it is known."""
    needless: bool = False
    """True if no table was read, since only other writers can have changed any."""
    heads: dict[str, Head] = field(default_factory=dict)
    """The tables' heads as first read."""
    view: View | None = None
    """The log as last read, after all tables."""
    applied: dict[int, bool] = field(default_factory=dict)
    """Whether the settled diverts of the log applied, as last read."""

    def covers(self, entry: Entry) -> bool:
        """Return whether every table that answered holds the completed entry, or one that replaced it."""
        return entry.id <= self.upto and (self.settled is None or entry.id in self.settled)


def publish_pending(pipeline: PipelineContext, view: View | None = None, uid: str | None = None) -> Report:
    """Publish all pending entries, in one pass over all tables. A table that fails holds back only itself (P4).

    An error that will not resolve itself is raised once all other tables are done: it needs a person, and continuing
    would hide it.

    view, uid: the log and the pipeline's uid, if the caller has just read them.
    """
    report = publish_all(pipeline, view, uid)
    _raise_stuck(report)
    return report


def _raise_stuck(report: Report) -> None:
    for stuck in report.stuck.values():
        if not isinstance(stuck, Unavailable):
            raise stuck


def publish_all(pipeline: PipelineContext, view: View | None = None, uid: str | None = None) -> Report:
    """Do the same, and return the errors of tables in the report."""
    report = Report(uid=uid)
    view = view or pipeline.ledger.view()
    last = view.last_completed
    if last is None or last.manifest is None:
        return report
    report.upto = last.id
    tables = [name for name in last.manifest.tables if not _is_abandoned(view, name)]
    if last.plan.by_interval:
        report.settled = {entry.id for entry in view.entries if entry.completed}
        tables = sorted({name for entry in view.entries if entry.manifest for name in entry.manifest.tables})
    publish = _publish_intervals if last.plan.by_interval else _publish_tables
    for table, error in publish(pipeline, view, tables, report).items():
        if rules.pending_checkpoints(view, table):
            advice = unpublishable_advice(pipeline, view, table)
        else:
            advice = ""
        if advice not in error.help and error.reason != TABLE_GONE:
            error.help = "; ".join(filter(None, (error.help, advice)))
        report.stuck[table] = error
    _write_hints(pipeline, report)
    return report


def refuse_damaged(pipeline: PipelineContext, tables: Iterable[str]) -> None:
    """Raise an error if one of these tables contradicts the log, or may not be published to. Publishes nothing."""
    names = [name for name in tables if name in pipeline.graph.tables]
    report = Report()
    waiting = _waiting(pipeline, names, report)
    failed: dict[str, TidegateError] = {}
    while waiting and not failed:
        heads = _of_each(waiting, _Publishing.head, failed)
        view = _view_after(pipeline, heads)
        report.applied = pipeline.ledger.diverts_applied(view)
        answers = _of_each(waiting, partial(_Publishing.answer, heads=heads, view=view), failed)
        waiting = {name: publishing for name, publishing in waiting.items() if answers.get(name) is None}
    for error in failed.values():
        raise error


def _is_abandoned(view: View, table: str) -> bool:
    """Return whether a rollback has abandoned the table, and no later entry has rows for it. It is not even read."""
    return bool(rules.last_abandoning_rollback(view, table)) and not rules.pending_checkpoints(view, table)


def unpublishable_advice(pipeline: PipelineContext, view: View, table: str) -> str:
    """Return the advice for a sink's table that can never be published to, or "" for a table that is not a sink's."""
    last = view.last_completed
    if last is None or last.plan.by_interval or table.startswith((STATE, QUARANTINE)):
        return ""
    return (
        f"if it refuses single rows, `tidegate divert MODULE:PIPELINE {table} --where SQL --dry-run` shows how to send "
        f"these to quarantine; if it never takes any, `tidegate rollback MODULE:PIPELINE --to {last.id} --leave "
        f"{table}` drops its pending rows: they are never published there, everything else stays as it is, and the "
        "sink can be changed or removed"
    )


def publish_or_wait(
    pipeline: PipelineContext,
    interval: Interval | None = None,
    view: View | None = None,
    uid: str | None = None,
    *,
    diverts: Divert | None = None,
) -> Report:
    """Publish pending entries before planning on them.

    A stuck table blocks triggers only once max_unpublished checkpoints wait for it. But a rollback must first be on
    every table (R3), because the next plan may read one of them.

    interval: the interval to be planned. If a table refuses it, its error is raised.
    view, uid: the log and the pipeline's uid, if the caller has just read them.
    diverts: what the plan is to divert: its table, whose target refuses rows, is no reason to wait.
    """
    if diverts is None:
        report = publish_pending(pipeline, view, uid)
    else:
        report = publish_all(pipeline, view, uid)
        if not _waits_for_rollback(pipeline, diverts.table):
            for table in (diverts.table, quarantine_name(diverts.gate)):
                report.stuck.pop(table, None)
        _raise_stuck(report)
    for id, why in report.blocked.items():
        entry = pipeline.ledger.entry(id)
        if interval is not None and entry is not None and entry.interval == interval:
            raise why
    if not report.stuck:
        return report
    table, error = next(iter(report.stuck.items()))
    rollbacks = [entry.id for entry in pipeline.ledger.view().entries if entry.rollback is not None and entry.completed]
    if rollbacks and pipeline.ledger.published(rollbacks[-1]) is None:
        raise Rejected(
            f"rollback {rollbacks[-1]} is not on table {table!r} yet: {error}",
            expected="every table to be put back before anything new is read",
            help="repair that table; it is put back as soon as it answers",
            reason="ROLLBACK_UNPUBLISHED",
        ) from error
    if report.unpublished >= pipeline.settings.max_unpublished:
        raise Rejected(
            f"{report.unpublished} completed checkpoints are not published on {table!r} yet: {error}",
            expected=f"fewer than max_unpublished = {pipeline.settings.max_unpublished}",
            help="repair that table; nothing is lost, everything is published as soon as it answers",
            reason="TOO_MANY_UNPUBLISHED",
        ) from error
    return report


def _waits_for_rollback(pipeline: PipelineContext, table: str) -> bool:
    view = pipeline.ledger.view()
    pending = map(view.get, rules.pending_checkpoints(view, table))
    return any(entry is not None and entry.rollback is not None for entry in pending)


def refuse_unpublished(entry: Entry, report: Report) -> None:
    """Raise Unavailable if the completed checkpoint could not be published to one of its tables."""
    if entry.manifest is None:
        return
    for table in entry.manifest.tables:
        error = report.stuck.get(table)
        if error is not None and _waits_for(entry, {table: error}):
            raise Unavailable(
                f"checkpoint {entry.id} is completed, but sink {table!r} could not be published to: {error.what}",
                help="nothing is lost: each later run tries again",
                reason=error.reason,
                quoted=error.quoted,
            ) from error


def _publish_intervals(
    pipeline: PipelineContext, view: View, tables: list[str], report: Report
) -> dict[str, TidegateError]:
    """Publish an interval pipeline's entries to all tables. Return the errors of those that failed."""
    assert report.settled is not None
    failed: dict[str, TidegateError] = {}
    for table in tables:
        try:
            sinking = pipeline.graph.tables.get(table)
            if sinking is None:
                _refuse_orphan(pipeline, view, table)
                continue
            result = publish_intervals.publish_table(pipeline, sinking)
            report.published |= result.published
            report.settled &= result.settled
            for id, why in result.blocked.items():
                report.blocked.setdefault(id, why)
                run = next(entry.plan.run for entry in pipeline.ledger.view().entries if entry.id == id)
                troubles.record_error(pipeline.ledger, run, f"publishing to {table}", why)
        except TidegateError as error:
            failed[table] = error
    return failed


def _publish_tables(
    pipeline: PipelineContext, view: View, tables: list[str], report: Report
) -> dict[str, TidegateError]:
    """P1 to P3: publish to the tables until they hold everything. Return the errors of those that failed.

    Each pass reads the log once for all tables, after it has read all their heads.
    """
    failed: dict[str, TidegateError] = {}
    waiting = _waiting(pipeline, [table for table in tables if table in pipeline.graph.tables], report)
    delta_tables = _delta_tables(waiting)
    for table in tables:
        try:
            if table not in waiting:
                _refuse_orphan(pipeline, view, table)
        except TidegateError as error:
            failed[table] = error
    for _ in range(MAX_LOST_RACES):
        heads = _of_each(waiting, _Publishing.head, failed)
        if not heads:
            break
        report.heads = heads | report.heads
        view_now = _view_after(pipeline, heads)
        report.applied = pipeline.ledger.diverts_applied(view_now)
        report.view = view_now
        last_id = view_now.last_completed.id if view_now.last_completed else 0
        done = _of_each(waiting, partial(_Publishing.is_done, heads=heads, view=view_now), failed)
        failed |= _awaiting_diverts(waiting, failed)
        for table, is_done in done.items():
            if is_done:
                del waiting[table]
                report.upto = min(report.upto, last_id)
    if report.published:
        write_table_hint(pipeline.ledger, delta_tables)
    for table in waiting:
        failed[table] = busy_table_error(table, MAX_LOST_RACES)
    return {table: failed[table] for table in tables if table in failed}


def _waiting(pipeline: PipelineContext, tables: Sequence[str], report: Report) -> dict[str, _Publishing]:
    contexts = pipeline.contexts(tables, report.uid)
    waiting = {}
    for name in tables:
        waiting[name] = _Publishing(pipeline, pipeline.graph.tables[name], contexts[name], report)
    read_table_hint(pipeline.ledger, _delta_tables(waiting))
    return waiting


def _delta_tables(waiting: Mapping[str, _Publishing]) -> list[Location]:
    locations = [publishing.delta_table for publishing in waiting.values()]
    return [location for location in locations if location is not None]


def _view_after(pipeline: PipelineContext, heads: Mapping[str, Head]) -> View:
    """Return the log as of after the tables' heads were read: every entry on the tables is in it."""
    published = [head.last_entry for head in heads.values() if head.last_entry is not None]
    return pipeline.ledger.view(reach=max(published, default=None))


def _of_each(
    waiting: dict[str, _Publishing], step: Callable[[_Publishing], T], failed: dict[str, TidegateError]
) -> dict[str, T]:
    """Return the result of a step for each table. A table whose step fails is moved from `waiting` to `failed`.

    Tables on object stores are handled concurrently, because each step mostly waits for responses.
    """

    def outcome(publishing: _Publishing) -> T | TidegateError:
        try:
            return step(publishing)
        except TidegateError as error:
            return error

    remote = []
    for table, publishing in waiting.items():
        location = publishing.delta_table
        if location is not None and not location.is_local:
            remote.append(table)
    outcomes: dict[str, T | TidegateError] = {}
    if len(remote) > 1:
        with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
            outcomes = dict(zip(remote, pool.map(outcome, [waiting[table] for table in remote]), strict=True))
    outcomes |= {table: outcome(publishing) for table, publishing in waiting.items() if table not in outcomes}
    results = {}
    for table, result in outcomes.items():
        if isinstance(result, TidegateError):
            failed[table] = result
            del waiting[table]
        else:
            results[table] = result
    return results


@dataclass
class _Publishing:
    """One table on its way to the last completed entry."""

    pipeline: PipelineContext
    sinking: SinkNode
    context: SinkContext
    report: Report
    contradicted: list[int | None] = field(default_factory=list)
    """The last entry of the head, if it contradicted the log when both were last read."""
    awaited: rules.AwaitDivert | None = None
    """The divert of another table that it waits for."""

    @property
    def delta_table(self) -> Location | None:
        """The table's location, if it is a Delta table."""
        return self.sinking.sink.delta_table(self.context)

    def head(self) -> Head:
        """Read the table's head."""
        return self.sinking.sink.head(self.context)

    def answer(self, heads: Mapping[str, Head], view: View) -> rules.Publishing | None:
        """Return the next step. None if head and log have to be read again. Raise an error if they contradict each
        other."""
        head = heads[self.sinking.name]
        answer = rules.on_publish(view, self.sinking.name, head.last_entry, self.report.applied, head.begun)
        if not isinstance(answer, rules.Damaged):
            return answer
        # Another process may have published, and advanced the log's hint, since the head was read.
        if head.last_entry in self.contradicted:
            raise mismatch_error(self.pipeline, view, self.sinking, head, answer.why)
        self.contradicted = [head.last_entry]
        return None

    def is_done(self, heads: Mapping[str, Head], view: View) -> bool:
        """Publish the next entry, by a view of the log that is newer than the head. Return whether it was the last
        one."""
        head, answer = heads[self.sinking.name], self.answer(heads, view)
        if answer is None:
            return False
        self.awaited = answer if isinstance(answer, rules.AwaitDivert) else None
        if isinstance(answer, rules.SettleDivert):
            self._settle(answer)
            return False
        if isinstance(answer, rules.AwaitDivert | rules.Damaged):
            return False
        if isinstance(answer, rules.NothingToPublish):
            return True
        entry = view.get(answer.id)
        assert entry is not None
        sink = self.sinking.sink
        try:
            publication = _publication(self.pipeline, entry, self.sinking.name, answer)
            act = sink.publish if publication.restore is None else sink.restore
            published = act(publication, head, self.context)
        except TidegateError as error:
            # Another process may have published it since the head was read, and retention may have removed the staged
            # files.
            head_now = self.head()
            if head_now.last_entry == head.last_entry:
                # If the table was deleted or replaced, the files staged in it are deleted too.
                missing = missing_table_error(self.pipeline, view, self.sinking, head_now)
                if missing is not None:
                    if self.head().last_entry != head.last_entry:
                        return False  # published between the look at the head and that at the record of it
                    raise missing from error
                if error.reason == STAGED_FILES_GONE and was_published(self.pipeline, entry, self.sinking.name):
                    why = f"checkpoint {entry.id} was published there, and the table holds {head_now.last_entry}"
                    raise mismatch_error(self.pipeline, view, self.sinking, head_now, why) from error
                raise
            return False
        if published is None:
            return False
        self.report.published[answer.id, self.sinking.name] = published
        next_step = rules.on_publish(view, self.sinking.name, answer.id, self.report.applied)
        return isinstance(next_step, rules.NothingToPublish)

    def _settle(self, answer: rules.SettleDivert) -> None:
        self.pipeline.ledger.sync_decision(answer.id)
        self.pipeline.ledger.create_diverted(Diverted(**stamp(seams.new_id()), id=answer.id, applied=answer.applied))


def _awaiting_diverts(waiting: dict[str, _Publishing], failed: Mapping[str, TidegateError]) -> dict[str, TidegateError]:
    """Return the errors of tables that wait for a divert of a table that has failed, and remove them."""
    errors: dict[str, TidegateError] = {}
    for name, publishing in list(waiting.items()):
        awaited = publishing.awaited
        if awaited is None or awaited.table not in failed:
            continue
        del waiting[name]
        errors[name] = Unavailable(
            f"the rows that checkpoint {awaited.id} diverts from table {awaited.table!r} wait until that table shows "
            "whether it has taken them",
            help=f"nothing is lost: it is published as soon as table {awaited.table!r} is",
            reason="DIVERT_PENDING",
        )
    return errors


def _publication(pipeline: PipelineContext, entry: Entry, table: str, answer: rules.Publish) -> Publication:
    """Return the commit that `entry` makes on one table, from records that survive a power loss."""
    pipeline.ledger.sync_decision(entry.id)
    assert entry.manifest is not None
    assert entry.decision is not None
    part = entry.manifest.tables[table]
    committables = list(map(pipeline.ledger.unpack, part.committables))
    if part.diverted is not None:
        diverted = list(map(pipeline.ledger.unpack, part.diverted.committables))
        sink = pipeline.graph.tables[table].sink
        if not answer.diverted:  # of a quarantine only its columns remain: the commit may have to create it
            if isinstance(sink, QuarantineSink):
                diverted = [sink.without_rows(each) for each in diverted]
            else:
                diverted = []
        committables = diverted + committables
    return Publication(
        id=entry.id,
        generation=entry.plan.generation,
        attempt=entry.decision.attempt,
        previous=answer.after,
        committables=tuple(committables),
        restore=part.restore,
        diverts=part.diverted is not None and part.diverted.table == table and answer.diverted,
        target=entry.rollback.target if entry.rollback is not None else 0,
    )


def _write_hints(pipeline: PipelineContext, report: Report) -> None:
    """Write the hints for readers: published.json per checkpoint, then latest.json. No decision depends on them."""
    view = report.view or pipeline.ledger.view()
    settled: int | None = None
    last_hint: Published | None = None
    below_blocked = True
    for entry in view.entries:
        if entry.id in report.blocked:
            below_blocked = False  # latest.json must not move above it, but later entries can still be shown
            continue
        if entry.open or (entry.completed and not report.covers(entry)) or entry.id > report.upto:
            break
        if not entry.completed:
            continue
        if entry.id == view.settled and not any(map(_changes_no_table, view.entries)):
            settled = entry.id  # its hint exists, and no later hint copies from it
            continue
        existing = None
        if not _is_published_in_pass(entry, report):
            existing = pipeline.ledger.published(entry.id)
        if existing is None and view.rollback_of(entry.id) is not None:
            continue  # it will never be published
        if existing is None and _waits_for(entry, report.stuck):
            report.unpublished += 1
        elif not report.unpublished:
            try:
                if entry.plan.by_interval and existing is None:
                    publish_intervals.index_interval(pipeline, entry)
                last_hint = existing or _publish_hint(pipeline, view, entry, last_hint, report)
            except Unavailable:
                break  # only readers use the hint
            if below_blocked:
                settled = entry.id
    if settled is not None and settled > view.settled:
        pipeline.ledger.hint(LatestHint(**stamp(seams.new_id()), id=settled))


def _publish_hint(
    pipeline: PipelineContext, view: View, entry: Entry, before: Published | None, report: Report
) -> Published:
    """Record the state of all tables at this checkpoint: from this pass, from the tables' history, or as before.

    A table whose history no longer shows it is omitted: no hint is better than a wrong one.
    """
    assert entry.manifest is not None
    tables = {}
    for name, part in entry.manifest.tables.items():
        table = report.published.get((entry.id, name))
        sinking = pipeline.graph.tables.get(name)
        if rules.last_abandoning_rollback(view, name) >= entry.id:
            continue  # nothing was published there
        if table is None and rules.has_unpublished(part) and sinking is not None:
            table = sinking.sink.locate(entry.id, pipeline.context(name))
        if not rules.has_unpublished(part):
            table = part.through or (before.tables.get(name) if before is not None else None)
        if table is not None:
            tables[name] = table
    home, paths = pipeline.ledger.home, relative_paths(pipeline.graph)
    published = Published(**stamp(seams.new_id()), id=entry.id, tables=tables, home=home, paths=paths)
    pipeline.ledger.create_published(published)
    return published


def _changes_no_table(entry: Entry) -> bool:
    """Return whether the entry leaves a table unchanged, so that its hint copies the table from the hint before."""
    parts = entry.manifest.tables.values() if entry.manifest is not None else ()
    return any(not rules.has_unpublished(part) and part.through is None for part in parts)


def _is_published_in_pass(entry: Entry, report: Report) -> bool:
    """Return whether this pass has published the entry to each table that it has rows for."""
    assert entry.manifest is not None
    pending = []
    for name, part in entry.manifest.tables.items():
        if rules.has_unpublished(part):
            pending.append(name)
    return bool(pending) and all((entry.id, name) in report.published for name in pending)


def _waits_for(entry: Entry, stuck: dict[str, TidegateError]) -> bool:
    assert entry.manifest is not None
    return any(rules.has_unpublished(entry.manifest.tables[table]) for table in stuck if table in entry.manifest.tables)


def _refuse_orphan(pipeline: PipelineContext, view: View, table: str) -> None:
    """Refuse if a sink was removed from the code while rows for its table are pending, unless these may be lost."""
    if may_lose(pipeline.settings.record()):
        return
    for id in rules.pending_checkpoints(view, table):
        if pipeline.ledger.published(id) is None:
            raise Invalid(
                f"sink {table!r} is not in the pipeline any more, but has pending rows of checkpoint {id}",
                expected=f"sink {table!r}, until everything that is completed is published on its table",
                help=PUT_BACK,
                reason="SINK_REMOVED",
            )
