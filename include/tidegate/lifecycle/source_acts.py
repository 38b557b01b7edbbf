"""Move a source's position to another name, or drop it: an entry of the log, as suspending is.

Nothing is read and no record is changed. The next plan takes the entry up (protocol/moved_sources.py); until it does,
a rollback to the last checkpoint takes it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.checkpoint import control
from tidegate.checkpoint.compatibility import planned_ranges
from tidegate.errors import Invalid
from tidegate.protocol import rules
from tidegate.protocol.moved_sources import source_changes
from tidegate.protocol.view import View
from tidegate.records.names import check_name, check_run
from tidegate.records.records import Control, Range, SourceChange
from tidegate.sources.base import ReadOnlyBlobs, SourceContext

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["drop_source", "move_source"]


def move_source(pipeline: PipelineContext, name: str, to: str, by: str, reason: str = "") -> int:
    """Give the position of source `name` to source `to` of the code. Return the id of the entry."""
    change = SourceChange(name=check_name("source", name), to=check_name("source", to))
    return _create_entry(pipeline, Control(action="move source", by=by, reason=reason, source=change))


def drop_source(pipeline: PipelineContext, name: str, by: str, reason: str = "") -> int:
    """Let go of the position of a source that the code no longer has. Return the id of the entry."""
    change = SourceChange(name=check_name("source", name), to=None)
    return _create_entry(pipeline, Control(action="drop source", by=by, reason=reason, source=change))


def _create_entry(pipeline: PipelineContext, act: Control) -> int:
    """Create the entry right after the log on which all reasons against it were checked."""
    assert act.source is not None
    check_run(act.by)
    while True:
        view = pipeline.ledger.view()
        _refuse(pipeline, view, act.source)
        if control.create_entry_after(pipeline.ledger, view, act):
            return view.last_id + 1


def _refuse(pipeline: PipelineContext, view: View, change: SourceChange) -> None:
    control.refuse_for_good(pipeline.ledger, view)
    if open_ids := tuple(entry.id for entry in view.still_open()):
        raise control.busy(open_ids, "sources are moved and dropped between checkpoints")
    base = rules.plan_base(view)
    if base is None or base.plan.by_interval:
        raise Invalid(
            f"pipeline {pipeline.graph.name!r} has read nothing yet"
            if base is None
            else f"pipeline {pipeline.graph.name!r} reads by data interval: its sources have no positions",
            expected="a pipeline with a position for each source",
            help="nothing to do: change the code",
            reason="NO_POSITION",
        )
    declared = planned_ranges(base, source_changes(view, base))
    if change.name not in declared:
        raise Invalid(
            f"checkpoint {base.id} has no position of a source {change.name!r}",
            expected=f"one of {', '.join(sorted(declared))}",
            help="correct the name; `tidegate show` has the sources of a checkpoint",
            reason="NO_SUCH_SOURCE",
        )
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
