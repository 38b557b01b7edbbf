"""The error for a table that contradicts the log: for the trigger, publishers and `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.checkpoint.located import located
from tidegate.errors import Corrupt, Invalid, TidegateError
from tidegate.protocol.view import Entry, View
from tidegate.sinks.transactional import TransactionalSink

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.pipeline.graph.graph import SinkNode

__all__ = ["mismatch_error"]


def mismatch_error(
    pipeline: PipelineContext, view: View, sinking: SinkNode, last: int | None, why: str
) -> TidegateError:
    """Return the error: damage, or a sink with a new path.

    If the table knows nothing of the pipeline, and is not the one that was published to before, then the code is wrong,
    and nothing is damaged.
    """
    target = sinking.sink.target(pipeline.place)
    published = (_published_uri(pipeline, entry, sinking.name) for entry in reversed(view.entries))
    before = next(filter(None, published), None)
    if last is None and before is not None and before != target and sinking.name in pipeline.graph.sinks:
        return Invalid(
            f"sink {sinking.name!r} has published to {before} so far; {target} knows nothing of that",
            expected=f"the table that it published to before: {before}",
            help="put its path back; if the table was moved, move all of it; for another table give the sink another "
            "name",
            reason="SINK_TABLE_CHANGED",
        )
    put_back = (
        f"; if only its mark was lost, `tidegate mark MODULE:PIPELINE --sink {sinking.name}` puts it back"
        if isinstance(sinking.sink, TransactionalSink)
        else ""
    )
    return Corrupt(
        f"the target of sink {sinking.name!r} and the log contradict each other: {why}",
        expected="the table as tidegate left it",
        help=(
            "the table was dropped, recreated, replaced or restored from elsewhere, or the ledger was: put back "
            f"whichever is wrong from a copy; `tidegate doctor` shows both{put_back}"
        ),
        reason="TABLE_DAMAGED",
    )


def _published_uri(pipeline: PipelineContext, entry: Entry, table: str) -> str | None:
    """Return the table's location as published for readers."""
    published = pipeline.ledger.published(entry.id) if entry.completed else None
    if published is None or table not in published.tables:
        return None
    return located(published, pipeline.ledger, pipeline.place).tables[table].uri
