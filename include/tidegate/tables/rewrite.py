"""Data files without some of their rows: the half of an upsert that changes what is already there.

    files   →  which of them could hold a key of the batch      statistics in the log
            →  which rows do                                    only the key columns are read
            →  the rows that stay, in new files                 whole files, streamed by row group

The new rows' files are added as Spark staged them. So a merge is one commit of removes and adds, and all of
its files are durable before anything names them; delta-rs' own merge commits what it has not synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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

_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 20
_THREADS = 2


@dataclass(frozen=True)
class Source:
    """A file to be read: live in a table, or staged."""

    path: str
    size: int
    partition: dict[str, str | None]

    @classmethod
    def of(cls, file: StagedFile | LiveFile) -> Source:
        """The file as something to read."""
        return cls(file.path, file.size, file.partition_texts())


@dataclass
class _Touched:
    """A file that loses rows, and for each row group which rows those are."""

    source: Source
    masks: list[Any] = field(repr=False)
    lost: int


@dataclass(frozen=True)
class Table:
    """What every file of a table has in common."""

    location: Location
    schema: Json
    partition_by: tuple[str, ...]


def key_rows(table: Table, source: Source, names: Sequence[str]) -> pa.Table:
    """Some columns of a file, typed as the table types them; partition columns included."""
    import pyarrow as pa

    return pa.concat_tables([arrow_schema(table.schema, names).empty_table(), *_groups(table, source, names)])


def _groups(table: Table, source: Source, names: Sequence[str]) -> Iterator[pa.Table]:
    """The same, one table for each row group."""
    schema = arrow_schema(table.schema, names)
    with open_parquet(table.location, source.path) as file:
        stored = [name for name in names if name not in source.partition and name in file.schema_arrow.names]
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            read = file.read_row_group(group, columns=_paths(file, stored))
            yield conform(read, schema, count, typed_partition(source.partition, schema, count))


def rewrite(
    table: Table,
    sources: Sequence[Source],
    names: Sequence[str],
    lost: Lost,
    folder: str,
) -> tuple[list[Source], list[StagedFile], int]:
    """Files without the rows that `lost` picks by their `names` columns, written durably into `folder`.

    `lost` gets some rows of a file, the file, and the number of its first row; it answers with a mask.
    Returns the files that lose rows, the files that take their place, and how many rows are lost. A file
    that loses nothing is in neither list.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda source: _look(table, source, names, lost), sources)
        touched = [each for each in found if each.lost]
        bundles = list(_bundles(touched))
        written = pool.map(
            lambda item: _write(table, item[1], f"{folder}/part-{item[0]:05d}.parquet"), enumerate(bundles)
        )
        files = [file for file in written if file is not None]
    table.location.sync(file.path for file in files)
    return [each.source for each in touched], files, sum(each.lost for each in touched)


def _look(table: Table, source: Source, names: Sequence[str], lost: Lost) -> _Touched:
    import pyarrow.compute as pc

    masks, start = [], 0
    for rows in _groups(table, source, names):
        masks.append(lost(rows, source, start))
        start += rows.num_rows
    return _Touched(source, masks, sum(pc.sum(mask).as_py() or 0 for mask in masks))


def _bundles(touched: Iterable[_Touched]) -> Iterator[list[_Touched]]:
    """Files of one partition, together at most about as large as one file should be."""
    by_partition: dict[tuple[tuple[str, str | None], ...], list[_Touched]] = {}
    for each in touched:
        by_partition.setdefault(tuple(sorted(each.source.partition.items())), []).append(each)
    for members in by_partition.values():
        bundle: list[_Touched] = []
        for each in members:
            if bundle and sum(other.source.size for other in bundle) + each.source.size > _OUTPUT_BYTES:
                yield bundle
                bundle = []
            bundle.append(each)
        yield bundle


def _write(table: Table, bundle: Sequence[_Touched], path: str) -> StagedFile | None:
    """The rows that stay of several files, in one file; None if none does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    partition = bundle[0].source.partition
    stored = [each["name"] for each in table.schema["fields"] if each["name"] not in partition]
    schema = arrow_schema(table.schema, stored)
    groups = _row_groups(_kept(table, bundle, schema), schema)
    first = next(groups, None)
    if first is None:
        return None
    try:
        with table.location.create(path) as sink:
            writer = pq.ParquetWriter(
                sink,
                schema,
                compression="snappy",
                use_dictionary=dictionary_columns(first),
                store_decimal_as_integer=True,
            )
            with writer:
                writer.write_table(first, row_group_size=_GROUP_ROWS)
                for group in groups:
                    writer.write_table(group, row_group_size=_GROUP_ROWS)
    except (pa.ArrowException, OSError) as error:
        raise unavailable(table.location.full(path), error) from error
    return describe(table.location, path, table.schema, partition)


def _kept(table: Table, bundle: Sequence[_Touched], schema: Any) -> Iterator[pa.Table]:
    import pyarrow.compute as pc

    for each in bundle:
        with open_parquet(table.location, each.source.path) as file:
            stored = [name for name in schema.names if name in file.schema_arrow.names]
            for group, mask in enumerate(each.masks):
                rows = file.read_row_group(group, columns=_paths(file, stored))
                kept = conform(rows, schema, rows.num_rows if stored else len(mask), {}).filter(pc.invert(mask))
                if kept.num_rows:
                    yield kept


def _row_groups(parts: Iterator[pa.Table], schema: Any) -> Iterator[pa.Table]:
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


def _paths(file: Any, names: Sequence[str]) -> list[str] | None:
    """What to ask a Parquet reader for: it takes a dot in a name for a nested field, so those read it all."""
    return None if any("." in name for name in names) else list(names)
