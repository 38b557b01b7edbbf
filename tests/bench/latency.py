"""From the trigger until a reader sees rows: at least once against exactly once, three jobs in a row.

Each job computes on one core for about a second; the first and the last have a table. Exactly once, the first one's
rows wait for the last job, the decision and the publish; at least once they do not.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.bench.control import PIPELINE
from tests.bench.harness import Budget, Options, Result, in_turn
from tests.bench.pipelined import JOBS, worked
from tests.bench.spark import fingerprint, sessions
from tests.kit.limits import Limits
from tidegate import Pipeline
from tidegate.coordinator import Coordinator, Triggered
from tidegate.execution.job.run_job import run_job
from tidegate.ledger import open_ledger
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

TABLES = ("first", "last")


def run(options: Options) -> Result:
    rows, work = options.size(20_000, 50), options.size(300, 5)
    root = options.folder("latency")
    spark: Any = sessions(options.spark)()
    sides = [
        Side(root / mode, spark, Limits(recorded={"mode": mode}), work) for mode in ("at_least_once", "exactly_once")
    ]

    def land(number: int) -> None:
        for side in sides:
            side.land(number, rows)

    warm = options.size(2, 1)
    in_turn(sides[0].take, sides[1].take, warmups=warm, pairs=options.pairs, before=land)
    first, last = ([_median(side.seen[table][warm:]) for side in sides] for table in TABLES)
    shown = [[fingerprint(spark.read.format("delta").load(f"{s.root}/{table}")) for table in TABLES] for s in sides]
    return Result(
        "latency",
        ours_s=first[0],
        pairs=options.pairs,
        rival_s=first[1],
        ratio=first[0] / first[1],
        equal=shown[0] == shown[1],
        wrong=f"at least once gives {shown[0]}, exactly once {shown[1]}",
        keys={"last_s": last[0], "last_rival_s": last[1], "last_ratio": last[0] / last[1], "rows": rows},
        budgets=(Budget("ratio", 0.7), Budget("last_ratio", 1.1)),
    )


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds)


class Side:
    """The pipeline in one of the modes."""

    def __init__(self, root: Path, spark: Any, limits: Limits, work: int) -> None:
        self.root, self.spark, self.limits, self.work = root, spark, limits, work
        self.seen: dict[str, list[float]] = {table: [] for table in TABLES}
        """By table, how long after each trigger its rows were there."""

    def land(self, number: int, rows: int) -> None:
        frame = self.spark.range(number * rows, (number + 1) * rows, 1, 1).selectExpr("id", "id AS v")
        frame.write.parquet(str(self.root / "landing" / f"{number:04d}"))

    def control(self) -> Coordinator:
        pipeline = Pipeline(PIPELINE)
        source = Files("landing/**/*.parquet", schema="id long, v long", max_files=1)
        stream = pipeline.source("rows", source)
        for job in JOBS:
            stream = pipeline.stage(stream.job(job), name=job)(lambda frame: worked(frame, self.work))
            if job in (JOBS[0], JOBS[-1]):
                table = TABLES[0] if job == JOBS[0] else TABLES[1]
                stream.sink(table, DeltaAppend(table))
        place, ledger = Place(str(self.root)), open_ledger(f"{self.root}/ledger", PIPELINE)
        return Coordinator(pipeline.graph(place, self.limits.recorded["mode"]), ledger, self.limits, place)

    def take(self, number: int) -> None:
        """One checkpoint, step by step; behind each step, which tables have got its rows."""
        control, began = self.control(), time.time()
        triggered = control.trigger(f"run {number}")
        assert isinstance(triggered, Triggered)
        id = triggered.plan.id
        steps = [*((lambda job=job: run_job(control, id, job, self.spark)) for job in JOBS), lambda: self._end(id)]
        waiting = {table: self._version(table) for table in TABLES}
        for step in steps:
            step()
            for table in [table for table, before in waiting.items() if self._version(table) > before]:
                self.seen[table].append(self._written(table) - began)
                del waiting[table]
        assert not waiting, "all rows are there in the end"

    def _end(self, id: int) -> None:
        control = self.control()
        assert control.complete(id).state == "completed"
        control.publish()

    def _version(self, table: str) -> int:
        return len(list((self.root / table / "_delta_log").glob("*.json")))

    def _written(self, table: str) -> float:
        """When the table's last commit was there, by the file system's clock."""
        log = sorted((self.root / table / "_delta_log").glob("*.json"))[-1]
        assert DeltaTable(str(self.root / table)).version() == int(log.stem)
        return log.stat().st_mtime
