"""A Delta table's log as a source reads it: its versions, their files, the snapshot that they add up to.

Read as it lies there, with pyarrow for checkpoints. delta-rs hides deletion vectors, does not open every
table that Spark reads, and gives partition values as types of its own instead of the text in the log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from tidegate.delta.files.access import Location, file_system, unavailable
from tidegate.delta.log.files import LOG, read_commit
from tidegate.errors import Invalid
from tidegate.records.records import Json

__all__ = ["DataFile", "TableLayout", "TableLog", "Version"]

_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(
    r"([0-9]{20})\.checkpoint(?:\.([0-9]{10})\.([0-9]{10})|\.[0-9a-fA-F-]{36})?\.(parquet|json)"
)
_PLAIN_FEATURES: Final = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors"}
"""Reader features under which a data file without a deletion vector is just a Parquet file."""

_HERE_ONLY: Final = {"catalogManaged", "catalogOwned", "catalogOwned-preview"}
"""Features under which the log's files are not the table: a catalog decides."""


@dataclass(frozen=True)
class DataFile:
    """One file that a version adds."""

    path: str
    """Relative to the table, or absolute; not encoded."""
    size: int
    values: dict[str, str | None]
    """Partition values, as the log has them."""
    has_deletions: bool = False
    rows: int | None = None
    """How many it holds, if the log says so, without those that are deleted."""


@dataclass(frozen=True)
class TableLayout:
    """How a version of the table is to be read."""

    table: str
    schema: Json
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    features: frozenset[str]

    @property
    def is_plain(self) -> bool:
        """Whether Spark's Parquet reader gives the rows as they are, if there are no deletion vectors."""
        return self.features <= _PLAIN_FEATURES and self.configuration.get("delta.columnMapping.mode", "none") == "none"

    @property
    def has_change_feed(self) -> bool:
        """Whether row changes are recorded."""
        return self.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"


@dataclass(frozen=True)
class Version:
    """One commit."""

    number: int
    sha: str
    actions: list[Json]

    @cached_property
    def added(self) -> list[DataFile]:
        """Files with new rows."""
        return [_data_file(add) for add in self._of("add") if add.get("dataChange", True)]

    @cached_property
    def removed(self) -> list[DataFile]:
        """Files whose rows were deleted or rewritten differently."""
        return [_data_file(remove) for remove in self._of("remove") if remove.get("dataChange", True)]

    @cached_property
    def changes(self) -> list[DataFile]:
        """The files that the change feed of this version is read from."""
        return [_data_file(cdc) for cdc in self._of("cdc")] or [*self.added, *self.removed]

    @property
    def changes_layout(self) -> bool:
        """Whether schema, properties or features change."""
        return any("metaData" in action or "protocol" in action for action in self.actions)

    @property
    def operation(self) -> str:
        """What made it, for people."""
        return str(next((info.get("operation", "") for info in self._of("commitInfo")), ""))

    @property
    def millis(self) -> int | None:
        """When it was made, if it says so."""
        info: Json = next(iter(self._of("commitInfo")), {})
        value = info.get("inCommitTimestamp", info.get("timestamp"))
        return value if isinstance(value, int) else None

    def _of(self, kind: str) -> list[Json]:
        return [action[kind] for action in self.actions if kind in action]


