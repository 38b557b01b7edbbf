"""Keyed state while a job runs: what the keys held at the base, and what this checkpoint changes.

    state.of(keys)      the rows of these keys: the batch's keys are joined against the files, and the newest row wins
    state.rows()        all rows
    state.put(changes)  one row per changed key, written as one more run: sorted, split by key group
    state.finish()      the record for the ack; merges runs if there have become too many

Files are never changed. A run is what one checkpoint added; a reader takes for each key the row with the highest
checkpoint, so any set of runs can be merged into one, at any time, without anybody noticing. Everything stays in
Spark: nothing is collected, whatever the size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate.errors import Invalid
from tidegate.model.records import Json
from tidegate.sinks.delta_table import write_files
from tidegate.sources.reading import escaped, exact_reader
from tidegate.state.compaction import to_merge
from tidegate.state.record import StateFile, StateTable
from tidegate.tables import Location, StagedFile, from_spark, schema_problems, stage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["CHECKPOINT", "DELETED", "GROUP", "KeyedState", "StateFolder", "key_group"]

GROUP: Final = "_group"
CHECKPOINT: Final = "_checkpoint"
DELETED: Final = "_deleted"
OWN: Final = (GROUP, CHECKPOINT, DELETED)


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
        self, spark: SparkSession, name: str, base: StateTable | None, to: StateFolder, keys: Sequence[str], groups: int
    ) -> None:
        self.spark = spark
        self.name = name
        self.base = base
        self.to = to
        self.keys = list(keys)
        self.groups = groups
        self._added: list[StateFile] = []
        self._columns: Json | None = base.columns if base else None

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows at the base, not even deleted ones."""
        return self.base is None or not self.base.files

    # -- read ----------------------------------------------------------------------------------------

    @cached_property
    def versions(self) -> DataFrame | None:
        """Every row in every file, older ones of a key included. None: there are none."""
        if self.base is None or not self.base.files:
            return None
        return self._read([each.file for each in self.base.files], self.base.columns)

    def rows(self, where: str | None = None) -> DataFrame | None:
        """Each key's row. None: the state has never held anything.

        where: a condition on what a key's rows have always had in common, so that files can be skipped by it.
        """
        if self.versions is None:
            return None
        return self._newest(self.versions if where is None else self.versions.where(where))

    def of(self, keys: DataFrame, on: Sequence[str] = ()) -> DataFrame | None:
        """The rows of those keys that are in `keys` (one row per key). None: the state has never held anything.

        on: some of the key columns. Then it is the rows of all keys that have these in common with one of `keys`.
        """
        if self.versions is None:
            return None
        from pyspark.sql import functions as F

        # Under names of their own: `keys` may have been read from this very state.
        aside = {key: f"_key {place}" for place, key in enumerate(on or self.keys)}
        wanted = keys.select(*(F.col(_quoted(key)).alias(name) for key, name in aside.items()))
        same = " AND ".join(f"{_quoted(key)} <=> {_quoted(name)}" for key, name in aside.items())
        return self._newest(self.versions.join(wanted, F.expr(same), "left_semi"))

    def _newest(self, versions: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        assert self.base is not None
        values = [name for name in versions.columns if name not in self.keys and name not in OWN]
        if len({each.checkpoint for each in self.base.files}) > 1 or _overlap(self.base.files):
            row = F.max_by(F.struct(*map(_quoted, values), DELETED), F.col(CHECKPOINT)).alias("row")
            versions = versions.groupBy(*map(_quoted, self.keys)).agg(row)
            return versions.where(f"NOT row.{DELETED}").select(
                *map(_quoted, self.keys), *(F.col("row")[name].alias(name) for name in values)
            )
        return versions.where(f"NOT {DELETED}").select(*map(_quoted, self.keys), *map(_quoted, values))

    def _read(self, files: Sequence[StagedFile], columns: Json) -> DataFrame:
        from pyspark.sql.types import StructType

        paths = [self.to.location.full(file.path) for file in files]
        reader = exact_reader(self.spark, paths).schema(StructType.fromJson(_spark_schema(columns)))
        return reader.format("parquet").load(escaped(paths))

    # -- write ---------------------------------------------------------------------------------------

    def put(self, changes: DataFrame, *, deletes: bool = False) -> DataFrame:
        """Write changed rows, at most one per key, and give them back as read from what was written.

        deletes: the frame has a boolean column `_deleted`; where it is true, the key is gone afterwards.
        """
        from pyspark.sql import functions as F

        values = [name for name in changes.columns if name not in self.keys and name not in OWN]
        frame = changes.select(
            # First, because a table's log has statistics of its first columns only, and these are needed.
            key_group(self.keys, self.groups).alias(GROUP),
            F.lit(self.to.checkpoint).cast("long").alias(CHECKPOINT),
            (F.col(DELETED) if deletes else F.lit(False)).alias(DELETED),
            *map(_quoted, self.keys),
            *map(_quoted, values),
        )
        schema = self._fitting(frame)
        files = self._write(frame, schema, f"put{len(self._added) or ''}")
        self._added += files
        self._columns = schema
        read = self._read([each.file for each in files], schema) if files else frame.limit(0)
        return read if deletes else read.drop(*OWN)

    def _fitting(self, frame: DataFrame) -> Json:
        """The schema of what is to be written, or Invalid if the files that are there cannot be read with it."""
        schema = from_spark(msgspec.json.decode(frame.schema.json()))
        problems = schema_problems(schema, ())
        if self.base is not None and self.base.keys != self.keys:
            problems.append(f"its keys are {', '.join(self.keys)}; the state has {', '.join(self.base.keys)}")
        if self._columns is not None:
            problems += _changes(self._columns, schema)
        if problems:
            raise Invalid(
                "\n    ".join([f"the state of {self.name} cannot go on from what it holds:", *problems]),
                expected="the keys and values that it was begun with",
                help="give the changed operator a uid of its own, so that it starts afresh, or change it back",
                reason="STATE_CHANGED",
            )
        return schema

    def _write(self, frame: DataFrame, schema: Json, name: str) -> list[StateFile]:
        from pyspark.sql import functions as F

        count = min(self.groups, max(1, int(str(self.spark.conf.get("spark.sql.shuffle.partitions")))))
        split = F.expr(f"CAST({GROUP} * {count} DIV {self.groups} AS INT)")
        ordered = frame.repartitionById(count, split).sortWithinPartitions(*map(_quoted, self.keys))
        folder = f"{self.to.folder}/{name}"
        write_files(ordered, schema, self.to.location.full(folder), ())
        return [_state_file(file) for file in stage(self.to.location, folder, schema)]

    # -- the record ----------------------------------------------------------------------------------

    def finish(self) -> StateTable | None:
        """The state as of this checkpoint, for the ack. None: it has never held anything."""
        if self._columns is None:
            return None
        files = list(self.base.files) if self.base else []
        for number, batch in enumerate(to_merge(files)):
            files = [each for each in files if each not in batch] + self._merged(batch, files, f"merged{number}")
        return StateTable(columns=self._columns, keys=self.keys, groups=self.groups, files=[*files, *self._added])

    @property
    def changed(self) -> bool:
        """Whether this checkpoint has added anything."""
        return bool(self._added)

    def _merged(self, batch: Sequence[StateFile], files: Sequence[StateFile], name: str) -> list[StateFile]:
        """One run in place of several. A deleted key is forgotten only if no other file can hold an older row of it."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        assert self.base is not None
        rows = self._read([each.file for each in batch], self.base.columns)
        newest = Window.partitionBy(*map(_quoted, self.keys)).orderBy(F.col(CHECKPOINT).desc())
        rows = rows.withColumn("_age", F.row_number().over(newest)).where("_age = 1").drop("_age")
        if not any(_touch(one, other) for one in batch for other in files if other not in batch):
            rows = rows.where(f"NOT {DELETED}")
        return self._write(rows, self.base.columns, name)


def key_group(keys: Sequence[str], groups: int) -> Column:
    """Which of `groups` groups a key belongs to: the same in every checkpoint, whatever the parallelism."""
    from pyspark.sql import functions as F

    return F.pmod(F.xxhash64(*map(_quoted, keys)), F.lit(groups)).cast("int")


def _state_file(file: StagedFile) -> StateFile:
    stats = msgspec.json.decode(file.stats)
    low, high = stats["minValues"], stats["maxValues"]
    return StateFile(file=file, checkpoint=high[CHECKPOINT], groups=(low[GROUP], high[GROUP]))


def _touch(one: StateFile, other: StateFile) -> bool:
    """Whether both may hold rows of one key group."""
    return one.groups[0] <= other.groups[1] and other.groups[0] <= one.groups[1]


def _overlap(files: Sequence[StateFile]) -> bool:
    """Whether two files of one checkpoint may hold the same key."""
    ordered = sorted(files, key=lambda each: each.groups)
    return any(_touch(one, other) for one, other in itertools.pairwise(ordered))


def _changes(before: Json, now: Json) -> list[str]:
    from tidegate.tables.schema import differences

    return [each.text for each in differences(now, before)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _spark_schema(columns: Json) -> Json:
    """Delta's schema as Spark reads it: fields have metadata there."""
    return {"type": "struct", "fields": [{"metadata": {}, "nullable": True, **field} for field in columns["fields"]]}
