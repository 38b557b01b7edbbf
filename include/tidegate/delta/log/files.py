"""Parses the files of a Delta log: their names, and the actions of each commit.

No other module parses the name of a log file or the lines of a commit.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from tidegate.delta.files.access import Location, error_text, unavailable
from tidegate.errors import Corrupt, TidegateError
from tidegate.records import typed
from tidegate.records.codec import sha256
from tidegate.records.records import Json

__all__ = [
    "LOG",
    "MAX_LISTED_FILES",
    "Commit",
    "CommitMark",
    "DataFile",
    "LogFile",
    "check_tail",
    "half_a_log",
    "has_log",
    "last_checkpoint",
    "list_log",
    "log_path",
    "parse_log_name",
    "read_commit",
    "record_count",
    "refuse_unreadable",
]

LOG = "_delta_log"
_NAME = re.compile(
    r"([0-9]{20})\.(?:json|(checkpoint)(?:\.[0-9]{10}\.([0-9]{10})|\.[0-9a-fA-F-]{36})?\.(?:parquet|json))"
)
_TAIL = 200
"""The number of versions to search for empty commit files. delta-rs writes a checkpoint every 100 versions."""


@dataclass(frozen=True)
class LogFile:
    """A file of the log, as its name describes it."""

    name: str
    version: int
    kind: Literal["commit", "checkpoint"]
    parts: int | None = None
    """For one part of a multi-part checkpoint: the number of parts."""

    @property
    def path(self) -> str:
        """Relative to the table."""
        return f"{LOG}/{self.name}"

    @property
    def is_classic_checkpoint(self) -> bool:
        """Whether it is a complete checkpoint in a single file of the first format, the only one that delta-rs
        writes."""
        return self.name == f"{self.version:020d}.checkpoint.parquet"


MAX_LISTED_FILES = 1000
"""The list of a table's files is cached up to this number."""


@dataclass(frozen=True)
class DataFile:
    """A data file as an action in the log describes it."""

    path: str
    """Relative to the table, or absolute; not encoded."""
    size: int
    values: dict[str, str | None]
    """Partition values in the log's form."""
    has_deletions: bool = False
    rows: int | None = None
    """The number of rows, without deleted ones. None if the log does not contain it."""

    @classmethod
    def from_action(cls, action: Json) -> DataFile:
        """Return the file that an `add`, `remove` or `cdc` action names."""
        deletions = action.get("deletionVector") or {}
        rows = record_count(action.get("stats"))
        if deletions and rows is not None:
            deleted = deletions.get("cardinality")
            rows = rows - deleted if isinstance(deleted, int) else None
        return cls(
            path=re.sub("^file:/+", "/", unquote(action["path"])),
            size=int(action.get("size") or 0),
            values=dict(action.get("partitionValues") or {}),
            has_deletions=action.get("deletionVector") is not None,
            rows=rows,
        )

    def partition_texts(self) -> dict[str, str | None]:
        """Return the partition values in the log's form."""
        return self.values


