"""Data files without some of their rows: the half of an upsert that changes what is already there.

    files   →  which of them could hold a key of the batch      statistics in the log
            →  which rows do                                    only the key columns are read
            →  the rows that stay, in new files                 whole files, streamed by row group

The new rows' files are added as Spark staged them. So a merge is one commit of removes and adds, and all of
its files are durable before anything names them; delta-rs' own merge commits what it has not synced.
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
"""A new file's path, its partition, and what was written."""

Lost = Callable[["pa.Table", "InputFile", int], Any]

_OUTPUT_BYTES = 128 << 20
"""Files of one partition are rewritten together up to about this size."""

_MIN_BUNDLE_BYTES = 16 << 20
_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 20
THREADS = max(2, min(4, os.cpu_count() or 2))
"""Each thread holds a row group in memory."""


@dataclass(frozen=True)
class InputFile:
    """A file to read: live in a table, or staged."""

    path: str
    size: int
    partition: dict[str, str | None] = field(compare=False)

    @classmethod
    def of(cls, file: StagedFile | LiveFile) -> InputFile:
        """The file as something to read."""
        return cls(file.path, file.size, file.partition_texts())


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file: the unit of work, so that one large file keeps all threads busy."""

    source: InputFile
    group: int
    start: int
    rows: int
    size: int
    """Approximately the number of its bytes in the file."""


@dataclass(frozen=True)
class Table:
    """The properties that all files of a table share."""

    location: Location
    schema: Json
    partition_by: tuple[str, ...]


def key_rows(table: Table, source: InputFile, names: Sequence[str]) -> pa.Table:
    """Read some columns of a file, typed as the table types them; partition columns included."""
    import pyarrow as pa

    parts = [read_part(table, part, names) for part in parts_of(table, source)]
    return pa.concat_tables([arrow_schema(table.schema, names).empty_table(), *parts])


def rewrite(
    table: Table, sources: Sequence[InputFile], names: Sequence[str], find_lost: Lost, folder: str
) -> tuple[list[InputFile], list[StagedFile]]:
    """Write files without the rows that `find_lost` picks by their `names` columns, durably, into `folder`.

    `find_lost` gets some rows of a file, the file, and the number of the first of these rows; it returns a mask.
    Return the files that lose rows, and the files that take their place. A file that loses nothing is in neither list.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        parts = [part for groups in pool.map(lambda source: parts_of(table, source), sources) for part in groups]
        masks = dict(zip(parts, pool.map(lambda part: _mask(table, part, names, find_lost), parts), strict=True))
        losing = {source.path for source in touched(masks)}
        bundles = _bundles([part for part in parts if part.source.path in losing])
        written = [file for file, _ in _without(table, bundles, masks, folder, None, pool) if file is not None]
        files = list(pool.map(lambda file: describe(table.location, file[0], table.schema, file[1]), written))
    table.location.sync(file.path for file in files)
    return touched(masks), files


def rewrite_parts(
    table: Table, parts: Sequence[RowGroup], names: Sequence[str], find_lost: Lost, path: str
) -> tuple[WrittenFile, int]:
    """Write one file of parts of one partition, without the rows that `find_lost` picks as for `rewrite`.

    Return what was written, and how many rows were lost. If no row is left, there is no file.
    """
    import pyarrow.compute as pc

    masks = {part: _mask(table, part, names, find_lost) for part in parts}
    written, _ = without_rows(table, parts, path, masks, None)
    return written[2] if written is not None else WrittenFile(0, 0), sum(pc.sum(m).as_py() or 0 for m in masks.values())


