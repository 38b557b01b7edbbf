"""A million records from topic to topic: a checkpoint, each record once, against Structured Streaming, at least once.

Both parse JSON, and write it again with a key, on one broker and in one Spark session. The checkpoint counts from its
trigger to the end of the transaction that sends its records. Of the query, only its batch counts, as it measures
itself: no start, no stop. Beside it, how long the plan for a topic of a hundred partitions takes.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from tests.bench.control import PIPELINE
from tests.bench.harness import Budget, Options, Result, in_turn, median_of
from tests.bench.spark import fingerprint, sessions
from tests.bench.worlds import BenchedPipeline
from tests.kit.kafka import Broker, kafka
from tests.kit.limits import Limits
from tidegate import Pipeline
from tidegate.coordinator import Coordinator
from tidegate.ledger import open_ledger
from tidegate.records.place import Place
from tidegate.sinks import KafkaTopic
from tidegate.sources import Kafka, SourceContext
from tidegate.testing.source_contract import MemoryBlobs

SCHEMA = "id long, customer long, country string, amount double"
COUNTRIES = ("AT", "BE", "CH", "DE", "ES", "FR", "IT")
PARTITIONS, MANY_PARTITIONS = 4, 100
PLANS = 20


def run(options: Options) -> Result:
    rows, warmups = options.size(1_000_000, 2_000), options.size(4, 0)
    with kafka() as broker:
        for topic in ("in", "ours", "rival"):
            broker.create_topic(topic, PARTITIONS)
        world = TopicToTopic(options.folder("kafka"), broker, options.spark)
        turns = in_turn(
            lambda number: sum(world.checkpoint().values()),
            lambda number: batch_seconds(world, broker),
            warmups=warmups,
            pairs=options.pairs,
            before=lambda number: produce(broker, rows, number * rows),
        )
        wrong = differs(world, broker, rows * (warmups + options.pairs))
        plan_s = planning_seconds(options, broker)
    return Result(
        "kafka",
        ours_s=statistics.median(turns.wall().ours),
        pairs=options.pairs,
        rival_s=statistics.median(turns.wall().rival),
        ratio=turns.wall().ratio,
        equal=not wrong,
        wrong=wrong,
        keys={
            "spread": turns.wall().spread(),
            "ratio_cores": turns.core().ratio,
            "plan_s": plan_s,
            "parts": median_of(world.parts[-options.pairs :]),
            "rows": rows,
        },
        budgets=(Budget("ratio", 1.0), Budget("plan_s", 0.1)),
    )


class TopicToTopic(BenchedPipeline):
    """A pipeline from one topic to another."""

    def __init__(self, root: Path, broker: Broker, spark: str) -> None:
        self.root, self.sessions, self.parts = root, sessions(spark), []
        pipeline = Pipeline(PIPELINE)
        rows = pipeline.source("rows", Kafka("in", servers=broker.servers, schema=SCHEMA))
        rows.sink("out", KafkaTopic("ours", servers=broker.servers, key="id"))
        place = Place(str(root))
        self.control = Coordinator(pipeline.graph(place), open_ledger(f"{root}/ledger", PIPELINE), Limits(), place)


def produce(broker: Broker, rows: int, first: int) -> None:
    """So many new records."""
    producer = broker.producer(linger_ms=20, compression_type="lz4", queue_buffering_max_messages=500_000)
    for id in range(first, first + rows):
        record = {"id": id, "customer": id * 7919 % 50_000, "country": COUNTRIES[id % 7], "amount": id % 9973 / 100}
        while True:
            try:
                producer.produce("in", json.dumps(record), key=str(id))
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(120) == 0


def batch_seconds(world: TopicToTopic, broker: Broker) -> float:
    """What a user of Structured Streaming writes, with all that is new in one batch. The seconds of the batch."""
    from pyspark.sql import functions as f

    spark = world.sessions()
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    read = read.option("subscribe", "in").option("startingOffsets", "earliest")
    rows = read.load().select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")
    sent = rows.select(f.col("id").cast("string").alias("key"), f.to_json(f.struct("*")).alias("value"))
    written = (
        sent.writeStream.format("kafka").option("kafka.bootstrap.servers", broker.servers).option("topic", "rival")
    )
    query = written.option("kafka.compression.type", "lz4").option("checkpointLocation", f"{world.root}/rival")
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    batches = [each for each in running.recentProgress if each["numInputRows"]]
    return sum(each["durationMs"]["triggerExecution"] for each in batches) / 1000


def differs(world: TopicToTopic, broker: Broker, expected: int) -> str:
    """What is wrong, if both topics do not hold the same records, and as many as went in."""
    found = {}
    for topic in ("ours", "rival"):
        read = world.sessions().read.format("kafka").option("kafka.bootstrap.servers", broker.servers)
        read = read.option("subscribe", topic).option("kafka.isolation.level", "read_committed")
        row = f"from_json(cast(value AS string), '{SCHEMA}') AS row"
        rows = read.load().selectExpr("cast(key AS string) AS key", row).selectExpr("key", "row.*")
        found[topic] = fingerprint(rows)
    if found["ours"] == found["rival"] and found["ours"]["rows"] == expected:
        return ""
    return f"ours has {found['ours']}, the query's {found['rival']}, {expected} records went in"


def planning_seconds(options: Options, broker: Broker) -> float:
    """The median of plans that have something to read in each of many partitions."""
    broker.create_topic("many", MANY_PARTITIONS)
    source = Kafka("many", servers=broker.servers, schema=SCHEMA)
    context = SourceContext(PIPELINE, "rows", Place(str(options.out)), MemoryBlobs())
    taken: list[float] = []
    start: Any = None
    for _ in range(options.size(PLANS, 3)):
        broker.send("many", [(str(number), "{}") for number in range(10 * MANY_PARTITIONS)])
        began = time.perf_counter()
        planned = source.plan(start, context)
        taken.append(time.perf_counter() - began)
        assert not planned.is_empty
        start = planned.end
    return statistics.median(taken)
