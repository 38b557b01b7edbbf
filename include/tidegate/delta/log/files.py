"""The files of a Delta log, read as they are: their names, and the actions of each commit.

Every reader of a log starts here: nothing else parses the name of a log file or the lines of a commit.
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
"""How many versions back empty commit files are looked for; delta-rs writes a checkpoint every 100."""


@dataclass(frozen=True)
class LogFile:
    """A file of the log, and what its name says about it."""

    name: str
    version: int
    kind: Literal["commit", "checkpoint"]
    parts: int | None = None
    """Of one part of a checkpoint: the number of its parts."""

    @property
    def path(self) -> str:
        """Relative to the table."""
        return f"{LOG}/{self.name}"

    @property
    def is_classic_checkpoint(self) -> bool:
        """Return true if it is a whole checkpoint in one file of the first format, the only one that delta-rs
        writes."""
        return self.name == f"{self.version:020d}.checkpoint.parquet"


MAX_LISTED_FILES = 1000
"""Which files a table has is remembered up to this number."""


@dataclass(frozen=True)
class DataFile:
    """A data file as an action in the log describes it."""

    path: str
    """Relative to the table, or absolute; not encoded."""
    size: int
    values: dict[str, str | None]
    """Partition values, as the log has them."""
    has_deletions: bool = False
    rows: int | None = None
    """The number of rows, without deleted ones; None if the log does not say."""

    @classmethod
    def of(cls, action: Json) -> DataFile:
        """The file that an `add`, `remove` or `cdc` action names."""
        deletions = action.get("deletionVector") or {}
        count = record_count(action.get("stats"))
        deleted = deletions.get("cardinality", None if deletions else 0)
        return cls(
            path=re.sub("^file:/+", "/", unquote(action["path"])),
            size=int(action.get("size") or 0),
            values=dict(action.get("partitionValues") or {}),
            has_deletions=action.get("deletionVector") is not None,
            rows=count - deleted if count is not None and isinstance(deleted, int) else None,
        )

    def partition_texts(self) -> dict[str, str | None]:
        """Return the partition values in the log's form."""
        return self.values


@dataclass(frozen=True)
class Commit:
    """One version's commit file, byte for byte."""

    location: Location
    version: int
    data: bytes = field(repr=False)

    @cached_property
    def sha(self) -> str:
        """The version's log hash: a table that was dropped and created again has a different one at this version."""
        return sha256(self.data)

    def actions(self) -> list[Json]:
        """Return the actions, or raise Corrupt if the file is empty or ends in the middle of one."""
        return self._actions

    @cached_property
    def _actions(self) -> list[Json]:
        if not self.data.strip():
            raise _torn(self.location, self.version, "is empty")
        try:
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in self.data.splitlines() if line]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _torn(self.location, self.version, f"cannot be read ({error})") from error

    def actions_of(self, kind: str) -> list[Json]:
        """Return the contents of all actions of this kind, such as "add"."""
        return [action[kind] for action in self.actions() if kind in action]

    # -- who made it, and when ---------------------------------------------------------------------------

    def info(self) -> Json:
        """Return the commitInfo action; empty if there is none."""
        return next(iter(self.actions_of("commitInfo")), {})

    def tags(self) -> Json:
        """Return tidegate's tags; empty for another writer's commit."""
        return {name: value for name, value in self.info().items() if name.startswith("tidegate.")}

    def txn(self, app_id: str) -> int | None:
        """Return the transaction version of `app_id` that this very commit carries."""
        return next((txn["version"] for txn in self.actions_of("txn") if txn["appId"] == app_id), None)

    @property
    def operation(self) -> str:
        """The name of the operation, for display; empty if the commit has none."""
        return str(self.info().get("operation", ""))

    @property
    def millis(self) -> int | None:
        """When it was made, if it says so."""
        millis = self.info().get("inCommitTimestamp", self.info().get("timestamp"))
        return millis if isinstance(millis, int) else None

    # -- what it changes -----------------------------------------------------------------------------------

    def added_paths(self) -> set[str]:
        """Return the paths of all files that it adds, also of those that only move rows."""
        return {unquote(add["path"]) for add in self.actions_of("add")}

    def removed_paths(self) -> set[str]:
        """Return the paths of all files that it removes, also of those whose rows it only moves."""
        return {unquote(remove["path"]) for remove in self.actions_of("remove")}

    @cached_property
    def added_files(self) -> list[DataFile]:
        """The files with new rows."""
        return [DataFile.of(add) for add in self.actions_of("add") if add.get("dataChange", True)]

    @cached_property
    def removed_files(self) -> list[DataFile]:
        """The files whose rows it deletes or rewrites differently."""
        return [DataFile.of(remove) for remove in self.actions_of("remove") if remove.get("dataChange", True)]

    @cached_property
    def change_files(self) -> list[DataFile]:
        """The files that the change feed of this version is read from."""
        return [DataFile.of(cdc) for cdc in self.actions_of("cdc")] or [*self.added_files, *self.removed_files]

    @property
    def changes_layout(self) -> bool:
        """Return true if schema, properties or features change."""
        return any("metaData" in action or "protocol" in action for action in self.actions())

    def changes_rows(self) -> bool:
        """Return whether a reader sees other rows or columns: not after VACUUM, OPTIMIZE, or a bare transaction."""
        moved = [*self.actions_of("add"), *self.actions_of("remove")]
        return self.changes_layout or any(file.get("dataChange", False) for file in moved)

    def make_durable(self) -> None:
        """Sync the commit and its folder on local disks: delta-rs does not."""
        self.location.sync([log_path(self.version)])