def grouped(files: Iterable[Sequence[RowGroup]], ways: int) -> list[list[list[RowGroup]]]:
    """Return the parts for each new file, by groups of whole files of one partition, for so many writers.

    files: all parts of each. Small files come together, and large ones are divided, as `rewrite` does it; but the new
    files of a group hold the rows of its own files only, so that each group can be used without the others.
    """
    limit = _limit([part for parts in files for part in parts], ways)
    by_partition: dict[tuple[tuple[str, str | None], ...], list[list[RowGroup]]] = {}
    groups: list[list[RowGroup]] = []
    for parts in files:
        group = by_partition.setdefault(tuple(sorted(parts[0].source.partition.items())), [[]])
        if sum(part.size for part in group[-1]) >= limit:
            groups.append(group.pop())
            group.append([])
        group[-1].extend(parts)
    groups += [group for (group,) in by_partition.values()]
    return [_divided(group, limit) for group in groups]


def _divided(parts: Sequence[RowGroup], limit: int) -> list[list[RowGroup]]:
    """Return the parts for each new file of a group, of about the same size."""
    total = sum(part.size for part in parts)
    count = max(1, total // limit)
    bundles: list[list[RowGroup]] = [[]]
    done = 0
    for part in parts:
        if bundles[-1] and done >= len(bundles) * total // count:
            bundles.append([])
        bundles[-1].append(part)
        done += part.size
    return bundles


def divide(
    table: Table,
    masks: Mapping[RowGroup, Any],
    folder: str,
    take_lost: Callable[[RowGroup, pa.Table], T],
    *,
    every: bool = False,
) -> Iterator[T]:
    """Rewrite files without some rows, and yield the results of `take_lost` for the rows that each part loses.

    masks: of all parts of some files. Each file that loses rows, or every file, is replaced by a new one. The new files
    exist once the last result is taken; they are not durable yet.
    """
    sources = [part.source for part in masks] if every else touched(masks)
    losing: dict[str, list[RowGroup]] = {source.path: [] for source in sources}
    for part in masks:
        if part.source.path in losing:
            losing[part.source.path].append(part)
    with ThreadPoolExecutor(THREADS) as pool:
        for _, answers in _without(table, [*losing.values()], masks, folder, take_lost, pool):
            yield from answers


def touched(masks: Mapping[RowGroup, Any]) -> list[InputFile]:
    """Return the files that lose rows."""
    import pyarrow.compute as pc

    return list({part.source.path: part.source for part, mask in masks.items() if pc.any(mask).as_py()}.values())


def _without(
    table: Table,
    bundles: Sequence[Sequence[RowGroup]],
    masks: Mapping[RowGroup, Any],
    folder: str,
    take_lost: Callable[[RowGroup, pa.Table], T] | None,
    pool: Executor,
) -> Iterator[tuple[_Written | None, list[T]]]:
    """Write a new file for each bundle; yield it with the results of `take_lost`."""
    paths = [f"{folder}/part-{place:05d}.parquet" for place in range(len(bundles))]
    work = iter(list(zip(bundles, paths, strict=True)))

    def submitted(count: int) -> list[Future[tuple[_Written | None, list[T]]]]:
        return [
            pool.submit(without_rows, table, bundle, path, masks, take_lost)
            for bundle, path in itertools.islice(work, count)
        ]

    at_work = deque(submitted(THREADS + 1))
    while at_work:  # no more than somebody takes: what is answered may be as large as the files
        yield at_work.popleft().result()
        at_work.extend(submitted(1))


def parts_of(table: Table, source: InputFile) -> list[RowGroup]:
    """Return a file's row groups."""
    with open_parquet(table.location, source.path) as file:
        groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    parts, start = [], 0
    for place, group in enumerate(groups):
        parts.append(RowGroup(source, place, start, group.num_rows, source.size // len(groups)))
        start += group.num_rows
    return parts


def read_part(table: Table, part: RowGroup, names: Sequence[str]) -> pa.Table:
    """Read some columns of a row group, in the table's types."""
    return _read(table, part, arrow_schema(table.schema, names))


def _read(table: Table, part: RowGroup, schema: pa.Schema) -> pa.Table:
    """Read columns in these types. One thread: there are as many readers as cores."""
    with open_parquet(table.location, part.source.path, dictionaries_of(schema)) as file:
        stored = set(file.schema_arrow.names)
        names = [name for name in schema.names if name not in part.source.partition and name in stored]
        rows = file.read_row_group(part.group, columns=_paths(names), use_threads=False)
    return conform(rows, schema, part.rows, typed_partition(part.source.partition, schema, part.rows))


def _mask(table: Table, part: RowGroup, names: Sequence[str], find_lost: Lost) -> Any:
    return find_lost(read_part(table, part, names), part.source, part.start)


def _bundles(parts: Sequence[RowGroup]) -> list[list[RowGroup]]:
    """Return the parts for each new file: of one partition, and few enough that all threads have work."""
    limit = _limit(parts, THREADS)
    open_bundles: dict[tuple[tuple[str, str | None], ...], list[RowGroup]] = {}
    bundles = []
    for part in parts:
        bundle = open_bundles.setdefault(tuple(sorted(part.source.partition.items())), [])
        bundle.append(part)
        if sum(part.size for part in bundle) >= limit:
            bundles.append(open_bundles.pop(tuple(sorted(part.source.partition.items()))))
    return bundles + list(open_bundles.values())


def _limit(parts: Sequence[RowGroup], ways: int) -> int:
    """Return the bytes of a new file, so that so many writers have work."""
    return min(_OUTPUT_BYTES, max(_MIN_BUNDLE_BYTES, sum(part.size for part in parts) // ways))


def without_rows(
    table: Table,
    bundle: Sequence[RowGroup],
    path: str,
    masks: Mapping[RowGroup, Any],
    take_lost: Callable[[RowGroup, pa.Table], T] | None,
) -> tuple[_Written | None, list[T]]:
    """Write the remaining rows of some parts to one file, if there are any; return it with the results for the
    others."""
    answers: list[T] = []
    partition = bundle[0].source.partition
    stored = [field["name"] for field in table.schema["fields"] if field["name"] not in partition]
    plain = arrow_schema(table.schema, stored)
    schema = with_dictionaries(plain, coded_columns(table, dict.fromkeys(part.source for part in bundle)))

    def kept() -> Iterator[pa.Table]:
        import pyarrow.compute as pc

        for part in bundle:
            rows, mask = _read(table, part, schema), masks[part]
            if take_lost is not None:
                answers.append(take_lost(part, rows.filter(mask).cast(plain)))
            yield without_unused(rows.filter(pc.invert(mask)))

    written = write_parquet(table.location, path, schema, kept())
    return (path, partition, written) if written.rows else None, answers


def coded_columns(table: Table, sources: Iterable[InputFile]) -> set[str]:
    """Return the text columns that are dictionary-encoded in all these files: so they can be read and written that
    way."""
    per_file: list[set[str]] = []
    for source in sources:
        with open_parquet(table.location, source.path) as file:
            groups = [file.metadata.row_group(place) for place in range(file.num_row_groups)]
        for group in groups:
            chunks = [group.column(place) for place in range(group.num_columns)]
            per_file.append(
                {
                    chunk.path_in_schema
                    for chunk in chunks
                    if "PLAIN_DICTIONARY" in chunk.encodings and "PLAIN" not in chunk.encodings
                }
            )
    return set.intersection(*per_file) if per_file else set()


def write_parquet(location: Location, path: str, schema: pa.Schema, rows: Iterable[pa.Table]) -> WrittenFile:
    """Write rows of this schema to a new file. Without rows there is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = [0]

    def counted() -> Iterator[pa.Table]:
        for batch in rows:
            count[0] += batch.num_rows
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
    return WrittenFile(count[0], size)


def _row_groups(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Combine parts until they make a decent row group."""
    import pyarrow as pa

    tables: list[pa.Table] = []
    for part in parts:
        tables.append(part)
        if sum(table.nbytes for table in tables) >= _GROUP_BYTES:
            yield pa.concat_tables(tables).unify_dictionaries()
            tables = []
    if tables:
        yield pa.concat_tables(tables).unify_dictionaries()


def _paths(names: Sequence[str]) -> list[str] | None:
    """Return the columns for a Parquet reader: it takes a dot in a name for a nested field, so such files are read
    whole."""
    return None if any("." in name for name in names) else list(names)
