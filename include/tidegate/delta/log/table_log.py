"""A table's versions, layouts and snapshots, replayed from the log's files without delta-rs.

The docstring of this package says why, and when to use which. Checkpoints are read with pyarrow, and their rows become
Python objects only when they are needed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from tidegate.delta.files.access import Location, file_system, unavailable
from tidegate.delta.log.catalog import refuse_catalog
from tidegate.delta.log.files import LOG, Commit, DataFile, LogFile, list_log, read_commit, record_count
from tidegate.errors import Invalid
from tidegate.records.records import Json

__all__ = ["TableFiles", "TableLayout", "TableLog"]

_PLAIN_FEATURES: Final = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors"}
"""Reader features with which a data file without a deletion vector is a plain Parquet file."""


@dataclass(frozen=True)
class TableLayout:
    """The schema, partitions and features that a reader of one version of the table needs."""

    table: str
    schema: Json
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    features: frozenset[str]

    @property
    def is_plain(self) -> bool:
        """Whether Spark's Parquet reader returns the right rows for files without deletion vectors."""
        has_column_mapping = self.configuration.get("delta.columnMapping.mode", "none") != "none"
        return self.features <= _PLAIN_FEATURES and not has_column_mapping

    @property
    def has_change_feed(self) -> bool:
        """Whether row changes are recorded."""
        return self.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"


class TableLog:
    """The log of one table. Each call reads the files that it needs; only the listing of the folder is cached."""

    def __init__(self, location: Location) -> None:
        self.location = location

    @cached_property
    def _files(self) -> list[LogFile]:
        return list_log(self.location)

    @cached_property
    def commits(self) -> list[int]:
        """The versions whose commit files still exist."""
        return [file.version for file in self._files if file.kind == "commit"]

    @property
    def head(self) -> int | None:
        """The last version, or None if the table does not exist."""
        return max([*self.commits, *self._checkpoints], default=None)

    def commit(self, version: int) -> Commit | None:
        """Return a version's commit, or None if its file does not exist. Raise Corrupt if it is truncated."""
        if version < 0:
            return None
        commit = read_commit(self.location, version)
        if commit is not None:
            commit.actions()
        return commit

    def layout(self, version: int) -> TableLayout:
        """Return how to read `version`: the last metaData and protocol up to it."""
        actions: dict[str, Json] = {}
        checkpoint = self._checkpoint(version)
        for number in range(version, checkpoint, -1):
            commit = read_commit(self.location, number)
            if commit is None:
                raise self._cleaned(version, number)
            if b'"metaData"' in commit.data or b'"protocol"' in commit.data:
                for kind in ("metaData", "protocol"):
                    for action in commit.actions_of(kind):
                        actions.setdefault(kind, action)
            if len(actions) == 2:
                break
        if len(actions) < 2 and checkpoint >= 0:
            for row in self._checkpoint_rows(checkpoint, ("metaData", "protocol")):
                for kind, action in row.items():
                    actions.setdefault(kind, action)
        if len(actions) < 2:
            raise self._cleaned(version, 0)
        return _layout(self.location, actions["metaData"], actions["protocol"])

    def snapshot(self, version: int) -> Sequence[DataFile]:
        """Return all files of `version`, always in the same order."""
        checkpoint = self._checkpoint(version)
        latest: dict[str, Json | None] = {}
        for number in range(checkpoint + 1, version + 1):
            commit = self.commit(number)
            if commit is None:
                raise self._cleaned(version, number)
            for remove in commit.actions_of("remove"):
                latest[remove["path"]] = None
            latest |= {add["path"]: add for add in commit.actions_of("add")}
        adds = [add for add in latest.values() if add is not None]
        if checkpoint < 0:
            return [DataFile.from_action(add) for add in sorted(adds, key=lambda add: str(add["path"]))]
        return TableFiles(self._checkpoint_adds(checkpoint), latest.keys(), adds)

    # -- checkpoints -----------------------------------------------------------------------------------

    @cached_property
    def _checkpoints(self) -> dict[int, list[str]]:
        """The file names of complete checkpoints, by version."""
        files = [file for file in self._files if file.kind == "checkpoint"]
        checkpoints = {file.version: [file.name] for file in files if file.parts is None}
        parts: dict[tuple[int, int], list[str]] = {}
        for file in files:
            if file.parts is not None:
                parts.setdefault((file.version, file.parts), []).append(file.name)
        for (version, count), names in parts.items():
            if len(names) == count:
                checkpoints.setdefault(version, names)
        return checkpoints

    def _checkpoint(self, version: int) -> int:
        """Return the last checkpoint up to `version`, or -1 if the log begins at version 0."""
        return max((number for number in self._checkpoints if number <= version), default=-1)

    def _checkpoint_rows(self, version: int, kinds: tuple[str, ...]) -> Iterator[Json]:
        """Yield a checkpoint's actions of some kinds. Not for `add`, of which a checkpoint may have very many."""
        for name in self._checkpoints[version]:
            if name.endswith(".json"):
                lines = (self.location.read(f"{LOG}/{name}") or b"").splitlines()
                rows = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines if line]
            else:
                rows = _rows_with_values(self._table(f"{LOG}/{name}", kinds)).to_pylist(maps_as_pydicts="strict")
            for row in rows:
                actions = {kind: row[kind] for kind in kinds if row.get(kind) is not None}
                if actions:
                    yield actions

    def _checkpoint_adds(self, version: int) -> list[Any]:
        """Return tables with a column `add`, from the checkpoint's files and sidecars."""
        names = []
        for name in self._checkpoints[version]:
            if name.endswith(".parquet"):
                names.append(f"{LOG}/{name}")
        sidecars = [row["sidecar"]["path"] for row in self._checkpoint_rows(version, ("sidecar",))]
        for path in map(unquote, sidecars):
            names.append(path if "/" in path else f"{LOG}/_sidecars/{path}")
        return [self._table(name, ("add",)) for name in names]

    def _table(self, path: str, columns: tuple[str, ...]) -> Any:
        """Read columns of a Parquet file of the log, as far as it has them."""
        import pyarrow.parquet

        try:
            if self.location.is_local:
                source = str(self.location.local(path))
            else:
                source = file_system(self.location).open_input_file(path)
            with pyarrow.parquet.ParquetFile(source) as file:
                return file.read(columns=[name for name in columns if name in file.schema_arrow.names])
        except (OSError, pyarrow.ArrowException) as error:
            raise unavailable(self.location.full(path), error) from error

    def _cleaned(self, version: int, missing: int) -> Invalid:
        return Invalid(
            f"{self.location.url}: version {version} can no longer be read: the log lacks version {missing}",
            expected="the commit files since the last checkpoint, which delta.logRetentionDuration keeps",
            help="restore them from a copy; or give the source another name, so that it starts from the current table",
            reason="LOG_CLEANED",
        )


