"""Rows that are staged before they are judged, with a gate's mark columns.

They are written once, as if none were bad. So the gate judges the files' content, and nothing is persisted in Spark. A
file without bad rows becomes the table's file as it is, except for the mark columns, which are dropped from it. Other
files are rewritten without their bad rows, which are returned for quarantine. If nearly all files are expected to need
this, they are drafts: plainly encoded, which makes writing and reading faster, and all of them are rewritten.

All files are in the attempt's own folder. No record names them before the ack.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.delta import Location, StagedFile, refuse_difference, rows_below, sync_and_list
from tidegate.delta.files.drop_columns import drop_columns
from tidegate.delta.rewrite import (
    THREADS,
    InputFile,
    RowGroup,
    Table,
    coded_columns,
    divide,
    parts_of,
    read_part,
    touched,
)
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_like, is_known_empty, with_fields
from tidegate.spark.materialize import mark_stored
from tidegate.spark.storage.exact_files import parquet_files
from tidegate.spark.storage.same_disk import is_shared, on_one_machine
from tidegate.spark.storage.worker_writes import work_on_store
from tidegate.spark.storage.writing import write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["PrestagedRows", "can_prestage", "prestage_locally"]

T = TypeVar("T")

_DRAFT_SHARE = 0.6
"""The share of rows in files with bad rows from which drafts are used. They save time from about a half; this is a
little more."""
_SAMPLED_FILES = 8
"""Files that are examined for text columns with few different values."""
_MICROS = {"timestamp": 1, "timestamp_ntz": 1, "date": 86_400_000_000}
"""By type of a time: what the number in a file stands for, in microseconds."""


@dataclass(frozen=True)
class PrestagedRows:
    """The rows of one attempt for one table."""

    frame: DataFrame = field(repr=False)
    """The input rows. They must not be computed again."""
    location: Location
    folder: str
    schema: Json = field(repr=False)
    mark_columns: tuple[str, ...]
    """The names of the mark columns."""
    sources: tuple[InputFile, ...]
    parts: tuple[RowGroup, ...]
    """The row groups of all files, file by file."""
    draft: bool
    """True: all files will be rewritten."""
    for_table: bool = True
    """False: the rows that pass are only read again, in this attempt."""
    _replaced: list[str] = field(default_factory=list, repr=False)
    """Files that others have replaced."""
    _removed_counts: list[int] = field(default_factory=list, repr=False)
    """The number of rows that were removed from each part."""

    @property
    def rows(self) -> int:
        """The number of rows, including bad ones."""
        return sum(part.rows for part in self.parts)

    def read(self) -> DataFrame:
        """Read the rows from the files, for Spark."""
        paths = [self.location.full(source.path) for source in self.sources]
        return self._load(paths) if paths else empty_like(self.frame)

    def _load(self, paths: list[str]) -> DataFrame:
        schema = self.frame.schema
        return with_fields(parquet_files(self.frame.sparkSession, paths, schema), schema.fields)

    def columns(self, part: RowGroup, names: Sequence[str]) -> pa.Table:
        """Read some columns of a part, which may be mark columns."""
        mark_fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in self.mark_columns]
        full_schema = {"type": "struct", "fields": [*self.schema["fields"], *mark_fields]}
        return read_part(Table(self.location, full_schema, ()), part, names)

    def has_time(self, column: str) -> bool:
        """Return whether the rows have this column, and it holds a time."""
        kind = self._field(column).get("type")
        return isinstance(kind, str) and kind in _MICROS

    def highest(self, time_column: str) -> int | None:
        """Return the highest time in a column, in microseconds. None: no row has one."""
        field = self._field(time_column)
        found = self.each_rows([field["name"]], _highest)
        highest = max((number for number in found if number is not None), default=None)
        return None if highest is None else highest * _MICROS[field["type"]]

    def _field(self, column: str) -> Json:
        """Return a column of the rows as the schema has it, by its name in any case."""
        matching: list[Json] = [field for field in self.schema["fields"] if field["name"].lower() == column.lower()]
        return matching[0] if matching else {}

    def each(self, function: Callable[[RowGroup], T]) -> list[T]:
        """Apply a function to each part, in several threads."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(function, self.parts))

    def each_rows(self, names: Sequence[str], function: Callable[[pa.Table], T]) -> list[T]:
        """Apply a function to some of the rows' own columns in each part."""
        return self.each(lambda part: function(self.columns(part, names)))

    def divide(self, bad: Mapping[RowGroup, Any], on_removed: Callable[[RowGroup, pa.Table], T]) -> Iterator[T]:
        """Remove bad rows from the files. Yield the result of `on_removed` for each part's removed rows.

        bad: a mask for each part. `read` and `columns` still return all rows.
        """
        import pyarrow.compute as pc

        self._removed_counts.extend(pc.sum(mask).as_py() or 0 for mask in bad.values())
        yield from divide(Table(self.location, self.schema, ()), bad, self.folder, on_removed, every=self.draft)
        self._replaced.extend(source.path for source in (self.sources if self.draft else touched(bad)))

    def draft_next(self, bad: Mapping[RowGroup, Any]) -> list[str] | None:
        """Return whether the next checkpoint's rows should be staged as drafts, because most rows are in files with bad
        ones: if so, the text columns with few different values, else None."""
        with_bad = {source.path for source in touched(bad)}
        if (
            not self.for_table
            or not with_bad
            or sum(part.rows for part in self.parts if part.source.path in with_bad) < _DRAFT_SHARE * self.rows
        ):
            return None
        coded = coded_columns(Table(self.location, self.schema, ()), self.sources[:_SAMPLED_FILES])
        return [
            field["name"] for field in self.schema["fields"] if field["type"] == "string" and field["name"] in coded
        ]

    def passed(self) -> DataFrame:
        """Read the rows that are left once bad ones are removed, for Spark."""
        self.location.remove_files(self._replaced)
        if is_known_empty(self.frame):
            return self.frame
        paths = [self.location.full(path) for path, _ in self.location.walk(self.folder) if path.endswith(".parquet")]
        remaining = self.rows - sum(self._removed_counts)
        refuse_difference(self.location.full(self.folder), remaining, rows_below(self.location, self.folder))
        return mark_stored(self._load(paths)) if paths else empty_like(self.frame)

    def staged(self) -> list[StagedFile]:
        """Return the files for the table, once they are durable."""
        if self.draft and not self._replaced:
            self._rewrite_all()
        for source in self.sources:
            if self.mark_columns and source.path not in self._replaced:
                drop_columns(self.location.local(source.path), self.mark_columns)
        self.location.remove_files(self._replaced)
        return sync_and_list(self.location, self.folder, self.schema, written=self.rows - sum(self._removed_counts))

    def _rewrite_all(self) -> None:
        import pyarrow as pa

        no_bad_rows = {part: pa.repeat(pa.scalar(value=False), part.rows) for part in self.parts}
        for _ in self.divide(no_bad_rows, lambda part, rows: None):
            pass


