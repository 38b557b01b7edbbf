"""A small real world whose target refuses a row in publication, which a person diverts: an id is taken.

The target is a SQLite table with a primary key. As in all crash tests, rows of two attempts differ by their mark.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.crash.world import NAME, CrashWorld, check_ledger, dag_run, rows_of
from tidegate import Pipeline
from tidegate.errors import Invalid, Rejected
from tidegate.execution.by_hand.diverting import divert, find_refusal
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.sinks import DeclaredRules, DeltaAppend, SinkContext, StagedRows, TransactionalSink

TAKEN = 13
"""An id of the third file, which somebody else has put into the table."""
GATE = "out-refused"


class SqliteRows(TransactionalSink):
    """A SQLite table of ids and marks."""

    kind = "sqlite"

    def describe(self) -> Json:
        return {"kind": self.kind}

    def target(self, place: Place) -> str:
        return place.url("out.db")

    def row_rules(self, columns: Json, declared: Json | None) -> DeclaredRules:
        return DeclaredRules(not_judged=("primary key",))

    @contextlib.contextmanager
    def database(self, place: Place) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(place.url("out.db"), isolation_level=None)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, mark REAL)")
            database.execute("CREATE TABLE IF NOT EXISTS marks (app TEXT PRIMARY KEY, last INTEGER)")
            yield database

    def last(self, context: SinkContext) -> int | None:
        with self.database(context.place) as database:
            found = database.execute("SELECT last FROM marks WHERE app = ?", (context.app_id,)).fetchone()
        return found[0] if found else None

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        with self.database(context.place) as database:
            database.execute("BEGIN IMMEDIATE")
            found = database.execute("SELECT last FROM marks WHERE app = ?", (context.app_id,)).fetchone()
            if (found[0] if found else None) != rows.after:
                return False
            try:
                database.executemany("INSERT INTO rows VALUES (?, ?)", rows.tuples(["id", "mark"]))
            except sqlite3.IntegrityError as error:
                raise Invalid(str(error), reason="DATABASE_REFUSES") from error
            database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (context.app_id, rows.checkpoint))
            database.execute("COMMIT")
        return True


@dataclass
class DivertedWorld(CrashWorld):
    """The same files, whose rows go to a database, and all of them to a Delta table."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME)
        marked = self.marked(pipeline)
        marked.sink("out", SqliteRows(), refused="quarantine")
        marked.sink("log", DeltaAppend("tables/log"))
        return pipeline

    def take_an_id(self) -> None:
        """Somebody else puts a row into the table."""
        with SqliteRows().database(self.place) as database:
            database.execute("INSERT INTO rows VALUES (?, NULL)", (TAKEN,))

    def give_it_back(self) -> None:
        """They remove it again: the target takes all rows now."""
        with SqliteRows().database(self.place) as database:
            database.execute("DELETE FROM rows WHERE id = ? AND mark IS NULL", (TAKEN,))

    def in_database(self) -> dict[int, float]:
        """The pipeline's rows in the database."""
        with SqliteRows().database(self.place) as database:
            return dict(database.execute("SELECT id, mark FROM rows WHERE mark IS NOT NULL").fetchall())

    def in_quarantine(self) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        path = self.root / "ledger" / NAME / "quarantine" / GATE
        return DeltaTable(str(path)).to_pyarrow_table().to_pylist() if (path / "_delta_log").exists() else []


def work(world: DivertedWorld, run: str, spark: Any, *, impatient: bool = False) -> int | None:
    """A DAG run, whose publication may be refused; or, as "divert", what a person does then."""
    if not run.startswith("divert"):
        try:
            return dag_run(world, run, spark, impatient=impatient)
        except Invalid as refused:
            if refused.reason != "DATABASE_REFUSES":
                raise
            return None
    coordinator = world.coordinator()
    try:
        refusal = find_refusal(coordinator, "out")
    except Rejected as refused:
        if refused.reason != "NOTHING_REFUSED":
            raise
        return None
    outcome, error = divert(coordinator, spark, refusal, f"id = {TAKEN}", by="a person")
    assert error is None, error
    return outcome.id


def check(world: DivertedWorld, files: int, *, diverted: bool | None) -> None:
    """Each row is in the database or in quarantine, once. diverted: whether the one row is; None: it may be either."""
    found, aside = world.in_database(), world.in_quarantine()
    ids = [row["id"] for number in range(files) for row in rows_of(number)]
    assert sorted([*found, *(row["id"] for row in aside)]) == ids, "each exactly once"
    if diverted is not None:
        assert [row["id"] for row in aside] == ([TAKEN] if diverted else [])
    marks = {row["id"]: row["mark"] for row in world.table("log")}
    assert sorted(marks) == ids
    assert all(marks[id] == mark for id, mark in found.items()), "all tables have the rows of one attempt"
    for row in aside:
        assert (row["mark"], row["_tidegate_rules"]) == (marks[row["id"]], ["diverted"])
        assert "diverted by a person" in row["_tidegate_why"]
    check_ledger(world)
