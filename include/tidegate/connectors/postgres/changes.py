"""A source of all changes of a PostgreSQL table, read from a logical replication slot.

The slot keeps the server's log from a position on. A plan covers the log up to the end of a commit that is on the
server's disk. Reading only peeks, so the next attempt finds the same range again. The slot advances once retention has
released a range, because then no attempt reads it any more, not even after a rollback. To avoid decoding everything
that the slot keeps until then, each session peeks through a temporary copy of the slot, advanced to the start of its
range.

A range ends with a commit for two reasons. A slot that was advanced into the middle of a commit's record skips that
transaction. And a server that has this commit has everything that was read, while an older copy of it has not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tidegate import seams
from tidegate.connectors.postgres import (
    Database,
    FoundTable,
    TableName,
    connection_problems,
    find_table,
    literal,
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
    unreadable_values,
)
from tidegate.connectors.postgres.history import (
    ServerHistory,
    find_history,
    older_copy,
    refuse_changed_timeline,
    same_timeline_error,
)
from tidegate.connectors.postgres.layout import column_numbers
from tidegate.connectors.postgres.messages import (
    UNCHANGED,
    ChangedTable,
    RowChange,
    TransactionEnd,
    changes,
    commits_and_tables,
    lsn_number,
    lsn_text,
)
from tidegate.connectors.schema.ddl import Column, DdlError, parse_ddl
from tidegate.connectors.schema.drift import RESCUED, OnNewColumn, OnType, Survey
from tidegate.connectors.schema.typed_columns import TypedSource
from tidegate.connectors.source import Planned, SourceContext, is_at_least
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import Place
from tidegate.records.records import Amount, Json, Lag
from tidegate.versions.python import UTC

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PostgresChanges"]

CHANGE_COLUMNS: Final = (
    "_change_type string, _commit_lsn bigint, _change_number int, _xid bigint, _commit_timestamp timestamp, "
    "_unchanged array<string>"
)
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MIN_BYTES: Final = 1 << 20
"""The server scans all that the slot keeps before a range, so smaller ranges would only cost more."""
_BUSY_SECONDS: Final = 30.0
_FOREIGN_BYTES: Final = 16 << 20
"""If the log grows this much without a change of the publication, the source commits a message itself, because the slot
can only advance to the end of a commit."""
_ENDS_AND_TABLES: Final = "get_byte(data, 0) IN (67, 82)"
"""The condition for messages about commits and tables (C and R), which are all that a plan needs."""


@dataclass(frozen=True)
class Slot:
    """A replication slot as the server describes it."""

    kept_from: int
    """The slot keeps only what was committed from this position on."""
    flushed: int
    """The end of the server's log on disk, maybe in the middle of a record."""
    history: ServerHistory
    published: frozenset[str] | None
    """The columns of the table that the publication includes, or None for all."""


@dataclass(frozen=True)
class PeekedLog:
    """The commits and tables that a slot keeps after a position, up to `upto`."""

    commits: list[TransactionEnd]
    """The commits that end after the position and are on the server's disk."""
    tables: list[tuple[int, ChangedTable]]
    """The source's table as of each change, including changes before the position, with the end of the commit."""
    upto: int


