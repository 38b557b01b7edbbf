"""Where rows go that a gate sets aside: a Delta table of the gate's own, beside the pipeline's ledger.

It is published like a sink, in the same decision as the good rows: so every row is in exactly one of both places. What
is to become of rows there is asked by requests (`ledger/operator_records.py`), which the next plan takes up. In the
decision in which a row goes on, or is given up, it is marked here: so it does so once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import md5
from typing import TYPE_CHECKING, ClassVar

from tidegate.delta import Location, Snapshot, live_files, read_commit, version_of
from tidegate.gates.judging.repeated import mixed
from tidegate.gates.quarantine.columns import CHECKPOINT, ID, RULES, SETTLED, SETTLED_BY, SETTLED_IN, STREAM
from tidegate.gates.quarantine.returning import ReleasedRows
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable, Request
from tidegate.sinks.base import ExactlyOnceSink, Head, Prepared, Publication, SinkContext, Staging, WayBack
from tidegate.sinks.delta.append import DeltaAppend
from tidegate.sinks.delta.upsert import DeltaUpsert
from tidegate.sources.base import Source
from tidegate.sources.delta.source import DeltaTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


__all__ = ["QUARANTINE", "QuarantineSink", "quarantine_name", "with_origin"]

QUARANTINE = "quarantine."
"""Begins the names of quarantines among the tables of a plan. A dot is in no name that users give."""

_MARKED = "marked"
EVERY_FILE = 1_000_000_000


def quarantine_name(gate: str) -> str:
    """Under which name a gate's quarantine takes part in plans and manifests."""
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
    """Rows for quarantine, each with an id of its own, and where it came from.

    The checkpoint's number is looked up in an array, at a place that Spark cannot know beforehand: a plain one would be
    a part of the code that Spark generates, and compiles, for it.
    """
    from pyspark.sql import functions as f

    nothing = {name: f.lit(None).cast(_TYPES[name]) for name in (SETTLED, SETTLED_IN, SETTLED_BY)}
    place = f.monotonically_increasing_id()
    id = f.md5(f.concat(f.lit(staging.attempt), f.lit("-"), place.cast("string")))
    checkpoint = f.get(f.array(*[f.lit(staging.checkpoint).cast("long")] * 2), (place < 0).cast("int"))
    return rows.withColumns({ID: id, CHECKPOINT: checkpoint, STREAM: f.lit(stream), **nothing})


def _with_origin(apart: Iterable[pa.Table], staging: Staging, stream: str) -> Iterator[pa.Table]:
    """The same as `with_origin` for rows that are in this process."""
    import numpy as np
    import pyarrow as pa

    attempt = md5(staging.attempt.encode()).hexdigest()
    begin, end = np.uint64(int(attempt[:16], 16)), attempt[16:]
    done = 0
    for rows in apart:
        count = rows.num_rows
        places = np.arange(done, done + count, dtype=np.uint64) + begin
        said = mixed(places).astype(">u8").tobytes().hex()
        ids = [said[at : at + 16] + end for at in range(0, len(said), 16)]
        done += count
        own = {ID: pa.array(ids, pa.string()), CHECKPOINT: pa.repeat(pa.scalar(staging.checkpoint, pa.int64()), count)}
        own |= {STREAM: pa.repeat(stream, count), SETTLED: pa.nulls(count, pa.string())}
        own |= {SETTLED_IN: pa.nulls(count, pa.int64()), SETTLED_BY: pa.nulls(count, pa.string())}
        for name, column in own.items():
            rows = rows.append_column(name, column)
        yield rows


