"""Six checkpoints of three jobs in a row: three checkpoints at once against one, each job a thread as it is a task.

Each job computes on one core for about a second. One at a time, a job waits for the one before it, and a checkpoint for
the last; with three at once each job continues with the next checkpoint. On two cores the best that can be is a half.

channel_ratio: what it costs to write a job's rows for others and read them, against computing them once more.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Any

from tests.bench.control import PIPELINE
from tests.bench.harness import Budget, Options, Result, Turns, in_turn, timed
from tests.bench.spark import fingerprint, sessions
from tests.kit.limits import Limits
from tidegate import Pipeline
from tidegate.coordinator import Coordinator, Triggered
from tidegate.errors import Rejected
from tidegate.execution.job.run_job import run_job
from tidegate.ledger import open_ledger
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

JOBS = ("first", "second", "third")
CHECKPOINTS = 6
"""In each round."""
POLL_S = 0.02
WAITING = {"BASE_IN_PROGRESS", "UPSTREAM_MISSING", "CHECKPOINT_IN_PROGRESS"}


def run(options: Options) -> Result:
    rows, work = options.size(20_000, 50), options.size(300, 5)
    root = options.folder("pipelined")
    spark: Any = sessions(options.spark)()
    sides = [Chain(root / f"k{at_once}", spark, at_once, work) for at_once in (3, 1)]

    def land(number: int) -> None:
        for side in sides:
            side.land(number, rows)

    turns: Turns = in_turn(sides[0].take, sides[1].take, warmups=options.size(1, 0), pairs=options.pairs, before=land)
    wall = turns.wall()
    shown = [fingerprint(spark.read.format("delta").load(f"{side.root}/table")) for side in sides]
    channel_s, again_s = channel_and_again(spark, root, sides[0], work)
    return Result(
        "pipelined",
        ours_s=statistics.median(wall.ours),
        pairs=len(wall.ours),
        rival_s=statistics.median(wall.rival),
        ratio=wall.ratio,
        equal=shown[0] == shown[1],
        wrong=f"three at once give {shown[0]}, one at a time {shown[1]}",
        keys={
            "spread": wall.spread(),
            "channel_ratio": channel_s / again_s,
            "channel_s": channel_s,
            "recompute_s": again_s,
            "checkpoints": CHECKPOINTS,
            "rows": rows,
        },
        budgets=(Budget("ratio", 0.7), Budget("channel_ratio", 1.0)),
    )


def worked(frame: Any, work: int) -> Any:
    """The rows after so much work on each, in as many tasks as there were."""
    return frame.selectExpr("id", f"aggregate(sequence(1, {work}), v, (so_far, n) -> xxhash64(so_far, n)) AS v")


def channel_and_again(spark: Any, root: Path, side: Chain, work: int) -> tuple[float, float]:
    """Seconds to write one checkpoint's rows and read them again; and to compute them once more."""
    source = spark.read.schema("id long, v long").parquet(str(side.landing(0)))
    made = worked(source, work).localCheckpoint()
    path = str(root / "channel")

    def through() -> None:
        made.write.mode("overwrite").parquet(path)
        spark.read.schema("id long, v long").parquet(path).write.format("noop").mode("overwrite").save()

    def again() -> None:
        worked(source, work).write.format("noop").mode("overwrite").save()

    through()
    again()
    return statistics.median(timed(through) for _ in range(3)), statistics.median(timed(again) for _ in range(3))


class Chain:
    """Three jobs in a row; each takes what the one before it makes."""

    def __init__(self, root: Path, spark: Any, at_once: int, work: int) -> None:
        self.root, self.spark, self.at_once, self.work = root, spark, at_once, work
        self.planned: list[int] = []
        self.failed: list[BaseException] = []

    def landing(self, number: int) -> Path:
        return self.root / "landing" / f"{number:04d}"

    def land(self, number: int, rows: int) -> None:
        """A file for each of the round's checkpoints."""
        for each in range(number * CHECKPOINTS, (number + 1) * CHECKPOINTS):
            frame = self.spark.range(each * rows, (each + 1) * rows, 1, 1).selectExpr("id", "id AS v")
            frame.write.parquet(str(self.landing(each)))

    def control(self) -> Coordinator:
        pipeline = Pipeline(PIPELINE)
        source = Files("landing/**/*.parquet", schema="id long, v long", max_files=1)
        stream = pipeline.source("rows", source)
        for job in JOBS:
            stream = pipeline.stage(stream.job(job), name=job)(lambda frame: worked(frame, self.work))
        stream.sink("table", DeltaAppend("table"))
        place, ledger = Place(str(self.root)), open_ledger(f"{self.root}/ledger", PIPELINE)
        return Coordinator(pipeline.graph(place), ledger, Limits(max_concurrent_checkpoints=self.at_once), place)

    def take(self, number: int) -> None:
        """The round's checkpoints: triggered when one may be, each job in a thread of its own."""
        self.planned = []
        threads = [threading.Thread(target=self._noted, args=(self._job, job)) for job in JOBS]
        threads.append(threading.Thread(target=self._noted, args=(self._complete,)))
        for thread in threads:
            thread.start()
        self._noted(self._trigger, number)
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]

    def _noted(self, act: Any, *args: Any) -> None:
        try:
            act(*args)
        except BaseException as error:
            self.failed.append(error)
            raise

    def _trigger(self, number: int) -> None:
        control = self.control()
        for each in range(CHECKPOINTS):
            triggered = self._patiently(control.trigger, f"run {number}-{each}")
            assert isinstance(triggered, Triggered)
            self.planned.append(triggered.plan.id)

    def _job(self, job: str) -> None:
        control = self.control()
        for each in range(CHECKPOINTS):
            self._patiently(run_job, control, self._id(each), job, self.spark)

    def _complete(self) -> None:
        control = self.control()
        for each in range(CHECKPOINTS):
            id = self._id(each)
            while control.complete(id).state == "open" and not self.failed:
                time.sleep(POLL_S)
            control.publish()
            control.retire()

    def _id(self, each: int) -> int:
        while len(self.planned) <= each and not self.failed:
            time.sleep(POLL_S)
        return self.planned[each]

    def _patiently(self, act: Any, *args: Any) -> Any:
        while True:
            try:
                return act(*args)
            except Rejected as error:
                if error.reason not in WAITING or self.failed:
                    raise
                time.sleep(POLL_S)
