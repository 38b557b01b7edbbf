"""Describes the files that Spark wrote into a table's folder, from their footers, as Delta's add actions need it."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import msgspec

from tidegate.delta.files.access import Location, error_text, redact_path, unavailable
from tidegate.delta.files.partitions import partition_values
from tidegate.delta.files.stats import file_stats
from tidegate.errors import Corrupt, Unavailable
from tidegate.records.place import is_url
from tidegate.records.records import Json, Struct

__all__ = [
    "StagedFile",
    "Written",
    "WrittenFile",
    "describe",
    "missing_files",
    "open_parquet",
    "refuse_difference",
    "rows_below",
    "rows_written",
    "sync_and_list",
    "verify_written_files",
]


T = TypeVar("T")

_READERS = 4
"""The number of footers read concurrently. On a disk, up to this many are read without threads."""
_REQUESTS = 16
"""The number of concurrent requests to an object store."""

STAGED = "tidegate"
"""The folder of a table in which everything is staged. Below it are folders for sink, checkpoint and attempt."""
_ATTEMPT_DEPTH = 4

_TEXT_BYTES = 32 << 20
"""Columns with more text than this get no bounds: reading them would cost more than skipping the file saves."""


class StagedFile(Struct, frozen=True, kw_only=True):
    """A data file inside a table's folder that the log does not name yet."""

    path: str
    """Raw and relative to the table's root: delta-rs percent-encodes it itself."""
    size: int
    rows: int
    partition: dict[str, str | None] = {}
    stats: str = ""
    """Delta's statistics, as the JSON text that goes into the log."""

    def partition_texts(self) -> dict[str, str | None]:
        """Return the partition values in the log's form."""
        return self.partition

    def without_partition(self, name: str) -> StagedFile:
        """Return the file without a partition column that is only used for staging."""
        remaining = {key: value for key, value in self.partition.items() if key != name}
        return msgspec.structs.replace(self, partition=remaining)


class WrittenFile(NamedTuple):
    """A file as the Spark task that wrote it reports it."""

    rows: int
    size: int
    """The size in bytes."""


Written = int | Mapping[str, WrittenFile] | None
"""The report of a write's tasks: the files by their paths in the folder, or only the total number of rows. None: no
report."""


def sync_and_list(
    location: Location,
    folder: str,
    schema: Json,
    partition_by: Sequence[str] = (),
    sync: Callable[[list[str]], None] | None = None,
    *,
    written: Written,
) -> list[StagedFile]:
    """Return the files that Spark wrote below `folder`, and make them durable. Files without rows are deleted instead.

    Raise Unavailable if the files differ from the tasks' report. Files that no task reports are removed: failed or late
    task attempts wrote them. If tasks do not report their files, the result is correct only if the Spark job succeeded
    with Hadoop's committer v1 or without task retries, since the folder then has exactly the files of successful tasks.

    sync: makes files durable instead of `location.sync`, in parallel with other work.
    written: the report of the tasks that wrote the files.
    """
    if isinstance(written, Mapping):
        verify_written_files(location, folder, written)
        paths = sorted(f"{folder}/{name}" for name in written)
        rows: int | None = sum(file.rows for file in written.values())
    else:
        paths = [path for path, _ in location.walk(folder) if _is_data(path[len(folder) + 1 :])]
        rows = written
    files = _read_each(location, paths, lambda path: _staged(location, folder, path, schema, partition_by))
    refuse_difference(location.full(folder), rows, sum(file.rows for file in files))
    location.remove_files(file.path for file in files if not file.rows)
    with_rows = [file for file in files if file.rows]
    (sync or location.sync)([file.path for file in with_rows])
    return with_rows


def rows_written(location: Location, folder: str, written: Written) -> int:
    """Return the number of rows in the folder. Raise Unavailable if it differs from the tasks' report."""
    if isinstance(written, Mapping):
        verify_written_files(location, folder, written)
        return sum(file.rows for file in written.values())
    counted = rows_below(location, folder)
    refuse_difference(location.full(folder), written, counted)
    return counted


def verify_written_files(location: Location, folder: str, written: Mapping[str, WrittenFile]) -> None:
    """Raise Unavailable unless each reported file exists with its size. Remove all other files."""
    sizes = {path[len(folder) + 1 :]: size for path, size in location.walk(folder)}
    location.remove_files(f"{folder}/{name}" for name in sorted(sizes.keys() - written.keys()))
    unlisted = [name for name in written if name not in sizes and not location.is_local]
    if unlisted:  # a listing may lag behind writes
        with ThreadPoolExecutor(_REQUESTS) as pool:
            unlisted_sizes = pool.map(lambda name: location.size(f"{folder}/{name}"), unlisted)
            for name, size in zip(unlisted, unlisted_sizes, strict=True):
                if size is not None:
                    sizes[name] = size
    rows_found = sum(file.rows for name, file in written.items() if sizes.get(name) == file.size)
    for name, file in sorted(written.items()):
        if sizes.get(name) != file.size:
            if name in sizes:
                problem = f"has {sizes[name]:,} bytes instead of {file.size:,}"
            else:
                problem = "does not exist"
            all_rows = sum(file.rows for file in written.values())
            refuse_difference(location.full(folder), all_rows, rows_found, f": {name} {problem}")