@dataclass(frozen=True)
class Commit:
    """The commit file of one version."""

    location: Location
    version: int
    data: bytes = field(repr=False)

    @cached_property
    def sha(self) -> str:
        """The version's log hash. If the table is dropped and created again, the same version has a different one."""
        return sha256(self.data)

    def actions(self) -> list[Json]:
        """Return the actions. Raise Corrupt if the file is empty or truncated."""
        return self._actions

    @cached_property
    def _actions(self) -> list[Json]:
        if not self.data.strip():
            raise _torn_error(self.location, self.version, "is empty")
        try:
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in self.data.splitlines() if line]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _torn_error(self.location, self.version, f"cannot be read ({error})") from error

    def actions_of(self, kind: str) -> list[Json]:
        """Return the contents of all actions of this kind, such as "add"."""
        return [action[kind] for action in self.actions() if kind in action]

    # -- who made it, and when ---------------------------------------------------------------------------

    def info(self) -> Json:
        """Return the commitInfo action, or {} if the commit has none."""
        infos = self.actions_of("commitInfo")
        return infos[0] if infos else {}

    def tags(self) -> Json:
        """Return tidegate's tags. Empty for another writer's commit."""
        return {name: value for name, value in self.info().items() if name.startswith("tidegate.")}

    def txn(self, app_id: str) -> int | None:
        """Return the transaction version of `app_id` in this commit, or None."""
        for txn in self.actions_of("txn"):
            if txn["appId"] == app_id:
                version: int = txn["version"]
                return version
        return None

    @property
    def operation(self) -> str:
        """The name of the operation, for display. Empty if the commit has none."""
        return str(self.info().get("operation", ""))

    @property
    def millis(self) -> int | None:
        """The commit time in milliseconds since 1970, if the commit contains it."""
        millis = self.info().get("inCommitTimestamp", self.info().get("timestamp"))
        return millis if isinstance(millis, int) else None

    # -- what it changes -----------------------------------------------------------------------------------

    def added_paths(self) -> set[str]:
        """Return the paths of all files that it adds, including rewritten files without new rows."""
        return {unquote(add["path"]) for add in self.actions_of("add")}

    def removed_paths(self) -> set[str]:
        """Return the paths of all files that it removes, including files whose rows it only moves."""
        return {unquote(remove["path"]) for remove in self.actions_of("remove")}

    @cached_property
    def added_files(self) -> list[DataFile]:
        """The files with new rows."""
        return [DataFile.from_action(add) for add in self.actions_of("add") if add.get("dataChange", True)]

    @cached_property
    def removed_files(self) -> list[DataFile]:
        """The files whose rows it deletes or rewrites differently."""
        return [DataFile.from_action(remove) for remove in self.actions_of("remove") if remove.get("dataChange", True)]

    @cached_property
    def change_files(self) -> list[DataFile]:
        """The files from which the change feed of this version is read."""
        files = [DataFile.from_action(cdc) for cdc in self.actions_of("cdc")]
        return files or [*self.added_files, *self.removed_files]

    @property
    def changes_layout(self) -> bool:
        """Whether schema, properties or features change."""
        return any("metaData" in action or "protocol" in action for action in self.actions())

    def changes_rows(self) -> bool:
        """Return whether rows or columns change: not for VACUUM, OPTIMIZE, or a transaction alone."""
        file_actions = [*self.actions_of("add"), *self.actions_of("remove")]
        return self.changes_layout or any(action.get("dataChange", False) for action in file_actions)

    def make_durable(self) -> None:
        """Sync the commit file and its folder on a local disk, since delta-rs does not."""
        self.location.sync([log_path(self.version)])


@dataclass(frozen=True)
class CommitMark:
    """The part of a commit that identifies its writer, which is cached because it is needed often."""

    version: int
    sha: str
    tags: Json
    """See Commit.tags."""
    transactions: dict[str, int]

    @classmethod
    def from_commit(cls, commit: Commit) -> CommitMark:
        """Return the mark of a commit."""
        transactions = {txn["appId"]: txn["version"] for txn in reversed(commit.actions_of("txn"))}
        return cls(commit.version, commit.sha, commit.tags(), transactions)


def log_path(version: int) -> str:
    """Return the path of a version's commit file, relative to the table."""
    return f"{LOG}/{version:020d}.json"


def parse_log_name(name: str) -> LogFile | None:
    """Parse a name in the log's folder. Return None if it is neither a commit nor a checkpoint."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    version = int(match[1])
    if not match[2]:
        return LogFile(name, version, "commit")
    return LogFile(name, version, "checkpoint", parts=int(match[3]) if match[3] else None)


def list_log(location: Location) -> list[LogFile]:
    """Return the commits and checkpoints in the log's folder, sorted by name. Empty if the folder does not exist."""
    try:
        if location.is_local:
            names = os.listdir(location.local(LOG))
        else:
            names = [path.rpartition("/")[2] for path, _ in location.walk(LOG) if path.count("/") == 1]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unavailable(location.url, error) from error
    return [file for file in map(parse_log_name, sorted(names)) if file is not None]


