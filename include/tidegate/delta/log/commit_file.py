"""The file of a commit that adds and removes data files, as delta-rs would write it.

delta-rs reads the log again before and after it commits, and so does whoever looks at the table next. On an object
store each of these requests costs tens of milliseconds; on a disk they cost five together. A commit is one conditional
put of this file, after which the table is known. Whatever else a commit may do, such as a new table or column, stays
with delta-rs, and so do tables whose features it has to check.
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
"""Features that ask nothing of a commit of whole files."""
_NAMED_FEATURES: Final = 7
"""The version of writers from which on a table names its features."""
_ENGINE: Final = "tidegate"
_UNENCODED: Final = "/=:+&;'~@!$(),"
"""What delta-rs leaves as it is in a path: a file is removed under the very name under which it was added."""


def can_be_put(snapshot: Snapshot, removed: Sequence[LiveFile | DataFile]) -> bool:
    """Return whether a commit of file actions may be put without delta-rs."""
    protocol = snapshot.protocol
    if not snapshot.location.can_put_new:
        return False
    named = protocol.writer == _NAMED_FEATURES and protocol.features <= _PLAIN
    rows_stay = snapshot.configuration.get("delta.appendOnly", "").lower() == "true"
    return (protocol.writer <= 2 or named) and not (removed and rows_stay)


def commit_file(
    snapshot: Snapshot,
    added: Sequence[StagedFile],
    removed: Sequence[LiveFile | DataFile],
    info: Json,
    transactions: Mapping[str, int],
) -> bytes:
    """Return the file of the commit right after `snapshot`."""
    millis = int(seams.now().timestamp() * 1000)
    about = {
        "timestamp": millis,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": _text(list(snapshot.partition_by))},
        "engineInfo": _ENGINE,
        **info,
    }
    actions: list[Json] = [{"commitInfo": about}]
    actions += [{"txn": {"appId": app_id, "version": id}} for app_id, id in transactions.items()]
    actions += [{"add": _add(file, millis)} for file in added]
    actions += [{"remove": _remove(file, millis)} for file in removed]
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def _add(file: StagedFile, millis: int) -> Json:
    action = _described(file.path, file.size, file.partition) | {"modificationTime": millis, "dataChange": True}
    return action | {"stats": file.stats} if file.stats else action


def _remove(file: LiveFile | DataFile, millis: int) -> Json:
    of_file = _described(file.path, file.size, file.partition_texts())
    return of_file | {"deletionTimestamp": millis, "dataChange": True, "extendedFileMetadata": True}


def _described(path: str, size: int, partition: Mapping[str, str | None]) -> Json:
    return {"path": quote(path, safe=_UNENCODED), "partitionValues": dict(partition), "size": size}


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
