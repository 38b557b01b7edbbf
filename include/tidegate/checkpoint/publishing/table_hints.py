"""Hints that pass the logs of tables on object stores from one process to the next.

A new process would replay each table's log with one request for every commit since the last Delta log checkpoint, and
under Airflow each task is a new process. So a publisher writes a hint into the ledger, and later processes start from
it: one listing per table shows whether the store still has that commit, and which ones follow it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from tidegate import seams
from tidegate.delta import Location, observed_tables, trust_hint
from tidegate.errors import Unavailable
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.records.records import SeenTables

__all__ = ["read_table_hint", "write_table_hint"]

_HINT_EVERY = 10
"""A long-running process writes the hint every N publications; a new process then reads at most N commits."""

_publications: dict[tuple[int, str], int] = {}
"""How often this process has published, by process id and pipeline. The first publication counts 0."""


def read_table_hint(ledger: Ledger, tables: Iterable[Location]) -> None:
    """Start from the hint for those of these tables that this process has not read itself."""
    unread = {}
    for table in tables:
        if not table.is_local and observed_tables(table) is None:
            unread[table.url] = table
    if not unread:
        return
    for seen in ledger.seen_tables():
        if seen.url in unread:
            trust_hint(unread[seen.url], seen)


def write_table_hint(ledger: Ledger, tables: Iterable[Location]) -> None:
    """Write the logs of these tables as this process last saw them: on its first publication, and every N
    afterwards."""
    seen_tables = []
    for table in tables:
        seen = observed_tables(table) if not table.is_local else None
        if seen is not None:
            seen_tables.append(seen)
    if not seen_tables:
        return
    key = os.getpid(), ledger.home
    _publications[key] = _publications.get(key, -1) + 1
    if _publications[key] % _HINT_EVERY == 0:
        with contextlib.suppress(Unavailable):  # losing the hint only costs time
            ledger.hint_seen_tables(SeenTables(**stamp(seams.new_id()), tables=seen_tables))