class _Stats(msgspec.Struct):
    """The part of a file's statistics that `record_count` needs."""

    numRecords: int | None = None


def record_count(stats: object) -> int | None:
    """Return the number of rows in a file's statistics, including deleted ones, or None if they lack it."""
    if not isinstance(stats, str) or not stats:
        return None
    try:
        return typed.decode(stats, _Stats).numRecords
    except msgspec.MsgspecError:
        return None


def read_commit(location: Location, version: int) -> Commit | None:
    """Return a version's commit file, or None if it does not exist."""
    data = location.read(log_path(version))
    if data is None:
        return None
    return Commit(location, version, data)


def check_tail(location: Location, version: int) -> Commit:
    """Return the head's commit after making it durable. Raise Corrupt if it is unreadable, or, on a local disk, if an
    earlier commit file is empty.

    A power loss can leave an empty commit file, which both engines read as a version without changes. The head is
    synced before anything builds on it, because its writer may have crashed before syncing it.
    """
    head = read_commit(location, version)
    if head is None:
        raise Corrupt(
            f"{location.url}: the commit file of version {version}, the table's head, is missing",
            expected=log_path(version),
            help="restore it from a copy of the storage; run `tidegate doctor`",
            reason="LOG_MISSING",
        )
    head.actions()
    head.make_durable()
    if location.is_local:
        for older in range(max(last_checkpoint(location), version - _TAIL) + 1, version):
            if location.size(log_path(older)) == 0:
                raise _torn_error(location, older, "is empty")
    return head


def has_log(location: Location) -> bool:
    """Return whether any part of a log exists, apart from temporary files of a process that is creating one."""
    return any(not path.endswith(".tmp") for path, _ in location.walk(LOG))


def half_a_log(location: Location, error: Exception) -> Corrupt:
    """Return the error for a table that delta-rs does not find although a part of its log exists."""
    return Corrupt(
        f"{location.url} has a {LOG} folder with {len(location.walk(LOG))} files, but no readable table: "
        f"{error_text(error)}",
        expected="a complete log, or no log",
        help="restore the log from a copy of the storage, or move the folder away",
        reason="LOG_BROKEN",
    )


def refuse_unreadable(location: Location, version: int | None, error: Exception) -> TidegateError:
    """Return an error that says, as precisely as the log's files show, why delta-rs cannot read the table."""
    versions = [file.version for file in list_log(location) if file.kind == "commit"]
    if not versions:
        return unavailable(location.url, error)
    if version is not None and version > versions[-1]:
        return Corrupt(
            f"{location.url} ends at version {versions[-1]}, so version {version} is gone",
            expected=f"at least version {version}, which was published",
            help="the table was dropped, created again or restored from a copy: roll back, or restore the newer table",
            reason="VERSION_GONE",
        )
    for candidate in reversed(versions[-_TAIL:]):
        try:
            if commit := read_commit(location, candidate):
                commit.actions()
        except Corrupt as torn:
            return torn
    return Corrupt(
        f"{location.url} cannot be read: {error_text(error)}",
        expected="a Delta table that delta-rs can read",
        help="run `tidegate doctor`; restore the log from a copy of the storage",
        reason="LOG_BROKEN",
    )


def last_checkpoint(location: Location) -> int:
    """Return the version of the last Delta log checkpoint according to the log's hint, or 0."""
    data = location.read(f"{LOG}/_last_checkpoint")
    try:
        return int(msgspec.json.decode(data or b"{}", type=dict[str, Any]).get("version", 0))
    except (msgspec.DecodeError, ValueError, TypeError):
        return 0  # Delta engines, too, treat it only as a hint.


def _torn_error(location: Location, version: int, problem: str) -> Corrupt:
    return Corrupt(
        f"{location.url}: the commit file of version {version} {problem}; a crash or a full disk tore it",
        expected="the commit as it was written",
        help=f"restore {log_path(version)} from a copy; remove it only if it was never acknowledged",
        reason="LOG_TORN",
    )
