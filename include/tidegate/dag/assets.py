"""The assets of a pipeline: two for each sink, one by its name and one by its target's address, and one for each
source. An asset event lets other DAGs run when its table has changed."""

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

__all__ = [
    "AssetEvents",
    "asset",
    "find_asset",
    "inlets_of",
    "outlets_of",
    "shared_address_of",
    "shared_uri_of",
]

AssetEvents = Literal["rows", "always"]
"""When a completed checkpoint emits a sink's events: only if it wrote rows to the sink, or always."""


def asset(pipeline: Pipeline | str, sink: str) -> Asset:
    """Return the asset to schedule on: `build_dag(other, schedule=[asset("orders", "order_events")])`.

    Its name and URI do not change when the table moves.
    """
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    place = f"{check_name('pipeline', name)}/{check_name('sink', sink)}"
    return Asset(name=place, uri=f"tidegate://{place}", group="tidegate")


def shared_address_of(node: SourceNode | SinkNode, place: Place) -> str | None:
    """Return the address by which others know a source's input or a sink's target, or None. It never has a login."""
    with contextlib.suppress(TidegateError):  # a connection is not set up here: the task that needs it reports that
        if isinstance(node, SinkNode):
            address = node.sink.shared_uri(place)
        else:
            address = node.source.shared_uri(place)
        if address is None or has_login(address):
            return None
        return address
    return None


def shared_uri_of(node: SourceNode | SinkNode, place: Place) -> str | None:
    """Return the same address as Airflow normalizes it for an asset, or None if it cannot have such an asset."""
    address = shared_address_of(node, place)
    shared_asset = find_asset(address) if address is not None else None
    if shared_asset is not None:
        return shared_asset.uri
    return None


def find_asset(uri: str) -> Asset | None:
    """Return the asset that other DAGs can refer to by this address alone, or None if Airflow cannot have one."""
    if "?" in uri or "#" in uri:  # Airflow cuts these off, so it would be another place's asset
        return None
    if has_login(uri):  # all users see the addresses of assets
        return None
    try:
        return Asset(uri=uri)
    except ValueError:
        return None


def outlets_of(pipeline: str, sinks: Mapping[str, SinkNode], place: Place) -> list[Asset]:
    """Return the assets of these sinks without duplicates: several sinks may write to one table."""
    return [asset(pipeline, name) for name in sinks] + _shared_assets(sinks.values(), place)


def inlets_of(sources: Iterable[SourceNode], place: Place) -> list[Asset]:
    """Return the assets that these sources read, without duplicates."""
    return _shared_assets(sources, place)


def _shared_assets(nodes: Iterable[SourceNode | SinkNode], place: Place) -> list[Asset]:
    assets: dict[str, Asset] = {}
    for node in nodes:
        uri = shared_uri_of(node, place)
        shared_asset = find_asset(uri) if uri is not None else None
        if uri is not None and shared_asset is not None:
            assets[uri] = shared_asset
    return list(assets.values())
