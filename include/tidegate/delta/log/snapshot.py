"""A table at one version, opened once and cached per process."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from tidegate.delta.files.access import Location, unavailable
from tidegate.delta.log.catalog import CATALOG_TABLE
from tidegate.delta.log.checkpoints import do_without_torn, torn_checkpoints
from tidegate.delta.log.files import (
    LOG,
    MAX_LISTED_FILES,
    Commit,
    CommitMark,
    DataFile,
    check_tail,
    half_a_log,
    has_log,
    last_checkpoint,
    log_path,
    parse_log_name,
    read_commit,
    refuse_unreadable,
)
from tidegate.delta.log.table_log import TableLog
from tidegate.errors import Corrupt, Invalid, TidegateError, Unavailable
from tidegate.records.records import Json, SeenTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "Protocol",
    "Snapshot",
    "advance",
    "find",
    "handle",
    "observed_tables",
    "open_table",
    "recall",
    "reopen",
    "trust_hint",
]


def find(location: Location, version: int | None) -> DeltaTable | None:
    """Return a delta-rs handle, or None if the table does not exist, not even a part of its log."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    missing: Exception | None = None
    for _ in range(3):  # another process may create the table between the two checks
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
    catalog_error = _catalog_error(location)
    if catalog_error is not None:
        return catalog_error
    torn = torn_checkpoints(location)
    if not torn:
        return refuse_unreadable(location, version, error)
    return Corrupt(
        f"{location.url} cannot be read: {', '.join(torn)} is truncated, and the earlier commits that it summarizes "
        "are missing",
        expected="Delta's own checkpoint of the log, or every commit that it summarizes",
        help="restore that file, or the commits, from a copy of the storage; if all commits exist, and this process "
        "lacks the permission to delete the file, delete it by hand",
        reason="LOG_BROKEN",
    )


def _catalog_error(location: Location) -> Invalid | None:
    """Return the error for a table that a catalog manages, or None if no catalog does.

    delta-rs cannot open such a table, but it is not damaged.
    """
    log = TableLog(location)
    try:
        if log.head is not None:
            log.layout(log.head)
    except (Corrupt, Unavailable):
        return None
    except Invalid as error:
        return error if error.reason == CATALOG_TABLE else None
    return None


def handle(location: Location, version: int | None) -> DeltaTable:
    """Return a new delta-rs handle, which is not shared."""
    from deltalake import DeltaTable

    return DeltaTable(location.url, version=version, storage_options=dict(location.options))


_CAPACITY = 1024
_MAX_COMMITS = 20
"""With more new commits than this, the table is reopened instead of reading them one by one."""

