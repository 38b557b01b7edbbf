"""Append rows to a Delta table, visible exactly once.

Spark writes Parquet files into a folder inside the table. They are invisible because the log does not name them. After
the decision, one metadata commit adds them all, together with the checkpoint's id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate import seams
from tidegate.connectors.delta.sink.disowned import disown
from tidegate.connectors.delta.sink.interval import (
    column_problems,
    not_rewritten_error,
    refuse_outside,
    replace_rows_of_interval,
    replaced_files,
)
from tidegate.connectors.delta.sink.not_null import checked_not_null
from tidegate.connectors.delta.sink.table import (
    MERGED,
    DeltaSink,
    Evolution,
    StagedBatch,
    files_to_add,
    staged_result,
)
from tidegate.connectors.delta.sink.through_spark import append_through_spark
from tidegate.connectors.prestaged import PrestagedRows, can_prestage
from tidegate.connectors.prestaged_on_object_store import prestage
from tidegate.connectors.sink import Disowned, Head, Prepared, Publication, SinkContext, Staging, entry_folder
from tidegate.delta import (
    CommitStamp,
    Committed,
    Location,
    Snapshot,
    StagedFile,
    append,
    locate,
    replace,
    spark_reasons,
    sync_and_list,
)
from tidegate.delta.arrow_types import arrow_schema
from tidegate.delta.files.partitions import refuse_unreadable
from tidegate.delta.rewrite import Table, write_parquet
from tidegate.records.interval import Interval
from tidegate.records.records import Json
from tidegate.spark.storage.writing import write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["DeltaAppend"]


class DeltaAppend(DeltaSink):
    """Add the rows of each checkpoint to a Delta table, which the first checkpoint creates.

    path: the table's folder, relative to the pipeline's base, or a URL.
    partition_by: columns whose values become folders. As in all Delta tables, empty text becomes null there. Refused
        are text that is not valid UTF-8, the text __HIVE_DEFAULT_PARTITION__, times outside of the years 1 to 9999,
        and negative decimals that are not whole numbers.
    schema_evolution: "refuse" any difference from the table, or "add" new columns to it; columns of the table that
        the output lacks are then null. "widen" does so as well, and gives a column of the table a wider type if the
        output has one, such as bigint for int, with Delta's table feature type widening; where the table has the wider
        type, the rows are cast. Other types, and those of partition columns, never change.
    properties: table properties to set when this sink creates the table.
    take_over: publish to a table that another pipeline of this name has published to.
    interval_column: in an interval pipeline, a date or timestamp column that determines the interval of a row. An
        interval then replaces all rows of its time, even those of other writers, and other writers
        may compact the table. Without it, an interval replaces only the files that it has written.
    changelog: for a stream with retractions, such as an aggregate: add each new row, and keep the earlier ones.
    """

    kind: ClassVar[str] = "delta-append"
    rewrites: ClassVar[bool] = False
    wants_retractions = False
    counts_input_rows: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        schema_evolution: Evolution = "refuse",
        properties: Mapping[str, str] | None = None,
        take_over: bool = False,
        interval_column: str | None = None,
        changelog: bool = False,
    ) -> None:
        super().__init__(
            path,
            partition_by=partition_by,
            schema_evolution=schema_evolution,
            properties=properties,
            take_over=take_over,
        )
        self.interval_column = interval_column
        self.changelog = changelog

    def describe(self) -> Json:
        description = super().describe() | {"interval_column": self.interval_column}
        return description | {"changelog": True} if self.changelog else description

    def update_problems(self, stream: str) -> list[str]:
        return [] if self.changelog else super().update_problems(stream)

    def interval_problems(self) -> list[str]:
        if self.properties.get("delta.appendOnly") == "true":
            return ["table property delta.appendOnly: an interval that runs again replaces its rows"]
        return []

    def output_problems(self, schema: Json) -> list[str]:
        return column_problems(schema, self.interval_column) if self.interval_column is not None else []

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        location, snapshot = locate(context.place, self.path), self.open(context)
        schema = self.output_schema(frame, context, snapshot)
        frame = self.in_staged_types(frame, schema)
        seams.fault("S4.stage.before")
        folder = staging.data_folder(context)
        written = write_files(self.refusing_rows(frame, snapshot), schema, location, folder, self.partition_by)
        files = sync_and_list(location, folder, schema, self.partition_by, written=written)
        refuse_unreadable((file.partition for file in files), schema)
        return self._prepared(frame, schema, snapshot, files, context, staging)

    def prestage(
        self,
        frame: DataFrame,
        mark_columns: Mapping[str, Column],
        context: SinkContext,
        staging: Staging,
        *,
        draft: Collection[str] | None = None,
    ) -> PrestagedRows | None:
        location = locate(context.place, self.path)
        if self.partition_by or staging.interval is not None or not can_prestage(frame, location):
            return None
        snapshot = self.open(context)
        schema = self.output_schema(frame, context, snapshot)
        if self.rules_to_enforce(frame, snapshot):
            return None  # only rows that the gate lets pass may be refused
        frame = self.in_staged_types(frame, schema)
        seams.fault("S4.stage.before")
        return prestage(frame, mark_columns, location, staging.data_folder(context), schema, draft)

    def prepare_prestaged(self, prestaged: PrestagedRows, context: SinkContext, staging: Staging) -> Prepared:
        snapshot = self.open(context)
        schema = self.output_schema(prestaged.frame, context, snapshot)
        return self._prepared(prestaged.frame, schema, snapshot, prestaged.staged(), context, staging)

    def prepare_rows(self, rows: Iterable[pa.Table], schema: Json, context: SinkContext, staging: Staging) -> Prepared:
        """Like `prepare`, for rows in this process. schema: the rows' schema in Spark's JSON form."""
        location, snapshot = locate(context.place, self.path), self.open(context)
        columns = self.fitting(schema, context, snapshot)
        seams.fault("S4.stage.before")
        folder = staging.data_folder(context)
        names = [field["name"] for field in columns["fields"]]
        written = write_parquet(location, f"{folder}/part-00000.parquet", arrow_schema(columns, names), rows).rows
        files = sync_and_list(location, folder, columns, written=written)
        return self._prepared(None, columns, snapshot, files, context, staging)

    def _prepared(
        self,
        frame: DataFrame | None,
        schema: Json,
        snapshot: Snapshot | None,
        files: list[StagedFile],
        context: SinkContext,
        staging: Staging,
    ) -> Prepared:
        """Return the result of `prepare`. Raise Invalid if the staged rows must not go into the table."""
        location = locate(context.place, self.path)
        not_null = checked_not_null(frame, snapshot, files, context)
        seams.fault("S4.stage.after")
        if staging.interval is not None and self.interval_column is not None:
            table = Table(location, schema, self.partition_by)
            refuse_outside(files, table, self.interval_column, staging.interval, context)
        if not files and snapshot is not None and staging.interval is None:
            return Prepared(None, 0)
        since = None
        if snapshot is not None and staging.interval is not None:
            since = snapshot.version
        batch = StagedBatch(columns=schema, files=files, not_null=not_null, since=since)
        return staged_result(batch, sum(file.rows for file in files))

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        return self.prepare(frame, context, staging)

    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Do nothing: the table uses all staged files."""

    def spark_reasons(self, snapshot: Snapshot) -> list[str]:
        return spark_reasons(snapshot)

    def first_files(self, batches: Sequence[StagedBatch], location: Location, folder: str) -> list[StagedFile]:
        return files_to_add(batches)

    def publish_next(
        self, snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, folder: str
    ) -> Committed | None:
        return append(snapshot, self.first_files(batches, snapshot.location, folder), stamp)

    def publish_through_spark(
        self, snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, context: SinkContext
    ) -> Committed | None:
        return append_through_spark(snapshot, batches, stamp, context, evolve=self.schema_evolution != "refuse")

    def check_interval(self, interval: Interval, replaces: tuple[int, Json] | None, context: SinkContext) -> None:
        snapshot = self.open(context)
        if snapshot is not None and self.interval_column is None:
            replaced_files(snapshot, interval, replaces, context)

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
        if self.interval_column is not None:
            raise not_rewritten_error(self.interval_column, context)
        snapshot, attempt = self.open(context), seams.new_id()
        if snapshot is None or snapshot.version != head.version:
            return None
        id = replaces[0] if replaces is not None else 0
        return disown(
            snapshot,
            interval,
            replaces,
            context,
            take_out=take_out,
            dry_run=dry_run,
            folder=f"{entry_folder(context, id)}/{MERGED}{attempt}",
            attempt=attempt,
        )

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
        files = self.first_files(batches, snapshot.location, folder)
        if self.interval_column is None:
            replaced = replaced_files(snapshot, publication.interval, publication.replaces, context)
            return replace(snapshot, files, replaced, stamp)
        column, interval = self.interval_column, publication.interval
        return replace_rows_of_interval(snapshot, files, self.partition_by, column, interval, stamp, folder)
