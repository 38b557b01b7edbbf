"""Opens a pipeline's coordinator, with the settings as they are in this process now."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.config import Settings, load_settings
from tidegate.errors import Invalid
from tidegate.records.airflow_login import is_airflow_login

if TYPE_CHECKING:
    from tidegate.connectors.sink import Sink
    from tidegate.connectors.source import Source
    from tidegate.coordinator import Coordinator
    from tidegate.pipeline import Pipeline
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["airflow_logins", "open_coordinator", "refuse_interval_pipeline"]


def open_coordinator(pipeline: Pipeline, project: str) -> tuple[Coordinator, Settings]:
    """Return the coordinator for a pipeline of this project folder, wherever this process runs."""
    from tidegate.coordinator import Coordinator
    from tidegate.ledger.ledger import open_ledger

    settings = load_settings(code=pipeline.settings, start=Path(project))
    place = settings.place()
    ledger = open_ledger(settings.root, pipeline.name, settings.storage_options)
    return Coordinator(pipeline.graph(place, settings.mode), ledger, settings, place), settings


def airflow_logins(settings: Settings, parts: Iterable[Source | Sink]) -> list[str]:
    """Return the names of the connections of Airflow that the settings and these sources and sinks name."""
    names: set[str] = set()
    for value in [settings.storage, *(value for part in parts for value in vars(part).values())]:
        if is_airflow_login(value):
            names.add(value)
    return sorted(names)


def refuse_interval_pipeline(graph: Graph) -> None:
    """Refuse interval = "event" for a pipeline that reads by interval."""
    if graph.by_interval:
        raise Invalid(
            f'pipeline {graph.name!r} reads by data interval, and interval = "event" has none',
            expected="a duration, such as interval = '1 day'",
            help="set interval, or let its sources read whatever is new",
            reason="BY_INTERVAL",
        )
