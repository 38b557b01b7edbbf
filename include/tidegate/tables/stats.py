"""Delta's file statistics from Parquet footers: what data skipping may trust, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.model.records import Json

__all__ = ["file_stats"]


def file_stats(footer: Any, schema: Json, partition_by: Sequence[str]) -> Json:
    """The statistics of one file."""
    return {"numRecords": footer.num_rows}
