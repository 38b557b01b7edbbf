"""Keyed state while a job runs: the rows at the base, and the changes of this checkpoint.

    state.lookup(keys)              the rows of these keys: the files are joined with the keys, and the newest row wins
    state.rows()                    all rows
    state.write_changes(changes)    writes one row per changed key as a new run, sorted and split by key group
    state.finish()                  the record for the ack; merges runs if there are too many

Files are immutable. A run holds the rows that one checkpoint wrote. For each key, a reader takes the row with the
highest checkpoint, so any set of runs can be merged at any time without an effect on readers. Rows stay in Spark: they
are never collected, so a state may have any size.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
    schema_problems,
    sync_and_list,
    verify_written_files,
)
from tidegate.delta.log.schema import collations
from tidegate.errors import Invalid
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import constant_setting, is_known_empty, no_rows, select_sql, with_fields
from tidegate.spark.materialize import StoredRows, mark_stored, materialize, materialized, release
from tidegate.spark.row_id import row_id
from tidegate.spark.storage.exact_files import parquet_files
from tidegate.spark.storage.writing import write_files
from tidegate.state import versions
from tidegate.state.arrow import workers
from tidegate.state.arrow.merging import MergePlan
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, OWN, TOUCHED
from tidegate.state.compaction import Compaction, expired, to_merge
from tidegate.state.computing import Computing
from tidegate.state.evolution import RECOMPUTE, changes_row_ids, needs_rewrite, refusals
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
"""With up to this number of partitions, each checkpoint writes a file per partition. With more, it writes as many files
as its rows need."""
SPLIT_ROWS = 100_000
"""The number of rows for which a checkpoint writes another file, if there are more partitions than the minimum."""
MAX_ROWS_OF_SMALL_STATE = 1_000
"""A batch has many rows for each key of a state with at most this number of rows, so pre-aggregating in Spark pays
off."""
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class StateFolder:
    """The place where one attempt writes one state's files."""

    location: Location
    folder: str
    """The attempt's folder inside the state's table."""
    checkpoint: int


@dataclass(frozen=True)
class Projection:
    """Computes the rows to emit from a state's rows, in workers."""

    function: Callable[[pa.Table], pa.Table]
    fields: Sequence[StructField]
    """The columns of the result."""


