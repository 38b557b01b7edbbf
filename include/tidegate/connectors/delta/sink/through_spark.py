"""Publish through delta-spark, for tables with features that delta-rs does not support (delta/log/features.py).

Spark silently skips a write whose txnVersion is not above the last one of its txnAppId, so the table's log is checked
afterwards. The version to commit cannot be passed to Spark, which rebases on concurrent commits. On local disks,
delta-spark does not exclude other processes, so a commit can be lost if another writer uses the table at the same time.
It does not sync its files either, so they are synced here.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.connectors.sink import SinkContext
from tidegate.delta import CommitStamp, Committed, Snapshot, StagedFile, find_commit, open_table, sync_commit
from tidegate.delta.arrow_types import arrow_schema, typed_partition
from tidegate.delta.files.partitions import partition_values
from tidegate.errors import Corrupt, Invalid, TidegateError, Unavailable
from tidegate.records.names import quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.connectors.delta.sink.table import StagedBatch

__all__ = ["OWN_COLUMNS", "append_through_spark", "merge_through_spark"]

_ORDER = "tidegate_order"
_DELETED = "tidegate_deleted"
OWN_COLUMNS = (_ORDER, _DELETED)
"""Columns that a merge adds to the rows of a batch."""
_VIOLATED = re.compile(r"((?:CHECK|NOT NULL) constraint .*?)\s*violated", re.DOTALL)
"""Matches delta-spark's message about a row that breaks a constraint, up to the row's values."""
_TOO_LONG = re.compile(r"\[(DELTA_EXCEED_CHAR_VARCHAR_LIMIT|EXCEED_LIMIT_LENGTH)\]")
_TXN = "spark.databricks.delta.write"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def append_through_spark(
    snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, context: SinkContext, *, evolve: bool
) -> Committed | None:
    """Add the batches' rows as one delta-spark commit."""
    session = _session(snapshot, context)
    _record_owner(session, snapshot, stamp)
    seams.fault(stamp.faults[0])
    with _refusals(snapshot):
        _append_all(session, snapshot, batches, stamp, evolve)
    return _find_or_add_commit(session, snapshot, stamp)


def _append_all(
    session: SparkSession, snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, evolve: bool
) -> None:
    frames = [_read(session, snapshot, batch.files, batch.columns) for batch in batches if batch.files]
    if frames:
        rows = functools.reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), frames)
        _append(rows, snapshot, stamp.app_id, stamp.id, stamp, evolve)


def merge_through_spark(
    snapshot: Snapshot,
    batches: Sequence[StagedBatch],
    keys: Sequence[str],
    order_by: Sequence[str],
    stamp: CommitStamp,
    context: SinkContext,
) -> Committed | None:
    """Replace the batches' rows by key in one delta-spark MERGE. The greatest order_by wins, then the last batch."""
    session = _session(snapshot, context)
    _record_owner(session, snapshot, stamp)
    changes = _changes(session, snapshot, batches, keys, order_by)
    is_not_late = _is_not_late_condition(order_by)
    names = [field["name"] for field in snapshot.schema["fields"] if field["name"] in changes.columns]
    view = f"tidegate_{stamp.attempt}"
    changes.createOrReplaceTempView(view)
    settings = {
        f"{_TXN}.txnAppId": stamp.app_id,
        f"{_TXN}.txnVersion": str(stamp.id),
        _USER_METADATA: stamp.user_metadata(),
    }
    seams.fault(stamp.faults[0])
    try:
        for key, value in settings.items():
            session.conf.set(key, value)
        with _refusals(snapshot):
            # Not delta-spark's DeltaTable: for a client of Spark Connect that needs Delta's plugin in the server.
            session.sql(
                f"MERGE INTO delta.{quoted(snapshot.location.url)} t USING {view} s ON "
                + " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
                + f" WHEN MATCHED AND {is_not_late} AND s.{_DELETED} THEN DELETE"
                + f" WHEN MATCHED AND {is_not_late} THEN UPDATE SET "
                + ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)
                + f" WHEN NOT MATCHED AND NOT s.{_DELETED} THEN INSERT ({', '.join(map(quoted, names))})"
                + f" VALUES ({', '.join(f's.{quoted(name)}' for name in names)})"
            )
    finally:
        for key in settings:
            session.conf.unset(key)
        session.catalog.dropTempView(view)
    return _find_or_add_commit(session, snapshot, stamp)


