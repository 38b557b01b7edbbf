"""Turns the files that Spark wrote into a folder of a table into Delta's add actions, from their footers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from tidegate.errors import Corrupt
from tidegate.model.records import Json, Struct
from tidegate.tables.files import Location, file_system
from tidegate.tables.partitions import partition_values
from tidegate.tables.stats import file_stats

__all__ = ["StagedFile", "missing_files", "stage"]


class StagedFile(Struct, frozen=True, kw_only=True):
    """One data file that lies inside a table and that no log names yet."""

    path: str
    """Raw and relative to the table's root: delta-rs percent-encodes it itself."""
    size: int
    rows: int
    partition: dict[str, str | None] = {}
    stats: str = ""
    """Delta's statistics, as the JSON text that goes into the log."""


def stage(location: Location, folder: str, schema: Json, partition_by: Sequence[str] = ()) -> list[StagedFile]:
    """Everything that Spark wrote below `folder`, durable. Files without rows are deleted, not listed.

    Correct only after the writing job succeeded with Hadoop's committer v1, or without task retries: then
    what lies in the folder is what successful tasks reported.
    """
    paths = [(path, size) for path, size in location.walk(folder) if _is_data(path[len(folder) + 1 :])]
    with ThreadPoolExecutor(max_workers=4) as pool:
        files = list(pool.map(lambda item: _staged(location, folder, item, schema, partition_by), paths))
    location.remove_files(file.path for file in files if not file.rows)
    kept = [file for file in files if file.rows]
    location.sync(file.path for file in kept)
    return kept


def missing_files(location: Location, files: Iterable[StagedFile]) -> list[str]:
    """Those of `files` that are gone or have another size."""
    return [file.path for file in files if location.size(file.path) != file.size]


def _staged(
    location: Location, folder: str, item: tuple[str, int], schema: Json, partition_by: Sequence[str]
) -> StagedFile:
    path, size = item
    stats = file_stats(_footer(location, path), schema, partition_by)
    return StagedFile(
        path=path,
        size=size,
        rows=stats["numRecords"],
        partition=partition_values(path[len(folder) + 1 :], schema, partition_by),
        stats=msgspec.json.encode(stats).decode(),
    )


def _footer(location: Location, path: str) -> Any:
    """A Parquet file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if location.is_local:
            return pq.read_metadata(location.full(path))
        return pq.read_metadata(path, filesystem=file_system(location))
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(
            f"{location.full(path)} is not a readable Parquet file: {error}",
            expected="the file exactly as Spark wrote it",
            help="the attempt is repeated; if this comes back, check the disk",
            reason="BAD_PARQUET",
        ) from error


def _is_data(path: str) -> bool:
    """Spark's own rule: what begins with '_' or '.' is not data (but a partition's folder `_a=1` is)."""
    return not any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in path.split("/"))
