"""Expiry of a state's rows: some time after they were last written, by the clock or by event time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.records.moments import micros_of

__all__ = ["Ttl"]


@dataclass(frozen=True)
class Ttl:
    """The lifetime of a row after it was last written.

    now: what time it is when this checkpoint begins: its own clock, or the watermark as of its base. By this it is
        judged what has expired; nothing, while event time is not known (None).
    written: when rows count as written that are written now. By event time it is when the checkpoint ends: it may
        reach over days, and its rows may be as new as its last. So nothing expires too early.
    """

    lasts: timedelta
    now: datetime | None
    written: datetime | None

    @property
    def touched(self) -> int | None:
        """The time that rows written now carry, in microseconds since 1970."""
        return None if self.written is None else micros_of(self.written)

    @property
    def limit_after(self) -> int | None:
        """The limit after this checkpoint: rows that were written then or before have expired."""
        return None if self.written is None else micros_of(self.written - self.lasts)

    @property
    def limit(self) -> int | None:
        """Rows that were written then or before have expired. A row without a time has not."""
        return None if self.now is None else micros_of(self.now - self.lasts)
