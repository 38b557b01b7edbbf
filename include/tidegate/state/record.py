"""The record of a keyed state in an ack. It names every file, so that the next job needs no other record.

A record is complete, not a difference: to restore a checkpoint, one record is read, and the publisher makes exactly
these files the live files of the Delta table. The record of an unchanged state is copied from ack to ack. Small things
(watermarks, counters) are in the ack's `memory`, as plain JSON.
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
"""The number of key groups if the plan has none: the default of `max_parallelism`."""


class StateFile(Struct, frozen=True, kw_only=True):
    """One file of a keyed state: rows of some key groups, sorted by key, at most one row per key."""

    file: StagedFile
    checkpoint: int
    """The newest checkpoint that wrote a row in it."""
    oldest: int
    """The oldest checkpoint that wrote a row in it."""
    groups: tuple[int, int]
    """The least and the greatest key group in it."""
    touched: int | None = None
    """The greatest time by which a row expires, in microseconds since 1970: when it was written, or until when it lives
    (`RowTtl`). None if rows do not expire, or one of them has no such time."""

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
    """The Delta schema of its files: keys, tidegate's columns, values."""
    keys: list[str]
    groups: int
    """The number of groups that keys are hashed into (`max_parallelism`), fixed when the state is created."""
    files: list[StateFile]
    grouped_by: list[str] = []
    """The keys that decide a row's group. Empty: all keys do."""

    @property
    def expires(self) -> bool:
        """Whether its rows have a time by which they expire."""
        return any(field["name"] == TOUCHED for field in self.columns["fields"])

    @property
    def shown(self) -> list[str]:
        """The columns for users: keys, values, and the time by which a row expires, if rows expire."""
        hidden = (GROUP, CHECKPOINT, DELETED)
        names = [field["name"] for field in self.columns["fields"]]
        return [*self.keys, *(name for name in names if name not in self.keys and name not in hidden)]


def state_file(file: StagedFile) -> StateFile:
    """Return the record of a staged file, from its statistics."""
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

    now: the time when this checkpoint begins, which decides what has expired: its clock, or the watermark of its base.
        None: there is no watermark yet, so nothing has expired.
    written: the time that rows carry which are written now. With event time it is the watermark at the checkpoint's
        end: a checkpoint may span days, and its rows may be as new as its last one. So nothing expires too early.
    """

    lasts: timedelta
    now: datetime | None
    written: datetime | None

    @property
    def touched(self) -> int | None:
        """The time that rows written now carry, in microseconds since 1970."""
        if self.written is None:
            return None
        return micros_of(self.written)

    @property
    def limit_after(self) -> int | None:
        """The limit after this checkpoint: rows that were written then or before have expired."""
        if self.written is None:
            return None
        return micros_of(self.written - self.lasts)

    @property
    def limit(self) -> int | None:
        """Rows that were written then or before have expired. A row without a time has not."""
        if self.now is None:
            return None
        return micros_of(self.now - self.lasts)


@dataclass(frozen=True)
class RowTtl:
    """The lifetime of rows by a time in each row. A row is stored with the time until which it lives.

    So expiry needs no scan: files whose rows have all expired are dropped, and readers skip expired rows in the rest.
    A longer lifetime, declared later, does not bring expired rows back.
    """

    column: str
    """The column with a row's time, in microseconds since 1970."""
    lasts: int
    """How long a row lives after its time, by the watermark, in microseconds."""
    before: int | None
    """The watermark of the checkpoint's base. None: there is none, and nothing has expired."""
    after: int | None
    """The watermark at the checkpoint's end."""

    @property
    def touched(self) -> None:
        """None: the rows of a checkpoint do not share a time."""
        return

    @property
    def limit(self) -> int | None:
        """Rows that live until this time or less have expired."""
        return self.before

    @property
    def limit_after(self) -> int | None:
        """The limit after this checkpoint."""
        return self.after

    @property
    def until(self) -> str:
        """SQL for the time until which a row lives: when the watermark reaches it, the row has expired. Null: never."""
        return f"try_add({self.column}, {self.lasts + 1}L)"

    def until_of(self, times: Any) -> pa.Array:
        """Return the same for an array of times."""
        import pyarrow as pa

        until = times + (self.lasts + 1)
        overflows = (until < times) != (self.lasts + 1 < 0)
        return pa.array(until, mask=overflows)
