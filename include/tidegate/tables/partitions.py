"""Partition values: from the folder names that Spark writes to the strings that Delta's log holds."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.model.records import Json

__all__ = ["partition_values"]


def partition_values(path: str, schema: Json, partition_by: Sequence[str]) -> dict[str, str | None]:
    """What the folders of `path` (relative to the attempt's folder) say about each partition column."""
    return {}
