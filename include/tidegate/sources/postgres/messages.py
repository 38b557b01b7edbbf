"""The messages of PostgreSQL's own output plugin, pgoutput, in version 1 of its protocol: changes of rows as texts."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["UNCHANGED", "ChangedTable", "RowChange", "changes", "lsn_number", "lsn_text"]

UNCHANGED: Final = object()
"""In place of a value: it is as it was, and was not sent, since it is stored outside of the row."""

Values = tuple[object, ...]
"""Texts; None for null; UNCHANGED."""

_COMMIT: Final = struct.Struct(">xxQQq")
_KINDS: Final = {b"I": "insert", b"U": "update", b"D": "delete", b"T": "truncate"}


@dataclass(frozen=True)
class ChangedTable:
    """A table as it was at the time of a change."""

    schema: str
    name: str
    columns: tuple[tuple[str, int], ...]
    """Names, and the oids of their types."""


@dataclass(frozen=True)
class RowChange:
    """A change of one row in a committed transaction."""

    kind: str
    """insert, update, delete, or truncate, which is a change of all rows."""
    table: ChangedTable
    old: Values | None
    """The row as it was, or only its key. None: it was not sent."""
    new: Values | None
    commit_lsn: int
    """The end of the commit: the order of transactions."""
    number: int
    """The place in the transaction, from 0."""
    xid: int
    micros: int
    """The time of the commit, in microseconds since 2000 began in UTC."""


def changes(messages: Iterable[tuple[int, bytes]], after: int, upto: int) -> Iterator[RowChange]:
    """Yield the changes of transactions whose commits end after one position, and not after the other.

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
            oid, table = _relation(message)
            tables[oid] = table
        elif tag in (b"I", b"U", b"D"):
            (oid,) = struct.unpack_from(">I", message, 1)
            pending.append((_KINDS[tag], tables[oid], *_row(message)))
        elif tag == b"T":
            count = struct.unpack_from(">I", message, 1)[0]
            oids = struct.unpack_from(f">{count}I", message, 6)
            pending += [(_KINDS[tag], tables[oid], None, None) for oid in oids]
        elif tag == b"C":
            _, end, micros = _COMMIT.unpack_from(message)
            if after < end <= upto:
                for number, (kind, table, old, new) in enumerate(pending):
                    yield RowChange(kind, table, old, new, end, number, xid, micros)


def lsn_number(text: str) -> int:
    """Return a position in the server's log as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(number: int) -> str:
    """Return a position in the server's log as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def _relation(message: bytes) -> tuple[int, ChangedTable]:
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
    return oid, ChangedTable(schema or "pg_catalog", name, tuple(columns))


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
