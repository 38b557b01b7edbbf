"""State, gates and upserts on a Spark cluster whose workers share no disk, with everything in an object store.

A master and two workers with a core each, as processes that see none of this process's files, and an S3 server (moto's,
which answers slowly: that costs both sides). Whole checkpoints, from trigger to published, against what people run
without tidegate in the same session, on the same cluster, in the same bucket:

    ratio_streaming   a running count per key, 5 M keys and 100 k events: Structured Streaming (RocksDB with changelog)
    ratio_merge       100 k changed rows into a table of 5 M: staging and publishing, against delta-spark's MERGE
    ratio_counts      the same count as above, against MERGE into a table of counts
    ratio_gates       ten expectations over 1 M rows while staging: staging, and then Great Expectations

`by_workers`: whether workers wrote and merged the files themselves. `ahead`: how many files the last publish has taken
that workers had rewritten ahead; none of the small tables of --quick.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench import gates, upsert
from tests.bench.control import PIPELINE
from tests.bench.counting import SCHEMA as EVENTS
from tests.bench.counting import spread
from tests.bench.harness import Budget, Options, Pairs, Result, in_turn, median_of
from tests.bench.spark import fingerprint
from tests.bench.worlds import BenchedPipeline
from tests.cluster.world import Place as ClusterPlace
from tests.cluster.world import place
from tests.kit.limits import Limits
from tests.kit.s3 import BUCKET
from tidegate import Pipeline
from tidegate.coordinator import Coordinator
from tidegate.delta import Location, open_table, read_commit
from tidegate.gates import Expectations
from tidegate.ledger import open_ledger
from tidegate.pipeline import Stream
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files
from tidegate.spark.local_session import opened
from tidegate.spark.session import SparkSettings
from tidegate.spark.storage.object_storage import hadoop_options
from tidegate.spark.storage.worker_writes import work_on_store
from tidegate.spark.workers.shipping import ship_code

FILES = 4
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass
class Cluster:
    """A session on the cluster, for all sides."""

    spark: Any
    options: dict[str, str]

    def __call__(self, job: str | None = None) -> Any:
        return self.spark

    def drop(self) -> None:
        """Do nothing: it is everybody's."""

    def url(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}"

    def read(self, *paths: str, schema: str) -> Any:
        return self.spark.read.schema(schema).parquet(*map(self.url, paths))

    def table(self, path: str) -> Any:
        return self.spark.read.format("delta").load(self.url(path))


