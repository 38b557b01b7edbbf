"""Names of datasets, as OpenLineage's naming conventions have them (https://openlineage.io/docs/spec/naming)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.dag.assets import asset, shared_address_of
from tidegate.pipeline.graph.nodes import SinkNode, SourceNode
from tidegate.records.place import Place

__all__ = ["DatasetName", "dataset_of", "dataset_of_address"]

_SAME_STORE: Final = {"abfs": "abfss", "wasb": "wasbs", "gcs": "gs"}
"""Schemes that the conventions spell differently."""
_PATHS_FROM_ROOT: Final = frozenset({"hdfs", "dbfs"})
"""File systems, whose names begin with a slash. In an object store a name is the key."""


@dataclass(frozen=True, order=True)
class DatasetName:
    """A dataset's namespace, and its name in there."""

    namespace: str
    name: str


def dataset_of(pipeline: str, node: SourceNode | SinkNode, place: Place) -> DatasetName:
    """Return the name of a source's input or of a sink's target.

    What has no address by which others know it is named after the pipeline, as its asset is.
    """
    address = shared_address_of(node, place)
    if address is not None:
        return dataset_of_address(address)
    if isinstance(node, SinkNode):
        return dataset_of_address(asset(pipeline, node.name).uri)
    return DatasetName(f"tidegate://{pipeline}", f"source {node.name}")


def dataset_of_address(address: str) -> DatasetName:
    """Return the name of the dataset at an address, such as s3://bucket/tables/revenue."""
    scheme, _, rest = address.partition("://")
    scheme = _SAME_STORE.get(scheme.lower(), scheme.lower())
    authority, _, path = rest.partition("/")
    path = path.rstrip("/")
    if scheme == "file":
        return DatasetName("file" if not authority else f"file://{authority}", f"/{path}")
    if scheme == "postgres":
        return DatasetName(f"{scheme}://{authority}", path.replace("/", "."))
    if scheme in _PATHS_FROM_ROOT:
        path = f"/{path}"
    return DatasetName(f"{scheme}://{authority}", path or "/")
