"""Functions for notebooks and scripts: read tables and state as of a checkpoint, bootstrap operators, edit state.

    from tidegate import offline

    offline.read(spark, "orders", "revenue", checkpoint=42)          # a sink's table, as a DataFrame
    offline.read_arrow("orders", "revenue", checkpoint=42)           # the same without Spark, as an Arrow table
    offline.read_state(spark, "orders", "totals")                    # the state of an operator: a row per key
    offline.bootstrap(pipeline, spark, "totals", {"paid": history})  # as if these rows had arrived before
    offline.edit_state(pipeline, spark, "totals", lambda rows: rows.where("customer_id <> 7"))

Functions that only read need the name of a pipeline. Those that change something need the `Pipeline` itself, and make a
checkpoint of the change, which is atomic like every checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.checkpoint.located import located
from tidegate.config import Settings, load_settings
from tidegate.delta import Location, Snapshot, open_table
from tidegate.delta.dataset import dataset
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.ledger.refusals import (
    how_to_make_one,
    no_checkpoint_error,
    no_such_sink,
    no_such_state,
    without_versions,
)
from tidegate.records import typed
from tidegate.records.names import check_name
from tidegate.records.place import Place
from tidegate.records.records import Published, PublishedTable
from tidegate.state.record import StateTable
from tidegate.state.table import STATE, expired_name, view_sql

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.coordinator import Coordinator
    from tidegate.pipeline import Pipeline
    from tidegate.pipeline.graph.graph import Graph

__all__ = [
    "State",
    "bootstrap",
    "edit_state",
    "open_as_of",
    "published_as_of",
    "read",
    "read_arrow",
    "read_state",
    "refuse_discarded",
    "states_of",
]

_VERSIONS = "tidegate_versions_of_this_state"
"""Placeholder for the table in SQL, until it is registered in Spark."""


def read(spark: SparkSession, pipeline: str, sink: str, checkpoint: int | None = None) -> DataFrame:
    """Return a sink's table as of a checkpoint, as a DataFrame.

    pipeline: the pipeline's name.
    sink: the sink's name.
    checkpoint: the checkpoint's number. The default is the last published one.
    """
    return _version(spark, _table_of(pipeline, sink, checkpoint, load_settings()))


def read_arrow(pipeline: str, sink: str, checkpoint: int | None = None) -> pa.Table:
    """Return the same rows as an Arrow table in memory. This needs neither Spark nor any extra of tidegate."""
    settings = load_settings()
    table = _table_of(pipeline, sink, checkpoint, settings)
    return dataset(open_as_of(table, settings.storage_options)).to_table()


def _table_of(pipeline: str, sink: str, checkpoint: int | None, settings: Settings) -> PublishedTable:
    """Return the location of a sink's table, and its version as of a checkpoint."""
    ledger = _ledger(pipeline, settings)
    published = published_as_of(ledger, settings.place(), checkpoint)
    table = published.tables.get(sink)
    if table is None:
        raise no_such_sink(pipeline, sink, published.id, published.tables, help="name a sink of the pipeline")
    if not table.is_delta:
        raise without_versions(sink, table)
    return table


def read_state(spark: SparkSession, pipeline: str, operator: str, checkpoint: int | None = None) -> DataFrame:
    """Return the state of an operator as of a checkpoint, as a DataFrame with a row for each key.

    operator: the operator's uid, or `uid.part` if it has several states.
    checkpoint: the checkpoint's number. The default is the last published one.
    """
    settings = load_settings()
    ledger = _ledger(pipeline, settings)
    published = published_as_of(ledger, settings.place(), checkpoint)
    states = states_of(ledger, published)
    if operator not in states:
        when = f"as of checkpoint {published.id}"
        raise no_such_state(pipeline, operator, when, states, help="operators are named by their uid")
    refuse_discarded(ledger, published.id)
    state = states[operator]
    sql = state.view(_VERSIONS).replace("{", "{{").replace("}", "}}")  # names of columns may have braces
    return spark.sql(sql.replace(_VERSIONS, "{versions}"), versions=_version(spark, state.table))


def bootstrap(pipeline: Pipeline, spark: SparkSession, operator: str, rows: DataFrame | Mapping[str, DataFrame]) -> int:
    """Feed rows to an operator as if they had arrived on its inputs, and return the checkpoint that does this.

    The operator's output for them is dropped, unless it retracts rows, as an aggregate does. Then it is passed
    downstream, where a later retraction must find the rows that it is about.

    operator: the operator's uid.
    rows: a DataFrame, or one for each input, by the name of the stream.
    """
    from tidegate.execution.by_hand import editing

    coordinator = _coordinator(pipeline, spark)
    if not isinstance(rows, Mapping):
        inputs = next((stage.inputs for stage in coordinator.graph.stages if stage.name == operator), ("",))
        rows = {inputs[0]: rows}
    return editing.bootstrap(coordinator, spark, operator, rows).id


def edit_state(
    pipeline: Pipeline, spark: SparkSession, operator: str, change: Callable[[DataFrame], DataFrame], part: str = ""
) -> int:
    """Replace the state of an operator with `change(rows)`. Keys that it does not return are removed.

    If the operator replaces rows (an aggregate …), the changes in them are passed on to operators and tables; rows that
    were emitted for good stay. Expired rows are not passed to `change`, and unchanged ones keep their time of expiry.
    Return the checkpoint that does this.
    """
    from tidegate.execution.by_hand import editing

    return editing.edit_state(_coordinator(pipeline, spark), spark, operator, change, part).id


