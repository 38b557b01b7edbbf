"""Replace, add and remove rows of a Delta table by key, visible exactly once.

prepare   Spark writes the changed rows into a folder inside the table, and rows to be removed into separate files. If
          two rows have the same key, order_by decides which one counts, or both are refused. In an object store,
          workers also rewrite the table's files that hold a changed key in advance (prerewritten.py).
publish   Files that hold a changed key are rewritten without it (delta/rewrite.py), unless that was done in advance and
          still fits. One commit then removes the old files, and adds the rewritten files and the staged rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tidegate import seams
from tidegate.connectors.declaring import describe_keyed_sink, key_and_order_problems, keyed_problems, refuse_order
from tidegate.connectors.delta.sink.interval import (
    column_problems,
    not_rewritten_error,
    refuse_outside,
    replace_rows_of_interval,
)
from tidegate.connectors.delta.sink.not_null import checked_not_null
from tidegate.connectors.delta.sink.prerewritten import (
    PrerewrittenFiles,
    Workers,
    prerewrite_files,
    still_valid,
    without_failing,
)
from tidegate.connectors.delta.sink.table import (
    MERGED,
    DeltaSink,
    Evolution,
    StagedBatch,
    all_files,
    files_to_add,
    staged_result,
    united,
)
from tidegate.connectors.delta.sink.through_spark import OWN_COLUMNS, merge_through_spark
from tidegate.connectors.sink import Disowned, Head, Prepared, Publication, SinkContext, Staging
from tidegate.delta import (
    CommitStamp,
    Committed,
    LiveFile,
    Location,
    Snapshot,
    StagedFile,
    live_files,
    locate,
    open_table,
    read_commit,
    refuse_difference,
    replace,
    spark_reasons_to_rewrite,
    sync_and_list,
)
from tidegate.delta.arrow_types import arrow_schema
from tidegate.delta.duplicates import outdated_rows
from tidegate.delta.files.partitions import refuse_rows, refuse_unreadable
from tidegate.delta.keys import Keys
from tidegate.delta.log.commits import find_commit
from tidegate.delta.log.schema import columns, differences
from tidegate.delta.order_by import Newest, newest, rows_with_keys
from tidegate.delta.rewrite import InputFile, Table, key_rows, rewrite
from tidegate.records.interval import Interval
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_if
from tidegate.spark.storage.worker_writes import on_workers, work_on_store
from tidegate.spark.storage.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeltaUpsert"]

_PREREWRITTEN_FOLDER = "ahead"
"""The folder of files rewritten in advance, inside the folder of the attempt."""
_DELETED = "tidegate_deleted"
"""A partition column of the staged files, which separates rows to be removed from rows to be added."""


class DeltaUpsert(DeltaSink):
    """Keep one row per key in a Delta table.

    keys: the columns that identify a row. Null equals null.
    order_by: columns that decide which row of a key counts: the one with the greatest values (null is smallest, NaN
        greatest). The row in the table is compared, too, so a late row never replaces a newer one. Among equals, the
        row of the later checkpoint counts. With delete_when, an operator upstream of the sink remembers at which
        order a key was removed, so that a late row never restores it.
        Without order_by, the later checkpoint counts. Rows of one checkpoint with the same key (and equal order_by)
        must be identical, or they are refused.
    delete_when: a SQL condition on a row. If it is true, the key's row is removed.
    omit: columns that delete_when needs and the table should not have.
    path, partition_by, schema_evolution, properties, take_over: as for DeltaAppend.
    interval_column: in an interval pipeline, the date or timestamp column among `keys` that determines the interval of
        a row. An interval's output then replaces all rows of its time, even those of other writers, so order_by and
        delete_when choose only among the interval's new rows.

    After a stream with retractions, such as an aggregate, a key is removed when the stream no longer has a row of it.
    If `keys` do not distinguish all of its rows, a materializer upstream of the sink counts them, and emits one row per
    key.

    While publishing, the keys of the changed rows are in memory; the table is streamed. In an object store, Spark's
    workers do most of this work in advance if they have access to it.
    """

    kind: ClassVar[str] = "delta-upsert"
    rewrites: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        *,
        keys: Sequence[str],
        order_by: Sequence[str] = (),
        delete_when: str | None = None,
        omit: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        schema_evolution: Evolution = "refuse",
        properties: Mapping[str, str] | None = None,
        take_over: bool = False,
        interval_column: str | None = None,
    ) -> None:
        super().__init__(
            path,
            partition_by=partition_by,
            schema_evolution=schema_evolution,
            properties=properties,
            take_over=take_over,
        )
        self.keys = tuple(listed(keys))
        self.order_by = tuple(listed(order_by))
        self.upserts = self.keys
        self.delete_when = delete_when
        self.omit = tuple(listed(omit))
        self.interval_column = interval_column

    @property
    def deletes_in_order(self) -> tuple[Sequence[str], str] | None:
        if not self.order_by or self.delete_when is None or self.interval_column is not None:
            return None
        return self.order_by, self.delete_when

    def describe(self) -> Json:
        description = super().describe() | describe_keyed_sink(self)
        if self.interval_column is not None:
            description["interval_column"] = self.interval_column
        return description

    def problems(self) -> list[str]:
        problems = super().problems() + keyed_problems(self, "DeltaAppend", self.partition_by)
        if self.properties.get("delta.appendOnly") == "true":
            problems.append("table property delta.appendOnly: an upsert replaces rows")
        if self.interval_column is not None and self.interval_column not in self.keys:
            problems.append(
                f"interval_column {self.interval_column!r} is not one of keys ({', '.join(map(str, self.keys))}): add "
                "it. Otherwise a key could have rows of several intervals, and the order in which the intervals run "
                "would decide which one remains"
            )
        return problems

    def interval_problems(self) -> list[str]:
        if self.interval_column is not None:
            return []
        return [
            "a key could have rows of several intervals, and the order in which the intervals run would decide which "
            "one remains: add the interval's day or hour to keys and set interval_column=…; or use DeltaAppend, or "
            "sources that read all new rows"
        ]

    def update_problems(self, stream: str) -> list[str]:
        return refuse_order(self, stream)

    def output_problems(self, schema: Json) -> list[str]:
        problems = key_and_order_problems(self, {name: field["type"] for name, field in columns(schema).items()})
        clashing = [name for name in columns(schema) if name.casefold() in OWN_COLUMNS]
        problems += [f"{name!r} is a name that the sink itself uses" for name in clashing]
        if self.interval_column is not None:
            problems += column_problems(schema, self.interval_column)
        return problems

    def check_output(self, frame: DataFrame, context: SinkContext) -> None:
        super().check_output(self._without_omitted(frame), context)
        if self.delete_when is not None:
            frame.selectExpr(self.delete_when).schema  # noqa: B018 - Spark plans it

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        return self._prepare(frame, None, context, staging)

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        return self._prepare(frame, retractions, context, staging)

    def _prepare(
        self, frame: DataFrame, retractions: DataFrame | None, context: SinkContext, staging: Staging
    ) -> Prepared:
        location, snapshot = locate(context.place, self.path), self.open(context)
        output = self._without_omitted(frame)
        schema = self.output_schema(output, context, snapshot)
        frame = self.in_staged_types(frame, schema)
        if retractions is not None:
            retractions = self.in_staged_types(retractions, schema)
        seams.fault("S4.stage.before")
        folder = staging.data_folder(context)
        batch = self._write_rows(self.refusing_rows(frame, snapshot), retractions, schema, location, folder)
        table = Table(location, schema, self.partition_by)
        written, batch = batch, self._settle_keys(batch, table, f"{folder}/settled")
        if staging.interval is not None:
            refuse_outside([*batch.files, *batch.deletes], table, str(self.interval_column), staging.interval, context)
            batch = _only_added(batch, written, location)
        not_null = checked_not_null(output, snapshot, batch.files, context)
        rows = sum(file.rows for file in (*batch.files, *batch.deletes))
        since = None
        if snapshot is not None and staging.interval is not None:
            since = snapshot.version
        batch = msgspec.structs.replace(batch, not_null=not_null, since=since)
        if rows and snapshot is not None and work_on_store(frame.sparkSession, location):
            workers = partial(on_workers, frame.sparkSession)
            prerewritten = self._prerewrite(snapshot, batch, staging, f"{folder}/{_PREREWRITTEN_FOLDER}", workers)
            if prerewritten is not None:
                batch = msgspec.structs.replace(batch, ahead=prerewritten)
        seams.fault("S4.stage.after")
        if not rows and snapshot is not None and staging.interval is None:
            return Prepared(None, 0)
        return staged_result(batch, rows)

    def _prerewrite(
        self, snapshot: Snapshot, batch: StagedBatch, staging: Staging, folder: str, workers: Workers
    ) -> PrerewrittenFiles | None:
        """Let workers rewrite the table's files that hold a key of the batch. None: left to the publisher."""
        if staging.interval is not None or staging.on_open_base:
            return None  # an interval's rows are found by column; rows of an open base checkpoint are in no table yet
        changes = differences(batch.columns, snapshot.schema)
        if any(change.kind in ("new", "type") for change in changes) or self.spark_reasons(snapshot):
            return None  # the table's schema will change, or delta-spark rewrites its files
        rewrite_all = partial(
            prerewrite_files, snapshot, batch.files, batch.deletes, self.keys, self.order_by, folder, workers
        )
        return without_failing(rewrite_all, snapshot.location, folder)

    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Remove staged deletes, and files of publishers that crashed or lost a race.

        Files that the publishing commit added are never removed: the table uses them, if only in older versions. In an
        interval pipeline, the attempt has already removed what it does not need.
        """
        if context.by_interval:
            return
        location = locate(context.place, self.path)
        snapshot = open_table(location)
        committed = find_commit(snapshot, context.app_id, staging.checkpoint) if snapshot else None
        if committed is None:
            return  # Its commit file has been deleted, so it is unknown which files the table needs.
        commit = read_commit(location, committed.version)
        if commit is None or commit.sha != committed.log_hash:
            return  # Another writer is cleaning up the log, or has created the table again.
        in_table = commit.added_paths()
        entry = staging.folder(context).rsplit("/", 1)[0]
        unneeded = []
        for path, _ in location.walk(entry):
            if path not in in_table and path[len(entry) + 1 :].startswith((MERGED, f"{staging.attempt}/")):
                unneeded.append(path)
        location.remove_files(unneeded)

    def spark_reasons(self, snapshot: Snapshot) -> list[str]:
        return spark_reasons_to_rewrite(snapshot)

    def first_files(self, batches: Sequence[StagedBatch], location: Location, folder: str) -> list[StagedFile]:
        table = Table(location, united(batches), self.partition_by)
        if self.order_by:
            return self._counting_rows(table, batches, self._newest(table, [], batches), folder)
        return self._new_rows(table, batches, folder)

    def publish_next(
        self, snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, folder: str
    ) -> Committed | None:
        table = Table(snapshot.location, snapshot.schema, self.partition_by)
        live = {file.path: file for file in live_files(snapshot)}
        changes = self._prerewritten_changes(snapshot, table, live, batches, folder)
        if changes is None:
            changes = self._changes(table, live, batches, folder)
        removed, added = changes
        committed = replace(snapshot, added, removed, stamp)
        if committed is None or not _commit_names(snapshot.location, committed, added):
            snapshot.location.remove_folder(folder)  # Another publisher's commit counts, so these files are useless.
        return committed

    def _changes(
        self, table: Table, live: Mapping[str, LiveFile], batches: Sequence[StagedBatch], folder: str
    ) -> tuple[list[LiveFile], list[StagedFile]]:
        """Return the files to remove from the table, and the files to add."""
        keys = self._keys(table, batches)
        sources = [InputFile.from_file(file) for file in live.values() if keys.may_touch(file)]
        if self.order_by:
            newest_rows = self._newest(table, sources, batches)
            keys, new = newest_rows.won, self._counting_rows(table, batches, newest_rows, folder)
        else:
            new = self._new_rows(table, batches, folder)
        changed, rewritten = rewrite(table, sources, self.keys, _has_key(keys), f"{folder}/kept")
        return [live[source.path] for source in changed], [*rewritten, *new]

    def _prerewritten_changes(
        self,
        snapshot: Snapshot,
        table: Table,
        live: Mapping[str, LiveFile],
        batches: Sequence[StagedBatch],
        folder: str,
    ) -> tuple[list[LiveFile], list[StagedFile]] | None:
        """Like `_changes`, using the files that the job rewrote in advance. None: it did not, or they no longer fit.

        With several batches they never fit: each batch was rewritten as if it were the only one.
        """
        if len(batches) != 1:
            return None
        prerewritten, new = batches[0].ahead, batches[0].files
        if prerewritten is msgspec.UNSET:
            return None
        valid = still_valid(snapshot, prerewritten, live, self.keys, self.order_by)
        if valid is None or (self.order_by and not valid.is_complete):
            return None
        keys = self._keys(table, batches if valid.unprocessed else ())  # reads files: only if needed
        sources = [InputFile.from_file(file) for file in valid.unprocessed if keys.may_touch(file)]
        if self.order_by:
            if any(len(rows_with_keys(table, source, self.keys, self.keys, keys)) for source in sources):
                return None
            return valid.replaced, [*valid.written, *valid.without_outdated_rows(new)]
        if not sources:
            return valid.replaced, [*valid.written, *new]
        changed, rewritten = rewrite(table, sources, self.keys, _has_key(keys), f"{folder}/kept")
        return [*valid.replaced, *(live[source.path] for source in changed)], [*valid.written, *rewritten, *new]

    def disown(
        self,
        interval: Interval,
        replaces: tuple[int, Json] | None,
        head: Head,
        context: SinkContext,
        *,
        take_out: bool,
        dry_run: bool = False,
    ) -> Disowned | None:
        assert self.interval_column is not None
        raise not_rewritten_error(self.interval_column, context)

    def replace_interval(
        self,
        snapshot: Snapshot,
        publication: Publication,
        batches: Sequence[StagedBatch],
        stamp: CommitStamp,
        context: SinkContext,
        folder: str,
    ) -> Committed | None:
        assert publication.interval is not None
        assert self.interval_column is not None
        files = files_to_add(batches)
        column, interval = self.interval_column, publication.interval
        return replace_rows_of_interval(snapshot, files, self.partition_by, column, interval, stamp, folder)

    def publish_through_spark(
        self, snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, context: SinkContext
    ) -> Committed | None:
        return merge_through_spark(snapshot, batches, self.keys, self.order_by, stamp, context)

    def _without_omitted(self, frame: DataFrame) -> DataFrame:
        if not self.omit:
            return frame
        return empty_if(frame, frame.drop(*self.omit))

    def _write_rows(
        self, frame: DataFrame, retractions: DataFrame | None, schema: Json, location: Location, folder: str
    ) -> StagedBatch:
        """Write the changed rows with Spark."""
        frame = self._refusing_empty_keys(frame, schema)
        if self.delete_when is None and retractions is None:
            written = write_files(self._without_omitted(frame), schema, location, folder, self.partition_by)
            files = sync_and_list(location, folder, schema, self.partition_by, written=written)
            refuse_unreadable((file.partition for file in files), schema)
            return StagedBatch(columns=schema, files=files)
        mark = {"name": _DELETED, "type": "boolean", "nullable": True, "metadata": {}}
        marked = {"type": "struct", "fields": [*schema["fields"], mark]}
        names = list(map(quoted, columns(schema)))
        rows = frame.selectExpr(*names, f"coalesce(({self.delete_when or 'false'}), false) AS {_DELETED}")
        if retractions is not None:
            deletes = retractions.selectExpr(*names, f"true AS {_DELETED}").dropDuplicates(list(self.keys))
            rows = rows.unionByName(_without_keys(deletes, frame, self.keys))
        written = write_files(rows, marked, location, folder, (_DELETED, *self.partition_by))
        files = sync_and_list(location, folder, marked, (_DELETED, *self.partition_by), written=written)
        refuse_unreadable((file.partition for file in files), schema)
        files_by_mark: dict[str | None, list[StagedFile]] = {"false": [], "true": []}
        for file in files:
            files_by_mark[file.partition[_DELETED]].append(file.without_partition(_DELETED))
        return StagedBatch(columns=schema, files=files_by_mark["false"], deletes=files_by_mark["true"])

    def _refusing_empty_keys(self, frame: DataFrame, schema: Json) -> DataFrame:
        """Return the rows. A row with empty text in a key column that is a partition column fails the write: the text
        is stored as null there, which would be another key."""
        from pyspark.sql import functions as F

        by_name = columns(schema)
        checked = {}
        for name in self.keys:
            if name in self.partition_by and by_name[name]["type"] == "string":
                column = F.col(quoted(name))
                problem = (
                    f"key column {name!r} is empty text, which is stored as null in a partition column: it would be "
                    "the key of another row"
                )
                checked[name] = refuse_rows(column, column == F.lit(""), problem)
        return empty_if(frame, frame.withColumns(checked)) if checked else frame

    def _settle_keys(self, batch: StagedBatch, table: Table, folder: str) -> StagedBatch:
        """Return the batch with only one row for each key."""
        import pyarrow.compute as pc

        marked = [(file, False) for file in batch.files] + [(file, True) for file in batch.deletes]
        sources = [InputFile.from_file(file) for file, _ in marked]
        outdated = outdated_rows(table, sources, self.keys, self.order_by, [mark for _, mark in marked])
        if not outdated:
            return batch

        def is_outdated(rows: Any, source: InputFile, start: int) -> Any:
            return outdated[source.path].slice(start, rows.num_rows)

        def without_outdated(files: list[StagedFile], name: str) -> list[StagedFile]:
            touched = [InputFile.from_file(file) for file in files if file.path in outdated]
            _, written = rewrite(table, touched, self.keys, is_outdated, f"{folder}/{name}")
            return [*(file for file in files if file.path not in outdated), *written]

        corrected = StagedBatch(
            columns=batch.columns,
            files=without_outdated(batch.files, "changed"),
            deletes=without_outdated(batch.deletes, "deleted"),
        )
        removed = sum(pc.sum(mask).as_py() or 0 for mask in outdated.values())
        expected_rows = sum(file.rows for file, _ in marked) - removed
        corrected_rows = sum(file.rows for file in (*corrected.files, *corrected.deletes))
        refuse_difference(table.location.full(folder), expected_rows, corrected_rows)
        return corrected

    def _newest(self, table: Table, live: Sequence[InputFile], batches: Sequence[StagedBatch]) -> Newest:
        staged = [list(map(InputFile.from_file, (*batch.files, *batch.deletes))) for batch in batches]
        return newest(table, live, staged, self.keys, self.order_by)

    def _counting_rows(
        self, table: Table, batches: Sequence[StagedBatch], newest_rows: Newest, folder: str
    ) -> list[StagedFile]:
        """Return the batches' files to add, without rows that a newer row of their key overrides."""
        files = files_to_add(batches)
        touched = [InputFile.from_file(file) for file in files if file.path in newest_rows.outdated]

        def is_late(rows: Any, source: InputFile, start: int) -> Any:
            return newest_rows.outdated[source.path].slice(start, rows.num_rows)

        _, written = rewrite(table, touched, self.keys, is_late, f"{folder}/counting")
        return [*(file for file in files if file.path not in newest_rows.outdated), *written]

    def _keys(self, table: Table, batches: Sequence[StagedBatch]) -> Keys:
        import pyarrow as pa

        tables = [arrow_schema(table.schema, self.keys).empty_table()]
        tables += [key_rows(table, InputFile.from_file(file), self.keys) for file in all_files(batches)]
        return Keys(pa.concat_tables(tables))

    def _new_rows(self, table: Table, batches: Sequence[StagedBatch], folder: str) -> list[StagedFile]:
        """Return the batches' files to add, without keys that a later batch also has."""
        added = list(batches[-1].files) if batches else []
        for number, earlier in enumerate(batches[:-1]):
            files = earlier.files
            later = batches[number + 1 :]
            if not any(batch.files or batch.deletes for batch in later):
                added += files
                continue
            is_replaced = _has_key(self._keys(table, later))
            sources = list(map(InputFile.from_file, files))
            changed, rewritten = rewrite(table, sources, self.keys, is_replaced, f"{folder}/batch-{number}")
            replaced = {source.path for source in changed}
            added += [*(file for file in files if file.path not in replaced), *rewritten]
        return added


