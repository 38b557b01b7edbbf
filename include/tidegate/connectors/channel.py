"""A channel: rows that one job of a checkpoint produces for other jobs. Staged like a sink's rows, and never published.

The ack of the producing job names the channel's files, so all consumers read the same rows, whichever attempt they are.
The files are kept next to the pipeline's ledger until their checkpoint is retired.
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
_SIGN, _MORE, _NTH = "tidegate_sign", "tidegate_more", "tidegate_nth"


class ChannelRows(Struct, frozen=True, kw_only=True):
    """Rows of one stream in files."""

    columns: Json
    """The schema in Spark's JSON form."""
    files: list[StagedFile]


class Sent(Struct, frozen=True, kw_only=True):
    """The rows that a job has sent through a channel in one checkpoint."""

    rows: ChannelRows
    replaced: ChannelRows | None = None
    """For a stream that replaces rows: the rows that are replaced."""
    key: list[list[str]] | None = None
    """The key of its changelog, if only its plan shows it and another job asks: the names of each column."""

    @property
    def count(self) -> int:
        """The number of rows, without the replaced ones."""
        return sum(file.rows for file in self.rows.files)

    @property
    def amount(self) -> Amount:
        """The size of all files, including replaced rows."""
        files = [*self.rows.files, *(self.replaced.files if self.replaced is not None else ())]
        return Amount(rows=sum(file.rows for file in files), bytes=sum(file.size for file in files), files=len(files))


def channel_name(stream: str) -> str:
    """Return the name under which a stream's channel stages."""
    return f"{CHANNEL}{stream}"


class Channel:
    """The rows of one stream, on their way from one job to others."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def location(self, context: SinkContext) -> Location:
        """Return the folder of its files, next to the pipeline's ledger."""
        return Location(f"{context.home}/channels/{self.stream}", context.place.options)

    def send(
        self, frame: DataFrame, replaced: DataFrame | None, context: SinkContext, staging: Staging, syncing: Syncing
    ) -> Sent:
        """Write the rows for the jobs that take them. They are durable once `syncing` is finished."""
        seams.fault("S4.stage.before")
        rows = self._write(frame, _ROWS, context, staging, syncing)
        replaced_rows = self._write(replaced, _REPLACED, context, staging, syncing) if replaced is not None else None
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
        """Return the rows, and those that they replace, exactly as they were sent."""
        rows = self._read(sent.rows, context, spark)
        return rows, self._read(sent.replaced, context, spark) if sent.replaced is not None else None

    def read_all(
        self, sent: Sequence[Sent], context: SinkContext, spark: SparkSession
    ) -> tuple[DataFrame, DataFrame | None]:
        """Return the rows of several checkpoints together. A row that was sent in one and replaced in a later one is
        left out of both frames."""
        frames = [self.read(rows, context, spark) for rows in sent]
        if len(frames) == 1:
            return frames[0]
        rows = _union([rows for rows, _ in frames])
        replaced = [replaced for _, replaced in frames if replaced is not None]
        return _cancel_out(rows, _union(replaced)) if replaced else (rows, None)

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
                help="abort the checkpoint and trigger again: its input is planned anew",
                reason="CHANNEL_DAMAGED",
            )
        paths = [location.full(file.path) for file in rows.files]
        return parquet_files(spark, paths, schema)

    def gone(self, sent: Sent, context: SinkContext) -> list[str]:
        """Return the files that are missing or not as they were written."""
        files = [*sent.rows.files, *(sent.replaced.files if sent.replaced is not None else ())]
        return missing_files(self.location(context), files) if files else []

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        """Return the attempts that have staged files for checkpoint `id`, by the names of their folders."""
        location, folder = self.location(context), entry_folder(context, id)
        return sorted({path[len(folder) + 1 :].split("/")[0] for path, _ in location.walk(folder)})

    def discard(self, context: SinkContext, staging: Staging) -> None:
        """Remove what an attempt has sent. Called when no job can take it any more."""
        self.location(context).remove_folder(staging.folder(context))


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the union of all frames. A column that a frame lacks is null there."""
    return reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), frames)


def _cancel_out(rows: DataFrame, replaced: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Remove rows that are in both frames, as often as they are in both, so that no row is both sent and replaced."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from tidegate.spark.row_id import row_id

    sign, more, nth = (free_name(name, [*rows.columns, *replaced.columns]) for name in (_SIGN, _MORE, _NTH))
    marked = rows.withColumn(sign, F.lit(1)).unionByName(replaced.withColumn(sign, F.lit(-1)), allowMissingColumns=True)
    same = row_id(marked.drop(sign))
    all_of_it = F.sum(sign).over(Window.partitionBy(same))
    place = F.row_number().over(Window.partitionBy(same, sign).orderBy(sign))
    remaining = marked.withColumn(more, all_of_it).withColumn(nth, place).where(f"{nth} <= {sign} * {more}")
    remaining_rows, remaining_replaced = (remaining.where(f"{sign} = {of}").drop(sign, more, nth) for of in (1, -1))
    return remaining_rows, remaining_replaced
