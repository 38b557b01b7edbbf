"""State written, and merged with a batch, by Python workers of Spark that read and write its files themselves.

Spark brings each worker the rows of its key groups; what comes back to the driver is a few lines that name files. It
costs a half of the same in DataFrame algebra, for there is one shuffle, and no row of the state passes through the JVM.
It is done where workers run on this machine and the state lies on its disks: elsewhere they would need tidegate and
the storage's passwords. Everywhere else, and for types that are not simple, the algebra of state/keyed.py does it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.model.records import Json
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, TOUCHED
from tidegate.state.compaction import Batch
from tidegate.state.record import StateFile
from tidegate.state.runs import Layout, Matcher, Run, Writer, combined, found, merged, reduced, sorted_chunks
from tidegate.tables import Location
from tidegate.tables.arrow import arrow_schema
from tidegate.tables.schema import columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Job", "batches_of", "layout_of", "merges", "runs_of", "split_rows", "usable", "write_runs", "writes"]

_KEYS = ("byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz")
_ORDERED = ("byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz")
_SUMS = ("long", "double")
_DECIMAL = re.compile(r"decimal\((\d+),\s?(-?\d+)\)")
_REPORT = "path string, batch int, split int, rows long"
MERGED_ROWS = 4_000_000
"""So many rows a worker merges in memory; more than that is for Spark, which spills."""


def usable(spark: SparkSession, location: Location) -> bool:
    """Whether workers run on this machine and see the state's files."""
    return location.is_local and str(spark.conf.get("spark.master", "")).startswith("local")


def writes(schema: Json) -> bool:
    """Whether files of this schema are the same whoever writes them."""
    return all(_plain(field["type"]) for field in schema["fields"])


def merges(schema: Json, keys: Sequence[str], ops: Mapping[str, str]) -> bool:
    """Whether workers can merge these columns: equality of keys, sums and extremes mean the same in both engines."""
    types = {name: field["type"] for name, field in columns(schema).items()}
    return all(_is_key(types[name]) for name in keys) and all(_is_merged(types[name], op) for name, op in ops.items())


def _plain(kind: Any) -> bool:
    if isinstance(kind, str):
        return True
    if kind["type"] == "struct":
        return all(_plain(field["type"]) for field in kind["fields"])
    return kind["type"] == "array" and _plain(kind["elementType"])


def _is_key(kind: Any) -> bool:
    return kind in _KEYS or (isinstance(kind, str) and _DECIMAL.fullmatch(kind) is not None)


def _is_merged(kind: Any, op: str) -> bool:
    if not isinstance(kind, str):
        return False
    if decimal := _DECIMAL.fullmatch(kind):
        return int(decimal[1]) < 38
    return kind in (_SUMS if op == "sum" else _ORDERED)


def layout_of(schema: Json, keys: Sequence[str]) -> Layout:
    """The schema of a state's files, for Arrow."""
    return Layout(tuple(keys), arrow_schema(schema, list(columns(schema))))


def split_rows(rows: DataFrame, groups: int, count: int) -> DataFrame:
    """Rows in `count` partitions, each of them with a range of key groups."""
    from pyspark.sql import functions as F

    return rows.repartitionById(count, F.expr(f"CAST({GROUP} * {count} DIV {groups} AS INT)"))


def write_runs(rows: DataFrame, layout: Layout, folder: str, fixed: Mapping[str, int | None]) -> set[str]:
    """Write rows that lie in their partitions, sorted: a file for each that has any. Gives the files' names.

    fixed: what columns are that the rows lack.
    """
    same = dict(fixed)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _, name = _task()
        writer = Writer(layout, f"{folder}/{name}")
        for chunk in sorted_chunks(batches):
            columns = {name: chunk[name] for name in chunk.column_names}
            writer.write(layout.table({**same, **columns}, chunk.num_rows))
        yield from _report([(name, -1, 0, writer.close())])

    return {name for name, _, _, count in _reported(rows, work) if count}


