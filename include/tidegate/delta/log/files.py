"""The log's own files, read as they lie there: what delta-rs does not tell, and what it does not notice."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from tidegate.delta.files.access import Location, told, unavailable
from tidegate.errors import Corrupt, TidegateError
from tidegate.records.codec import sha256
from tidegate.records.records import Json

__all__ = [
    "LOG",
    "Commit",
    "check_tail",
    "half_a_log",
    "has_log",
    "last_checkpoint",
    "log_path",
    "read_commit",
    "refuse_unreadable",
]

LOG = "_delta_log"
_COMMIT = re.compile(r"_delta_log/([0-9]{20})\.json")
_TAIL = 200
"""How many versions back empty commit files are looked for; delta-rs writes a checkpoint every 100."""


@dataclass(frozen=True)
class Commit:
    """One version's commit file, byte for byte."""

    location: Location
    version: int
    data: bytes = field(repr=False)

    @property
    def sha(self) -> str:
        """The version's log hash: a table that was dropped and made again has another one at this version."""
        return sha256(self.data)

    def actions(self) -> list[Json]:
        """The actions, or Corrupt if the file is empty or ends in the middle of one."""
        if not self.data.strip():
            raise _torn(self.location, self.version, "is empty")
        try:
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in self.data.splitlines() if line]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _torn(self.location, self.version, f"cannot be read ({error})") from error

    def info(self) -> Json:
        """The commitInfo action; empty if there is none."""
        return next((action["commitInfo"] for action in self.actions() if "commitInfo" in action), {})

    def tags(self) -> Json:
        """tidegate's tags; empty for a commit of somebody else."""
        return {name: value for name, value in self.info().items() if name.startswith("tidegate.")}

    def txn(self, app_id: str) -> int | None:
        """The transaction version of `app_id` that this very commit carries."""
        found = (action["txn"] for action in self.actions() if "txn" in action)
        return next((txn["version"] for txn in found if txn["appId"] == app_id), None)

    def added(self) -> set[str]:
        """The files that this commit added."""
        return {unquote(action["add"]["path"]) for action in self.actions() if "add" in action}

    def changes_rows(self) -> bool:
        """Whether a reader sees other rows or columns: not after VACUUM, or OPTIMIZE, or a bare transaction."""
        moved = (action.get("add") or action.get("remove") or {} for action in self.actions())
        return any(file.get("dataChange", False) for file in moved) or any(
            "metaData" in action or "protocol" in action for action in self.actions()
        )

    def make_durable(self) -> None:
        """Sync the commit and its folder on local disks: delta-rs does not."""
        self.location.sync([log_path(self.version)])


def log_path(version: int) -> str:
    """Where a version's commit lies, relative to the table."""
    return f"{LOG}/{version:020d}.json"


def read_commit(location: Location, version: int) -> Commit | None:
    """A version's commit file, or None."""
    data = location.read(log_path(version))
    return None if data is None else Commit(location, version, data)


def check_tail(location: Location, version: int) -> Commit:
    """The head's commit, readable and durable. On local disks also none of the versions before it is empty.

    A power loss can leave a commit file without content; both engines take it for a version without
    changes. It is synced before anyone builds on it: its writer may not have come to that.
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
    """Whether there is any part of a log; not what somebody who makes one has not finished."""
    return any(not path.endswith(".tmp") for path, _ in location.walk(LOG))


def half_a_log(location: Location, error: Exception) -> Corrupt:
    """delta-rs finds no table, and yet there is a part of one."""
    return Corrupt(
        f"{location.url} has a {LOG} folder with {len(location.walk(LOG))} files, but no readable table: {told(error)}",
        expected="a complete log, or none at all",
        help="restore the log from a copy of the storage, or move the folder away",
        reason="LOG_BROKEN",
    )


def refuse_unreadable(location: Location, version: int | None, error: Exception) -> TidegateError:
    """Why delta-rs cannot read the table, as precisely as the raw log tells."""
    versions = sorted(int(match[1]) for path, _ in location.walk(LOG) if (match := _COMMIT.fullmatch(path)))
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
            if found := read_commit(location, candidate):
                found.actions()
        except Corrupt as torn:
            return torn
    return Corrupt(
        f"{location.url} cannot be read: {told(error)}",
        expected="a Delta table that delta-rs can read",
        help="run `tidegate doctor`; restore the log from a copy of the storage",
        reason="LOG_BROKEN",
    )


def last_checkpoint(location: Location) -> int:
    """The version of Delta's own last checkpoint, or 0; only a hint."""
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
