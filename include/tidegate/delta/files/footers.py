"""Turns the files that Spark wrote into a folder of a table into Delta's add actions, from their footers."""

from __future__ import annotations

import contextlib
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
    "refuse_other_files",
    "rows_below",
    "rows_written",
    "sync_and_list",
]


T = TypeVar("T")

_LOOKS = 4
"""How many files are looked into at the same time: no more than these, on a disk, one by one."""
_REQUESTS = 16
"""How many files of an object store are looked at at the same time."""

STAGED = "tidegate"
"""The folder of a table in which everything is staged: below it a sink's, a checkpoint's, and an attempt's."""
_ATTEMPT = 4

_TEXT_BYTES = 32 << 20
"""Columns with longer texts get no bounds: reading them would cost more than a skipped file saves."""


class StagedFile(Struct, frozen=True, kw_only=True):
    """One data file inside a table that no log names yet."""

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
        """Return the file without a folder level that has no meaning for the table."""
        remaining = {key: value for key, value in self.partition.items() if key != name}
        return msgspec.structs.replace(self, partition=remaining)


class WrittenFile(NamedTuple):
    """What the task that wrote a file says of it."""

    rows: int
    size: int
    """Bytes."""


Written = int | Mapping[str, WrittenFile] | None
"""What the tasks of a write say: each file by its path in the folder, or the number of rows in all. None: nothing."""


def sync_and_list(
    location: Location,
    folder: str,
    schema: Json,
    partition_by: Sequence[str] = (),
    sync: Callable[[list[str]], None] | None = None,
    *,
    written: Written,
) -> list[StagedFile]:
    """List everything that Spark wrote below `folder`, and make it durable. Files without rows are deleted, not listed.

    sync: makes files durable instead of `location.sync`, if something else can be done meanwhile.
    written: what the tasks that wrote them say. Unavailable if the files are others, or hold another number of rows.
        Files that no task has named are removed: they are of attempts at a task that failed or came too late.

    If tasks do not name their files, it is correct only after the writing job succeeded with Hadoop's committer v1, or
    without task retries: then the folder holds exactly what successful tasks reported.
    """
    if isinstance(written, Mapping):
        refuse_other_files(location, folder, written)
        paths = sorted(f"{folder}/{name}" for name in written)
        rows: int | None = sum(file.rows for file in written.values())
    else:
        paths, rows = [path for path, _ in location.walk(folder) if _is_data(path[len(folder) + 1 :])], written
    files = _of_each(location, paths, lambda path: _staged(location, folder, path, schema, partition_by))
    refuse_difference(location.full(folder), rows, sum(file.rows for file in files))
    location.remove_files(file.path for file in files if not file.rows)
    with_rows = [file for file in files if file.rows]
    (sync or location.sync)([file.path for file in with_rows])
    return with_rows


def rows_written(location: Location, folder: str, written: Written) -> int:
    """Return the number of rows in the folder. Unavailable if the tasks that wrote them say something else."""
    if isinstance(written, Mapping):
        refuse_other_files(location, folder, written)
        return sum(file.rows for file in written.values())
    counted = rows_below(location, folder)
    refuse_difference(location.full(folder), written, counted)
    return counted


def refuse_other_files(location: Location, folder: str, written: Mapping[str, WrittenFile]) -> None:
    """Raise Unavailable unless each file that a task has named is there, with its size. Remove the others."""
    found = {path[len(folder) + 1 :]: size for path, size in location.walk(folder)}
    location.remove_files(f"{folder}/{name}" for name in sorted(found.keys() - written.keys()))
    unlisted = [name for name in written if name not in found and not location.is_local]
    if unlisted:  # a listing may lag
        with ThreadPoolExecutor(_REQUESTS) as pool:
            sizes = pool.map(lambda name: location.size(f"{folder}/{name}"), unlisted)
            found |= {name: size for name, size in zip(unlisted, sizes, strict=True) if size is not None}
    right = sum(file.rows for name, file in written.items() if found.get(name) == file.size)
    for name, file in sorted(written.items()):
        if found.get(name) != file.size:
            is_there = f"has {found[name]:,} bytes instead of {file.size:,}" if name in found else "is not there"
            all_rows = sum(file.rows for file in written.values())
            refuse_difference(location.full(folder), all_rows, right, f": {name} {is_there}")