def refuse_difference(location: str, written: int | None, counted: int, detail: str = "") -> None:
    """Raise Unavailable if the files do not hold the number of rows written. A listing alone cannot show missing
    files."""
    if written is None or (written == counted and not detail):
        return
    problem = f"{written:,} rows were written into {location}, and the files there hold {counted:,}{detail}"
    if is_url(location):
        raise Unavailable(
            problem,
            expected="a store that has, and lists, every object that was written",
            help="it is retried with new files; if it happens again, look for something that deletes objects there, "
            "such as a lifecycle rule of the bucket",
            reason="ROWS_MISSING",
        )
    raise Unavailable(
        problem,
        expected="that Spark's machines and this process see the same files under this path",
        help="mount the folder on every machine that Spark's tasks run on, under the same path as here, or use a path "
        "that all of them see, such as an object store; then it is retried",
        reason="ROWS_MISSING",
    )


def rows_below(location: Location, folder: str, names: Collection[str] | None = None) -> int:
    """Return the number of rows in the data files below `folder`. names: count only files with these names."""
    paths = []
    for path, _ in location.walk(folder):
        is_counted = names is None or path.rsplit("/", 1)[1] in names
        if is_counted and _is_data(path[len(folder) + 1 :]):
            paths.append(path)
    return sum(_read_each(location, paths, lambda path: _rows_in(location, path)))


def _read_each(location: Location, paths: Sequence[str], read: Callable[[str], T]) -> list[T]:
    """Apply `read` to each file, concurrently unless starting threads would take longer than reading."""
    if location.is_local and len(paths) <= _READERS:
        return [read(path) for path in paths]
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(read, paths))


def _rows_in(location: Location, path: str) -> int:
    with open_parquet(location, path) as file:
        return int(file.metadata.num_rows)


def missing_files(location: Location, files: Iterable[StagedFile]) -> list[str]:
    """Return the redacted paths of the files that are missing or have another size."""
    expected = list(files)

    def is_missing(file: StagedFile) -> bool:
        return location.size(file.path) != file.size

    if location.is_local:
        return [redact_path(file.path) for file in expected if is_missing(file)]
    folders = Counter(filter(None, map(_attempt_folder, expected)))
    with ThreadPoolExecutor(_REQUESTS) as pool:
        # For a single file, its size costs no more than a listing.
        listings = pool.map(location.walk, [folder for folder, count in folders.items() if count > 1])
        listed = set(itertools.chain.from_iterable(listings))
        unlisted = [file for file in expected if (file.path, file.size) not in listed]  # a listing may lag
        checked = zip(unlisted, pool.map(is_missing, unlisted), strict=True)
        return [redact_path(file.path) for file, missing in checked if missing]


def _attempt_folder(file: StagedFile) -> str:
    """Return the folder of the attempt that staged the file, or "" if it was not staged."""
    parts = file.path.split("/")
    if parts[0] != STAGED or len(parts) <= _ATTEMPT_DEPTH:
        return ""
    return "/".join(parts[:_ATTEMPT_DEPTH])


def _staged(location: Location, folder: str, path: str, schema: Json, partition_by: Sequence[str]) -> StagedFile:
    partition = partition_values(path[len(folder) + 1 :], schema, partition_by)
    return describe(location, path, schema, partition)


def describe(location: Location, path: str, schema: Json, partition: dict[str, str | None]) -> StagedFile:
    """Describe one file from its footer."""
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
    """Open a Parquet file. Spark's old INT96 timestamps are read as microseconds, as everywhere in Delta.

    coded: text columns to read in dictionary-encoded form.
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
            f"{redact_path(location.full(path))} is not a readable Parquet file: {error_text(error)}",
            expected="the file exactly as it was written",
            help="a VACUUM removed it or the disk damaged it: restore it, or roll back to an older checkpoint",
            reason="BAD_PARQUET",
        ) from error
    except OSError as error:
        raise unavailable(location.full(path), error) from error


def _text_bounds(file: Any, name: str) -> tuple[str | None, str | None]:
    """Return the smallest and the greatest text of a column whose values are too long for the footer."""
    import pyarrow.compute as pc

    index = file.schema_arrow.get_field_index(name)
    if index < 0 or "." in name or _bytes_of(file.metadata, name) > _TEXT_BYTES:
        return None, None
    bounds = pc.min_max(file.read(columns=[name])[name])
    try:
        return bounds["min"].as_py(), bounds["max"].as_py()
    except UnicodeDecodeError:
        return None, None


def _bytes_of(footer: Any, name: str) -> int:
    size = 0
    for group_index in range(footer.num_row_groups):
        group = footer.row_group(group_index)
        for index in range(group.num_columns):
            chunk = group.column(index)
            if chunk.path_in_schema == name:
                size += chunk.total_uncompressed_size
    return size


def _is_data(path: str) -> bool:
    """Apply Spark's rule: names that begin with '_' or '.' are not data, except a partition's folder such as `_a=1`."""
    return not any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in path.split("/"))
