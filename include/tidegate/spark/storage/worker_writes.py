"""Files in an object store that Spark's Python workers write themselves, and report with their task's result.

Spark's own committer is made for file systems: a task writes to a temporary folder, and renames it when it is done, and
the driver renames again. An object store has no renames: each is a copy and several requests, and an interrupted copy
leaves half of a folder. Here each attempt at a task writes an object with a unique name, and reports its rows and bytes
with the task's result. So nothing is renamed, and a file that no successful task has reported does not count.

Workers need tidegate and its dependencies (spark/workers/shipping.py ships tidegate itself), and must reach the store.
This is checked on some of them, once per session and store.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from tidegate import seams
from tidegate.delta import Location, WrittenFile, from_spark, with_plain_partition_text
from tidegate.delta.arrow_types import arrow_schema
from tidegate.delta.files.footers import open_parquet
from tidegate.delta.files.partitions import folder_of
from tidegate.delta.log.schema import columns
from tidegate.delta.rewrite import write_parquet
from tidegate.records.names import quoted
from tidegate.records.place import store_of
from tidegate.records.records import Json
from tidegate.spark.workers.garbage import sparing_modules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "FileAndMarks",
    "can_write",
    "name_of_attempt",
    "on_workers",
    "work_on_store",
    "write_in_workers",
    "write_in_workers_without",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

log = logging.getLogger(__name__)

_CHECKED_STORES: Final = "_tidegate_workers"
_CHECK_TASKS: Final = 8
"""The number of tasks that check whether they reach a store. They are spread over the workers."""
_PLAIN: Final = re.compile(
    r"byte|short|integer|long|float|double|boolean|string|binary|date|timestamp|timestamp_ntz|decimal\(\d+,\s?-?\d+\)"
)


def can_write(schema: Json) -> bool:
    """Return whether workers can write these columns in the same way as Spark."""
    names = [field["name"].lower() for field in schema["fields"]]
    return bool(names) and len(set(names)) == len(names) and all(_is_plain(field["type"]) for field in schema["fields"])


def _is_plain(kind: Any) -> bool:
    if isinstance(kind, str):
        return _PLAIN.fullmatch(kind) is not None
    if kind["type"] == "struct":
        return bool(kind["fields"]) and all(_is_plain(field["type"]) for field in kind["fields"])
    return kind["type"] == "array" and _is_plain(kind["elementType"])


def work_on_store(spark: SparkSession, location: Location) -> bool:
    """Return whether Spark's Python workers have tidegate, and read and write in this object store."""
    if location.is_local:
        return False
    checked: dict[str, bool] = vars(spark).setdefault(_CHECKED_STORES, {})
    store = store_of(location.url)
    if store not in checked:
        checked[store] = _check_workers(spark, location)
    return checked[store]


def _check_workers(spark: SparkSession, location: Location) -> bool:
    """Let some tasks write an object each, and read it back. After any failure, Spark's own writer is used instead."""
    folder = f".tidegate-{seams.new_id()}"
    paths = [f"{folder}/{number}.parquet" for number in range(_CHECK_TASKS)]

    def write_and_read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = pa.table([batch.column(0)], names=["id"])
                write_parquet(location, f"{folder}/{number}.parquet", rows.schema, [rows])
                with open_parquet(location, f"{folder}/{number}.parquet") as file:
                    assert file.read() == rows
            yield batch

    try:
        tasks = spark.range(0, _CHECK_TASKS, 1, _CHECK_TASKS)
        lines = tasks.mapInArrow(write_and_read, "id long").collect()
        return len(lines) == _CHECK_TASKS and all(location.size(path) for path in paths)  # a listing may lag
    except Exception as error:
        errors = [line for line in str(error).splitlines() if "Error" in line]
        why = errors[-1] if errors else str(error)[:300]
        log.warning(
            "Spark's Python workers cannot use %s themselves, so Spark writes to it, which takes longer: %s",
            store_of(location.url),
            why.strip(),
        )
        return False
    finally:
        location.remove_files(paths)


def write_in_workers(
    frame: DataFrame, location: Location, folder: str, partition_by: Sequence[str]
) -> dict[str, WrittenFile]:
    """Let workers write the rows, a file for each task and partition. Return the files by their path in the folder."""
    return {name: written.file for name, written in _write(frame, location, folder, partition_by, ()).items()}


class FileAndMarks(NamedTuple):
    """A file, and columns of its rows that are not stored in it."""

    file: WrittenFile
    marks: Any
    """A table with as many rows, or None if there are no such columns."""


def write_in_workers_without(
    frame: DataFrame, mark_columns: Sequence[str], location: Location, folder: str
) -> dict[str, FileAndMarks]:
    """Let workers write the rows without `mark_columns`, and return these. They must be integers with few distinct
    values, so that a row's marks take only a few bits."""
    return _write(frame, location, folder, (), mark_columns)