@contextlib.contextmanager
def _refusals(snapshot: Snapshot) -> Iterator[None]:
    """Convert Spark's error about a broken constraint to Invalid, without the row that it quotes."""
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:
        rule = _broken_rule(str(error))
        if not rule:
            raise
        raise Invalid(
            f"{snapshot.location.url} refuses rows of a completed checkpoint: they break {rule}",
            expected="a table without constraints that these rows break",
            help="it was added after the rows were staged, or could not be judged then: drop it, then run again to "
            "publish the pending checkpoints. Before you add it again, let a gate upstream of the sink quarantine such "
            'rows, or declare the sink with refused="quarantine"',
            reason="COMMIT_REFUSED",
        ) from None


def _broken_rule(message: str) -> str:
    """Return the constraint named in delta-spark's error message, without the row. Empty: it is another error."""
    if violated := _VIOLATED.search(message):
        return f"its {' '.join(violated[1].split())}"
    if _TOO_LONG.search(message):
        return "the length of a char or varchar column"
    return ""


def _session(snapshot: Snapshot, context: SinkContext) -> SparkSession:
    if context.spark is None:
        raise Unavailable(
            f"{snapshot.location.url} must be published by delta-spark, but this process has no Spark",
            expected="a process that may start Spark, because of the table's features",
            help="the next job of this pipeline will publish it, and so does `tidegate run`",
            reason="NEEDS_SPARK",
        )
    return context.spark()


def _record_owner(session: SparkSession, snapshot: Snapshot, stamp: CommitStamp) -> None:
    """Record the owner once, in a separate commit: delta-spark takes one transaction per commit."""
    if snapshot.txn(stamp.owner[0]) is None:
        _append_no_rows(session, snapshot, *stamp.owner, stamp)


def _find_or_add_commit(session: SparkSession, snapshot: Snapshot, stamp: CommitStamp) -> Committed | None:
    """Return the commit that the table's log shows. A merge without changes makes no commit, so an empty one is
    added."""
    seams.fault(stamp.faults[1])
    committed = _find_synced_commit(snapshot, stamp)
    if committed is None:
        _append_no_rows(session, snapshot, stamp.app_id, stamp.id, stamp)
        committed = _find_synced_commit(snapshot, stamp)
    return committed


def _find_synced_commit(snapshot: Snapshot, stamp: CommitStamp) -> Committed | None:
    current = open_table(snapshot.location)
    committed = find_commit(current, stamp.app_id, stamp.id) if current else None
    if committed is not None:
        sync_commit(snapshot.location, committed.version)
    return committed


def _append_no_rows(session: SparkSession, snapshot: Snapshot, app_id: str, version: int, stamp: CommitStamp) -> None:
    generated_keys = {"delta.identity.start", "delta.generationExpression"}  # only Spark may fill these columns
    names = [field["name"] for field in snapshot.schema["fields"] if generated_keys.isdisjoint(field["metadata"])]
    empty = session.read.format("delta").load(snapshot.location.url).selectExpr(*map(quoted, names)).limit(0)
    _append(empty, snapshot, app_id, version, stamp, False)


def _append(rows: DataFrame, snapshot: Snapshot, app_id: str, version: int, stamp: CommitStamp, evolve: bool) -> None:
    writer = rows.write.format("delta").mode("append").option("mergeSchema", str(evolve).lower())
    writer = writer.option("txnAppId", app_id).option("txnVersion", str(version))
    writer.option("userMetadata", stamp.user_metadata()).save(snapshot.location.url)


