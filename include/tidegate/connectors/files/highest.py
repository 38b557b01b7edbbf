"""Finds the highest time in a column from the statistics in Parquet footers, in milliseconds and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.connectors.files.folder import Folder

__all__ = ["highest_micros"]


def highest_micros(folder: Folder, names: Sequence[str], column: str) -> int | None:
    """Return the highest time in these Parquet files, in microseconds since 1970, or None if a footer lacks it."""
    maxima = []
    for name in names:
        with folder.open(name) as stream:
            file_maxima = _maxima_of_file(stream, column)
        if file_maxima is None:
            return None
        maxima += file_maxima
    return max(maxima, default=None)


def _maxima_of_file(stream: Any, column: str) -> list[int] | None:
    """Return the highest time of each row group that has times, or None if the footer lacks one."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(stream) as file:
        schema, footer = file.schema, file.metadata
        indexes = [index for index in range(len(schema)) if schema.column(index).path.lower() == column.lower()]
        if len(indexes) != 1:
            return None
        scale = _micros_per_unit(schema.column(indexes[0]))
        if scale is None:
            return None
        maxima = []
        for group in range(footer.num_row_groups):
            chunk = footer.row_group(group).column(indexes[0])
            stats = chunk.statistics
            if stats is None or not stats.has_null_count:
                return None
            if stats.null_count == chunk.num_values:
                continue
            if not stats.has_min_max or not isinstance(stats.max_raw, int):
                return None
            maxima.append(stats.max_raw * scale)
        return maxima


def _micros_per_unit(column: Any) -> int | None:
    """Return how many microseconds a unit of the column has, or None if it is not a plain timestamp in UTC."""
    import json

    if column.physical_type != "INT64" or column.logical_type.type != "TIMESTAMP":
        return None
    type_info = json.loads(column.logical_type.to_json())
    units = {"milliseconds": 1000, "microseconds": 1}
    if not type_info["isAdjustedToUTC"]:
        return None
    return units.get(type_info["timeUnit"])
