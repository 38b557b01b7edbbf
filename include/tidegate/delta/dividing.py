"""Takes single rows out of staged files, for a divert: a target has refused them after the decision.

Spark finds the rows by a condition over the columns that the sink got. Only the files that have such rows are written
again, by this process and in the same order; all others are named as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from tidegate.delta import Location, StagedFile
from tidegate.delta.files.footers import describe
from tidegate.errors import Invalid
from tidegate.records.names import quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["MAX_DIVERTED", "Divided", "Division", "Parted", "as_declared", "not_divisible"]

MAX_DIVERTED: Final = 100_000
"""The most rows that one divert takes: it is for single rows, whose places this process remembers."""

_FILE, _ROW = "_tidegate_file", "_tidegate_row"


@dataclass(frozen=True)
class Divided:
    """A committable without the rows that were taken out, and these."""

    committable: Json
    """It says which columns the target gets, even if no row is left."""
    taken: DataFrame
    """In the columns of the sink's stream."""
    rows: int


@dataclass(frozen=True)
class Parted:
    """The files of one committable after rows were taken out."""

    files: list[StagedFile]
    taken: DataFrame
    rows: int


@dataclass(frozen=True)
class Division:
    """Which rows to take out."""

    spark: SparkSession
    schema: StructType
    """The columns of the sink's stream."""
    condition: str
    """Spark SQL over these columns."""
    only_looks: bool = False
    """Whether no file is written, and the rest is not needed."""

    def part(
        self,
        location: Location,
        files: Sequence[StagedFile],
        folder: str,
        columns: Json,
        as_output: Callable[[DataFrame], DataFrame],
    ) -> Parted:
        """Take the rows out of files that hold rows to add.

        folder: for the files that are written again. columns: their schema. as_output: returns staged rows in the
        columns of the stream, with all columns that it does not know.
        """
        taken = self._matching_rows(location, files, as_output)
        places = self._places(taken)
        rest, count = [], 0
        for number, file in enumerate(files):
            rows = places.pop(_name(location.full(file.path)), [])
            count += len(rows)
            path = f"{folder}/{number:05d}-{file.path.rpartition('/')[2]}"
            rest += _without_rows(location, file, rows, path, columns) if rows and not self.only_looks else [file]
        assert not places, "every row is of one of the files"
        return Parted(rest, taken.drop(_FILE, _ROW), count)

    def _matching_rows(
        self, location: Location, files: Sequence[StagedFile], as_output: Callable[[DataFrame], DataFrame]
    ) -> DataFrame:
        from pyspark.sql import functions as f

        by_partition: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
        for file in files:
            by_partition.setdefault(tuple(sorted(file.partition.items())), []).append(location.full(file.path))
        frames = []
        for partition, paths in by_partition.items():
            staged = self.spark.read.option("recursiveFileLookup", "true").parquet(*paths)
            staged = staged.withColumns({_FILE: f.col("_metadata.file_path"), _ROW: f.col("_metadata.row_index")})
            for name, value in partition:
                staged = staged.withColumn(name, f.lit(value).cast(self.schema[name].dataType))
            names = [*self.schema.names, _FILE, _ROW]
            frames.append(as_output(staged).select(*map(quoted, names)))
        rows = reduce(lambda first, second: first.unionByName(second), frames)
        return rows.where(f.coalesce(f.expr(f"({self.condition}\n)"), f.lit(False)))

    def _places(self, taken: DataFrame) -> dict[str, list[int]]:
        from urllib.parse import unquote

        matching = taken.select(_FILE, _ROW).limit(MAX_DIVERTED + 1).collect()
        if len(matching) > MAX_DIVERTED:
            raise Invalid(
                f"more than {MAX_DIVERTED:,} waiting rows match {self.condition!r}",
                expected="a condition that names the single rows which the target refuses",
                help="narrow it; if the target refuses most rows, correct the target or roll back",
                reason="TOO_MANY_ROWS",
            )
        places: dict[str, list[int]] = {}
        for path, row in matching:
            places.setdefault(_name(unquote(path)), []).append(row)
        return places


def not_divisible(sink: str, why: str) -> Invalid:
    """Return the error for rows that cannot be taken out of what was staged."""
    return Invalid(
        f"sink {sink!r}: {why}",
        expected="a sink whose staged rows have all columns of its stream",
        help="make the target accept the rows, or roll back to the checkpoint before them and correct them upstream",
        reason="NOT_DIVISIBLE",
    )


def as_declared(
    sink: str, staged: DataFrame, schema: StructType, kept: Mapping[str, Column] | None = None
) -> DataFrame:
    """Return staged rows in the columns of the stream: cast, or read from JSON where they were staged as such.

    kept: how to compute some of these columns.
    """
    from pyspark.sql import functions as f
    from pyspark.sql import types as T

    known, missing = dict(kept or {}), []
    for field in schema.fields:
        if field.name in known:
            continue
        if field.name not in staged.columns:
            missing.append(field.name)
            continue
        column, kind = f.col(quoted(field.name)), staged.schema[field.name].dataType
        is_nested = isinstance(field.dataType, T.StructType | T.ArrayType | T.MapType)
        if kind == field.dataType:
            known[field.name] = column
        elif is_nested and isinstance(kind, T.StringType):
            known[field.name] = f.from_json(column, field.dataType.simpleString(), {"timeZone": "UTC"})
        else:
            known[field.name] = column.cast(field.dataType)
    if missing:
        raise not_divisible(sink, f"its target does not get {', '.join(map(repr, missing))}, so they are not kept")
    return staged.withColumns({name: known[name] for name in schema.names})


def _name(path: str) -> str:
    """Return the end of a path, from the folder of staged files, by which Spark and the location call it alike."""
    return path.rpartition("/tidegate/")[2]


def _without_rows(
    location: Location, file: StagedFile, rows: Sequence[int], path: str, columns: Json
) -> list[StagedFile]:
    """Write a file again without some rows. Return it, or nothing if no row is left."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    if len(rows) == file.rows:
        return []
    stays = np.ones(file.rows, dtype=bool)
    stays[list(rows)] = False
    start = 0
    with (
        location.open(file.path) as source,
        pq.ParquetFile(source) as staged,
        location.create(path) as sink,
        pq.ParquetWriter(sink, staged.schema_arrow, compression="snappy", store_decimal_as_integer=True) as writer,
    ):
        for batch in staged.iter_batches():
            kept = batch.filter(pa.array(stays[start : start + batch.num_rows]))
            start += batch.num_rows
            if kept.num_rows:
                writer.write_batch(kept)
    location.sync([path])
    written = describe(location, path, columns, file.partition)
    assert written.rows == file.rows - len(rows), "every other row is in the file"
    return [written]
