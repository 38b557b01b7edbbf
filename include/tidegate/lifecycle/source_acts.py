"""Move a source's position to another name, drop it, or accept it in another system, by an entry of the log.

Nothing is read and no record is changed. The next plan takes up the entry (protocol/moved_sources.py); until then, a
rollback to the last checkpoint undoes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidegate.checkpoint import suspension
from tidegate.checkpoint.compatibility import planned_ranges
from tidegate.checkpoint.planning import empty_range
from tidegate.connectors.source import ReadOnlyBlobs, SourceContext
from tidegate.errors import Invalid
from tidegate.lifecycle import control
from tidegate.protocol import rules
from tidegate.protocol.moved_sources import source_changes
from tidegate.protocol.view import Entry, View
from tidegate.records.names import check_name, check_run
from tidegate.records.records import Control, Json, Range, SourceChange

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["accept_source", "drop_source", "move_source"]


def move_source(pipeline: PipelineContext, name: str, to: str, by: str, reason: str = "") -> int:
    """Move the position of source `name` to source `to` of the code. Return the id of the entry."""
    change = SourceChange(name=check_name("source", name), to=check_name("source", to))
    return _create_entry(pipeline, Control(action="move source", by=by, reason=reason, source=change))


def accept_source(pipeline: PipelineContext, name: str, by: str, reason: str = "", *, unproven: bool = False) -> int:
    """Let source `name` continue on its present system, if the last input that was read exists there. Return the id of
    the entry. unproven: even if it does not."""
    if unproven:
        reason = "; ".join(filter(None, (reason, "the last input that was read was not looked for")))
    change = SourceChange(name=check_name("source", name), to=name)
    action = Control(action="accept source", by=by, reason=reason, source=change)
    return _create_entry(pipeline, action, unproven=unproven)


def drop_source(pipeline: PipelineContext, name: str, by: str, reason: str = "") -> int:
    """Drop the position of a source that the code no longer has. Return the id of the entry."""
    change = SourceChange(name=check_name("source", name), to=None)
    return _create_entry(pipeline, Control(action="drop source", by=by, reason=reason, source=change))


def _create_entry(pipeline: PipelineContext, action: Control, *, unproven: bool = False) -> int:
    """Create the entry right after the log on which all reasons against it were checked."""
    change = action.source
    assert change is not None
    check_run(action.by)
    while True:
        view = pipeline.ledger.view()
        declared = _positions(pipeline, view, change)
        if action.action == "accept source":
            position = _accepted(pipeline, change.name, declared, unproven=unproven)
            action = msgspec.structs.replace(action, source=msgspec.structs.replace(change, position=position))
        else:
            _refuse(pipeline, change, declared)
        if control.create_entry_after(pipeline.ledger, view, action):
            return view.last_id + 1


def _positions(pipeline: PipelineContext, view: View, change: SourceChange) -> dict[str, Range]:
    """Return how far each source was read. Raise Invalid if no source may be changed now, or this one is unknown."""
    suspension.refuse_after_final_cancel(pipeline.ledger, view)
    if open_ids := tuple(entry.id for entry in view.still_open()):
        raise suspension.in_progress(open_ids, "sources are moved, dropped and accepted between checkpoints")
    base = rules.plan_base(view)
    if base is not None and base.plan.by_interval:
        raise Invalid(
            f"pipeline {pipeline.graph.name!r} reads by data interval: its sources have no positions",
            expected="a pipeline with a position for each source",
            help="nothing to do: change the code",
            reason="NO_POSITION",
        )
    declared = _began(pipeline, view, base, change) | planned_ranges(base, source_changes(view, base))
    if base is None and not declared:
        raise Invalid(
            f"pipeline {pipeline.graph.name!r} has read nothing yet",
            expected="a pipeline with a position for each source",
            help='nothing to do: change the code; a source that begins "from now on" begins again under another name',
            reason="NO_POSITION",
        )
    if base is not None and change.name not in declared:
        raise Invalid(
            f"checkpoint {base.id} has no position of a source {change.name!r}",
            expected=f"one of {', '.join(sorted(declared))}",
            help="correct the name; `tidegate show` has the sources of a checkpoint",
            reason="NO_SUCH_SOURCE",
        )
    return declared


def _began(pipeline: PipelineContext, view: View, base: Entry | None, change: SourceChange) -> dict[str, Range]:
    """Return the position of a source to be accepted that no checkpoint has read yet: its beginning, if that was
    decided."""
    sourcing = pipeline.graph.sources.get(change.name)
    if sourcing is None or change.name != change.to:
        return {}
    beginning = pipeline.beginning(view, base, change.name)
    if beginning is None:
        return {}
    return {change.name: empty_range(sourcing.source.kind, beginning)}


def _accepted(pipeline: PipelineContext, name: str, declared: dict[str, Range], *, unproven: bool) -> Json:
    """Return the position of a source on its present system."""
    sourcing, before = pipeline.graph.sources.get(name), declared[name]
    problem = ""
    if sourcing is None or sourcing.source.kind != before.kind:
        problem = f"pipeline {pipeline.graph.name!r} has no source {name!r} of kind {before.kind!r} any more"
    elif before.end is None:
        problem = f"source {name!r} of pipeline {pipeline.graph.name!r} has not read anything yet"
    if sourcing is None or before.end is None or problem:
        raise Invalid(
            problem,
            expected="a source of the code that has a position",
            help="nothing to accept: `tidegate check` shows why the next checkpoint would be refused",
            reason="NOTHING_TO_ACCEPT",
        )
    context = SourceContext(pipeline.graph.name, name, pipeline.place, ReadOnlyBlobs(pipeline.ledger))
    return sourcing.source.accept(before.end, context, unproven=unproven)


def _refuse(pipeline: PipelineContext, change: SourceChange, declared: dict[str, Range]) -> None:
    if change.name in pipeline.graph.sources:
        raise Invalid(
            f"pipeline {pipeline.graph.name!r} still has source {change.name!r}: it would read everything again",
            expected=f"code without source {change.name!r}",
            help="change the code first, then repeat this",
            reason="SOURCE_STILL_THERE",
        )
    if change.to is not None:
        _refuse_target(pipeline, change.name, change.to, declared)


def _refuse_target(pipeline: PipelineContext, name: str, to: str, declared: dict[str, Range]) -> None:
    """Raise Invalid if source `to` cannot take over the position of source `name`."""
    sourcing = pipeline.graph.sources.get(to)
    if sourcing is None or to in declared:
        if sourcing is None:
            what, reason = f"pipeline {pipeline.graph.name!r} has no source {to!r}", "NO_SUCH_SOURCE"
        else:
            what, reason = f"source {to!r} already has a position", "SOURCE_HAS_POSITION"
        free = sorted(source for source in pipeline.graph.sources if source not in declared)
        raise Invalid(
            what,
            expected=f"a source of the code that was never read: {', '.join(free) or 'the code has none'}",
            help="declare the source in the code first, under a new name",
            reason=reason,
        )
    before = declared[name]
    if sourcing.source.kind != before.kind:
        raise Invalid(
            f"source {name!r} was of kind {before.kind!r}, and {to!r} is of kind {sourcing.source.kind!r}",
            expected=f"a source of kind {before.kind!r}: the position means nothing to another kind",
            help=f"drop the old one instead: tidegate source drop MODULE:PIPELINE {name}; {to!r} then begins at its "
            "beginning",
            reason="SOURCE_REPLACED",
        )
    context = SourceContext(pipeline.graph.name, to, pipeline.place, ReadOnlyBlobs(pipeline.ledger))
    sourcing.source.plan(before.end, context)  # raises the error that the next checkpoint would raise