def _only_added(batch: StagedBatch, written: StagedBatch, location: Location) -> StagedBatch:
    """Return an interval's batch without rows to be removed, and remove the staged files that are no longer needed.

    Publishing an interval replaces all of its earlier rows anyway.
    """
    files = [*written.files, *written.deletes, *batch.files, *batch.deletes]
    location.remove_files({file.path for file in files} - {file.path for file in batch.files})
    return StagedBatch(columns=batch.columns, files=batch.files)


def _without_keys(deletes: DataFrame, frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows of `deletes` whose keys are not in `frame`. Null equals null."""
    from pyspark.sql import functions as F

    frame_keys, conditions = [], []
    for number, key in enumerate(keys):
        alias = f"tidegate_{number}"
        frame_keys.append(F.col(quoted(key)).alias(alias))
        conditions.append(F.col(quoted(key)).eqNullSafe(F.col(alias)))
    same_key = reduce(lambda first, second: first & second, conditions)
    return deletes.join(frame.select(*frame_keys), same_key, "left_anti")


def _has_key(keys: Keys) -> Any:
    """Return a function that marks rows with any of the keys."""

    def mark_rows(rows: Any, source: InputFile, start: int) -> Any:
        return keys.contains(rows)

    return mark_rows


def _commit_names(location: Location, committed: Committed, files: Sequence[StagedFile]) -> bool:
    """Return whether the commit adds these files. If not, it is a concurrent publisher's equivalent commit."""
    if not files:
        return True
    commit = read_commit(location, committed.version)
    return commit is not None and {file.path for file in files} <= commit.added_paths()
