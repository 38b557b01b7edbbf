"""The mark of a sink: a row with the last checkpoint that is in the sink's table.

It is in the table `tidegate_published`, in the schema of the sink's table, and is updated in the transaction that
publishes the rows. A publisher first locks the mark, so a second one waits, and then sees that the first was faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tidegate.connectors.postgres import Database, FoundTable, TableName, find_oid, literal
from tidegate.connectors.sink import SinkContext
from tidegate.errors import Corrupt, Invalid, Unavailable

__all__ = [
    "NO_CHECKPOINT",
    "SinkMark",
    "find_mark",
    "history_of",
    "lock_mark",
    "make_marks",
    "marks_of",
    "move_mark",
    "refuse_replaced_table",
    "refuse_second_publisher",
]

LOCK_SECONDS = 10
"""How long a publisher waits for another one before it checks whether that one makes progress."""
NO_CHECKPOINT: Final = 0
"""The number with which a person declares that the table has no checkpoint."""
_ROUNDS: Final = 3


@dataclass(frozen=True)
class SinkMark:
    """The content of a sink's mark."""

    table_oid: int
    last: int | None
    kept_since: int | None
    """All checkpoints after this one can be undone. None: nothing is kept for that."""
    undone: bool
    """Whether the checkpoint that `find_mark` was called with has been undone."""
    empty_by_hand: bool = False
    """Whether a person has declared that the table has no checkpoint."""


def marks_of(table: TableName) -> TableName:
    """Return the table of marks in the schema of a sink's table."""
    return TableName(table.schema, "tidegate_published")


def history_of(table: TableName) -> TableName:
    """Return the table with the rows that upserts have replaced."""
    return TableName(table.schema, "tidegate_history")


def make_marks(database: Database, table: TableName, *, history: bool) -> None:
    """Create the table of marks, and the table of the history if `history` is set, unless they exist."""
    history_table = history_of(table)
    tables = {marks_of(table): _MARKS}
    if history:
        tables[history_table] = _HISTORY
    with database.session("creating the table of marks") as session:
        for name, columns in tables.items():
            if find_oid(session.cursor(), name) is not None:
                continue
            with session.transaction():
                session.execute("SELECT pg_advisory_xact_lock(hashtext('tidegate_published'))")
                session.execute(f"CREATE TABLE IF NOT EXISTS {name.sql} ({columns})".encode())
                if name is history_table:
                    index = f"CREATE INDEX IF NOT EXISTS tidegate_history_at ON {name.sql} (app_id, checkpoint)"
                    session.execute(index.encode())


def find_mark(cursor: Any, table: TableName, context: SinkContext, checkpoint: int = 0) -> SinkMark | None:
    """Return the mark, or None if there is none. checkpoint: the one that `undone` is about."""
    if find_oid(cursor, marks_of(table)) is None:
        return None
    return _read_mark(cursor, table, context, checkpoint, "")


def refuse_second_publisher(
    cursor: Any, table: TableName, context: SinkContext, existing: FoundTable | None, *, take_over: bool, alone: bool
) -> None:
    """Raise Invalid if another pipeline with this name publishes this sink to the table.

    alone: also raise Invalid if any other sink publishes to it.
    """
    marks = marks_of(table)
    if find_oid(cursor, marks) is None:
        return
    table_oid = existing.oid if existing is not None else 0
    cursor.execute(
        f"SELECT app_id, pipeline, sink FROM {marks.sql} WHERE table_name = {literal(table.name)} "
        f"AND app_id <> {literal(context.app_id)} AND table_oid = {table_oid}"
    )
    for app_id, pipeline, sink in cursor.fetchall():
        if (pipeline, sink) == (context.pipeline, context.sink) and not take_over:
            raise Invalid(
                f"{table} was published by another pipeline named {pipeline!r} (sink {sink!r}): its mark is "
                f"{app_id!r}, this one is {context.app_id!r}",
                expected="the pipeline that published here before, with its checkpoints",
                help="was the pipeline's root wiped or moved? Point it to the old root, use another table, or declare "
                "the sink with take_over=True: the old pipeline's rows stay, and this one starts from the beginning",
                reason="OTHER_OWNER",
            )
        if alone and (pipeline, sink) != (context.pipeline, context.sink):
            raise Invalid(
                f"{table} is also published by sink {sink!r} of pipeline {pipeline!r}",
                expected="no other sink on the table of a sink with allow_rollback=True: a rollback removes rows",
                help="use another table, or remove allow_rollback",
                reason="SHARED_TABLE",
            )


def refuse_replaced_table(
    mark: SinkMark | None, existing: FoundTable | None, table: TableName, context: SinkContext
) -> None:
    """Raise Corrupt if the mark is of a table that no longer exists, whose rows this one would lack."""
    if mark is None or mark.last is None or (existing is not None and existing.oid == mark.table_oid):
        return
    marks = marks_of(table)
    if existing is None:
        problem = f"{table}, to which sink {context.sink!r} has published up to checkpoint {mark.last}, was dropped"
    else:
        problem = f"{table} is not the table to which sink {context.sink!r} has published up to checkpoint {mark.last}"
    raise Corrupt(
        problem,
        expected="the table with the rows of all these checkpoints",
        help="restore it, for example from a backup. If the table has the rows of checkpoint "
        f"{mark.last}, because it was renamed or restored together with its marks: UPDATE {marks.sql} SET table_oid = "
        f"{literal(table.sql)}::regclass::oid::bigint WHERE app_id = {literal(context.app_id)}",
        reason="TABLE_DAMAGED",
    )


