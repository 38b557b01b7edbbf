"""Publish the checkpoints of an interval pipeline (docs/protocol.md, section 8).

The rule. For each table, again and again: read where the table stands, *then* read the log. Of each interval the
highest completed entry counts. If the table's history does not have its commit yet, commit it at exactly the next
version, in place of what the interval shows. A lower one is never published behind a higher one: whoever read the
table when the higher one was there, finds that in the log as well; whoever read it earlier, loses the version.

What an interval shows is told by records alone. While an entry is in the view, its manifest tells which files it
has put there, and the table's history since they were staged tells whether it has. Below the view, the index does
(`intervals/<key>/<id>.json`): it exists before the view begins above an entry, and is never deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint.publishing.table_mismatch import mismatch_error
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.graph import SinkNode
from tidegate.protocol import rules as protocol
from tidegate.protocol.view import Entry, View
from tidegate.records.interval import Interval
from tidegate.records.records import Filled, Json, PublishedTable
from tidegate.sinks.base import Disowned, Head, Publication, SinkContext

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["Pass", "disown", "index_interval", "publish_table", "refuse_rewritten"]

Published = dict[tuple[int, str], PublishedTable]

_TRIES = 10
"""As often somebody else may have committed meanwhile."""


@dataclass
class Pass:
    """What one pass over a table did."""

    published: Published = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    """The completed entries that are settled there: shown, or behind a later one of their interval."""
    blocked: dict[int, Invalid] = field(default_factory=dict)
    """Those whose interval cannot be replaced as the table is, and why. The other intervals' went on."""


def publish_table(pipeline: PipelineContext, sinking: SinkNode, tries: int) -> Pass:
    """Publish on one table until it shows all that is completed, but for intervals that it does not take as it is:
    these wait until somebody has done what their error says."""
    context = pipeline.context(sinking.name)
    done_here = Pass()
    contradicted: list[Head] = []
    while tries > 0:
        tries -= 1
        head = sinking.sink.head(context)
        view = pipeline.ledger.view(reach=head.last)  # after the head: what is on the table is in this view
        table = _Table(pipeline, sinking, context, head, view)
        answer = protocol.on_publish_interval(view, sinking.name, head.last, table.holds, done_here.blocked)
        if isinstance(answer, protocol.Nothing):
            done_here.settled = {entry.id for entry in view.entries if entry.completed} - done_here.blocked.keys()
            return done_here
        if isinstance(answer, protocol.Damaged):
            # Others may have published and moved the log's hint on since the head was read.
            if head in contradicted:
                raise mismatch_error(pipeline, view, sinking, head.last, answer.why)
            contradicted = [head]
            continue
        try:
            done = sinking.sink.publish(table.publication(answer), head, context)
        except TidegateError as error:
            # Others may have published meanwhile, and retention taken what this was made of.
            if sinking.sink.head(context).version != head.version:
                continue
            if not isinstance(error, Invalid):
                raise
            done_here.blocked[answer.id] = error
            tries += 1
            continue
        if done is not None:
            done_here.published[answer.id, sinking.name] = done
    raise _busy(sinking.name)


def disown(pipeline: PipelineContext, name: str, interval: Interval, *, take_out: bool, look: bool = False) -> Disowned:
    """Let go of what a table shows of an interval, which others have rewritten: see Sink.disown. The table first, then
    the log, as when something is published: a publication in between takes the version."""
    sinking = pipeline.graph.sinks.get(name)
    if sinking is None or not pipeline.graph.by_interval:
        found = f"has no sink {name!r}" if sinking is None else "does not read by data interval"
        raise Invalid(
            f"pipeline {pipeline.graph.name!r} {found}",
            expected=f"one of {', '.join(sorted(pipeline.graph.sinks))}, of a pipeline that reads by data interval",
            help="`tidegate explain` names the sink and the interval that wait, if any do",
            reason="NOTHING_TO_DISOWN",
        )
    context = pipeline.context(name)
    for _ in range(_TRIES):
        head = sinking.sink.head(context)
        table = _Table(pipeline, sinking, context, head, pipeline.ledger.view(reach=head.last))
        shown = table.shown_of(interval)
        done = sinking.sink.disown(interval, shown, head, context, take_out=take_out, look=look)
        if done is not None:
            return done
    raise _busy(name)