def _highest(rows: pa.Table) -> int | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    times = rows.column(0)
    number = pa.int32() if pa.types.is_date32(times.type) else pa.int64()
    highest: int | None = pc.max(times.cast(number)).as_py()
    return highest


def can_prestage(frame: DataFrame, location: Location) -> bool:
    """Return whether files may be processed instead of rows: by this process, if Spark's tasks are on this machine and
    both see the files; by Spark's Python workers, if they work on the object store (prestaged_on_object_store.py)."""
    spark = frame.sparkSession
    if not location.is_local:
        return work_on_store(spark, location)
    return on_one_machine(spark) and is_shared(spark, location)


def prestage_locally(
    marked: DataFrame,
    frame: DataFrame,
    beside: Sequence[str],
    location: Location,
    folder: str,
    schema: Json,
    draft: Collection[str] | None,
    *,
    for_table: bool,
) -> PrestagedRows:
    """Stage rows with mark columns, which are whole numbers, on a disk. marked: the rows of `frame` with them."""
    written = write_files(marked, schema, location, folder, (), draft=draft)
    found = [(path, size) for path, size in location.walk(folder) if path.endswith(".parquet")]
    sources = tuple(InputFile(path, size, {}) for path, size in found)
    table = Table(location, schema, ())
    parts = tuple(part for source in sources for part in parts_of(table, source))
    rows = sum(part.rows for part in parts)
    refuse_difference(location.full(folder), written if isinstance(written, int) else None, rows)
    is_draft = for_table and draft is not None
    return PrestagedRows(frame, location, folder, schema, tuple(beside), sources, parts, is_draft, for_table)
