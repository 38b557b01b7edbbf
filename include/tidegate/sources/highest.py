"""The highest time in a column, as far as files say so themselves: in milliseconds, without a Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.sources.files.folder import Folder

__all__ = ["highest_micros"]


def highest_micros(folder: Folder, names: Sequence[str], column: str) -> int | None:
    """The highest moment in these Parquet files, in microseconds since 1970. None: their footers do not tell."""
    found = []
    for name in names:
        with folder.open(name) as stream:
            told = _of_file(stream, column)
        if told is None:
            return None
        found += told
    return max(found, default=None)


def _of_file(stream: Any, column: str) -> list[int] | None:
    """The highest of each row group that has any; None: not known of all."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(stream) as file:
        schema, footer = file.schema, file.metadata
        places = [at for at in range(len(schema)) if schema.column(at).path.lower() == column.lower()]
        if len(places) != 1 or (scale := _scale(schema.column(places[0]))) is None:
            return None
        found = []
        for group in range(footer.num_row_groups):
            chunk = footer.row_group(group).column(places[0])
            stats = chunk.statistics
            if stats is None or not stats.has_null_count:
                return None
            if stats.null_count == chunk.num_values:
                continue
            if not stats.has_min_max or not isinstance(stats.max_raw, int):
                return None
            found.append(stats.max_raw * scale)
        return found


def _scale(column: Any) -> int | None:
    """How many microseconds a unit of the column is. None: it is no plain moment."""
    import json

    if column.physical_type != "INT64" or column.logical_type.type != "TIMESTAMP":
        return None
    told = json.loads(column.logical_type.to_json())
    units = {"milliseconds": 1000, "microseconds": 1}
    return units.get(told["timeUnit"]) if told["isAdjustedToUTC"] else None
