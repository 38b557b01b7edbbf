"""Data files without some of their rows: the half of an upsert that changes what is already there.

    files   →  which of them could hold a key of the batch      statistics in the log
            →  which rows do                                    only the key columns are read
            →  the rows that stay, in new files                 whole files, streamed by row group

The new rows' files are added as Spark staged them. So a merge is one commit of removes and adds, and all of
its files are durable before anything names them; delta-rs' own merge commits what it has not synced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.model.records import Json
from tidegate.tables.arrow import arrow_schema, conform, dictionary_columns, typed_partition
from tidegate.tables.files import Location, unavailable
from tidegate.tables.footers import StagedFile, describe, open_parquet
from tidegate.tables.live import LiveFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Source", "Table", "key_rows", "rewrite"]

Lost = Callable[["pa.Table", "Source", int], Any]

_OUTPUT_BYTES = 128 << 20
"""Files of one partition are rewritten together up to about this size."""

_LEAST_BYTES = 16 << 20
_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 20
_THREADS = 2


@dataclass(frozen=True)
class Source:
    """A file to be read: live in a table, or staged."""

    path: str
    size: int
    partition: dict[str, str | None] = field(compare=False)

    @classmethod
    def of(cls, file: StagedFile | LiveFile) -> Source:
        """The file as something to read."""
        return cls(file.path, file.size, file.partition_texts())


@dataclass(frozen=True)
class _Part:
    """A row group of a file: the unit of work, so that one large file keeps all threads busy."""

    source: Source
    group: int
    start: int
    rows: int
    size: int
    """About as many bytes as it has in the file."""


@dataclass(frozen=True)
class Table:
    """What every file of a table has in common."""

    location: Location
    schema: Json
    partition_by: tuple[str, ...]


def key_rows(table: Table, source: Source, names: Sequence[str]) -> pa.Table:
    """Some columns of a file, typed as the table types them; partition columns included."""
    import pyarrow as pa

    parts = [_read(table, part, names) for part in _parts(table, source)]
    return pa.concat_tables([arrow_schema(table.schema, names).empty_table(), *parts])


def rewrite(
    table: Table, sources: Sequence[Source], names: Sequence[str], lost: Lost, folder: str
) -> tuple[list[Source], list[StagedFile]]:
    """Files without the rows that `lost` picks by their `names` columns, written durably into `folder`.

    `lost` gets some rows of a file, the file, and the number of the first of these rows; it answers with a
    mask. Returns the files that lose rows, and the files that take their place. A file that loses nothing is
    in neither list.
    """
    import pyarrow.compute as pc

    with ThreadPoolExecutor(_THREADS) as pool:
        parts = [part for found in pool.map(lambda source: _parts(table, source), sources) for part in found]
        masks = dict(zip(parts, pool.map(lambda part: _mask(table, part, names, lost), parts), strict=True))
        touched = {part.source.path: part.source for part, mask in masks.items() if pc.any(mask).as_py()}
        bundles = _bundles([part for part in parts if part.source.path in touched])
        paths = [f"{folder}/part-{place:05d}.parquet" for place in range(len(bundles))]
        written = list(pool.map(lambda bundle, path: _write(table, bundle, masks, path), bundles, paths))
    files = [file for file in written if file is not None]
    table.location.sync(file.path for file in files)
    return list(touched.values()), files


def _parts(table: Table, source: Source) -> list[_Part]:
    with open_parquet(table.location, source.path) as file:
        groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    found, start = [], 0
    for place, group in enumerate(groups):
        found.append(_Part(source, place, start, group.num_rows, source.size // len(groups)))
        start += group.num_rows
    return found


def _read(table: Table, part: _Part, names: Sequence[str]) -> pa.Table:
    """Some columns of a row group, in the table's types. One thread: there are as many readers as cores."""
    schema = arrow_schema(table.schema, names)
    with open_parquet(table.location, part.source.path) as file:
        stored = [name for name in names if name not in part.source.partition and name in file.schema_arrow.names]
        rows = file.read_row_group(part.group, columns=_paths(stored), use_threads=False)
    return conform(rows, schema, part.rows, typed_partition(part.source.partition, schema, part.rows))


def _mask(table: Table, part: _Part, names: Sequence[str], lost: Lost) -> Any:
    return lost(_read(table, part, names), part.source, part.start)


def _bundles(parts: Sequence[_Part]) -> list[list[_Part]]:
    """What goes into one file: parts of one partition, so many that all threads have work."""
    limit = min(_OUTPUT_BYTES, max(_LEAST_BYTES, sum(part.size for part in parts) // _THREADS))
    open_bundles: dict[tuple[tuple[str, str | None], ...], list[_Part]] = {}
    done = []
    for part in parts:
        bundle = open_bundles.setdefault(tuple(sorted(part.source.partition.items())), [])
        bundle.append(part)
        if sum(each.size for each in bundle) >= limit:
            done.append(open_bundles.pop(tuple(sorted(part.source.partition.items()))))
    return done + list(open_bundles.values())


def _write(table: Table, bundle: Sequence[_Part], masks: Mapping[_Part, Any], path: str) -> StagedFile | None:
    """The rows that stay, in one file; None if none does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    partition = bundle[0].source.partition
    stored = [each["name"] for each in table.schema["fields"] if each["name"] not in partition]
    schema = arrow_schema(table.schema, stored)
    groups = _row_groups(_kept(table, bundle, masks, stored))
    first = next(groups, None)
    if first is None:
        return None
    try:
        with (
            table.location.create(path) as sink,
            pq.ParquetWriter(
                sink,
                schema,
                compression="snappy",
                use_dictionary=dictionary_columns(first),
                store_decimal_as_integer=True,
            ) as writer,
        ):
            for group in itertools.chain([first], groups):
                writer.write_table(group, row_group_size=_GROUP_ROWS)
    except (pa.ArrowException, OSError) as error:
        raise unavailable(table.location.full(path), error) from error
    return describe(table.location, path, table.schema, partition)


def _kept(
    table: Table, bundle: Sequence[_Part], masks: Mapping[_Part, Any], stored: Sequence[str]
) -> Iterator[pa.Table]:
    import pyarrow.compute as pc

    for part in bundle:
        kept = _read(table, part, stored).filter(pc.invert(masks[part]))
        if kept.num_rows:
            yield kept


def _row_groups(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Parts put together until they make a decent row group."""
    import pyarrow as pa

    held: list[pa.Table] = []
    for part in parts:
        held.append(part)
        if sum(each.nbytes for each in held) >= _GROUP_BYTES:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _paths(names: Sequence[str]) -> list[str] | None:
    """What to ask a Parquet reader for: it takes a dot in a name for a nested field, so those read it all."""
    return None if any("." in name for name in names) else list(names)
