"""Rows staged before a gate judges them, together with the gate's mark columns.

All rows are written once, as if none were bad. The gate judges the content of the files, so nothing is persisted in
Spark. A file without bad rows goes into the table after its mark columns are dropped. Other files are rewritten without
their bad rows, which are returned for quarantine. If nearly all files are expected to need that, they are written as
drafts: plainly encoded, which makes writing and reading faster, and always rewritten.

All files are in the attempt's folder. No record names them before the ack.
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
"""The share of rows in files with bad rows above which drafts are used. Drafts save time from about one half."""
_SAMPLED_FILES = 8
"""The number of files examined for text columns with few distinct values."""
_MICROS = {"timestamp": 1, "timestamp_ntz": 1, "date": 86_400_000_000}
"""The unit of each time type's numbers in files, in microseconds."""


@dataclass(frozen=True)
class PrestagedRows:
    """The rows of one attempt for one table."""

    frame: DataFrame = field(repr=False)
    """The input rows, which must not be computed again."""
    location: Location
    folder: str
    schema: Json = field(repr=False)
    mark_columns: tuple[str, ...]
    """The names of the gate's mark columns."""
    sources: tuple[InputFile, ...]
    parts: tuple[RowGroup, ...]
    """The row groups of all files, file by file."""
    draft: bool
    """True: all files will be rewritten."""
    for_table: bool = True
    """False: the rows that pass are not for a table, only read again in this attempt."""
    _replaced: list[str] = field(default_factory=list, repr=False)
    """Paths of files that were replaced by rewritten ones."""
    _removed_counts: list[int] = field(default_factory=list, repr=False)
    """The number of rows removed from each part."""

    @property
    def rows(self) -> int:
        """The number of rows, including bad ones."""
        return sum(part.rows for part in self.parts)

    def read(self) -> DataFrame:
        """Read the rows from the files, for Spark."""
        paths = [self.location.full(source.path) for source in self.sources]
        if paths:
            return self._load(paths)
        return empty_like(self.frame)

    def _load(self, paths: list[str]) -> DataFrame:
        schema = self.frame.schema
        return with_fields(parquet_files(self.frame.sparkSession, paths, schema), schema.fields)

    def columns(self, part: RowGroup, names: Sequence[str]) -> pa.Table:
        """Read columns of a part, including mark columns."""
        mark_fields = []
        for name in self.mark_columns:
            mark_fields.append({"name": name, "type": "long", "nullable": True, "metadata": {}})
        full_schema = {"type": "struct", "fields": [*self.schema["fields"], *mark_fields]}
        return read_part(Table(self.location, full_schema, ()), part, names)

    def has_time(self, column: str) -> bool:
        """Return whether the rows have this column and its type is a time."""
        kind = self._field(column).get("type")
        return isinstance(kind, str) and kind in _MICROS

    def highest(self, time_column: str) -> int | None:
        """Return the highest time in a column, in microseconds, or None if it has only nulls."""
        field = self._field(time_column)
        maxima = []
        for number in self.each_rows([field["name"]], _highest):
            if number is not None:
                maxima.append(number)
        if maxima:
            return max(maxima) * _MICROS[field["type"]]
        return None

    def _field(self, column: str) -> Json:
        """Return the schema's field for a column, ignoring case, or {} if it has none."""
        for candidate in self.schema["fields"]:
            if candidate["name"].lower() == column.lower():
                return dict(candidate)
        return {}

    def each(self, function: Callable[[RowGroup], T]) -> list[T]:
        """Apply a function to each part, in several threads, and return the results in order."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(function, self.parts))

    def each_rows(self, names: Sequence[str], function: Callable[[pa.Table], T]) -> list[T]:
        """Apply a function to each part's values of some columns, without mark columns."""
        return self.each(lambda part: function(self.columns(part, names)))

    def divide(self, bad: Mapping[RowGroup, Any], on_removed: Callable[[RowGroup, pa.Table], T]) -> Iterator[T]:
        """Remove bad rows from the files. Yield the result of `on_removed` for each part's removed rows.

        `read` and `columns` still return all rows afterwards.

        bad: a mask for each part.
        """
        import pyarrow.compute as pc

        for mask in bad.values():
            self._removed_counts.append(pc.sum(mask).as_py() or 0)
        yield from divide(Table(self.location, self.schema, ()), bad, self.folder, on_removed, every=self.draft)
        replaced = self.sources if self.draft else touched(bad)
        for source in replaced:
            self._replaced.append(source.path)

    def draft_next(self, bad: Mapping[RowGroup, Any]) -> list[str] | None:
        """Return the text columns with few distinct values if the next checkpoint should stage its rows as drafts,
        because most rows of this one are in files with bad rows. Otherwise, return None."""
        files_with_bad = {source.path for source in touched(bad)}
        if not self.for_table or not files_with_bad:
            return None
        affected_rows = sum(part.rows for part in self.parts if part.source.path in files_with_bad)
        if affected_rows < _DRAFT_SHARE * self.rows:
            return None
        coded = coded_columns(Table(self.location, self.schema, ()), self.sources[:_SAMPLED_FILES])
        texts = [field["name"] for field in self.schema["fields"] if field["type"] == "string"]
        return [name for name in texts if name in coded]

    def passed(self) -> DataFrame:
        """Read the rows that remain without the bad ones, for Spark."""
        self.location.remove_files(self._replaced)
        if is_known_empty(self.frame):
            return self.frame
        paths = []
        for path, _ in self.location.walk(self.folder):
            if path.endswith(".parquet"):
                paths.append(self.location.full(path))
        remaining = self.rows - sum(self._removed_counts)
        refuse_difference(self.location.full(self.folder), remaining, rows_below(self.location, self.folder))
        if paths:
            return mark_stored(self._load(paths))
        return empty_like(self.frame)

    def staged(self) -> list[StagedFile]:
        """Make the files for the table durable, and return them."""
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
    """Return whether a gate can work on files instead of rows.

    On a disk, this process does the work, so Spark's tasks must run on this machine and see the same files. In an
    object store, Spark's Python workers do it, so they must have access (prestaged_on_object_store.py).
    """
    spark = frame.sparkSession
    if not location.is_local:
        return work_on_store(spark, location)
    return on_one_machine(spark) and is_shared(spark, location)


def prestage_locally(
    marked: DataFrame,
    frame: DataFrame,
    mark_columns: Sequence[str],
    location: Location,
    folder: str,
    schema: Json,
    draft: Collection[str] | None,
    *,
    for_table: bool,
) -> PrestagedRows:
    """Stage rows with mark columns, which are whole numbers, on a disk. marked: the rows of `frame` with them."""
    written = write_files(marked, schema, location, folder, (), draft=draft)
    table = Table(location, schema, ())
    sources: list[InputFile] = []
    parts: list[RowGroup] = []
    for path, size in location.walk(folder):
        if path.endswith(".parquet"):
            source = InputFile(path, size, {})
            sources.append(source)
            parts += parts_of(table, source)
    rows = sum(part.rows for part in parts)
    refuse_difference(location.full(folder), written if isinstance(written, int) else None, rows)
    return PrestagedRows(
        frame,
        location,
        folder,
        schema,
        tuple(mark_columns),
        tuple(sources),
        tuple(parts),
        draft=for_table and draft is not None,
        for_table=for_table,
    )
