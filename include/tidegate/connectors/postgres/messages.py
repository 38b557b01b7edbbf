"""The messages of PostgreSQL's own output plugin, pgoutput, in version 1 of its protocol: changes of rows as texts."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = [
    "UNCHANGED",
    "ChangedTable",
    "RowChange",
    "TransactionEnd",
    "changes",
    "commits_and_tables",
    "lsn_number",
    "lsn_text",
]

UNCHANGED: Final = object()
"""In place of a value: it is as it was, and was not sent, since it is stored outside of the row."""

Values = tuple[object, ...]
"""Texts; None for null; UNCHANGED."""

_COMMIT: Final = struct.Struct(">xxQQq")
_KINDS: Final = {b"I": "insert", b"U": "update", b"D": "delete", b"T": "truncate"}


@dataclass(frozen=True)
class ChangedTable:
    """A table as it was at the time of a change."""

    oid: int
    schema: str
    name: str
    columns: tuple[tuple[str, int], ...]
    """Names, and the oids of their types."""

    @property
    def layout(self) -> tuple[int, str, tuple[str, ...]]:
        """The table, its name, and the names of its columns, in the order of a row."""
        return self.oid, f"{self.schema}.{self.name}", tuple(name for name, _ in self.columns)


@dataclass(frozen=True)
class TransactionEnd:
    """The end of a transaction. No two have the same, not even in copies of a server that went different ways."""

    lsn: int
    """Where its record in the server's log begins."""
    end: int
    """Where its record ends: the order of transactions, and the only places where a range may end."""
    xid: int
    micros: int
    """When it was, in microseconds since 2000 began in UTC."""


@dataclass(frozen=True)
class RowChange:
    """A change of one row in a committed transaction."""

    kind: str
    """insert, update, delete, or truncate, which is a change of all rows."""
    table: ChangedTable
    old: Values | None
    """The row as it was, or only its key. None: it was not sent."""
    new: Values | None
    number: int
    """The place in the transaction, from 0."""
    commit: TransactionEnd


def commits_and_tables(messages: Iterable[tuple[int, bytes]]) -> Iterator[TransactionEnd | ChangedTable]:
    """Yield what messages say of ends of transactions, and, before that, of tables that they change."""
    for xid, message in messages:
        if message[:1] == b"C":
            yield _commit(xid, message)
        elif message[:1] == b"R":
            yield _relation(message)


def changes(messages: Iterable[tuple[int, bytes]], after: int, upto: int) -> Iterator[RowChange | TransactionEnd]:
    """Yield the changes of transactions whose commits end after one position, and not after the other, and after those
    of each transaction its commit.

    messages: transaction ids and messages, from any position before on: what the plugin says of a table comes only
    once.
    """
    tables: dict[int, ChangedTable] = {}
    pending: list[tuple[str, ChangedTable, Values | None, Values | None]] = []
    for xid, message in messages:
        tag = message[:1]
        if tag == b"B":
            pending = []
        elif tag == b"R":
            table = _relation(message)
            tables[table.oid] = table
        elif tag in (b"I", b"U", b"D"):
            (oid,) = struct.unpack_from(">I", message, 1)
            pending.append((_KINDS[tag], tables[oid], *_row(message)))
        elif tag == b"T":
            count = struct.unpack_from(">I", message, 1)[0]
            oids = struct.unpack_from(f">{count}I", message, 6)
            pending += [(_KINDS[tag], tables[oid], None, None) for oid in oids]
        elif tag == b"C":
            commit = _commit(xid, message)
            if after < commit.end <= upto:
                for number, (kind, table, old, new) in enumerate(pending):
                    yield RowChange(kind, table, old, new, number, commit)
                yield commit


def lsn_number(text: str) -> int:
    """Return a position in the server's log as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(number: int) -> str:
    """Return a position in the server's log as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def _commit(xid: int, message: bytes) -> TransactionEnd:
    lsn, end, micros = _COMMIT.unpack_from(message)
    return TransactionEnd(lsn, end, xid, micros)


def _relation(message: bytes) -> ChangedTable:
    (oid,) = struct.unpack_from(">I", message, 1)
    schema, place = _text(message, 5)
    name, place = _text(message, place)
    (count,) = struct.unpack_from(">H", message, place + 1)  # after the replica identity
    place += 3
    columns = []
    for _ in range(count):
        column, after = _text(message, place + 1)  # after the flags
        columns.append((column, struct.unpack_from(">I", message, after)[0]))
        place = after + 8
    return ChangedTable(oid, schema or "pg_catalog", name, tuple(columns))


def _row(message: bytes) -> tuple[Values | None, Values | None]:
    old, new, place = None, None, 5
    while place < len(message):
        which = message[place : place + 1]
        values, place = _values(message, place + 1)
        if which == b"N":
            new = values
        else:
            old = values
    return old, new


def _values(message: bytes, place: int) -> tuple[Values, int]:
    (count,) = struct.unpack_from(">H", message, place)
    place += 2
    values: list[object] = []
    for _ in range(count):
        tag, place = message[place : place + 1], place + 1
        if tag == b"t":
            (length,) = struct.unpack_from(">I", message, place)
            values.append(message[place + 4 : place + 4 + length].decode())
            place += 4 + length
        else:
            values.append(UNCHANGED if tag == b"u" else None)
    return tuple(values), place


def _text(message: bytes, place: int) -> tuple[str, int]:
    end = message.index(b"\0", place)
    return message[place:end].decode(), end + 1
