"""The record of a keyed state in an ack: every file of it, so that the next job needs no other record.

A record is complete, not a difference: restoring any checkpoint is reading one record, and the publisher makes the
Delta table's live files exactly these, whatever it held before. A state that did not change is carried on from ack
to ack as it is. What is small (watermarks, counters) lies in the ack's `memory`, as plain JSON.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidegate.delta import StagedFile
from tidegate.records.moments import micros_of
from tidegate.records.records import Json, Struct
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, TOUCHED

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DEFAULT_GROUPS", "RowTtl", "StateFile", "StateTable", "Ttl", "once", "state_file"]

DEFAULT_GROUPS: Final = 128
"""Key groups of pipelines whose plans have no number: the default of `max_parallelism`."""


class StateFile(Struct, frozen=True, kw_only=True):
    """One file of a keyed state: rows of some key groups, sorted by key, at most one row per key."""

    file: StagedFile
    checkpoint: int
    """The newest checkpoint that a row in it comes from."""
    oldest: int
    """The oldest one."""
    groups: tuple[int, int]
    """The least and the greatest key group in it."""
    touched: int | None = None
    """When its newest row was written, or until when one of its rows lives at most (`RowTtl`), in microseconds since
    1970: only if rows expire, and all of them have the time."""

    @property
    def name(self) -> str:
        """The name without folders."""
        return self.file.path.rsplit("/", 1)[1]

    def meets(self, other: StateFile) -> bool:
        """Return whether both may hold rows of one key group."""
        return self.groups[0] <= other.groups[1] and other.groups[0] <= self.groups[1]


class StateTable(Struct, frozen=True, kw_only=True):
    """A keyed state as of one checkpoint."""

    columns: Json
    """The Delta schema of its files: keys, what tidegate adds, values."""
    keys: list[str]
    groups: int
    """The number of groups that keys are hashed into (`max_parallelism`): fixed when the state begins."""
    files: list[StateFile]
    grouped_by: list[str] = []
    """The keys that decide a row's group, if not all of them do: rows that agree in these are in one group."""

    @property
    def expires(self) -> bool:
        """Whether its rows have a time that they expire by."""
        return any(field["name"] == TOUCHED for field in self.columns["fields"])

    @property
    def shown(self) -> list[str]:
        """The columns for users: keys, values, and the time that a row expires by, if rows do."""
        hidden = (GROUP, CHECKPOINT, DELETED)
        names = [field["name"] for field in self.columns["fields"]]
        return [*self.keys, *(name for name in names if name not in self.keys and name not in hidden)]


def state_file(file: StagedFile) -> StateFile:
    """Return a staged file's record, by its statistics."""
    stats = msgspec.json.decode(file.stats)
    low, high, nulls = stats["minValues"], stats["maxValues"], stats["nullCount"]
    return StateFile(
        file=file,
        checkpoint=high[CHECKPOINT],
        oldest=low[CHECKPOINT],
        groups=(low[GROUP], high[GROUP]),
        touched=high.get(TOUCHED) if nulls.get(TOUCHED) == 0 else None,
    )


def once(files: Sequence[StateFile]) -> bool:
    """Return whether no two files can hold the same key."""
    ordered = sorted(files, key=lambda file: file.groups)
    return not any(file.meets(following) for file, following in itertools.pairwise(ordered))


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
class RowTtl:
    """The lifetime of rows that each have a time of their own: a row says until when it lives from when it is written.

    So nobody has to look for what has expired: files of which all rows have are dropped, and others hide them. And a
    longer lifetime, declared later, brings none of them back.
    """

    column: str
    """The column with a row's time, in microseconds since 1970."""
    lasts: int
    """How long after that the watermark may be for the row to live, in microseconds."""
    before: int | None
    """The watermark as of the checkpoint's base. None: there was none, and nothing has expired."""
    after: int | None
    """The watermark when the checkpoint ends."""

    @property
    def touched(self) -> None:
        """Rows do not share a time."""
        return

    @property
    def limit(self) -> int | None:
        """Rows that live no longer than that have expired."""
        return self.before

    @property
    def limit_after(self) -> int | None:
        """The limit after this checkpoint."""
        return self.after

    @property
    def until(self) -> str:
        """SQL for the time until which a row lives: it has expired when the watermark has come there. Null: never."""
        return f"try_add({self.column}, {self.lasts + 1}L)"

    def until_of(self, times: Any) -> pa.Array:
        """Return the same for an array of times."""
        import pyarrow as pa

        until = times + (self.lasts + 1)
        return pa.array(until, mask=(until < times) != (self.lasts + 1 < 0))
