"""Looks at every version of every table that anybody could have seen, and at what checkpoints say of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.chaos.deployment import Deployment
from tests.chaos.reference import Fed

__all__ = ["COLUMNS", "Reader", "rows_of"]

COLUMNS = {
    "once": ("id", "k", "v"),
    "totals": ("k", "total", "n"),
    "tens": ("k", "n"),
    "quarantine.checked": ("id", "v"),
}


def folder_of(store: Path, table: str) -> Path:
    if table.startswith("quarantine."):
        return store / "ledger" / "chaos" / "quarantine" / table.partition(".")[2]
    return store / "tables" / table


def rows_of(store: Path, table: str, version: int | None = None) -> tuple[Counter[Any], list[int]]:
    """Its rows; and the ids of rows that somebody else has written, which are negative."""
    found = DeltaTable(str(folder_of(store, table)), version=version)
    names = COLUMNS[table]
    rows = [tuple(row[name] for name in names) for row in found.to_pyarrow_table(columns=list(names)).to_pylist()]
    foreign = [row[0] for row in rows if table == "once" and row[0] < 0]
    return Counter(row for row in rows if not (table == "once" and row[0] < 0)), foreign


class Reader(threading.Thread):
    """Wrong is what is no state of the table after a whole number of files; or what differs between two tables that one
    checkpoint names."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(daemon=True)
        self.deployment = deployment
        self.wrong: list[str] = []
        self.looks = 0
        self.published: dict[int, float] = {}
        """By checkpoint, when it was seen to be on all tables."""
        self._done = threading.Event()
        self._versions = dict.fromkeys(COLUMNS, -1)
        self._fed = 0
        self._sizes: dict[str, dict[int, list[int]]] = {name: {0: [0]} for name in COLUMNS}
        """Of each table, after which numbers of files it is so large."""

    def expect(self, files: int) -> None:
        """So many files have landed."""
        while self._fed < files:
            self._fed += 1
            fed = Fed(self._fed)
            for name, sizes in self._sizes.items():
                sizes.setdefault(size(name, fed.table(name)), []).append(self._fed)

    def run(self) -> None:
        while not self._done.is_set():
            self.look()
            self._done.wait(0.5)

    def close(self) -> None:
        self._done.set()
        self.join()

    def look(self) -> None:
        """Once at all that is new."""
        try:
            for table in COLUMNS:
                self._look_at(table)
            self._look_at_checkpoints()
        except Exception as error:  # the reader must never be the one that ends
            self._say(f"a reader failed: {type(error).__name__}: {str(error)[:300]}")

    def _look_at(self, table: str) -> None:
        folder = folder_of(self.deployment.store, table)
        if not any((folder / "_delta_log").glob("*.json")):
            return
        last = DeltaTable(str(folder)).version()
        for version in range(self._versions[table] + 1, last + 1):
            rows, _ = rows_of(self.deployment.store, table, version)
            self.looks += 1
            if rows != (wanted := self._nearest(table, rows)):
                self._say(f"{table} version {version}: {differ(rows, wanted)}")
            self._versions[table] = version

    def _look_at_checkpoints(self) -> None:
        ledger = self.deployment.ledger
        if ledger.identity() is None:
            return
        for id in ledger.ids(after=max(self.published, default=0) - 5):
            if id in self.published or (published := ledger.published(id)) is None:
                continue
            entry = ledger.entry(id)
            if entry is None or entry.control is not None:
                continue
            self.published[id] = time.monotonic()
            seen = {}
            for name, table in published.tables.items():
                if name in COLUMNS:
                    rows, _ = rows_of(self.deployment.store, name, table.version)
                    seen[name] = size(name, rows)
            self.looks += 1
            possible = [set(self._sizes[name].get(count, ())) for name, count in seen.items()]
            if possible and not set.intersection(*possible):
                self._say(f"checkpoint {id}: its tables are not of the same moment: {seen}")

    def _nearest(self, table: str, rows: Counter[Any]) -> Counter[Any]:
        """The table after a number of files that makes it about as large."""
        sizes = dict(self._sizes[table])  # at one moment: more is fed meanwhile
        return Fed(sizes[min(sizes, key=lambda each: abs(each - size(table, rows)))][0]).table(table)

    def _say(self, what: str) -> None:
        if what not in self.wrong:
            self.wrong.append(what)
            print(f"  WRONG: {what}", flush=True)


def size(table: str, rows: Counter[Any]) -> int:
    """What grows with every file that changes the table."""
    return sum(row[2] for row in rows) if table == "totals" else rows.total()


def differ(found: Counter[Any], wanted: Counter[Any]) -> str:
    more, less = list((found - wanted).elements()), list((wanted - found).elements())
    return f"{found.total()} rows; too many: {len(more)} {sorted(more)[:5]}; missing: {len(less)} {sorted(less)[:5]}"
