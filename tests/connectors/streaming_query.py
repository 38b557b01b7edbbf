"""Structured Streaming's way from files to Kafka: payments once each, as people write it.

python -m tests.connectors.streaming_query FOLDER SERVERS [--to-the-end], with a line for each batch.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.connectors.story import SCHEMA
from tests.kit.jvm import QUICK
from tidegate.spark.session import SparkSettings, session


def main(folder: str, servers: str, *more: str) -> None:
    settings = SparkSettings(mode="local", home=Path(folder) / "spark", master="local[2]", memory="1g", conf=QUICK)
    with session(settings) as spark:
        payments = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{folder}/landing")
        once = payments.withWatermark("at", "1 day").dropDuplicatesWithinWatermark(["id"])
        writer = (
            once.selectExpr("account AS key", "to_json(struct(*)) AS value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", "streamed")
            .option("checkpointLocation", f"{folder}/checkpoints")
        )
        query = (writer.trigger(availableNow=True) if "--to-the-end" in more else writer).start()
        told = -1
        while query.isActive:
            progress = query.lastProgress
            if progress is not None and progress["batchId"] > told:
                told = progress["batchId"]
                print(f"batch {told}", flush=True)
            time.sleep(0.05)
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