_Key = tuple[int, str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class _Cached:
    """A snapshot, with what shows whether it is still valid."""

    snapshot: Snapshot
    sizes: tuple[int | None, ...] = ()
    """On local disks: the sizes of the commit files before the head, back to the log's last checkpoint."""
    tag: str = ""
    """On an object store: the tag of the head's commit file."""


_cache: dict[_Key, _Cached] = {}


_lock = threading.Lock()


def recall(location: Location, version: int | None) -> Snapshot | None:
    """Return the snapshot of `version` (None: the head) if it is cached and valid, or can be advanced from the
    cache."""
    cached = _cache.get(_key(location))
    if cached is None or version not in (None, cached.snapshot.version):
        return None
    if not location.is_local:
        return _followed(cached, is_head=version is None)
    snapshot = cached.snapshot
    commit = read_commit(location, snapshot.version)
    if commit is None or commit.sha != snapshot.log_hash or _sizes(snapshot) != cached.sizes:
        return None
    if version is None and location.size(log_path(snapshot.version + 1)) is not None:
        return None  # the head has advanced
    return snapshot


def _followed(cached: _Cached, *, is_head: bool) -> Snapshot | None:
    """Return the snapshot after all commits that one listing shows. None: the table must be reopened."""
    snapshot = cached.snapshot
    location, head = snapshot.location, _name(snapshot.version)
    tags = location.tags(LOG, after=_name(snapshot.version - 1))
    tag = tags.get(head)
    if tag is None:  # the listing lags, or the commit has been deleted
        head_object = location.read_tagged(log_path(snapshot.version))
        tag = head_object[1] if head_object is not None else ""
    if not tag or tag != cached.tag:
        return None
    newer = []
    for name in tags:
        file = parse_log_name(name)
        if file is not None and file.kind == "commit" and file.version > snapshot.version:
            newer.append(file.version)
    newer.sort()
    if not newer or not is_head:
        return snapshot
    if newer != [*range(snapshot.version + 1, newer[-1] + 1)] or len(newer) > _MAX_COMMITS:
        return None
    advanced: Snapshot | None = snapshot
    for version in newer:
        commit_object = location.read_tagged(log_path(version))
        if commit_object is None or advanced is None:
            return None
        data, tag = commit_object
        advanced = advance(advanced, Commit(location, version, data), tag)
    return advanced


def advance(snapshot: Snapshot, commit: Commit, tag: str) -> Snapshot | None:
    """Return the snapshot after one more commit, and cache it. None: the commit may change schema or properties.

    tag: the commit file's tag in an object store; not needed on a disk.
    """
    if commit.changes_layout:
        return None
    txns = snapshot.known_txns | {txn["appId"]: txn["version"] for txn in commit.actions_of("txn")}
    listed = []
    for files in snapshot.listed:
        files_after = _files_after(files, commit)
        if files_after is not None:
            listed.append(files_after)
    after = replace(
        snapshot, version=commit.version, log_hash=commit.sha, known_txns=txns, listed=listed, opened=[], _facts={}
    )
    if after.location.is_local:
        _cache_snapshot(_Cached(after, sizes=_sizes(after)))
    else:
        _cache_snapshot(_Cached(after, tag=tag))
    return after


def _files_after(files: Mapping[str, DataFile], commit: Commit) -> Mapping[str, DataFile] | None:
    """Return the files of a table after one more commit. None: too many files, or one has a deletion vector."""
    removed = {unquote(action["path"]) for action in commit.actions_of("remove")}
    after = {path: file for path, file in files.items() if path not in removed}
    for action in commit.actions_of("add"):
        file = replace(DataFile.from_action(action), path=unquote(action["path"]))
        if file.has_deletions:
            return None
        after[file.path] = file
    return after if len(after) <= MAX_LISTED_FILES else None


def observed_tables(location: Location) -> SeenTable | None:
    """Return the cached snapshot of a table on an object store, as a hint for other processes."""
    cached = _cache.get(_key(location))
    if cached is None or not cached.tag:
        return None
    snapshot = cached.snapshot
    return SeenTable(
        url=location.url,
        version=snapshot.version,
        log_hash=snapshot.log_hash,
        tag=cached.tag,
        table_id=snapshot.table_id,
        columns=snapshot.schema,
        partition_by=list(snapshot.partition_by),
        properties=dict(snapshot.configuration),
        writer=snapshot.protocol.writer,
        features=sorted(snapshot.protocol.features),
        since=snapshot.since,
        transactions=snapshot.known_txns,
    )


def trust_hint(location: Location, table: SeenTable) -> None:
    """Cache a snapshot that another process has reported, unless this process has one itself."""
    snapshot = Snapshot(
        location=location,
        version=table.version,
        table_id=table.table_id,
        schema=table.columns,
        partition_by=tuple(table.partition_by),
        configuration=table.properties,
        protocol=Protocol(table.writer, frozenset(table.features)),
        log_hash=table.log_hash,
        since=table.since,
        known_txns=dict(table.transactions),
    )
    if table.tag and _key(location) not in _cache:
        _cache_snapshot(_Cached(snapshot, tag=table.tag))


def _cache_head(snapshot: Snapshot) -> None:
    if snapshot.location.is_local:
        _cache_snapshot(_Cached(snapshot, sizes=_sizes(snapshot)))
        return
    name = _name(snapshot.version)
    tag = snapshot.location.tags(LOG, after=_name(snapshot.version - 1)).get(name, "")
    if tag:
        _cache_snapshot(_Cached(snapshot, tag=tag))


def _cache_snapshot(cached: _Cached) -> None:
    """Add a snapshot in place of an older one of the same table, and evict the oldest above _CAPACITY."""
    key = _key(cached.snapshot.location)
    with _lock:
        _cache.pop(key, None)
        _cache[key] = cached
        while len(_cache) > _CAPACITY:
            del _cache[next(iter(_cache))]


def _name(version: int) -> str:
    """Return the name of a version's commit file. For -1, return a name that sorts first."""
    if version >= 0:
        return log_path(version).rpartition("/")[2]
    return ""


def _sizes(snapshot: Snapshot) -> tuple[int | None, ...]:
    return tuple(snapshot.location.size(log_path(version)) for version in range(snapshot.since, snapshot.version))


def _key(location: Location) -> _Key:
    """Return the cache key. It contains the process id, because delta-rs handles do not survive a fork."""
    return os.getpid(), location.url, frozenset(location.options.items())


@dataclass(frozen=True)
class Protocol:
    """A table's requirements for its writers."""

    writer: int
    features: frozenset[str]
    """Reader and writer features. Empty if the table has only version numbers."""


@dataclass(frozen=True)
class Snapshot:
    """A table at one version. It never advances by itself."""

    location: Location
    version: int
    table_id: str
    schema: Json
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    protocol: Protocol
    log_hash: str
    since: int
    """The version of the log's last checkpoint when the table was opened, or 0 if it has none."""
    known_txns: dict[str, int | None] = field(default_factory=dict, repr=False, compare=False)
    """A cache: each look-up costs a millisecond, and more in a table with many transactions."""
    _marks: dict[int, CommitMark] = field(default_factory=dict, repr=False, compare=False)
    """A cache of commits that were read, by version."""
    _facts: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)
    opened: list[DeltaTable] = field(default_factory=list, repr=False, compare=False)
    """The delta-rs handle, once it has been needed."""
    listed: list[Mapping[str, DataFile]] = field(default_factory=list, repr=False, compare=False)
    """All files by path, once they have been needed, or are known from an earlier snapshot and its commits."""

    @property
    def handle(self) -> DeltaTable:
        """The delta-rs handle, shared by all users of this snapshot, for operations that do not advance it."""
        if not self.opened:
            opened = handle(self.location, self.version)
            if str(opened.metadata().id) != self.table_id:
                raise Corrupt(
                    f"{self.location.url} was dropped and created again while it was read",
                    expected=f"version {self.version} of the table {self.table_id}",
                    help="try again: the next step opens the new table, and reports what it lacks",
                    reason="OTHER_TABLE",
                )
            self.opened.append(opened)
        return self.opened[0]

    @property
    def is_in_log(self) -> bool:
        """Whether the log still has this version, unchanged."""
        commit = read_commit(self.location, self.version)
        return commit is not None and commit.sha == self.log_hash

    def new_handle(self) -> DeltaTable:
        """Return a handle that is not shared, for an operation that advances it."""
        return handle(self.location, self.version)

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether any file has a deletion vector. All files are checked, but only if the table's features allow any."""
        if "deletion vectors" not in self._facts:
            has_any = False
            if "deletionVectors" in self.protocol.features:
                has_any = next(iter(self.handle.deletion_vectors()), None) is not None
            self._facts["deletion vectors"] = has_any
        return self._facts["deletion vectors"]

    def mark(self, version: int) -> CommitMark | None:
        """Return who committed a version, up to this one, or None if its commit file no longer exists."""
        if version not in self._marks:
            commit = read_commit(self.location, version)
            if commit is None:
                return None
            self._marks[version] = CommitMark.from_commit(commit)
        return self._marks[version]

    def inherit_marks(self, older: Snapshot) -> None:
        """Copy the cached marks of an older snapshot, if it belongs to the same log."""
        if older._marks and older.version < self.version:
            mark = self.mark(older.version)
            if mark is not None and mark.sha == older.log_hash:
                self._marks.update(older._marks)

    def txn(self, app_id: str) -> int | None:
        """Return the last transaction version of `app_id`, or None."""
        if app_id not in self.known_txns:
            self.known_txns[app_id] = self.handle.transaction_version(app_id)
        return self.known_txns[app_id]


