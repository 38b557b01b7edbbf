"""When rows of a state expire: so long after they were last written, by the clock or by event time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

__all__ = ["Ttl", "micros"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Ttl:
    """How long a row lives after it was last written.

    now: what time it is for this checkpoint, the same for each attempt: its own clock, or the watermark as of its
        base. None: event time is not known yet, so nothing expires.
    """

    lasts: timedelta
    now: datetime | None

    @property
    def touched(self) -> int | None:
        """What rows that are written now say of it, in microseconds since 1970."""
        return None if self.now is None else micros(self.now)

    @property
    def limit(self) -> int | None:
        """Rows that were written then or before have expired. A row that does not say when has not."""
        return None if self.now is None else micros(self.now - self.lasts)


def micros(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1)
