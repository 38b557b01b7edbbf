"""Rows that are staged before they are judged: beside each stands what a gate has noted of it.

They are written once, as if none were bad; so what is judged is what lies in the files, and nothing is kept in Spark.
A file in which nothing is bad becomes the table's as it is, but for the notes, which it forgets. Others are written
anew, without their bad rows, and these are handed to whoever sets them aside. Where that is to be expected of nearly
all files they are drafts: plainly written, which is faster, as is reading them; and all of them are written anew.

All of it lies in the attempt's own folder. Nothing names it before the ack.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.delta import Location, StagedFile, refuse_difference, stage
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
from tidegate.sources.files.reading import escaped, exact_reader
from tidegate.spark.empty import is_known_empty
from tidegate.spark.same_disk import is_shared, on_one_machine
from tidegate.spark.writing import write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["PrestagedRows", "can_stage_ahead", "prestage"]

T = TypeVar("T")

_MOST = 0.6
"""Drafts save time if about a half of the rows is in files with bad ones; we ask for a little more."""
_LOOKED_AT = 8
"""So many files tell of which texts there are few."""


@dataclass(frozen=True)
class PrestagedRows:
    """The rows of one attempt for one table."""

    frame: DataFrame = field(repr=False)
    """As they were given. Not to be computed again."""
    location: Location
    folder: str
    schema: Json = field(repr=False)
    beside: tuple[str, ...]
    """The columns in which is noted."""
    sources: tuple[InputFile, ...]
    parts: tuple[RowGroup, ...]
    """Their row groups, file by file."""
    draft: bool
    """Whether all files are to be written anew."""
    _replaced: list[str] = field(default_factory=list, repr=False)
    """Files in whose place there are others."""
    _gone: list[int] = field(default_factory=list, repr=False)
    """How many rows were taken out of each part."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(part.rows for part in self.parts)

    def read(self) -> DataFrame:
        """The rows for Spark, from the files."""
        paths = [self.location.full(source.path) for source in self.sources]
        reader = exact_reader(self.frame.sparkSession, paths).schema(self.frame.schema)
        return reader.format("parquet").load(escaped(paths))

    def columns(self, part: RowGroup, names: Sequence[str]) -> pa.Table:
        """Some columns of a part, those beside included."""
        noted = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in self.beside]
        whole = {"type": "struct", "fields": [*self.schema["fields"], *noted]}
        return read_part(Table(self.location, whole, ()), part, names)

    def each(self, see: Callable[[RowGroup], T]) -> list[T]:
        """What is seen in each part."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(see, self.parts))

    def divide(self, bad: Mapping[RowGroup, Any], lost: Callable[[RowGroup, pa.Table], T]) -> Iterator[T]:
        """Take bad rows out of the files. By and by, what is made of those that a part loses.

        bad: a mask for each part. What is read is still all of them.
        """
        import pyarrow.compute as pc

        self._gone.extend(pc.sum(mask).as_py() or 0 for mask in bad.values())
        yield from divide(Table(self.location, self.schema, ()), bad, self.folder, lost, every=self.draft)
        self._replaced.extend(source.path for source in (self.sources if self.draft else touched(bad)))

    def draft_next(self, bad: Mapping[RowGroup, Any]) -> list[str] | None:
        """If most rows are in files with bad ones, the next had better be staged as drafts: columns of texts, of which
        these files have few different ones. None: better not as drafts."""
        there = {source.path for source in touched(bad)}
        if not there or sum(part.rows for part in self.parts if part.source.path in there) < _MOST * self.rows:
            return None
        coded = coded_columns(Table(self.location, self.schema, ()), self.sources[:_LOOKED_AT])
        return [each["name"] for each in self.schema["fields"] if each["type"] == "string" and each["name"] in coded]

    def staged(self) -> list[StagedFile]:
        """What goes to the table, durable."""
        if self.draft and not self._replaced:
            self._write_all()
        for source in self.sources:
            if self.beside and source.path not in self._replaced:
                drop_columns(self.location.local(source.path), self.beside)
        self.location.remove_files(self._replaced)
        return stage(self.location, self.folder, self.schema, written=self.rows - sum(self._gone))

    def _write_all(self) -> None:
        import pyarrow as pa

        none = {part: pa.repeat(pa.scalar(value=False), part.rows) for part in self.parts}
        for _ in self.divide(none, lambda part, rows: None):
            pass


def can_stage_ahead(frame: DataFrame, location: Location) -> bool:
    """Whether this process may do with the files what else Spark would do: if both see them, and Spark has no other
    machines to do it on."""
    spark = frame.sparkSession
    return not is_known_empty(frame) and on_one_machine(spark) and is_shared(spark, location)


def prestage(
    frame: DataFrame,
    beside: Mapping[str, Column],
    location: Location,
    folder: str,
    schema: Json,
    draft: Collection[str] | None = None,
) -> PrestagedRows:
    """Stage rows with what is noted beside each, which is whole numbers. draft: what `draft_next` said of the last."""
    noted = frame.select("*", *(column.cast("long").alias(name) for name, column in beside.items()))
    try:
        written = write_files(noted, schema, location.full(folder), (), draft=draft)
        paths = [path for path, _ in location.walk(folder) if path.endswith(".parquet")]
        sources = tuple(InputFile(path, location.size(path) or 0, {}) for path in paths)
        table = Table(location, schema, ())
        parts = tuple(part for source in sources for part in parts_of(table, source))
        refuse_difference(location.full(folder), written, sum(part.rows for part in parts))
    except Exception:
        location.remove_folder(folder)  # whoever goes on without what is noted writes there, too
        raise
    return PrestagedRows(frame, location, folder, schema, tuple(beside), sources, parts, draft is not None)
