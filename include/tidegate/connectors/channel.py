"""A channel carries rows from one job of a checkpoint to other jobs. They are staged like a sink's rows, never
published.

The ack of the producing job names the channel's files, so every attempt of every consuming job reads the same rows. The
files stay next to the pipeline's ledger until their checkpoint is retired.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import msgspec

from tidegate import seams
from tidegate.connectors.sink import SinkContext, Staging, entry_folder
from tidegate.delta import Location, StagedFile, Syncing, missing_files, sync_and_list
from tidegate.errors import Corrupt
from tidegate.records.names import free_name
from tidegate.records.records import Amount, Json, Struct
from tidegate.spark.frame_facts import no_rows
from tidegate.spark.storage.exact_files import parquet_files
from tidegate.spark.storage.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CHANNEL", "Channel", "Sent", "channel_name"]

CHANNEL = "channel."
"""The prefix of channels' names among those that an attempt stages. Names that users choose contain no dot."""

_ROWS, _REPLACED = "rows", "replaced"
_SIGN, _SURPLUS, _NTH = "tidegate_sign", "tidegate_more", "tidegate_nth"


class ChannelRows(Struct, frozen=True, kw_only=True):
    """Files with rows of one stream."""

    columns: Json
    """The schema in Spark's JSON form."""
    files: list[StagedFile]


class Sent(Struct, frozen=True, kw_only=True):
    """The rows that a job sent through a channel in one checkpoint."""

    rows: ChannelRows
    replaced: ChannelRows | None = None
    """For a stream with retractions: the rows that it takes back."""
    key: list[list[str]] | None = None
    """The key of the stream's changelog, as the path of each column, if the consuming job cannot derive it."""

    @property
    def count(self) -> int:
        """The number of rows, without retractions."""
        return sum(file.rows for file in self.rows.files)

    @property
    def amount(self) -> Amount:
        """The size of all files, including retractions."""
        files = self.files
        return Amount(rows=sum(file.rows for file in files), bytes=sum(file.size for file in files), files=len(files))

    @property
    def files(self) -> list[StagedFile]:
        """All files, including those with retractions."""
        if self.replaced is None:
            return self.rows.files
        return [*self.rows.files, *self.replaced.files]


def channel_name(stream: str) -> str:
    """Return the name under which a stream's channel is staged."""
    return f"{CHANNEL}{stream}"


class Channel:
    """Sends and reads the rows of one stream between jobs."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def location(self, context: SinkContext) -> Location:
        """Return the folder of its files, next to the pipeline's ledger."""
        return Location(f"{context.home}/channels/{self.stream}", context.place.options)

    def send(
        self, frame: DataFrame, replaced: DataFrame | None, context: SinkContext, staging: Staging, syncing: Syncing
    ) -> Sent:
        """Write the rows for the consuming jobs. They are durable once `syncing` is finished."""
        seams.fault("S4.stage.before")
        rows = self._write(frame, _ROWS, context, staging, syncing)
        replaced_rows = None
        if replaced is not None:
            replaced_rows = self._write(replaced, _REPLACED, context, staging, syncing)
        seams.fault("S4.stage.after")
        return Sent(rows=rows, replaced=replaced_rows)

    def _write(
        self, frame: DataFrame, part: str, context: SinkContext, staging: Staging, syncing: Syncing
    ) -> ChannelRows:
        location, folder = self.location(context), f"{staging.folder(context)}/{part}"
        columns: Json = {"type": "struct", "fields": []}
        written = write_files(frame, columns, location, folder, ())
        files = sync_and_list(location, folder, columns, sync=syncing, written=written)
        return ChannelRows(columns=msgspec.json.decode(frame.schema.json()), files=files)

    def syncing(self, context: SinkContext) -> Syncing:
        """Return an object that makes files of this channel durable."""
        return Syncing(self.location(context))

    def read(self, sent: Sent, context: SinkContext, spark: SparkSession) -> tuple[DataFrame, DataFrame | None]:
        """Return the rows and the retractions, exactly as they were sent."""
        rows = self._read(sent.rows, context, spark)
        if sent.replaced is None:
            return rows, None
        return rows, self._read(sent.replaced, context, spark)

    def read_all(
        self, sent: Sequence[Sent], context: SinkContext, spark: SparkSession
    ) -> tuple[DataFrame, DataFrame | None]:
        """Return the rows of several checkpoints together. A row that was sent in one and retracted in a later one
        appears in neither frame."""
        frames = [self.read(rows, context, spark) for rows in sent]
        if len(frames) == 1:
            return frames[0]
        rows = _union([rows for rows, _ in frames])
        replaced = [replaced for _, replaced in frames if replaced is not None]
        if replaced:
            return _cancel_out(rows, _union(replaced))
        return (rows, None)

    def _read(self, rows: ChannelRows, context: SinkContext, spark: SparkSession) -> DataFrame:
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(rows.columns)
        if not rows.files:
            return no_rows(spark, schema)
        location = self.location(context)
        missing = missing_files(location, rows.files)
        if missing:
            raise Corrupt(
                f"the channel {self.stream!r} has lost {missing[0]} ({len(missing)} of {len(rows.files)} files)",
                expected="the files that the ack of the job names",
                help="abort the checkpoint and trigger again: the next checkpoint plans the same input",
                reason="CHANNEL_DAMAGED",
            )
        paths = [location.full(file.path) for file in rows.files]
        return parquet_files(spark, paths, schema)

    def missing_files(self, sent: Sent, context: SinkContext) -> list[str]:
        """Return the files that are missing or changed."""
        if sent.files:
            return missing_files(self.location(context), sent.files)
        return []

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        """Return the attempts that have staged files for checkpoint `id`, found by the names of their folders."""
        location, folder = self.location(context), entry_folder(context, id)
        return sorted({path[len(folder) + 1 :].split("/")[0] for path, _ in location.walk(folder)})

    def discard(self, context: SinkContext, staging: Staging) -> None:
        """Remove the files that an attempt has sent. Called when no job can read them any more."""
        self.location(context).remove_folder(staging.folder(context))


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the union of all frames. A column that a frame lacks is null there."""
    return reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), frames)


def _cancel_out(rows: DataFrame, replaced: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Remove each row that is in both frames as often as it is in both, so that no row is both sent and retracted."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from tidegate.spark.row_id import row_id

    names = [*rows.columns, *replaced.columns]
    sign, surplus, nth = free_name(_SIGN, names), free_name(_SURPLUS, names), free_name(_NTH, names)
    marked = rows.withColumn(sign, F.lit(1)).unionByName(replaced.withColumn(sign, F.lit(-1)), allowMissingColumns=True)
    id_of_row = row_id(marked.drop(sign))
    # How many more times a row was sent than retracted, and the copy's number among equal rows with the same sign.
    surplus_of_row = F.sum(sign).over(Window.partitionBy(id_of_row))
    number_of_copy = F.row_number().over(Window.partitionBy(id_of_row, sign).orderBy(sign))
    numbered = marked.withColumn(surplus, surplus_of_row).withColumn(nth, number_of_copy)
    remaining = numbered.where(f"{nth} <= {sign} * {surplus}")
    sent = remaining.where(f"{sign} = 1").drop(sign, surplus, nth)
    retracted = remaining.where(f"{sign} = -1").drop(sign, surplus, nth)
    return sent, retracted
