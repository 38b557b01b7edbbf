"""Move a source's position to another name, drop it, or accept it in another system: an entry of the log, as suspending
is.

Nothing is read and no record is changed. The next plan takes the entry up (protocol/moved_sources.py); until it does,
a rollback to the last checkpoint takes it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidegate.checkpoint import control
from tidegate.checkpoint.compatibility import planned_ranges
from tidegate.checkpoint.planning import empty_range_at
from tidegate.connectors.source import ReadOnlyBlobs, SourceContext
from tidegate.errors import Invalid
from tidegate.protocol import rules
from tidegate.protocol.moved_sources import source_changes
from tidegate.protocol.view import Entry, View
from tidegate.records.names import check_name, check_run
from tidegate.records.records import Control, Json, Range, SourceChange

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["accept_source", "drop_source", "move_source"]


def move_source(pipeline: PipelineContext, name: str, to: str, by: str, reason: str = "") -> int:
    """Give the position of source `name` to source `to` of the code. Return the id of the entry."""
    change = SourceChange(name=check_name("source", name), to=check_name("source", to))
    return _create_entry(pipeline, Control(action="move source", by=by, reason=reason, source=change))


def accept_source(pipeline: PipelineContext, name: str, by: str, reason: str = "", *, unproven: bool = False) -> int:
    """Let source `name` continue in the system that it leads to now, if what was read last is there. Return the id of
    the entry. unproven: also if it is not."""
    if unproven:
        reason = "; ".join(filter(None, (reason, "what was read last was not looked for")))
    change = SourceChange(name=check_name("source", name), to=name)
    act = Control(action="accept source", by=by, reason=reason, source=change)
    return _create_entry(pipeline, act, unproven=unproven)


def drop_source(pipeline: PipelineContext, name: str, by: str, reason: str = "") -> int:
    """Let go of the position of a source that the code no longer has. Return the id of the entry."""
    change = SourceChange(name=check_name("source", name), to=None)
    return _create_entry(pipeline, Control(action="drop source", by=by, reason=reason, source=change))


def _create_entry(pipeline: PipelineContext, act: Control, *, unproven: bool = False) -> int:
    """Create the entry right after the log on which all reasons against it were checked."""
    change = act.source
    assert change is not None
    check_run(act.by)
    while True:
        view = pipeline.ledger.view()
        declared = _positions(pipeline, view, change)
        if act.action == "accept source":
            position = _accepted(pipeline, change.name, declared, unproven=unproven)
            act = msgspec.structs.replace(act, source=msgspec.structs.replace(change, position=position))
        else:
            _refuse(pipeline, change, declared)
        if control.create_entry_after(pipeline.ledger, view, act):
            return view.last_id + 1


def _positions(pipeline: PipelineContext, view: View, change: SourceChange) -> dict[str, Range]:
    """Return how far each source was read. Raise Invalid if nothing may be changed now, or the source is not known."""
    control.refuse_after_final_cancel(pipeline.ledger, view)
    if open_ids := tuple(entry.id for entry in view.still_open()):
        raise control.in_progress(open_ids, "sources are moved, dropped and accepted between checkpoints")
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
            help="nothing to do: change the code; one that begins with what is new begins anew under another name",
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
    """Return where a source stands that is to be accepted and that no checkpoint has read yet: at its beginning, if
    that was decided."""
    sourcing = pipeline.graph.sources.get(change.name) if change.name == change.to else None
    at = pipeline.beginning(view, base, change.name) if sourcing is not None else None
    return {} if sourcing is None or at is None else {change.name: empty_range_at(sourcing.source.kind, at)}


def _accepted(pipeline: PipelineContext, name: str, declared: dict[str, Range], *, unproven: bool) -> Json:
    """Return the position of a source in the system that it leads to now."""
    sourcing, before = pipeline.graph.sources.get(name), declared[name]
    if sourcing is None or sourcing.source.kind != before.kind or before.end is None:
        raise Invalid(
            f"source {name!r} of pipeline {pipeline.graph.name!r} has read nothing that could be there"
            if sourcing is not None and sourcing.source.kind == before.kind
            else f"pipeline {pipeline.graph.name!r} has no source {name!r} of kind {before.kind!r} any more",
            expected="a source of the code that has a position",
            help="nothing to accept: `tidegate check` tells what the next checkpoint would be refused for",
            reason="NOTHING_TO_ACCEPT",
        )
    context = SourceContext(pipeline.graph.name, name, pipeline.place, ReadOnlyBlobs(pipeline.ledger))
    return sourcing.source.accept(before.end, context, unproven=unproven)


def _refuse(pipeline: PipelineContext, change: SourceChange, declared: dict[str, Range]) -> None:
    if change.name in pipeline.graph.sources:
        raise Invalid(
            f"pipeline {pipeline.graph.name!r} still has source {change.name!r}: it would read everything once more",
            expected=f"code without source {change.name!r}",
            help="change the code first, then repeat this",
            reason="SOURCE_STILL_THERE",
        )
    if change.to is not None:
        _refuse_target(pipeline, change.name, change.to, declared)


def _refuse_target(pipeline: PipelineContext, name: str, to: str, declared: dict[str, Range]) -> None:
    """Raise Invalid if the source that the position is for cannot take it."""
    sourcing = pipeline.graph.sources.get(to)
    if sourcing is None or to in declared:
        free = sorted(other for other in pipeline.graph.sources if other not in declared)
        raise Invalid(
            f"source {to!r} has a position of its own"
            if sourcing is not None
            else f"pipeline {pipeline.graph.name!r} has no source {to!r}",
            expected=f"a source of the code that was never read: {', '.join(free) or 'there is none'}",
            help="declare the source in the code first, under a name of its own",
            reason="NO_SUCH_SOURCE" if sourcing is None else "SOURCE_HAS_POSITION",
        )
    before = declared[name]
    if sourcing.source.kind != before.kind:
        raise Invalid(
            f"source {name!r} was of kind {before.kind!r}, and {to!r} is of kind {sourcing.source.kind!r}",
            expected=f"a source of kind {before.kind!r}: the position means nothing to another kind",
            help=f"let the old one go instead: tidegate source drop MODULE:PIPELINE {name}; {to!r} then begins at its "
            "beginning",
            reason="SOURCE_REPLACED",
        )
    context = SourceContext(pipeline.graph.name, to, pipeline.place, ReadOnlyBlobs(pipeline.ledger))
    sourcing.source.plan(before.end, context)  # raises what the next checkpoint would be refused for
