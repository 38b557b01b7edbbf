"""Decodes the messages of PostgreSQL's output plugin pgoutput, in version 1 of its protocol, with values as text."""

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
"""Stands for a value that did not change and was not sent, because it is stored outside of the row."""

Values = tuple[object, ...]
"""Texts, None for null, or UNCHANGED."""

_COMMIT: Final = struct.Struct(">xxQQq")
_KINDS: Final = {b"I": "insert", b"U": "update", b"D": "delete", b"T": "truncate"}


@dataclass(frozen=True)
class ChangedTable:
    """A table as it was at the time of a change."""

    oid: int
    schema: str
    name: str
    columns: tuple[tuple[str, int], ...]
    """The columns' names and the oids of their types."""

    @property
    def layout(self) -> tuple[int, str, tuple[str, ...]]:
        """The table's oid, its name, and the names of its columns in the order of a row."""
        return self.oid, f"{self.schema}.{self.name}", tuple(name for name, _ in self.columns)


@dataclass(frozen=True)
class TransactionEnd:
    """The end of a transaction. It is unique, even among copies of a server that have diverged."""

    lsn: int
    """Where the record in the server's log begins."""
    end: int
    """Where the record ends. Transactions are ordered by this, and ranges may only end at such positions."""
    xid: int
    micros: int
    """The time of the commit, in microseconds since 2000-01-01 in UTC."""


@dataclass(frozen=True)
class RowChange:
    """A change of one row in a committed transaction."""

    kind: str
    """insert, update, delete, or truncate, which changes all rows."""
    table: ChangedTable
    old: Values | None
    """The row before the change, or only its key, or None if it was not sent."""
    new: Values | None
    number: int
    """The position in the transaction, from 0."""
    commit: TransactionEnd


def commits_and_tables(messages: Iterable[tuple[int, bytes]]) -> Iterator[TransactionEnd | ChangedTable]:
    """Yield the ends of transactions, and before each one the tables that it changes."""
    for xid, message in messages:
        if message[:1] == b"C":
            yield _commit(xid, message)
        elif message[:1] == b"R":
            yield _relation(message)


def changes(messages: Iterable[tuple[int, bytes]], after: int, upto: int) -> Iterator[RowChange | TransactionEnd]:
    """Yield the changes of each transaction that ends between two positions, and then its end.

    messages: transaction ids and messages. They may begin at any earlier position, and must include the message that
        describes a table, which the plugin sends only once.
    after, upto: the position after which (exclusive) and up to which (inclusive) the transactions end.
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
    schema, offset = _text(message, 5)
    name, offset = _text(message, offset)
    (count,) = struct.unpack_from(">H", message, offset + 1)  # skips the replica identity
    offset += 3
    columns = []
    for _ in range(count):
        column, type_offset = _text(message, offset + 1)  # skips the flags
        columns.append((column, struct.unpack_from(">I", message, type_offset)[0]))
        offset = type_offset + 8
    return ChangedTable(oid, schema or "pg_catalog", name, tuple(columns))


def _row(message: bytes) -> tuple[Values | None, Values | None]:
    old, new, offset = None, None, 5
    while offset < len(message):
        tag = message[offset : offset + 1]
        values, offset = _values(message, offset + 1)
        if tag == b"N":
            new = values
        else:
            old = values
    return old, new


def _values(message: bytes, offset: int) -> tuple[Values, int]:
    """Return the values of a row, and the offset after them."""
    (count,) = struct.unpack_from(">H", message, offset)
    offset += 2
    values: list[object] = []
    for _ in range(count):
        tag, offset = message[offset : offset + 1], offset + 1
        if tag == b"t":
            (length,) = struct.unpack_from(">I", message, offset)
            values.append(message[offset + 4 : offset + 4 + length].decode())
            offset += 4 + length
        else:
            values.append(UNCHANGED if tag == b"u" else None)
    return tuple(values), offset


def _text(message: bytes, offset: int) -> tuple[str, int]:
    """Return a text, and the offset after it."""
    end = message.index(b"\0", offset)
    return message[offset:end].decode(), end + 1
