"""A source of rows that are only ever added to a table of PostgreSQL.

A row carries the id of the transaction that added it. A plan ends before the oldest transaction that is still running:
everything below is decided forever, so a range reads the same rows again, and no late commit can add to it. Ordering
by a sequence or a time cannot promise that, since numbers and times are taken before the commit.

A range ends right after the last transaction that has rows in it, not at the oldest that is running: a server that has
this transaction's rows has nothing new before it, even if it is a copy from before other transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from tidegate.connectors.postgres import (
    Database,
    FoundTable,
    TableName,
    connection_problems,
    find_table,
    quoted_name,
    table_problems,
)
from tidegate.connectors.postgres.columns import (
    SAME_TEXT,
    ReadColumn,
    as_text_problems,
    ddl_of,
    frame_of,
    planned_columns,
    read_columns,
    recorded,
    refuse_other_columns,
    unreadable_values,
)
from tidegate.connectors.postgres.history import (
    ServerHistory,
    find_history,
    nothing_read_error,
    nothing_to_accept_error,
    older_copy,
    refuse_other_timeline,
)
from tidegate.connectors.source import Planned, Source, SourceContext, is_at_least
from tidegate.errors import Invalid
from tidegate.records.place import Place
from tidegate.records.records import Amount, Json, Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PostgresTable"]

_NEW_XID: Final = "pg_current_xact_id()"
_COUNTED: Final = 100_000
"""Of more rows that wait, the number is an estimate."""
_DIGESTS: Final = 10**9
"""How many there are: enough to tell rows from others, and few, so that a position tells little of what they hold."""


class PostgresTable(Source):
    """Rows that are added to a table of PostgreSQL, and never changed or deleted.

    PostgresTable("events", connection="shop", xid_column="xid")

    It needs a column that holds the id of the transaction that adds a row, and an index that begins with it:

        ALTER TABLE events ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
        CREATE INDEX ON events (xid);

    Every row is read exactly once, however long its transaction ran, if rows are only added, and nobody writes that
    column. A transaction that runs for long, anywhere on the server, delays what came after it; it loses nothing. A
    row of a planned range that is gone when it is read fails the checkpoint. For updates and deletes: PostgresChanges.

    table: the table's name, as it is written, with its schema if that is not public.
    connection: a name of the setting `connections`, whose options are those of libpq (host, port, dbname, user …).
    xid_column: the column with the transaction's id.
    columns: the columns to read. None: all but xid_column, as the table has them at each plan.
    as_text: columns to read as PostgreSQL writes them, for values that Spark cannot hold, such as 'infinity'.
    start: "beginning": first all rows that are there; "latest": only those of transactions that are committed after
        the first look.
    max_rows: the bound of one checkpoint. One transaction is never divided.
    """

    kind = "postgres-table"
    can_stop = True
    unit = "rows"

    def __init__(
        self,
        table: str,
        *,
        connection: str,
        xid_column: str,
        columns: Sequence[str] | None = None,
        as_text: Sequence[str] = (),
        start: Literal["beginning", "latest"] = "beginning",
        max_rows: int = 1_000_000,
    ) -> None:
        self.table = table
        self.connection = connection
        self.xid_column = xid_column
        self.columns = list(columns) if columns is not None else None
        self.as_text = as_text if isinstance(as_text, str) else list(as_text)
        self.start = start
        self.max_rows = max_rows

    def describe(self) -> Json:
        return {"kind": self.kind, **vars(self)}

    def shared_uri(self, place: Place) -> str | None:
        return Database.of(place, self.connection).shared_uri(self.table_name)

    def problems(self) -> list[str]:
        problems = table_problems(self.table) + connection_problems(self.connection)
        if not isinstance(self.xid_column, str) or not self.xid_column:
            problems.append(f"xid_column is {self.xid_column!r}; it must be the name of a column")
        if self.columns is not None and (not self.columns or len(set(self.columns)) < len(self.columns)):
            problems.append(f"columns is {self.columns!r}; it must name columns, each once")
        problems += as_text_problems(self.as_text)
        if self.start not in ("beginning", "latest"):
            problems.append(f"start is {self.start!r}; it must be 'beginning' or 'latest'")
        if isinstance(self.max_rows, bool) or not isinstance(self.max_rows, int) or self.max_rows < 1:
            problems.append(f"max_rows is {self.max_rows!r}; it must be a whole number, at least 1")
        return problems

    @property
    def table_name(self) -> TableName:
        """The table, with its schema."""
        return TableName.of(self.table)

    def beginning(self, context: SourceContext) -> Json | None:
        if self.start != "latest":
            return None
        with self._database(context).session("looking at the table") as session:
            cursor = session.cursor()
            found, history = self._find_table(cursor, context), find_history(cursor, context.source, self.connection)
            snapshot = _snapshot(cursor)
            _flush(cursor)
        return history.json | {"table": found.oid, "xid": int(snapshot.split(":")[0]), "seen": snapshot}

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        return is_at_least(position, other, "xid", "system", "table")

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        with self._database(context).session("planning") as session:
            cursor = session.cursor()
            found, history = self._find_table(cursor, context), find_history(cursor, context.source, self.connection)
            wanted = (
                self.columns
                if self.columns is not None
                else [name for name in found.columns if name != self.xid_column]
            )
            columns = read_columns(self.table_name, found, wanted, self.as_text)
            if start is not None:
                self._refuse_other_table(start, found, history, context)
                refuse_other_timeline(context.source, history, start, unread="last" not in start)
            first, horizon = int(start["xid"]) if start is not None else 0, _horizon(cursor)
            if horizon < first:
                raise self._other_table_error(context)  # an older copy, whose transactions have the same ids once more
            if start is not None:
                self._refuse_older_copy(cursor, start, found, history, context)
            if context.stop_position is not None:
                horizon = max(first, min(horizon, int(context.stop_position["xid"])))
            seen = start.get("seen", "") if start is not None else ""
            bound = context.bound(self.max_rows) or 1
            before = self._end(cursor, first, horizon, seen, bound)
            rows = self._count(cursor, first, before, seen)
            waiting = self._waiting(cursor, before, horizon, seen) if before < horizon else 0
            last = self._last(cursor, first, before, seen, columns) if rows else None
        position: Json | None = start
        if last is not None:
            position = history.json | {"table": found.oid, "xid": last["xid"] + 1, "last": last} | _still(seen, last)
        if position is not None and context.stop_position is not None and before == int(context.stop_position["xid"]):
            position = position | {"xid": before}  # as far as the one who set this end went
        return Planned(
            end=position,
            splits={
                **history.json,
                "table": found.oid,
                "first": first,
                "end": last["xid"] + 1 if last is not None else first,
                "rows": rows,
                "columns": recorded(columns),
                **({"last": last, "seen": seen} if last is not None else {}),
            },
            is_empty=not rows,
            has_more=before < horizon,
            summary=f"{rows:,} rows" if rows else "no new rows",
            amount=rows,
            lag=Lag(rows=waiting),
        )

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        with self._database(context).session("verifying the range") as session:
            cursor = session.cursor()
            found, history = self._find_table(cursor, context), find_history(cursor, context.source, self.connection)
            self._refuse_other_table(splits, found, history, context)
            refuse_other_timeline(context.source, history, splits)
            columns = planned_columns(splits["columns"], self.as_text)
            refuse_other_columns(context.source, self.table_name, found, columns)
            self._refuse_older_copy(cursor, splits, found, history, context)
            self._refuse_unreadable(cursor, columns, splits, context)
            rows = self._count(cursor, splits["first"], splits["end"], splits.get("seen", ""))
            self._refuse_difference(rows, splits, context)
        return Amount(rows=splits["rows"])

    def accept(self, position: Json, context: SourceContext, *, unproven: bool = False) -> Json:
        """See Source: a standby that was promoted, or a database that was restored to an earlier time."""
        with self._database(context).session("looking for what was read last") as session:
            cursor = session.cursor()
            found, history = self._find_table(cursor, context), find_history(cursor, context.source, self.connection)
            self._refuse_other_table(position, found, history, context)
            if _horizon(cursor) < int(position["xid"]):
                raise self._other_table_error(context)
            if unproven:
                position = {name: value for name, value in position.items() if name != "last"}
            else:
                self._refuse_older_copy(cursor, position, found, history, context)
                if position.get("timeline", history.timeline) == history.timeline:
                    raise nothing_to_accept_error(context.source, history)
                if "last" not in position:
                    raise nothing_read_error(context.source)
        return position | history.json

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        import pyarrow as pa

        columns = planned_columns(splits["columns"], self.as_text)
        schema = pa.schema([(column.name, column.arrow) for column in columns])
        selected = ", ".join(column.selected for column in columns)
        query = f"SELECT {selected} FROM {self.table_name.sql} WHERE {self._of(splits)}"
        rows = schema.empty_table()
        if splits["rows"]:
            with self._database(context).transaction("reading the range") as (_, cursor):
                cursor.execute(SAME_TEXT)
                cursor.fetchall()
                cursor.execute(query)
                rows = cursor.fetch_arrow_table().cast(schema)
            self._refuse_difference(rows.num_rows, splits, context)
        return frame_of(spark, rows, ddl_of(columns))

    # --- looking --------------------------------------------------------------------------------------------

    def _database(self, context: SourceContext) -> Database:
        return Database.of(context.place, self.connection)

    def _find_table(self, cursor: Any, context: SourceContext) -> FoundTable:
        """Return the table. Raise Invalid if ranges of it could not be read again."""
        table, found = self.table_name, find_table(cursor, self.table_name)
        name = quoted_name(self.xid_column)
        if found is None:
            raise Invalid(
                f"source {context.source!r}: there is no table {table}, or none that this connection's user may see",
                help="create it, or correct its name or the user's rights",
                reason="NO_TABLE",
            )
        column, wrong = found.columns.get(self.xid_column), ""
        if column is None:
            wrong = "is not there"
        elif column.type != "xid8" or not column.not_null or column.default != _NEW_XID:
            wrong = f"is {column.type}{'' if column.not_null else ', may be null'}, default {column.default or 'none'}"
        if wrong:
            raise Invalid(
                f"source {context.source!r}: column {self.xid_column!r} of {table} {wrong}",
                expected="the id of the transaction that added the row, filled by the table itself",
                help=f"ALTER TABLE {table.sql} ADD COLUMN {name} xid8 NOT NULL DEFAULT {_NEW_XID}",
                reason="NO_XID_COLUMN",
            )
        if self.xid_column not in found.first_columns:
            raise Invalid(
                f"source {context.source!r}: no index of {table} begins with {self.xid_column!r}, so that each plan "
                "would read the whole table",
                help=f"CREATE INDEX CONCURRENTLY ON {table.sql} ({name})",
                reason="NO_INDEX",
            )
        return found

    def _refuse_other_table(
        self, then: Json, found: FoundTable, history: ServerHistory, context: SourceContext
    ) -> None:
        """then: a position, or a range."""
        if then["table"] != found.oid or then.get("system", history.system) != history.system:
            raise self._other_table_error(context)

    def _other_table_error(self, context: SourceContext) -> Invalid:
        return Invalid(
            f"source {context.source!r}: {self.table_name} is not the table that was read before: it was made again, "
            "or the database was restored, elsewhere or to an earlier time, where transactions have other ids",
            expected="the same table on the same server",
            help="read it under another source name: it then begins at its start; or put the old one back",
            reason="TABLE_REPLACED",
        )

    def _refuse_older_copy(
        self, cursor: Any, then: Json, found: FoundTable, history: ServerHistory, context: SourceContext
    ) -> None:
        """Raise Invalid if what was read last is no longer there, and the server was started since: as long as it runs,
        nobody can put a copy in its place, and it is no matter if rows that were read are deleted.

        then: a position, or a range.
        """
        last = then.get("last")
        if last is None or then.get("started") == history.started:
            return
        present = {column.number: column for column in found.columns.values()}
        columns = [
            ReadColumn(present[number].name, kind, number=number)
            for number, kind in last["columns"]
            if number in present and present[number].type == kind
        ]
        rows, digest = self._digest(cursor, last["xid"], columns)
        is_whole = len(columns) == len(last["columns"])  # an older copy would have columns that were dropped since
        if rows != last["rows"] or (is_whole and digest != last["digest"]):
            raise older_copy(
                context.source,
                f"the {last['rows']:,} rows of transaction {last['xid']} in {self.table_name}, the last that were "
                "read, are not there as they were",
                f"if they were deleted or changed on purpose: tidegate source accept MODULE:PIPELINE {context.source} "
                "--unproven",
            )

    def _last(self, cursor: Any, first: int, end: int, seen: str, columns: Sequence[ReadColumn]) -> Json:
        """Return what tells the last transaction of a range again: its id, and what its rows hold."""
        name = quoted_name(self.xid_column)
        cursor.execute(
            f"SELECT {name}::text AS found FROM {self.table_name.sql} WHERE {self._within(first, end, seen)} "
            f"ORDER BY {name} DESC LIMIT 1"
        )
        xid = int(cursor.fetchone()[0])
        rows, digest = self._digest(cursor, xid, columns)
        return {"xid": xid, "rows": rows, "columns": [[each.number, each.type] for each in columns], "digest": digest}

    def _digest(self, cursor: Any, xid: int, columns: Sequence[ReadColumn]) -> tuple[int, int]:
        """Return how many rows a transaction has added, and a digest of them, in whatever order they are."""
        cursor.execute(SAME_TEXT)
        row = f'ROW({", ".join(f"{quoted_name(column.name)}::text" for column in columns)})::text COLLATE "C"'
        cursor.execute(
            f"SELECT count(*), coalesce(mod(sum(hashtextextended({row}, 0)), {_DIGESTS}), 0)::bigint "
            f"FROM {self.table_name.sql} WHERE {self._within(xid, xid + 1)}"
        )
        rows, digest = cursor.fetchone()
        return int(rows), int(digest)

    def _within(self, first: int, end: int, seen: str = "") -> str:
        """seen: a snapshot. What it showed is left out."""
        name = quoted_name(self.xid_column)
        unseen = f" AND NOT pg_visible_in_snapshot({name}, '{seen}'::pg_snapshot)" if seen else ""
        return f"{name} >= '{first}'::xid8 AND {name} < '{end}'::xid8{unseen}"

    def _of(self, splits: Json) -> str:
        return self._within(splits["first"], splits["end"], splits.get("seen", ""))

    def _end(self, cursor: Any, first: int, horizon: int, seen: str, bound: int) -> int:
        """Return the end of a range of about so many rows, but of whole transactions."""
        if horizon <= first:
            return first
        name = quoted_name(self.xid_column)

        def xid_at(place: int) -> int | None:
            cursor.execute(
                f"SELECT {name}::text AS found FROM {self.table_name.sql} WHERE {self._within(first, horizon, seen)} "
                f"ORDER BY {name} OFFSET {place} LIMIT 1"
            )
            row = cursor.fetchone()
            return int(row[0]) if row is not None else None

        beyond = xid_at(bound)
        if beyond is None:
            return horizon
        return beyond + 1 if beyond == xid_at(0) else beyond

    def _count(self, cursor: Any, first: int, end: int, seen: str) -> int:
        cursor.execute(f"SELECT count(*) FROM {self.table_name.sql} WHERE {self._within(first, end, seen)}")
        return int(cursor.fetchone()[0])

    def _waiting(self, cursor: Any, first: int, horizon: int, seen: str) -> int:
        """Return how many rows wait: counted if they are few, else as the server estimates."""
        rest = f"FROM {self.table_name.sql} WHERE {self._within(first, horizon, seen)}"
        cursor.execute(f"SELECT count(*) FROM (SELECT 1 {rest} LIMIT {_COUNTED}) AS few")
        few = int(cursor.fetchone()[0])
        if few < _COUNTED:
            return few
        cursor.execute(f"EXPLAIN (FORMAT JSON) SELECT 1 {rest}")
        return max(few, int(cursor.fetchone()[0][0]["Plan"]["Plan Rows"]))

    def _refuse_unreadable(
        self, cursor: Any, columns: Sequence[ReadColumn], splits: Json, context: SourceContext
    ) -> None:
        """Raise Invalid if there are values that Spark's types do not have: the driver would make others of them."""
        looked_at = [column for column in columns if column.unreadable]
        if not looked_at:
            return
        found = ", ".join(f"coalesce(bool_or({column.unreadable}), false)" for column in looked_at)
        cursor.execute(f"SELECT {found} FROM {self.table_name.sql} WHERE {self._of(splits)}")
        bad = [column for column, unreadable in zip(looked_at, cursor.fetchone(), strict=True) if unreadable]
        if bad:
            where = f"in transactions {splits['first']} to {splits['end'] - 1}"
            raise unreadable_values(context.source, self.table_name, bad, where)

    def _refuse_difference(self, rows: int, splits: Json, context: SourceContext) -> None:
        if rows != splits["rows"]:
            raise Invalid(
                f"source {context.source!r}: {self.table_name} has {rows:,} rows of transactions {splits['first']} to "
                f"{splits['end'] - 1}",
                expected=f"{splits['rows']:,} rows, as planned",
                help="rows must only be added: put those back that were deleted, or read the table by PostgresChanges",
                reason="ROWS_CHANGED",
            )


def _still(seen: str, last: Json) -> Json:
    """Return what a position has of the snapshot of the first look: as long as there may be rows that it showed."""
    return {"seen": seen} if seen and last["xid"] + 1 < int(seen.split(":")[1]) else {}


def _snapshot(cursor: Any) -> str:
    cursor.execute("SELECT pg_current_snapshot()::text")
    return str(cursor.fetchone()[0])


def _horizon(cursor: Any) -> int:
    """Return the oldest transaction that is not known to be decided forever."""
    horizon = int(_snapshot(cursor).split(":")[0])
    _flush(cursor)
    return horizon


def _flush(cursor: Any) -> None:
    """Bring commits to the server's disk. After a crash, one that was not would be gone, and its id taken again."""
    cursor.execute("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")
    if not cursor.fetchone()[0]:
        # A commit that waits for the disk takes all that came before along.
        cursor.execute("SELECT set_config('synchronous_commit', 'local', false)")
        cursor.execute("SELECT pg_logical_emit_message(true, 'tidegate', 'flush')")
