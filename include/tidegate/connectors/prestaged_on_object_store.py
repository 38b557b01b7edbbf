"""Rows staged in an object store before a gate judges them. Spark's Python workers do all work on the files.

Objects cannot be changed, and fetching all of them to one machine would be slow. So the files have no mark columns:
workers return the marks, a few bits per row, and the gate counts and selects rows with them in this process. Work on
the rows themselves is left to the workers: they hash columns that must be unique, rewrite files without their bad rows,
and return the bad rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.connectors.prestaged import PrestagedRows, prestage_locally
from tidegate.delta import Location, StagedFile, WrittenFile, refuse_difference, sync_and_list, verify_written_files
from tidegate.delta.rewrite import InputFile, RowGroup, Table, parts_of, read_part, touched, without_rows
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_if, empty_like, is_known_empty
from tidegate.spark.materialize import mark_stored
from tidegate.spark.storage.worker_writes import name_of_attempt, on_workers, write_in_workers_without

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["prestage"]

T = TypeVar("T")
_CHECKS = 16
"""The number of files checked concurrently."""


@dataclass(frozen=True)
class _RowsOnStore(PrestagedRows):
    """The rows of one attempt for one table, in an object store."""

    marks: Mapping[str, pa.Table] = field(default_factory=dict, repr=False)
    """By path of a file, the mark columns of all its rows."""
    written: dict[str, WrittenFile] = field(default_factory=dict, repr=False)
    """The files that count, by their names in the folder."""

    @property
    def _table(self) -> Table:
        return Table(self.location, self.schema, ())

    def columns(self, part: RowGroup, names: Sequence[str]) -> pa.Table:
        marks = self.marks[part.source.path].slice(part.start, part.rows)
        stored = [name for name in names if name not in self.mark_columns]
        if not stored:
            return marks.select(list(names))
        rows = read_part(self._table, part, stored)
        for name in names:
            if name in self.mark_columns:
                rows = rows.append_column(name, marks[name])
        return rows.select(list(names))

    def each_rows(self, names: Sequence[str], function: Callable[[pa.Table], T]) -> list[T]:
        table, columns = self._table, list(names)  # workers must not get self

        def read_and_apply(part: RowGroup) -> T:
            return function(read_part(table, part, columns))

        return on_workers(self.frame.sparkSession, read_and_apply, self.parts)

    def divide(self, bad: Mapping[RowGroup, Any], on_removed: Callable[[RowGroup, pa.Table], T]) -> Iterator[T]:
        import pyarrow.compute as pc

        for mask in bad.values():
            self._removed_counts.append(pc.sum(mask).as_py() or 0)
        sources, table, folder = touched(bad), self._table, self.folder
        parts_by_file: dict[str, list[RowGroup]] = {source.path: [] for source in sources}
        for part in bad:
            if part.source.path in parts_by_file:
                parts_by_file[part.source.path].append(part)
        bundles = [(parts, {part: bad[part] for part in parts}) for parts in parts_by_file.values()]

        def rewrite(bundle: tuple[list[RowGroup], dict[RowGroup, Any]]) -> tuple[str, int, int, list[Any]]:
            parts, masks = bundle
            name = name_of_attempt("good", "judged")
            new, removed = without_rows(table, parts, f"{folder}/{name}", masks, _rows_alone)
            rows, size = new[2] if new is not None else (0, 0)
            return name, rows, size, removed

        reports = on_workers(self.frame.sparkSession, rewrite, bundles)
        for (parts, _), (name, rows, size, removed) in zip(bundles, reports, strict=True):
            path = parts[0].source.path
            self._replaced.append(path)
            del self.written[path[len(folder) + 1 :]]
            if rows:
                self.written[name] = WrittenFile(rows, size)
            for part, part_rows in zip(parts, removed, strict=True):
                yield on_removed(part, part_rows)

    def draft_next(self, bad: Mapping[RowGroup, Any]) -> list[str] | None:
        """Return None: drafts are never used, since files are always written in their final form."""
        return None

    def passed(self) -> DataFrame:
        if is_known_empty(self.frame):
            return self.frame
        self._refuse_lost_rows()
        verify_written_files(self.location, self.folder, self.written)
        paths = [self.location.full(f"{self.folder}/{name}") for name in sorted(self.written)]
        if paths:
            return mark_stored(self._load(paths))
        return empty_like(self.frame)

    def staged(self) -> list[StagedFile]:
        self._refuse_lost_rows()
        return sync_and_list(self.location, self.folder, self.schema, written=self.written)

    def _refuse_lost_rows(self) -> None:
        rows = sum(file.rows for file in self.written.values())
        refuse_difference(self.location.full(self.folder), self.rows - sum(self._removed_counts), rows)


def _rows_alone(part: RowGroup, rows: pa.Table) -> pa.Table:
    return rows


def prestage(
    frame: DataFrame,
    mark_columns: Mapping[str, Column],
    location: Location,
    folder: str,
    schema: Json,
    draft: Collection[str] | None = None,
    *,
    for_table: bool = True,
) -> PrestagedRows:
    """Stage rows with mark columns, which are whole numbers.

    draft: the result of `draft_next` for the last checkpoint. for_table: False if the rows are only read again.
    """
    numbers = [column.cast("long").alias(name) for name, column in mark_columns.items()]
    marked, names = empty_if(frame, frame.select("*", *numbers)), tuple(mark_columns)
    try:
        if location.is_local:
            return prestage_locally(marked, frame, names, location, folder, schema, draft, for_table=for_table)
        return _prestage_on_store(marked, frame, names, location, folder, schema, for_table=for_table)
    except Exception:
        location.remove_folder(folder)  # the fallback, staging without marks, uses the same folder
        raise


def _prestage_on_store(
    marked: DataFrame,
    frame: DataFrame,
    mark_columns: tuple[str, ...],
    location: Location,
    folder: str,
    schema: Json,
    *,
    for_table: bool,
) -> PrestagedRows:
    reports = {}
    if not is_known_empty(frame):
        reports = write_in_workers_without(marked, mark_columns, location, folder)
    written = {name: report.file for name, report in reports.items()}
    verify_written_files(location, folder, written)
    sources = tuple(InputFile(f"{folder}/{name}", file.size, {}) for name, file in sorted(written.items()))
    table = Table(location, schema, ())
    with ThreadPoolExecutor(_CHECKS) as pool:
        parts_by_source = pool.map(lambda source: parts_of(table, source), sources)
        parts = tuple(part for parts_of_source in parts_by_source for part in parts_of_source)
    rows = sum(file.rows for file in written.values())
    refuse_difference(location.full(folder), rows, sum(part.rows for part in parts))
    marks = {f"{folder}/{name}": report.marks for name, report in reports.items()}
    return _RowsOnStore(
        frame,
        location,
        folder,
        schema,
        mark_columns,
        sources,
        parts,
        draft=False,
        for_table=for_table,
        marks=marks,
        written=written,
    )
