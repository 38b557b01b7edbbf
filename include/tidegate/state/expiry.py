"""State that ends by event time: whole files of it are dropped without being read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from tidegate.records.moments import micros_of
from tidegate.state.lateness import ended
from tidegate.state.record import StateFile, StateTable

__all__ = ["Over", "without_over"]


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
