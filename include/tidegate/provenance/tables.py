"""The tables that rows are asked about, as of checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate import offline
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.errors import Rejected
from tidegate.ledger.refusals import no_such_sink, without_versions

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.delta import Snapshot

__all__ = ["resolve_checkpoint", "table_as_of"]


def resolve_checkpoint(live: PipelineContext, sink: str, id: int | None, help: str) -> int:
    """Return the checkpoint as of which to look. None: the last published. Raise if the sink has no table with
    versions."""
    graph = live.graph
    published = offline.published_as_of(live.ledger, live.place, id, graph)
    table = published.tables.get(sink)
    if table is None or sink not in graph.sinks:
        raise no_such_sink(graph.name, sink, published.id, published.tables, help=help)
    if not table.is_delta or not isinstance(graph.sinks[sink].sink, DeltaSink):
        raise without_versions(sink, table)
    return published.id


def table_as_of(live: PipelineContext, sink: str, id: int) -> Snapshot | None:
    """Return the sink's table as of a checkpoint, or None if there is none."""
    try:
        published = offline.published_as_of(live.ledger, live.place, id, live.graph)
    except Rejected:
        return None
    table = published.tables.get(sink)
    if table is not None:
        return offline.open_as_of(table, live.place.options)
    return None
