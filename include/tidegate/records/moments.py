"""Convert moments between the text in records and microseconds since 1970 in UTC, by which event times are compared."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from tidegate.versions.python import UTC, parse_time

__all__ = ["AFTER_ALL_TIMES", "END_OF_TIME", "EPOCH", "from_micros", "micros_of", "moment_of"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The event time of a finished pipeline. Not the very last moment, because durations are added to it, and other time
zones show it."""
AFTER_ALL_TIMES: Final = 1 << 62
"""Microseconds since 1970 that no time in a row reaches, even with durations added to or subtracted from either."""
_MICRO = timedelta(microseconds=1)
_MIN_MICROS = (datetime.min.replace(tzinfo=UTC) - EPOCH) // _MICRO
_MAX_MICROS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICRO


def micros_of(time: datetime) -> int:
    """Return a time with a zone as microseconds."""
    return (time - EPOCH) // _MICRO


def from_micros(micros: int) -> datetime:
    """Return microseconds as a time in UTC, clamped to the years 1 to 9999."""
    return EPOCH + timedelta(microseconds=min(max(micros, _MIN_MICROS), _MAX_MICROS))


def moment_of(text: str | None) -> datetime | None:
    """Parse the time of a record. None if the text is not a time."""
    try:
        moment = parse_time(text or "")
    except ValueError:
        return None
    if moment.tzinfo is not None:
        return moment
    return moment.replace(tzinfo=UTC)
