"""Builds the file of a commit that adds and removes data files, as delta-rs would write it, or that widens columns.

delta-rs reads the log again before and after a commit, and the table must be opened again to use it. On an object
store, each of these requests takes tens of milliseconds; on a disk they take five together. Instead, such a commit is
one conditional put of this file, after which the new version is known without a request. All other commits, such as a
new table or column, are left to delta-rs, and so are tables whose features it must check. But delta-rs cannot change a
column's type, nor commit to a table that has ever done so.
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
from tidegate.delta.log.schema import schema_parts
from tidegate.delta.log.snapshot import Snapshot
from tidegate.records.records import Json

__all__ = ["TYPE_WIDENING", "can_be_put", "commit_file", "schema_commit_file"]

TYPE_WIDENING: Final = "typeWidening"
"""The feature of tables some of whose files have narrower types than their columns. Readers convert them."""
_TIMESTAMP_NTZ: Final = "timestampNtz"
_PLAIN: Final = {
    *("appendOnly", "invariants", _TIMESTAMP_NTZ, "deletionVectors", "v2Checkpoint", "changeDataFeed"),
    *(TYPE_WIDENING, f"{TYPE_WIDENING}-preview"),
}
"""Features that require nothing of a commit of whole files."""
_BEFORE_FEATURES: Final = ("appendOnly", "invariants")
"""What writer version 2 implies, before tables listed their features."""
_TYPE_CHANGES: Final = "delta.typeChanges"
"""The key in a column's metadata for the types that it had."""
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


def schema_commit_file(snapshot: Snapshot, schema: Json, info: Json, transactions: Mapping[str, int]) -> bytes:
    """Return the content of a commit file that gives the table this schema: with further columns, and wider types.

    For a table to which `can_be_put` applies.
    """
    before = {field["name"]: field for field in snapshot.schema["fields"]}
    fields = [
        _changed(before[field["name"]], field) if field["name"] in before else field for field in schema["fields"]
    ]
    metadata, protocol = snapshot.handle.metadata(), snapshot.handle.protocol()
    features: set[str] = set()
    configuration = dict(snapshot.configuration)
    if any(field["name"] in before and field["type"] != before[field["name"]]["type"] for field in fields):
        features.add(TYPE_WIDENING)
        configuration["delta.enableTypeWidening"] = "true"
    if any(part.type == "timestamp_ntz" for part in schema_parts({"fields": fields})):
        features.add(_TIMESTAMP_NTZ)
    readers, writers = set(protocol.reader_features or ()), set(protocol.writer_features or ())
    if protocol.min_writer_version < _NAMED_FEATURES:
        writers.update(_BEFORE_FEATURES)
    described = {"name": metadata.name, "description": metadata.description, "createdTime": metadata.created_time}
    table = {
        "id": snapshot.table_id,
        **{name: value for name, value in described.items() if value is not None},
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _text({"type": "struct", "fields": fields}),
        "partitionColumns": list(snapshot.partition_by),
        "configuration": configuration,
    }
    commit_info = {
        "timestamp": int(seams.now().timestamp() * 1000),
        "operation": "CHANGE COLUMNS",
        "operationParameters": {},
        "engineInfo": _ENGINE,
        **info,
    }
    actions: list[Json] = [{"commitInfo": commit_info}]
    actions += [{"txn": {"appId": app_id, "version": id}} for app_id, id in transactions.items()]
    if not features <= readers:
        versions = {"minReaderVersion": 3, "minWriterVersion": _NAMED_FEATURES}
        lists = {"readerFeatures": sorted(readers | features), "writerFeatures": sorted(writers | features)}
        actions.append({"protocol": {**versions, **lists}})
    actions.append({"metaData": table})
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def _changed(before: Json, after: Json) -> Json:
    """Return a column as it was, but with its new type, and a note of the change as Delta's protocol wants it."""
    if before["type"] == after["type"]:
        return before
    change = {"fromType": before["type"], "toType": after["type"]}
    changes = [*before["metadata"].get(_TYPE_CHANGES, ()), change]
    return {**before, "type": after["type"], "metadata": {**before["metadata"], _TYPE_CHANGES: changes}}


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