def refuse_difference(location: str, written: int | None, counted: int, why: str = "") -> None:
    """Raise Unavailable if the files do not hold the number of rows written: a folder cannot show what is missing."""
    if written is None or (written == counted and not why):
        return
    what = f"{written:,} rows were written into {location}, and the files there hold {counted:,}{why}"
    if is_url(location):
        raise Unavailable(
            what,
            expected="that the store has, and lists, what was put there",
            help="it is tried again, with new files; if it stays, look for something that deletes objects there, such "
            "as a rule of the bucket",
            reason="ROWS_MISSING",
        )
    raise Unavailable(
        what,
        expected="that the machines of Spark and this process see the same files under this path",
        help="mount the folder on every machine that Spark's tasks run on, under the same path as here, or use a path "
        "that all of them see, such as an object store; then it is tried again",
        reason="ROWS_MISSING",
    )


def rows_below(location: Location, folder: str, names: Collection[str] | None = None) -> int:
    """Return the number of rows in the data files below `folder`. names: of these files only."""
    paths = [path for path, _ in location.walk(folder) if _is_data(path[len(folder) + 1 :])]
    paths = [path for path in paths if names is None or path.rsplit("/", 1)[1] in names]
    return sum(_of_each(location, paths, lambda path: _rows_in(location, path)))


def _of_each(location: Location, paths: Sequence[str], look: Callable[[str], T]) -> list[T]:
    """Return what looking into each file gives. To start a thread takes longer than to look into a file on a disk."""
    if location.is_local and len(paths) <= _LOOKS:
        return [look(path) for path in paths]
    with ThreadPoolExecutor(_LOOKS) as pool:
        return list(pool.map(look, paths))


def _rows_in(location: Location, path: str) -> int:
    with open_parquet(location, path) as file:
        return int(file.metadata.num_rows)


def missing_files(location: Location, files: Iterable[StagedFile]) -> list[str]:
    """Return those of `files` that are gone or have another size: their paths as everybody may read them."""
    wanted = list(files)

    def is_missing(file: StagedFile) -> bool:
        return location.size(file.path) != file.size

    if location.is_local:
        return [redact_path(file.path) for file in wanted if is_missing(file)]
    folders = Counter(filter(None, map(_attempt_folder, wanted)))
    with ThreadPoolExecutor(_REQUESTS) as pool:
        listings = pool.map(location.walk, [folder for folder, count in folders.items() if count > 1])
        listed = {found for listing in listings for found in listing}
        unlisted = [file for file in wanted if (file.path, file.size) not in listed]  # a listing may lag
        looked_at = zip(unlisted, pool.map(is_missing, unlisted), strict=True)
        return [redact_path(file.path) for file, missing in looked_at if missing]


def _attempt_folder(file: StagedFile) -> str:
    """Return the folder that one attempt staged the file in, with no other attempt's files; empty: it was not
    staged."""
    parts = file.path.split("/")
    return "/".join(parts[:_ATTEMPT]) if parts[0] == STAGED and len(parts) > _ATTEMPT else ""


def _staged(location: Location, folder: str, path: str, schema: Json, partition_by: Sequence[str]) -> StagedFile:
    partition = partition_values(path[len(folder) + 1 :], schema, partition_by)
    return describe(location, path, schema, partition)


def describe(location: Location, path: str, schema: Json, partition: dict[str, str | None]) -> StagedFile:
    """Describe one file from its footer, whoever wrote it."""
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
    """Open a Parquet file. Spark's old INT96 timestamps are microseconds, as everywhere in Delta.

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
            f"{redact_path(location.full(path))} is not a readable Parquet file: {error_text(error)}",
            expected="the file exactly as it was written",
            help="a VACUUM removed it, or the disk damaged it: restore it, or roll back to an older checkpoint",
            reason="BAD_PARQUET",
        ) from error
    except OSError as error:
        raise unavailable(location.full(path), error) from error


def _text_bounds(file: Any, name: str) -> tuple[str | None, str | None]:
    """Return the least and the greatest text of a column whose values are too long for the footer."""
    import pyarrow.compute as pc

    place = file.schema_arrow.get_field_index(name)
    if place < 0 or "." in name or _bytes_of(file.metadata, name) > _TEXT_BYTES:
        return None, None
    bounds = pc.min_max(file.read(columns=[name])[name])
    try:
        return bounds["min"].as_py(), bounds["max"].as_py()
    except UnicodeDecodeError:
        return None, None


def _bytes_of(footer: Any, name: str) -> int:
    groups = (footer.row_group(place) for place in range(footer.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == name)


def _is_data(path: str) -> bool:
    """Apply Spark's own rule: names with a leading '_' or '.' are not data (but a partition's folder `_a=1` is)."""
    return not any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in path.split("/"))
