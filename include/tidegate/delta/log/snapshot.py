"""A table as of one version, opened once and remembered."""

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
    if (of_catalog := _of_a_catalog(location)) is not None:
        return of_catalog
    if not (torn := torn_checkpoints(location)):
        return refuse_unreadable(location, version, error)
    return Corrupt(
        f"{location.url} cannot be read: {', '.join(torn)} is torn, and the commits before it do not make up for it",
        expected="Delta's own checkpoint of the log, or every commit that it stands for",
        help="restore that file, or the commits, from a copy of the storage; if all commits are there, and this "
        "process may not delete files there, delete it by hand",
        reason="LOG_BROKEN",
    )


def _of_a_catalog(location: Location) -> Invalid | None:
    """Return the refusal of a table that a catalog manages: delta-rs does not know such tables, but it is not damaged.
    None: it is none."""
    log = TableLog(location)
    try:
        if (head := log.head) is not None:
            log.layout(head)
    except (Corrupt, Unavailable):
        return None
    except Invalid as refused:
        return refused if refused.reason == CATALOG_TABLE else None
    return None


def handle(location: Location, version: int | None) -> DeltaTable:
    """Return a new handle that nobody else uses."""
    from deltalake import DeltaTable

    return DeltaTable(location.url, version=version, storage_options=dict(location.options))


_CAPACITY = 1024
_COMMITS = 20
"""How many new commits are read one by one; after more of them the table is opened anew."""

