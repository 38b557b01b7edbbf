"""Rows appended to a Delta table, visible exactly once.

Spark writes Parquet files into a folder inside the table; nobody sees them, for no log names them. After
the decision one metadata commit through delta-rs names them all, together with the checkpoint's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate import seams
from tidegate.sinks.base import Prepared, SinkContext, Staging
from tidegate.sinks.delta_spark import append_by_spark
from tidegate.sinks.delta_table import Batch, DeltaSink, refuse_nulls, staged_result, write_files
from tidegate.tables import Committed, Location, Snapshot, StagedFile, Stamp, append, locate, spark_reasons, stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeltaAppend"]


class DeltaAppend(DeltaSink):
    """Adds the rows of each checkpoint to a Delta table, which the first one creates.

    path: the table's folder, relative to the pipeline's base, or a URL.
    partition_by: columns whose values become folders. Text that is empty is stored as null there, as Delta does.
    schema_evolution: "refuse" any difference from the table, or "add" new columns to it; then columns of the
        table that the output lacks are null, too. Types never change.
    properties: of the table, when this sink creates it.
    take_over: publish to a table that another pipeline of this name published before.
    """

    kind: ClassVar[str] = "delta-append"
    rewrites: ClassVar[bool] = False

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        location, snapshot = locate(context.place, self.path), self.open(context)
        schema = self.output_schema(frame, context, snapshot)
        seams.fault("S4.stage.before")
        folder = staging.folder(context)
        write_files(frame, schema, location.full(folder), self.partition_by)
        files = stage(location, folder, schema, self.partition_by)
        not_null = refuse_nulls(frame, snapshot, files, context)
        seams.fault("S4.stage.after")
        if not files and snapshot is not None:
            return Prepared(None, 0)
        batch = Batch(columns=schema, files=files, not_null=not_null)
        return staged_result(batch, sum(file.rows for file in files))

    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Nothing: the table names all that was staged."""

    def spark_reasons(self, snapshot: Snapshot) -> list[str]:
        return spark_reasons(snapshot)

    def first_files(self, batches: Sequence[Batch], location: Location, folder: str) -> list[StagedFile]:
        return [file for batch in batches for file in batch.files]

    def publish_next(self, snapshot: Snapshot, batches: Sequence[Batch], stamp: Stamp, folder: str) -> Committed | None:
        return append(snapshot, self.first_files(batches, snapshot.location, folder), stamp)

    def publish_by_spark(
        self, snapshot: Snapshot, batches: Sequence[Batch], stamp: Stamp, context: SinkContext
    ) -> Committed | None:
        return append_by_spark(snapshot, batches, stamp, context, evolve=self.schema_evolution == "add")
