"""The quarantine of a gate: a Delta table for its bad rows, next to the pipeline's ledger.

It is published like a sink, in the same decision as the good rows, so every row is in exactly one of the two places.
Requests (`ledger/log.py`) release or discard its rows, and the next plan takes them up. A row is marked
here in the same decision in which it is released or discarded, so this happens only once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import md5
from typing import TYPE_CHECKING, ClassVar

import msgspec

from tidegate import seams
from tidegate.connectors.delta.sink.append import DeltaAppend
from tidegate.connectors.delta.sink.table import StagedBatch
from tidegate.connectors.delta.sink.upsert import DeltaUpsert
from tidegate.connectors.delta.source.delta_table import DeltaTable
from tidegate.connectors.prestaged import PrestagedRows, can_prestage
from tidegate.connectors.prestaged_on_object_store import prestage
from tidegate.connectors.sink import (
    ExactlyOnceSink,
    Head,
    Prepared,
    Publication,
    RestorePlan,
    SinkContext,
    Staging,
    entry_folder,
)
from tidegate.connectors.source import Source
from tidegate.delta import (
    Location,
    Snapshot,
    from_spark,
    live_files,
    open_table,
    read_commit,
    schema_problems,
    version_of,
)
from tidegate.delta.arrow_types import arrow_schema
from tidegate.delta.files.footers import sync_and_list
from tidegate.delta.rewrite import write_parquet
from tidegate.gates.judging.repeated import scramble
from tidegate.gates.quarantine.columns import CHECKPOINT, ID, RULES, SETTLED, SETTLED_BY, SETTLED_IN, STREAM
from tidegate.gates.quarantine.recognised import recognised
from tidegate.gates.quarantine.returning import LateLimit, ReleasedInPlace, ReleasedRows
from tidegate.gates.row_rules import RowRules
from tidegate.records import typed
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable, Request
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField


__all__ = ["IN_PLACE", "QUARANTINE", "REPEATED", "QuarantineSink", "quarantine_name", "with_origin"]

QUARANTINE = "quarantine."
"""The prefix of quarantines' names among the tables of a plan. Names that users choose contain no dot."""

REPEATED = "repeated"
"""A key in a backfill's plan: the pipeline's quarantine, whose requests the backfill repeats."""

IN_PLACE = "in place"
"""A key in a backfill's plan: the rows of the pipeline's quarantine that the backfill releases at once."""

_MARKED = "marked"
EVERY_FILE = 1_000_000_000


def quarantine_name(gate: str) -> str:
    """Return the name of a gate's quarantine in plans and manifests."""
    return f"{QUARANTINE}{gate}"


_TYPES: Json = {
    RULES: {"type": "array", "elementType": "string", "containsNull": True},
    ID: "string",
    CHECKPOINT: "long",
    STREAM: "string",
    SETTLED: "string",
    SETTLED_IN: "long",
    SETTLED_BY: "string",
}


def with_origin(rows: DataFrame, staging: Staging, stream: str) -> DataFrame:
    """Add a unique id and the origin to rows for quarantine.

    The checkpoint's number is read from an array, at an index that Spark cannot know in advance: a plain literal would
    be part of the code that Spark generates, so each checkpoint would compile it again.
    """
    from pyspark.sql import functions as f

    unsettled = {name: f.lit(None).cast(_TYPES[name]) for name in (SETTLED, SETTLED_IN, SETTLED_BY)}
    number = f.monotonically_increasing_id()
    id = f.md5(f.concat(f.lit(staging.attempt), f.lit("-"), number.cast("string")))
    checkpoint = f.get(f.array(*[f.lit(staging.checkpoint).cast("long")] * 2), (number < 0).cast("int"))
    return rows.withColumns({ID: id, CHECKPOINT: checkpoint, STREAM: f.lit(stream), **unsettled})


def _with_origin(tables: Iterable[pa.Table], staging: Staging, stream: str) -> Iterator[pa.Table]:
    """Do the same as `with_origin` for rows in this process."""
    import numpy as np
    import pyarrow as pa

    attempt = md5(staging.attempt.encode()).hexdigest()
    begin, end = np.uint64(int(attempt[:16], 16)), attempt[16:]
    total = 0
    for rows in tables:
        count = rows.num_rows
        numbers = np.arange(total, total + count, dtype=np.uint64) + begin
        digits = scramble(numbers).astype(">u8").tobytes().hex()
        ids = [digits[start : start + 16] + end for start in range(0, len(digits), 16)]
        total += count
        added = {
            ID: pa.array(ids, pa.string()),
            CHECKPOINT: pa.repeat(pa.scalar(staging.checkpoint, pa.int64()), count),
        }
        added |= {STREAM: pa.repeat(stream, count), SETTLED: pa.nulls(count, pa.string())}
        added |= {SETTLED_IN: pa.nulls(count, pa.int64()), SETTLED_BY: pa.nulls(count, pa.string())}
        for name, column in added.items():
            rows = rows.append_column(name, column)
        yield rows


