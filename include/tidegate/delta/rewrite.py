"""Rewrite data files without some of their rows: the part of an upsert that changes existing files.

    1. find the files that may hold a key of the batch      by statistics in the log
    2. find the rows that do                                reads only the key columns
    3. write the other rows to new files                    reads whole files, streamed by row group

The files with new rows are added as Spark staged them. So a merge is one commit that removes and adds files, and all of
its files are durable before it names them. delta-rs' own merge commits files that it has not synced.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.delta.arrow_types import (
    arrow_schema,
    conform,
    dictionaries_of,
    dictionary_columns,
    typed_partition,
    with_dictionaries,
    without_unused,
)
from tidegate.delta.files.access import Location, unavailable
from tidegate.delta.files.footers import StagedFile, WrittenFile, describe, open_parquet
from tidegate.delta.log.active_files import LiveFile
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "THREADS",
    "InputFile",
    "RowGroup",
    "Table",
    "coded_columns",
    "divide",
    "grouped",
    "key_rows",
    "parts_of",
    "read_part",
    "rewrite",
    "rewrite_parts",
    "touched",
    "without_rows",
    "write_parquet",
]

T = TypeVar("T")
_Written = tuple[str, dict[str, str | None], WrittenFile]
"""A new file's path, its partition, and its size."""

LostRows = Callable[["pa.Table", "InputFile", int], Any]
"""Gets some rows of a file, the file, and the number of the first of these rows in it. Returns a mask of the rows to
remove."""

_OUTPUT_BYTES = 128 << 20
"""Files of one partition are combined up to about this size."""

_MIN_BUNDLE_BYTES = 16 << 20
_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 20
_BATCH_ROWS = 1 << 15
"""The rows of a part that are read at once while it is rewritten: so few that they stay in a processor's cache, and
that the next ones get their memory. The first use of memory costs as much as the work on it."""
THREADS = max(2, min(4, os.cpu_count() or 2))
"""Each thread holds a row group in memory."""


@dataclass(frozen=True)
class InputFile:
    """A file to read: live in a table, or staged."""

    path: str
    size: int
    partition: dict[str, str | None] = field(compare=False)

    @classmethod
    def from_file(cls, file: StagedFile | LiveFile) -> InputFile:
        """Return a staged file, or a file of a table, as an input."""
        return cls(file.path, file.size, file.partition_texts())


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file. It is the unit of work, so that one large file keeps all threads busy."""

    source: InputFile
    group: int
    start: int
    rows: int
    size: int
    """Its approximate size in the file, in bytes."""


@dataclass(frozen=True)
class Table:
    """The properties that all files of a table have in common."""

    location: Location
    schema: Json
    partition_by: tuple[str, ...]


def key_rows(table: Table, source: InputFile, names: Sequence[str]) -> pa.Table:
    """Read columns of a file, including partition columns, in the table's types."""
    import pyarrow as pa

    parts = [read_part(table, part, names) for part in parts_of(table, source)]
    return pa.concat_tables([arrow_schema(table.schema, names).empty_table(), *parts])


