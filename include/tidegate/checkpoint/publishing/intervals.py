"""Publish the checkpoints of an interval pipeline (docs/protocol.md, section 8).

The rule. For each table, repeatedly: read the head of the table, *then* read the log. For each interval the highest
completed entry counts. If the table's history does not have its commit yet, commit it at exactly the next version,
replacing the interval's present rows. A lower entry is never published after a higher one: a publisher that read
the table with the higher one finds that in the log as well; one that read it earlier loses the race for the version.

The rows of an interval follow from records alone. While an entry is in the view, its manifest names its files, and the
table's history since they were staged shows whether they were committed. Below the view, the index does
(`intervals/<key>/<id>.json`): it exists before the view begins above an entry, and is never deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint.publishing.table_mismatch import MAX_LOST_RACES, busy_table_error, mismatch_error
from tidegate.connectors.sink import Disowned, Head, Publication, SinkContext
from tidegate.errors import Invalid, TidegateError
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.graph import SinkNode
from tidegate.protocol import rules
from tidegate.protocol.view import Entry, View
from tidegate.records.interval import Interval
from tidegate.records.records import Filled, Json, PublishedTable

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["Pass", "disown", "index_interval", "publish_table", "refuse_rewritten"]

Published = dict[tuple[int, str], PublishedTable]

_TRIES = 10
"""The number of retries after commits of other writers."""


@dataclass
class Pass:
    """The result of one pass over a table."""

    published: Published = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    """The completed entries that are settled there: visible, or replaced by a later one of their interval."""
    blocked: dict[int, Invalid] = field(default_factory=dict)
    """Entries whose interval the table refuses in its present state, with the reason. Other intervals do not wait for
    them."""


def publish_table(pipeline: PipelineContext, sinking: SinkNode) -> Pass:
    """Publish to one table until it shows every completed entry.

    Intervals that the table refuses in its present state wait until a person has followed the error's advice.
    """
    context = pipeline.context(sinking.name)
    result = Pass()
    contradicted: list[Head] = []
    tries = MAX_LOST_RACES
    while tries > 0:
        tries -= 1
        head = sinking.sink.head(context)
        # After the head, so that every entry on the table is in this view.
        view = pipeline.ledger.view(reach=head.last_entry)
        table = _Table(pipeline, sinking, context, head, view)
        answer = rules.on_publish_interval(view, sinking.name, head.last_entry, table.holds, result.blocked)
        if isinstance(answer, rules.NothingToPublish):
            result.settled = {entry.id for entry in view.entries if entry.completed} - result.blocked.keys()
            return result
        if isinstance(answer, rules.Damaged):
            # Another process may have published, and advanced the log's hint, since the head was read.
            if head in contradicted:
                raise mismatch_error(pipeline, view, sinking, head, answer.why)
            contradicted = [head]
            continue
        try:
            published = sinking.sink.publish(table.publication(answer), head, context)
        except TidegateError as error:
            # Another process may have published since, and retention may have removed the staged files.
            if sinking.sink.head(context).version != head.version:
                continue
            if not isinstance(error, Invalid):
                raise
            result.blocked[answer.id] = error
            tries += 1
            continue
        if published is not None:
            result.published[answer.id, sinking.name] = published
    raise busy_table_error(sinking.name, MAX_LOST_RACES)


def disown(pipeline: PipelineContext, name: str, interval: Interval, *, take_out: bool, look: bool = False) -> Disowned:
    """Disown an interval's rows in a table, which another writer has rewritten: see Sink.disown.

    Reads the table first, then the log, as publishing does: a publication in between takes the version.
    """
    sinking = pipeline.graph.sinks.get(name)
    if sinking is None or not pipeline.graph.by_interval:
        if sinking is None:
            problem = f"has no sink {name!r}"
        else:
            problem = "does not read by data interval"
        raise Invalid(
            f"pipeline {pipeline.graph.name!r} {problem}",
            expected=f"one of {', '.join(sorted(pipeline.graph.sinks))}, of a pipeline that reads by data interval",
            help="`tidegate explain` names the sink and the interval that wait",
            reason="NOTHING_TO_DISOWN",
        )
    context = pipeline.context(name)
    for _ in range(_TRIES):
        head = sinking.sink.head(context)
        table = _Table(pipeline, sinking, context, head, pipeline.ledger.view(reach=head.last_entry))
        visible = table.visible_entry(interval)
        disowned = sinking.sink.disown(interval, visible, head, context, take_out=take_out, dry_run=look)
        if disowned is not None:
            return disowned
    raise busy_table_error(name, _TRIES)


class _Table:
    """A table as of one version, and the log as of a later moment."""

    def __init__(
        self, pipeline: PipelineContext, sinking: SinkNode, context: SinkContext, head: Head, view: View
    ) -> None:
        self.pipeline = pipeline
        self.sinking = sinking
        self.context = context
        self.head = head
        self.view = view

    def holds(self, id: int) -> bool:
        """Return whether the table's history has the commit of this entry."""
        return self.sinking.sink.has_publication(self._publication(self._entry(id), None), self.head, self.context)

    def publication(self, answer: rules.Publish) -> Publication:
        """Return the commit to make, from records that survive a power loss."""
        entry = self._entry(answer.id)
        self.pipeline.ledger.sync_decision(entry.id)
        assert entry.interval is not None
        return self._publication(entry, self._replaced(entry.interval, answer.after))

    def visible_entry(self, interval: Interval) -> tuple[int, Json] | None:
        """Return the entry of an interval that the table shows, and the trace of its rows there."""
        if not self.view.entries:
            return None
        ids = []
        for entry in self.view.entries:
            if entry.completed and entry.interval == interval:
                ids.append(entry.id)
        visible = next((id for id in reversed(ids) if id <= self.view.settled or self.holds(id)), None)
        return self._replaced(interval, visible)

    def _replaced(self, interval: Interval, visible: int | None) -> tuple[int, Json] | None:
        """Return the entry to be replaced, and its trace. visible: its id, if it is in the view."""
        name = self.sinking.name
        if visible is not None:
            return visible, self.sinking.sink.trace(_committables(self.pipeline, self._entry(visible), name))
        # Read after the view: an entry that has dropped out of the view is in the index.
        filled = self.pipeline.ledger.filled(interval, before=self.view.entries[0].id)
        if filled is None or name not in filled.traces:
            return None
        return filled.id, filled.traces[name]

    def _publication(self, entry: Entry, replaces: tuple[int, Json] | None) -> Publication:
        assert entry.decision is not None
        return Publication(
            id=entry.id,
            generation=entry.plan.generation,
            attempt=entry.decision.attempt,
            previous=self.head.last_entry,
            committables=_committables(self.pipeline, entry, self.sinking.name),
            interval=entry.interval,
            replaces=replaces,
        )

    def _entry(self, id: int) -> Entry:
        entry = self.view.get(id)
        assert entry is not None
        return entry


