"""What is told when a table and the log contradict each other: by the trigger, by a publisher, and by `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.checkpoint.located import located
from tidegate.errors import Corrupt, Invalid, TidegateError
from tidegate.protocol.view import Entry, View

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.pipeline.graph.graph import SinkNode

__all__ = ["mismatch_error"]


def mismatch_error(
    pipeline: PipelineContext, view: View, sinking: SinkNode, last: int | None, why: str
) -> TidegateError:
    """Damage; or, if the table knows nothing of the pipeline and is another one than readers were told of, a sink that
    was moved: that is the code's fault, and nothing is broken."""
    target = sinking.sink.target(pipeline.place)
    before = next((uri for entry in reversed(view.entries) if (uri := _told(pipeline, entry, sinking.name))), None)
    if last is None and before is not None and before != target and sinking.name in pipeline.graph.sinks:
        return Invalid(
            f"sink {sinking.name!r} has published to {before} so far; {target} knows nothing of that",
            expected=f"the table that it published to before: {before}",
            help="put its path back; if the table was moved, move all of it; for another table give the sink another "
            "name",
            reason="SINK_TABLE_CHANGED",
        )
    return Corrupt(
        f"the target of sink {sinking.name!r} and the log contradict each other: {why}",
        expected="the table as tidegate left it",
        help=(
            "the table was dropped, recreated, replaced or restored from elsewhere, or the ledger was: put back "
            "whichever is wrong from a copy; `tidegate doctor` shows both"
        ),
        reason="TABLE_DAMAGED",
    )


def _told(pipeline: PipelineContext, entry: Entry, table: str) -> str | None:
    """Where readers were told that the table lies."""
    told = pipeline.ledger.published(entry.id) if entry.completed else None
    if told is None or table not in told.tables:
        return None
    return located(told, pipeline.ledger, pipeline.place).tables[table].uri
