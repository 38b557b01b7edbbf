"""The mark: one row for each sink, which names the last checkpoint that is in the table.

It is in the table `tidegate_published`, in the schema of the sink's table, and changes in the transaction that adds the
rows. A loader first locks it, so a second one waits, and then finds that somebody else was faster.
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
    "refuse_other_publishers",
    "refuse_other_table",
]

LOCK_SECONDS = 10
"""How long a loader waits for another one before it looks at what that one does."""
NO_CHECKPOINT: Final = 0
"""The number by which a person says that the table has no checkpoint."""
_ROUNDS: Final = 3


@dataclass(frozen=True)
class SinkMark:
    """What the mark of a sink says."""

    table_oid: int
    last: int | None
    kept_since: int | None
    """All that is needed to take back later checkpoints is kept since this one. None: nothing is kept."""
    undone: bool
    """Whether the checkpoint that was asked about has been taken back."""
    empty_by_hand: bool = False
    """True: somebody has said that the table has no checkpoint."""


def marks_of(table: TableName) -> TableName:
    """Return the table of marks in the schema of a sink's table."""
    return TableName(table.schema, "tidegate_published")


def history_of(table: TableName) -> TableName:
    """Return the table that keeps what upserts have replaced."""
    return TableName(table.schema, "tidegate_history")


def make_marks(database: Database, table: TableName, *, history: bool) -> None:
    """Make the table of marks, and that of the history if it is asked for, unless they exist."""
    marks, kept = marks_of(table), history_of(table)
    wanted = {marks: _MARKS, **({kept: _HISTORY} if history else {})}
    with database.session("making the table of marks") as session:
        for name, columns in wanted.items():
            if find_oid(session.cursor(), name) is not None:
                continue
            with session.transaction():
                session.execute("SELECT pg_advisory_xact_lock(hashtext('tidegate_published'))")
                session.execute(f"CREATE TABLE IF NOT EXISTS {name.sql} ({columns})".encode())
                if name is kept:
                    index = f"CREATE INDEX IF NOT EXISTS tidegate_history_at ON {kept.sql} (app_id, checkpoint)"
                    session.execute(index.encode())


def find_mark(cursor: Any, table: TableName, context: SinkContext, asked: int = 0) -> SinkMark | None:
    """Read the mark. None: there is none. asked: the checkpoint of which it is asked whether it was taken back."""
    if find_oid(cursor, marks_of(table)) is None:
        return None
    return _read(cursor, table, context, asked, "")


def refuse_other_publishers(
    cursor: Any, table: TableName, context: SinkContext, found: FoundTable | None, *, take_over: bool, alone: bool
) -> None:
    """Raise Invalid if a pipeline of this name with another uid publishes this sink to the table; alone: if any other
    sink publishes to it."""
    marks = marks_of(table)
    if find_oid(cursor, marks) is None:
        return
    cursor.execute(
        f"SELECT app_id, pipeline, sink FROM {marks.sql} WHERE table_name = {literal(table.name)} "
        f"AND app_id <> {literal(context.app_id)} AND table_oid = {found.oid if found is not None else 0}"
    )
    for app_id, pipeline, sink in cursor.fetchall():
        if (pipeline, sink) == (context.pipeline, context.sink) and not take_over:
            raise Invalid(
                f"{table} was published by another pipeline named {pipeline!r} (sink {sink!r}): its mark is "
                f"{app_id!r}, this one is {context.app_id!r}",
                expected="the pipeline that published here before, with its checkpoints",
                help="was the pipeline's root wiped or moved? Point it to the old root, use another table, or declare "
                "the sink with take_over=True: the old one's rows stay, and this one starts from the beginning",
                reason="OTHER_OWNER",
            )
        if alone and (pipeline, sink) != (context.pipeline, context.sink):
            raise Invalid(
                f"{table} is also published by sink {sink!r} of pipeline {pipeline!r}",
                expected="a table of its own for a sink with allow_rollback=True: a rollback takes rows out of it",
                help="use another table, or leave allow_rollback out",
                reason="SHARED_TABLE",
            )