def _is_not_late_condition(order_by: Sequence[str]) -> str:
    """Return the SQL condition that a source row `s` is not older than the table's row `t`.

    Structs compare field by field, with null as the smallest value.
    """
    if not order_by:
        return "true"
    source = ", ".join(f"s.{quoted(name)}" for name in order_by)
    target = ", ".join(f"t.{quoted(name)}" for name in order_by)
    return f"struct({source}) >= struct({target})"


def _changes(
    session: SparkSession,
    snapshot: Snapshot,
    batches: Sequence[StagedBatch],
    keys: Sequence[str],
    order_by: Sequence[str],
) -> DataFrame:
    """Return the row of each key that counts, with a column that says whether to delete the key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    frames = []
    for number, batch in enumerate(batches):
        for files, deleted in ((batch.files, False), (batch.deletes, True)):
            if files:
                rows = _read(session, snapshot, files, batch.columns)
                frames.append(rows.withColumn(_ORDER, f.lit(number)).withColumn(_DELETED, f.lit(deleted)))
    rows = functools.reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), frames)
    greatest = [f.col(quoted(name)).desc_nulls_last() for name in order_by]
    last = Window.partitionBy(*map(quoted, keys)).orderBy(*greatest, f.col(_ORDER).desc())
    return rows.withColumn(_ORDER, f.row_number().over(last)).where(f"{_ORDER} = 1").drop(_ORDER)


def _read(session: SparkSession, snapshot: Snapshot, files: Sequence[StagedFile], columns: Json) -> DataFrame:
    """Read staged rows unchanged, with partition columns from the files' records.

    Files whose folders agree with their records are read in one scan. Files written by publishers are not in partition
    folders, so they are scanned partition by partition.
    """
    base = "/".join(files[0].path.split("/")[:4])
    in_folders = [file for file in files if _folder_shows_partition(file, base, columns)]
    by_partition: dict[tuple[tuple[str, str | None], ...], list[StagedFile]] = {}
    for file in files:
        if file not in in_folders:
            by_partition.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    frames = [_scan(session, snapshot, group, columns) for group in by_partition.values()]
    if in_folders:
        frames.append(_scan(session, snapshot, in_folders, columns, base))
    return functools.reduce(lambda first, second: first.unionByName(second), frames)


def _folder_shows_partition(file: StagedFile, base: str, columns: Json) -> bool:
    parts = file.path[len(base) + 1 :].split("/")
    folders = [part for part in parts if not part.startswith(f"{_DELETED}=")]
    try:
        return partition_values("/".join(folders), columns, tuple(file.partition)) == file.partition
    except (Corrupt, Invalid):
        return False


def _scan(
    session: SparkSession, snapshot: Snapshot, files: Sequence[StagedFile], columns: Json, base: str | None = None
) -> DataFrame:
    """Read files whose folders below `base` name their partitions. Without `base`, all files have the same partition.

    Timestamps in folder names are microseconds (delta/files/partitions.py).
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    partition = files[0].partition
    by_name = {field["name"]: field for field in columns["fields"]}
    micros = [name for name in partition if by_name[name]["type"] == "timestamp"]
    stored = []
    for name, field in by_name.items():
        if base is None and name in partition:
            continue
        stored.append(field | {"type": "long"} if name in micros else field)
    reader: Any = session.read.schema(StructType.fromJson({"type": "struct", "fields": stored}))
    if base is not None:
        reader = reader.option("basePath", snapshot.location.full(base))
    rows: DataFrame = reader.parquet(*(snapshot.location.full(file.path) for file in files))
    if base is None:
        values = typed_partition(partition, arrow_schema(columns, list(partition)), 1)
        for name, text in partition.items():
            if name in micros:
                value = f.lit(None if text is None else values[name][0].value).cast("bigint")
            else:
                kind = StructType.fromJson({"type": "struct", "fields": [by_name[name]]})[0].dataType
                value = f.lit(text).cast(kind)
            rows = rows.withColumn(name, value)
    selected = []
    for name in by_name:
        column = quoted(name)
        selected.append(f"timestamp_micros({column}) AS {column}" if name in micros else column)
    return rows.selectExpr(*selected)