class KeyedState:
    """One keyed state in one attempt of a job."""

    is_kept: ClassVar[bool] = True
    """Whether later checkpoints read it. If not, nothing is written."""
    is_analysed: ClassVar[bool] = False
    """Whether only its columns are analysed, before there are any rows."""

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
        """grouped_by: the keys that decide a row's key group, by default all. A stored state keeps its own until
        `regroup`."""
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
        """The files of the base that have not been replaced yet."""
        self._added: list[StateFile] = []
        self._chosen: list[Compaction] | None = None
        self._columns: Json | None = base.columns if base else None
        self._writes = 0
        self._staged: set[str] = set()
        """The paths of all files that this attempt has written for the state."""
        self._output_folders: list[str] = []
        """Folders with rows to emit, which are not part of the state."""
        self._cached: list[DataFrame] = []
        """Frames that are computed once, and released when the attempt ends."""
        self.computing = Computing()
        """Collects whether workers or Spark have looked up and written its rows."""
        self.syncing = Syncing(to.location)
        """Makes its files durable."""
        self.little_arrives = False
        """Whether this checkpoint's input is known to be small, in bytes at its sources."""
        self.few_rows_arrive = False
        """Whether its operator is known to get few rows."""
        self.shares_session = False
        """Whether other operators use the Spark session at the same time, so that its settings must not change."""

    @property
    def is_empty(self) -> bool:
        """True if there are no rows at the base, not even deleted ones."""
        return self.base is None or not self.base.files

    @property
    def rows_in_files(self) -> int:
        """The number of rows in the base's files, or in those that `rewrite` has put in their place. Older versions of
        a key count, too."""
        return sum(file.file.rows for file in self._files)

    @property
    def has_few_keys_per_batch(self) -> bool:
        """Whether a batch probably has many rows for each key, because the base has few, so that Spark should
        pre-aggregate them. False if Spark does not fail on overflow, as workers do."""
        if not sums_that_do_not_fit_fail(self.spark):
            return False
        return 0 < sum(file.file.rows for file in self.base_files) <= MAX_ROWS_OF_SMALL_STATE

    # -- read ----------------------------------------------------------------------------------------

    @property
    def versions(self) -> DataFrame | None:
        """Every row in every file, older versions of a key included. None: there are no files."""
        if self.base is None or not self.base.files:
            return None
        files = self._unexpired_files or self.base.files[:1]  # at least one, so that there is a frame with its columns
        return self._read([file.file for file in files], self.base.columns)

    @property
    def _unexpired_files(self) -> list[StateFile]:
        """The files, of the base or rewritten, that may have rows that have not expired, or that hide others."""
        assert self.base is not None
        if self._limit is None:
            return self.base.files
        expired_paths = {file.file.path for file in expired(self.base.files, self._limit)}
        return [file for file in self.base.files if file.file.path not in expired_paths]

    def rows(self, where: str | None = None) -> DataFrame | None:
        """Return each key's row, or None if the state has never held any.

        where: a condition on columns that are the same in all versions of a row, so that it can skip files.
        """
        stored = self.versions
        if stored is None:
            return None
        return self._newest(stored if where is None else stored.where(where))

    def lookup(self, keys: DataFrame, on: Sequence[str] = ()) -> DataFrame | None:
        """Return the rows of the keys in `keys`, or None if the state has never held any.

        on: the key columns to compare, by default all.
        """
        stored = self.versions
        if stored is None:
            return None
        self.computing.note_spark()
        from pyspark.sql import functions as F

        # With aliases, because `keys` may have been read from this state.
        aliases = {key: f"_key {number}" for number, key in enumerate(on or self.keys)}
        sought = keys.select(*(F.col(quoted(key)).alias(name) for key, name in aliases.items()))
        is_match = " AND ".join(f"{quoted(key)} <=> {quoted(name)}" for key, name in aliases.items())
        return self._newest(stored.join(sought, F.expr(is_match), "left_semi"))

    def _newest(self, rows: DataFrame) -> DataFrame:
        assert self.base is not None
        return versions.newest(rows, self.keys, self._limit, once=once(self.base.files))

    @property
    def _limit(self) -> int | None:
        """Rows whose time is up to this have expired."""
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
        frame = self._with_state_columns(changes, changes.columns, quoted(DELETED) if deletes else "false")
        schema = self.check_schema(schema_of(frame.schema.fields))
        fixed: dict[str, int | None] = {CHECKPOINT: self.to.checkpoint}
        if not self.row_lifetime:
            fixed[TOUCHED] = self._touched
        files = self._write(frame, schema, "put", fixed)
        return self._add(files, schema, with_deleted=deletes)

    def _with_state_columns(self, rows: DataFrame, names: Sequence[str], deleted: str) -> DataFrame:
        """Put tidegate's columns first, because every file needs their statistics, and Delta only has statistics of a
        table's first columns.

        names: the columns of the rows. deleted: SQL for whether a row's key is deleted.
        """
        values = [name for name in names if name not in self.keys and name not in OWN]
        expressions = {
            GROUP: self._group,
            CHECKPOINT: f"CAST({self.to.checkpoint} AS BIGINT)",
            DELETED: f"CAST({deleted} AS BOOLEAN)",
        }
        if self.expires:
            if self.row_lifetime:
                expiry_time = self.row_lifetime.until
            else:
                expiry_time = "NULL" if self._touched is None else str(self._touched)
            expressions[TOUCHED] = f"CAST({expiry_time} AS BIGINT)"
        bookkeeping = (f"{text} AS {quoted(name)}" for name, text in expressions.items())
        return select_sql(rows, [*bookkeeping, *map(quoted, self.keys), *map(quoted, values)])

    def schema_of_files(self, fields: Sequence[StructField]) -> Json:
        """Return the schema of files with these columns, keys first, and with tidegate's columns before them."""
        from pyspark.sql import types as T

        own_fields = [
            T.StructField(GROUP, T.IntegerType()),
            T.StructField(CHECKPOINT, T.LongType()),
            T.StructField(DELETED, T.BooleanType()),
        ]
        if self.expires:
            own_fields.append(T.StructField(TOUCHED, T.LongType()))
        return schema_of([*own_fields, *fields])

    def _empty_frame(self, schema: Json, hidden: Sequence[str] = OWN) -> DataFrame:
        """Return a frame without rows, with the columns of files of this schema, except the hidden ones."""
        from pyspark.sql.types import StructType

        fields = []
        for field in versions.spark_schema(schema)["fields"]:
            if field["name"] not in hidden:
                fields.append(field)
        return no_rows(self.spark, StructType.fromJson({"type": "struct", "fields": fields}))

    @property
    def _group(self) -> str:
        """SQL for a row's key group."""
        return key_group(self.grouped_by or self.keys, self.groups)

    @property
    def _touched(self) -> int | None:
        """The time that rows written now carry for their expiry."""
        return self.ttl.touched if self.ttl else None

    @property
    def row_lifetime(self) -> RowTtl | None:
        """Its lifetime of rows, if each row has a separate time."""
        return self.ttl if isinstance(self.ttl, RowTtl) else None

    @property
    def expires(self) -> bool:
        """True if rows have a time by which they expire. The column is never dropped, even if rows no longer expire."""
        if self.ttl is not None:
            return True
        return self._columns is not None and any(field["name"] == TOUCHED for field in self._columns["fields"])

    def _add(self, files: list[StateFile], schema: Json, *, with_deleted: bool) -> DataFrame:
        """Make files part of the state, and return their rows. with_deleted: keep the columns that say what a row
        means, such as `_deleted`."""
        self._added += files
        self._columns = schema
        hidden = [TOUCHED] if with_deleted else OWN
        if not files:
            return self._empty_frame(schema, hidden)
        return self._read([file.file for file in files], schema).drop(*hidden)

    def check_schema(self, schema: Json, identified_by: Sequence[str] = ()) -> Json:
        """Return the schema of rows to write. Raise Invalid if the state cannot continue with it.

        identified_by: the columns from which the id of a row is computed, if the state has all of them.
        """
        problems = schema_problems(schema, ())
        if self.base is not None and self.base.keys != self.keys:
            problems.append(f"its keys are {', '.join(self.keys)}; the state has {', '.join(self.base.keys)}")
        elif self._columns is not None:
            problems += refusals(self._columns, schema, self.keys, can_compute_ids=bool(identified_by))
        if problems:
            raise Invalid(
                "\n    ".join([f"the state of {self.name} cannot continue with other columns:", *problems]),
                expected="the same keys; values may be added, removed, or become wider",
                help="give the changed operator a new uid, so that it starts afresh, or change it back; " + RECOMPUTE,
                reason="STATE_CHANGED",
            )
        if self._columns is not None and needs_rewrite(self._columns, schema):
            has_other_ids = bool(identified_by) and changes_row_ids(self._columns, schema)
            self._rewrite(schema, partial(_with_ids, columns=identified_by) if has_other_ids else None)
        return schema

    def regroup(self, keys: Sequence[str]) -> None:
        """Let these keys decide the key group of a row. If others did before, all of the state is rewritten once."""
        if self.grouped_by == list(keys) or (self.grouped_by or self.keys) == list(keys):
            return
        self.grouped_by = list(keys)
        if self.base is not None:
            self._rewrite(self.base.columns)

    def rewrite(self, change: Callable[[DataFrame], DataFrame] | None = None) -> None:
        """Rewrite all of the state without expired rows, before anything else is written.

        change: returns the rows to write, from all rows.
        """
        if self.base is not None:
            self._rewrite(self.base.columns, change)

    def _rewrite(self, schema: Json, change: Callable[[DataFrame], DataFrame] | None = None) -> None:
        """Rewrite all of the state, in this schema and with the present key groups."""
        stored = self.versions
        if self.base is None or stored is None:
            return
        rows = versions.rewritten(stored, self.keys, self._limit, schema, self._group)
        if change is not None:
            rows = change(rows)
        files = self._write(rows, schema, "rewritten")
        self.base = msgspec.structs.replace(self.base, columns=schema, files=files, grouped_by=self.grouped_by)
        self._files, self._columns = list(files), schema

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Return the columns, of these, that stored rows do not have yet."""
        if self.base is None:
            return []
        stored = {field["name"] for field in self.base.columns["fields"]}
        return [name for name in names if name not in stored]

    def fill(self, schema: Json, texts: Mapping[str, str]) -> None:
        """Rewrite all of the state, in this schema, with new columns that SQL computes from the others."""
        from pyspark.sql import functions as F

        columns = {name: F.expr(text) for name, text in texts.items()}
        self._rewrite(schema, lambda rows: rows.withColumns(columns))

    # -- files ---------------------------------------------------------------------------------------

    def new_folder(self, name: str) -> str:
        """Return a new folder of the attempt."""
        seams.fault("S4.state.before")
        self._writes += 1
        return f"{self.to.folder}/{name}-{self._writes}"

    def _write(
        self, frame: DataFrame, schema: Json, name: str, fixed: Mapping[str, int | None] = _NONE
    ) -> list[StateFile]:
        """Write rows as new files, split by key group and sorted.

        fixed: columns with the same value in all rows. Workers add them, because with a literal that changes, Spark
        would compile its code again in each checkpoint.
        """
        folder, location = self.new_folder(name), self.to.location
        by_workers = workers.usable(self.spark, location) and workers.writes(schema)
        with self.split_key_groups(frame.drop(*fixed) if by_workers else frame) as (rows, _):
            ordered = rows.sortWithinPartitions(*map(quoted, self.keys))
            if by_workers:
                layout = workers.layout_of(schema, self.keys, location)
                written: Written = workers.write_runs(ordered, layout, location.full(folder), fixed)
            else:
                written = write_files(ordered, schema, location, folder, ())
            return self._stage_files(folder, schema, written)

    def due_batches(self) -> list[Compaction]:
        """Return the due compactions that workers can do, as each has to hold the rows of its key groups in memory."""
        count = min(self._partitions, MIN_WRITTEN_PARTITIONS)  # the number of workers that few rows are split among
        bounds = [-(-self.groups * split // count) for split in range(count + 1)]
        ranges = list(itertools.pairwise(bounds))
        rows_per_worker, chosen = [0.0] * count, []
        for batch in self._batches():
            with_batch = []
            for rows, (low, high) in zip(rows_per_worker, ranges, strict=True):
                with_batch.append(rows + batch.rows_within(low, high))
            if max(with_batch) <= workers.MERGED_ROWS:
                rows_per_worker = with_batch
                chosen.append(batch)
        return chosen

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
            expiry_time=self.row_lifetime or self._touched,
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
        compacted: Mapping[int, Mapping[str, WrittenFile]],
        batches: Sequence[Compaction],
    ) -> None:
        """Make workers' files part of the state: those with changed rows, and those that replace each batch of
        files."""
        written = dict(added)
        for batch_files in compacted.values():
            written |= batch_files
        files = self._stage_files(folder, schema, written)
        for number, batch_files in compacted.items():
            self._replace(batches[number].files, [file for file in files if file.name in batch_files])
        for file in files:
            if file.name in added:
                self._added.append(file)
        self._columns = schema

    def read_worker_files(self, folder: str, written: Mapping[str, WrittenFile], schema: Json) -> DataFrame | None:
        """Return rows that workers have written next to the state, or None. The files are removed with the attempt."""
        self._output_folders.append(folder)
        location = self.to.location
        verify_written_files(location, folder, written)
        if not written:
            return None
        paths = [f"{folder}/{name}" for name in sorted(written)]
        row_count = sum(file.rows for file in written.values())
        return mark_stored(self._load(paths, schema), StoredRows(location, paths, row_count))

    def cached(self, frame: DataFrame) -> DataFrame:
        """Compute the frame once, and keep it until the attempt ends."""
        stored = materialize(frame)
        self._cached.append(stored)
        return stored

    @cached_property
    def _partitions(self) -> int:
        return min(self.groups, max(1, int(str(self.spark.conf.get("spark.sql.shuffle.partitions")))))

    @contextlib.contextmanager
    def split_key_groups(self, frame: DataFrame) -> Iterator[tuple[DataFrame, int]]:
        """Split rows by ranges of key groups into partitions, fewer of them for few rows. Yield them and their
        number."""
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
        """Return the files in the folder. They are durable once the state is finished."""
        staged = sync_and_list(self.to.location, folder, schema, sync=self.syncing, written=written)
        files = [state_file(file) for file in staged]
        for file in staged:
            self._staged.add(file.path)
        seams.fault("S4.state.after")
        return files

    # -- the record ----------------------------------------------------------------------------------

    def finish(self) -> StateTable | None:
        """Return the state as of this checkpoint, for the ack, or None if it has never held any rows."""
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
        live = {file.file.path for file in (*self._files, *self._added)}
        if replaced := sorted(self._staged - live):  # this attempt has written them, and then replaced them
            self.to.location.remove_files(replaced)
        for folder in self._output_folders:
            self.to.location.remove_folder(folder)
        for frame in self._cached:
            release(frame)

    @property
    def changed(self) -> bool:
        """True if this checkpoint has added, merged or dropped anything."""
        return bool(self._added) or self._files != self.base_files

    def _batches(self) -> list[Compaction]:
        """Drop files whose rows have all expired. Return the compactions of this checkpoint that are not done yet.

        They are chosen once, so that those which workers have done do not make room for more.
        """
        self.drop_expired()
        if self._chosen is None:
            base_files = self.base.files if self.base is not None else []
            base_paths = {file.file.path for file in base_files}
            files = [file for file in self._files if file.file.path in base_paths]
            self._chosen = to_merge(files, self._partitions) if files else []
        present = {file.file.path for file in self._files}
        return [batch for batch in self._chosen if present.issuperset(file.file.path for file in batch.files)]

    def drop_expired(self) -> None:
        """Drop files whose rows have all expired."""
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
    """The state of one interval. It starts empty, and no later checkpoint reads it, so changes are not written."""

    is_kept = False

    def write_changes(self, changes: DataFrame, *, deletes: bool = False) -> DataFrame:
        if not is_known_empty(changes):
            self.computing.note_spark()
        values = [name for name in changes.columns if name not in self.keys and name not in OWN]
        return changes.select(*map(quoted, [*self.keys, *values, *([DELETED] if deletes else [])]))

    def finish(self) -> StateTable | None:
        return None


def collated_names(fields: Sequence[StructField]) -> list[str]:
    """Return the columns with a collation."""
    from pyspark.sql.types import StructType

    return list(collations(msgspec.json.decode(StructType(list(fields)).json())))


def schema_of(fields: Sequence[StructField]) -> Json:
    """Return these columns as the schema of a table. Raise Invalid if one has a collation: Spark would apply it within
    a checkpoint, but it would have no effect across checkpoints."""
    from pyspark.sql.types import StructType

    schema = msgspec.json.decode(StructType(list(fields)).json())
    for name, collation in collations(schema).items():
        raise Invalid(
            f"the state would have a column {name!r} with the collation {collation}",
            expected="texts that are only equal if they are identical: plain strings, with the collation UTF8_BINARY",
            help=f"make equal texts identical in an upstream stage, as lower({quoted(name)}) COLLATE UTF8_BINARY does "
            "for UTF8_LCASE; or only write COLLATE UTF8_BINARY to keep them distinct",
            reason="COLLATION",
        )
    return from_spark(schema)


def sums_that_do_not_fit_fail(spark: SparkSession) -> bool:
    """Return whether Spark fails on a sum that overflows, as workers do, instead of returning a wrong one."""
    return constant_setting(spark, "spark.sql.ansi.enabled") != "false"


def _with_ids(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return rows with the ids that follow from these columns as they are now."""
    return rows.withColumn("_row", row_id(rows.select(*map(quoted, columns))))


def key_group(keys: Sequence[str], groups: int) -> str:
    """Return SQL for the key group of each key. It does not depend on the parallelism."""
    if not keys:
        return "0"
    return f"CAST(pmod(xxhash64({', '.join(map(quoted, keys))}), {groups}) AS INT)"