def reopen(location: Location, version: int | None) -> Snapshot | None:
    """Return the table at a version that the caller has just found to be its head, without another request."""
    cached = _cache.get(_key(location)) if not location.is_local else None
    if cached is not None and cached.snapshot.version == version:
        return cached.snapshot
    return open_table(location, version)


def open_table(location: Location, version: int | None = None) -> Snapshot | None:
    """Return the table at `version`, by default its head, or None if the table does not exist.

    Raise Corrupt if the head's commit file is empty or truncated: both engines read an empty one as "no changes".
    """
    cached = recall(location, version)
    if cached is not None:
        return cached
    opened = find(location, version)
    if opened is None:
        return None
    number = opened.version()
    head = check_tail(location, number)
    metadata, protocol = opened.metadata(), opened.protocol()
    snapshot = Snapshot(
        location=location,
        version=number,
        table_id=str(metadata.id),
        schema=msgspec.json.decode(opened.schema().to_json()),
        partition_by=tuple(metadata.partition_columns),
        configuration=dict(metadata.configuration),
        protocol=Protocol(
            protocol.min_writer_version,
            frozenset(protocol.reader_features or ()) | frozenset(protocol.writer_features or ()),
        ),
        log_hash=head.sha,
        since=last_checkpoint(location),
        opened=[opened],
    )
    if version is None:
        older = _cache.get(_key(location))
        if older is not None:
            snapshot.inherit_marks(older.snapshot)
        _cache_head(snapshot)
    return snapshot
