"""Looks at every version of every table that anybody could have seen, and at what checkpoints say of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.chaos.deployment import Deployment
from tests.chaos.reference import KEYS, RELEASED, Fed
from tidegate.gates.quarantine.columns import SETTLED

__all__ = ["COLUMNS", "Reader", "rows_of"]

_LOOKS = 20
"""As often a version is looked at until it is clear that it fits no release."""

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
        self.released: list[frozenset[int]] = [frozenset()]
        """The ids of released rows that versions of `once` have had, the latest last."""
        self.nobody_looks = threading.Lock()
        """Held while a table is where it does not belong."""
        self._done = threading.Event()
        self._versions = dict.fromkeys(COLUMNS, -1)
        self._unexplained: dict[tuple[str, int], int] = {}
        """Versions that fit no release seen so far, with how often they were looked at: `once` may follow later."""
        self._sizes = [Sizes(Fed(0))]
        """After each number of files."""

    def expect(self, files: int) -> None:
        """So many files have landed."""
        while len(self._sizes) <= files:
            self._sizes.append(Sizes(Fed(len(self._sizes))))

    def run(self) -> None:
        while not self._done.is_set():
            self.look()
            self._done.wait(0.5)

    def close(self) -> None:
        self._done.set()
        self.join()
        for table, version in self._unexplained:
            self._say(f"{table} version {version} fits none of the releases that `once` has had")

    def look(self) -> None:
        """Once at all that is new."""
        try:
            with self.nobody_looks:
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
        again = [version for name, version in self._unexplained if name == table]
        for version in [*again, *range(self._versions[table] + 1, last + 1)]:
            rows, _ = rows_of(self.deployment.store, table, version)
            self.looks += 1
            self._judge(table, version, rows)
            self._versions[table] = max(version, self._versions[table])

    def _judge(self, table: str, version: int, rows: Counter[Any]) -> None:
        if table == "once":
            found = released_in(rows)
            if found - Fed(len(self._sizes) - 1).bad:
                self._say(f"{table} version {version} has released rows that never were in quarantine: {found}")
            if found not in self.released:
                self.released.append(found)
        candidates = [released_in(rows)] if table == "once" else self.released[::-1]
        nearest = [self._nearest(table, rows, released) for released in candidates]
        tries = self._unexplained.pop((table, version), 0)
        if rows in nearest:
            return
        if tries < _LOOKS and len(candidates) > 1:
            self._unexplained[table, version] = tries + 1
        else:
            self._say(f"{table} version {version}: {differ(rows, nearest[0])}")

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
            seen = {
                name: rows_of(self.deployment.store, name, table.version)[0]
                for name, table in published.tables.items()
                if name in COLUMNS
            }
            self.looks += 1
            candidates = [released_in(seen["once"])] if "once" in seen else self.released
            if seen and not any(self._moments(seen, released) for released in candidates):
                sizes = {name: size(name, rows) for name, rows in seen.items()}
                self._say(f"checkpoint {id}: its tables are not of the same moment: {sizes}")

    def _moments(self, seen: dict[str, Counter[Any]], released: frozenset[int]) -> set[int]:
        """After which numbers of files all of these tables are so large."""
        return {
            after.files
            for after in list(self._sizes)
            if all(after.of(name, released) == size(name, rows) for name, rows in seen.items())
        }

    def _nearest(self, table: str, rows: Counter[Any], released: frozenset[int]) -> Counter[Any]:
        """The table after a number of files that makes it about as large."""
        wanted = size(table, rows)
        nearest = min(list(self._sizes), key=lambda after: abs(after.of(table, released) - wanted))
        return Fed(nearest.files, released).table(table)

    def _say(self, what: str) -> None:
        if what not in self.wrong:
            self.wrong.append(what)
            print(f"  WRONG: {what}", flush=True)


def released_in(rows: Counter[Any]) -> frozenset[int]:
    """The ids of the released rows among those of `once`."""
    return frozenset(row[0] for row in rows if row[2] == RELEASED)


def released_of(store: Path) -> set[int]:
    """The ids of the rows that quarantine says were released."""
    found = (
        DeltaTable(str(folder_of(store, "quarantine.checked"))).to_pyarrow_table(columns=["id", SETTLED]).to_pylist()
    )
    return {row["id"] for row in found if row[SETTLED] == "released"}


class Sizes:
    """How large the tables are after some files."""

    def __init__(self, fed: Fed) -> None:
        self.files = fed.files
        self._by_key = Counter(row[1] for row in fed.once)
        self._aside = fed.aside.total()

    def of(self, table: str, released: frozenset[int]) -> int:
        """How large the table is, with these rows released."""
        if table == "quarantine.checked":
            return self._aside
        by_key = self._by_key + Counter(id % KEYS for id in released)
        return sum(n // 10 for n in by_key.values()) if table == "tens" else by_key.total()


def size(table: str, rows: Counter[Any]) -> int:
    """What grows with every file that changes the table."""
    return sum(row[2] for row in rows) if table == "totals" else rows.total()


def differ(found: Counter[Any], wanted: Counter[Any]) -> str:
    more, less = list((found - wanted).elements()), list((wanted - found).elements())
    return f"{found.total()} rows; too many: {len(more)} {sorted(more)[:5]}; missing: {len(less)} {sorted(less)[:5]}"
