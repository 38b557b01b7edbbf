"""Counts per hour and key with a watermark: 20 checkpoints of 500 k events, against Structured Streaming.

Each checkpoint has ten minutes of events, up to a minute out of order, so an hour is open for six checkpoints or more,
and nearly all of its keys change in each. Both sides append each hour once it is complete to a Delta table. A round is
four checkpoints; the rival takes its four batches in one go (AvailableNow, RocksDB with changelog, no batches without
data), in the same session.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

from tests.bench.harness import Budget, Options, Result, Turns, in_turn, median_of
from tests.bench.spark import fingerprint, sessions
from tests.bench.worlds import BenchedPipeline
from tidegate.sinks import DeltaAppend

SCHEMA = "k long, at timestamp"
BEGIN = 1_700_000_000_000_000
SPAN = 600_000_000
DISORDER = 60_000_000
CHECKPOINTS = 4
"""In each round."""
COLUMNS = ["window_start", "window_end", "k", "n"]
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CONF = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def run(options: Options) -> Result:
    count, keys = options.size(500_000, 400), options.size(100_000, 20)
    root = options.folder("window")
    world, streaming = Hours(root / "ours", options.spark), Streaming(root / "theirs", options)
    spark: Any = sessions(options.spark)()

    def land(number: int) -> None:
        for each in range(number * CHECKPOINTS, (number + 1) * CHECKPOINTS):
            file = events(spark, each, count, keys, root / "made" / f"{each:04d}")
            os.link(file, world.ready(each))
            os.link(file, streaming.ready(each))

    turns: Turns = in_turn(
        world.take, streaming.take, warmups=options.size(1, 0), pairs=options.size(options.pairs, 2), before=land
    )
    wall, wrong = turns.wall(), differs(spark, world, streaming)
    return Result(
        "window",
        ours_s=statistics.median(wall.ours),
        pairs=len(wall.ours),
        rival_s=statistics.median(wall.rival),
        ratio=wall.ratio,
        equal=not wrong,
        wrong=wrong,
        keys={
            "spread": wall.spread(),
            "ratio_cores": turns.core().ratio,
            "parts": median_of(world.parts[CHECKPOINTS:]),
            "checkpoints": len(wall.ours) * CHECKPOINTS,
            "events": count,
            "keys": keys,
        },
        budgets=(Budget("ratio", 1 / 3),),
    )


def events(spark: Any, number: int, count: int, keys: int, folder: Path) -> Path:
    """One file with the events of checkpoint `number`, in the order in which they come."""
    came = f"{BEGIN + number * SPAN} + id * {SPAN} div {count}"
    rows = spark.range(0, count, 1, 1).selectExpr(
        f"pmod(xxhash64(id, {number}), {keys}) AS k",
        f"timestamp_micros({came} - pmod(xxhash64({number}, id, 1), {DISORDER})) AS at",
    )
    rows.write.parquet(str(folder))
    return next(folder.glob("*.parquet"))


class Hours(BenchedPipeline):
    """The pipeline."""

    def __init__(self, root: Path, spark: str) -> None:
        self.begin(
            root,
            SCHEMA,
            spark,
            lambda rows: rows.window(tumbling="1 hour", by="k", uid="hours", n="count(*)").sink(
                "hours", DeltaAppend("hours")
            ),
            event_time="at",
            watermark="1 min",
        )
        self.files = root / "files"
        self.files.mkdir(parents=True)

    def ready(self, number: int) -> Path:
        """Where the file of checkpoint `number` waits."""
        return self.files / f"{number:04d}.parquet"

    def take(self, number: int) -> float:
        """A checkpoint for each of the round's files."""
        seconds = 0.0
        for each in range(number * CHECKPOINTS, (number + 1) * CHECKPOINTS):
            self.land(each, [self.ready(each)])
            seconds += sum(self.checkpoint().values())
        return seconds


class Streaming:
    """Structured Streaming."""

    def __init__(self, root: Path, options: Options) -> None:
        self.spark: Any = sessions(options.spark)()
        self.root = root
        (root / "landing").mkdir(parents=True)

    def ready(self, number: int) -> Path:
        """Where the file of batch `number` lands."""
        return self.root / "landing" / f"{number:04d}.parquet"

    def take(self, number: int) -> None:
        """A batch for each file that has landed."""
        for key, value in CONF.items():
            self.spark.conf.set(key, value)
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        rows = reader.parquet(f"{self.root}/landing").withWatermark("at", "1 minute")
        counts = rows.groupBy("k", self._window()).count()
        query = (
            counts.selectExpr("window.start AS window_start", "window.end AS window_end", "k", "count AS n")
            .writeStream.format("delta")
            .outputMode("append")
            .option("checkpointLocation", f"{self.root}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{self.root}/hours")
        )
        query.awaitTermination()

    def _window(self) -> Any:
        from pyspark.sql import functions as F

        return F.window("at", "1 hour")


def differs(spark: Any, world: Hours, streaming: Streaming) -> str:
    """Both have the same hours, as far as the rival is: it gives an hour a batch later than it is complete."""
    rows = [spark.read.format("delta").load(f"{side.root}/hours").select(*COLUMNS) for side in (world, streaming)]
    upto = rows[1].agg({"window_end": "max"}).first()[0]
    if upto is None:
        return "Structured Streaming gave nothing"
    ours, theirs = (fingerprint(each.where(each["window_end"] <= upto)) for each in rows)
    return "" if ours == theirs else f"ours has {ours}, Structured Streaming {theirs}"
