"""Turns the files that Spark wrote into a folder of a table into Delta's add actions, from their footers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from tidegate.delta.files.access import Location, told, unavailable
from tidegate.delta.files.partitions import partition_values
from tidegate.delta.files.stats import file_stats
from tidegate.errors import Corrupt, Unavailable
from tidegate.records.records import Json, Struct

__all__ = ["StagedFile", "describe", "missing_files", "open_parquet", "refuse_difference", "rows_below", "stage"]


_TEXT_BYTES = 32 << 20
"""Columns of longer texts get no bounds: reading them would cost more than a skipped file saves."""


class StagedFile(Struct, frozen=True, kw_only=True):
    """One data file that lies inside a table and that no log names yet."""

    path: str
    """Raw and relative to the table's root: delta-rs percent-encodes it itself."""
    size: int
    rows: int
    partition: dict[str, str | None] = {}
    stats: str = ""
    """Delta's statistics, as the JSON text that goes into the log."""

    def partition_texts(self) -> dict[str, str | None]:
        """The partition values in the log's form."""
        return self.partition

    def without_partition(self, name: str) -> StagedFile:
        """The file, without a folder level that means nothing to the table."""
        rest = {each: value for each, value in self.partition.items() if each != name}
        return msgspec.structs.replace(self, partition=rest)


def stage(
    location: Location,
    folder: str,
    schema: Json,
    partition_by: Sequence[str] = (),
    sync: Callable[[list[str]], None] | None = None,
    *,
    written: int | None,
) -> list[StagedFile]:
    """Everything that Spark wrote below `folder`, durable. Files without rows are deleted, not listed.

    sync: makes files durable instead of `location.sync`, if something else can be done meanwhile.
    written: how many rows there are, as counted by those who wrote them. Unavailable if the files hold another number.
        None: nobody can tell.

    Correct only after the writing job succeeded with Hadoop's committer v1, or without task retries: then
    what lies in the folder is what successful tasks reported.
    """
    paths = [path for path, _ in location.walk(folder) if _is_data(path[len(folder) + 1 :])]
    with ThreadPoolExecutor(max_workers=4) as pool:
        files = list(pool.map(lambda path: _staged(location, folder, path, schema, partition_by), paths))
    refuse_difference(location.full(folder), written, sum(file.rows for file in files))
    location.remove_files(file.path for file in files if not file.rows)
    kept = [file for file in files if file.rows]
    (sync or location.sync)([file.path for file in kept])
    return kept


def refuse_difference(where: str, written: int | None, found: int) -> None:
    """Unavailable if what was written is not what the files hold: a folder tells what lies there, not what should."""
    if written is None or written == found:
        return
    raise Unavailable(
        f"{written:,} rows were written into {where}, and the files there hold {found:,}",
        expected="that the machines of Spark and this process see the same files under this path",
        help="mount the folder on every machine that Spark's tasks run on, under the same path as here, or use a path "
        "that all of them see, such as an object store; then it is tried again",
        reason="ROWS_MISSING",
    )


def rows_below(location: Location, folder: str, names: Collection[str] | None = None) -> int:
    """How many rows the data files below `folder` hold. names: of these files only."""
    paths = [path for path, _ in location.walk(folder) if _is_data(path[len(folder) + 1 :])]
    paths = [path for path in paths if names is None or path.rsplit("/", 1)[1] in names]
    with ThreadPoolExecutor(max_workers=4) as pool:
        return sum(pool.map(lambda path: _rows_in(location, path), paths))


def _rows_in(location: Location, path: str) -> int:
    with open_parquet(location, path) as file:
        return int(file.metadata.num_rows)


def missing_files(location: Location, files: Iterable[StagedFile]) -> list[str]:
    """Those of `files` that are gone or have another size."""
    return [file.path for file in files if location.size(file.path) != file.size]


def _staged(location: Location, folder: str, path: str, schema: Json, partition_by: Sequence[str]) -> StagedFile:
    partition = partition_values(path[len(folder) + 1 :], schema, partition_by)
    return describe(location, path, schema, partition)


def describe(location: Location, path: str, schema: Json, partition: dict[str, str | None]) -> StagedFile:
    """One file that somebody wrote, from its footer."""
    with open_parquet(location, path) as file:
        stats = file_stats(file.metadata, schema, tuple(partition), lambda name: _text_bounds(file, name))
    size = location.size(path)
    assert size is not None
    return StagedFile(
        path=path,
        size=size,
        rows=stats["numRecords"],
        partition=partition,
        stats=msgspec.json.encode(stats).decode(),
    )


@contextlib.contextmanager
def open_parquet(location: Location, path: str, coded: Sequence[str] = ()) -> Iterator[Any]:
    """A Parquet file to be read. Spark's old INT96 timestamps are microseconds, as everywhere in Delta.

    coded: columns of texts to be read as numbers of few different ones.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with (
            location.open(path) as source,
            pq.ParquetFile(source, coerce_int96_timestamp_unit="us", read_dictionary=list(coded) or None) as file,
        ):
            yield file
    except (pa.ArrowException, FileNotFoundError) as error:
        raise Corrupt(
            f"{location.full(path)} is not a readable Parquet file: {told(error)}",
            expected="the file exactly as it was written",
            help="a VACUUM removed it, or the disk damaged it: restore it, or roll back to an older checkpoint",
            reason="BAD_PARQUET",
        ) from error
    except OSError as error:
        raise unavailable(location.full(path), error) from error


def _text_bounds(file: Any, name: str) -> tuple[str | None, str | None]:
    """The least and the greatest text of a column whose values are too long for the footer."""
    import pyarrow.compute as pc

    place = file.schema_arrow.get_field_index(name)
    if place < 0 or "." in name or _bytes_of(file.metadata, name) > _TEXT_BYTES:
        return None, None
    found = pc.min_max(file.read(columns=[name])[name])
    try:
        return found["min"].as_py(), found["max"].as_py()
    except UnicodeDecodeError:
        return None, None


def _bytes_of(footer: Any, name: str) -> int:
    groups = (footer.row_group(place) for place in range(footer.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == name)


def _is_data(path: str) -> bool:
    """Spark's own rule: what begins with '_' or '.' is not data (but a partition's folder `_a=1` is)."""
    return not any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in path.split("/"))
