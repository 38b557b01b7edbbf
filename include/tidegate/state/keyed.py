"""Keyed state while a job runs: the rows of the keys at the base, and the changes of this checkpoint.

    state.of(keys)            the rows of these keys: they are joined against the files, and the newest row wins
    state.rows()              all rows
    state.put(changes)        one row per changed key, written as one more run: sorted, split by key group
    state.finish()            the record for the ack; merges runs if there have become too many

Files are never changed. A run holds the rows that one checkpoint added; a reader takes for each key the row with the
highest checkpoint, so any set of runs can be merged into one, at any time, without any reader noticing. Everything
stays in Spark: nothing is collected, whatever the size.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tidegate import seams
from tidegate.delta import (
    Location,
    StagedFile,
    Syncing,
    Written,
    WrittenFile,
    from_spark,
    refuse_other_files,
    schema_problems,
    sync_and_list,
)
from tidegate.delta.log.schema import collations
from tidegate.errors import Invalid
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import constant_setting, is_known_empty, no_rows, select_sql, with_fields
from tidegate.spark.materialize import StoredRows, mark_stored, materialize, materialized, release
from tidegate.spark.storage.exact_files import parquet_files
from tidegate.spark.storage.writing import write_files
from tidegate.state import versions
from tidegate.state.arrow import workers
from tidegate.state.arrow.merging import MergePlan
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, OWN, TOUCHED
from tidegate.state.compaction import Compaction, expired, to_merge
from tidegate.state.computing import Computing
from tidegate.state.evolution import RECOMPUTE, needs_rewrite, refusals
from tidegate.state.record import RowTtl, StateFile, StateTable, Ttl, once, state_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

__all__ = [
    "CHECKPOINT",
    "DELETED",
    "GROUP",
    "KeyedState",
    "Projection",
    "StateFolder",
    "TemporaryState",
    "collated_names",
    "key_group",
    "schema_of",
    "sums_that_do_not_fit_fail",
]

MIN_WRITTEN_PARTITIONS = 8
"""Up to this number of partitions, each checkpoint writes a file for each. Above it, as many as its rows need."""
SPLIT_ROWS = 100_000
MAX_ROWS_OF_SMALL_STATE = 1_000
"""A state with up to so many rows gets several of each key in a batch, or is too small for anybody to notice."""
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class StateFolder:
    """The place where one attempt writes one state's files."""

    location: Location
    folder: str
    """The attempt's own folder inside the state's table."""
    checkpoint: int


@dataclass(frozen=True)
class Projection:
    """What is given out of a state's rows, in place of these."""

    function: Callable[[pa.Table], pa.Table]
    """Makes it in workers."""
    fields: Sequence[StructField]
    """Its columns."""


