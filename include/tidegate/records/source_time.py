"""The event time of a source, as stored in acks."""

from __future__ import annotations

from datetime import datetime

from tidegate.records import typed
from tidegate.records.records import Json, Struct

__all__ = ["Partition", "SourceTime", "partition_of"]


class Partition(Struct, frozen=True, kw_only=True):
    """Event time of one partition of a source."""

    active: datetime
    """The planning time of the last checkpoint with rows of it, or else of the first checkpoint."""
    highest: datetime | None = None
    watermark: datetime | None = None


class SourceTime(Struct, frozen=True, kw_only=True):
    """The event time of a source in the ack's memory. Every source has one partition today, named ""."""

    partitions: dict[str, Partition]


def partition_of(record: Json) -> Partition:
    """Return the event time of a source from its record."""
    return typed.convert(record, SourceTime).partitions[""]
