"""Runs Python workers of Spark that read and write a state's files directly.

Each worker gets the rows of its key groups from Spark, and reports the files that it has written to the driver. So
there is one shuffle, and the state's rows do not pass through the JVM. Workers need tidegate, and either the disk of
this machine, or access to the object store.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.delta import Location, WrittenFile
from tidegate.delta.arrow_types import arrow_schema
from tidegate.delta.log.schema import columns
from tidegate.records.records import Json
from tidegate.spark.frame_facts import renamed, with_fields
from tidegate.spark.storage.same_disk import is_shared, is_tidegate_server, on_one_machine
from tidegate.spark.storage.worker_writes import work_on_store
from tidegate.spark.workers.garbage import sparing_modules
from tidegate.state.arrow.merging import ADDED, ReportRow
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout, Writer, sorted_chunks
from tidegate.state.columns import GROUP
from tidegate.state.compaction import Compaction
from tidegate.state.record import StateFile
from tidegate.versions.spark import repartition_by_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

__all__ = [
    "OUT_OF_REACH",
    "are_light",
    "batches_of",
    "is_key",
    "layout_of",
    "mapped",
    "merges",
    "report",
    "reported",
    "runs_of",
    "split_rows",
    "task",
    "type_name",
    "usable",
    "why_not_merged",
    "why_not_written",
    "write_runs",
    "writes",
]

_PLAIN_NAME = re.compile(r"\w+")

_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")
_FIXED_SIZE = ("boolean", *_NUMBERS, "date", "timestamp", "timestamp_ntz")
_KEYS = (*_FIXED_SIZE, "string", "binary")
_ORDERED = ("byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz")
_SUMS = ("long", "double")
_DECIMAL = re.compile(r"decimal\((\d+),\s?(-?\d+)\)")
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MERGED_ROWS = 4_000_000
"""The most rows that a worker merges in memory. Larger merges are left to Spark, which can spill."""
_LIGHT_BYTES = 512
"""The most bytes of a row on disk at which batches need no limit in bytes. A full batch then has some 8 MB on disk, and
at most 20 times as much in memory."""


OUT_OF_REACH = "workers do not reach the files of its state"


def usable(spark: SparkSession, location: Location) -> bool:
    """Return whether workers have tidegate, and access to the state's files."""
    if not location.is_local:
        return work_on_store(spark, location)
    return on_one_machine(spark) and is_tidegate_server(spark) and is_shared(spark, location)


def writes(schema: Json) -> bool:
    """Return whether Arrow and Spark write the same files for this schema."""
    return why_not_written(schema) is None


def why_not_written(schema: Json) -> str | None:
    """Return why Arrow and Spark may write different files for this schema, or None if they do not."""
    for field in schema["fields"]:
        if not _has_no_map(field["type"]):
            return f"column {field['name']} is a map, or has one in it"
    return None


def merges(schema: Json, keys: Sequence[str], ops: Mapping[str, str]) -> bool:
    """Return whether workers can merge these columns: equality of keys, sums and extremes are the same in Arrow and in
    Spark."""
    return why_not_merged(schema, keys, ops) is None


def why_not_merged(schema: Json, keys: Sequence[str], ops: Mapping[str, str]) -> str | None:
    """Return why workers cannot merge these columns, or None if they can."""
    types = {name: field["type"] for name, field in columns(schema).items()}
    for name in keys:
        if not is_key(types[name]):
            return f"key {name} is of type {type_name(types[name])}"
    for name, op in ops.items():
        if not _is_merged(types[name], op):
            value = "sum" if op == "sum" else "least or greatest value"
            return f"a {value} of type {type_name(types[name])}"
    return None


def type_name(kind: Any) -> str:
    """Return the name of a type for messages, without its inner types."""
    if isinstance(kind, str):
        return kind
    return str(kind["type"])


def _has_no_map(kind: Any) -> bool:
    if isinstance(kind, str):
        return True
    if kind["type"] == "struct":
        return all(_has_no_map(field["type"]) for field in kind["fields"])
    return kind["type"] == "array" and _has_no_map(kind["elementType"])


def is_key(kind: Any) -> bool:
    """Return whether workers can compare such values for equality (`keys_as_numbers.comparable`)."""
    if not isinstance(kind, str):
        return _has_no_map(kind)
    return kind in _KEYS or _DECIMAL.fullmatch(kind) is not None


def _is_merged(kind: Any, op: str) -> bool:
    if not isinstance(kind, str):
        return False
    if decimal := _DECIMAL.fullmatch(kind):
        return int(decimal[1]) < 38
    return kind in (_SUMS if op == "sum" else _ORDERED)


