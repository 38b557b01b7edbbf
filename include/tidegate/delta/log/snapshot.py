"""A table as of one version, opened once and remembered."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tidegate.delta.files.access import Location, unavailable
from tidegate.delta.log.checkpoints import do_without_torn, torn_checkpoints
from tidegate.delta.log.files import (
    CommitMark,
    check_tail,
    half_a_log,
    has_log,
    last_checkpoint,
    log_path,
    read_commit,
    refuse_unreadable,
)
from tidegate.errors import Corrupt, TidegateError
from tidegate.records.records import Json

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["Snapshot", "find", "handle", "open_table", "recall", "remember"]


def find(location: Location, version: int | None) -> DeltaTable | None:
    """Return delta-rs's view of the table. None: there is no table, and no part of a log."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    missing: Exception | None = None
    for _ in range(3):  # somebody may create the table between the two looks
        try:
            return handle(location, version)
        except TableNotFoundError as error:
            missing = error
            if not has_log(location):
                return None
        except DeltaError as error:
            missing = error
            if not do_without_torn(location):
                raise _unreadable(location, version, error) from error
        except OSError as error:
            raise unavailable(location.url, error) from error
    assert missing is not None
    raise half_a_log(location, missing) from missing


def _unreadable(location: Location, version: int | None, error: Exception) -> TidegateError:
    if not (torn := torn_checkpoints(location)):
        return refuse_unreadable(location, version, error)
    return Corrupt(
        f"{location.url} cannot be read: {', '.join(torn)} is torn, and the commits before it do not make up for it",
        expected="Delta's own checkpoint of the log, or every commit that it stands for",
        help="restore that file, or the commits, from a copy of the storage; if all commits are there, and this "
        "process may not delete files there, delete it by hand",
        reason="LOG_BROKEN",
    )


def handle(location: Location, version: int | None) -> DeltaTable:
    """Return a new handle that nobody else uses."""
    from deltalake import DeltaTable

    return DeltaTable(location.url, version=version, storage_options=dict(location.options))


_CAPACITY = 16


_Key = tuple[int, str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class _Cached:
    """A snapshot, and the sizes of the commit files that it was replayed from."""

    snapshot: Snapshot
    since: int
    sizes: tuple[int | None, ...]


_cache: dict[_Key, _Cached] = {}


_lock = threading.Lock()


def recall(location: Location, version: int | None) -> Snapshot | None:
    """Return the snapshot of `version` (None: of the head) if it is remembered and still valid."""
    cached = _cache.get(_key(location))
    if cached is None or version not in (None, cached.snapshot.version):
        return None
    snapshot = cached.snapshot
    commit = read_commit(location, snapshot.version)
    if commit is None or commit.sha != snapshot.log_hash or _sizes(snapshot, cached.since) != cached.sizes:
        return None
    moved = version is None and location.size(log_path(snapshot.version + 1)) is not None
    return None if moved else snapshot


def remember(snapshot: Snapshot) -> None:
    """Keep it, in place of an older one of the same table, and at most _CAPACITY in all."""
    key, since = _key(snapshot.location), last_checkpoint(snapshot.location)
    with _lock:
        _cache.pop(key, None)
        _cache[key] = _Cached(snapshot, since, _sizes(snapshot, since))
        while len(_cache) > _CAPACITY:
            del _cache[next(iter(_cache))]


def _sizes(snapshot: Snapshot, since: int) -> tuple[int | None, ...]:
    """Sizes of the commit files below the head; object stores neither tear them nor are worth so many requests."""
    if not snapshot.location.is_local:
        return ()
    return tuple(snapshot.location.size(log_path(version)) for version in range(since, snapshot.version))


def _key(location: Location) -> _Key:
    """Return the cache key. A forked child starts with an empty cache: delta-rs' handles do not survive a fork."""
    return os.getpid(), location.url, frozenset(location.options.items())


@dataclass(frozen=True)
class Snapshot:
    """A table as of one version. Everything was read when it was opened; it never advances by itself."""

    location: Location
    version: int
    table_id: str
    schema: Json
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    log_hash: str
    handle: DeltaTable
    """Shared with all who opened the same version (see `find`): for reads, and commits of file actions."""
    _txns: dict[str, int | None] = field(default_factory=dict, repr=False, compare=False)
    """Looked up before: each time costs a millisecond, and more in a table with many transactions."""
    _marks: dict[int, CommitMark] = field(default_factory=dict, repr=False, compare=False)
    """The commits that were looked at before."""
    _facts: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    def own_handle(self) -> DeltaTable:
        """Return a handle of its own, for an operation that advances its handle."""
        return handle(self.location, self.version)

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether any file has one: all files are looked at, and only if the table's features allow for it."""
        if "deletion vectors" not in self._facts:
            allowed = "deletionVectors" in (self.handle.protocol().reader_features or ())
            self._facts["deletion vectors"] = allowed and next(iter(self.handle.deletion_vectors()), None) is not None
        return self._facts["deletion vectors"]

    def mark(self, version: int) -> CommitMark | None:
        """Return who made a version, up to this one; None: its commit file is gone."""
        if version not in self._marks:
            commit = read_commit(self.location, version)
            if commit is None:
                return None
            self._marks[version] = CommitMark.of(commit)
        return self._marks[version]

    def inherit_marks(self, older: Snapshot) -> None:
        """Take on what an older snapshot has looked at, if it is one of the same log."""
        if older._marks and older.version < self.version:
            mark = self.mark(older.version)
            if mark is not None and mark.sha == older.log_hash:
                self._marks.update(older._marks)

    def txn(self, app_id: str) -> int | None:
        """Return the last transaction version of `app_id`, or None."""
        if app_id not in self._txns:
            self._txns[app_id] = self.handle.transaction_version(app_id)
        return self._txns[app_id]


def open_table(location: Location, version: int | None = None) -> Snapshot | None:
    """Return the table as of `version`, by default its head; None: there is no table.

    Raise Corrupt if the head's commit file is empty or torn: both engines read an empty one as "no changes".
    """
    if (remembered := recall(location, version)) is not None:
        return remembered
    if (opened := find(location, version)) is None:
        return None
    number = opened.version()
    head = check_tail(location, number)
    metadata = opened.metadata()
    snapshot = Snapshot(
        location=location,
        version=number,
        table_id=str(metadata.id),
        schema=msgspec.json.decode(opened.schema().to_json()),
        partition_by=tuple(metadata.partition_columns),
        configuration=dict(metadata.configuration),
        log_hash=head.sha,
        handle=opened,
    )
    if version is None:
        if (older := _cache.get(_key(location))) is not None:
            snapshot.inherit_marks(older.snapshot)
        remember(snapshot)
    return snapshot
