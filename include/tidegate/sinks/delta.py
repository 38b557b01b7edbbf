"""Rows appended to a Delta table, visible exactly once.

Spark writes Parquet files into a folder inside the table; nobody sees them, for no log names them. After
the decision one metadata commit through delta-rs names them all, together with the checkpoint's id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tidegate import seams
from tidegate.errors import Corrupt, Invalid
from tidegate.model.place import Place
from tidegate.model.records import Json, PublishedTable
from tidegate.sinks.base import (
    ExactlyOnceSink,
    Head,
    Prepared,
    Publication,
    SinkContext,
    Staging,
    entry_folder,
)
from tidegate.tables import (
    Committed,
    Location,
    Snapshot,
    StagedFile,
    Stamp,
    append,
    create,
    find_commit,
    from_spark,
    locate,
    missing_files,
    open_table,
    owner_of,
    refuse_owner,
    schema_problems,
    stage,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeltaAppend"]


class DeltaAppend(ExactlyOnceSink):
    """Adds the rows of each checkpoint to a Delta table, which the first one creates."""

    kind: ClassVar[str] = "delta-append"

    def __init__(
        self,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        take_over: bool = False,
    ) -> None:
        self.path = path
        self.partition_by = tuple(partition_by)
        self.properties = dict(properties or {})
        self.take_over = take_over

    def target(self, place: Place) -> str:
        return locate(place, self.path).url

    def describe(self) -> Json:
        return {
            "kind": self.kind,
            "path": self.path,
            "partition_by": list(self.partition_by),
            "properties": self.properties,
        }

    def check(self, context: SinkContext) -> None:
        self._open(context)

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        location = locate(context.place, self.path)
        schema = from_spark(msgspec.json.decode(frame.schema.json()))
        if problems := schema_problems(schema, self.partition_by):
            raise Invalid(
                "\n    ".join([f"sink {context.sink}: the output cannot be written to {location.url}:", *problems]),
                help="change the last stage before this sink",
                reason="BAD_OUTPUT",
            )
        seams.fault("S4.stage.before")
        folder = staging.folder(context)
        _write(frame, location.full(folder))
        files = stage(location, folder, schema, self.partition_by)
        seams.fault("S4.stage.after")
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        if not files and open_table(location) is not None:
            return Prepared(None, 0)
        committable = {"schema": schema, "files": msgspec.to_builtins(files)}
        return Prepared(committable, rows, size, len(files))

    def head(self, context: SinkContext) -> Head:
        snapshot = self._open(context)
        if snapshot is None:
            return Head(version=None, last=None)
        return Head(version=snapshot.version, last=snapshot.txn(context.app_id))

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        if head.last is not None and head.last >= publication.id:
            return None
        location = locate(context.place, self.path)
        files = staged_files(publication)
        refuse_missing(location, files, publication, context)
        stamp = stamp_for(publication, context)
        seams.fault("S10.publish.before")
        if head.version is None:
            schema = publication.committables[-1]["schema"]
            done = create(location, schema, files, stamp, partition_by=self.partition_by, properties=self.properties)
        else:
            snapshot = open_table(location, head.version)
            if snapshot is None or snapshot.txn(context.app_id) != head.last:
                return None
            done = append(snapshot, files, stamp)
        seams.fault("S10.publish.after")
        return published(location, done, sum(file.rows for file in files))

    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        location = locate(context.place, self.path)
        snapshot = open_table(location)
        if snapshot is None:
            return None
        return published(location, find_commit(snapshot, context.app_id, id), None)

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        location = locate(context.place, self.path)
        folder = entry_folder(context, id)
        return sorted({path[len(folder) + 1 :].split("/")[0] for path, _ in location.walk(folder)})

    def discard(self, context: SinkContext, staging: Staging) -> None:
        locate(context.place, self.path).remove_folder(staging.folder(context))

    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Nothing: the table names all that was staged."""

    def _open(self, context: SinkContext) -> Snapshot | None:
        snapshot = open_table(locate(context.place, self.path))
        if snapshot is not None and not self.take_over:
            refuse_owner(snapshot, context.pipeline, context.sink, context.uid)
        return snapshot


def stamp_for(publication: Publication, context: SinkContext) -> Stamp:
    """What goes into the log beside the rows."""
    return Stamp(
        app_id=context.app_id,
        id=publication.id,
        pipeline=context.pipeline,
        generation=publication.generation,
        attempt=publication.attempt,
        owner=owner_of(context.pipeline, context.sink, context.uid),
    )


def staged_files(publication: Publication) -> list[StagedFile]:
    """All files that the publication's committables name, in order."""
    return [msgspec.convert(file, StagedFile) for each in publication.committables for file in each["files"]]


def published(location: Location, done: Committed | None, rows: int | None) -> PublishedTable | None:
    """The answer to the coordinator."""
    if done is None:
        return None
    return PublishedTable(uri=location.url, version=done.version, log_hash=done.log_hash, rows=rows)


def refuse_missing(
    location: Location, files: Sequence[StagedFile], publication: Publication, context: SinkContext
) -> None:
    """Corrupt if staged files are gone: somebody ran VACUUM, or cleaned up by hand."""
    if gone := missing_files(location, files):
        raise Corrupt(
            f"sink {context.sink}: {len(gone)} of {len(files)} files that checkpoint {publication.id} staged "
            f"in {location.url} are gone or changed, first {gone[0]!r}",
            expected="every staged file as the job wrote it, until it is published",
            help="did a VACUUM or a clean-up run there? Put the files back, or roll back to an older one",
            reason="STAGED_FILES_GONE",
        )


def _write(frame: DataFrame, folder: str) -> None:
    """Let Spark write; committer v1 leaves in the folder exactly what successful tasks reported."""
    session: Any = frame.sparkSession
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = frame.write.mode("overwrite")
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(folder)