class TableLog:
    """The log of one table. Reads what it is asked for, and keeps nothing but the listing."""

    def __init__(self, location: Location) -> None:
        self.location = location

    @cached_property
    def names(self) -> list[str]:
        """All names in the log's folder, once listed."""
        try:
            if self.location.is_local:
                return sorted(os.listdir(self.location.local(LOG)))
            return [path.rpartition("/")[2] for path, _ in self.location.walk(LOG) if path.count("/") == 1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unavailable(self.location.url, error) from error

    @cached_property
    def commits(self) -> list[int]:
        """The versions whose commit files are still there."""
        return [int(match[1]) for name in self.names if (match := _COMMIT.fullmatch(name))]

    @property
    def head(self) -> int | None:
        """The last version, or None: there is no table."""
        return max([*self.commits, *self._checkpoints], default=None)

    def version(self, number: int) -> Version | None:
        """A commit, or None if its file is not there."""
        found = read_commit(self.location, number) if number >= 0 else None
        return None if found is None else Version(number, found.sha, found.actions())

    def layout(self, number: int) -> TableLayout:
        """How to read version `number`: the last metaData and protocol up to it."""
        found: dict[str, Json] = {}
        checkpoint = self._checkpoint(number)
        for version in range(number, checkpoint, -1):
            commit = read_commit(self.location, version)
            if commit is None:
                raise self._cleaned(number, version)
            if b'"metaData"' in commit.data or b'"protocol"' in commit.data:
                for action in commit.actions():
                    for kind in ("metaData", "protocol"):
                        if kind in action:
                            found.setdefault(kind, action[kind])
            if len(found) == 2:
                break
        if len(found) < 2 and checkpoint >= 0:
            for action in self._checkpoint_rows(checkpoint, ("metaData", "protocol")):
                for kind, value in action.items():
                    found.setdefault(kind, value)
        if len(found) < 2:
            raise self._cleaned(number, 0)
        return _layout(self.location, found["metaData"], found["protocol"])

    def snapshot(self, number: int) -> Sequence[DataFile]:
        """All files of version `number`, always in the same order."""
        checkpoint = self._checkpoint(number)
        latest: dict[str, Json | None] = {}
        for at in range(checkpoint + 1, number + 1):
            version = self.version(at)
            if version is None:
                raise self._cleaned(number, at)
            latest |= {action["remove"]["path"]: None for action in version.actions if "remove" in action}
            latest |= {action["add"]["path"]: action["add"] for action in version.actions if "add" in action}
        files = [add for add in latest.values() if add is not None]
        if checkpoint < 0:
            return [_data_file(add) for add in sorted(files, key=lambda add: str(add["path"]))]
        return _Snapshot(self._checkpoint_adds(checkpoint), latest.keys(), files)

    # -- checkpoints -----------------------------------------------------------------------------------

    @cached_property
    def _checkpoints(self) -> dict[int, list[str]]:
        """Complete checkpoints: version → file names."""
        found: dict[int, list[str]] = {}
        parts: dict[tuple[int, int], list[str]] = {}
        for name in self.names:
            if not (match := _CHECKPOINT.fullmatch(name)):
                continue
            if match[2] is None:
                found[int(match[1])] = [name]
            else:
                parts.setdefault((int(match[1]), int(match[3])), []).append(name)
        for (version, count), names in parts.items():
            if len(names) == count:
                found.setdefault(version, names)
        return found

    def _checkpoint(self, number: int) -> int:
        """The last checkpoint up to version `number`; -1: the log begins at version 0."""
        return max((version for version in self._checkpoints if version <= number), default=-1)

    def _checkpoint_rows(self, version: int, kinds: tuple[str, ...]) -> Iterator[Json]:
        """Actions of some kinds (not add, which may be many)."""
        for name in self._checkpoints[version]:
            if name.endswith(".json"):
                lines = (self.location.read(f"{LOG}/{name}") or b"").splitlines()
                rows = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines if line]
            else:
                rows = self._table(f"{LOG}/{name}", kinds).to_pylist(maps_as_pydicts="strict")
            for row in rows:
                if found := {kind: row[kind] for kind in kinds if row.get(kind) is not None}:
                    yield found

    def _checkpoint_adds(self, version: int) -> list[Any]:
        """Tables with a column `add`, from the checkpoint's files and its sidecars."""
        names = [f"{LOG}/{name}" for name in self._checkpoints[version] if name.endswith(".parquet")]
        sidecars = [row["sidecar"]["path"] for row in self._checkpoint_rows(version, ("sidecar",))]
        names += [path if "/" in path else f"{LOG}/_sidecars/{path}" for path in map(unquote, sidecars)]
        return [self._table(name, ("add",)) for name in names]

    def _table(self, path: str, columns: tuple[str, ...]) -> Any:
        """Some columns of a Parquet file of the log; those that it lacks are left out."""
        import pyarrow.parquet

        system = None if self.location.is_local else file_system(self.location)
        try:
            source = str(self.location.local(path)) if system is None else system.open_input_file(path)
            with pyarrow.parquet.ParquetFile(source) as file:
                return file.read(columns=[name for name in columns if name in file.schema_arrow.names])
        except (OSError, pyarrow.ArrowException) as error:
            raise unavailable(self.location.full(path), error) from error

    def _cleaned(self, wanted: int, missing: int) -> Invalid:
        return Invalid(
            f"{self.location.url}: version {wanted} cannot be read any more: the log has no version {missing}",
            expected="the commit files from the last checkpoint on, which delta.logRetentionDuration keeps",
            help="restore them from a copy; or give the source another name, and it starts from the table as it is now",
            reason="LOG_CLEANED",
        )


