"""A small real world of intervals for crash tests: hours that are made, made again, and never mixed up.

Each hour has files of its own, which are rewritten when it is to be made again: rows carry the number of the edition.
The stage is nondeterministic, so rows of two attempts cannot be mixed unnoticed. An operator counts each hour's rows,
for a table by key. Somebody else has rows in two tables.
A run is named like "retry@1!": hour 1, to be made again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.crash.world import CrashWorld
from tidegate import Pipeline
from tidegate.coordinator import AlreadyCovered
from tidegate.execution.job.run_job import run_job
from tidegate.records.records import Plan
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

ROWS = 4
FOREIGN = [{"id": -1, "hour": 1, "edition": 0, "mark": 0.5}, {"id": -2, "hour": 2, "edition": 0, "mark": 0.5}]
TABLES = ("log", "parts")
FOREIGN_TOTAL = {"hour": 9, "at": datetime(2026, 1, 1, 9, tzinfo=UTC), "n": 1, "edition": 0, "mark": 0.5}
"""A row of an hour that is never made."""


def interval(hour: int) -> tuple[datetime, datetime]:
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
    return start, start + timedelta(hours=1)


@dataclass
class IntervalWorld(CrashWorld):
    """The same surroundings with another pipeline: three tables, by the hour."""

    def write(self, hour: int, edition: int = 1) -> None:
        """What there is to read of an hour. Later editions have fewer rows."""
        folder = self.root / "landing" / f"{interval(hour)[0]:%Y-%m-%dT%H}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "events.json").write_text("".join(json.dumps(row) + "\n" for row in rows_of(hour, edition)))

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("crash")
        schema = "id long, hour long, edition long"
        events = pipeline.source("events", Files("landing/{start:%Y-%m-%dT%H}/*.json", schema=schema))

        @pipeline.stage(events)
        def marked(events: Any) -> Any:
            from pyspark.sql import functions as f

            return events.crossJoin(events.sparkSession.range(1).select(f.rand().alias("mark")))

        @pipeline.stage(marked)
        def timed(marked: Any) -> Any:
            return marked.selectExpr("*", "timestamp'2026-01-01 00:00:00Z' + make_dt_interval(0, hour) AS at")

        calls = {"n": "count(*)", "edition": "max(edition)", "mark": "max(mark)"}
        totals = timed.aggregate(by=["hour", "at"], uid="totals", **calls)
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["hour", "at"], interval_column="at"))
        marked.sink("log", DeltaAppend("tables/log"))
        marked.sink("parts", DeltaAppend("tables/parts", partition_by="edition"))
        return pipeline

    def add_foreign_rows(self) -> None:
        import pyarrow as pa
        from deltalake import write_deltalake

        write_deltalake(str(self.root / "tables" / "log"), pa.Table.from_pylist(FOREIGN), mode="append")
        write_deltalake(str(self.root / "tables" / "totals"), pa.Table.from_pylist([FOREIGN_TOTAL]), mode="append")


def rows_of(hour: int, edition: int) -> list[dict[str, int]]:
    return [{"id": hour * 10 + number, "hour": hour, "edition": edition} for number in range(ROWS + 1 - edition)]


def dag_run(world: IntervalWorld, run: str, spark: Any, *, impatient: bool = False) -> int | None:
    """What the tasks of one DAG run do for its data interval. None: that was done already."""
    hour = int(run.rpartition("@")[2].removesuffix("!"))

    def give_up(plan: Plan) -> str | None:
        return "RUN_GONE" if impatient else None

    coordinator = world.coordinator()
    triggered = coordinator.trigger(run, give_up=give_up, interval=interval(hour), reprocess=run.endswith("!"))
    if isinstance(triggered, AlreadyCovered):
        return None
    assert triggered is not None
    for job in triggered.plan.acks:
        run_job(coordinator, triggered.plan.id, job, spark)
    coordinator.complete(triggered.plan.id)
    coordinator.publish()
    coordinator.retire()
    return triggered.plan.id


def check(world: IntervalWorld, editions: Mapping[int, int], *, foreign: bool = True) -> None:
    """Both tables hold exactly these editions of these hours, each from one attempt, and what is not ours."""
    expected = [row for hour, edition in editions.items() for row in rows_of(hour, edition)]
    marks: list[dict[int, float]] = []
    for name in TABLES:
        rows = world.table(name)
        own = [row for row in rows if row["id"] >= 0]
        shown = sorted((row["id"], row["hour"], row["edition"]) for row in own)
        assert shown == sorted((row["id"], row["hour"], row["edition"]) for row in expected), name
        others = sorted((row for row in rows if row["id"] < 0), key=lambda row: -row["id"])
        assert others == (FOREIGN if foreign and name == "log" else []), "rows of others stay as they are"
        marks.append({row["id"]: row["mark"] for row in own})
        for hour in editions:
            assert len({row["mark"] for row in own if row["hour"] == hour}) <= 1, "one attempt's rows"
    assert marks[0] == marks[1], "both tables come from the same attempts"
    totals = sorted((row["hour"], row["n"], row["edition"], row["mark"]) for row in world.table("totals"))
    wanted = [
        (hour, len(rows_of(hour, edition)), edition, marks[0][hour * 10]) for hour, edition in sorted(editions.items())
    ]
    assert totals == wanted + ([(9, 1, 0, 0.5)] if foreign else []), "an hour's totals are of the same attempt, too"
    ledger = world.coordinator().ledger
    for id in ledger.ids():
        entry = ledger.entry(id)
        assert entry is not None
        assert entry.decision is not None, f"checkpoint {id} is still open"
    assert {found.start.hour for found in ledger.intervals()} == set(editions), "every interval is indexed"


def copy_of(begun: Path, root: Path) -> IntervalWorld:
    import shutil

    shutil.copytree(begun, root, dirs_exist_ok=True)
    return IntervalWorld(root)
