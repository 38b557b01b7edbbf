"""How Spark writes the files that tidegate stages."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate import seams
from tidegate.delta import nameable
from tidegate.errors import Unavailable
from tidegate.records.place import LOCAL_WRITES, is_url
from tidegate.records.records import Json
from tidegate.spark.empty import is_known_empty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write_files"]

_ROWS: Final = "rows"

_HADOOPS: Final = "org.apache.hadoop.fs.RawLocalFileSystem"
"""Hadoop's own way to local files, which every Spark has."""

_DRAFT: Final = {
    "compression": "none",
    "parquet.enable.dictionary": "false",
    "parquet.column.statistics.enabled": "false",
    "parquet.page.write-checksum.enabled": "false",
}
"""A sixth of the time of writing."""
_PATIENCE: Final = 10.0
"""Seconds. Spark tells what its tasks have counted a few milliseconds after the write, or never."""


def write_files(
    frame: DataFrame, schema: Json, folder: str, partition_by: Sequence[str], *, draft: Collection[str] | None = None
) -> int | None:
    """Let Spark write. Answers with how many rows its tasks have counted as they wrote them; None: nobody can tell.

    Whether they are in the folder is another question, for tasks run on other machines and the folder is read on this
    one: `stage` compares. Hadoop's committer v1 leaves in the folder exactly what successful tasks reported.

    draft: what is written is soon to be read, and written anew. So it is written as plainly as possible, but for these
        columns, of texts: they have few different ones, and are written as numbers of these.
    """
    if is_known_empty(frame):
        return 0
    session: Any = frame.sparkSession
    key, wanted = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
    if session.conf.get(key) != wanted:
        session.conf.set(key, wanted)
    counted, counting = _counted(nameable(frame, schema, partition_by))
    writer = counted.write.partitionBy(*partition_by)
    writer = writer.option("mapreduce.fileoutputcommitter.algorithm.version", "1")
    if draft is not None:
        writer = writer.options(**_DRAFT, **{f"parquet.enable.dictionary#{name}": "true" for name in draft})
    if not is_url(folder):
        writer = writer.options(**_local_files(session))
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(folder)
    if not is_url(folder) and not Path(folder).is_dir():
        raise Unavailable(
            f"Spark says that it has written {folder}, and there is no such folder here",
            expected="a Spark that sees the same disk as this process",
            help="run Spark where that folder is mounted, under the same path, or use a path that both see, such as an "
            "object store; then it is tried again",
            reason="ROWS_MISSING",
        )
    return _told(counting)


def _counted(frame: DataFrame) -> tuple[DataFrame, Any]:
    """The rows, and what counts them on their way into the files.

    It is the last thing before the writer: whatever a frame is made of (a limit, rows that are kept), all that is
    written passes it, and nothing else does.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counting = Observation()
    return frame.observe(counting, F.count(F.lit(1)).alias(_ROWS)), counting


def _told(counting: Any) -> int | None:
    """What was counted. In this process's own Spark it comes by another way than the end of the write, in a moment; it
    is not waited for in vain, for Spark drops such messages if there are too many."""
    with contextlib.suppress(AttributeError):  # Spark Connect tells it together with the end of the write
        future, deadline = counting._jo.future(), seams.monotonic() + _PATIENCE
        while not future.isCompleted():
            if seams.monotonic() > deadline:
                return None
            seams.sleep(0.001)
    rows = counting.get.get(_ROWS)
    return int(rows) if rows is not None else None


def _local_files(session: Any) -> dict[str, str]:
    """Without checksum files: they double the files and nobody syncs them, so after a power loss Spark might refuse
    a file that is whole. And without a process per file, where the session has a class for that."""
    return {"fs.file.impl": session.conf.get(LOCAL_WRITES, _HADOOPS), "fs.file.impl.disable.cache": "true"}
