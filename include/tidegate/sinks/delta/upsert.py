"""Rows of a Delta table replaced, added and removed by key, visible exactly once.

prepare   Spark writes the changed rows into a folder inside the table, those to be removed apart from the
          others; two rows with one key are settled by order_by, or refused
publish   the files that hold a changed key are written anew without it (delta/rewrite.py), then one
          commit removes them, and adds what stayed and the staged rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate import seams
from tidegate.delta import (
    CommitStamp,
    Committed,
    Location,
    Snapshot,
    StagedFile,
    live_files,
    locate,
    open_table,
    read_commit,
    refuse_difference,
    replace,
    spark_reasons_to_rewrite,
    stage,
)
from tidegate.delta.arrow_types import arrow_schema
from tidegate.delta.duplicates import outdated_rows
from tidegate.delta.keys import Keys
from tidegate.delta.log.commits import find_commit
from tidegate.delta.log.schema import columns, render
from tidegate.delta.order_by import Newest, newest
from tidegate.delta.rewrite import InputFile, Table, key_rows, rewrite
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.sinks.base import Prepared, SinkContext, Staging
from tidegate.sinks.delta.not_null import refuse_nulls
from tidegate.sinks.delta.properties import list_problems
from tidegate.sinks.delta.table import (
    MERGED,
    DeltaSink,
    Evolution,
    StagedBatch,
    staged_result,
    united,
)
from tidegate.sinks.delta.through_spark import merge_by_spark
from tidegate.spark.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeltaUpsert"]

_DELETED = "tidegate_deleted"
"""A partition column of the staged files: rows to be removed lie in a folder of their own."""

_KEY_TYPES = ("byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz", "boolean")


class DeltaUpsert(DeltaSink):
    """Keeps one row per key in a Delta table.

    keys: the columns that tell rows apart. Null is a value like any other: null equals null.
    order_by: of several rows with one key, the one with the greatest values here counts (null is least), also
        against the row that the table holds: a late row never replaces a newer one. Of equals the later
        checkpoint counts. A removed row leaves no trace, so what comes later, even if it is older, adds one.
        Without order_by the later checkpoint counts; and within one checkpoint, rows with one key (and equal
        order_by) must be copies of each other, or are refused.
    delete_when: a SQL condition on the row; where it is true, the key's row is removed.
    omit: columns that delete_when needs and the table should not have.
    path, partition_by, schema_evolution, properties, take_over: as for DeltaAppend.

    Behind a stream that replaces rows (an aggregate …), the keys whose rows that stream takes back are removed.

    While publishing, the keys of the changed rows are held in memory; the table is streamed.
    """

    kind: ClassVar[str] = "delta-upsert"
    rewrites: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        *,
        keys: Sequence[str],
        order_by: Sequence[str] = (),
        delete_when: str | None = None,
        omit: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        schema_evolution: Evolution = "refuse",
        properties: Mapping[str, str] | None = None,
        take_over: bool = False,
    ) -> None:
        super().__init__(
            path,
            partition_by=partition_by,
            schema_evolution=schema_evolution,
            properties=properties,
            take_over=take_over,
        )
        self.keys = tuple(listed(keys))
        self.order_by = tuple(listed(order_by))
        self.upserts = self.keys
        self.delete_when = delete_when
        self.omit = tuple(listed(omit))

    def describe(self) -> Json:
        return super().describe() | {
            "keys": list(self.keys),
            "order_by": list(self.order_by),
            "delete_when": self.delete_when,
            "omit": list(self.omit),
        }

    def problems(self) -> list[str]:
        found = super().problems()
        if not self.keys:
            found.append("keys is empty: name the columns that tell rows apart, or use DeltaAppend")
        for what, names in (("keys", self.keys), ("order_by", self.order_by), ("omit", self.omit)):
            found += list_problems(what, names)
        for name in sorted(set(self.omit) & {*self.keys, *self.order_by, *self.partition_by}):
            found.append(f"omit names {name!r}, which the table needs as a key, order or partition column")
        if self.delete_when is not None and not self.delete_when.strip():
            found.append("delete_when is empty: write a SQL condition, or leave it out")
        if self.properties.get("delta.appendOnly") == "true":
            found.append("table property delta.appendOnly: an upsert replaces rows")
        return found

    def interval_problems(self) -> list[str]:
        return [
            "an upsert cannot replace one interval's rows, for what a key shows depends on the order in which intervals"
            " come: use DeltaAppend, or sources that read whatever is new"
        ]

    def update_problems(self, stream: str) -> list[str]:
        if not self.order_by:
            return []
        return [f"order_by is for rows that come in any order; {stream} itself says which row counts: leave it out"]

    def output_problems(self, schema: Json) -> list[str]:
        by_name, found = columns(schema), []
        for name in self.keys:
            if name not in by_name:
                found.append(f"key column {name!r} is not in the output ({', '.join(by_name)})")
            elif not isinstance(kind := by_name[name]["type"], str) or (
                kind not in _KEY_TYPES and not kind.startswith("decimal")
            ):
                found.append(f"key column {name!r} is {render(kind)}: keys need a type with plain equality")
        for name in self.order_by:
            if name not in by_name:
                found.append(f"order_by column {name!r} is not in the output ({', '.join(by_name)})")
            elif not isinstance(kind := by_name[name]["type"], str):
                found.append(f"order_by column {name!r} is {render(kind)}, which has no order")
        return found

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        return self._prepare(frame, None, context, staging)

    def prepare_updates(
        self, frame: DataFrame, withdrawn: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        return self._prepare(frame, withdrawn, context, staging)

    def _prepare(
        self, frame: DataFrame, withdrawn: DataFrame | None, context: SinkContext, staging: Staging
    ) -> Prepared:
        location, snapshot = locate(context.place, self.path), self.open(context)
        kept = frame.drop(*self.omit)
        schema = self.output_schema(kept, context, snapshot)
        seams.fault("S4.stage.before")
        folder = staging.folder(context)
        batch = self._stage(frame, withdrawn, schema, location, folder)
        batch = self._settled(batch, Table(location, schema, self.partition_by), f"{folder}/settled")
        not_null = refuse_nulls(kept, snapshot, batch.files, context)
        seams.fault("S4.stage.after")
        rows = sum(file.rows for file in (*batch.files, *batch.deletes))
        if not rows and snapshot is not None:
            return Prepared(None, 0)
        return staged_result(
            StagedBatch(columns=schema, files=batch.files, deletes=batch.deletes, not_null=not_null), rows
        )

    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Remove staged deletes, and what publishers wrote that lost their race or died. Never what the
        publishing commit named: those are the table's own files, also of its older versions."""
        location = locate(context.place, self.path)
        snapshot = open_table(location)
        done = find_commit(snapshot, context.app_id, staging.checkpoint) if snapshot else None
        if done is None:
            return  # Its commit file is gone: nothing tells any more what the table needs.
        found = read_commit(location, done.version)
        named = found.added_paths() if found else set()
        entry = staging.folder(context).rsplit("/", 1)[0]
        location.remove_files(
            path
            for path, _ in location.walk(entry)
            if path not in named and path[len(entry) + 1 :].startswith((MERGED, f"{staging.attempt}/"))
        )

    def spark_reasons(self, snapshot: Snapshot) -> list[str]:
        return spark_reasons_to_rewrite(snapshot)

    def first_files(self, batches: Sequence[StagedBatch], location: Location, folder: str) -> list[StagedFile]:
        table = Table(location, united(batches), self.partition_by)
        if self.order_by:
            return self._counting_rows(table, batches, self._newest(table, [], batches), folder)
        return self._new_rows(table, batches, folder)

    def publish_next(
        self, snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, folder: str
    ) -> Committed | None:
        table = Table(snapshot.location, snapshot.schema, self.partition_by)
        keys = self._keys(table, batches)
        live = {file.path: file for file in live_files(snapshot) if keys.may_touch(file)}
        sources = list(map(InputFile.of, live.values()))
        if self.order_by:
            settled = self._newest(table, sources, batches)
            keys, new = settled.won, self._counting_rows(table, batches, settled, folder)
        else:
            new = self._new_rows(table, batches, folder)
        gone, stayed = rewrite(table, sources, self.keys, _held(keys), f"{folder}/kept")
        added = [*stayed, *new]
        done = replace(snapshot, added, [live[source.path] for source in gone], stamp)
        if done is None or not _names(snapshot.location, done, added):
            snapshot.location.remove_folder(folder)  # Another publisher's commit counts: ours is of no use.
        return done

    def publish_by_spark(
        self, snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, context: SinkContext
    ) -> Committed | None:
        return merge_by_spark(snapshot, batches, self.keys, self.order_by, stamp, context)

    def _stage(
        self, frame: DataFrame, withdrawn: DataFrame | None, schema: Json, location: Location, folder: str
    ) -> StagedBatch:
        """The changed rows as Spark wrote them."""
        if self.delete_when is None and withdrawn is None:
            written = write_files(frame.drop(*self.omit), schema, location.full(folder), self.partition_by)
            return StagedBatch(
                columns=schema, files=stage(location, folder, schema, self.partition_by, written=written)
            )
        mark = {"name": _DELETED, "type": "boolean", "nullable": True, "metadata": {}}
        marked = {"type": "struct", "fields": [*schema["fields"], mark]}
        names = list(map(quoted, columns(schema)))
        rows = frame.selectExpr(*names, f"coalesce(({self.delete_when or 'false'}), false) AS {_DELETED}")
        if withdrawn is not None:
            gone = withdrawn.selectExpr(*names, f"true AS {_DELETED}").dropDuplicates(list(self.keys))
            rows = rows.unionByName(_without(gone, frame, self.keys))
        written = write_files(rows, marked, location.full(folder), (_DELETED, *self.partition_by))
        files = stage(location, folder, marked, (_DELETED, *self.partition_by), written=written)
        sorted_out: dict[str | None, list[StagedFile]] = {"false": [], "true": []}
        for file in files:
            sorted_out[file.partition[_DELETED]].append(file.without_partition(_DELETED))
        return StagedBatch(columns=schema, files=sorted_out["false"], deletes=sorted_out["true"])

    def _settled(self, batch: StagedBatch, table: Table, folder: str) -> StagedBatch:
        """The batch with one row for each key."""
        import pyarrow.compute as pc

        marked = [(file, False) for file in batch.files] + [(file, True) for file in batch.deletes]
        sources = [InputFile.of(file) for file, _ in marked]
        lost = outdated_rows(table, sources, self.keys, self.order_by, [mark for _, mark in marked])
        if not lost:
            return batch

        def outdated(rows: Any, source: InputFile, start: int) -> Any:
            return lost[source.path].slice(start, rows.num_rows)

        def settle(files: list[StagedFile], name: str) -> list[StagedFile]:
            touched = [InputFile.of(file) for file in files if file.path in lost]
            _, written = rewrite(table, touched, self.keys, outdated, f"{folder}/{name}")
            return [*(file for file in files if file.path not in lost), *written]

        settled = StagedBatch(
            columns=batch.columns,
            files=settle(batch.files, "changed"),
            deletes=settle(batch.deletes, "deleted"),
        )
        left = sum(file.rows for file, _ in marked) - sum(pc.sum(mask).as_py() or 0 for mask in lost.values())
        there = sum(file.rows for file in (*settled.files, *settled.deletes))
        refuse_difference(table.location.full(folder), left, there)
        return settled

    def _newest(self, table: Table, live: Sequence[InputFile], batches: Sequence[StagedBatch]) -> Newest:
        staged = [list(map(InputFile.of, (*batch.files, *batch.deletes))) for batch in batches]
        return newest(table, live, staged, self.keys, self.order_by)

    def _counting_rows(
        self, table: Table, batches: Sequence[StagedBatch], settled: Newest, folder: str
    ) -> list[StagedFile]:
        """The batches' files without the rows that lost against newer ones."""
        files = [file for batch in batches for file in batch.files]
        touched = [InputFile.of(file) for file in files if file.path in settled.late]

        def late(rows: Any, source: InputFile, start: int) -> Any:
            return settled.late[source.path].slice(start, rows.num_rows)

        _, written = rewrite(table, touched, self.keys, late, f"{folder}/counting")
        return [*(file for file in files if file.path not in settled.late), *written]

    def _keys(self, table: Table, batches: Sequence[StagedBatch]) -> Keys:
        import pyarrow as pa

        files = [file for batch in batches for file in (*batch.files, *batch.deletes)]
        none = arrow_schema(table.schema, self.keys).empty_table()
        return Keys(pa.concat_tables([none, *(key_rows(table, InputFile.of(file), self.keys) for file in files)]))

    def _new_rows(self, table: Table, batches: Sequence[StagedBatch], folder: str) -> list[StagedFile]:
        """The batches' files; of earlier ones without the keys that a later one has."""
        added = list(batches[-1].files) if batches else []
        for place in range(len(batches) - 1):
            files = batches[place].files
            later = batches[place + 1 :]
            if not any(batch.files or batch.deletes for batch in later):
                added += files
                continue
            lost = _held(self._keys(table, later))
            gone, stayed = rewrite(table, list(map(InputFile.of, files)), self.keys, lost, f"{folder}/batch-{place}")
            replaced = {source.path for source in gone}
            added += [*(file for file in files if file.path not in replaced), *stayed]
        return added


def _without(gone: DataFrame, frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows of `gone` whose keys are not in `frame`; null is the same as null."""
    from pyspark.sql import functions as F

    held = frame.select(*(F.col(quoted(key)).alias(f"tidegate_{number}") for number, key in enumerate(keys)))
    same = (F.col(quoted(key)).eqNullSafe(F.col(f"tidegate_{number}")) for number, key in enumerate(keys))
    return gone.join(held, reduce(lambda one, other: one & other, same), "left_anti")


def _held(keys: Keys) -> Any:
    def lost(rows: Any, source: InputFile, start: int) -> Any:
        return keys.held(rows)

    return lost


def _names(location: Location, done: Committed, files: Sequence[StagedFile]) -> bool:
    """Whether the commit is the one that names these files, not a concurrent publisher's equal one."""
    found = read_commit(location, done.version) if files else None
    return not files or (found is not None and {file.path for file in files} <= found.added_paths())
