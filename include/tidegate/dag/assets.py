"""One asset per sink: an event tells other DAGs that a checkpoint is on the sink's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Asset

from tidegate.records.names import check_name
from tidegate.records.records import Published

if TYPE_CHECKING:
    from tidegate.coordinator import Coordinator
    from tidegate.pipeline import Pipeline

__all__ = ["asset", "event_extra"]


def asset(pipeline: Pipeline | str, sink: str) -> Asset:
    """Return the asset to schedule on: `build_dag(other, schedule=[asset("orders", "order_events")])`.

    Its name and URI do not change when the table moves.
    """
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    place = f"{check_name('pipeline', name)}/{check_name('sink', sink)}"
    return Asset(name=place, uri=f"tidegate://{place}", group="tidegate")


def event_extra(coordinator: Coordinator, id: int, sink: str, published: Published | None) -> dict[str, object]:
    """Return the content of an event: the checkpoint, the number of its rows, and the state of the table."""
    entry = coordinator.ledger.entry(id)
    acks = entry.acks.values() if entry is not None else ()
    rows = sum(acked.ack.stats.rows.get(sink, 0) for acked in acks)
    extra: dict[str, object] = {"checkpoint": id, "rows": rows}
    table = published.tables.get(sink) if published else None
    if table is not None:
        extra |= ({"version": table.version} if table.is_delta else {}) | {"table": table.uri}
    return extra