_Key = tuple[int, str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class _Cached:
    """A snapshot, and by what it is seen to be valid still."""

    snapshot: Snapshot
    sizes: tuple[int | None, ...] = ()
    """On local disks: the sizes of the commit files below the head, back to the log's last checkpoint."""
    tag: str = ""
    """On an object store: its tag of the head's commit file."""


_cache: dict[_Key, _Cached] = {}


_lock = threading.Lock()


def recall(location: Location, version: int | None) -> Snapshot | None:
    """Return the snapshot of `version` (None: of the head) if it is remembered and still valid, or moved on from it."""
    cached = _cache.get(_key(location))
    if cached is None or version not in (None, cached.snapshot.version):
        return None
    if not location.is_local:
        return _followed(cached, is_head=version is None)
    snapshot = cached.snapshot
    commit = read_commit(location, snapshot.version)
    if commit is None or commit.sha != snapshot.log_hash or _sizes(snapshot) != cached.sizes:
        return None
    moved = version is None and location.size(log_path(snapshot.version + 1)) is not None
    return None if moved else snapshot


def _followed(cached: _Cached, *, is_head: bool) -> Snapshot | None:
    """Return the snapshot after all commits that one listing shows; None: the table has to be opened."""
    snapshot = cached.snapshot
    location, head = snapshot.location, _name(snapshot.version)
    tags = location.tags(LOG, after=_name(snapshot.version - 1))
    tag = tags.get(head)
    if tag is None:  # the listing lags, or the commit is gone
        found = location.read_tagged(log_path(snapshot.version))
        tag = found[1] if found is not None else ""
    if not tag or tag != cached.tag:
        return None
    logged = [file for name in tags if (file := parse_log_name(name)) is not None and file.kind == "commit"]
    newer = sorted(file.version for file in logged if file.version > snapshot.version)
    if not newer or not is_head:
        return snapshot
    if newer != [*range(snapshot.version + 1, newer[-1] + 1)] or len(newer) > _COMMITS:
        return None
    following: Snapshot | None = snapshot
    for version in newer:
        found = location.read_tagged(log_path(version))
        if found is None or following is None:
            return None
        following = advance(following, Commit(location, version, found[0]), found[1])
    return following


def advance(snapshot: Snapshot, commit: Commit, tag: str) -> Snapshot | None:
    """Remember the table after one more commit, and return it. None: it may look different now.

    tag: what an object store calls the commit; on a disk none is needed.
    """
    if commit.changes_layout:
        return None
    known = snapshot.known_txns | {txn["appId"]: txn["version"] for txn in commit.actions_of("txn")}
    files = [followed for files in snapshot.listed if (followed := _files_after(files, commit)) is not None]
    after = replace(
        snapshot, version=commit.version, log_hash=commit.sha, known_txns=known, listed=files, opened=[], _facts={}
    )
    _cache_snapshot(_Cached(after, sizes=_sizes(after)) if after.location.is_local else _Cached(after, tag=tag))
    return after


def _files_after(files: Mapping[str, DataFile], commit: Commit) -> Mapping[str, DataFile] | None:
    """Return the files of a table after one more commit. None: there are too many, or rows of one are deleted."""
    removed = {unquote(action["path"]) for action in commit.actions_of("remove")}
    added = [replace(DataFile.of(action), path=unquote(action["path"])) for action in commit.actions_of("add")]
    after = {path: file for path, file in files.items() if path not in removed} | {file.path: file for file in added}
    return None if len(after) > MAX_LISTED_FILES or any(file.has_deletions for file in added) else after


def observed_tables(location: Location) -> SeenTable | None:
    """Return what is remembered of a table on an object store, for other processes."""
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
    """Remember a table as another process has seen it, unless this one has seen it itself."""
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


def _remember(snapshot: Snapshot) -> None:
    if snapshot.location.is_local:
        _cache_snapshot(_Cached(snapshot, sizes=_sizes(snapshot)))
        return
    name = _name(snapshot.version)
    tag = snapshot.location.tags(LOG, after=_name(snapshot.version - 1)).get(name, "")
    if tag:
        _cache_snapshot(_Cached(snapshot, tag=tag))


def _cache_snapshot(cached: _Cached) -> None:
    """Keep it, in place of an older one of the same table, and at most _CAPACITY in all."""
    key = _key(cached.snapshot.location)
    with _lock:
        _cache.pop(key, None)
        _cache[key] = cached
        while len(_cache) > _CAPACITY:
            del _cache[next(iter(_cache))]


def _name(version: int) -> str:
    """Return the name of a version's commit; before the first one, one that comes before all."""
    return log_path(version).rpartition("/")[2] if version >= 0 else ""


def _sizes(snapshot: Snapshot) -> tuple[int | None, ...]:
    return tuple(snapshot.location.size(log_path(version)) for version in range(snapshot.since, snapshot.version))


def _key(location: Location) -> _Key:
    """Return the cache key. A forked child starts with an empty cache: delta-rs' handles do not survive a fork."""
    return os.getpid(), location.url, frozenset(location.options.items())


@dataclass(frozen=True)
class Protocol:
    """What the table asks of those who write to it."""

    writer: int
    features: frozenset[str]
    """Of readers and writers; empty in tables that have only versions."""


@dataclass(frozen=True)
class Snapshot:
    """A table as of one version. It never advances by itself."""

    location: Location
    version: int
    table_id: str
    schema: Json
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    protocol: Protocol
    log_hash: str
    since: int
    """The version of the log's last checkpoint when the table was opened; 0: perhaps there is none."""
    known_txns: dict[str, int | None] = field(default_factory=dict, repr=False, compare=False)
    """Looked up before: each time costs a millisecond, and more in a table with many transactions."""
    _marks: dict[int, CommitMark] = field(default_factory=dict, repr=False, compare=False)
    """The commits that were looked at before."""
    _facts: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)
    opened: list[DeltaTable] = field(default_factory=list, repr=False, compare=False)
    """The handle, if it was needed before."""
    listed: list[Mapping[str, DataFile]] = field(default_factory=list, repr=False, compare=False)
    """All files by their paths, if they were needed before, or are known by following the commits."""

    @property
    def handle(self) -> DeltaTable:
        """delta-rs' view, shared with all who opened the same version: for reads, and commits that are not put."""
        if not self.opened:
            opened = handle(self.location, self.version)
            if str(opened.metadata().id) != self.table_id:
                raise Corrupt(
                    f"{self.location.url} was dropped and made again while it was read",
                    expected=f"version {self.version} of the table {self.table_id}",
                    help="look again: the next step sees the new table, and tells what it lacks",
                    reason="OTHER_TABLE",
                )
            self.opened.append(opened)
        return self.opened[0]

    @property
    def is_in_log(self) -> bool:
        """Whether the log still has this version as it was."""
        commit = read_commit(self.location, self.version)
        return commit is not None and commit.sha == self.log_hash

    def own_handle(self) -> DeltaTable:
        """Return a handle of its own, for an operation that advances its handle."""
        return handle(self.location, self.version)

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether any file has one: all files are looked at, and only if the table's features allow for it."""
        if "deletion vectors" not in self._facts:
            allowed = "deletionVectors" in self.protocol.features
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
        if app_id not in self.known_txns:
            self.known_txns[app_id] = self.handle.transaction_version(app_id)
        return self.known_txns[app_id]


def reopen(location: Location, version: int | None) -> Snapshot | None:
    """Return the table as of a version that the caller has just seen to be its head, without another request."""
    cached = _cache.get(_key(location)) if not location.is_local else None
    if cached is not None and cached.snapshot.version == version:
        return cached.snapshot
    return open_table(location, version)


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
        if (older := _cache.get(_key(location))) is not None:
            snapshot.inherit_marks(older.snapshot)
        _remember(snapshot)
    return snapshot