class PostgresChanges(TypedSource):
    """Read every insert, update and delete of a PostgreSQL table, in the order of commits.

        PostgresChanges("orders", connection="shop", slot="tidegate_orders", publication="tidegate_orders")

    The server needs wal_level=logical, and a publication and a slot that only this source uses:

        CREATE PUBLICATION tidegate_orders FOR TABLE orders;
        SELECT pg_create_logical_replication_slot('tidegate_orders', 'pgoutput');

    Each change that is committed after the slot was created is read exactly once. Rows that existed before are not
    read. The server keeps its log until retention releases it. Limit that with max_slot_wal_keep_size: if the server
    has to give up the slot, the pipeline fails instead of skipping changes.

    Each row has the columns of the table, and these:

        _change_type        insert, update_preimage, update_postimage, delete, or truncate (of all rows, without values)
        _commit_lsn         the position of the commit in the server's log
        _change_number      the position within the transaction; with _commit_lsn, it orders all changes
        _xid                the id of the transaction
        _commit_timestamp   the time of the commit
        _unchanged          columns with large values that did not change and were not sent, so they are null here

    A deleted row only has its key, and the preimage of an update only exists if the key changes. With REPLICA IDENTITY
    FULL on the table, both have all values, and _unchanged is empty.

    table: the table's name, in the same case as in the database, with its schema unless that is public.
    connection: the name of a connection in the setting `connections`. Its user needs the attribute REPLICATION.
    slot, publication: their names. Columns, rows and kinds of changes that the publication excludes are not read.
    as_text: columns to read as the text that PostgreSQL writes, for values that Spark or Python does not support, such
        as 'infinity'.
    max_bytes: the most bytes of the server's log that a checkpoint reads, including changes of other tables.
    schema: the columns of the table to read, in DDL. By default, all that are sent when a range is planned. The columns
        above are there in any case.
    on_new_column, on_type, missing_columns, rescue_column: with a schema, what to do with a table that has other
        columns, as in `PostgresTable`. A column that the publication leaves out is missing.
    """

    kind = "postgres-changes"
    can_stop = True
    unit = "bytes"

    def __init__(
        self,
        table: str,
        *,
        connection: str,
        slot: str,
        publication: str,
        as_text: Sequence[str] = (),
        max_bytes: int = 256 << 20,
        schema: str | None = None,
        on_new_column: OnNewColumn = "ignore",
        on_type: OnType = "refuse",
        missing_columns: Literal["refuse", "null"] = "refuse",
        rescue_column: str = RESCUED,
    ) -> None:
        self.table = table
        self.connection = connection
        self.slot = slot
        self.publication = publication
        self.as_text = as_text if isinstance(as_text, str) else list(as_text)
        self.max_bytes = max_bytes
        self.declare_columns(schema, on_new_column, on_type, missing_columns, rescue_column)

    def describe(self) -> Json:
        names = ("table", "connection", "slot", "publication", "as_text", "max_bytes")
        return {"kind": self.kind, **{name: getattr(self, name) for name in names}, **self.describe_columns()}

    def shared_uri(self, place: Place) -> str | None:
        return Database.resolve(place, self.connection).shared_uri(self.table_name)

    def problems(self) -> list[str]:
        problems = table_problems(self.table) + connection_problems(self.connection)
        for name, value in (("slot", self.slot), ("publication", self.publication)):
            if not isinstance(value, str) or not value:
                problems.append(f"{name} is {value!r}; it must be a name")
        problems += as_text_problems(self.as_text)
        if isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, int) or self.max_bytes < 1:
            problems.append(f"max_bytes is {self.max_bytes!r}; it must be a whole number, at least 1")
        return [*problems, *self.column_problems(), *self._problems_of_names()]

    def _problems_of_names(self) -> list[str]:
        """Return the columns of the schema that this source adds itself."""
        try:
            declared = (
                {column.name.casefold() for column in parse_ddl(self.schema)} if self.schema is not None else set()
            )
        except DdlError:
            return []  # `column_problems` reports it
        added = [name for name in _change_column_names() if name in {*declared, str(self.rescue_column).casefold()}]
        return [f"schema: the source adds the column {name!r} itself; leave it out" for name in added]

    @property
    def table_name(self) -> TableName:
        """The table, with its schema."""
        return TableName.parse(self.table)

    def beginning(self, context: SourceContext) -> Json | None:
        with self._database(context).session("looking at the slot") as session:
            cursor = session.cursor()
            slot = self._find_slot(cursor, context)
            return self._initial_position(slot, self._table(cursor, context))

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        return is_at_least(position, other, "lsn", "system")

    def missing_input(self, start: Json | None, end: Json | None, context: SourceContext) -> list[str]:
        """See Source. A slot does not keep what was read."""
        if start == end:
            return []
        return ["changes from a replication slot cannot be read a second time"]

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        with self._database(context).session("planning") as session:
            cursor = session.cursor()
            slot, table = self._find_slot(cursor, context), self._table(cursor, context)
            position = start if start is not None else self._initial_position(slot, table)
            self._refuse_changed_server(slot, position, context)
            refuse_changed_timeline(context.source, slot.history, position)
            self._refuse_gap(slot, position["lsn"], context)
            self._refuse_shorter_log(slot, position["lsn"], context)
            columns = read_columns(self.table_name, table, self._sent(slot, table), self.as_text)
            first, last = int(position["lsn"]), slot.flushed
            if context.stop_position is not None:
                last = min(last, int(context.stop_position["lsn"]))
            if context.at_most is not None:
                context = replace(context, at_most=max(context.at_most, _MIN_BYTES))
            bound = context.bound(self.max_bytes) or 1
            # If the position is of another table, its name and columns only follow from all that the slot keeps.
            begin = _last_commit(position) if position.get("table") == table.oid else None
            peeked_slot = self._slot_from(session, slot, begin)
            log = self._peek_log(session, peeked_slot, slot, table, position, last, bound, context)
            if not log.commits and last - first >= _FOREIGN_BYTES and context.stop_position is None:
                last = self._commit_message(cursor)
                log = self._peek_log(session, peeked_slot, slot, table, position, last, bound, context)
        if not log.commits:
            splits = {"system": slot.history.system, "first": first, "end": first, "columns": recorded(columns)}
            return Planned(end=position, splits=splits, is_empty=True, summary="no new changes", lag=Lag(bytes=0))
        commit = log.commits[0]  # a range has at least one transaction, even if that exceeds the bound
        for candidate in log.commits:
            if candidate.end <= first + bound:
                commit = candidate
        layouts, last_columns = self._layouts(log, slot, table, position, commit.end, context)
        proof: Json = {
            "system": slot.history.system,
            "timeline": slot.history.timeline,
            "table": table.oid,
            "commit": {
                "lsn": commit.lsn,
                "xid": commit.xid,
                "micros": commit.micros,
                "publication": self.publication,
            },
        }
        splits = proof | {"first": first, "end": commit.end, "columns": recorded(columns), "layouts": layouts}
        if "commit" in position:  # a position of an older version may be anywhere, not only after a commit
            splits["after_commit"] = True
        return Planned(
            end=proof | {"lsn": commit.end, "columns": last_columns},
            splits=splits,
            is_empty=False,
            has_more=log.upto < last or commit is not log.commits[-1],
            summary=f"{lsn_text(first)} to {lsn_text(commit.end)}: {(commit.end - first) / 1e6:,.1f} MB of the log",
            amount=commit.end - first,
            lag=Lag(bytes=last - commit.end),
        )

    def verify(self, splits: Json, context: SourceContext) -> Amount | None:
        with self._database(context).session("verifying the range") as session:
            slot = self._find_slot(session.cursor(), context)
        self._refuse_changed_server(slot, splits, context)
        refuse_changed_timeline(context.source, slot.history, splits)
        self._refuse_gap(slot, splits["first"], context)
        self._refuse_shorter_log(slot, splits["end"], context)
        self.refuse_unfit(_spark_columns(splits, self.as_text), context)
        return Amount(bytes=splits["end"] - splits["first"])

    def survey(self, spark: SparkSession, splits: Json, context: SourceContext) -> Survey | None:
        """See Source. A slot can only be read, so values that do not fit are counted in what it has."""
        if self.schema is None or not self.schema_policy.rescues:
            return None

        frame = self._changes(spark, splits, context)
        # Spark takes names that differ only in case for one.
        by_number = {name: f"c{number}" for number, name in enumerate(frame.columns)}
        numbered = frame.toDF(*by_number.values())

        def count(conditions: list[str]) -> Sequence[int]:
            (row,) = numbered.selectExpr(*(f"count_if({condition})" for condition in conditions)).collect()
            return [int(value) for value in row]

        return self.survey_counts(_spark_columns(splits, self.as_text), count, by_number.__getitem__)

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        return self.fitted(self._changes(spark, splits, context), _change_column_names())

    def _changes(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the changes with the columns that the plan says."""
        columns = planned_columns(splits["columns"], self.as_text)

        def unreadable(column: ReadColumn) -> Invalid:
            where = f"between {lsn_text(splits['first'])} and {lsn_text(splits['end'])}"
            return unreadable_values(context.source, self.table_name, [column], where)

        layouts = {(oid, name, tuple(names)): numbers for oid, name, names, numbers in splits.get("layouts", ())}
        rows = ChangedRows(columns, layouts, unreadable)
        commit = None
        publication = splits["commit"]["publication"] if "commit" in splits else self.publication
        if splits["end"] > splits["first"]:
            with contextlib.ExitStack() as closing:
                session = closing.enter_context(self._database(context).session("reading the range"))
                slot = self._find_slot(session.cursor(), context)
                peeked_slot = self._slot_from(session, slot, splits["first"] if splits.get("after_commit") else None)
                # The stream must be closed: it holds the lock of its session.
                messages = self._messages(session, peeked_slot, splits["end"], publication)
                closing.enter_context(contextlib.closing(messages))
                for change in changes(messages, splits["first"], splits["end"]):
                    if isinstance(change, TransactionEnd):
                        commit = change
                    elif change.table.layout in layouts:
                        rows.add(change)
                    elif self._is_read(change.table):
                        if "layouts" in splits:
                            raise self._unknown_columns(change.table, None, context)
                        rows.add(change)  # an older version planned the range, without layouts
                slot = self._find_slot(session.cursor(), context)
            self._refuse_gap(slot, splits["first"], context)  # the slot must not have moved while it was read
            if "commit" in splits and (commit is None or not self._has_commit(splits, [commit])):
                raise self._older_copy(splits["end"], context)
        return frame_of(spark, rows.table(), f"{ddl_of(columns)}, {CHANGE_COLUMNS}")

    def release(self, before: Json, context: SourceContext) -> None:
        with self._database(context).session("advancing the slot") as session:
            cursor = session.cursor()
            slot, target = self._find_slot(cursor, context), int(before["lsn"])
            if slot.history.system != before["system"] or not slot.kept_from < target <= slot.flushed:
                return
            commits = self._commits_up_to(session, slot, before)
            self._refuse_older_copy(slot, before, commits, context)
            # An older version's position may be within the record of a commit, which the slot would skip.
            for commit in commits:
                if commit.lsn < target < commit.end:
                    target = commit.lsn
                    break
            cursor.execute(f"SELECT pg_replication_slot_advance({literal(self.slot)}, '{lsn_text(target)}')")

    def accept(self, position: Json, context: SourceContext, *, unproven: bool = False) -> Json:
        """See Source. The system is a promoted standby, or a restored database, with the slot."""
        with self._database(context).session("looking for what was read last") as session:
            cursor = session.cursor()
            slot, table = self._find_slot(cursor, context), self._table(cursor, context)
            self._refuse_changed_server(slot, position, context)
            if position.get("timeline", slot.history.timeline) == slot.history.timeline and not unproven:
                raise same_timeline_error(context.source, slot.history)
            self._refuse_gap(slot, position["lsn"], context)
            self._refuse_shorter_log(slot, position["lsn"], context)
            if unproven:
                position = {name: value for name, value in position.items() if name != "commit"}
            elif "commit" not in position:
                return self._initial_position(slot, table)  # nothing was read yet
            else:
                commits = self._commits_up_to(session, slot, position)
                self._refuse_older_copy(slot, position, commits, context)
        return position | {"timeline": slot.history.timeline}

    # --- slot and table -------------------------------------------------------------------------------------

    def _database(self, context: SourceContext) -> Database:
        return Database.resolve(context.place, self.connection)

    def _find_slot(self, cursor: Any, context: SourceContext) -> Slot:
        """Return the slot. Raise Invalid if the slot or the publication cannot be used."""
        history = find_history(cursor, context.source, self.connection)
        table, slot, publication = self.table_name, literal(self.slot), literal(self.publication)
        cursor.execute(
            f"""SELECT s.plugin::text, s.database = current_database(), s.wal_status, s.confirmed_flush_lsn::text,
              pg_current_wal_flush_lsn()::text,
              (SELECT coalesce(to_jsonb(p) -> 'attnames', 'null')::text
                FROM pg_publication_tables p WHERE p.pubname = {publication}
                AND p.schemaname = {literal(table.schema)} AND p.tablename = {literal(table.name)})
            FROM (SELECT 1) one LEFT JOIN pg_replication_slots s ON s.slot_name = {slot}"""
        )
        plugin, is_of_database, wal_status, kept_from, flushed, published = cursor.fetchone()
        if published is None:
            name = quoted_name(self.publication)
            raise Invalid(
                f"source {context.source!r}: publication {self.publication!r} does not have table {table}",
                expected="a publication of the table",
                help=f"CREATE PUBLICATION {name} FOR TABLE {table.sql}, before the slot is created; or ALTER "
                f"PUBLICATION {name} ADD TABLE {table.sql}; for a partitioned table, add WITH "
                "(publish_via_partition_root = true)",
                reason="NO_PUBLICATION",
            )
        if plugin != "pgoutput" or not is_of_database:
            problem = f"replication slot {self.slot!r} does not exist"
            if plugin is not None:
                problem += f" for pgoutput in this database, only for {plugin}"
            raise Invalid(
                f"source {context.source!r}: {problem}",
                expected="a slot for this source alone",
                help=f"SELECT pg_create_logical_replication_slot({slot}, 'pgoutput')",
                reason="NO_SLOT",
            )
        if wal_status == "lost" or kept_from is None:
            raise Invalid(
                f"source {context.source!r}: the server has given up slot {self.slot!r}, because it would have had to "
                "keep more of its log than max_slot_wal_keep_size",
                expected="a slot whose changes are kept until they have been read",
                help="changes are lost: create the slot again, and read the table again under another source name",
                reason="SLOT_LOST",
            )
        names = msgspec.json.decode(published)
        columns = frozenset(names) if names is not None else None
        return Slot(lsn_number(kept_from), lsn_number(flushed), history, columns)

    def _table(self, cursor: Any, context: SourceContext) -> FoundTable:
        """Return the table. Raise Invalid if it has a column that this source adds."""
        table = find_table(cursor, self.table_name)
        assert table is not None
        conflicts = [name for name in _change_column_names() if name in table.columns]
        if conflicts:
            raise Invalid(
                f"source {context.source!r}: {self.table_name} has columns that this source adds: "
                f"{', '.join(conflicts)}",
                help="rename them in the table",
                reason="BAD_TABLE",
            )
        return table

    def _sent(self, slot: Slot, table: FoundTable) -> list[str]:
        """Return the names of the columns that the server sends."""
        names = [name for name, column in table.columns.items() if not column.computed]
        if slot.published is None:
            return names
        return [name for name in names if name in slot.published]

    def _initial_position(self, slot: Slot, table: FoundTable) -> Json:
        """Return the position before anything was read."""
        return {
            "system": slot.history.system,
            "timeline": slot.history.timeline,
            "lsn": slot.kept_from,
            "table": table.oid,
            "columns": [[table.columns[name].number, name] for name in self._sent(slot, table)],
        }

    # --- checks against the position ------------------------------------------------------------------------

    def _refuse_changed_server(self, slot: Slot, position: Json, context: SourceContext) -> None:
        if slot.history.system != position["system"]:
            raise Invalid(
                f"source {context.source!r}: connection {self.connection!r} leads to another server than before, "
                "whose log has other positions",
                expected=f"the server {position['system']}",
                help="name the right server, or read the table again under another source name",
                reason="OTHER_SERVER",
            )

    def _refuse_gap(self, slot: Slot, first: int, context: SourceContext) -> None:
        if slot.kept_from > first:
            raise Invalid(
                f"source {context.source!r}: slot {self.slot!r} keeps changes from {lsn_text(slot.kept_from)} on",
                expected=f"{lsn_text(first)} or less, where the range begins",
                help="the slot was advanced by another client, or created again, so changes are lost. Read the table "
                "again under another source name, with another slot",
                reason="SLOT_ADVANCED",
            )

    def _refuse_shorter_log(self, slot: Slot, position: int, context: SourceContext) -> None:
        if slot.flushed < position:
            raise Invalid(
                f"source {context.source!r}: the server's log ends at {lsn_text(slot.flushed)}",
                expected=f"{lsn_text(position)} or more, as planned",
                help="was the server replaced by an older copy? Then what was planned no longer exists: read the table "
                "again under another source name, with another slot",
                reason="LOG_SHORTER",
            )

    def _refuse_older_copy(
        self, slot: Slot, position: Json, commits: Sequence[TransactionEnd], context: SourceContext
    ) -> None:
        """Raise Invalid if the commit that was read last is not among those that the slot keeps up to the position.

        If the slot itself is at the position, it was moved there after that commit was read, which proves the same.
        """
        if "commit" not in position or position["commit"]["publication"] != self.publication:
            return
        if slot.kept_from != position["lsn"] and not self._has_commit(position, commits):
            raise self._older_copy(position["lsn"], context)

    def _has_commit(self, position: Json, commits: Sequence[TransactionEnd]) -> bool:
        """Return whether the last commit of a position or a range is among `commits`."""
        last = position["commit"]
        identity = (last["lsn"], last["xid"], last["micros"])
        return any((commit.lsn, commit.xid, commit.micros) == identity for commit in commits)

    def _older_copy(self, end: int, context: SourceContext) -> Invalid:
        return older_copy(context.source, f"the last commit that was read, which ended at {lsn_text(end)}, is missing")

    # --- the log --------------------------------------------------------------------------------------------

    def _slot_from(self, session: Any, slot: Slot, start: int | None) -> str:
        """Return the name of a slot to peek at for the commits whose records begin at `start` or later.

        It is a temporary copy of the slot, advanced to `start`, so that the server need not decode what comes before.

        start: the beginning or the end of a commit's record, or None if everything that the slot keeps is needed.
        """
        import psycopg

        if start is None or start <= slot.kept_from:
            return self.slot
        name = _session_slot_name(session)
        try:
            session.execute(f"SELECT pg_copy_logical_replication_slot({literal(self.slot)}, {literal(name)}, true)")
            session.execute(f"SELECT pg_replication_slot_advance({literal(name)}, '{lsn_text(start)}')")
        except psycopg.errors.ConfigurationLimitExceeded:
            return self.slot  # the server has no free slot
        except psycopg.errors.ObjectNotInPrerequisiteState:
            return self.slot  # it has just advanced, or was given up, which reading will report
        return name

    def _commits_up_to(self, session: Any, slot: Slot, position: Json) -> list[TransactionEnd]:
        """Return the commits up to a position, or only the last one if the position names it."""
        name = self._slot_from(session, slot, _last_commit(position))
        events = self._commits_and_tables(session, name, int(position["lsn"]))
        return [event for event in events if isinstance(event, TransactionEnd)]

    def _peek_log(
        self,
        session: Any,
        peeked_slot: str,
        slot: Slot,
        table: FoundTable,
        position: Json,
        last: int,
        bound: int,
        context: SourceContext,
    ) -> PeekedLog:
        """Peek at about `bound` bytes of the log after the position, but at least up to the next commit, if any.

        peeked_slot: the name of a slot that has the position's last commit and everything after it.
        """
        first, is_same_table = int(position["lsn"]), position.get("table") == table.oid
        size = bound
        while True:
            upto = min(last, first + size)
            if upto <= first:
                return PeekedLog([], [], last)
            commits: list[TransactionEnd] = []
            tables: list[tuple[int, ChangedTable]] = []
            changed_tables: list[ChangedTable] = []
            for event in self._commits_and_tables(session, peeked_slot, upto):
                if isinstance(event, TransactionEnd):
                    commits.append(event)
                    tables += [(event.end, changed) for changed in changed_tables]
                    changed_tables = []
                elif self._is_read(event) or (is_same_table and event.oid == table.oid):
                    changed_tables.append(event)
            self._refuse_older_copy(slot, position, commits, context)
            new_commits = [commit for commit in commits if first < commit.end <= last]
            if new_commits or upto == last:
                return PeekedLog(new_commits, tables, upto)
            size *= 4

    def _is_read(self, table: ChangedTable) -> bool:
        return (table.schema, table.name) == (self.table_name.schema, self.table_name.name)

    def _layouts(
        self, log: PeekedLog, slot: Slot, table: FoundTable, position: Json, end: int, context: SourceContext
    ) -> tuple[list[Any], list[Any]]:
        """Return the column numbers of each table layout in the log up to `end`, and the columns as of `end`."""
        sent = self._sent(slot, table)
        before = position["columns"] if position.get("table") == table.oid else None
        layouts: dict[tuple[int, str, tuple[str, ...]], list[int]] = {}
        for commit_end, changed in log.tables:
            if commit_end > end:
                break
            is_same = changed.oid == table.oid
            names = changed.layout[-1]
            is_new = commit_end > position["lsn"]
            numbers = column_numbers(names, table, sent if is_same else (), before if is_same else None)
            if numbers is None:
                if is_new:
                    raise self._unknown_columns(changed, table, context)
                continue  # its changes have been read before
            layouts[changed.layout] = numbers
            if is_same and (is_new or before is None):
                before = [list(pair) for pair in zip(numbers, names, strict=True)]
        if before is None:
            before = [[table.columns[name].number, name] for name in sent]
        planned_layouts = [[oid, name, list(names), numbers] for (oid, name, names), numbers in layouts.items()]
        return planned_layouts, before

    def _unknown_columns(self, changed: ChangedTable, table: FoundTable | None, context: SourceContext) -> Invalid:
        current = f", which now has {', '.join(table.columns)}" if table is not None else ""
        return Invalid(
            f"source {context.source!r}: unread changes have columns {', '.join(changed.layout[-1])} of "
            f"{self.table_name}{current}: it is uncertain which columns these were",
            expected="all changes to be read before columns are renamed and others dropped",
            help="read the table again under another source name, with another slot",
            reason="COLUMNS_UNKNOWN",
        )

    def _commit_message(self, cursor: Any) -> int:
        """Commit a message that changes no table, and return the end of the server's log after it."""
        cursor.execute("SELECT set_config('synchronous_commit', 'local', false)")
        cursor.execute("SELECT pg_logical_emit_message(true, 'tidegate', 'here')")
        cursor.execute("SELECT pg_current_wal_flush_lsn()::text")
        return lsn_number(cursor.fetchone()[0])

    def _commits_and_tables(self, session: Any, slot: str, upto: int) -> Iterator[TransactionEnd | ChangedTable]:
        """Yield the commits and the tables that they changed, from a slot's position up to another one.

        If a job is reading the slot, a copy of it is used.
        """
        import psycopg

        try:
            yield from commits_and_tables(self._peeked(session, slot, upto, self.publication, _ENDS_AND_TABLES))
        except psycopg.errors.ObjectInUse:
            name = _session_slot_name(session)
            session.execute(f"SELECT pg_copy_logical_replication_slot({literal(slot)}, {literal(name)}, true)")
            yield from commits_and_tables(self._peeked(session, name, upto, self.publication, _ENDS_AND_TABLES))
            session.execute(f"SELECT pg_drop_replication_slot({literal(name)})")

    def _messages(
        self, session: Any, slot: str, upto: int, publication: str
    ) -> Generator[tuple[int, bytes], None, None]:
        """Yield the plugin's messages from a slot's position up to another one."""
        import psycopg

        session.execute(SAME_TEXT)
        deadline = seams.monotonic() + _BUSY_SECONDS
        while True:
            try:
                yield from self._peeked(session, slot, upto, publication)
            except psycopg.errors.ObjectInUse:
                if seams.monotonic() > deadline:
                    raise Unavailable(
                        f"slot {self.slot!r} is in use by another session",
                        expected="a slot for this source alone",
                        help="another attempt may still be reading it: the next one tries again",
                        reason="SLOT_BUSY",
                    ) from None
                seams.sleep(0.5)
            else:
                return

    def _peeked(
        self, session: Any, slot: str, upto: int, publication: str, only: str = "true"
    ) -> Iterator[tuple[int, bytes]]:
        """Yield messages of the plugin. The commits of `_commit_message` are among them."""
        import psycopg

        query = (
            f"SELECT xid::text::bigint, data FROM pg_logical_slot_peek_binary_changes({literal(slot)}, "
            f"'{lsn_text(upto)}', NULL, 'proto_version', '1', 'messages', 'true', 'publication_names', "
            f"{literal(_list_element(publication))}) WHERE {only}"
        )
        try:
            yield from session.cursor(binary=True).stream(query)
        except psycopg.errors.UndefinedObject:
            raise Invalid(
                f"publication {publication!r} did not exist yet when changes were made that slot {self.slot!r} keeps",
                expected="a publication that is older than the slot",
                help=f"these changes cannot be read: SELECT pg_drop_replication_slot({literal(self.slot)}); "
                f"SELECT pg_create_logical_replication_slot({literal(self.slot)}, 'pgoutput'); then read the table "
                "under another source name",
                reason="NO_PUBLICATION",
            ) from None


class ChangedRows:
    """Collects rows of changes, column by column."""

    def __init__(
        self,
        columns: list[ReadColumn],
        layouts: Mapping[tuple[int, str, tuple[str, ...]], list[int]],
        unreadable: Callable[[ReadColumn], Invalid],
    ) -> None:
        """Collect no rows yet.

        layouts: the column numbers of each table layout in the log.
        unreadable: returns the error for a value that Spark or Python does not support.
        """
        self._columns, self._layouts, self._unreadable = columns, layouts, unreadable
        self._values: list[list[Any]] = [[] for _ in columns]
        self._change_values: list[tuple[Any, ...]] = []
        self._loaders: dict[int, Any] = {}
        self._indexes: dict[ChangedTable, list[int | None]] = {}

    def add(self, change: RowChange) -> None:
        if change.kind == "insert":
            self._add(change, "insert", change.new, None)
        elif change.kind == "update":
            if change.old is not None:
                self._add(change, "update_preimage", change.old, None)
            self._add(change, "update_postimage", change.new, change.old)
        else:
            self._add(change, change.kind, change.old, None)

    def table(self) -> pa.Table:
        import pyarrow as pa

        arrays = [self._array(column, values) for column, values in zip(self._columns, self._values, strict=True)]
        types = (pa.string(), pa.int64(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.list_(pa.string()))
        change_values = list(zip(*self._change_values, strict=True)) or [()] * len(types)
        arrays += [pa.array(values, type) for values, type in zip(change_values, types, strict=True)]
        return pa.table(arrays, names=[*(column.name for column in self._columns), *_change_column_names()])

    def _array(self, column: ReadColumn, values: list[Any]) -> pa.Array:
        import pyarrow as pa

        try:
            return pa.array(values, column.arrow)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            raise self._unreadable(column) from None

    def _add(self, change: RowChange, kind: str, row: Any, old: Any) -> None:
        unchanged = []
        for column, values, index in zip(self._columns, self._values, self._indexes_in(change.table), strict=True):
            value, oid = None, 0
            if row is not None and index is not None:
                value, oid = row[index], change.table.columns[index][1]
            if value is UNCHANGED:
                value = old[index] if old is not None else None
                if value is None or value is UNCHANGED:
                    unchanged.append(column.name)
                    value = None
            if value is not None:
                value = self._load(column, oid, value)
            values.append(value)
        commit = change.commit
        moment = _EPOCH + timedelta(microseconds=commit.micros)
        self._change_values.append((kind, commit.end, change.number, commit.xid, moment, unchanged))

    def _indexes_in(self, table: ChangedTable) -> list[int | None]:
        """Return the index of each column's value in the table's changes, None if the table did not have the column."""
        if table not in self._indexes:
            present: Sequence[object] = self._layouts.get(table.layout, ())
            columns: list[object] = [column.number for column in self._columns]
            if table.layout not in self._layouts:  # an older version planned the range, without column numbers
                present, columns = table.layout[-1], [column.name for column in self._columns]
            self._indexes[table] = [present.index(column) if column in present else None for column in columns]
        return self._indexes[table]

    def _load(self, column: ReadColumn, oid: int, text: str) -> Any:
        import psycopg

        try:
            return self._value(column, oid, text)
        except (ValueError, ArithmeticError, psycopg.Error):
            raise self._unreadable(column) from None

    def _value(self, column: ReadColumn, oid: int, text: str) -> Any:
        if not column.spark.startswith("array<"):
            return column.from_text(text)
        if oid not in self._loaders:
            from psycopg.adapt import Transformer
            from psycopg.pq import Format

            self._loaders[oid] = Transformer().get_loader(oid, Format.TEXT)
        return self._loaders[oid].load(text.encode())


def _last_commit(position: Json) -> int | None:
    """Return where the record of the last commit that was read begins, or None if the position does not name it."""
    return int(position["commit"]["lsn"]) if "commit" in position else None


def _spark_columns(splits: Json, as_text: Sequence[str]) -> list[Column]:
    """Return the columns of a planned range with the types as which they are read."""
    return [Column(column.name, column.spark) for column in planned_columns(splits["columns"], as_text)]


def _change_column_names() -> list[str]:
    return [part.split()[0] for part in CHANGE_COLUMNS.split(", ")]


def _session_slot_name(session: Any) -> str:
    """Return the name of a session's temporary slot."""
    return f"tidegate_{session.info.backend_pid}"


def _list_element(publication: str) -> str:
    """Return a publication's name as an element of the plugin's list."""
    return '"' + publication.replace('"', '""') + '"'
