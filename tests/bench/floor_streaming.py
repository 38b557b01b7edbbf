"""The example's graph as people write it for Structured Streaming: two queries that stay running, warm.

python -m tests.bench.floor_streaming FOLDER, with a line on its input for each batch (sides.py).

Bad orders are dropped, and repeated ones while the watermark remembers them; what is left meets its payments. From
there on a query has one sink: so one appends each minute once it is complete, and the other MERGEs each batch into the
totals. Nothing is quarantined, a repetition is known for 90 seconds in place of a day, and a batch that is tried again
would count twice in the totals. Batches without data are off, which saves one after each: a minute is appended one
batch later than it could be.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.sides import serve
from tests.bench.spark import sessions
from tests.bench.window import CONF

ORDERS = "order_id long, customer_id long, country string, amount decimal(12,2), at timestamp, _corrupt_record string"
PAYMENTS = "order_id long, method string, at timestamp"
GOOD = """
    _corrupt_record IS NULL AND order_id IS NOT NULL AND at IS NOT NULL AND (amount IS NULL OR amount >= 0)
    AND (country IS NULL OR country IN ('AT', 'BR', 'DE', 'IN', 'KE', 'US'))
"""
WATERMARK = "90 seconds"
LANDING = ("landing/orders", "landing/payments")


class Streaming:
    """Both queries, running."""

    conf: Mapping[str, str] = CONF

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spark: Any = sessions("local")()
        for key, value in self.conf.items():
            self.spark.conf.set(key, value)
        self.spark.sql(
            f"CREATE TABLE delta.`{root}/totals` (customer_id long, spent decimal(22,2), orders long, last timestamp) "
            "USING delta"
        )
        appends = self.revenue().writeStream.format("delta").outputMode("append")
        merges = self.paid().writeStream.foreachBatch(self.merge)
        self.queries = [
            appends.option("checkpointLocation", f"{root}/checkpoints/revenue").start(f"{root}/revenue"),
            merges.option("checkpointLocation", f"{root}/checkpoints/totals").start(),
        ]

    def paid(self) -> Any:
        """Each order that was paid, once."""
        reader = self.spark.readStream
        orders = reader.schema(ORDERS).json(f"{self.root}/{LANDING[0]}").where(GOOD).drop("_corrupt_record")
        payments = reader.schema(PAYMENTS).json(f"{self.root}/{LANDING[1]}").withColumnRenamed("at", "paid_at")
        once = orders.withWatermark("at", WATERMARK).dropDuplicatesWithinWatermark(["order_id"])
        return (
            once.alias("o")
            .join(
                payments.withWatermark("paid_at", WATERMARK).alias("p"),
                self._expr(
                    "o.order_id = p.order_id AND paid_at BETWEEN at - INTERVAL 1 MINUTE AND at + INTERVAL 1 MINUTE"
                ),
            )
            .select("o.order_id", "customer_id", "country", "amount", "at", "paid_at", "method")
        )

    def revenue(self) -> Any:
        """Per minute and country."""
        from pyspark.sql import functions as F

        paid = self.paid().select("country", "amount", "at")
        counted = paid.groupBy(F.window("at", "1 minute"), "country").agg(
            F.sum("amount").alias("revenue"), F.count("*").alias("orders")
        )
        return counted.selectExpr("window.start AS window_start", "country", "revenue", "orders")

    def merge(self, paid: Any, batch: int) -> None:
        """A batch into the totals per customer."""
        new = paid.groupBy("customer_id").agg(
            *map(self._expr, ("sum(amount) AS spent", "count(*) AS orders", "max(paid_at) AS last"))
        )
        new.createOrReplaceTempView("new")
        paid.sparkSession.sql(
            f"MERGE INTO delta.`{self.root}/totals` t USING new ON t.customer_id = new.customer_id "
            "WHEN MATCHED THEN UPDATE SET spent = t.spent + new.spent, orders = t.orders + new.orders, "
            "last = greatest(t.last, new.last) WHEN NOT MATCHED THEN INSERT *"
        )

    def take(self, number: int) -> float:
        """Seconds from the landing of the files that are ready for this round until both sinks have their rows."""
        began = time.perf_counter()
        for landing in LANDING:
            for file in sorted((self.root / "ready" / f"{number:04d}" / landing).iterdir()):
                os.link(file, self.root / landing / file.name)
        for query in self.queries:
            query.processAllAvailable()
        return time.perf_counter() - began

    def _expr(self, text: str) -> Any:
        from pyspark.sql import functions as F

        return F.expr(text)


def main(root: Path) -> None:
    for landing in LANDING:
        (root / landing).mkdir(parents=True)
    streaming = Streaming(root)
    serve(streaming.take)
    for query in streaming.queries:
        query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