class _Snapshot(Sequence[DataFile]):
    """The files of a checkpoint and what came after it, sorted by path. Rows become objects when asked for."""

    def __init__(self, tables: list[Any], replaced: Any, files: list[Json]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        gone = pa.array(list(replaced), pa.string())
        rows = []
        for table in tables:
            if "add" not in table.column_names:
                continue
            adds = table.filter(pc.is_valid(table["add"]))["add"].combine_chunks()
            fields = [adds.type.field(i).name for i in range(adds.type.num_fields)]
            deletions = pc.struct_field(adds, "deletionVector") if "deletionVector" in fields else None
            path, none = pc.cast(pc.struct_field(adds, "path"), pa.string()), pa.nulls(len(adds), pa.string())
            columns = {
                "path": path,
                "size": pc.cast(pc.struct_field(adds, "size"), pa.int64()),
                "values": pc.struct_field(adds, "partitionValues"),
                "deletions": pc.is_valid(deletions) if deletions is not None else pa.array([False] * len(adds)),
                "stats": pc.cast(pc.struct_field(adds, "stats"), pa.string()) if "stats" in fields else none,
            }
            rows.append(pa.table(columns).filter(pc.invert(pc.is_in(path, gone))))
        self._rows = rows
        self._later = files
        paths = [*(row["path"] for row in rows), pa.chunked_array([[str(add["path"]) for add in files]], pa.string())]
        chunks = [chunk for column in paths for chunk in column.chunks]
        self._order = pc.sort_indices(pa.chunked_array(chunks, pa.string()))

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        index = self._order[at].as_py()
        for rows in self._rows:
            if index < len(rows):
                row = rows.slice(index, 1).to_pylist()[0]
                count = None if row["deletions"] else _records(row["stats"])
                return DataFile(unquote(row["path"]), row["size"], dict(row["values"] or []), row["deletions"], count)
            index -= len(rows)
        return _data_file(self._later[index])


def _data_file(action: Json) -> DataFile:
    return DataFile(
        path=_path(action["path"]),
        size=int(action.get("size") or 0),
        values=dict(action.get("partitionValues") or {}),
        has_deletions=action.get("deletionVector") is not None,
        rows=_rows(action),
    )


def _rows(action: Json) -> int | None:
    deletions = action.get("deletionVector") or {}
    found, deleted = _records(action.get("stats")), deletions.get("cardinality", None if deletions else 0)
    return found - deleted if found is not None and isinstance(deleted, int) else None


class _Stats(msgspec.Struct):
    """What of a file's statistics is of use here."""

    numRecords: int | None = None


def _records(stats: object) -> int | None:
    """How many rows a file's statistics say that it has."""
    try:
        return msgspec.json.decode(stats, type=_Stats).numRecords if isinstance(stats, str) and stats else None
    except msgspec.MsgspecError:
        return None


def _path(encoded: str) -> str:
    """A file's path as it is on storage; an absolute local one without its scheme."""
    path = unquote(encoded)
    return re.sub("^file:/+", "/", path)


def _layout(location: Location, metadata: Json, protocol: Json) -> TableLayout:
    features = set(protocol.get("readerFeatures") or ())
    if protocol.get("minReaderVersion", 1) == 2:
        features.add("columnMapping")
    if found := sorted(features & _HERE_ONLY | set(protocol.get("writerFeatures") or ()) & _HERE_ONLY):
        raise Invalid(
            f"{location.url} is managed by a catalog ({', '.join(found)}): its log alone does not tell what is in it",
            expected="a table whose log is the truth",
            help="read it in a stage with Spark's catalog, or copy it to a table of its own",
            reason="CATALOG_TABLE",
        )
    return TableLayout(
        table=str(metadata["id"]),
        schema=msgspec.json.decode(metadata["schemaString"], type=dict[str, Any]),
        partition_by=tuple(metadata.get("partitionColumns") or ()),
        configuration=dict(metadata.get("configuration") or {}),
        features=frozenset(features),
    )
