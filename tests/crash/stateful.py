"""A small real world with state for crash tests: running aggregates whose input is another one in every attempt.

Each attempt gives its rows marks of its own, and the state holds their sums: so state, its table and the outputs of two
attempts cannot be mixed unnoticed. One state is merged by workers, the other, whose rows expire, by DataFrames.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tests.crash.world import NAME, CrashWorld, check_ledger
from tidegate import Pipeline
from tidegate.delta import Location, missing_files
from tidegate.records.records import Json
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files
from tidegate.state import StateTable
from tidegate.state.table import view_sql

START = datetime(2026, 1, 1, tzinfo=UTC)
TTL = timedelta(minutes=90)
FAN_IN = 2
"""In the processes that run it: two runs are merged already, so that each checkpoint from the third on merges."""
STATES = ("totals", "recent")


@dataclass
class StatefulWorld(CrashWorld):
    """Other files, which are an hour apart, and two operators that remember."""

    def feed(self, files: int) -> None:
        landing = self.root / "landing"
        landing.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            path = landing / f"events-{number:04d}.json"
            if not path.exists():
                path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(number)))

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME)
        files = Files("landing/*.json", schema="id long, key string, at timestamp", max_files=1)
        events = pipeline.source("events", files, event_time="at")

        @pipeline.stage(events)
        def marked(events: Any) -> Any:
            from pyspark.sql import functions as f

            mark = (f.rand() * 1_000_000).cast("long").alias("mark")
            return events.crossJoin(events.sparkSession.range(1).select(mark))

        marked.sink("log", DeltaAppend("tables/log"))
        totals = marked.aggregate(by="key", uid="totals", n="count(*)", marks="sum(mark)")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["key"]))
        recent = marked.aggregate(
            by="key", uid="recent", ids="collect_list(id, 100)", state_ttl="90 min", ttl_time="event"
        )
        recent.sink("recent", DeltaUpsert("tables/recent", keys=["key"]))
        return pipeline

    def state(self, name: str, id: int) -> StateTable:
        """A keyed state as of a checkpoint."""
        ledger = self.coordinator().ledger
        found = ledger.ack(id, "main")
        assert found is not None
        return msgspec.convert(ledger.unpack(found.ack.states[f"state.{name}"]), StateTable)

    def state_rows(self, name: str, id: int) -> list[Json]:
        """What the state's files as of a checkpoint hold, by the documented view."""
        import duckdb

        table, root = self.state(name, id), self.state_root(name)
        assert missing_files(Location(str(root)), [each.file for each in table.files]) == [], f"{name} as of {id}"
        files = [str(root / each.file.path) for each in table.files]
        source = f"read_parquet({files}, union_by_name = true, hive_partitioning = false)"
        return duckdb.sql(view_sql(table, source, quote='"')).to_arrow_table().to_pylist()

    def state_root(self, name: str) -> Path:
        return self.root / "ledger" / NAME / "state" / name

    def live(self, name: str) -> list[str]:
        """The files that the state's own table shows."""
        from deltalake import DeltaTable

        return sorted(Path(path).name for path in DeltaTable(str(self.state_root(name))).file_uris())


def rows_of(number: int) -> list[Json]:
    """One file: a key that is always there, one every other time, one that comes only now and then, a new one."""
    keys = ["always", None if number % 2 else "even", f"third-{number % 3}", f"new-{number}"]
    at = START + timedelta(hours=number)
    return [{"id": number * 10 + n, "key": key, "at": at.isoformat()} for n, key in enumerate(keys)]


def recent_of(files: int) -> dict[str | None, list[int]]:
    """What is remembered of each key, expired or not: it begins anew when the key was not there for 90 minutes.

    By event time: as of the checkpoint's end a row is written, as of its beginning it has expired.
    """
    held: dict[str | None, tuple[list[int], datetime]] = {}
    for number in range(files):
        ends = START + timedelta(hours=number)
        for row in rows_of(number):
            ids, written = held.get(row["key"], ([], ends))
            if written <= ends - timedelta(hours=1) - TTL:
                ids = []
            held[row["key"]] = [*ids, row["id"]], ends
    return {key: ids for key, (ids, _) in held.items()}


def check_outputs(world: StatefulWorld, files: int) -> dict[int, int]:
    """Outputs equal the reference, and are all of the attempts whose marks the log shows: these are the answer."""
    expected = [row for number in range(files) for row in rows_of(number)]
    log = {row["id"]: row["mark"] for row in world.table("log")}
    assert len(world.table("log")) == len(expected)
    assert sorted(log) == [row["id"] for row in expected], "I1"
    assert {row["key"]: row["ids"] for row in world.table("recent")} == recent_of(files)
    told = {row["key"]: (row["n"], row["marks"]) for row in world.table("totals")}
    assert told == totals_of(files, log), "outputs are of the same attempts as the state"
    check_ledger(world)
    return log


def check(world: StatefulWorld, files: int) -> None:
    """Outputs equal the reference; so does the state of every checkpoint that is retained, and all of one attempt."""
    log = check_outputs(world, files)
    completed = completed_ids(world)
    last = files
    for id in reversed(completed):
        totals = totals_of(last, log)
        assert {row["key"]: (row["n"], row["marks"]) for row in world.state_rows("totals", id)} == totals, f"I2 at {id}"
        shown = {row["key"]: row["ids"] for row in world.state_rows("recent", id)}
        assert shown.items() <= recent_of(last).items(), f"expired ones may be gone, nothing else is there, at {id}"
        assert {row["key"] for row in rows_of(last - 1)} <= shown.keys()
        last -= 1
    for name in STATES:
        named = world.state(name, completed[-1]).files
        assert world.live(name) == sorted(Path(each.file.path).name for each in named), "I4: the table is the last"


def totals_of(files: int, marks: dict[int, int]) -> dict[str | None, tuple[int, int]]:
    """Count and sum of marks per key."""
    found: dict[str | None, tuple[int, int]] = {}
    for row in (row for number in range(files) for row in rows_of(number)):
        n, total = found.get(row["key"], (0, 0))
        found[row["key"]] = n + 1, total + marks[row["id"]]
    return found


def completed_ids(world: CrashWorld) -> list[int]:
    """The checkpoints that are retained and count."""
    ledger = world.coordinator().ledger
    entries = (ledger.entry(id) for id in ledger.ids())
    return [entry.id for entry in entries if entry is not None and entry.completed]
