"""Builds the file of a commit that adds and removes data files, as delta-rs would write it.

delta-rs reads the log again before and after a commit, and the table must be opened again to use it. On an object
store, each of these requests takes tens of milliseconds; on a disk they take five together. Instead, such a commit is
one conditional put of this file, after which the new version is known without a request. All other commits, such as a
new table or column, are left to delta-rs, and so are tables whose features it must check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from tidegate import seams
from tidegate.delta.files.footers import StagedFile
from tidegate.delta.log.active_files import LiveFile
from tidegate.delta.log.files import DataFile
from tidegate.delta.log.snapshot import Snapshot
from tidegate.records.records import Json

__all__ = ["can_be_put", "commit_file"]

_PLAIN: Final = {"appendOnly", "invariants", "timestampNtz", "deletionVectors", "v2Checkpoint", "changeDataFeed"}
"""Features that require nothing of a commit of whole files."""
_NAMED_FEATURES: Final = 7
"""The writer version from which on a table lists its features."""
_ENGINE: Final = "tidegate"
_UNENCODED: Final = "/=:+&;'~@!$(),"
"""The characters that delta-rs does not encode in a path. A file must be removed under exactly the path under which
it was added."""


def can_be_put(snapshot: Snapshot, removed: Sequence[LiveFile | DataFile]) -> bool:
    """Return whether a commit of file actions can be written without delta-rs."""
    if not snapshot.location.can_put_new:
        return False
    protocol = snapshot.protocol
    has_plain_features = protocol.writer == _NAMED_FEATURES and protocol.features <= _PLAIN
    if protocol.writer > 2 and not has_plain_features:
        return False
    is_append_only = snapshot.configuration.get("delta.appendOnly", "").lower() == "true"
    return not (removed and is_append_only)


def commit_file(
    snapshot: Snapshot,
    added: Sequence[StagedFile],
    removed: Sequence[LiveFile | DataFile],
    info: Json,
    transactions: Mapping[str, int],
) -> bytes:
    """Return the content of a commit file for the version directly after `snapshot`."""
    millis = int(seams.now().timestamp() * 1000)
    commit_info = {
        "timestamp": millis,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": _text(list(snapshot.partition_by))},
        "engineInfo": _ENGINE,
        **info,
    }
    actions: list[Json] = [{"commitInfo": commit_info}]
    actions += [{"txn": {"appId": app_id, "version": id}} for app_id, id in transactions.items()]
    actions += [{"add": _add(file, millis)} for file in added]
    actions += [{"remove": _remove(file, millis)} for file in removed]
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def _add(file: StagedFile, millis: int) -> Json:
    action = _file_fields(file.path, file.size, file.partition) | {"modificationTime": millis, "dataChange": True}
    if file.stats:
        action["stats"] = file.stats
    return action


def _remove(file: LiveFile | DataFile, millis: int) -> Json:
    action = _file_fields(file.path, file.size, file.partition_texts())
    return action | {"deletionTimestamp": millis, "dataChange": True, "extendedFileMetadata": True}


def _file_fields(path: str, size: int, partition: Mapping[str, str | None]) -> Json:
    return {"path": quote(path, safe=_UNENCODED), "partitionValues": dict(partition), "size": size}


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