def _busy(name: str) -> Unavailable:
    return Unavailable(
        f"sink {name!r} lost too many races for its table's next version",
        help="another writer commits to the table without a pause; it is tried again at the next checkpoint",
        reason="BUSY_TABLE",
    )


class _Table:
    """A table as of one version, and the log as of a moment after that."""

    def __init__(
        self, pipeline: PipelineContext, sinking: SinkNode, context: SinkContext, head: Head, view: View
    ) -> None:
        self.pipeline = pipeline
        self.sinking = sinking
        self.context = context
        self.head = head
        self.view = view

    def holds(self, id: int) -> bool:
        """Whether the table's history has the commit of this entry."""
        return self.sinking.sink.holds(self._publication(self._entry(id), None), self.head, self.context)

    def publication(self, answer: protocol.Publish) -> Publication:
        """What is to be committed, from records that will still be there after a power loss."""
        entry = self._entry(answer.id)
        self.pipeline.ledger.settle_decision(entry.id)
        assert entry.interval is not None
        return self._publication(entry, self._replaced(entry.interval, answer.after))

    def shown_of(self, interval: Interval) -> tuple[int, Json] | None:
        """The entry of an interval that the table shows, and the trace of its rows there."""
        ids = [entry.id for entry in self.view.entries if entry.completed and entry.interval == interval]
        shown = (id for id in reversed(ids) if id <= self.view.settled or self.holds(id))
        return self._replaced(interval, next(shown, None)) if self.view.entries else None

    def _replaced(self, interval: Interval, shown: int | None) -> tuple[int, Json] | None:
        """The same, if that entry is known; None: it is none of this view."""
        name = self.sinking.name
        if shown is not None:
            return shown, self.sinking.sink.trace(_committables(self.pipeline, self._entry(shown), name))
        # Behind the view: what has left the view is in the index.
        filled = self.pipeline.ledger.filled(interval, before=self.view.entries[0].id)
        return (filled.id, filled.traces[name]) if filled is not None and name in filled.traces else None

    def _publication(self, entry: Entry, replaces: tuple[int, Json] | None) -> Publication:
        assert entry.decision is not None
        return Publication(
            id=entry.id,
            generation=entry.plan.generation,
            attempt=entry.decision.attempt,
            after=self.head.last,
            committables=_committables(self.pipeline, entry, self.sinking.name),
            interval=entry.interval,
            replaces=replaces,
        )

    def _entry(self, id: int) -> Entry:
        entry = self.view.get(id)
        assert entry is not None
        return entry


def refuse_rewritten(pipeline: PipelineContext, view: View, interval: Interval) -> None:
    """Before planning: can what the interval shows be replaced? Asked only where all that is completed is published;
    elsewhere it shows when this checkpoint is published."""
    done = [entry for entry in view.entries if entry.completed and entry.interval == interval]
    if done and pipeline.ledger.published(done[-1].id) is None:
        return
    filled = pipeline.ledger.filled(interval, before=view.entries[0].id) if view.entries and not done else None
    for name, sinking in pipeline.graph.sinks.items():
        replaces: tuple[int, Json] | None = None
        if done and done[-1].manifest is not None and name in done[-1].manifest.tables:
            replaces = done[-1].id, sinking.sink.trace(_committables(pipeline, done[-1], name))
        elif filled is not None and name in filled.traces:
            replaces = filled.id, filled.traces[name]
        sinking.sink.check_interval(interval, replaces, pipeline.context(name))


def index_interval(pipeline: PipelineContext, entry: Entry) -> None:
    """Note where the interval was completed, before any hint lets readers begin above the entry."""
    assert entry.manifest is not None
    assert entry.interval is not None
    sinks = pipeline.graph.sinks
    traces = {
        name: sinks[name].sink.trace(_committables(pipeline, entry, name))
        for name in entry.manifest.tables
        if name in sinks
    }
    filled = Filled(**stamp(seams.new_id()), id=entry.id, interval=entry.interval.record, traces=traces)
    pipeline.ledger.index_interval(filled)


def _committables(pipeline: PipelineContext, entry: Entry, table: str) -> tuple[Json, ...]:
    assert entry.manifest is not None
    return tuple(map(pipeline.ledger.unpack, entry.manifest.tables[table].committables))
