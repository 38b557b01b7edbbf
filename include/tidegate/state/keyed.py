"""Keyed state while a job runs: what the keys held at the base, and what this checkpoint changes.

    state.of(keys)            the rows of these keys: they are joined against the files, and the newest row wins
    state.rows()              all rows
    state.put(changes)        one row per changed key, written as one more run: sorted, split by key group
    state.merge(rows, ops)    the same for sums and extremes: looks up, merges and writes in one go
    state.finish()            the record for the ack; merges runs if there have become too many

Files are never changed. A run is what one checkpoint added; a reader takes for each key the row with the highest
checkpoint, so any set of runs can be merged into one, at any time, without anybody noticing. Everything stays in
Spark: nothing is collected, whatever the size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate import seams
from tidegate.delta import (
    Location,
    StagedFile,
    Syncing,
    from_spark,
    refuse_difference,
    rows_below,
    schema_problems,
    stage,
)
from tidegate.errors import Invalid
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.sources.files.reading import escaped, exact_reader
from tidegate.spark.empty import empty_like
from tidegate.spark.materialize import materialized
from tidegate.spark.writing import write_files
from tidegate.state import versions
from tidegate.state.arrow import workers
from tidegate.state.arrow.closing import ClosedWindows, WindowClosing
from tidegate.state.arrow.merge_plan import MergePlan
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, OWN, TOUCHED
from tidegate.state.compaction import Compaction, expired, to_merge
from tidegate.state.evolution import needs_rewrite, refusals
from tidegate.state.record import StateFile, StateTable, once, state_file
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["CHECKPOINT", "DELETED", "GROUP", "KeyedState", "StateFolder", "key_group"]

FEW = 8
"""Up to so many partitions each checkpoint writes a file for each. With more, as many as its rows need."""
SPLIT_ROWS = 100_000
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class StateFolder:
    """Where one attempt writes one state's files."""

    location: Location
    folder: str
    """Inside the state's table, the attempt's own."""
    checkpoint: int


