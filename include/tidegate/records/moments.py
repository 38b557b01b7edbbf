"""Moments: as records write them, and as microseconds since 1970 in UTC, which is how event times are compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["END_OF_TIME", "EPOCH", "at_micros", "micros_of", "moment_of"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""Event time of a pipeline that is over. Not the very last moment: it is added to, and shown in other zones."""
_MICRO = timedelta(microseconds=1)
_LEAST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // _MICRO
_MOST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICRO


def micros_of(time: datetime) -> int:
    """A time with a zone as microseconds."""
    return (time - EPOCH) // _MICRO


def at_micros(micros: int) -> datetime:
    """Microseconds as a time in UTC; what lies beyond the years 1 to 9999 is held to them."""
    return EPOCH + timedelta(microseconds=min(max(micros, _LEAST), _MOST))


def moment_of(text: str | None) -> datetime | None:
    """A record's time; None if it is not one."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
