"""A source of all changes of a table of PostgreSQL, from a logical replication slot.

The slot keeps the server's log from a position on. A plan takes the log up to the end of a commit that is on the
server's disk; reading only peeks, so the same range is there again for the next attempt. The slot moves on when
retention has let go of a range: nobody will read it again, not even after a rollback. What it keeps until then is not
decoded again and again: a look goes through a copy of the slot, which lasts as long as the session, and is moved to
where the look begins.

A range ends with a commit for two reasons. A slot that was moved into the middle of a commit's record skips that
transaction. And a server that has this commit has all that was read, and nothing new before it; an older copy does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

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
    nothing_to_accept_error,
    older_copy,
    refuse_other_timeline,
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
from tidegate.connectors.source import Planned, Source, SourceContext, is_at_least
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import Place
from tidegate.records.records import Amount, Json, Lag
from tidegate.versions.python import UTC

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PostgresChanges"]

OWN_COLUMNS: Final = (
    "_change_type string, _commit_lsn bigint, _change_number int, _xid bigint, _commit_timestamp timestamp, "
    "_unchanged array<string>"
)
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MIN_BYTES: Final = 1 << 20
"""For each range the server passes over all that the slot keeps before it, so smaller ones would only cost more."""
_BUSY_SECONDS: Final = 30.0
_FOREIGN_BYTES: Final = 16 << 20
"""After so much of the log without a change of the publication, the source commits something itself: the slot cannot
follow without a commit that ends the range."""
_ENDS_AND_TABLES: Final = "get_byte(data, 0) IN (67, 82)"
"""The condition for messages of ends of transactions and of tables, which are all that a plan needs."""


@dataclass(frozen=True)
class Slot:
    """A replication slot as the server describes it."""

    kept_from: int
    """Nothing that was committed before this position is kept."""
    flushed: int
    """The end of the server's log on its disk, maybe in the middle of a record."""
    history: ServerHistory
    published: frozenset[str] | None
    """The table's columns that the publication has. None: all."""


@dataclass(frozen=True)
class LogAhead:
    """What a slot keeps after a position, up to another one."""

    commits: list[TransactionEnd]
    """Those that end after the position and are on the server's disk."""
    tables: list[tuple[int, ChangedTable]]
    """The source's table as it was at changes, also those before the position, each with the end of its commit."""
    upto: int