class QuarantineSink(ExactlyOnceSink):
    """The quarantine of one gate. Columns that rows get later are added; that is all its schema may change by."""

    kind: ClassVar[str] = "quarantine"

    def __init__(self, gate: str) -> None:
        self.gate = gate
        self.folder = f"quarantine/{gate}"

    def path(self, home: str) -> str:
        """Where the table lies, below the pipeline's own folder."""
        return f"{home}/{self.folder}"

    def _appending(self, context: SinkContext) -> DeltaAppend:
        return DeltaAppend(self.path(context.home), schema_evolution="add")

    def _marking(self, context: SinkContext) -> DeltaUpsert:
        """The same table, for rows that are there already: found by their ids, files written anew at publication."""
        return DeltaUpsert(self.path(context.home), keys=[ID], schema_evolution="add")

    def source(self, home: str) -> Source:
        """The table, to be read as of one version."""
        return DeltaTable(self.path(home), max_files=EVERY_FILE)

    def returning(self, rows: DataFrame, requests: list[Request], checkpoint: int) -> ReleasedRows:
        """Those of the table's rows that these requests are about."""
        return ReleasedRows(rows, requests, checkpoint)

    def rows(
        self, bad: DataFrame | None, frame: DataFrame, staging: Staging, stream: str, back: ReleasedRows | None
    ) -> DataFrame:
        """What is to be staged: new rows, and those that come back, marked.

        bad: None if there are none; `frame` has their columns, but for the rules.
        """
        from pyspark.sql import functions as f

        if bad is None:  # an interval that is made again replaces what it has set aside before, also by nothing
            bad = frame.where("false").withColumn(RULES, f.array().cast("array<string>"))
        rows = with_origin(bad, staging, stream)
        return rows.unionByName(back.marked(), allowMissingColumns=True) if back is not None else rows

    def prepare_apart(
        self, apart: Iterable[pa.Table], schema: Json, stream: str, context: SinkContext, staging: Staging
    ) -> Prepared:
        """The same as `prepare` for new rows that are in this process. schema: Spark's, without our columns."""
        rows = _with_origin(apart, staging, stream)
        own = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _TYPES.items()]
        fields = {"type": "struct", "fields": [*schema["fields"], *own]}
        return self._appending(context).prepare_rows(rows, fields, context, staging)

    def target(self, place: Place) -> str:
        return self.folder

    def stages_in(self, context: SinkContext) -> Location:
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
        """Stage new rows, and rows that are in the table, with what has become of them."""
        prepared = self._marking(context).prepare(frame, context, staging)
        return replace(prepared, committable={_MARKED: prepared.committable}) if prepared.committable else prepared

    def head(self, context: SinkContext) -> Head:
        return self._appending(context).head(context)

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        if not any(_MARKED in each for each in publication.committables):
            return self._appending(context).publish(publication, head, context)
        plain = tuple(each.get(_MARKED, each) for each in publication.committables)
        return self._marking(context).publish(replace(publication, committables=plain), head, context)

    def skipped(self, id: int, context: SinkContext) -> bool:
        return self._appending(context).skipped(id, context)

    def gone(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        return self._appending(context).gone([each.get(_MARKED, each) for each in committables], context)

    def way_back(
        self, to: int | None, known: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> WayBack:
        return self._marking(context).way_back(to, known, committables, context)

    def go_back(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        return self._marking(context).go_back(publication, head, context)

    def trace(self, committables: Sequence[Json]) -> Json:
        return DeltaAppend(self.folder).trace(committables)

    def holds(self, publication: Publication, head: Head, context: SinkContext) -> bool:
        return self._appending(context).holds(publication, head, context)

    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        return self._appending(context).locate(id, context)

    def verify(self, at: PublishedTable, context: SinkContext) -> None:
        self._appending(context).verify(at, context)

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        return self._appending(context).attempts(id, context)

    def discard(self, context: SinkContext, staging: Staging) -> None:
        self._appending(context).discard(context, staging)

    def replaces(self, committable: Json | None) -> bool:
        """Whether publishing it writes files of the table anew."""
        return bool(committable) and _MARKED in (committable or {})

    def retire_replaced(self, id: int, kept: Iterable[int], context: SinkContext) -> None:
        """Remove the files that the table had as of checkpoint `id` and has neither now nor as of those in `kept`."""
        snapshot = self._appending(context).open(context)
        then = _versions(snapshot, context.app_id, [id]) if snapshot is not None else None
        if snapshot is None or not then:
            return
        gone = _files(snapshot, then) - {file.path for file in live_files(snapshot)}
        others = _versions(snapshot, context.app_id, list(kept)) if gone else None
        if others is not None:  # nobody can tell: rather leave what nobody needs
            snapshot.location.remove_files(sorted(gone - _files(snapshot, others)))

    def retire(self, context: SinkContext, staging: Staging) -> None:
        """What publishers wrote that lost their race; of an append there is nothing."""
        if not context.by_interval:
            self._marking(context).retire(context, staging)


def _versions(snapshot: Snapshot, app_id: str, ids: Sequence[int]) -> set[int] | None:
    """The versions of the table as of these entries. None: commit files are gone, so nobody can tell."""
    found: set[int] = set()
    wanted = sorted(ids)
    for version in range(snapshot.version if wanted else -1, -1, -1):
        commit = read_commit(snapshot.location, version)
        if commit is None:
            return None
        last = commit.txn(app_id)
        while last is not None and wanted and wanted[-1] >= last:
            wanted.pop()
            found.add(version)
        if not wanted:
            break
    return found


def _files(snapshot: Snapshot, versions: Iterable[int]) -> set[str]:
    return {file.path for version in versions for file in live_files(version_of(snapshot, version))}