@dataclass(frozen=True)
class CommitMark:
    """Who made a commit: what is remembered of it, since it is looked at again and again."""

    version: int
    sha: str
    tags: Json
    """See Commit.tags."""
    transactions: dict[str, int]

    @classmethod
    def of(cls, commit: Commit) -> CommitMark:
        """What is remembered of this commit."""
        transactions = {txn["appId"]: txn["version"] for txn in reversed(commit.actions_of("txn"))}
        return cls(commit.version, commit.sha, commit.tags(), transactions)


def log_path(version: int) -> str:
    """Return where a version's commit is, relative to the table."""
    return f"{LOG}/{version:020d}.json"


def parse_log_name(name: str) -> LogFile | None:
    """Return what a name in the log's folder stands for; None: neither a commit nor a checkpoint."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind: Literal["commit", "checkpoint"] = "checkpoint" if match[2] else "commit"
    return LogFile(name, int(match[1]), kind, int(match[3]) if match[3] else None)


def list_log(location: Location) -> list[LogFile]:
    """Return the commits and checkpoints in the log's folder, by name; empty if there is no such folder."""
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
    """The part of a file's statistics that is used here."""

    numRecords: int | None = None


def record_count(stats: object) -> int | None:
    """Return the number of rows in a file's statistics, deleted ones included; None if they do not say."""
    try:
        return typed.decode(stats, _Stats).numRecords if isinstance(stats, str) and stats else None
    except msgspec.MsgspecError:
        return None


def read_commit(location: Location, version: int) -> Commit | None:
    """Return a version's commit file, or None."""
    data = location.read(log_path(version))
    return None if data is None else Commit(location, version, data)


def check_tail(location: Location, version: int) -> Commit:
    """Return the head's commit, readable and durable; on local disks, check that no version before it is empty.

    A power loss can leave a commit file without content, and both engines take it for a version without changes. The
    head is synced before anyone builds on it: its writer may have died before it did so.
    """
    head = read_commit(location, version)
    if head is None:
        raise Corrupt(
            f"{location.url}: the commit file of version {version} is gone, which is the table's head",
            expected=log_path(version),
            help="restore it from a copy of the storage; run `tidegate doctor`",
            reason="LOG_MISSING",
        )
    head.actions()
    head.make_durable()
    if location.is_local:
        for older in range(max(last_checkpoint(location), version - _TAIL) + 1, version):
            if location.size(log_path(older)) == 0:
                raise _torn(location, older, "is empty")
    return head


def has_log(location: Location) -> bool:
    """Return whether there is any part of a log; the unfinished file of somebody who is creating one does not count."""
    return any(not path.endswith(".tmp") for path, _ in location.walk(LOG))


def half_a_log(location: Location, error: Exception) -> Corrupt:
    """Return the error for a table that delta-rs does not find although there is a part of its log."""
    return Corrupt(
        f"{location.url} has a {LOG} folder with {len(location.walk(LOG))} files, but no readable table: "
        f"{error_text(error)}",
        expected="a complete log, or none at all",
        help="restore the log from a copy of the storage, or move the folder away",
        reason="LOG_BROKEN",
    )


def refuse_unreadable(location: Location, version: int | None, error: Exception) -> TidegateError:
    """Return why delta-rs cannot read the table, as precisely as the log's files show it."""
    versions = [file.version for file in list_log(location) if file.kind == "commit"]
    if not versions:
        return unavailable(location.url, error)
    if version is not None and version > versions[-1]:
        return Corrupt(
            f"{location.url} ends at version {versions[-1]}; version {version} is gone",
            expected=f"at least version {version}, which was published",
            help="the table was dropped, made again or put back from a copy: roll back, or restore the table",
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
    """Return the version of the last Delta log checkpoint, or 0; only a hint."""
    data = location.read(f"{LOG}/_last_checkpoint")
    try:
        return int(msgspec.json.decode(data or b"{}", type=dict[str, Any]).get("version", 0))
    except (msgspec.DecodeError, ValueError, TypeError):
        return 0  # Only a hint, to engines as well.


def _torn(location: Location, version: int, how: str) -> Corrupt:
    return Corrupt(
        f"{location.url}: the commit file of version {version} {how}; a crash or a full disk tore it",
        expected="the commit as it was written",
        help=f"restore {log_path(version)} from a copy; remove it only if it was never acknowledged",
        reason="LOG_TORN",
    )