class QuarantineSink(ExactlyOnceSink):
    """The quarantine table of one gate. Its schema only changes by added columns and wider types."""

    kind: ClassVar[str] = "quarantine"

    def __init__(self, gate: str) -> None:
        self.gate = gate
        self.folder = f"quarantine/{gate}"

    def path(self, home: str) -> str:
        """Return the table's path below the pipeline's folder."""
        return f"{home}/{self.folder}"

    def delta_table(self, context: SinkContext) -> Location:
        return Location(self.path(context.home), context.place.options)

    def _appending(self, context: SinkContext) -> DeltaAppend:
        return DeltaAppend(self.path(context.home), schema_evolution="widen")

    def _marking(self, context: SinkContext) -> DeltaUpsert:
        """Return the sink that updates rows of the table by their ids. Publishing rewrites their files."""
        return DeltaUpsert(self.path(context.home), keys=[ID], schema_evolution="widen")

    def source(self, home: str) -> Source:
        """Return a source that reads the table as of one version."""
        return DeltaTable(self.path(home), max_files=EVERY_FILE)

    def returning(
        self,
        rows: DataFrame,
        requests: list[Request],
        checkpoint: int,
        fields: Sequence[StructField] = (),
        takers: Sequence[LateLimit] = (),
        row_rules: Callable[[], RowRules | None] | None = None,
    ) -> ReleasedRows:
        """Select the table's rows that these requests are about."""
        return ReleasedRows(rows, requests, checkpoint, fields, takers, row_rules)

    def select_released_again(
        self,
        rows: DataFrame,
        asked: ReleasedRows,
        since: int,
        fields: Sequence[StructField] = (),
        takers: Sequence[LateLimit] = (),
        row_rules: Callable[[], RowRules | None] | None = None,
    ) -> ReleasedRows:
        """Select the rows of a backfill's quarantine that equal rows which the pipeline has released.

        asked: these rows of the pipeline. since: the backfill has no rows from before this checkpoint.
        """
        return asked.released_again(rows, since, fields, takers, row_rules)

    def released_in_place(
        self,
        bad: DataFrame,
        staging: Staging,
        stream: str,
        asked: ReleasedRows,
        since: int,
        fields: Sequence[StructField],
        takers: Sequence[LateLimit],
        row_rules: Callable[[], RowRules | None],
    ) -> ReleasedInPlace:
        """Divide a backfill's bad rows into those to quarantine, and those that requests release at once.

        asked, since, fields, takers, row_rules: as for `select_released_again`.
        """
        rows = materialize(with_origin(bad, staging, stream))
        released = asked.released_again(rows, since, fields, takers, row_rules)
        unrequested = rows.join(released.rows.select(ID), [ID], "left_anti").select(*rows.columns)
        return ReleasedInPlace(rows, unrequested, released)

    def rows(
        self, bad: DataFrame | None, frame: DataFrame, staging: Staging, stream: str, back: ReleasedRows | None
    ) -> DataFrame:
        """Return the rows to stage: new bad rows, and earlier ones that are marked with their outcome.

        bad: the bad rows, if any. frame: the judged rows, for their columns. back: the earlier rows.
        """
        from pyspark.sql import functions as f

        if bad is None:  # an interval that runs again replaces its former bad rows, even by none
            bad = frame.where("false").withColumn(RULES, f.array().cast("array<string>"))
        rows = with_origin(bad, staging, stream)
        if back is not None:
            rows = rows.unionByName(back.marked(), allowMissingColumns=True)
        return rows

    def stage_judged(
        self,
        frame: DataFrame,
        beside: Mapping[str, Column],
        context: SinkContext,
        staging: Staging,
        *,
        plainly: bool,
        draft: Collection[str] | None = None,
    ) -> PrestagedRows | None:
        """Stage rows with a gate's mark columns in a temporary folder, from which downstream operators read them.

        Return None if the rows cannot be staged in this way. plainly: whether to leave out compression, for few rows.
        """
        location = self.staging_folder(context)
        schema = from_spark(msgspec.json.decode(frame.schema.json()))
        if not can_prestage(frame, location) or schema_problems(schema, ()):
            return None
        return prestage(
            frame,
            beside,
            location,
            self.judged_folder(context, staging),
            schema,
            () if plainly else draft,
            for_table=False,
        )

    def judged_folder(self, context: SinkContext, staging: Staging) -> str:
        """Return the folder of `stage_judged`, which only this attempt needs."""
        return f"{self.folder}/{staging.folder(context)}-judged"

    def prepare_in_process(
        self, tables: Iterable[pa.Table], schema: Json, stream: str, context: SinkContext, staging: Staging
    ) -> Prepared:
        """Do the same as `prepare` for new rows in this process. schema: Spark's, without the added columns."""
        rows = _with_origin(tables, staging, stream)
        added = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _TYPES.items()]
        fields = {"type": "struct", "fields": [*schema["fields"], *added]}
        return self._appending(context).prepare_rows(rows, fields, context, staging)

    def target(self, place: Place) -> str:
        return self.folder

    def staging_folder(self, context: SinkContext) -> Location:
        return Location(context.home, context.place.options)

    def describe(self) -> Json:
        return {}

    def check(self, context: SinkContext) -> None:
        self._appending(context).check(context)

    def check_interval(self, interval: Interval, replaces: tuple[int, Json] | None, context: SinkContext) -> None:
        self._appending(context).check_interval(interval, replaces, context)

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        return self._appending(context).prepare(frame, context, staging)

    def prepare_marked(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        """Stage new rows, and rows of the table that are marked with their outcome."""
        prepared = self._marking(context).prepare(frame, context, staging)
        return replace(prepared, committable={_MARKED: prepared.committable}) if prepared.committable else prepared

    def head(self, context: SinkContext) -> Head:
        return self._appending(context).head(context)

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        if not any(_MARKED in committable for committable in publication.committables):
            return self._appending(context).publish(publication, head, context)
        plain = tuple(committable.get(_MARKED, committable) for committable in publication.committables)
        return self._marking(context).publish(replace(publication, committables=plain), head, context)

    def without_rows(self, committable: Json) -> Json:
        """Return a committable of new rows without them, for a divert that came too late."""
        batch = typed.convert(committable, StagedBatch)
        builtins: Json = msgspec.to_builtins(msgspec.structs.replace(batch, files=[]))
        return builtins

    def has_skipped(self, id: int, context: SinkContext) -> bool:
        return self._appending(context).has_skipped(id, context)

    def missing_files(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        plain = [committable.get(_MARKED, committable) for committable in committables]
        return self._appending(context).missing_files(plain, context)

    def restore_plan(
        self, to: int | None, known: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> RestorePlan:
        return self._marking(context).restore_plan(to, known, committables, context)

    def restore(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        return self._marking(context).restore(publication, head, context)

    def promote_line_quarantine(
        self, context: SinkContext, own: SinkContext, *, since: int | None, number: int
    ) -> Json | None:
        """Copy the rows of a backfill's quarantine into the pipeline's, as `promote_shadow` does for other tables.

        since: the checkpoint from which the backfill began, if requests were made since. Unchanged rows are then
        recognised. number: the entry that swaps the backfill in.
        """
        again = open_table(self.delta_table(own))
        if again is None:
            return None
        location = self.delta_table(context)
        before = open_table(location) if since is not None else None
        # Each try has its own folder: another one may have recognised other rows, and may have been decided.
        folder = f"{entry_folder(own, number)}/{seams.new_id()}"
        names = [field["name"] for field in again.schema["fields"]]
        rows = recognised(again, before, since or 0, number)
        written = write_parquet(location, f"{folder}/part-00000.parquet", arrow_schema(again.schema, names), rows).rows
        files = sync_and_list(location, folder, again.schema, written=written) if written else []
        if not files:
            return None
        batch: Json = msgspec.to_builtins(StagedBatch(columns=again.schema, files=files))
        return batch

    def trace(self, committables: Sequence[Json]) -> Json:
        return DeltaAppend(self.folder).trace(committables)

    def has_publication(self, publication: Publication, head: Head, context: SinkContext) -> bool:
        return self._appending(context).has_publication(publication, head, context)

    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        return self._appending(context).locate(id, context)

    def verify(self, at: PublishedTable, context: SinkContext) -> None:
        self._appending(context).verify(at, context)

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        return self._appending(context).attempts(id, context)

    def discard(self, context: SinkContext, staging: Staging) -> None:
        self._appending(context).discard(context, staging)

    def replaces(self, committable: Json | None) -> bool:
        """Return whether publishing this rewrites files of the table."""
        return bool(committable) and _MARKED in (committable or {})

    def retire_replaced(self, id: int, kept: Iterable[int], context: SinkContext) -> None:
        """Delete the files that the table only had as of checkpoint `id`: not now, and not as of those in `kept`."""
        snapshot = self._appending(context).open(context)
        if snapshot is None:
            return
        versions = _versions_as_of(snapshot, context.app_id, [id])
        if not versions:
            return
        replaced = _files_of(snapshot, versions) - {file.path for file in live_files(snapshot)}
        if not replaced:
            return
        kept_versions = _versions_as_of(snapshot, context.app_id, list(kept))
        if kept_versions is not None:  # if it is unknown which files these need, all files stay
            snapshot.location.remove_files(sorted(replaced - _files_of(snapshot, kept_versions)))

    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Remove the files of publishers that lost their race. An append has none."""
        if not context.by_interval:
            self._marking(context).retire(context, staging)


def _versions_as_of(snapshot: Snapshot, app_id: str, ids: Sequence[int]) -> set[int] | None:
    """Return the versions of the table as of these entries, or None if commit files that are needed are missing."""
    versions: set[int] = set()
    pending = sorted(ids)
    for version in range(snapshot.version if pending else -1, -1, -1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            return None
        last = commit.txn(app_id)
        while last is not None and pending and pending[-1] >= last:
            pending.pop()
            versions.add(version)
        if not pending:
            break
    return versions


def _files_of(snapshot: Snapshot, versions: Iterable[int]) -> set[str]:
    return {file.path for version in versions for file in live_files(version_of(snapshot, version))}