# -- as of a checkpoint --------------------------------------------------------------------------------


def refuse_discarded(ledger: Ledger, id: int) -> None:
    """Raise Rejected if the states of checkpoint `id` were deleted by a final cancel."""
    discarded = ledger.discarded()
    if discarded is not None and discarded.id == id:
        raise Rejected(
            f"the states of pipeline {ledger.pipeline!r} are removed: it was cancelled for good, by entry "
            f"{discarded.control} of its log",
            expected="a checkpoint that a savepoint names" if ledger.pins() else "an active pipeline",
            help=f"`tidegate savepoint list {ledger.pipeline}` shows what is left",
            reason="RETIRED",
        )


@dataclass(frozen=True)
class State:
    """One keyed state as of a checkpoint."""

    name: str
    """The operator's uid, and the part after a dot if it has several."""
    table: PublishedTable
    record: StateTable
    expired: int | None = None
    """Rows written up to this time, in microseconds since 1970, have expired as of the checkpoint."""

    def view(self, source: str, *, where: str | None = None, quote: str = "`") -> str:
        """Return the query for its rows from its table (`source`): a row for each existing key."""
        return view_sql(self.record, source, where=where, quote=quote, expired=self.expired)

    @property
    def columns(self) -> list[str]:
        """The columns: keys first, then the values."""
        return self.record.shown


def published_as_of(ledger: Ledger, place: Place, id: int | None, graph: Graph | None = None) -> Published:
    """Return the tables as of checkpoint `id`. The default is the last one that is published to all of them.

    graph: the pipeline's code, if available."""
    return located(_published(ledger, id), ledger, place, graph)


def _published(ledger: Ledger, id: int | None) -> Published:
    name = ledger.pipeline
    if id is None:
        for candidate in reversed(ledger.ids()):
            published = ledger.published(candidate)
            if published is not None:
                return published
        raise Rejected(f"pipeline {name!r} has published nothing yet", help=how_to_make_one(ledger))
    entry = ledger.entry(id)
    if entry is None:
        raise no_checkpoint_error(ledger, id)
    published = ledger.published(id)
    if published is not None:
        return published
    if entry.open:
        state = "is not decided yet"
    elif entry.aborted:
        state = "was aborted"
    else:
        state = "is not on all tables yet"
    raise Rejected(
        f"checkpoint {id} of {name!r} {state}",
        expected="a checkpoint that is completed and published",
        help=f"tidegate explain {name} {id}",
        reason="NOT_PUBLISHED",
    )


def states_of(ledger: Ledger, published: Published) -> dict[str, State]:
    """Return all keyed states as of a checkpoint, by operator and part."""
    records = dict(_records(ledger, published.id))
    return {
        name.removeprefix(STATE): State(name.removeprefix(STATE), table, *records[name])
        for name, table in sorted(published.tables.items())
        if name in records
    }


def _records(ledger: Ledger, id: int) -> Iterator[tuple[str, tuple[StateTable, int | None]]]:
    """Yield the record of each state from the checkpoint's acks, and the time up to which its rows have expired."""
    entry = ledger.entry(id)
    if entry is None or entry.manifest is None:
        return
    for job, handle in entry.manifest.jobs.items():
        ack = ledger.chosen_ack(handle, job)
        for name, payload in ack.states.items():
            uid, _, part = name.removeprefix(STATE).partition(".")
            expired = ack.memory.get(expired_name(uid), {}).get(part)
            yield name, (typed.convert(ledger.unpack(payload), StateTable), expired)


def open_as_of(table: PublishedTable, options: Mapping[str, str]) -> Snapshot:
    """Return the table at the published version. Raise Corrupt if its commit has changed."""
    snapshot = open_table(Location(table.uri, options), table.version)
    if snapshot is None or snapshot.log_hash != table.log_hash:
        if snapshot is None:
            state = "is gone"
        else:
            state = f"is not the one that was published as version {table.version}"
        raise Corrupt(
            f"the table {table.uri} {state}",
            expected=f"version {table.version} with log hash {table.log_hash[:16]}…",
            help="it was dropped, made again or put back from a copy; `tidegate doctor` shows all that differs. If the "
            "project was moved: move its tables along, and name it as MODULE:PIPELINE, whose code says where they lie",
            reason="TABLE_DAMAGED",
        )
    return snapshot


def _version(spark: SparkSession, table: PublishedTable) -> DataFrame:
    open_as_of(table, load_settings().storage_options)
    return spark.read.format("delta").option("versionAsOf", table.version).load(table.uri)


def _ledger(pipeline: str, settings: Settings) -> Ledger:
    ledger = open_ledger(settings.root, check_name("pipeline", pipeline), settings.storage_options)
    if ledger.identity() is None:
        raise Invalid(
            f"there is no pipeline {pipeline!r} in {settings.root}",
            expected="a pipeline that has been run, by its name",
            help="`tidegate list` shows what is there; `tidegate config` shows where `root` comes from",
            reason="NO_SUCH_PIPELINE",
        )
    return ledger


def _coordinator(pipeline: Pipeline, spark: SparkSession) -> Coordinator:
    from tidegate.execution.opening import open_coordinator

    coordinator, _ = open_coordinator(pipeline, ".")
    coordinator.spark = lambda: spark
    return coordinator