class PostgresChanges(Source):
    """Every insert, update and delete of a table of PostgreSQL, in the order of commits.

    PostgresChanges("orders", connection="shop", slot="tidegate_orders", publication="tidegate_orders")

    It needs a server with wal_level=logical, and once, by a person (the slot is for this source alone):

        CREATE PUBLICATION tidegate_orders FOR TABLE orders;
        SELECT pg_create_logical_replication_slot('tidegate_orders', 'pgoutput');

    Every change that is committed after the slot was made is read exactly once, and a range is read again as it was.
    Rows that were there before are not among them. The server keeps its log until retention lets go of it: bound that
    with max_slot_wal_keep_size, and the pipeline fails, instead of skipping anything, if the server gave up the slot.

    Each row has the columns of the table, and

        _change_type        insert, update_preimage, update_postimage, delete, or truncate (all rows: no values)
        _commit_lsn         the position of the commit, and
        _change_number      the place within the transaction: together, the order of all changes
        _xid                the transaction
        _commit_timestamp   the time of the commit
        _unchanged          columns whose long values did not change, and were not sent: they are null here

    Of a deleted row, and of a row before an update, only the key is known, the latter only if it changes, unless the
    table has REPLICA IDENTITY FULL. Then all values are, and _unchanged is empty.

    table: the table's name, as it is written, with its schema if that is not public.
    connection: a name of the setting `connections`. Its user needs the attribute REPLICATION.
    slot, publication: their names. What the publication leaves out (columns, rows, kinds of changes) is not read.
    as_text: columns to read as PostgreSQL writes them, for values that Spark or Python cannot hold, such as 'infinity'.
    max_bytes: the bound of one checkpoint, in bytes of the server's log, changes of other tables included.
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
    ) -> None:
        self.table = table
        self.connection = connection
        self.slot = slot
        self.publication = publication
        self.as_text = as_text if isinstance(as_text, str) else list(as_text)
        self.max_bytes = max_bytes

    def describe(self) -> Json:
        return {"kind": self.kind, **vars(self)}

    def shared_uri(self, place: Place) -> str | None:
        return Database.of(place, self.connection).shared_uri(self.table_name)

    def problems(self) -> list[str]:
        problems = table_problems(self.table) + connection_problems(self.connection)
        for name, value in (("slot", self.slot), ("publication", self.publication)):
            if not isinstance(value, str) or not value:
                problems.append(f"{name} is {value!r}; it must be a name")
        problems += as_text_problems(self.as_text)
        if isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, int) or self.max_bytes < 1:
            problems.append(f"max_bytes is {self.max_bytes!r}; it must be a whole number, at least 1")
        return problems

    @property
    def table_name(self) -> TableName:
        """The table, with its schema."""
        return TableName.of(self.table)

    def beginning(self, context: SourceContext) -> Json | None:
        with self._database(context).session("looking at the slot") as session:
            cursor = session.cursor()
            slot = self._find_slot(cursor, context)
            return self._initial_position(slot, self._table(cursor, context))

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        return is_at_least(position, other, "lsn", "system")

    def missing_input(self, start: Json | None, end: Json | None, context: SourceContext) -> list[str]:
        """See Source: a slot lets go of what was read."""
        return [] if start == end else ["changes that came through a replication slot cannot be read a second time"]

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        with self._database(context).session("planning") as session:
            cursor = session.cursor()
            slot, table = self._find_slot(cursor, context), self._table(cursor, context)
            position = start if start is not None else self._initial_position(slot, table)
            self._refuse_other_server(slot, position, context)
            refuse_other_timeline(context.source, slot.history, position)
            self._refuse_gap(slot, position["lsn"], context)
            self._refuse_shorter_log(slot, position["lsn"], context)
            columns = read_columns(self.table_name, table, self._sent(slot, table), self.as_text)
            first = int(position["lsn"])
            last = (
                slot.flushed if context.stop_position is None else min(slot.flushed, int(context.stop_position["lsn"]))
            )
            if context.at_most is not None:
                context = replace(context, at_most=max(context.at_most, _MIN_BYTES))
            bound = context.bound(self.max_bytes) or 1
            # How another table was called, and its columns, is only known by all that the slot keeps.
            begin = _last_commit(position) if position.get("table") == table.oid else None
            peeked = self._slot_from(session, slot, begin)
            ahead = self._peek_log(session, peeked, slot, table, position, last, bound, context)
            if not ahead.commits and last - first >= _FOREIGN_BYTES and context.stop_position is None:
                last = self._commit_itself(cursor)
                ahead = self._peek_log(session, peeked, slot, table, position, last, bound, context)
        whole = [commit for commit in ahead.commits if commit.end <= first + bound]
        commit = whole[-1] if whole else next(iter(ahead.commits), None)
        if commit is None:
            splits = {"system": slot.history.system, "first": first, "end": first, "columns": recorded(columns)}
            return Planned(end=position, splits=splits, is_empty=True, summary="no new changes", lag=Lag(bytes=0))
        layouts, last_columns = self._layouts(ahead, slot, table, position, commit.end, context)
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
        if "commit" in position:  # an older version's may be anywhere
            splits["after_commit"] = True
        return Planned(
            end=proof | {"lsn": commit.end, "columns": last_columns},
            splits=splits,
            is_empty=False,
            has_more=ahead.upto < last or commit is not ahead.commits[-1],
            summary=f"{lsn_text(first)} to {lsn_text(commit.end)}: {(commit.end - first) / 1e6:,.1f} MB of the log",
            amount=commit.end - first,
            lag=Lag(bytes=last - commit.end),
        )

    def verify(self, splits: Json, context: SourceContext) -> Amount | None:
        with self._database(context).session("verifying the range") as session:
            slot = self._find_slot(session.cursor(), context)
        self._refuse_other_server(slot, splits, context)
        refuse_other_timeline(context.source, slot.history, splits)
        self._refuse_gap(slot, splits["first"], context)
        self._refuse_shorter_log(slot, splits["end"], context)
        return Amount(bytes=splits["end"] - splits["first"])

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
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
                peeked = self._slot_from(session, slot, splits["first"] if splits.get("after_commit") else None)
                # A stream that is not closed holds its session's lock.
                messages = self._messages(session, peeked, splits["end"], publication)
                closing.enter_context(contextlib.closing(messages))
                for change in changes(messages, splits["first"], splits["end"]):
                    if isinstance(change, TransactionEnd):
                        commit = change
                    elif change.table.layout in layouts:
                        rows.add(change)
                    elif self._is_read(change.table):
                        if "layouts" in splits:
                            raise self._unknown_columns(change.table, None, context)
                        rows.add(change)  # an older version has planned the range
                slot = self._find_slot(session.cursor(), context)
            self._refuse_gap(slot, splits["first"], context)  # else it could have moved while it was read
            if "commit" in splits and not self._is_same(splits, [commit] if commit is not None else []):
                raise self._older_copy(splits["end"], context)
        return frame_of(spark, rows.table(), f"{ddl_of(columns)}, {OWN_COLUMNS}")

    def release(self, before: Json, context: SourceContext) -> None:
        with self._database(context).session("letting go of the log") as session:
            cursor = session.cursor()
            slot, place = self._find_slot(cursor, context), int(before["lsn"])
            if slot.history.system != before["system"] or not slot.kept_from < place <= slot.flushed:
                return
            commits = self._ends_up_to(session, slot, before)
            self._refuse_older_copy(slot, before, commits, context)
            # An older version's position may lie within the record of a commit: the slot would skip that one.
            place = min([place, *(commit.lsn for commit in commits if commit.lsn < place < commit.end)])
            cursor.execute(f"SELECT pg_replication_slot_advance({literal(self.slot)}, '{lsn_text(place)}')")

    def accept(self, position: Json, context: SourceContext, *, unproven: bool = False) -> Json:
        """See Source: a standby that was promoted, or a database that was restored, with the slot."""
        with self._database(context).session("looking for what was read last") as session:
            cursor = session.cursor()
            slot, table = self._find_slot(cursor, context), self._table(cursor, context)
            self._refuse_other_server(slot, position, context)
            if position.get("timeline", slot.history.timeline) == slot.history.timeline and not unproven:
                raise nothing_to_accept_error(context.source, slot.history)
            self._refuse_gap(slot, position["lsn"], context)
            self._refuse_shorter_log(slot, position["lsn"], context)
            if unproven:
                position = {name: value for name, value in position.items() if name != "commit"}
            elif "commit" not in position:
                return self._initial_position(slot, table)  # nothing was read yet
            else:
                commits = self._ends_up_to(session, slot, position)
                self._refuse_older_copy(slot, position, commits, context)
        return position | {"timeline": slot.history.timeline}

    # --- looking --------------------------------------------------------------------------------------------

    def _database(self, context: SourceContext) -> Database:
        return Database.of(context.place, self.connection)

    def _find_slot(self, cursor: Any, context: SourceContext) -> Slot:
        """Return the slot. Raise Invalid if it, the publication or the table is not as it must be."""
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
        plugin, here, wal_status, kept_from, flushed, published = cursor.fetchone()
        if published is None:
            name = quoted_name(self.publication)
            raise Invalid(
                f"source {context.source!r}: publication {self.publication!r} has no table {table}",
                expected="a publication of the table",
                help=f"CREATE PUBLICATION {name} FOR TABLE {table.sql}, before the slot is made; or ALTER PUBLICATION "
                f"{name} ADD TABLE {table.sql}; a partitioned table needs one WITH (publish_via_partition_root = true)",
                reason="NO_PUBLICATION",
            )
        if plugin != "pgoutput" or not here:
            raise Invalid(
                f"source {context.source!r}: there is no replication slot {self.slot!r} "
                + ("" if plugin is None else f"of pgoutput in this database, but one of {plugin}"),
                expected="a slot for this source alone",
                help=f"SELECT pg_create_logical_replication_slot({slot}, 'pgoutput')",
                reason="NO_SLOT",
            )
        if wal_status == "lost" or kept_from is None:
            raise Invalid(
                f"source {context.source!r}: the server has given up slot {self.slot!r}, since it would have had to "
                "keep more of its log than max_slot_wal_keep_size",
                expected="a slot whose changes are kept until they have been read",
                help="changes are lost: make the slot again, and read the table anew under another source name",
                reason="SLOT_LOST",
            )
        names = msgspec.json.decode(published)
        columns = frozenset(names) if names is not None else None
        return Slot(lsn_number(kept_from), lsn_number(flushed), history, columns)

    def _table(self, cursor: Any, context: SourceContext) -> FoundTable:
        """Return the table. Raise Invalid if it has columns that this source adds."""
        table = find_table(cursor, self.table_name)
        assert table is not None
        own = {part.split()[0] for part in OWN_COLUMNS.split(", ")} & table.columns.keys()
        if own:
            raise Invalid(
                f"source {context.source!r}: {self.table_name} has columns that this source adds: {', '.join(own)}",
                help="rename them in the table",
                reason="BAD_TABLE",
            )
        return table

    def _sent(self, slot: Slot, table: FoundTable) -> list[str]:
        """Return the columns that the server sends."""
        return [
            name
            for name, column in table.columns.items()
            if not column.computed and (slot.published is None or name in slot.published)
        ]

    def _initial_position(self, slot: Slot, table: FoundTable) -> Json:
        """Return the position of a source that has read nothing."""
        return {
            "system": slot.history.system,
            "timeline": slot.history.timeline,
            "lsn": slot.kept_from,
            "table": table.oid,
            "columns": [[table.columns[name].number, name] for name in self._sent(slot, table)],
        }

    # --- what must be as it was -----------------------------------------------------------------------------

    def _refuse_other_server(self, slot: Slot, position: Json, context: SourceContext) -> None:
        if slot.history.system != position["system"]:
            raise Invalid(
                f"source {context.source!r}: connection {self.connection!r} leads to another server than before: its "
                "log has other positions",
                expected=f"the server {position['system']}",
                help="name the right server, or read the table anew under another source name",
                reason="OTHER_SERVER",
            )

    def _refuse_gap(self, slot: Slot, first: int, context: SourceContext) -> None:
        if slot.kept_from > first:
            raise Invalid(
                f"source {context.source!r}: slot {self.slot!r} keeps changes from {lsn_text(slot.kept_from)} on",
                expected=f"{lsn_text(first)} or less, where the range begins",
                help="somebody else has moved the slot, or made it again: what is missing is lost here. Read the table "
                "anew under another source name, with a slot of its own",
                reason="SLOT_ADVANCED",
            )

    def _refuse_shorter_log(self, slot: Slot, position: int, context: SourceContext) -> None:
        if slot.flushed < position:
            raise Invalid(
                f"source {context.source!r}: the server's log ends at {lsn_text(slot.flushed)}",
                expected=f"{lsn_text(position)} or more, as planned",
                help="was the server replaced by an older copy? What was planned is not there any more: read the table "
                "anew under another source name, with a slot of its own",
                reason="LOG_SHORTER",
            )

    def _refuse_older_copy(
        self, slot: Slot, position: Json, commits: Sequence[TransactionEnd], context: SourceContext
    ) -> None:
        """Raise Invalid if the commit that was read last is not among those up to there that the slot keeps.

        A slot that stands at the position was moved there when that commit was read: it proves the same.
        """
        if "commit" not in position or position["commit"]["publication"] != self.publication:
            return
        if slot.kept_from != position["lsn"] and not self._is_same(position, commits):
            raise self._older_copy(position["lsn"], context)

    def _is_same(self, position: Json, commits: Sequence[TransactionEnd]) -> bool:
        """Return whether the commit of a position, or of the end of a range, is among others."""
        then = position["commit"]
        return any((each.lsn, each.xid, each.micros) == (then["lsn"], then["xid"], then["micros"]) for each in commits)

    def _older_copy(self, place: int, context: SourceContext) -> Invalid:
        return older_copy(
            context.source, f"the commit that ended at {lsn_text(place)}, and was the last one that was read, is gone"
        )

    # --- the log --------------------------------------------------------------------------------------------

    def _slot_from(self, session: Any, slot: Slot, place: int | None) -> str:
        """Return the name of a slot to peek at for the commits whose records begin at a place or after it. It is a copy
        that was moved there, which the session takes with it: what the slot keeps before that is not decoded.

        place: the beginning or the end of a commit's record. None: all that the slot keeps is needed.
        """
        import psycopg

        if place is None or place <= slot.kept_from:
            return self.slot
        name = _session_slot_name(session)
        try:
            session.execute(f"SELECT pg_copy_logical_replication_slot({literal(self.slot)}, {literal(name)}, true)")
            session.execute(f"SELECT pg_replication_slot_advance({literal(name)}, '{lsn_text(place)}')")
        except psycopg.errors.ConfigurationLimitExceeded:
            return self.slot  # the server has no slot to spare
        except psycopg.errors.ObjectNotInPrerequisiteState:
            return self.slot  # it has just moved on, or was given up: whoever reads it finds out
        return name

    def _ends_up_to(self, session: Any, slot: Slot, position: Json) -> list[TransactionEnd]:
        """Return the ends of transactions up to a position: only the last one, if that proves the position."""
        name = self._slot_from(session, slot, _last_commit(position))
        found = self._ends_and_tables(session, name, int(position["lsn"]))
        return [each for each in found if isinstance(each, TransactionEnd)]

    def _peek_log(
        self,
        session: Any,
        peeked: str,
        slot: Slot,
        table: FoundTable,
        position: Json,
        last: int,
        bound: int,
        context: SourceContext,
    ) -> LogAhead:
        """Look at the log for about so many bytes, but at least up to the next commit, if there is one.

        peeked: the name of a slot that has the position's last commit, and all that comes after it.
        """
        first, renamed = int(position["lsn"]), position.get("table") == table.oid
        size = bound
        while True:
            upto = min(last, first + size)
            if upto <= first:
                return LogAhead([], [], last)
            commits: list[TransactionEnd] = []
            tables: list[tuple[int, ChangedTable]] = []
            changed: list[ChangedTable] = []
            for each in self._ends_and_tables(session, peeked, upto):
                if isinstance(each, TransactionEnd):
                    commits.append(each)
                    tables += [(each.end, one) for one in changed]
                    changed = []
                elif self._is_read(each) or (renamed and each.oid == table.oid):
                    changed.append(each)
            self._refuse_older_copy(slot, position, commits, context)
            new = [commit for commit in commits if first < commit.end <= last]
            if new or upto == last:
                return LogAhead(new, tables, upto)
            size *= 4

    def _is_read(self, table: ChangedTable) -> bool:
        return (table.schema, table.name) == (self.table_name.schema, self.table_name.name)

    def _layouts(
        self, ahead: LogAhead, slot: Slot, table: FoundTable, position: Json, end: int, context: SourceContext
    ) -> tuple[list[Any], list[Any]]:
        """Return how the log names the table's columns up to the end of a range, and how at the end: numbers and
        names."""
        sent = self._sent(slot, table)
        before = position["columns"] if position.get("table") == table.oid else None
        layouts: dict[tuple[int, str, tuple[str, ...]], list[int]] = {}
        for place, changed in ahead.tables:
            if place > end:
                break
            is_same = changed.oid == table.oid
            names = changed.layout[-1]
            numbers = column_numbers(names, table, sent if is_same else (), before if is_same else None)
            if numbers is None and place > position["lsn"]:
                raise self._unknown_columns(changed, table, context)
            if numbers is None:
                continue  # no change that is to be read may have been made with these
            layouts[changed.layout] = numbers
            if is_same and (place > position["lsn"] or before is None):
                before = [list(pair) for pair in zip(numbers, names, strict=True)]
        if before is None:
            before = [[table.columns[name].number, name] for name in sent]
        return [[oid, name, list(names), numbers] for (oid, name, names), numbers in layouts.items()], before

    def _unknown_columns(self, changed: ChangedTable, table: FoundTable | None, context: SourceContext) -> Invalid:
        now = f", which has {', '.join(table.columns)} now" if table is not None else ""
        return Invalid(
            f"source {context.source!r}: changes that wait have columns {', '.join(changed.layout[-1])} of "
            f"{self.table_name}{now}: which of its columns these were is not certain",
            expected="columns that are not renamed after others were dropped, before all changes are read",
            help="read the table anew under another source name, with a slot of its own",
            reason="COLUMNS_UNKNOWN",
        )

    def _commit_itself(self, cursor: Any) -> int:
        """Commit a message that changes nothing. Return the end of the server's log after that."""
        cursor.execute("SELECT set_config('synchronous_commit', 'local', false)")
        cursor.execute("SELECT pg_logical_emit_message(true, 'tidegate', 'here')")
        cursor.execute("SELECT pg_current_wal_flush_lsn()::text")
        return lsn_number(cursor.fetchone()[0])

    def _ends_and_tables(self, session: Any, slot: str, upto: int) -> Iterator[TransactionEnd | ChangedTable]:
        """Yield ends of transactions, and the tables that they changed, from where a slot stands up to a position.

        A job may be reading the slot: then a copy of it serves.
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
        """Yield what the plugin says from where a slot stands, up to a position."""
        import psycopg

        session.execute(SAME_TEXT)
        deadline = seams.monotonic() + _BUSY_SECONDS
        while True:
            try:
                yield from self._peeked(session, slot, upto, publication)
            except psycopg.errors.ObjectInUse:
                if seams.monotonic() > deadline:
                    raise Unavailable(
                        f"slot {self.slot!r} is read by somebody else",
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
        """Yield messages of the plugin, with the commits of `_commit_itself` among them."""
        import psycopg

        query = (
            f"SELECT xid::text::bigint, data FROM pg_logical_slot_peek_binary_changes({literal(slot)}, "
            f"'{lsn_text(upto)}', NULL, 'proto_version', '1', 'messages', 'true', 'publication_names', "
            f"{literal(_listed(publication))}) WHERE {only}"
        )
        try:
            yield from session.cursor(binary=True).stream(query)
        except psycopg.errors.UndefinedObject:
            raise Invalid(
                f"publication {publication!r} was not there yet when changes were made that slot {self.slot!r} keeps",
                expected="a publication that was there before the slot",
                help=f"changes up to then cannot be read: SELECT pg_drop_replication_slot({literal(self.slot)}); "
                f"SELECT pg_create_logical_replication_slot({literal(self.slot)}, 'pgoutput'); then read the table "
                "under another source name",
                reason="NO_PUBLICATION",
            ) from None


class ChangedRows:
    """Rows of changes, column by column."""

    def __init__(
        self,
        columns: list[ReadColumn],
        layouts: Mapping[tuple[int, str, tuple[str, ...]], list[int]],
        unreadable: Callable[[ReadColumn], Invalid],
    ) -> None:
        """layouts: the numbers of columns as the log names them. unreadable: makes the error for a value of a column
        that Spark or Python does not have."""
        self._columns, self._layouts, self._unreadable = columns, layouts, unreadable
        self._values: list[list[Any]] = [[] for _ in columns]
        self._own: list[tuple[Any, ...]] = []
        self._loaders: dict[int, Any] = {}
        self._place: dict[ChangedTable, list[int | None]] = {}

    def add(self, change: RowChange) -> None:
        if change.kind == "update":
            if change.old is not None:
                self._add(change, "update_preimage", change.old, None)
            self._add(change, "update_postimage", change.new, change.old)
        else:
            self._add(change, change.kind, change.new if change.kind == "insert" else change.old, None)

    def table(self) -> pa.Table:
        import pyarrow as pa

        kinds = (pa.string(), pa.int64(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.list_(pa.string()))
        own = list(zip(*self._own, strict=True)) or [()] * len(kinds)
        arrays = [self._array(column, values) for column, values in zip(self._columns, self._values, strict=True)]
        arrays += [pa.array(values, kind) for values, kind in zip(own, kinds, strict=True)]
        names = [part.split()[0] for part in OWN_COLUMNS.split(", ")]
        return pa.table(arrays, names=[*(column.name for column in self._columns), *names])

    def _array(self, column: ReadColumn, values: list[Any]) -> pa.Array:
        import pyarrow as pa

        try:
            return pa.array(values, column.arrow)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            raise self._unreadable(column) from None

    def _add(self, change: RowChange, kind: str, row: Any, old: Any) -> None:
        unchanged = []
        for column, values, place in zip(self._columns, self._values, self._places(change.table), strict=True):
            value = row[place] if row is not None and place is not None else None
            if value is UNCHANGED:
                value = old[place] if old is not None else None
                if value is None or value is UNCHANGED:
                    unchanged.append(column.name)
                    value = None
            oid = change.table.columns[place][1] if place is not None else 0
            values.append(None if value is None else self._loaded(column, oid, value))
        commit = change.commit
        moment = _EPOCH + timedelta(microseconds=commit.micros)
        self._own.append((kind, commit.end, change.number, commit.xid, moment, unchanged))

    def _places(self, table: ChangedTable) -> list[int | None]:
        """Return where in a change the value of each column is. None: the table did not have it then."""
        if table not in self._place:
            here: Sequence[object] = self._layouts.get(table.layout, ())
            wanted: list[object] = [column.number for column in self._columns]
            if table.layout not in self._layouts:
                here, wanted = table.layout[-1], [column.name for column in self._columns]
            self._place[table] = [here.index(each) if each in here else None for each in wanted]
        return self._place[table]

    def _loaded(self, column: ReadColumn, oid: int, text: str) -> Any:
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
    """Return where the record of the commit begins that was read last. None: the position does not say which it was."""
    return int(position["commit"]["lsn"]) if "commit" in position else None


def _session_slot_name(session: Any) -> str:
    """Return the name of the slot that a session may make for itself."""
    return f"tidegate_{session.info.backend_pid}"


def _listed(publication: str) -> str:
    """Return a publication's name as an element of the plugin's list."""
    return '"' + publication.replace('"', '""') + '"'