def are_light(fields: Sequence[StructField], *stored: Sequence[StateFile]) -> bool:
    """Return whether rows are so small that a limit in rows is enough for a batch, without one in bytes.

    stored: files with such rows, as a sample; if no file has whole rows, a list of files for each part of a row. Empty
    if the batch may be atypically large.
    """
    if all(field.dataType.typeName() in _FIXED_SIZE for field in fields):
        return True
    if not stored:
        return False
    row_bytes = 0.0
    for files in stored:
        rows = sum(file.file.rows for file in files)
        if not rows:
            return False
        row_bytes += sum(file.file.size for file in files) / rows
    return row_bytes <= _LIGHT_BYTES


def layout_of(schema: Json, keys: Sequence[str], location: Location) -> StateLayout:
    """Return the schema of a state's files, for Arrow."""
    return StateLayout(tuple(keys), arrow_schema(schema, list(columns(schema))), location.options)


def split_rows(rows: DataFrame, groups: int, count: int) -> DataFrame:
    """Return rows in `count` partitions, each with a range of key groups."""
    from pyspark.sql import functions as F

    return repartition_by_id(rows, count, F.expr(f"CAST({GROUP} * {count} DIV {groups} AS INT)"))


def write_runs(
    rows: DataFrame, layout: StateLayout, folder: str, fixed: Mapping[str, int | None]
) -> dict[str, WrittenFile]:
    """Write rows that are sorted within their partitions, as a file for each partition that has any.

    Return the files by name. fixed: the constant values of columns that the rows lack.
    """
    constants = dict(fixed)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _, name = task()
        writer = Writer(layout, f"{folder}/{name}")
        for chunk in sorted_chunks(batches):
            columns = {name: chunk[name] for name in chunk.column_names}
            writer.write(layout.table({**constants, **columns}, chunk.num_rows))
        yield from report([ReportRow.report_file(name, ADDED, 0, writer.close())])

    return {line.name: line.reported_file for line in reported(rows, work, rows.schema.fields) if line.rows}


def runs_of(files: Sequence[StateFile], location: Location) -> list[SortedFile]:
    """Return the files in the form that workers read."""
    return [SortedFile(location.full(file.file.path), file.groups, location.options) for file in files]


def batches_of(batches: Sequence[Compaction], location: Location) -> list[tuple[list[SortedFile], bool]]:
    """Return compactions in the form that workers carry out."""
    return [(runs_of(batch.files, location), batch.forgets) for batch in batches]


@contextlib.contextmanager
def _unweighed(spark: SparkSession) -> Iterator[None]:
    """Turn off the limit of batches in bytes. With it, Spark computes the size of the batch after each row, column by
    column, which is a sixth of the cost of a merge."""
    before = spark.conf.get(_BATCH_BYTES, None)
    spark.conf.set(_BATCH_BYTES, str(2**31 - 1))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_BATCH_BYTES)
        else:
            spark.conf.set(_BATCH_BYTES, before)


def reported(
    rows: DataFrame, work: Callable[..., Any], fields: Sequence[StructField], *, light: bool = False
) -> list[ReportRow]:
    """Run `work` on rows with these columns, a partition at a time, and return the workers' reports.

    light: batches need no limit in bytes (`are_light`).
    """
    from pyspark.sql import types as T

    names = [field.name for field in fields]

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from work(batch.rename_columns(names) for batch in batches)

    if not all(map(_PLAIN_NAME.fullmatch, names)):  # Spark takes dots, backticks and stars for something else
        numbers = [T.StructField(f"c{place}", field.dataType) for place, field in enumerate(fields)]
        rows = with_fields(renamed(rows, (field.name for field in numbers)), numbers)
    kinds = (T.StringType(), T.IntegerType(), T.IntegerType(), T.LongType(), T.IntegerType(), T.LongType())
    lines = T.StructType([T.StructField(name, kind) for name, kind in zip(ReportRow._fields, kinds, strict=True)])
    with _unweighed(rows.sparkSession) if light else contextlib.nullcontext():
        return [ReportRow(*row) for row in mapped(rows, named, lines).collect()]


def mapped(rows: DataFrame, work: Callable[..., Any], schema: StructType) -> DataFrame:
    """Return the result of running `work` on rows, a partition at a time. schema: that of the result."""
    return with_fields(rows.mapInArrow(sparing_modules(work), schema), schema.fields)


# -- inside a worker ------------------------------------------------------------------------------------


def task() -> tuple[int, str]:
    """Return this partition's number, and a name for its file that is unique among attempts."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId(), f"part-{context.partitionId():05d}-{context.taskAttemptId()}.parquet"


def report(lines: Sequence[ReportRow]) -> Iterator[pa.RecordBatch]:
    """Yield a worker's report, for `reported`."""
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int32(), pa.int64())
    columns = []
    for values, kind in zip(zip(*lines, strict=True), kinds, strict=True):
        columns.append(pa.array(values, kind))
    yield pa.RecordBatch.from_arrays(columns, names=list(ReportRow._fields))