def refuse_rewritten(pipeline: PipelineContext, view: View, interval: Interval) -> None:
    """Before planning, raise Invalid if the rows of the interval cannot be replaced.

    Checked only where every completed entry is published; otherwise it shows when this checkpoint is published.
    """
    completed = []
    for entry in view.entries:
        if entry.completed and entry.interval == interval:
            completed.append(entry)
    last = completed[-1] if completed else None
    if last is not None and pipeline.ledger.published(last.id) is None:
        return
    filled = None
    if last is None and view.entries:
        filled = pipeline.ledger.filled(interval, before=view.entries[0].id)
    for name, sinking in pipeline.graph.sinks.items():
        replaces: tuple[int, Json] | None = None
        if last is not None and last.manifest is not None and name in last.manifest.tables:
            replaces = last.id, sinking.sink.trace(_committables(pipeline, last, name))
        elif filled is not None and name in filled.traces:
            replaces = filled.id, filled.traces[name]
        sinking.sink.check_interval(interval, replaces, pipeline.context(name))


def index_interval(pipeline: PipelineContext, entry: Entry) -> None:
    """Record which entry completed the interval, before any hint lets readers start above it."""
    assert entry.manifest is not None
    assert entry.interval is not None
    sinks = pipeline.graph.sinks
    traces = {}
    for name in entry.manifest.tables:
        if name in sinks:
            traces[name] = sinks[name].sink.trace(_committables(pipeline, entry, name))
    filled = Filled(**stamp(seams.new_id()), id=entry.id, interval=entry.interval.record, traces=traces)
    pipeline.ledger.index_interval(filled)


def _committables(pipeline: PipelineContext, entry: Entry, table: str) -> tuple[Json, ...]:
    assert entry.manifest is not None
    return tuple(map(pipeline.ledger.unpack, entry.manifest.tables[table].committables))
