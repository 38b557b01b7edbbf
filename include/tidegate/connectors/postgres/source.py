"""A source of rows that are only ever inserted into a PostgreSQL table.

Each row has the id of the transaction that inserted it. A plan ends before the oldest transaction that is still
running. All transactions before it are decided forever, so a range reads the same rows again, and no late commit adds
to it. Ordering by a sequence or a time cannot guarantee that, because they are assigned before the commit.

A range ends right after the last transaction that has rows in it, not at the oldest running one. A server that has this
transaction's rows has no new rows before it, even if it is a copy from before other transactions.
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
    refuse_changed_columns,
    unreadable_values,
)
from tidegate.connectors.postgres.history import (
    ServerHistory,
    find_history,
    older_copy,
    refuse_changed_timeline,
    same_timeline_error,
    unread_position_error,
)
from tidegate.connectors.schema.ddl import Column
from tidegate.connectors.schema.drift import RESCUED, OnNewColumn, OnType, Survey
from tidegate.connectors.schema.typed_columns import TypedSource
from tidegate.connectors.source import Planned, SourceContext, is_at_least
from tidegate.errors import Invalid
from tidegate.records.place import Place
from tidegate.records.records import Amount, Json, Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PostgresTable"]

_NEW_XID: Final = "pg_current_xact_id()"
_COUNTED: Final = 100_000
"""If more rows wait, their number is estimated."""
_DIGESTS: Final = 10**9
"""The number of different digests: enough to recognize rows, but too few for a position to reveal their content."""


class PostgresTable(TypedSource):
    """Read rows that are inserted into a PostgreSQL table and never updated or deleted.

        PostgresTable("events", connection="shop", xid_column="xid")

    The table needs a column with the id of the transaction that inserts a row, and an index that begins with it:

        ALTER TABLE events ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
        CREATE INDEX ON events (xid);

    Each row is read exactly once, no matter how long its transaction runs, as long as rows are only inserted and the
    column is only set by its default. A long transaction, anywhere on the server, delays later rows, but none is lost.
    If a row of a planned range disappears before it is read, the checkpoint fails. To read updates and deletes, use
    PostgresChanges.

    table: the table's name, in the same case as in the database, with its schema unless that is public.
    connection: the name of a connection in the setting `connections`, with options of libpq (host, port, dbname …).
    xid_column: the column with the transaction id.
    columns: the columns to read. The default is all that the table has when a range is planned, except xid_column.
    as_text: columns to read as the text that PostgreSQL writes, for values that Spark does not support, such as
        'infinity'.
    start: "beginning" reads all existing rows first. "latest" only reads rows of transactions that commit after the
        first look at the table.
    max_rows: the most rows that a checkpoint reads. Rows of one transaction are never divided.
    schema: the columns to read, in DDL, in place of `columns`.
    on_new_column: with a schema, what to do with further columns of the table: as in `Files`. "ignore" leaves them out.
    on_type: with a schema, what to do with a column that has another type in the table: "refuse" to read it, or
        "rescue" the values that its declared type cannot hold, or "widen" it as well, as in `Files`.
    missing_columns: with a schema, what to do if the table lacks a column: "refuse" to read it, or read "null".
    rescue_column: the name of the rescue column, as in `Files`.
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
        schema: str | None = None,
        on_new_column: OnNewColumn = "ignore",
        on_type: OnType = "refuse",
        missing_columns: Literal["refuse", "null"] = "refuse",
        rescue_column: str = RESCUED,
    ) -> None:
        self.table = table
        self.connection = connection
        self.xid_column = xid_column
        self.columns = list(columns) if columns is not None else None
        self.as_text = as_text if isinstance(as_text, str) else list(as_text)
        self.start = start
        self.max_rows = max_rows
        self.declare_columns(schema, on_new_column, on_type, missing_columns, rescue_column)

    def describe(self) -> Json:
        names = ("table", "connection", "xid_column", "columns", "as_text", "start", "max_rows")
        return {"kind": self.kind, **{name: getattr(self, name) for name in names}, **self.describe_columns()}

    def shared_uri(self, place: Place) -> str | None:
        return Database.resolve(place, self.connection).shared_uri(self.table_name)

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
        if self.columns is not None and self.schema is not None:
            problems.append("columns and schema exclude each other: a schema names the columns")
        return problems + self.column_problems()

    @property
    def table_name(self) -> TableName:
        """The table, with its schema."""
        return TableName.parse(self.table)

    def beginning(self, context: SourceContext) -> Json | None:
        if self.start != "latest":
            return None
        with self._database(context).session("looking at the table") as session:
            cursor = session.cursor()
            table, history = self._find_table(cursor, context), find_history(cursor, context.source, self.connection)
            snapshot = _snapshot(cursor)
            _flush(cursor)
        return history.json | {"table": table.oid, "xid": int(snapshot.split(":")[0]), "seen": snapshot}

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        return is_at_least(position, other, "xid", "system", "table")

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        with self._database(context).session("planning") as session:
            cursor = session.cursor()
            table, history = self._find_table(cursor, context), find_history(cursor, context.source, self.connection)
            names = self.columns
            if names is None:
                names = [name for name in table.columns if name != self.xid_column]
            columns = read_columns(self.table_name, table, names, self.as_text)
            first, excluded = 0, ""
            if start is not None:
                self._refuse_replaced_table(start, table, history, context)
                refuse_changed_timeline(context.source, history, start, unread="last" not in start)
                first, excluded = int(start["xid"]), start.get("seen", "")
            horizon = _horizon(cursor)
            if horizon < first:
                raise self._replaced_table_error(context)  # an older copy, which assigns the same transaction ids again
            if start is not None:
                self._refuse_older_copy(cursor, start, table, history, context)
            if context.stop_position is not None:
                horizon = max(first, min(horizon, int(context.stop_position["xid"])))
            bound = context.bound(self.max_rows) or 1
            end = self._end(cursor, first, horizon, excluded, bound)
            rows = self._count(cursor, first, end, excluded)
            waiting = self._count_waiting(cursor, end, horizon, excluded) if end < horizon else 0
            last = self._last_transaction(cursor, first, end, excluded, columns) if rows else None
        splits: Json = {
            **history.json,
            "table": table.oid,
            "first": first,
            "end": first,
            "rows": rows,
            "columns": recorded(columns),
        }
        position: Json | None = start
        if last is not None:
            splits |= {"end": last["xid"] + 1, "last": last, "seen": excluded}
            position = history.json | {"table": table.oid, "xid": last["xid"] + 1, "last": last}
            # Until its end is reached, the first snapshot may have further rows to exclude.
            if excluded and last["xid"] + 1 < int(excluded.split(":")[1]):
                position["seen"] = excluded
        if position is not None and context.stop_position is not None and end == int(context.stop_position["xid"]):
            position = position | {"xid": end}  # the stop position itself is reached
        return Planned(
            end=position,
            splits=splits,
            is_empty=not rows,
            has_more=end < horizon,
            summary=f"{rows:,} rows" if rows else "no new rows",
            amount=rows,
            lag=Lag(rows=waiting),
        )

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        with self._database(context).session("verifying the range") as session:
            cursor = session.cursor()
            table, history = self._find_table(cursor, context), find_history(cursor, context.source, self.connection)
            self._refuse_replaced_table(splits, table, history, context)
            refuse_changed_timeline(context.source, history, splits)
            columns = planned_columns(splits["columns"], self.as_text)
            refuse_changed_columns(context.source, self.table_name, table, columns)
            self.refuse_unfit(_spark_columns(columns), context)
            self._refuse_older_copy(cursor, splits, table, history, context)
            self._refuse_unreadable(cursor, columns, splits, context)
            rows = self._count(cursor, splits["first"], splits["end"], splits.get("seen", ""))
            self._refuse_difference(rows, splits, context)
        return Amount(rows=splits["rows"])

    def accept(self, position: Json, context: SourceContext, *, unproven: bool = False) -> Json:
        """See Source. The system is a promoted standby, or a database that was restored to an earlier time."""
        with self._database(context).session("looking for what was read last") as session:
            cursor = session.cursor()
            table, history = self._find_table(cursor, context), find_history(cursor, context.source, self.connection)
            self._refuse_replaced_table(position, table, history, context)
            if _horizon(cursor) < int(position["xid"]):
                raise self._replaced_table_error(context)
            if unproven:
                position = {name: value for name, value in position.items() if name != "last"}
            else:
                self._refuse_older_copy(cursor, position, table, history, context)
                if position.get("timeline", history.timeline) == history.timeline:
                    raise same_timeline_error(context.source, history)
                if "last" not in position:
                    raise unread_position_error(context.source)
        return position | history.json

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        import pyarrow as pa

        columns = planned_columns(splits["columns"], self.as_text)
        schema = pa.schema([(column.name, column.arrow) for column in columns])
        selected = ", ".join(column.selected for column in columns)
        query = f"SELECT {selected} FROM {self.table_name.sql} WHERE {self._range_condition(splits)}"
        rows = schema.empty_table()
        if splits["rows"]:
            with self._database(context).transaction("reading the range") as (_, cursor):
                cursor.execute(SAME_TEXT)
                cursor.fetchall()
                cursor.execute(query)
                rows = cursor.fetch_arrow_table().cast(schema)
            self._refuse_difference(rows.num_rows, splits, context)
        return self.fitted(frame_of(spark, rows, ddl_of(columns)))

    def survey(self, spark: SparkSession, splits: Json, context: SourceContext) -> Survey | None:
        """See Source. The plan has the table's columns, so only values of those that do not fit are counted."""
        if self.schema is None or not self.schema_policy.rescues:
            return None

        def count(conditions: list[str]) -> Sequence[int]:
            counts = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in conditions)
            with self._database(context).session("looking for values that do not fit the schema") as session:
                cursor: Any = session.cursor()
                cursor.execute(f"SELECT {counts} FROM {self.table_name.sql} WHERE {self._range_condition(splits)}")
                return [int(value) for value in cursor.fetchone()]

        return self.survey_counts(_spark_columns(planned_columns(splits["columns"], self.as_text)), count)

    def sql_name(self, name: str) -> str:
        """See TypedSource."""
        return quoted_name(name)

    # --- table and position ---------------------------------------------------------------------------------

    def _database(self, context: SourceContext) -> Database:
        return Database.resolve(context.place, self.connection)

    def _find_table(self, cursor: Any, context: SourceContext) -> FoundTable:
        """Return the table. Raise Invalid if its ranges could not be read repeatably."""
        table = find_table(cursor, self.table_name)
        table_name, column_name = self.table_name, quoted_name(self.xid_column)
        if table is None:
            raise Invalid(
                f"source {context.source!r}: table {table_name} does not exist, or the user may not see it",
                help="create it, or correct its name or the user's rights",
                reason="NO_TABLE",
            )
        column, problem = table.columns.get(self.xid_column), ""
        if column is None:
            problem = "does not exist"
        elif column.type != "xid8" or not column.not_null or column.default != _NEW_XID:
            nullable = "" if column.not_null else ", may be null"
            problem = f"is {column.type}{nullable}, default {column.default or 'none'}"
        if problem:
            raise Invalid(
                f"source {context.source!r}: column {self.xid_column!r} of {table_name} {problem}",
                expected="the id of the transaction that inserted the row, set by the column's default",
                help=f"ALTER TABLE {table_name.sql} ADD COLUMN {column_name} xid8 NOT NULL DEFAULT {_NEW_XID}",
                reason="NO_XID_COLUMN",
            )
        if self.xid_column not in table.first_columns:
            raise Invalid(
                f"source {context.source!r}: no index of {table_name} begins with {self.xid_column!r}, so each plan "
                "would scan the whole table",
                help=f"CREATE INDEX CONCURRENTLY ON {table_name.sql} ({column_name})",
                reason="NO_INDEX",
            )
        return table

    def _refuse_replaced_table(
        self, recorded: Json, table: FoundTable, history: ServerHistory, context: SourceContext
    ) -> None:
        """Raise Invalid if the table is not that of a recorded position or range."""
        if recorded["table"] != table.oid or recorded.get("system", history.system) != history.system:
            raise self._replaced_table_error(context)

    def _replaced_table_error(self, context: SourceContext) -> Invalid:
        return Invalid(
            f"source {context.source!r}: {self.table_name} is not the table that was read before: it was created "
            "again, or the database was restored, elsewhere or to an earlier time, where transactions have other ids",
            expected="the same table on the same server",
            help="read it under another source name, from the beginning; or restore the old table",
            reason="TABLE_REPLACED",
        )

    def _refuse_older_copy(
        self, cursor: Any, recorded: Json, table: FoundTable, history: ServerHistory, context: SourceContext
    ) -> None:
        """Raise Invalid if the rows that were read last have changed, and the server was restarted since.

        A server cannot be replaced by an older copy while it runs, and deleting rows that were read does no harm.

        recorded: a position or a range.
        """
        last = recorded.get("last")
        if last is None or recorded.get("started") == history.started:
            return
        columns_by_number = {column.number: column for column in table.columns.values()}
        columns = []
        for number, data_type in last["columns"]:
            column = columns_by_number.get(number)
            if column is not None and column.type == data_type:
                columns.append(ReadColumn(column.name, data_type, number=number))
        rows, digest = self._digest(cursor, last["xid"], columns)
        has_all_columns = len(columns) == len(last["columns"])  # without one that was dropped, the digest differs
        if rows != last["rows"] or (has_all_columns and digest != last["digest"]):
            raise older_copy(
                context.source,
                f"the last rows that were read, {last['rows']:,} of transaction {last['xid']} in {self.table_name}, "
                "are missing or have changed",
                f"if they were deleted or changed on purpose: tidegate source accept MODULE:PIPELINE {context.source} "
                "--unproven",
            )

    def _last_transaction(
        self, cursor: Any, first: int, end: int, excluded: str, columns: Sequence[ReadColumn]
    ) -> Json:
        """Return by what the last transaction of a range is recognized: its id, and a digest of its rows."""
        name = quoted_name(self.xid_column)
        cursor.execute(
            f"SELECT {name}::text AS xid_text FROM {self.table_name.sql} WHERE {self._within(first, end, excluded)} "
            f"ORDER BY {name} DESC LIMIT 1"
        )
        xid = int(cursor.fetchone()[0])
        rows, digest = self._digest(cursor, xid, columns)
        digested = [[column.number, column.type] for column in columns]
        return {"xid": xid, "rows": rows, "columns": digested, "digest": digest}

    def _digest(self, cursor: Any, xid: int, columns: Sequence[ReadColumn]) -> tuple[int, int]:
        """Return how many rows a transaction has inserted, and a digest of them that does not depend on their order."""
        cursor.execute(SAME_TEXT)
        row = f'ROW({", ".join(f"{quoted_name(column.name)}::text" for column in columns)})::text COLLATE "C"'
        cursor.execute(
            f"SELECT count(*), coalesce(mod(sum(hashtextextended({row}, 0)), {_DIGESTS}), 0)::bigint "
            f"FROM {self.table_name.sql} WHERE {self._within(xid, xid + 1)}"
        )
        rows, digest = cursor.fetchone()
        return int(rows), int(digest)

    def _within(self, first: int, end: int, excluded: str = "") -> str:
        """Return the SQL condition for the rows of a range. excluded: a snapshot whose rows are left out."""
        name = quoted_name(self.xid_column)
        unseen = f" AND NOT pg_visible_in_snapshot({name}, '{excluded}'::pg_snapshot)" if excluded else ""
        return f"{name} >= '{first}'::xid8 AND {name} < '{end}'::xid8{unseen}"

    def _range_condition(self, splits: Json) -> str:
        return self._within(splits["first"], splits["end"], splits.get("seen", ""))

    def _end(self, cursor: Any, first: int, horizon: int, excluded: str, bound: int) -> int:
        """Return the end of a range of about `bound` rows, with complete transactions."""
        if horizon <= first:
            return first
        name = quoted_name(self.xid_column)

        def read_xid(offset: int) -> int | None:
            # Without the alias, the column of the result would have the same name, and be sorted as text.
            cursor.execute(
                f"SELECT {name}::text AS xid_text FROM {self.table_name.sql} "
                f"WHERE {self._within(first, horizon, excluded)} ORDER BY {name} OFFSET {offset} LIMIT 1"
            )
            row = cursor.fetchone()
            return int(row[0]) if row is not None else None

        end = read_xid(bound)
        if end is None:
            return horizon
        if end == read_xid(0):  # the first transaction alone exceeds the bound
            return end + 1
        return end

    def _count(self, cursor: Any, first: int, end: int, excluded: str) -> int:
        cursor.execute(f"SELECT count(*) FROM {self.table_name.sql} WHERE {self._within(first, end, excluded)}")
        return int(cursor.fetchone()[0])

    def _count_waiting(self, cursor: Any, first: int, horizon: int, excluded: str) -> int:
        """Return how many rows wait. If there are many, the number is the server's estimate."""
        waiting = f"FROM {self.table_name.sql} WHERE {self._within(first, horizon, excluded)}"
        cursor.execute(f"SELECT count(*) FROM (SELECT 1 {waiting} LIMIT {_COUNTED}) AS counted")
        count = int(cursor.fetchone()[0])
        if count < _COUNTED:
            return count
        cursor.execute(f"EXPLAIN (FORMAT JSON) SELECT 1 {waiting}")
        return max(count, int(cursor.fetchone()[0][0]["Plan"]["Plan Rows"]))

    def _refuse_unreadable(
        self, cursor: Any, columns: Sequence[ReadColumn], splits: Json, context: SourceContext
    ) -> None:
        """Raise Invalid if there are values outside of Spark's types. The driver would convert them silently."""
        checked = [column for column in columns if column.unreadable]
        if not checked:
            return
        checks = ", ".join(f"coalesce(bool_or({column.unreadable}), false)" for column in checked)
        cursor.execute(f"SELECT {checks} FROM {self.table_name.sql} WHERE {self._range_condition(splits)}")
        results = cursor.fetchone()
        unreadable = [column for column, is_unreadable in zip(checked, results, strict=True) if is_unreadable]
        if unreadable:
            where = f"in transactions {splits['first']} to {splits['end'] - 1}"
            raise unreadable_values(context.source, self.table_name, unreadable, where)

    def _refuse_difference(self, rows: int, splits: Json, context: SourceContext) -> None:
        if rows != splits["rows"]:
            raise Invalid(
                f"source {context.source!r}: {self.table_name} has {rows:,} rows of transactions {splits['first']} to "
                f"{splits['end'] - 1}",
                expected=f"{splits['rows']:,} rows, as planned",
                help="rows must only be inserted: restore the deleted ones, or read the table with PostgresChanges",
                reason="ROWS_CHANGED",
            )


def _spark_columns(columns: Sequence[ReadColumn]) -> list[Column]:
    """Return these columns with the types as which they are read."""
    return [Column(column.name, column.spark) for column in columns]


def _snapshot(cursor: Any) -> str:
    cursor.execute("SELECT pg_current_snapshot()::text")
    return str(cursor.fetchone()[0])


def _horizon(cursor: Any) -> int:
    """Return the oldest transaction that may still be running. All before it are decided forever."""
    horizon = int(_snapshot(cursor).split(":")[0])
    _flush(cursor)
    return horizon


def _flush(cursor: Any) -> None:
    """Flush commits to the server's disk. Otherwise a crash could lose one, and its id would be assigned again."""
    cursor.execute("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")
    if not cursor.fetchone()[0]:
        # A commit that waits for the disk also flushes all earlier ones.
        cursor.execute("SELECT set_config('synchronous_commit', 'local', false)")
        cursor.execute("SELECT pg_logical_emit_message(true, 'tidegate', 'flush')")