def lock_mark(
    cursor: Any, rollback: Callable[[], None], database: Database, table: TableName, context: SinkContext
) -> SinkMark:
    """Lock the mark until the end of the transaction. Create it if there is none.

    Another publisher may have locked it. If that one makes no progress, because its process was stopped or its machine
    is gone, its session is terminated, so that its transaction never commits. Raise Unavailable if it makes progress.
    """
    progress: dict[int, str] = {}
    for _ in range(_ROUNDS):
        cursor.execute(_SETTINGS.format(seconds=LOCK_SECONDS, name=literal(_session_name(context))))
        cursor.fetchall()
        try:
            cursor.execute(
                f"INSERT INTO {marks_of(table).sql} (app_id, pipeline, sink, table_name) VALUES ("
                f"{literal(context.app_id)}, {literal(context.pipeline)}, {literal(context.sink)}, "
                f"{literal(table.name)}) ON CONFLICT DO NOTHING"
            )
            mark = _read_mark(cursor, table, context, 0, "FOR UPDATE")
        except Exception as error:
            if getattr(error, "sqlstate", None) != "55P03":
                raise
            rollback()
            progress = _terminate_stalled(database, context, progress)
            continue
        assert mark is not None
        return mark
    raise Unavailable(
        f"{table}: another publisher of sink {context.sink!r} has locked the mark, and makes progress",
        help="nothing to do: the next attempt sees what the other publisher has done",
        reason="DATABASE_BUSY",
    )


def move_mark(
    cursor: Any,
    table: TableName,
    context: SinkContext,
    checkpoint: int,
    *,
    table_oid: int | None,
    kept_since: int | None,
    undone_after: int | None,
) -> None:
    """Update the locked mark. undone_after: the checkpoints after this one have been undone."""
    changes = [f"last = {checkpoint}", f"kept_since = {'NULL' if kept_since is None else kept_since}"]
    if undone_after is not None:
        changes.append(f"undone = undone + int8multirange(int8range({undone_after}, {checkpoint}, '()'))")
    if table_oid is not None:
        changes.append(f"table_oid = {table_oid}")
    cursor.execute(
        f"UPDATE {marks_of(table).sql} SET {', '.join(changes)}, published_at = now() "
        f"WHERE app_id = {literal(context.app_id)}"
    )


def _read_mark(cursor: Any, table: TableName, context: SinkContext, checkpoint: int, lock: str) -> SinkMark | None:
    cursor.execute(
        f"SELECT json_build_object('table_oid', table_oid, 'last', last, 'kept_since', kept_since, "
        f"'undone', {checkpoint}::bigint <@ undone)::text FROM {marks_of(table).sql} "
        f"WHERE app_id = {literal(context.app_id)} {lock}"
    )
    row = cursor.fetchone()
    if row is None:
        return None
    mark = SinkMark(**msgspec.json.decode(row[0]))
    if mark.last == NO_CHECKPOINT:
        return replace(mark, last=None, empty_by_hand=True)
    return mark


def _session_name(context: SinkContext) -> str:
    return context.app_id[:63]


def _terminate_stalled(database: Database, context: SinkContext, before: dict[int, str]) -> dict[int, str]:
    """Terminate other publishers' sessions whose progress is as before. Return the progress of each session."""
    with database.session("checking other publishers") as session:
        progress = {}
        for pid, state in session.execute(_PROGRESS, (_session_name(context),)).fetchall():
            progress[int(pid)] = str(state)
        for pid, state in progress.items():
            if before.get(pid) == state:
                session.execute("SELECT pg_terminate_backend(%s)", (pid,))
    return progress


_MARKS: Final = """
  app_id text PRIMARY KEY,
  pipeline text NOT NULL,
  sink text NOT NULL,
  table_name text NOT NULL,
  table_oid bigint NOT NULL DEFAULT 0,
  last bigint,
  kept_since bigint,
  undone int8multirange NOT NULL DEFAULT '{}',
  published_at timestamptz
"""

_HISTORY: Final = """
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  app_id text NOT NULL,
  checkpoint bigint NOT NULL,
  key jsonb NOT NULL,
  before jsonb,
  after text
"""

_SETTINGS: Final = """
SELECT set_config('lock_timeout', '{seconds}s', true),
  set_config('statement_timeout', '0', true),
  set_config('idle_in_transaction_session_timeout', '60s', true),
  set_config('tcp_keepalives_idle', '30', true),
  set_config('tcp_user_timeout', '60s', true),
  set_config('application_name', {name}, true),
  set_config('synchronous_commit',
    CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
      ELSE current_setting('synchronous_commit') END, true)
"""

_PROGRESS: Final = """
SELECT a.pid, concat(a.xact_start, ' ', a.query_start, ' ', p.bytes_processed)
FROM pg_stat_activity a LEFT JOIN pg_stat_progress_copy p USING (pid)
WHERE a.application_name = %s AND a.datname = current_database() AND a.usename = current_user
  AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL AND a.wait_event = 'ClientRead'
"""
