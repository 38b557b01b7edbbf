"""Snapshots that this process has opened lately, so that a table which has not moved is not replayed again.

A checkpoint asks each table half a dozen times where it stands, and each time delta-rs would replay up to a
hundred commits. A remembered snapshot is the answer only if the log itself says that it still is: the commit
file of its version has the same hash, those before it have the sizes that they had, and there is none behind
it. So no answer changes, it only comes sooner.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.tables.files import Location
from tidegate.tables.rawlog import last_checkpoint, log_path, read_commit

if TYPE_CHECKING:
    from tidegate.tables.log import Snapshot

__all__ = ["recall", "remember"]

_CAPACITY = 16
_Key = tuple[int, str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class _Known:
    """A snapshot, and the sizes of the commit files that it was replayed from."""

    snapshot: Snapshot
    since: int
    sizes: tuple[int | None, ...]


_known: dict[_Key, _Known] = {}
_lock = threading.Lock()


def recall(location: Location, version: int | None) -> Snapshot | None:
    """The snapshot of `version` (None: of the head), if it is remembered and still true."""
    known = _known.get(_key(location))
    if known is None or version not in (None, known.snapshot.version):
        return None
    snapshot = known.snapshot
    commit = read_commit(location, snapshot.version)
    if commit is None or commit.sha != snapshot.log_hash or _sizes(snapshot, known.since) != known.sizes:
        return None
    moved = version is None and location.size(log_path(snapshot.version + 1)) is not None
    return None if moved else snapshot


def remember(snapshot: Snapshot) -> None:
    """Keep it, in place of an older one of the same table, and at most _CAPACITY in all."""
    key, since = _key(snapshot.location), last_checkpoint(snapshot.location)
    with _lock:
        _known.pop(key, None)
        _known[key] = _Known(snapshot, since, _sizes(snapshot, since))
        while len(_known) > _CAPACITY:
            del _known[next(iter(_known))]


def _sizes(snapshot: Snapshot, since: int) -> tuple[int | None, ...]:
    """Of the commit files below the head; object stores neither tear them nor are worth so many requests."""
    if not snapshot.location.is_local:
        return ()
    return tuple(snapshot.location.size(log_path(version)) for version in range(since, snapshot.version))


def _key(location: Location) -> _Key:
    """A forked child begins with nothing: delta-rs' handles do not survive a fork."""
    return os.getpid(), location.url, frozenset(location.options.items())
