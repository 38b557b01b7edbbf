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
    """What to schedule on: `build_dag(other, schedule=[asset("orders", "order_events")])`.

    Its name and URI do not change when the table moves.
    """
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    place = f"{check_name('pipeline', name)}/{check_name('sink', sink)}"
    return Asset(name=place, uri=f"tidegate://{place}", group="tidegate")


def event_extra(coordinator: Coordinator, id: int, sink: str, published: Published | None) -> dict[str, object]:
    """What an event says: the checkpoint, how many rows it brought, and where the table stands since."""
    entry = coordinator.ledger.entry(id)
    rows = (
        [acked.ack.stats.rows[sink] for acked in entry.acks.values() if sink in acked.ack.stats.rows] if entry else []
    )
    extra: dict[str, object] = {"checkpoint": id, "rows": sum(rows)}
    table = published.tables.get(sink) if published else None
    if table is not None:
        extra |= {"version": table.version, "table": table.uri}
    return extra
