"""The assets of a pipeline: two for each sink, one with its name and one with its target's own address, and one for
each source. An event of an asset tells other DAGs that its table has changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Literal

from airflow.sdk import Asset

from tidegate.errors import TidegateError
from tidegate.pipeline import Pipeline
from tidegate.pipeline.graph.nodes import SinkNode, SourceNode
from tidegate.records.masking import has_login
from tidegate.records.names import check_name
from tidegate.records.place import Place

__all__ = ["AssetEvents", "asset", "asset_at", "inlets_of", "outlets_of", "shared_uri_of"]

AssetEvents = Literal["rows", "always"]
"""When a completed checkpoint sends a sink's events: if it has got rows, or in any case."""


def asset(pipeline: Pipeline | str, sink: str) -> Asset:
    """Return the asset to schedule on: `build_dag(other, schedule=[asset("orders", "order_events")])`.

    Its name and URI do not change when the table moves.
    """
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    place = f"{check_name('pipeline', name)}/{check_name('sink', sink)}"
    return Asset(name=place, uri=f"tidegate://{place}", group="tidegate")


def shared_uri_of(node: SourceNode | SinkNode, place: Place) -> str | None:
    """Return the address of a source's input or a sink's target in the form that Airflow gives it, or None."""
    with contextlib.suppress(TidegateError):  # a connection that is not set up here: the task that uses it says so
        uri = node.sink.shared_uri(place) if isinstance(node, SinkNode) else node.source.shared_uri(place)
        made = asset_at(uri) if uri is not None else None
        return made.uri if made is not None else None
    return None


def asset_at(uri: str) -> Asset | None:
    """Return the asset that others mean by this address alone. None: Airflow cannot have one there."""
    if "?" in uri or "#" in uri:  # Airflow cuts them off: it would be the asset of another place
        return None
    if has_login(uri):  # everybody sees the addresses of assets
        return None
    try:
        return Asset(uri=uri)
    except ValueError:
        return None


def outlets_of(pipeline: str, sinks: Mapping[str, SinkNode], place: Place) -> list[Asset]:
    """Return the assets of these sinks, each once: several sinks may write to one table."""
    return [asset(pipeline, name) for name in sinks] + _at(sinks.values(), place)


def inlets_of(sources: Iterable[SourceNode], place: Place) -> list[Asset]:
    """Return the assets of what these sources read, each once."""
    return _at(sources, place)


def _at(nodes: Iterable[SourceNode | SinkNode], place: Place) -> list[Asset]:
    uris = dict.fromkeys(shared_uri_of(node, place) for node in nodes)
    return [found for uri in uris if uri is not None and (found := asset_at(uri)) is not None]
