"""How Spark writes the files that tidegate stages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidegate.model.place import LOCAL_WRITES, is_url
from tidegate.model.records import Json
from tidegate.sinks.nothing import is_nothing
from tidegate.tables import nameable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write_files"]

_HADOOPS: Final = "org.apache.hadoop.fs.RawLocalFileSystem"
"""Hadoop's own way to local files, which every Spark has."""

_DRAFT: Final = {
    "compression": "none",
    "parquet.enable.dictionary": "false",
    "parquet.column.statistics.enabled": "false",
    "parquet.page.write-checksum.enabled": "false",
}
"""A sixth of the time of writing."""


def write_files(
    frame: DataFrame, schema: Json, folder: str, partition_by: Sequence[str], *, draft: Collection[str] | None = None
) -> None:
    """Let Spark write. Hadoop's committer v1 leaves in the folder exactly what successful tasks reported.

    draft: what is written is soon to be read, and written anew. So it is written as plainly as possible, but for these
        columns, of texts: they have few different ones, and are written as numbers of these.
    """
    if is_nothing(frame):
        return
    session: Any = frame.sparkSession
    key, wanted = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
    if session.conf.get(key) != wanted:
        session.conf.set(key, wanted)
    writer = nameable(frame, schema, partition_by).write.partitionBy(*partition_by)
    writer = writer.option("mapreduce.fileoutputcommitter.algorithm.version", "1")
    if draft is not None:
        writer = writer.options(**_DRAFT, **{f"parquet.enable.dictionary#{name}": "true" for name in draft})
    if not is_url(folder):
        writer = writer.options(**_local_files(session))
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(folder)


def _local_files(session: Any) -> dict[str, str]:
    """Without checksum files: they double the files and nobody syncs them, so after a power loss Spark might refuse
    a file that is whole. And without a process per file, where the session has a class for that."""
    return {"fs.file.impl": session.conf.get(LOCAL_WRITES, _HADOOPS), "fs.file.impl.disable.cache": "true"}
