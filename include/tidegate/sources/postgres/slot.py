"""A source of all changes of a table of PostgreSQL, from a logical replication slot.

The slot keeps the server's log from a position on. A plan takes the log up to where it is on the server's disk; reading
only peeks, so the same range is there again for the next attempt. The slot moves on when retention has let go of a
range: nobody will read it again, not even after a rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidegate import seams
from tidegate.errors import Invalid, Unavailable
from tidegate.postgres import (
    Database,
    TableName,
    connection_problems,
    find_table,
    literal,
    quoted_name,
    table_problems,
)
from tidegate.records.records import Amount, Json, Lag
from tidegate.sources.base import Planned, Source, SourceContext
from tidegate.sources.postgres.columns import (
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
from tidegate.sources.postgres.messages import UNCHANGED, RowChange, changes, lsn_number, lsn_text
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
_LEAST_BYTES: Final = 1 << 20
"""Each range is read from where the slot stands, so smaller ones than this would only cost more."""
_BUSY_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Slot:
    """A replication slot as the server describes it."""

    kept_from: int
    """Nothing that was committed before this position is kept."""
    flushed: int
    """The end of the server's log on its disk."""
    system: str
    published: frozenset[str] | None
    """The table's columns that the publication has. None: all."""


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
            slot = self._found(session.cursor(), context)
            return {"system": slot.system, "lsn": slot.kept_from}

    def gone(self, start: Json | None, end: Json | None, context: SourceContext) -> list[str]:
        """See Source: a slot lets go of what was read."""
        return [] if start == end else ["changes that came through a replication slot cannot be read a second time"]

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        with self._database(context).session("planning") as session:
            cursor = session.cursor()
            slot = self._found(cursor, context)
            position: Json = start if start is not None else {"system": slot.system, "lsn": slot.kept_from}
            self._refuse_other_system(slot, position, context)
            self._refuse_gap(slot, position["lsn"], context)
            self._refuse_shorter_log(slot, position["lsn"], context)
            found = find_table(cursor, self.table_name)
            assert found is not None
            wanted = [
                name
                for name, column in found.columns.items()
                if not column.computed and (slot.published is None or name in slot.published)
            ]
            columns = read_columns(self.table_name, found, wanted, self.as_text)
            own = {part.split()[0] for part in OWN_COLUMNS.split(", ")} & found.columns.keys()
        if own:
            raise Invalid(
                f"source {context.source!r}: {self.table_name} has columns that this source adds: {', '.join(own)}",
                help="rename them in the table",
                reason="BAD_TABLE",
            )
        first = int(position["lsn"])
        last = slot.flushed if context.until is None else min(slot.flushed, int(context.until["lsn"]))
        waiting = max(0, last - first)
        if context.at_most is not None:
            context = replace(context, at_most=max(context.at_most, _LEAST_BYTES))
        size = min(waiting, context.bound(self.max_bytes) or 1)
        end = position | {"lsn": first + size}
        return Planned(
            end=end,
            splits={"system": slot.system, "first": first, "end": first + size, "columns": recorded(columns)},
            empty=not size,
            more=size < waiting,
            summary=f"{lsn_text(first)} to {lsn_text(first + size)}: {size / 1e6:,.1f} MB of the log",
            amount=size,
            lag=Lag(bytes=waiting - size),
        )

    def verify(self, splits: Json, context: SourceContext) -> Amount | None:
        with self._database(context).session("verifying the range") as session:
            slot = self._found(session.cursor(), context)
        self._refuse_other_system(slot, splits, context)
        self._refuse_gap(slot, splits["first"], context)
        self._refuse_shorter_log(slot, splits["end"], context)
        return Amount(bytes=splits["end"] - splits["first"])

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        columns = planned_columns(splits["columns"], self.as_text)

        def unreadable(column: ReadColumn) -> Invalid:
            where = f"between {lsn_text(splits['first'])} and {lsn_text(splits['end'])}"
            return unreadable_values(context.source, self.table_name, [column], where)

        rows = ChangedRows(columns, unreadable)
        if splits["end"] > splits["first"]:
            with self._database(context).session("reading the range") as session:
                for change in changes(self._messages(session, splits), splits["first"], splits["end"]):
                    if (change.table.schema, change.table.name) == (self.table_name.schema, self.table_name.name):
                        rows.add(change)
                slot = self._found(session.cursor(), context)
            self._refuse_gap(slot, splits["first"], context)  # else it could have moved while it was read
        return frame_of(spark, rows.table(), f"{ddl_of(columns)}, {OWN_COLUMNS}")

    def release(self, before: Json, context: SourceContext) -> None:
        with self._database(context).session("letting go of the log") as session:
            cursor = session.cursor()
            slot = self._found(cursor, context)
            if slot.system == before["system"] and slot.kept_from < before["lsn"] <= slot.flushed:
                cursor.execute(f"SELECT pg_replication_slot_advance({literal(self.slot)}, '{lsn_text(before['lsn'])}')")

    # --- looking --------------------------------------------------------------------------------------------

    def _database(self, context: SourceContext) -> Database:
        return Database.of(context.place, self.connection)

    def _found(self, cursor: Any, context: SourceContext) -> Slot:
        """Return the slot. Raise Invalid if it, the publication or the table is not as it must be."""
        table, slot, publication = self.table_name, literal(self.slot), literal(self.publication)
        cursor.execute(
            f"""SELECT s.plugin::text, s.database = current_database(), s.wal_status, s.confirmed_flush_lsn::text,
              pg_current_wal_flush_lsn()::text, (SELECT system_identifier::text FROM pg_control_system()),
              (SELECT coalesce(to_jsonb(p) -> 'attnames', 'null')::text
                FROM pg_publication_tables p WHERE p.pubname = {publication}
                AND p.schemaname = {literal(table.schema)} AND p.tablename = {literal(table.name)})
            FROM (SELECT 1) one LEFT JOIN pg_replication_slots s ON s.slot_name = {slot}"""
        )
        plugin, here, wal_status, kept_from, flushed, system, published = cursor.fetchone()
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
        return Slot(lsn_number(kept_from), lsn_number(flushed), system, frozenset(names) if names is not None else None)

    def _refuse_other_system(self, slot: Slot, position: Json, context: SourceContext) -> None:
        if slot.system != position["system"]:
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

    def _messages(self, session: Any, splits: Json) -> Iterator[tuple[int, bytes]]:
        """Yield what the plugin says from where the slot stands, up to the end of the range."""
        import psycopg

        session.execute(SAME_TEXT)
        query = (
            f"SELECT xid::text::bigint, data FROM pg_logical_slot_peek_binary_changes({literal(self.slot)}, "
            f"'{lsn_text(splits['end'])}', NULL, 'proto_version', '1', 'publication_names', "
            f"{literal(_listed(self.publication))})"
        )
        deadline = seams.monotonic() + _BUSY_SECONDS
        while True:
            try:
                yield from session.cursor(binary=True).stream(query)
            except psycopg.errors.UndefinedObject:
                raise Invalid(
                    f"publication {self.publication!r} was not there yet when changes were made that slot "
                    f"{self.slot!r} keeps",
                    expected="a publication that was there before the slot",
                    help=f"changes up to then cannot be read: SELECT pg_drop_replication_slot({literal(self.slot)}); "
                    f"SELECT pg_create_logical_replication_slot({literal(self.slot)}, 'pgoutput'); then read the table "
                    "under another source name",
                    reason="NO_PUBLICATION",
                ) from None
            except psycopg.Error as error:
                if error.sqlstate != "55006":
                    raise
                if seams.monotonic() > deadline:
                    raise Unavailable(
                        f"slot {self.slot!r} is read by somebody else",
                        expected="a slot for this source alone",
                        help="another attempt may still be reading it: it is tried again",
                        reason="SLOT_BUSY",
                    ) from None
                seams.sleep(0.5)
            else:
                return


