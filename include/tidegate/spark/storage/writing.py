"""Writes files with Spark, for tidegate to stage."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidegate import seams
from tidegate.delta import Location, Written, from_spark, with_plain_partition_text
from tidegate.delta.files.partitions import refused_row
from tidegate.errors import Unavailable
from tidegate.records.place import LOCAL_WRITES, is_url
from tidegate.records.records import Json
from tidegate.spark.frame_facts import is_known_empty, not_streaming
from tidegate.spark.materialize import StoredRows, stored_rows
from tidegate.spark.storage.worker_writes import can_write, work_on_store, write_in_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write_files"]

_ROWS: Final = "rows"

_HADOOPS: Final = "org.apache.hadoop.fs.RawLocalFileSystem"
"""Hadoop's own access to local files, which every Spark has."""

_DRAFT: Final = {
    "compression": "none",
    "parquet.enable.dictionary": "false",
    "parquet.column.statistics.enabled": "false",
    "parquet.page.write-checksum.enabled": "false",
}
"""These options save a sixth of the time of writing."""
_USUAL: Final = {"spark.sql.parquet.compression.codec": "snappy", "spark.sql.files.maxRecordsPerFile": "0"}
"""A session's default settings for files."""
_PATIENCE: Final = 10.0
"""Seconds. Spark reports the counts of its tasks a few milliseconds after the write, or never."""


def write_files(
    frame: DataFrame,
    schema: Json,
    location: Location,
    folder: str,
    partition_by: Sequence[str],
    *,
    draft: Collection[str] | None = None,
) -> Written:
    """Let Spark write the rows into a folder. Return what its tasks report.

    Rows that workers have just written to the same disk are not written again: their files get a second name. In an
    object store Python workers write if they can (worker_writes.py), and report each file. Otherwise Spark writes, and
    its tasks count rows. Neither proves that the files are in the folder, because tasks may run on other machines:
    `stage` compares the folder with the report. Hadoop's committer v1 leaves exactly the files of successful tasks.

    draft: the files will soon be read and rewritten, so they are written as simply as possible. The named text columns
        have few distinct values, and are dictionary-encoded.
    """
    try:
        return _write_files(frame, schema, location, folder, partition_by, draft)
    except Exception as error:
        if (refused := refused_row(error)) is None:
            raise
        raise refused from None


def _write_files(
    frame: DataFrame,
    schema: Json,
    location: Location,
    folder: str,
    partition_by: Sequence[str],
    draft: Collection[str] | None,
) -> Written:
    if is_known_empty(frame):
        return 0
    session, path = frame.sparkSession, location.full(folder)
    stored = stored_rows(frame) if draft is None and not partition_by else None
    if stored is not None and _as_workers_write(session) and _linked(stored, location, folder):
        return stored.rows
    if work_on_store(session, location) and can_write(from_spark(msgspec.json.decode(frame.schema.json()))):
        return write_in_workers(frame, location, folder, partition_by)
    written = _write_with_spark(frame, schema, path, partition_by, draft)
    if location.is_local and not location.local(folder).is_dir():
        raise Unavailable(
            f"Spark reports that it wrote {path}, but that folder does not exist here",
            expected="a Spark that sees the same disk as this process",
            help="run Spark where that folder is mounted, under the same path, or use a path that both see, such as an "
            "object store; then it is tried again",
            reason="ROWS_MISSING",
        )
    return written


def _linked(stored: StoredRows, location: Location, folder: str) -> bool:
    """Hard-link the files into the folder. Return False, with nothing done, if that is not possible."""
    target = location.local(folder)
    if not (stored.location.is_local and location.is_local) or target.exists():
        return False
    with contextlib.suppress(OSError):  # another disk, or one without hard links
        target.mkdir(parents=True)
        if not _inherits_permissions(target):
            for path in stored.paths:
                os.link(stored.location.local(path), target / os.path.basename(path))
            return True
    location.remove_folder(folder)
    return False


def _inherits_permissions(folder: Path) -> bool:
    """Return whether new files in a folder get its group or its default ACL. Links would not."""
    rules: list[str] = []
    with contextlib.suppress(OSError, AttributeError):  # no ACLs on this system
        rules = os.listxattr(folder)
    return bool(folder.stat().st_mode & stat.S_ISGID) or "system.posix_acl_default" in rules


def _as_workers_write(session: Any) -> bool:
    """Return whether the session would write files as workers do: with the default settings."""
    return all(str(session.conf.get(key, usual)) == usual for key, usual in _USUAL.items())


def _write_with_spark(
    frame: DataFrame, schema: Json, path: str, partition_by: Sequence[str], draft: Collection[str] | None
) -> int | None:
    """Let Spark write. Return the number of rows that its tasks counted while writing, or None if it is unknown."""
    session: Any = frame.sparkSession
    key, value = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
    if session.conf.get(key) != value:
        session.conf.set(key, value)
    counted, counting = _counted(with_plain_partition_text(frame, schema, partition_by))
    writer = counted.write.partitionBy(*partition_by)
    writer = writer.option("mapreduce.fileoutputcommitter.algorithm.version", "1")
    if draft is not None:
        writer = writer.options(**_DRAFT, **{f"parquet.enable.dictionary#{name}": "true" for name in draft})
    if not is_url(path):
        writer = writer.options(**_local_files(session))
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(path)
    return _observed_count(counting)


def _counted(frame: DataFrame) -> tuple[DataFrame, Any]:
    """Return the frame with an observation that counts its rows while they are written.

    It is the last step before the writer, so it counts exactly the written rows, even with a limit or cached rows.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counting = Observation()
    return not_streaming(frame).observe(counting, F.count(F.lit(1)).alias(_ROWS)), counting


def _observed_count(counting: Any) -> int | None:
    """Return the count of the observation, or None if it has not arrived in time.

    Spark in this process reports it separately, a moment after the end of the write. The wait is bounded, because Spark
    drops such messages when its queue is full.
    """
    with contextlib.suppress(AttributeError):  # Spark Connect reports it together with the end of the write
        future, deadline = counting._jo.future(), seams.monotonic() + _PATIENCE
        while not future.isCompleted():
            if seams.monotonic() > deadline:
                return None
            seams.sleep(0.001)
    rows = counting.get.get(_ROWS)
    return int(rows) if rows is not None else None


def _local_files(session: Any) -> dict[str, str]:
    """Return options for local writes without checksum files, and without a process per file if possible.

    Checksum files double the number of files, and are not synced, so that after a power loss Spark might refuse an
    intact file. The session may have a class that writes without a process per file.
    """
    return {"fs.file.impl": session.conf.get(LOCAL_WRITES, _HADOOPS), "fs.file.impl.disable.cache": "true"}