def _rows_with_values(table: Any) -> Any:
    """Return the rows that have a value in any of the columns, which are few of a checkpoint's many rows."""
    import pyarrow.compute as pc

    if not table.num_columns:
        return table.slice(0, 0)
    valid = [pc.is_valid(column) for column in table.columns]
    return table.filter(functools.reduce(pc.or_, valid))


class TableFiles(Sequence[DataFile]):
    """The files of a checkpoint and of the commits after it, sorted by path. They become Python objects on access.

    tables: the checkpoint's `add` actions. replaced: paths in later commits, which override the checkpoint. later: the
    `add` actions of later commits.
    """

    def __init__(self, tables: list[Any], replaced: Any, later: list[Json]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        replaced_paths = pa.array(list(replaced), pa.string())
        rows = []
        for table in tables:
            if "add" not in table.column_names:
                continue
            adds = table.filter(pc.is_valid(table["add"]))["add"].combine_chunks()
            fields = [adds.type.field(index).name for index in range(adds.type.num_fields)]
            path = pc.cast(pc.struct_field(adds, "path"), pa.string())
            has_deletions, stats = pa.array([False] * len(adds)), pa.nulls(len(adds), pa.string())
            if "deletionVector" in fields:
                has_deletions = pc.is_valid(pc.struct_field(adds, "deletionVector"))
            if "stats" in fields:
                stats = pc.cast(pc.struct_field(adds, "stats"), pa.string())
            columns = {
                "path": path,
                "size": pc.cast(pc.struct_field(adds, "size"), pa.int64()),
                "values": pc.struct_field(adds, "partitionValues"),
                "deletions": has_deletions,
                "stats": stats,
            }
            rows.append(pa.table(columns).filter(pc.invert(pc.is_in(path, replaced_paths))))
        self._rows = rows
        self._later = later
        paths = [*(row["path"] for row in rows), pa.chunked_array([[str(add["path"]) for add in later]], pa.string())]
        chunks: list[Any] = []
        for column in paths:
            chunks += column.chunks
        self._paths = pa.chunked_array(chunks, pa.string())
        self._order = pc.sort_indices(self._paths)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[index] for index in range(*position.indices(len(self)))]
        return self._file(self._order[position].as_py())

    def without_paths(self, paths: Any) -> list[DataFile]:
        """Return all files except those with these paths, for which no Python objects are created.

        paths: an Arrow array, in the log's form.
        """
        import pyarrow.compute as pc

        is_excluded = pc.is_in(self._paths, value_set=paths)
        remaining = pc.filter(self._order, pc.invert(pc.take(is_excluded, self._order)))
        return [self._file(index) for index in remaining.to_pylist()]

    def _file(self, index: int) -> DataFile:
        for rows in self._rows:
            if index < len(rows):
                row = rows.slice(index, 1).to_pylist()[0]
                count = None if row["deletions"] else record_count(row["stats"])
                return DataFile(unquote(row["path"]), row["size"], dict(row["values"] or []), row["deletions"], count)
            index -= len(rows)
        return DataFile.from_action(self._later[index])


def _layout(location: Location, metadata: Json, protocol: Json) -> TableLayout:
    features = set(protocol.get("readerFeatures") or ())
    if protocol.get("minReaderVersion", 1) == 2:
        features.add("columnMapping")
    writer_features = set(protocol.get("writerFeatures") or ())
    refuse_catalog(location.url, features | writer_features)
    return TableLayout(
        table=str(metadata["id"]),
        schema=msgspec.json.decode(metadata["schemaString"], type=dict[str, Any]),
        partition_by=tuple(metadata.get("partitionColumns") or ()),
        configuration=dict(metadata.get("configuration") or {}),
        features=frozenset(features),
    )