@contextlib.contextmanager
def on_cluster(options: Options) -> Iterator[Cluster]:
    """Start the store, the cluster and the session; they end with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
        place(Path(folder), f"{options.size(3, 1)}g") as found,
        session(found, found.driver, options) as spark,
    ):
        yield Cluster(spark, found.server.options)


@contextlib.contextmanager
def session(where: ClusterPlace, home: Path, options: Options) -> Iterator[Any]:
    """A session in this process, as the driver of a submitted job has it."""
    conf = hadoop_options(where.server.options) | {
        "spark.executor.memory": f"{options.size(2048, 600)}m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    memory = "3g" if not options.quick else "1g"
    settings = SparkSettings(mode="submit", home=home, master=where.cluster.master, memory=memory, conf=conf)
    with opened(settings, {}) as spark:
        ship_code(spark, [], home)
        yield spark


class InBucket(BenchedPipeline):
    """A pipeline with everything in a folder of the bucket, whose input is Parquet files that Spark makes there."""

    def __init__(self, cluster: Cluster, name: str, schema: str, build: Callable[[Stream], object]) -> None:
        self.cluster, self.name, self.schema, self.sessions = cluster, name, schema, cluster  # type: ignore[assignment]
        self.parts = []
        where = Place(cluster.url(name), cluster.options, project=str(gates_project()))
        pipeline = Pipeline(PIPELINE)
        rows = pipeline.source("rows", Files("landing/**/*.parquet", schema=schema))
        build(rows)
        ledger = open_ledger(f"{where.base}/ledger", PIPELINE, cluster.options)
        self.control = Coordinator(pipeline.graph(where), ledger, Limits(), where)

    def make(self, number: int, rows: Any) -> None:
        """These rows as the input of round `number`."""
        rows.write.parquet(self.cluster.url(f"{self.name}/landing/{number:04d}"))

    def take(self, number: int) -> float:
        """Seconds of a whole checkpoint."""
        return sum(self.checkpoint().values())


def gates_project() -> Path:
    """A folder with the suite."""
    folder = Path(tempfile.gettempdir()) / "tidegate-bench-suite"
    (folder / "include" / "expectations").mkdir(parents=True, exist_ok=True)
    (folder / "include" / "expectations" / "bench.yaml").write_text(gates.SUITE)
    return folder


def run(options: Options) -> Result:
    with on_cluster(options) as cluster:
        keys: dict[str, Any] = {
            "by_workers": work_on_store(cluster.spark, Location(cluster.url("asked"), cluster.options))
        }
        wrong: list[str] = []
        ours: list[float] = []
        for measure in (state, merge, gate):
            measured = measure(cluster, options)
            keys |= measured.keys
            wrong += measured.wrong
            ours += measured.seconds
        return Result(
            "cluster",
            ours_s=statistics.median(ours),
            pairs=options.pairs,
            equal=not wrong,
            wrong="; ".join(wrong),
            keys=keys,
            budgets=(Budget("ratio_streaming", 0.08), Budget("ratio_merge", 0.21), Budget("ratio_gates", 0.6)),
        )


@dataclass(frozen=True)
class Measured:
    """What one of the parts says."""

    keys: dict[str, Any]
    wrong: list[str]
    seconds: list[float]


# -- a running count -----------------------------------------------------------------------------------


def state(cluster: Cluster, options: Options) -> Measured:
    keys, count = options.size(5_000_000, 2_000), options.size(100_000, 200)
    world = InBucket(
        cluster,
        "state",
        EVENTS,
        lambda rows: rows.aggregate(by=["k"], uid="counts", n="count(*)").sink(
            "changes", DeltaAppend("changes", changelog=True)
        ),
    )

    def land(number: int) -> None:
        """What both count in round `number`; the first makes all keys."""
        key, rows = ("id AS k", keys) if number == 0 else (spread(number, count, keys), count)
        world.make(number, cluster.spark.range(0, rows, 1, FILES).selectExpr(key).selectExpr("CAST(k AS long) AS k"))

    def stream(number: int) -> None:
        append = partial(_append, cluster.url("streaming/changes"))
        landed = cluster.spark.readStream.schema(EVENTS).parquet(cluster.url("state/landing/*"))
        query = landed.groupBy("k").count().writeStream.outputMode("update").foreachBatch(append)
        query.option("checkpointLocation", cluster.url("streaming/checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()

    def count_up(number: int) -> None:
        counted = cluster.read(f"state/landing/{number + 1:04d}", schema=EVENTS).groupBy("k").count()
        counted.createOrReplaceTempView("counted")
        cluster.spark.sql(
            f"MERGE INTO delta.`{cluster.url('counted')}` t USING counted s ON t.k = s.k WHEN MATCHED THEN UPDATE SET "
            "n = t.n + s.count WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, s.count)"
        )

    land(0)
    world.take(0)
    stream(0)
    made = cluster.spark.range(0, keys, 1, 2 * FILES).selectExpr("id AS k", "1L AS n")
    made.write.format("delta").save(cluster.url("counted"))
    turns = in_turn(
        world.take,
        stream,
        count_up,
        warmups=options.size(2, 0),
        pairs=options.pairs,
        before=lambda number: land(number + 1),
    )
    changed, theirs = fingerprint(cluster.table("state/changes")), fingerprint(cluster.table("streaming/changes"))
    newest = cluster.table("state/changes").groupBy("k").agg({"n": "max"}).withColumnRenamed("max(n)", "n")
    counted, merged = fingerprint(newest), fingerprint(cluster.table("counted"))
    wrong = [] if changed == theirs else [f"ours changed {changed}, Structured Streaming {theirs}"]
    return Measured(
        {
            "ratio_streaming": turns.wall().ratio,
            "ratio_counts": turns.wall(2).ratio,
            "state_s": statistics.median(turns.wall().ours),
            "state_parts": median_of(world.parts[-options.pairs :]),
        },
        wrong + ([] if counted == merged else [f"we have counted {counted}, MERGE {merged}"]),
        turns.wall().ours,
    )


def _append(url: str, frame: Any, batch: int) -> None:
    frame.selectExpr("k", "count AS n").write.format("delta").mode("append").save(url)


# -- changed rows --------------------------------------------------------------------------------------


def merge(cluster: Cluster, options: Options) -> Measured:
    rows, changed = options.size(5_000_000, 4_000), options.size(100_000, 200)
    sink = DeltaUpsert("ours", keys=["id"])
    world = InBucket(cluster, "upsert", upsert.SCHEMA, lambda changes: changes.sink("table", sink))
    for name in ("ours", "theirs"):
        made = cluster.spark.range(0, rows, 1, upsert.FILES)
        made = made.selectExpr(*(column.format(round=0) for column in upsert.COLUMNS))
        made.write.format("delta").save(cluster.url(f"upsert/{name}"))

    def land(number: int) -> None:
        size = rows + rows // 50
        ids = cluster.spark.range(changed).selectExpr(f"pmod((id + {number * changed}) * {upsert.STEP}, {size}) AS id")
        world.make(number, ids.selectExpr(*(column.format(round=number + 1) for column in upsert.COLUMNS)))

    def theirs(number: int) -> None:
        changes = cluster.read(f"upsert/landing/{number:04d}", schema=upsert.SCHEMA)
        changes.createOrReplaceTempView("changes")
        cluster.spark.sql(
            f"MERGE INTO delta.`{cluster.url('upsert/theirs')}` t USING changes s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    turns = in_turn(world.take, theirs, warmups=options.size(2, 0), pairs=options.pairs, before=land)
    counted = world.parts[-options.pairs :]
    # What is rewritten ahead is rewritten while staging.
    merged_here = Pairs([parts["staging"] + parts["publishing"] for parts in counted], turns.wall().rival)
    ours, merged = (fingerprint(cluster.table(f"upsert/{name}")) for name in ("ours", "theirs"))
    return Measured(
        {
            "ratio_merge": merged_here.ratio,
            "ahead": _rewritten_ahead(Location(cluster.url("upsert/ours"), cluster.options)),
            "ratio_merge_checkpoint": turns.wall().ratio,
            "upsert_s": statistics.median(turns.wall().ours),
            "upsert_parts": median_of(counted),
        },
        [] if ours == merged else [f"the upsert has {ours}, MERGE {merged}"],
        turns.wall().ours,
    )


def _rewritten_ahead(table: Location) -> int:
    """How many files the last commit has added that its job had rewritten ahead."""
    snapshot = open_table(table)
    commit = read_commit(table, snapshot.version) if snapshot is not None else None
    return len([path for path in commit.added_paths() if "/ahead/" in path]) if commit is not None else 0


# -- gates ---------------------------------------------------------------------------------------------


def gate(cluster: Cluster, options: Options) -> Measured:
    rows = options.size(1_000_000, 2_000)
    suite = gates.read_suite(gates.SUITE, "bench.yaml", "bench")
    gated = gates_world(cluster, "gated", Expectations("bench", on_failure="quarantine"))
    plain = gates_world(cluster, "plain", None)
    said: list[list[int]] = []

    def land(number: int) -> None:
        for world in (gated, plain):
            world.make(number, gates.rows_of(cluster.spark, rows))

    def validate(number: int) -> None:
        paths = [f"{cluster.url('plain/tables/t')}/{path}" for path in gates.staged_paths(plain)]
        said.append(gates.validate(suite, cluster.spark.read.schema(gates.SCHEMA).parquet(*paths)))

    turns = in_turn(gated.take, plain.take, validate, warmups=options.size(2, 0), pairs=options.pairs, before=land)
    walls = [[wall for wall, _ in sides] for sides in turns.rounds]
    pairs = Pairs([ours for ours, _, _ in walls], [staging + checking for _, staging, checking in walls])
    wrong = gates.differs(gated, rows, said[-1])
    return Measured(
        {
            "ratio_gates": pairs.ratio,
            "overhead_gates": turns.wall().ratio,
            "gates_s": statistics.median(pairs.ours),
            "gates_parts": median_of(gated.parts[-options.pairs :]),
        },
        [wrong] if wrong else [],
        pairs.ours,
    )


def gates_world(cluster: Cluster, name: str, chosen: Expectations | None) -> InBucket:
    def build(rows: Stream) -> None:
        mapped = rows.pipeline.stage(rows, name="mapped")(lambda rows: rows.withColumn("email", gates.lower(rows)))
        (mapped.gate(chosen, name="checked") if chosen is not None else mapped).sink("table", DeltaAppend("tables/t"))

    return InBucket(cluster, name, gates.SCHEMA, build)