def rewrite(
    table: Table, sources: Sequence[InputFile], names: Sequence[str], find_lost: LostRows, folder: str
) -> tuple[list[InputFile], list[StagedFile]]:
    """Rewrite files without the rows that `find_lost` selects by their `names` columns, durably, into `folder`.

    Return the files that lose rows, and the files that replace them. A file that loses no row is in neither list.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        parts: list[RowGroup] = []
        for parts_of_source in pool.map(lambda source: parts_of(table, source), sources):
            parts += parts_of_source
        masks = dict(zip(parts, pool.map(lambda part: _mask(table, part, names, find_lost), parts), strict=True))
        losing = {source.path for source in touched(masks)}
        bundles = _bundles([part for part in parts if part.source.path in losing])
        written = [file for file, _ in _write_bundles(table, bundles, masks, folder, None, pool) if file is not None]
        files = list(pool.map(lambda file: describe(table.location, file[0], table.schema, file[1]), written))
    table.location.sync(file.path for file in files)
    return touched(masks), files


def rewrite_parts(
    table: Table, parts: Sequence[RowGroup], names: Sequence[str], find_lost: LostRows, path: str
) -> tuple[WrittenFile, int]:
    """Write parts of one partition to one file, without the rows that `find_lost` selects.

    Return the size of the file, and the number of lost rows. If no row remains, no file is written.
    """
    import pyarrow.compute as pc

    masks = {part: _mask(table, part, names, find_lost) for part in parts}
    written, _ = without_rows(table, parts, path, masks, None)
    lost_count = sum(pc.sum(mask).as_py() or 0 for mask in masks.values())
    if written is None:
        return WrittenFile(0, 0), lost_count
    return written[2], lost_count


def grouped(files: Iterable[Sequence[RowGroup]], writers: int) -> list[list[list[RowGroup]]]:
    """Divide files into groups, and the parts of each group into new files, so that all writers have work.

    As in `rewrite`, small files are combined and large ones divided. But the new files of a group hold only rows of its
    own input files, which are of one partition, so that each group can be used alone.

    files: the parts of each file.
    """
    limit = _limit([part for parts in files for part in parts], writers)
    by_partition: dict[tuple[tuple[str, str | None], ...], list[list[RowGroup]]] = {}
    groups: list[list[RowGroup]] = []
    for parts in files:
        group = by_partition.setdefault(tuple(sorted(parts[0].source.partition.items())), [[]])
        if sum(part.size for part in group[-1]) >= limit:
            groups.append(group.pop())
            group.append([])
        group[-1].extend(parts)
    groups += [group[0] for group in by_partition.values()]
    return [_divided(group, limit) for group in groups]


def _divided(parts: Sequence[RowGroup], limit: int) -> list[list[RowGroup]]:
    """Divide the parts of a group into new files of about the same size."""
    total = sum(part.size for part in parts)
    count = max(1, total // limit)
    bundles: list[list[RowGroup]] = [[]]
    size = 0
    for part in parts:
        if bundles[-1] and size >= len(bundles) * total // count:
            bundles.append([])
        bundles[-1].append(part)
        size += part.size
    return bundles


def divide(
    table: Table,
    masks: Mapping[RowGroup, Any],
    folder: str,
    on_lost: Callable[[RowGroup, pa.Table], T],
    *,
    every: bool = False,
) -> Iterator[T]:
    """Rewrite files without some rows, and yield the result of `on_lost` for the rows that each part loses.

    Each file that loses rows is replaced by a new one. The new files exist once the last result has been yielded; they
    are not durable yet.

    masks: the rows to remove, for all parts of the files. every: replace all files.
    """
    sources = [part.source for part in masks] if every else touched(masks)
    losing: dict[str, list[RowGroup]] = {source.path: [] for source in sources}
    for part in masks:
        if part.source.path in losing:
            losing[part.source.path].append(part)
    with ThreadPoolExecutor(THREADS) as pool:
        for _, results in _write_bundles(table, [*losing.values()], masks, folder, on_lost, pool):
            yield from results


def touched(masks: Mapping[RowGroup, Any]) -> list[InputFile]:
    """Return the files that lose rows."""
    import pyarrow.compute as pc

    sources = {}
    for part, mask in masks.items():
        if pc.any(mask).as_py():
            sources[part.source.path] = part.source
    return list(sources.values())


def _write_bundles(
    table: Table,
    bundles: Sequence[Sequence[RowGroup]],
    masks: Mapping[RowGroup, Any],
    folder: str,
    on_lost: Callable[[RowGroup, pa.Table], T] | None,
    pool: Executor,
) -> Iterator[tuple[_Written | None, list[T]]]:
    """Write a new file for each bundle, and yield it with the results of `on_lost`."""
    running: deque[Future[tuple[_Written | None, list[T]]]] = deque()
    for number, bundle in enumerate(bundles):
        path = f"{folder}/part-{number:05d}.parquet"
        running.append(pool.submit(without_rows, table, bundle, path, masks, on_lost))
        # Results may be as large as the files, so do not run further ahead of the consumer.
        if len(running) > THREADS:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def parts_of(table: Table, source: InputFile) -> list[RowGroup]:
    """Return a file's row groups."""
    with open_parquet(table.location, source.path) as file:
        groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    parts, start = [], 0
    for index, group in enumerate(groups):
        parts.append(RowGroup(source, index, start, group.num_rows, source.size // len(groups)))
        start += group.num_rows
    return parts


def read_part(table: Table, part: RowGroup, names: Sequence[str]) -> pa.Table:
    """Read columns of a row group, in the table's types."""
    return _read(table, part, arrow_schema(table.schema, names))


def _read(table: Table, part: RowGroup, schema: pa.Schema) -> pa.Table:
    """Read columns in these types. Uses one thread, since enough readers run at once."""
    with open_parquet(table.location, part.source.path, dictionaries_of(schema)) as file:
        stored = set(file.schema_arrow.names)
        names = []
        for name in schema.names:
            if name not in part.source.partition and name in stored:
                names.append(name)
        rows = file.read_row_group(part.group, columns=_paths(names), use_threads=False)
    return conform(rows, schema, part.rows, typed_partition(part.source.partition, schema, part.rows))


def _read_in_batches(table: Table, part: RowGroup, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a row group in these types, a few at a time."""
    import pyarrow as pa

    with open_parquet(table.location, part.source.path, dictionaries_of(schema)) as file:
        stored = set(file.schema_arrow.names)
        names = [name for name in schema.names if name not in part.source.partition and name in stored]
        if not names:
            yield _read(table, part, schema)
            return
        batches = file.iter_batches(_BATCH_ROWS, row_groups=[part.group], columns=_paths(names), use_threads=False)
        for batch in batches:
            fixed = typed_partition(part.source.partition, schema, batch.num_rows)
            yield conform(pa.Table.from_batches([batch]), schema, batch.num_rows, fixed)


def _mask(table: Table, part: RowGroup, names: Sequence[str], find_lost: LostRows) -> Any:
    return find_lost(read_part(table, part, names), part.source, part.start)


def _bundles(parts: Sequence[RowGroup]) -> list[list[RowGroup]]:
    """Divide parts into new files: each of one partition, and enough of them that all threads have work."""
    limit = _limit(parts, THREADS)
    open_bundles: dict[tuple[tuple[str, str | None], ...], list[RowGroup]] = {}
    bundles = []
    for part in parts:
        partition = tuple(sorted(part.source.partition.items()))
        bundle = open_bundles.setdefault(partition, [])
        bundle.append(part)
        if sum(part.size for part in bundle) >= limit:
            bundles.append(open_bundles.pop(partition))
    return bundles + list(open_bundles.values())


def _limit(parts: Sequence[RowGroup], writers: int) -> int:
    """Return the size of a new file in bytes, for which all writers have work."""
    return min(_OUTPUT_BYTES, max(_MIN_BUNDLE_BYTES, sum(part.size for part in parts) // writers))


def without_rows(
    table: Table,
    bundle: Sequence[RowGroup],
    path: str,
    masks: Mapping[RowGroup, Any],
    on_lost: Callable[[RowGroup, pa.Table], T] | None,
) -> tuple[_Written | None, list[T]]:
    """Write the remaining rows of some parts to one file. Return it, or None if no row remains, with the results of
    `on_lost` for the rows that each part loses."""
    results: list[T] = []
    partition = bundle[0].source.partition
    stored = []
    for column in table.schema["fields"]:
        if column["name"] not in partition:
            stored.append(column["name"])
    plain = arrow_schema(table.schema, stored)
    schema = with_dictionaries(plain, coded_columns(table, dict.fromkeys(part.source for part in bundle)))

    def remaining_rows() -> Iterator[pa.Table]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for part in bundle:
            lost, start = [plain.empty_table()], 0
            for rows in _read_in_batches(table, part, schema):
                mask = masks[part].slice(start, rows.num_rows)
                start += rows.num_rows
                if on_lost is not None:
                    lost.append(rows.filter(mask).cast(plain))
                yield without_unused(rows.filter(pc.invert(mask)))
            if on_lost is not None:
                results.append(on_lost(part, pa.concat_tables(lost)))

    written = write_parquet(table.location, path, schema, remaining_rows())
    if not written.rows:
        return None, results
    return (path, partition, written), results


def coded_columns(table: Table, sources: Iterable[InputFile]) -> set[str]:
    """Return the columns that are dictionary-encoded in all these files, so that they can be read and written in that
    form."""
    coded_by_group: list[set[str]] = []
    for source in sources:
        with open_parquet(table.location, source.path) as file:
            groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
        for group in groups:
            coded = set()
            for index in range(group.num_columns):
                chunk = group.column(index)
                if "PLAIN_DICTIONARY" in chunk.encodings and "PLAIN" not in chunk.encodings:
                    coded.add(chunk.path_in_schema)
            coded_by_group.append(coded)
    if coded_by_group:
        return set.intersection(*coded_by_group)
    return set()


def write_parquet(location: Location, path: str, schema: pa.Schema, rows: Iterable[pa.Table]) -> WrittenFile:
    """Write rows of this schema to a new file. Without rows, no file is created."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0

    def counted() -> Iterator[pa.Table]:
        nonlocal count
        for batch in rows:
            count += batch.num_rows
            if batch.num_rows:
                yield batch

    groups = _row_groups(counted())
    first = next(groups, None)
    if first is None:
        return WrittenFile(0, 0)
    try:
        with location.create(path) as sink:
            with pq.ParquetWriter(
                sink,
                schema,
                compression="snappy",
                use_dictionary=dictionary_columns(first),
                store_decimal_as_integer=True,
                store_schema=not dictionaries_of(schema),
            ) as writer:
                for group in itertools.chain([first], groups):
                    writer.write_table(group, row_group_size=_GROUP_ROWS)
            size = sink.tell()
    except (pa.ArrowException, OSError) as error:
        raise unavailable(location.full(path), error) from error
    return WrittenFile(count, size)


def _row_groups(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Combine parts until they are large enough for a row group."""
    import pyarrow as pa

    tables: list[pa.Table] = []
    size = 0
    for part in parts:
        tables.append(part)
        size += part.nbytes
        if size >= _GROUP_BYTES:
            yield pa.concat_tables(tables).unify_dictionaries()
            tables, size = [], 0
    if tables:
        yield pa.concat_tables(tables).unify_dictionaries()


def _paths(names: Sequence[str]) -> list[str] | None:
    """Return the columns for a Parquet reader, or None for all: it interprets a dot in a name as a nested field."""
    if any("." in name for name in names):
        return None
    return list(names)
