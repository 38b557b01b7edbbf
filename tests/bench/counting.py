"""What the benches of state share: a running count per key, as a pipeline and as what people run without tidegate.

The state of 1 M to 20 M keys is made once by a checkpoint (or a batch) of that many keys; later runs find it again.
All sides write what changed to a Delta table, but for MERGE, whose table is the state itself.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from tests.bench.harness import Options
from tests.bench.spark import sessions
from tests.bench.worlds import BenchedPipeline
from tidegate.sinks import DeltaAppend

SCHEMA = "k long"
FILES = 4
QUICK_KEYS = 2_000
"""Keys of every state in a quick run: those who start from as many keys share one that is made once."""


class Counting(BenchedPipeline):
    """The pipeline."""

    def __init__(self, root: Path, spark: str) -> None:
        sink = DeltaAppend("changes", changelog=True)  # what Structured Streaming's update mode gives, too
        self.begin(
            root,
            SCHEMA,
            spark,
            lambda rows: rows.aggregate(by=["k"], uid="counts", n="count(*)").sink("changes", sink),
        )

    def take(self, number: int) -> float:
        """Seconds of a whole checkpoint of what has landed in round `number`."""
        return sum(self.checkpoint().values())


def counting(options: Options, name: str, keys: int) -> Counting:
    """A pipeline that has counted so many keys once."""

    def make(folder: Path) -> None:
        world = Counting(folder, options.spark)
        events(options, 0, "id AS k", keys, folder / "made")
        world.land(0, sorted((folder / "made").glob("*.parquet")))
        world.checkpoint()

    return Counting(copied(options.cached(f"counting-{keys}", make), options.folder(name)), options.spark)


def copied(base: Path, to: Path) -> Path:
    """The same folder once more. Data files are shared, for nobody changes them."""

    def copy(source: str, target: str) -> None:
        (os.link if source.endswith((".parquet", ".zip", ".sst")) else shutil.copyfile)(source, target)

    shutil.copytree(base, to, copy_function=copy, dirs_exist_ok=True)
    return to


def events(options: Options, number: int, key: str, count: int, folder: Path) -> list[Path]:
    """Files with so many events, whose key is this SQL expression of `id`, a number from 0 on."""
    rows = sessions(options.spark)().range(0, count, 1, FILES).selectExpr(f"{key}")
    rows.selectExpr("CAST(k AS long) AS k").write.parquet(str(folder))
    return sorted(folder.glob("*.parquet"))


def spread(number: int, count: int, keys: int) -> str:
    """Keys from all over the state; some come twice."""
    return f"pmod(xxhash64(id + {number * count}), {keys}) AS k"


def together(number: int, count: int, keys: int) -> str:
    """Keys that lie together, as those that begin with a time do."""
    return f"{keys // 2} + pmod(xxhash64(id), {count // 2}) + {number * count // 4} AS k"


class Streaming:
    """Structured Streaming: AvailableNow, RocksDB with changelog, and its changes to a Delta table."""

    def __init__(self, options: Options, root: Path) -> None:
        self.spark: Any = sessions(options.spark)()
        self.root = root

    def take(self, number: int) -> None:
        """What has landed since, to its end."""
        conf = {
            "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
            "RocksDBStateStoreProvider",
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        }
        for key, value in conf.items():
            self.spark.conf.set(key, value)
        counts = self.spark.readStream.schema(SCHEMA).parquet(f"{self.root}/landing/*").groupBy("k").count()
        query = (
            counts.writeStream.outputMode("update")
            .option("checkpointLocation", f"{self.root}/checkpoint")
            .foreachBatch(self.append)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def append(self, frame: Any, batch: int) -> None:
        """What changed."""
        frame.selectExpr("k", "count AS n").write.format("delta").mode("append").save(f"{self.root}/changes")

    def land(self, number: int, files: list[Path]) -> None:
        """These files as input."""
        folder = self.root / "landing" / f"{number:04d}"
        folder.mkdir(parents=True)
        for at, file in enumerate(files):
            os.link(file, folder / f"{at:04d}.parquet")


def streaming(options: Options, name: str, keys: int) -> Streaming:
    """A query that has counted so many keys once."""

    def make(folder: Path) -> None:
        query = Streaming(options, folder)
        query.land(0, events(options, 0, "id AS k", keys, folder / "made"))
        query.take(0)
        shutil.rmtree(folder / "landing")

    return Streaming(options, copied(options.cached(f"streaming-{keys}", make), options.folder(name)))


class Merged:
    """A Delta table with the counts, and MERGE."""

    def __init__(self, options: Options, root: Path) -> None:
        self.spark: Any = sessions(options.spark)()
        self.root = root

    def take(self, files: list[Path]) -> None:
        """These events, counted and merged."""
        self.spark.read.schema(SCHEMA).parquet(*map(str, files)).groupBy("k").count().createOrReplaceTempView("counted")
        self.spark.sql(
            f"MERGE INTO delta.`{self.root}/table` t USING counted s ON t.k = s.k "
            "WHEN MATCHED THEN UPDATE SET n = t.n + s.count WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, s.count)"
        )


def merging(options: Options, name: str, keys: int) -> Merged:
    """A table of so many keys, each counted once."""

    def make(folder: Path) -> None:
        rows = sessions(options.spark)().range(0, keys, 1, 8).selectExpr("id AS k", "1L AS n")
        rows.write.format("delta").save(f"{folder}/table")

    return Merged(options, copied(options.cached(f"merging-{keys}", make), options.folder(name)))