def _write(
    frame: DataFrame, location: Location, folder: str, partition_by: Sequence[str], mark_columns: Sequence[str]
) -> dict[str, FileAndMarks]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    schema = from_spark(msgspec.json.decode(frame.schema.json()))
    stored = [name for name in columns(schema) if name not in partition_by and name not in mark_columns]
    layout, write, marked = arrow_schema(schema, stored), seams.new_id(), list(mark_columns)
    plain = with_plain_partition_text(frame, schema, partition_by)
    values = [F.col(quoted(name)).alias(f"c{place}") for place, name in enumerate([*stored, *marked])]
    texts = [F.col(quoted(name)).cast("string").alias(f"p{place}") for place, name in enumerate(partition_by)]
    rows = plain.select(*texts, *values)
    if texts:
        rows = rows.sortWithinPartitions(*(f"p{place}" for place in range(len(texts))))
    partitions = tuple(partition_by)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for place, (below, tables) in enumerate(_partition_runs(batches, partitions)):
            name, marks = f"{below}{name_of_attempt(f'part-{place:05d}', write)}", _Marks(marked)
            to_store = (marks.without_marks(table).rename_columns(stored).cast(layout) for table in tables)
            yield from _lines(name, *write_parquet(location, f"{folder}/{name}", layout, to_store), marks.close())

    kinds = {"name": T.StringType(), "rows": T.LongType(), "size": T.LongType(), "marks": T.BinaryType()}
    report = T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])
    files: dict[str, FileAndMarks] = {}
    for name, count, size, marks_file in rows.mapInArrow(sparing_modules(work), report).collect():
        marks = None
        if marks_file:
            marks = pq.read_table(pa.BufferReader(bytes(marks_file)))
        files[name] = FileAndMarks(WrittenFile(count, size), marks)
    return files


class _Marks:
    """The mark columns of a file's rows, which are the last ones, collected while the file is written."""

    def __init__(self, names: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema([pa.field(name, pa.int64()) for name in names])
        self._buffer = pa.BufferOutputStream()
        self._file = pq.ParquetWriter(self._buffer, self._schema)

    def without_marks(self, rows: pa.Table) -> pa.Table:
        """Collect the marks of these rows, and return the rows without them."""
        names = self._schema.names
        if names:
            marks = rows.select(range(rows.num_columns - len(names), rows.num_columns))
            self._file.write_table(marks.rename_columns(names).cast(self._schema))
        return rows.select(range(rows.num_columns - len(names)))

    def close(self) -> bytes:
        """Return the collected marks as a Parquet file; empty without mark columns."""
        self._file.close()
        if self._schema.names:
            return bytes(self._buffer.getvalue())
        return b""


def on_workers(spark: SparkSession, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Let workers apply a function to each of these items, and return the results in the same order.

    The function and the items are pickled. A task may run more than once, even at the same time.
    """
    from pyspark.serializers import CloudPickleSerializer

    shipped = list(items)
    wire: Any = CloudPickleSerializer()

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = wire.dumps(function(shipped[number]))
                arrays = [pa.array([number], pa.int64()), pa.array([result], pa.binary())]
                yield pa.RecordBatch.from_arrays(arrays, names=["number", "result"])

    if not shipped:
        return []
    numbers = spark.range(0, len(shipped), 1, len(shipped))
    results: dict[int, bytes] = dict(numbers.mapInArrow(sparing_modules(work), "number long, result binary").collect())
    return [wire.loads(bytes(results[number])) for number in range(len(shipped))]


def name_of_attempt(name: str, write: str) -> str:
    """Return a file name that is unique to this attempt at a task. For code that runs in a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return f"{name}-{context.partitionId():05d}-{context.taskAttemptId()}-{write}.parquet"


def _lines(name: str, rows: int, size: int, marks: bytes) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if rows:
        kinds = {"name": pa.string(), "rows": pa.int64(), "size": pa.int64(), "marks": pa.binary()}
        values = (name, rows, size, marks)
        arrays = []
        for value, kind in zip(values, kinds.values(), strict=True):
            arrays.append(pa.array([value], kind))
        yield pa.RecordBatch.from_arrays(arrays, names=list(kinds))


def _partition_runs(
    batches: Iterator[pa.RecordBatch], partition_by: Sequence[str]
) -> Iterator[tuple[str, Iterator[pa.Table]]]:
    """Yield, for each run of rows with the same partition, its folder and its rows.

    The caller must consume the rows of each before it asks for the next.
    """

    def pieces() -> Iterator[tuple[str, pa.Table]]:
        for batch in batches:
            yield from _pieces(batch, partition_by)

    for below, group in itertools.groupby(pieces(), key=_folder):
        yield below, (table for _, table in group)


def _folder(piece: tuple[str, Any]) -> str:
    return piece[0]


def _pieces(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Split a sorted batch where its partition changes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(partition_by)
    rows = pa.Table.from_batches([batch]).select(range(count, batch.num_columns))
    if not batch.num_rows:
        return
    texts = [pc.fill_null(batch.column(place), "") for place in range(count)]  # null and "" are the same partition
    differ = np.zeros(batch.num_rows - 1, bool)
    for column in texts:
        differ |= pc.not_equal(column[:-1], column[1:]).to_numpy(zero_copy_only=False)
    starts = [0, *(np.flatnonzero(differ) + 1).tolist(), batch.num_rows]
    for start, end in itertools.pairwise(starts):
        folders = (folder_of(name, column[start].as_py()) for name, column in zip(partition_by, texts, strict=True))
        yield "".join(f"{folder}/" for folder in folders), rows.slice(start, end - start)