class KeyedState:
    """One keyed state in one attempt of a job."""

    is_kept: ClassVar[bool] = True
    """False: no later checkpoint reads it, so nothing is written."""
    is_analysed: ClassVar[bool] = False
    """Whether only its columns are looked at, before there are any rows."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        base: StateTable | None,
        to: StateFolder,
        keys: Sequence[str],
        groups: int,
        ttl: Ttl | RowTtl | None = None,
        grouped_by: Sequence[str] = (),
    ) -> None:
        """grouped_by: the keys that decide the key group of a row; by default all. A state that was begun otherwise
        stays as it is, until `regroup`."""
        self.spark = spark
        self.name = name
        self.base = base
        self.to = to
        self.keys = list(keys)
        self.groups = groups
        self.ttl = ttl
        self.grouped_by = list(grouped_by if base is None or not base.files else base.grouped_by)
        self.base_files: list[StateFile] = list(base.files) if base else []
        """The files at the base."""
        self._files = list(self.base_files)
        """The files of the base that nothing has replaced yet."""
        self._added: list[StateFile] = []
        self._chosen: list[Compaction] | None = None
        self._columns: Json | None = base.columns if base else None
        self._writes = 0
        self._staged: set[str] = set()
        """Paths of all files that this attempt has written for the state."""
        self._aside: list[str] = []
        """Folders with rows that are not part of the state."""
        self._cached: list[DataFrame] = []
        """Frames that are computed once, and released when the attempt ends."""
        self.computing = Computing()
        """Where it is noted who has looked up and written its rows."""
        self.syncing = Syncing(to.location)
        """Makes its files durable."""
        self.little_arrives = False
        """Whether this checkpoint is known to have little input, as it is stored where it comes from."""
        self.few_rows_arrive = False
        """Whether its operator is known to get few rows."""
        self.shares_session = False
        """Whether other operators are at work in the session at the same time: then its settings stay as they are."""

    @property
    def is_empty(self) -> bool:
        """True if there are no rows at the base, not even deleted ones."""
        return self.base is None or not self.base.files

    @property
    def rows_in_files(self) -> int:
        """The number of rows in the base's files, as they are since `rewrite`: older versions of a key included."""
        return sum(file.file.rows for file in self._files)

    @property
    def has_few_keys_per_batch(self) -> bool:
        """Whether a batch is likely to have many rows for each key, as there are some at the base, but few; and Spark
        would reduce them as workers do: with an error for a sum that does not fit."""
        return (
            sums_that_do_not_fit_fail(self.spark)
            and 0 < sum(file.file.rows for file in self.base_files) <= MAX_ROWS_OF_SMALL_STATE
        )

    # -- read ----------------------------------------------------------------------------------------

    @property
    def versions(self) -> DataFrame | None:
        """Every row in every file, older versions of a key included. None: there are none."""
        if self.base is None or not self.base.files:
            return None
        return self._read([file.file for file in self._unexpired_files or self.base.files[:1]], self.base.columns)

    @property
    def _unexpired_files(self) -> list[StateFile]:
        """The base's files, as they are since `_rewrite`, that may have rows that have not expired, or hide others."""
        assert self.base is not None
        if self._limit is None:
            return self.base.files
        gone = {file.file.path for file in expired(self.base.files, self._limit)}
        return [file for file in self.base.files if file.file.path not in gone]

    def rows(self, where: str | None = None) -> DataFrame | None:
        """Return each key's row. None: the state has never held anything.

        where: a condition on columns in which all rows of a key agree, so that files can be skipped by it.
        """
        if (rows := self.versions) is None:
            return None
        return self._newest(rows if where is None else rows.where(where))

    def lookup(self, keys: DataFrame, on: Sequence[str] = ()) -> DataFrame | None:
        """Return the rows of the keys in `keys` (one row per key). None: the state has never held anything.

        on: some of the key columns. Then the result has the rows of all keys that agree with one of `keys` in these.
        """
        if (rows := self.versions) is None:
            return None
        self.computing.note_spark()
        from pyspark.sql import functions as F

        # Under names of their own: `keys` may have been read from this very state.
        aliases = {key: f"_key {place}" for place, key in enumerate(on or self.keys)}
        sought = keys.select(*(F.col(quoted(key)).alias(name) for key, name in aliases.items()))
        same = " AND ".join(f"{quoted(key)} <=> {quoted(name)}" for key, name in aliases.items())
        return self._newest(rows.join(sought, F.expr(same), "left_semi"))

    def _newest(self, rows: DataFrame) -> DataFrame:
        assert self.base is not None
        return versions.newest(rows, self.keys, self._limit, once=once(self.base.files))

    @property
    def _limit(self) -> int | None:
        """Rows whose time is up to then have expired."""
        return self.ttl.limit if self.ttl else None

    def _read(self, files: Sequence[StagedFile], columns: Json) -> DataFrame:
        return self._load([file.path for file in files], columns)

    def _load(self, files: Sequence[str], columns: Json) -> DataFrame:
        from pyspark.sql.types import StructType

        paths = [self.to.location.full(path) for path in files]
        schema = StructType.fromJson(versions.spark_schema(columns))
        rows = parquet_files(self.spark, paths, schema)
        return with_fields(rows, schema.fields)

    # -- write ---------------------------------------------------------------------------------------

    def write_changes(self, changes: DataFrame, *, deletes: bool = False) -> DataFrame:
        """Write changed rows, at most one per key, and return them as read from the files.

        deletes: the frame has a boolean column `_deleted`; where it is true, the key is deleted.
        """
        if not is_known_empty(changes):
            self.computing.note_spark()
        frame = self._with_own_columns(changes, changes.columns, quoted(DELETED) if deletes else "false")
        schema = self.check_schema(schema_of(frame.schema.fields))
        fixed = {CHECKPOINT: self.to.checkpoint} | ({} if self.expires_by_row_time else {TOUCHED: self._touched})
        files = self._write(frame, schema, "put", fixed)
        return self._put(files, schema, keep_own=deletes)

    def _with_own_columns(self, rows: DataFrame, names: Sequence[str], deleted: str) -> DataFrame:
        """Put tidegate's columns before the others: each file needs their statistics, and only the first columns have
        any. names: the columns of the rows. deleted: the SQL that says whether a row's key is deleted."""
        values = [name for name in names if name not in self.keys and name not in OWN]
        own = {
            GROUP: self._group,
            CHECKPOINT: f"CAST({self.to.checkpoint} AS BIGINT)",
            DELETED: f"CAST({deleted} AS BOOLEAN)",
        }
        if self.expires:
            until = (
                self.expires_by_row_time.until
                if self.expires_by_row_time
                else "NULL"
                if self._touched is None
                else self._touched
            )
            own[TOUCHED] = f"CAST({until} AS BIGINT)"
        bookkeeping = (f"{text} AS {quoted(name)}" for name, text in own.items())
        return select_sql(rows, [*bookkeeping, *map(quoted, self.keys), *map(quoted, values)])

    def schema_of_files(self, fields: Sequence[StructField]) -> Json:
        """Return the schema of files with these columns, keys first, before which `_with_own_columns` would put its
        own."""
        from pyspark.sql import types as T

        own = {GROUP: T.IntegerType(), CHECKPOINT: T.LongType(), DELETED: T.BooleanType()}
        if self.expires:
            own[TOUCHED] = T.LongType()
        return schema_of([*(T.StructField(name, kind) for name, kind in own.items()), *fields])

    def _empty_frame(self, schema: Json, hidden: Sequence[str] = OWN) -> DataFrame:
        """Return a frame without rows, with the columns of files of this schema."""
        from pyspark.sql.types import StructType

        kept = [field for field in versions.spark_schema(schema)["fields"] if field["name"] not in hidden]
        return no_rows(self.spark, StructType.fromJson({"type": "struct", "fields": kept}))

    @property
    def _group(self) -> str:
        """SQL for a row's key group."""
        return key_group(self.grouped_by or self.keys, self.groups)

    @property
    def _touched(self) -> int | None:
        """The time that this checkpoint's rows carry for their expiry."""
        return self.ttl.touched if self.ttl else None

    @property
    def expires_by_row_time(self) -> RowTtl | None:
        """When its rows expire, if each has a time of its own."""
        return self.ttl if isinstance(self.ttl, RowTtl) else None

    @property
    def expires(self) -> bool:
        """True if rows have a time that they expire by. Once they do, they always will: the column stays."""
        has_column = self._columns is not None and any(field["name"] == TOUCHED for field in self._columns["fields"])
        return self.ttl is not None or has_column

    def _put(self, files: list[StateFile], schema: Json, keep_own: bool = False) -> DataFrame:
        return self._add(files, schema, keep_own)()

    def _add(self, files: list[StateFile], schema: Json, keep_own: bool = False) -> Callable[[], DataFrame]:
        """Make files part of the state. Return a function that reads their rows."""
        self._added += files
        self._columns = schema
        hidden = [TOUCHED] if keep_own else OWN
        if not files:
            return lambda: self._empty_frame(schema, hidden)
        return lambda: self._read([file.file for file in files], schema).drop(*hidden)

    def check_schema(self, schema: Json) -> Json:
        """Return the schema of what is to be written. Raise Invalid if the state cannot continue with it."""
        problems = schema_problems(schema, ())
        if self.base is not None and self.base.keys != self.keys:
            problems.append(f"its keys are {', '.join(self.keys)}; the state has {', '.join(self.base.keys)}")
        elif self._columns is not None:
            problems += refusals(self._columns, schema, self.keys)
        if problems:
            raise Invalid(
                "\n    ".join([f"the state of {self.name} cannot continue from what it holds:", *problems]),
                expected="the keys that it was begun with; values may be added, left out, or become wider",
                help="give the changed operator a uid of its own, so that it starts afresh, or change it back; "
                + RECOMPUTE,
                reason="STATE_CHANGED",
            )
        if self._columns is not None and needs_rewrite(self._columns, schema):
            self._rewrite(schema)
        return schema

    def regroup(self, by: Sequence[str]) -> None:
        """See to it that rows that agree in these keys are in one key group: once, all of the state is written anew."""
        if self.grouped_by == list(by) or (self.grouped_by or self.keys) == list(by):
            return
        self.grouped_by = list(by)
        if self.base is not None:
            self._rewrite(self.base.columns)

    def rewrite(self, only: Callable[[DataFrame], DataFrame] | None = None) -> None:
        """Write all of the state once more, without what has expired, before anything is put into it.

        only: chooses those of its rows that stay.
        """
        if self.base is not None:
            self._rewrite(self.base.columns, only)

    def _rewrite(self, schema: Json, only: Callable[[DataFrame], DataFrame] | None = None) -> None:
        """Write all of the state once more, in this schema and these key groups. only: makes of its rows those that are
        written."""
        if self.base is None or (rows := self.versions) is None:
            return
        anew = versions.rewritten(rows, self.keys, self._limit, schema, self._group)
        anew = anew if only is None else only(anew)
        files = self._write(anew, schema, "rewritten")
        self.base = msgspec.structs.replace(self.base, columns=schema, files=files, grouped_by=self.grouped_by)
        self._files, self._columns = list(files), schema

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Return which of these columns its rows do not have yet."""
        there = {field["name"] for field in self.base.columns["fields"]} if self.base is not None else set(names)
        return [name for name in names if name not in there]

    def fill(self, schema: Json, texts: Mapping[str, str]) -> None:
        """Write all of the state once more, in this schema, with columns that SQL computes of its rows' others."""
        from pyspark.sql import functions as F

        filled = {name: F.expr(text) for name, text in texts.items()}
        self._rewrite(schema, lambda rows: rows.withColumns(filled))

    # -- files ---------------------------------------------------------------------------------------

    def _let_workers_write(self, schema: Json) -> bool:
        return workers.usable(self.spark, self.to.location) and workers.writes(schema)

    def new_folder(self, name: str) -> str:
        """Return a folder of the attempt that nothing has been written to."""
        seams.fault("S4.state.before")
        self._writes += 1
        return f"{self.to.folder}/{name}-{self._writes}"

    def _write(
        self, frame: DataFrame, schema: Json, name: str, fixed: Mapping[str, int | None] = _NONE
    ) -> list[StateFile]:
        """Write rows as files of their own, split by key group and sorted.

        fixed: columns with the same value in all rows. Workers add them: Spark would compile its code anew for each
        checkpoint.
        """
        folder, by_workers = self.new_folder(name), self._let_workers_write(schema)
        with self.split_by_group(frame.drop(*fixed) if by_workers else frame) as (rows, _):
            ordered, location = rows.sortWithinPartitions(*map(quoted, self.keys)), self.to.location
            if not by_workers:
                return self._stage_files(folder, schema, write_files(ordered, schema, location, folder, ()))
            layout = workers.layout_of(schema, self.keys, location)
            return self._stage_files(folder, schema, workers.write_runs(ordered, layout, location.full(folder), fixed))

    def due_batches(self) -> list[Compaction]:
        """Return the compactions that are due, as far as workers can do them: each holds its own key groups in
        memory."""
        count = min(self._partitions, MIN_WRITTEN_PARTITIONS)  # of a few rows no more workers are made
        bounds = [-(-self.groups * split // count) for split in range(count + 1)]
        ranges = list(itertools.pairwise(bounds))
        held, taken = [0.0] * count, []
        for batch in self._batches():
            with_batch = [rows + batch.rows_within(*span) for rows, span in zip(held, ranges, strict=True)]
            if max(with_batch) <= workers.MERGED_ROWS:
                held = with_batch
                taken.append(batch)
        return taken

    def merge_plan(self, schema: Json, folder: str, count: int, batches: Sequence[Compaction]) -> MergePlan:
        """Return the instructions for workers that look up rows of the state, write to `folder`, and compact.

        count: the number of ranges that the key groups are split into.
        """
        location = self.to.location
        return MergePlan(
            layout=workers.layout_of(schema, self.keys, location),
            groups=self.groups,
            count=count,
            checkpoint=self.to.checkpoint,
            expiry_time=self.expires_by_row_time or self._touched,
            limit=self._limit,
            folder=location.full(folder),
            runs=workers.runs_of(self._unexpired_files if self.base else [], location),
            batches=workers.batches_of(batches, location),
        )

    def add_files(
        self,
        folder: str,
        schema: Json,
        added: Mapping[str, WrittenFile],
        replaced: Mapping[int, Mapping[str, WrittenFile]],
        batches: Sequence[Compaction],
    ) -> None:
        """Make workers' files part of the state: those with changed rows, and those in place of each batch."""
        self._added += self._take_files(folder, schema, added, replaced, batches)
        self._columns = schema

    def _take_files(
        self,
        folder: str,
        schema: Json,
        added: Mapping[str, WrittenFile],
        replaced: Mapping[int, Mapping[str, WrittenFile]],
        batches: Sequence[Compaction],
    ) -> list[StateFile]:
        written = dict(added)
        for names in replaced.values():
            written |= names
        files = self._stage_files(folder, schema, written)
        for number, names in replaced.items():
            self._replace(batches[number].files, [file for file in files if file.name in names])
        return [file for file in files if file.name in added]

    def read_worker_files(self, folder: str, written: Mapping[str, WrittenFile], schema: Json) -> DataFrame | None:
        """Return rows that workers have written beside the state; they are removed with the attempt. None: no rows."""
        self._aside.append(folder)
        location = self.to.location
        refuse_other_files(location, folder, written)
        if not written:
            return None
        paths = [f"{folder}/{name}" for name in sorted(written)]
        return mark_stored(
            self._load(paths, schema), StoredRows(location, paths, sum(file.rows for file in written.values()))
        )

    def cached(self, frame: DataFrame) -> DataFrame:
        """Compute the frame once, however often it is used, until the attempt ends."""
        once = materialize(frame)
        self._cached.append(once)
        return once

    @cached_property
    def _partitions(self) -> int:
        return min(self.groups, max(1, int(str(self.spark.conf.get("spark.sql.shuffle.partitions")))))

    @contextlib.contextmanager
    def split_by_group(self, frame: DataFrame) -> Iterator[tuple[DataFrame, int]]:
        """Split rows by ranges of key groups: into as many partitions as possible, but few rows into few."""
        if self._partitions <= MIN_WRITTEN_PARTITIONS:
            yield workers.split_rows(frame, self.groups, self._partitions), self._partitions
            return
        if is_known_empty(frame):
            yield workers.split_rows(frame, self.groups, MIN_WRITTEN_PARTITIONS), MIN_WRITTEN_PARTITIONS
            return
        with materialized(frame) as frame:
            count = min(self._partitions, max(MIN_WRITTEN_PARTITIONS, frame.count() // SPLIT_ROWS))
            yield workers.split_rows(frame, self.groups, count), count

    def _stage_files(self, folder: str, schema: Json, written: Written) -> list[StateFile]:
        """Return the files in the folder, durable once the state is finished."""
        staged = sync_and_list(self.to.location, folder, schema, sync=self.syncing, written=written)
        files = [state_file(file) for file in staged]
        self._staged |= {file.path for file in staged}
        seams.fault("S4.state.after")
        return files

    # -- the record ----------------------------------------------------------------------------------

    def finish(self) -> StateTable | None:
        """Return the state as of this checkpoint, for the ack. None: it has never held anything."""
        if self._columns is None:
            return None
        for batch in self._batches():
            self._replace(batch.files, self._compact(batch))
        self.syncing.finish()
        files = [*self._files, *self._added]
        return StateTable(
            columns=self._columns, keys=self.keys, groups=self.groups, files=files, grouped_by=self.grouped_by
        )

    def release(self) -> None:
        """Remove files that only this attempt needed."""
        self.syncing.wait()
        kept = {file.file.path for file in (*self._files, *self._added)}
        if replaced := sorted(self._staged - kept):  # by what it has written after that
            self.to.location.remove_files(replaced)
        for folder in self._aside:
            self.to.location.remove_folder(folder)
        for frame in self._cached:
            release(frame)

    @property
    def changed(self) -> bool:
        """True if this checkpoint has added, merged or dropped anything."""
        return bool(self._added) or self._files != self.base_files

    def _batches(self) -> list[Compaction]:
        """Return the compactions of this checkpoint that are not done yet; drop files that have expired completely.

        They are chosen once, so that what workers have done is not followed by as much again.
        """
        self.drop_expired()
        if self._chosen is None:
            old = {file.file.path for file in (self.base.files if self.base else [])}
            files = [file for file in self._files if file.file.path in old]
            self._chosen = to_merge(files, self._partitions) if files else []
        present = {file.file.path for file in self._files}
        return [batch for batch in self._chosen if all(file.file.path in present for file in batch.files)]

    def drop_expired(self) -> None:
        """Let go of files whose rows have all expired."""
        if self.ttl is not None and self.ttl.limit is not None:
            self._replace(expired(self._files, self.ttl.limit), [])

    def _replace(self, old: Sequence[StateFile], replacements: Sequence[StateFile]) -> None:
        paths = {file.file.path for file in old}
        self._files = [file for file in self._files if file.file.path not in paths] + list(replacements)

    def _compact(self, batch: Compaction) -> list[StateFile]:
        """Write one run in place of several."""
        assert self.base is not None
        rows = self._read([file.file for file in batch.files], self.base.columns)
        rows = versions.merged(rows, self.keys, self._limit, forgets=batch.forgets)
        return self._write(rows, self.base.columns, "merged")


class TemporaryState(KeyedState):
    """The state of one interval: it begins empty, and no later checkpoint reads it. So nothing is written: what is put
    is given back as it is."""

    is_kept = False

    def write_changes(self, changes: DataFrame, *, deletes: bool = False) -> DataFrame:
        if not is_known_empty(changes):
            self.computing.note_spark()
        values = [name for name in changes.columns if name not in self.keys and name not in OWN]
        return changes.select(*map(quoted, [*self.keys, *values, *([DELETED] if deletes else [])]))

    def finish(self) -> StateTable | None:
        return None


def collated_names(fields: Sequence[StructField]) -> list[str]:
    """Return the columns whose texts have a collation."""
    from pyspark.sql.types import StructType

    return list(collations(msgspec.json.decode(StructType(list(fields)).json())))


def schema_of(fields: Sequence[StructField]) -> Json:
    """Return these columns as the schema of a table. Raise Invalid if the texts of one have a collation: within a
    checkpoint Spark would take some of them for equal, and across checkpoints nobody would."""
    from pyspark.sql.types import StructType

    schema = msgspec.json.decode(StructType(list(fields)).json())
    for name, collation in collations(schema).items():
        raise Invalid(
            f"what is remembered has {name!r}, whose texts have the collation {collation}",
            expected="texts that are equal only if they are the same: plain strings, of the collation UTF8_BINARY",
            help=f"make equal texts the same in a stage before it, as lower({quoted(name)}) COLLATE UTF8_BINARY does "
            "for UTF8_LCASE; or write COLLATE UTF8_BINARY alone to tell them apart",
            reason="COLLATION",
        )
    return from_spark(schema)


def sums_that_do_not_fit_fail(spark: SparkSession) -> bool:
    """Return whether Spark fails where a sum does not fit into its type, and gives no wrong one. Workers always do."""
    return constant_setting(spark, "spark.sql.ansi.enabled") != "false"


def key_group(keys: Sequence[str], groups: int) -> str:
    """Return SQL for the group, of `groups`, of each key: the same in every checkpoint, whatever the parallelism."""
    if not keys:
        return "0"
    return f"CAST(pmod(xxhash64({', '.join(map(quoted, keys))}), {groups}) AS INT)"