@dataclass(frozen=True)
class Job:
    """What every worker is told about a merge."""

    layout: Layout
    ops: Mapping[str, str]
    groups: int
    count: int
    """Into how many ranges the groups are split."""
    checkpoint: int
    touched: int | None
    limit: int | None
    folder: str
    runs: Sequence[Run]
    batches: Sequence[tuple[Sequence[Run], bool]]
    """Files to be merged beside, and whether rows that hide older ones are forgotten."""

    def range_of(self, split: int) -> range:
        """The key groups of a partition."""
        return range(-(-split * self.groups // self.count), -(-(split + 1) * self.groups // self.count))

    def runs_in(self, runs: Sequence[Run], groups: range) -> list[Run]:
        """The files that may hold rows of these groups."""
        return [run for run in runs if run.groups[0] < groups.stop and run.groups[1] >= groups.start]

    def run(self, rows: DataFrame) -> tuple[set[str], dict[int, set[str]]]:
        """The files that were written: those of the batch, and those in place of each set of files that was merged.

        A set counts as merged if every range of it was: of an empty batch, Spark may run no worker at all.
        """

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            split, name = _task()
            done = [(name, -1, split, _merge(self, batches, self.range_of(split), f"{self.folder}/{name}"))]
            for number in range(len(self.batches)):
                aside = f"merged{number}-{name}"
                rows = _compact(self, number, self.range_of(split), f"{self.folder}/{aside}")
                done.append((aside, number, split, rows))
            yield from _report(done)

        names: dict[int, set[str]] = defaultdict(set)
        splits: dict[int, set[int]] = defaultdict(set)
        for name, number, split, count in _reported(rows, work):
            splits[number].add(split)
            if count:
                names[number].add(name)
        return names[-1], {n: names[n] for n in range(len(self.batches)) if len(splits[n]) == self.count}


def runs_of(files: Sequence[StateFile], location: Location) -> list[Run]:
    """The files as workers find them."""
    return [Run(location.full(each.file.path), each.groups) for each in files]


def batches_of(batches: Sequence[Batch], location: Location) -> list[tuple[list[Run], bool]]:
    """Compactions as workers do them."""
    return [(runs_of(batch.files, location), batch.forgets) for batch in batches]


# -- inside a worker ------------------------------------------------------------------------------------


def _merge(job: Job, batches: Iterator[pa.RecordBatch], groups: range, path: str) -> int:
    """The batch's rows, each merged with what its key had, as one more file; how many there are."""
    import pyarrow as pa

    layout = job.layout
    now = reduced(batches, layout.keys, job.ops)
    if now is None:
        return 0
    now = pa.table({name: now[name].cast(layout.schema.field(name).type) for name in now.column_names})
    values = {name: now[name] for name in job.ops}
    hits = found(layout, job.runs_in(job.runs, groups), Matcher(now, layout.keys))
    if hits is not None:
        values = _with_before(job, values, now.num_rows, *hits)
    fixed = {CHECKPOINT: job.checkpoint, DELETED: False, TOUCHED: job.touched}
    keys = {name: now[name] for name in layout.keys}
    writer = Writer(layout, path)
    writer.write(layout.table({**keys, **values, **fixed, GROUP: now[GROUP]}, now.num_rows))
    return writer.close()


def _with_before(job: Job, values: dict[str, Any], rows: int, places: Any, before: pa.Table) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa

    lives = _living(before, job.limit)
    at = np.full(rows, -1, np.int64)
    at[places[lives]] = np.flatnonzero(lives)
    take = pa.array(at, mask=at < 0)
    return {
        name: combined(before[name].combine_chunks().take(take), now.combine_chunks(), job.ops[name])
        for name, now in values.items()
    }


def _living(rows: pa.Table, limit: int | None) -> Any:
    """Which rows are neither deleted nor expired."""
    import pyarrow.compute as pc

    lives = pc.invert(rows[DELETED])
    if limit is not None and TOUCHED in rows.column_names:
        lives = pc.and_(lives, pc.fill_null(pc.greater(rows[TOUCHED], limit), True))
    return lives.to_numpy()


def _compact(job: Job, number: int, groups: range, path: str) -> int:
    runs, forgets = job.batches[number]
    rows = merged(job.layout, job.runs_in(runs, groups), groups)
    if forgets:
        rows = rows.filter(_living(rows, job.limit))
    writer = Writer(job.layout, path)
    writer.write(rows)
    return writer.close()


def _task() -> tuple[int, str]:
    """Which partition this is, and a name for its file that no other try at it has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId(), f"part-{context.partitionId():05d}-{context.taskAttemptId()}.parquet"


def _report(done: Sequence[tuple[str, int, int, int]]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int32(), pa.int64())
    columns = [pa.array(values, kind) for values, kind in zip(zip(*done, strict=True), kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(columns, names=["path", "batch", "split", "rows"])


def _reported(rows: DataFrame, work: Callable[..., Any]) -> list[tuple[str, int, int, int]]:
    names = rows.columns

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from work(batch.rename_columns(names) for batch in batches)

    numbered = rows.toDF(*(f"c{place}" for place in range(len(names))))  # Spark stumbles over dots in names
    return [(row[0], row[1], row[2], row[3]) for row in numbered.mapInArrow(renamed, _REPORT).collect()]
