"""Errors of tables that contradict the log, or are busy: for the trigger, publishers, rollbacks and `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.checkpoint.located import located
from tidegate.connectors.sink import Head
from tidegate.connectors.transactional import TransactionalSink
from tidegate.errors import Corrupt, Invalid, TidegateError, Unavailable
from tidegate.protocol.view import Entry, View
from tidegate.records.records import PublishedTable

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.pipeline.graph.graph import SinkNode

__all__ = [
    "MAX_LOST_RACES",
    "TABLE_GONE",
    "busy_table_error",
    "deleted_table_error",
    "mismatch_error",
    "missing_table_error",
    "was_published",
]

TABLE_GONE = "TABLE_GONE"
MAX_LOST_RACES = 100
"""After losing this many races for its next version, a table is left to the next publisher or attempt."""


def busy_table_error(sink: str, races: int, retried: str = "it is retried at the next checkpoint") -> Unavailable:
    """Return the error for a table whose next version other writers have always taken first."""
    return Unavailable(
        f"sink {sink!r} lost {races} races for its table's next version",
        help=f"another writer commits to the table without a pause; {retried}",
        reason="BUSY_TABLE",
    )


def _fresh_start_advice(table: str, to: int | None) -> str:
    """Return how to start with an empty table, or "" if that does not help. to: the last completed checkpoint, if a
    rollback to it is possible."""
    if to is None or "." in table:  # a state or a quarantine
        return ""
    return (
        f"; or, if its rows are not needed, let it start empty: `tidegate rollback MODULE:PIPELINE --to {to} "
        f"--leave {table}`, then resume the pipeline if it is suspended"
    )


def deleted_table_error(sink: str, uri: str, id: int, version: int, to: int | None) -> Corrupt:
    """Return the error for a table that was published to and no longer exists: deleted by hand, for example."""
    return Corrupt(
        f"table {sink!r}, {uri}, is missing: checkpoint {id} was published there, as version {version}",
        expected="the table as tidegate left it",
        help=f"put it back from a copy, all of it{_fresh_start_advice(sink, to)}",
        reason=TABLE_GONE,
    )


def missing_table_error(pipeline: PipelineContext, view: View, sinking: SinkNode, head: Head) -> Corrupt | None:
    """Return the error if a table was published to and no longer exists. None if it exists, or was never published
    to."""
    if head.version is not None:
        return None
    location = sinking.sink.delta_table(pipeline.context(sinking.name))
    if location is not None:
        target = location.url
    else:
        target = sinking.sink.target(pipeline.place)
    for entry in reversed(view.entries):
        table = _published_table(pipeline, entry, sinking.name)
        if table is not None and table.is_delta and table.uri == target:
            return deleted_table_error(sinking.name, target, entry.id, table.version, _rollback_target(view))
    return None


def mismatch_error(pipeline: PipelineContext, view: View, sinking: SinkNode, head: Head, why: str) -> TidegateError:
    """Return the error for a table at `head` that contradicts the log: it is missing, it has a new path, or it is
    damaged.

    If the table has no commit of the pipeline, and is not the one that was published to before, the code is wrong and
    nothing is damaged.
    """
    missing = missing_table_error(pipeline, view, sinking, head)
    if missing is not None:
        return missing
    target = sinking.sink.target(pipeline.place)
    published = (_published_uri(pipeline, entry, sinking.name) for entry in reversed(view.entries))
    before = next(filter(None, published), None)
    if head.last_entry is None and before is not None and before != target and sinking.name in pipeline.graph.sinks:
        return Invalid(
            f"sink {sinking.name!r} has published to {before} so far; {target} has none of that",
            expected=f"the table that it published to before: {before}",
            help="put its path back; if the table was moved, move all of it; for another table give the sink another "
            "name",
            reason="SINK_TABLE_CHANGED",
        )
    remedies = ""
    if isinstance(sinking.sink, TransactionalSink) and sinking.sink.can_set_mark:
        command = f"tidegate mark MODULE:PIPELINE --sink {sinking.name}"
        remedies += f"; if only its mark was lost, `{command}` puts it back, with --last"
    if head.last_entry is None:
        remedies += _fresh_start_advice(sinking.name, _rollback_target(view))
    return Corrupt(
        f"the target of sink {sinking.name!r} and the log contradict each other: {why}",
        expected="the table as tidegate left it",
        help=(
            "the table was dropped, recreated, replaced or restored from elsewhere, or the ledger was: restore the one "
            f"that is wrong from a copy; `tidegate doctor` shows both{remedies}"
        ),
        reason="TABLE_DAMAGED",
    )


def was_published(pipeline: PipelineContext, entry: Entry, table: str) -> bool:
    """Return whether the entry's hint for readers lists the table."""
    return _published_table(pipeline, entry, table) is not None


def _rollback_target(view: View) -> int | None:
    """Return the last completed checkpoint if a rollback to it is possible. Intervals are independent and have none."""
    last = view.last_completed
    if last is not None and not last.plan.by_interval:
        return last.id
    return None


def _published_uri(pipeline: PipelineContext, entry: Entry, name: str) -> str | None:
    table = _published_table(pipeline, entry, name)
    return table.uri if table is not None else None


def _published_table(pipeline: PipelineContext, entry: Entry, table: str) -> PublishedTable | None:
    """Return the table as published for readers, at its present location."""
    published = pipeline.ledger.published(entry.id) if entry.completed else None
    if published is None or table not in published.tables:
        return None
    return located(published, pipeline.ledger, pipeline.place).tables[table]
