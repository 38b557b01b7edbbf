"""A channel: what one job of a checkpoint makes and others take. Staged like a sink's rows, and never published.

The ack of the job that makes it names its files; so all that take it read the same rows, whatever attempt they are.
It lies beside the pipeline's ledger until its checkpoint is retired.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import msgspec

from tidegate import seams
from tidegate.delta import Location, StagedFile, Syncing, missing_files, stage
from tidegate.errors import Corrupt
from tidegate.records.records import Amount, Json, Struct
from tidegate.sinks.base import SinkContext, Staging, entry_folder
from tidegate.sources.files.reading import escaped, exact_reader
from tidegate.spark.empty import empty_like
from tidegate.spark.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CHANNEL", "Channel", "Sent", "channel_name"]

CHANNEL = "channel."
"""Begins the names of channels' folders among those of an attempt. A dot is in no name that users give."""

_ROWS, _REPLACED = "rows", "replaced"
_SIGN, _MORE, _NTH = "tidegate_sign", "tidegate_more", "tidegate_nth"


class ChannelRows(Struct, frozen=True, kw_only=True):
    """Rows of one stream in files."""

    columns: Json
    """As Spark describes them."""
    files: list[StagedFile]


class Sent(Struct, frozen=True, kw_only=True):
    """What a job has put into a channel in one checkpoint."""

    rows: ChannelRows
    replaced: ChannelRows | None = None
    """Of a stream that replaces rows: those that it gave before."""

    @property
    def count(self) -> int:
        """How many rows, but for those that they replace."""
        return sum(each.rows for each in self.rows.files)

    @property
    def amount(self) -> Amount:
        """How much it is, with what is replaced."""
        files = [*self.rows.files, *(self.replaced.files if self.replaced is not None else ())]
        return Amount(rows=sum(each.rows for each in files), bytes=sum(each.size for each in files), files=len(files))


def channel_name(stream: str) -> str:
    """Under which name a stream's channel stages."""
    return f"{CHANNEL}{stream}"


class Channel:
    """What goes from one job to others."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def location(self, context: SinkContext) -> Location:
        """Where its files lie: beside the pipeline's ledger."""
        return Location(f"{context.home}/channels/{self.stream}", context.place.options)

    def send(
        self, frame: DataFrame, replaced: DataFrame | None, context: SinkContext, staging: Staging, syncing: Syncing
    ) -> Sent:
        """Write the rows for whoever takes them. They are durable once `syncing` is finished."""
        seams.fault("S4.stage.before")
        rows = self._write(frame, _ROWS, context, staging, syncing)
        back = self._write(replaced, _REPLACED, context, staging, syncing) if replaced is not None else None
        seams.fault("S4.stage.after")
        return Sent(rows=rows, replaced=back)

    def _write(
        self, frame: DataFrame, part: str, context: SinkContext, staging: Staging, syncing: Syncing
    ) -> ChannelRows:
        location, folder = self.location(context), f"{staging.folder(context)}/{part}"
        columns: Json = {"type": "struct", "fields": []}
        written = write_files(frame, columns, location.full(folder), ())
        files = stage(location, folder, columns, sync=syncing, written=written)
        return ChannelRows(columns=msgspec.json.decode(frame.schema.json()), files=files)

    def syncing(self, context: SinkContext) -> Syncing:
        """Makes files of this channel durable."""
        return Syncing(self.location(context))

    def take(self, sent: Sent, context: SinkContext, spark: SparkSession) -> tuple[DataFrame, DataFrame | None]:
        """The rows, and those that they replace, exactly as they were sent."""
        rows = self._read(sent.rows, context, spark)
        return rows, self._read(sent.replaced, context, spark) if sent.replaced is not None else None

    def take_all(
        self, sent: Sequence[Sent], context: SinkContext, spark: SparkSession
    ) -> tuple[DataFrame, DataFrame | None]:
        """What was sent in several checkpoints, in one go. What was given in one and replaced in a later one is as if
        it had never been given."""
        taken = [self.take(each, context, spark) for each in sent]
        if len(taken) == 1:
            return taken[0]
        rows = _united([rows for rows, _ in taken])
        if all(back is None for _, back in taken):
            return rows, None
        return _settled(rows, _united([back for _, back in taken if back is not None]))

    def _read(self, rows: ChannelRows, context: SinkContext, spark: SparkSession) -> DataFrame:
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(rows.columns)
        if not rows.files:
            return empty_like(spark.createDataFrame([], schema))
        location = self.location(context)
        if gone := missing_files(location, rows.files):
            raise Corrupt(
                f"the channel {self.stream!r} has lost {gone[0]} ({len(gone)} of {len(rows.files)} files)",
                expected="the files that the ack of the job names",
                help="abort the checkpoint and trigger again: its input is planned anew",
                reason="CHANNEL_DAMAGED",
            )
        paths = [location.full(file.path) for file in rows.files]
        return exact_reader(spark, paths).schema(schema).format("parquet").load(escaped(paths))

    def gone(self, sent: Sent, context: SinkContext) -> list[str]:
        """The files of it that are not as they were written."""
        files = [*sent.rows.files, *(sent.replaced.files if sent.replaced is not None else ())]
        return missing_files(self.location(context), files) if files else []

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        """The attempts that have staged something for checkpoint `id`, by their folders' names."""
        location, folder = self.location(context), entry_folder(context, id)
        return sorted({path[len(folder) + 1 :].split("/")[0] for path, _ in location.walk(folder)})

    def discard(self, context: SinkContext, staging: Staging) -> None:
        """Remove what an attempt has sent. Called when nobody can take it any more."""
        self.location(context).remove_folder(staging.folder(context))


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    """One frame of all, in order. A column that came later is null before."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _settled(rows: DataFrame, replaced: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Without what is in both, as often as it is in both: so no row is given and replaced at once."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from tidegate.spark.row_id import row_id

    given, back = rows.withColumn(_SIGN, F.lit(1)), replaced.withColumn(_SIGN, F.lit(-1))
    marked = given.unionByName(back, allowMissingColumns=True)
    same = row_id(marked.drop(_SIGN))
    more = F.sum(_SIGN).over(Window.partitionBy(same))
    nth = F.row_number().over(Window.partitionBy(same, _SIGN).orderBy(_SIGN))
    left = marked.withColumn(_MORE, more).withColumn(_NTH, nth).where(f"{_NTH} <= {_SIGN} * {_MORE}")
    new, gone = (left.where(f"{_SIGN} = {sign}").drop(_SIGN, _MORE, _NTH) for sign in (1, -1))
    return new, gone
