"""State that ends by event time: whole files of it are dropped without being read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from tidegate.records.moments import micros_of
from tidegate.state.lateness import ended
from tidegate.state.record import StateFile, StateTable

__all__ = ["Over", "Ttl", "without_over"]


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


@dataclass(frozen=True)
class Over:
    """Rows whose end in `column` is at or before `limit` are over: every reader has to ignore them."""

    column: str
    limit: int
    """In microseconds since 1970."""


def without_over(table: StateTable, over: Over) -> StateTable:
    """Return the state without the files in which every row is over, by their statistics.

    A row that is over never hides one that is not: of one key, later rows do not end before earlier ones.
    """
    remaining = [file for file in table.files if not _is_over(file, over)]
    return msgspec.structs.replace(table, files=remaining) if len(remaining) < len(table.files) else table


def _is_over(file: StateFile, over: Over) -> bool:
    stats = msgspec.json.decode(file.file.stats)
    last = stats.get("maxValues", {}).get(over.column)
    if last is None or stats.get("nullCount", {}).get(over.column):
        return False
    return ended(micros_of(datetime.fromisoformat(last)), over.limit)
