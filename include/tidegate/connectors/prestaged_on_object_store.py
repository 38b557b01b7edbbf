"""Rows that are staged in an object store before they are judged, and all work on them done by Spark's Python workers.

Objects cannot be changed, and nobody wants to fetch them all to one machine. So the mark columns are not in the files:
workers return them, a few bits a row. The gate counts and chooses with these, here. What needs the rows themselves goes
to the workers: hashes of columns that must be unique, and files without their bad rows, which are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.connectors.prestaged import PrestagedRows, prestage_locally
from tidegate.delta import Location, StagedFile, WrittenFile, refuse_difference, refuse_other_files, sync_and_list
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
"""How many files are looked at at the same time."""


@dataclass(frozen=True)
class _RowsOnStore(PrestagedRows):
    """The rows of one attempt for one table, in an object store."""

    marks: Mapping[str, pa.Table] = field(default_factory=dict, repr=False)
    """By file: the mark columns of all its rows."""
    written: dict[str, WrittenFile] = field(default_factory=dict, repr=False)
    """The files that count, by their names in the folder."""

    @property
    def _table(self) -> Table:
        return Table(self.location, self.schema, ())

    def columns(self, part: RowGroup, names: Sequence[str]) -> pa.Table:
        marks = self.marks[part.source.path].slice(part.start, part.rows)
        own = [name for name in names if name not in self.mark_columns]
        if not own:
            return marks.select(list(names))
        rows = read_part(self._table, part, own)
        for name in (name for name in names if name in self.mark_columns):
            rows = rows.append_column(name, marks[name])
        return rows.select(list(names))

    def each_rows(self, names: Sequence[str], function: Callable[[pa.Table], T]) -> list[T]:
        table, wanted = self._table, list(names)

        def read_and_apply(part: RowGroup) -> T:
            return function(read_part(table, part, wanted))

        return on_workers(self.frame.sparkSession, read_and_apply, self.parts)

    def divide(self, bad: Mapping[RowGroup, Any], on_removed: Callable[[RowGroup, pa.Table], T]) -> Iterator[T]:
        import pyarrow.compute as pc

        self._removed_counts.extend(pc.sum(mask).as_py() or 0 for mask in bad.values())
        sources, table, folder = touched(bad), self._table, self.folder
        of_source: dict[str, list[RowGroup]] = {source.path: [] for source in sources}
        for part in bad:
            if part.source.path in of_source:
                of_source[part.source.path].append(part)
        bundles = [(parts, {part: bad[part] for part in parts}) for parts in of_source.values()]

        def rewrite(bundle: tuple[list[RowGroup], dict[RowGroup, Any]]) -> tuple[str, int, int, list[Any]]:
            parts, masks = bundle
            name = name_of_attempt("good", "judged")
            new, removed = without_rows(table, parts, f"{folder}/{name}", masks, _rows_alone)
            rows, size = new[2] if new is not None else (0, 0)
            return name, rows, size, removed

        for (parts, _), (name, rows, size, removed) in zip(
            bundles, on_workers(self.frame.sparkSession, rewrite, bundles), strict=True
        ):
            path = parts[0].source.path
            self._replaced.append(path)
            del self.written[path[len(folder) + 1 :]]
            if rows:
                self.written[name] = WrittenFile(rows, size)
            for part, part_rows in zip(parts, removed, strict=True):
                yield on_removed(part, part_rows)

    def draft_next(self, bad: Mapping[RowGroup, Any]) -> list[str] | None:
        """Return None: a file is written as the table is to have it, for the next one may have no bad rows."""
        return None

    def passed(self) -> DataFrame:
        if is_known_empty(self.frame):
            return self.frame
        self._refuse_lost_rows()
        refuse_other_files(self.location, self.folder, self.written)
        paths = [self.location.full(f"{self.folder}/{name}") for name in sorted(self.written)]
        return mark_stored(self._load(paths)) if paths else empty_like(self.frame)

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
    beside: Mapping[str, Column],
    location: Location,
    folder: str,
    schema: Json,
    draft: Collection[str] | None = None,
    *,
    for_table: bool = True,
) -> PrestagedRows:
    """Stage rows with mark columns, which are whole numbers. draft: the result of `draft_next` for the last
    checkpoint. for_table: False if the rows are only read again."""
    marked = frame.select("*", *(column.cast("long").alias(name) for name, column in beside.items()))
    marked, names = empty_if(frame, marked), tuple(beside)
    try:
        if location.is_local:
            return prestage_locally(marked, frame, names, location, folder, schema, draft, for_table=for_table)
        return _prestage_on_store(marked, frame, names, location, folder, schema, for_table=for_table)
    except Exception:
        location.remove_folder(folder)  # staging without mark columns, which then follows, uses the same folder
        raise


def _prestage_on_store(
    marked: DataFrame,
    frame: DataFrame,
    beside: tuple[str, ...],
    location: Location,
    folder: str,
    schema: Json,
    *,
    for_table: bool,
) -> PrestagedRows:
    told = {} if is_known_empty(frame) else write_in_workers_without(marked, beside, location, folder)
    written = {name: each.file for name, each in told.items()}
    refuse_other_files(location, folder, written)
    sources = tuple(InputFile(f"{folder}/{name}", file.size, {}) for name, file in sorted(written.items()))
    table = Table(location, schema, ())
    with ThreadPoolExecutor(_CHECKS) as pool:
        parts = tuple(part for found in pool.map(lambda each: parts_of(table, each), sources) for part in found)
    rows = sum(file.rows for file in written.values())
    refuse_difference(location.full(folder), rows, sum(part.rows for part in parts))
    marks = {f"{folder}/{name}": each.marks for name, each in told.items()}
    return _RowsOnStore(
        frame,
        location,
        folder,
        schema,
        beside,
        sources,
        parts,
        draft=False,
        for_table=for_table,
        marks=marks,
        written=written,
    )