def refuse_other_table(mark: SinkMark | None, found: FoundTable | None, table: TableName, context: SinkContext) -> None:
    """Raise Corrupt if the mark is about a table that no longer exists: there would be half of the rows in this one."""
    if mark is None or mark.last is None or (found is not None and found.oid == mark.table_oid):
        return
    marks = marks_of(table)
    raise Corrupt(
        f"{table} " + ("was dropped" if found is None else "is another table than the one") + " that sink "
        f"{context.sink!r} has published up to checkpoint {mark.last}",
        expected="the table with the rows of all these checkpoints",
        help="put it back, from a backup for example. If its rows are those of checkpoint "
        f"{mark.last} (renamed, restored together with its marks), say so: UPDATE {marks.sql} SET table_oid = "
        f"{literal(table.sql)}::regclass::oid::bigint WHERE app_id = {literal(context.app_id)}",
        reason="TABLE_DAMAGED",
    )


def lock_mark(
    cursor: Any, rollback: Callable[[], None], database: Database, table: TableName, context: SinkContext
) -> SinkMark:
    """Lock the mark until the end of the transaction, after making it if there is none.

    Another loader may hold it. One that makes no progress while we wait, because its process was stopped or its machine
    has gone, is ended: its transaction then never counts. Raise Unavailable if another one is at work.
    """
    before: dict[int, str] = {}
    for _ in range(_ROUNDS):
        cursor.execute(_SETTINGS.format(seconds=LOCK_SECONDS, name=literal(_session_name(context))))
        cursor.fetchall()
        try:
            cursor.execute(
                f"INSERT INTO {marks_of(table).sql} (app_id, pipeline, sink, table_name) VALUES ("
                f"{literal(context.app_id)}, {literal(context.pipeline)}, {literal(context.sink)}, "
                f"{literal(table.name)}) ON CONFLICT DO NOTHING"
            )
            mark = _read(cursor, table, context, 0, "FOR UPDATE")
        except Exception as error:
            if getattr(error, "sqlstate", None) != "55P03":
                raise
            rollback()
            before = _end_stalled(database, context, before)
            continue
        assert mark is not None
        return mark
    raise Unavailable(
        f"{table}: another publisher of sink {context.sink!r} holds the mark, and is at work",
        help="nothing to do: the next attempt finds what the other one has published",
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
    """Set the mark, which is locked. undone_after: checkpoints from this one on were taken back."""
    undone = f"+ int8multirange(int8range({undone_after}, {checkpoint}, '()'))" if undone_after is not None else ""
    oid = f", table_oid = {table_oid}" if table_oid is not None else ""
    cursor.execute(
        f"UPDATE {marks_of(table).sql} SET last = {checkpoint}, undone = undone {undone}{oid}, "
        f"kept_since = {'NULL' if kept_since is None else kept_since}, published_at = now() "
        f"WHERE app_id = {literal(context.app_id)}"
    )


def _read(cursor: Any, table: TableName, context: SinkContext, asked: int, lock: str) -> SinkMark | None:
    cursor.execute(
        f"SELECT json_build_object('table_oid', table_oid, 'last', last, 'kept_since', kept_since, "
        f"'undone', {asked}::bigint <@ undone)::text FROM {marks_of(table).sql} "
        f"WHERE app_id = {literal(context.app_id)} {lock}"
    )
    row = cursor.fetchone()
    if row is None:
        return None
    mark = SinkMark(**msgspec.json.decode(row[0]))
    return replace(mark, last=None, empty_by_hand=True) if mark.last == NO_CHECKPOINT else mark


def _session_name(context: SinkContext) -> str:
    return context.app_id[:63]


def _end_stalled(database: Database, context: SinkContext, before: dict[int, str]) -> dict[int, str]:
    """End the sessions of other loaders that stand where they stood before. Return where the others stand now."""
    with database.session("looking at other publishers") as session:
        now = {int(pid): str(where) for pid, where in session.execute(_WAITING, (_session_name(context),)).fetchall()}
        for pid, where in now.items():
            if before.get(pid) == where:
                session.execute("SELECT pg_terminate_backend(%s)", (pid,))
    return now


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

_WAITING: Final = """
SELECT a.pid, concat(a.xact_start, ' ', a.query_start, ' ', p.bytes_processed)
FROM pg_stat_activity a LEFT JOIN pg_stat_progress_copy p USING (pid)
WHERE a.application_name = %s AND a.datname = current_database() AND a.usename = current_user
  AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL AND a.wait_event = 'ClientRead'
"""