class ChangedRows:
    """Rows of changes, column by column."""

    def __init__(self, columns: list[ReadColumn], unreadable: Callable[[ReadColumn], Invalid]) -> None:
        """unreadable: makes the error for a value of a column that Spark or Python does not have."""
        self._columns, self._unreadable = columns, unreadable
        self._values: list[list[Any]] = [[] for _ in columns]
        self._own: list[tuple[Any, ...]] = []
        self._loaders: dict[int, Any] = {}

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
        names = change.table.columns
        sent = {name: (oid, value) for (name, oid), value in zip(names, row or [None] * len(names), strict=True)}
        before = {name: value for (name, _), value in zip(names, old or (), strict=False)}
        unchanged = []
        for column, values in zip(self._columns, self._values, strict=True):
            oid, value = sent.get(column.name, (0, None))
            if value is UNCHANGED:
                value = before.get(column.name)
                if value is None or value is UNCHANGED:
                    unchanged.append(column.name)
                    value = None
            values.append(None if value is None else self._loaded(column, oid, value))
        moment = _EPOCH + timedelta(microseconds=change.micros)
        self._own.append((kind, change.commit_lsn, change.number, change.xid, moment, unchanged))

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


def _listed(publication: str) -> str:
    """Return a publication's name as an element of the plugin's list."""
    return '"' + publication.replace('"', '""') + '"'
