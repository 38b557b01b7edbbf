"""What the logs of tables on object stores look like, from one process to the next.

A new process would replay each table's log by a request for every commit since the log's last checkpoint, and under
Airflow each task is a new process. So whoever publishes leaves a hint in the ledger, and others start from it: one
listing per table tells whether the store still has that commit, and which ones came after it.
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
"""A process that runs for long leaves a hint once per so many publications: who begins later reads a few commits."""

_left: dict[tuple[int, str], int] = {}
"""How often this process has published, by pipeline."""


def read_table_hint(ledger: Ledger, tables: Iterable[Location]) -> None:
    """Start from what others have seen of these tables, as far as this process has seen none of them itself."""
    unseen = {table.url: table for table in tables if not table.is_local and observed_tables(table) is None}
    if not unseen:
        return
    for known in ledger.seen_tables():
        if known.url in unseen:
            trust_hint(unseen[known.url], known)


def write_table_hint(ledger: Ledger, tables: Iterable[Location]) -> None:
    """Leave what this process has seen of these tables, the first time, and then now and then."""
    known = [found for table in tables if not table.is_local and (found := observed_tables(table)) is not None]
    if not known:
        return
    key = os.getpid(), ledger.home
    _left[key] = _left.get(key, -1) + 1
    if _left[key] % _HINT_EVERY == 0:
        with contextlib.suppress(Unavailable):  # it only costs time
            ledger.hint_seen_tables(SeenTables(**stamp(seams.new_id()), tables=known))