class KeyedState:
    """One keyed state in one attempt of a job."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        base: StateTable | None,
        to: StateFolder,
        keys: Sequence[str],
        groups: int,
        ttl: Ttl | None = None,
    ) -> None:
        self.spark = spark
        self.name = name
        self.base = base
        self.to = to
        self.keys = list(keys)
        self.groups = groups
        self.ttl = ttl
        self._begun: list[StateFile] = list(base.files) if base else []
        self._files = list(self._begun)
        """Those of the base, as far as nothing has taken their place yet."""
        self._added: list[StateFile] = []
        self._columns: Json | None = base.columns if base else None
        self._writes = 0
        self._aside: list[str] = []
        """Folders with rows that are no part of the state."""
        self.syncing = Syncing(to.location)
        """Makes its files durable."""

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows at the base, not even deleted ones."""
        return self.base is None or not self.base.files

    # -- read ----------------------------------------------------------------------------------------

    @property
    def versions(self) -> DataFrame | None:
        """Every row in every file, older ones of a key included. None: there are none."""
        if self.base is None or not self.base.files:
            return None
        return self._read([each.file for each in self.base.files], self.base.columns)

    def rows(self, where: str | None = None) -> DataFrame | None:
        """Each key's row. None: the state has never held anything.

        where: a condition on what a key's rows have always had in common, so that files can be skipped by it.
        """
        if (rows := self.versions) is None:
            return None
        return self._newest(rows if where is None else rows.where(where))

    def of(self, keys: DataFrame, on: Sequence[str] = ()) -> DataFrame | None:
        """The rows of those keys that are in `keys` (one row per key). None: the state has never held anything.

        on: some of the key columns. Then it is the rows of all keys that have these in common with one of `keys`.
        """
        if (rows := self.versions) is None:
            return None
        from pyspark.sql import functions as F

        # Under names of their own: `keys` may have been read from this very state.
        aside = {key: f"_key {place}" for place, key in enumerate(on or self.keys)}
        wanted = keys.select(*(F.col(quoted(key)).alias(name) for key, name in aside.items()))
        same = " AND ".join(f"{quoted(key)} <=> {quoted(name)}" for key, name in aside.items())
        return self._newest(rows.join(wanted, F.expr(same), "left_semi"))

    def _newest(self, rows: DataFrame) -> DataFrame:
        assert self.base is not None
        return versions.newest(rows, self.keys, self._limit, once=once(self.base.files))

    @property
    def _limit(self) -> int | None:
        """What was written up to then has expired."""
        return self.ttl.limit if self.ttl else None

    def _read(self, files: Sequence[StagedFile], columns: Json) -> DataFrame:
        return self._load([file.path for file in files], columns)

    def _load(self, files: Sequence[str], columns: Json) -> DataFrame:
        from pyspark.sql.types import StructType

        paths = [self.to.location.full(path) for path in files]
        reader = exact_reader(self.spark, paths).schema(StructType.fromJson(versions.spark_schema(columns)))
        return reader.format("parquet").load(escaped(paths))

    # -- write ---------------------------------------------------------------------------------------

    def put(self, changes: DataFrame, *, deletes: bool = False) -> DataFrame:
        """Write changed rows, at most one per key, and give them back as read from what was written.

        deletes: the frame has a boolean column `_deleted`; where it is true, the key is gone afterwards.
        """
        from pyspark.sql import functions as F

        frame = self._with_own(changes, F.col(DELETED) if deletes else F.lit(False))
        schema = self._fitting(frame)
        files = self._write(frame, schema, "put", {CHECKPOINT: self.to.checkpoint, TOUCHED: self._touched})
        return self._put(files, schema, frame, keep_own=deletes)

    def merge(self, rows: DataFrame, ops: Mapping[str, str], fixed: Mapping[str, int] = _NONE) -> DataFrame:
        """Merge rows with what their keys hold, write the outcome, and give it back as read from what was written.

        rows: the keys, any number of rows for each, and a column for each of `ops`: "sum", "min" or "max". Nulls do
        not count. The types of the columns are the state's: a sum that does not fit into its column is an error.
        fixed: what some of the columns are in all rows: they need not be brought to workers.
        """
        from pyspark.sql import functions as F

        frame = self._with_own(rows.select(*map(quoted, [*self.keys, *ops])), F.lit(False))
        schema = self._fitting(frame)
        if not self.is_empty and self._by_workers(schema) and workers.merges(schema, self.keys, ops):
            return self._put(self._merge_by_workers(frame, schema, ops, fixed)[0], schema, frame)
        types = {field.name: field.dataType for field in frame.schema}
        merged = [F.expr(f"{op}({quoted(name)})").cast(types[name]).alias(name) for name, op in ops.items()]
        partial = rows.groupBy(*map(quoted, self.keys)).agg(*merged)
        if self.is_empty:
            return self.put(partial)
        with materialized(partial) as partial:
            before = self.of(partial)
            assert before is not None
            known = [name for name in before.columns if name in types]
            both = partial.unionByName(before.select(*map(quoted, known)), allowMissingColumns=True)
            return self.put(both.groupBy(*map(quoted, self.keys)).agg(*merged))

    def merge_ending(
        self, rows: DataFrame, ops: Mapping[str, str], ending: WindowClosing, fixed: Mapping[str, int] = _NONE
    ) -> ClosedWindows | None:
        """The same for rows that end: what stays is put into the state, what has ended is given out.

        rows: also the weight, if `ending` names one. None: workers cannot do it, and nothing has been done.
        """
        from pyspark.sql import functions as F

        end, weight = F.col(quoted(ending.start)).alias(ending.end), [ending.weight] if ending.weight else []
        frame = self._with_own(rows.select(*map(quoted, self.keys), end, *map(quoted, [*ops, *weight])), F.lit(False))
        like = frame.drop(*weight) if weight else frame
        schema = self._fitting(like)
        if not (self._by_workers(schema) and workers.merges(schema, self.keys, ops)):
            return None
        files, done = self._merge_by_workers(frame, schema, ops, fixed, ending)
        aside = f"{self.to.folder}/merge-{self._writes}-given"
        self._aside.append(aside)
        location = self.to.location
        refuse_difference(location.full(aside), sum(done.given.values()), rows_below(location, aside, done.given))
        given = [f"{aside}/{name}" for name in sorted(done.given)]
        ended = self._load(given, schema).drop(*OWN) if given else empty_like(like.drop(*OWN))
        return ClosedWindows(self._put(files, schema, like), ended, done.late, done.timeless)

    def _with_own(self, rows: DataFrame, deleted: Column) -> DataFrame:
        """The rows behind what tidegate adds: each file needs its statistics, and only the first columns have any."""
        from pyspark.sql import functions as F

        values = [name for name in rows.columns if name not in self.keys and name not in OWN]
        own = [
            key_group(self.keys, self.groups).alias(GROUP),
            F.lit(self.to.checkpoint).cast("long").alias(CHECKPOINT),
            deleted.cast("boolean").alias(DELETED),
        ]
        if self._expires:
            own.append(F.lit(self._touched).cast("long").alias(TOUCHED))
        return rows.select(*own, *map(quoted, self.keys), *map(quoted, values))

    @property
    def _touched(self) -> int | None:
        """When this checkpoint's rows are written, for their expiry."""
        return self.ttl.touched if self.ttl else None

    @property
    def _expires(self) -> bool:
        """Whether rows say when they were written. Once they do, they go on to: the column stays."""
        told = self._columns is not None and any(field["name"] == TOUCHED for field in self._columns["fields"])
        return self.ttl is not None or told

    def _put(self, files: list[StateFile], schema: Json, like: DataFrame, keep_own: bool = False) -> DataFrame:
        self._added += files
        self._columns = schema
        hidden = [TOUCHED] if keep_own else OWN
        return (
            self._read([each.file for each in files], schema).drop(*hidden) if files else empty_like(like.drop(*hidden))
        )

    def _fitting(self, frame: DataFrame) -> Json:
        """The schema of what is to be written, or Invalid if the state cannot go on with it."""
        schema = from_spark(msgspec.json.decode(frame.schema.json()))
        problems = schema_problems(schema, ())
        if self.base is not None and self.base.keys != self.keys:
            problems.append(f"its keys are {', '.join(self.keys)}; the state has {', '.join(self.base.keys)}")
        elif self._columns is not None:
            problems += refusals(self._columns, schema, self.keys)
        if problems:
            raise Invalid(
                "\n    ".join([f"the state of {self.name} cannot go on from what it holds:", *problems]),
                expected="the keys that it was begun with; values may be added, left out, or become wider",
                help="give the changed operator a uid of its own, so that it starts afresh, or change it back",
                reason="STATE_CHANGED",
            )
        if self._columns is not None and needs_rewrite(self._columns, schema):
            self._rewrite(schema)
        return schema

    def _rewrite(self, schema: Json) -> None:
        """All of the state once more, in the form that it has from now on."""
        if self.base is None or (rows := self.versions) is None:
            return
        files = self._write(versions.rewritten(rows, self.keys, self._limit, schema), schema, "rewritten")
        self.base = msgspec.structs.replace(self.base, columns=schema, files=files)
        self._files, self._columns = list(files), schema

    # -- files ---------------------------------------------------------------------------------------

    def _by_workers(self, schema: Json) -> bool:
        return workers.usable(self.spark, self.to.location) and workers.writes(schema)

    def _folder(self, name: str) -> str:
        seams.fault("S4.state.before")
        self._writes += 1
        return f"{self.to.folder}/{name}-{self._writes}"

    def _write(
        self, frame: DataFrame, schema: Json, name: str, fixed: Mapping[str, int | None] = _NONE
    ) -> list[StateFile]:
        """Rows as files of their own, split by key group and sorted.

        fixed: what some columns are in all rows. Workers add it: Spark would compile its code anew for each checkpoint.
        """
        folder, by_workers = self._folder(name), self._by_workers(schema)
        with self._split(frame.drop(*fixed) if by_workers else frame) as (rows, _):
            ordered, path = rows.sortWithinPartitions(*map(quoted, self.keys)), self.to.location.full(folder)
            if not by_workers:
                return self._staged(folder, schema, write_files(ordered, schema, path, ()))
            return self._staged(
                folder, schema, workers.write_runs(ordered, workers.layout_of(schema, self.keys), path, fixed)
            )

    def _merge_by_workers(
        self,
        frame: DataFrame,
        schema: Json,
        ops: Mapping[str, str],
        fixed: Mapping[str, int],
        ending: WindowClosing | None = None,
    ) -> tuple[list[StateFile], workers.Merged]:
        """Merge rows with what their keys hold; and what is to be merged anyway. Gives the files with these keys."""
        batches = [each for each in self._batches() if each.rows <= workers.MERGED_ROWS * self._partitions]
        folder, location = self._folder("merge"), self.to.location
        known = [CHECKPOINT, DELETED, TOUCHED, *fixed] + ([ending.end] if ending else [])  # told to workers below
        with self._split(frame.drop(*known)) as (rows, count):
            plan = MergePlan(
                layout=workers.layout_of(schema, self.keys),
                ops=dict(ops),
                fixed=dict(fixed),
                groups=self.groups,
                count=count,
                checkpoint=self.to.checkpoint,
                touched=self._touched,
                limit=self._limit,
                folder=location.full(folder),
                runs=workers.runs_of(self.base.files if self.base else [], location),
                batches=workers.batches_of(batches, location),
                ending=ending,
                aside=location.full(f"{folder}-given"),
            )
            done = workers.run(plan, rows)
        files = self._staged(folder, schema, done.files)
        for number, names in done.replaced.items():
            self._replace(batches[number].files, [each for each in files if each.name in names])
        return [each for each in files if each.name in done.added], done

    @property
    def _partitions(self) -> int:
        return min(self.groups, max(1, int(str(self.spark.conf.get("spark.sql.shuffle.partitions")))))

    @contextlib.contextmanager
    def _split(self, frame: DataFrame) -> Iterator[tuple[DataFrame, int]]:
        """Rows by ranges of key groups: in as many partitions as there may be, but with few rows in few."""
        if self._partitions <= FEW:
            yield workers.split_rows(frame, self.groups, self._partitions), self._partitions
            return
        with materialized(frame) as frame:
            count = min(self._partitions, max(FEW, frame.count() // SPLIT_ROWS))
            yield workers.split_rows(frame, self.groups, count), count

    def _staged(self, folder: str, schema: Json, written: int | Mapping[str, int] | None) -> list[StateFile]:
        """The files in the folder, durable once all is finished. Of workers' files only those that they named: others
        are of lost tries.

        written: how many rows there are, or how many each of the workers' files has.
        """
        location = self.to.location
        if isinstance(written, Mapping):
            found = [path for path, _ in location.walk(folder)]
            location.remove_files(path for path in found if path.rsplit("/", 1)[1] not in written)
        rows = sum(written.values()) if isinstance(written, Mapping) else written
        files = [state_file(file) for file in stage(location, folder, schema, sync=self.syncing, written=rows)]
        seams.fault("S4.state.after")
        return files

    # -- the record ----------------------------------------------------------------------------------

    def finish(self) -> StateTable | None:
        """The state as of this checkpoint, for the ack. None: it has never held anything."""
        if self._columns is None:
            return None
        for batch in self._batches():
            self._replace(batch.files, self._merged(batch))
        self.syncing.finish()
        return StateTable(columns=self._columns, keys=self.keys, groups=self.groups, files=[*self._files, *self._added])

    def let_go(self) -> None:
        """Remove what was written for this attempt alone."""
        self.syncing.leave()
        for folder in self._aside:
            self.to.location.remove_folder(folder)

    @property
    def changed(self) -> bool:
        """Whether this checkpoint has added, merged or dropped anything."""
        return bool(self._added) or self._files != self._begun

    def _batches(self) -> list[Compaction]:
        """What is to be merged and is not yet; what has expired as a whole goes at once."""
        if self.ttl is not None and self.ttl.limit is not None:
            self._replace(expired(self._files, self.ttl.limit), [])
        old = {each.file.path for each in (self.base.files if self.base else [])}
        return [each for each in to_merge(self._files) if all(file.file.path in old for file in each.files)]

    def _replace(self, gone: Sequence[StateFile], by: Sequence[StateFile]) -> None:
        paths = {each.file.path for each in gone}
        self._files = [each for each in self._files if each.file.path not in paths] + list(by)

    def _merged(self, batch: Compaction) -> list[StateFile]:
        """One run in place of several."""
        assert self.base is not None
        rows = self._read([each.file for each in batch.files], self.base.columns)
        rows = versions.merged(rows, self.keys, self._limit, forgets=batch.forgets)
        return self._write(rows, self.base.columns, "merged")


def key_group(keys: Sequence[str], groups: int) -> Column:
    """Which of `groups` groups a key belongs to: the same in every checkpoint, whatever the parallelism."""
    from pyspark.sql import functions as F

    return F.pmod(F.xxhash64(*map(quoted, keys)), F.lit(groups)).cast("int")
