"""Nexmark by Structured Streaming: AvailableNow, a batch for each cut, RocksDB with changelog, into a Delta table.

What replaces rows is merged into the table (update mode, foreachBatch, MERGE), which then has the same rows as ours:
Delta's documentation writes it so. As an engine of its own, it also runs without a target that can replace: each batch
appends what changed, with its number, and whoever reads has to find the newest rows. Rows that are computed each for
itself take the very functions of `jobs/nexmark`.

q15 and q16 are possible with sets in place of `count(DISTINCT …)`, q19 by keeping all bids of an auction. The clock of
q12 is that of each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.nexmark.query import QUERIES, SCHEMAS, SIDE_INPUT
from jobs.nexmark.totals import RANKS
from tests.bench.window import ROCKSDB
from tests.nexmark.reference import Reference
from tidegate.delta import Location, open_table, read_table
from tidegate.pipeline.graph.nodes import StageNode

__all__ = ["CANNOT", "NOT_APPENDED", "Streaming", "found"]

CANNOT: Mapping[str, str] = {
    "q4": "it has no aggregate of an aggregate without a window",
    "q6": "it has no aggregate of an aggregate without a window",
    "q9": "it has no first row of a join without a window",
}
CONF = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
}
ROWS = ("q0", "q1", "q2", "q10", "q14", "q21", "q22")
KEYS: Mapping[str, Sequence[str]] = {
    "q12": ["bidder", "window_start"],
    "q15": ["day"],
    "q16": ["channel", "day"],
    "q17": ["auction", "day"],
    "q18": ["bidder", "auction"],
    "q19": ["auction"],
}
"""By query that replaces rows: what a later batch replaces."""
BATCH = "_batch"
NOT_APPENDED: Mapping[str, str] = {
    name: CANNOT.get(name, "it replaces no rows, and is the same as with MERGE") for name in QUERIES if name not in KEYS
}
"""What there is no second way to write."""


class Streaming:
    """One query in a folder."""

    def __init__(self, query: str, data: Path, out: Path, spark: Any, max_files: int, *, appends: bool) -> None:
        """appends: what replaces rows is appended."""
        self.query, self.data, self.out, self.max_files = query, data, out, max_files
        self.spark = spark
        self.appends = appends

    def run(self) -> int:
        """Read all that has landed, to its end. Return the number of batches, of which each is a checkpoint."""
        for key, value in CONF.items():
            self.spark.conf.set(key, value)
        frame = self.frame()
        writer = frame.writeStream.option("checkpointLocation", f"{self.out}/checkpoint").trigger(availableNow=True)
        if self.query in KEYS:
            write = self.append if self.appends else self.merge
            running = writer.outputMode("update").foreachBatch(write).start()
        else:
            parts = ["dt", "hm"] if self.query == "q10" else []
            running = writer.format("delta").outputMode("append").partitionBy(*parts).start(f"{self.out}/table")
        running.awaitTermination()
        return len([path for path in (self.out / "checkpoint" / "commits").iterdir() if path.name.isdigit()])

    def merge(self, frame: Any, batch: int) -> None:
        """Merge what a batch has changed into the table."""
        from delta.tables import DeltaTable

        path = f"{self.out}/table"
        if not DeltaTable.isDeltaTable(self.spark, path):
            frame.write.format("delta").save(path)
            return
        same = " AND ".join(f"old.{key} <=> new.{key}" for key in QUERIES[self.query].keys)
        merging = DeltaTable.forPath(self.spark, path).alias("old").merge(frame.alias("new"), same)
        merging.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def append(self, frame: Any, batch: int) -> None:
        """Append what a batch has changed."""
        from pyspark.sql import functions as F

        frame.withColumn(BATCH, F.lit(batch)).write.format("delta").mode("append").save(f"{self.out}/table")

    def frame(self) -> Any:
        """Return the query."""
        if self.query in ROWS:
            return stage_of(self.query)(self.events("bid"))
        made: Callable[[], Any] = getattr(self, self.query)
        return made()

    def events(self, kind: str) -> Any:
        """Return the stream of one kind of event."""
        reader = self.spark.readStream.schema(SCHEMAS[kind]).option("maxFilesPerTrigger", self.max_files)
        return reader.parquet(f"{self.data}/landing/{kind}").withWatermark("date_time", "4 seconds")

    def bids_by_day(self) -> Any:
        return stage_of("q17")(self.events("bid"))

    def q3(self) -> Any:
        near = self.events("person").where("state IN ('OR', 'ID', 'CA')")
        near = near.selectExpr("id AS seller", "name", "city", "state")
        offers = self.events("auction").where("category = 10").select("id", "seller")
        return offers.join(near, "seller").select("name", "city", "state", "id")

    def q5(self) -> Any:
        from pyspark.sql import functions as F

        counts = self.events("bid").groupBy(F.window("date_time", "10 seconds", "2 seconds"), "auction").count()
        both = F.collect_list(F.struct("auction", F.col("count").alias("num"))).alias("all")
        most = counts.groupBy("window").agg(F.max("count").alias("most"), both)
        each = most.selectExpr("window.start AS window_start", "window.end AS window_end", "most", "inline(all)")
        return each.where("num = most").drop("most")

    def q7(self) -> Any:
        from pyspark.sql import functions as F

        bids = self.events("bid")
        best = bids.groupBy(F.window("date_time", "10 seconds")).agg(F.max("price").alias("best"))
        best = best.select("best", F.window_time("window").alias("upto"))  # a microsecond before the window's end
        begins, ends = "upto - INTERVAL '9.999999' SECOND", "upto + INTERVAL '0.000001' SECOND"
        near = f"price = best AND date_time >= {begins} AND date_time <= {ends}"
        return self.events("bid").join(best, F.expr(near)).select("auction", "price", "bidder", "date_time", "extra")

    def q8(self) -> Any:
        from pyspark.sql import functions as F

        window = F.window("date_time", "10 seconds")
        came = self.events("person").groupBy(window, "id", "name").count().select("window", "id", "name")
        sold = self.events("auction").groupBy(window, F.col("seller").alias("id")).count().select("window", "id")
        return came.join(sold, ["window", "id"]).selectExpr("id", "name", "window.start AS window_start")

    def q11(self) -> Any:
        from pyspark.sql import functions as F

        counts = self.events("bid").groupBy(F.session_window("date_time", "10 seconds"), "bidder").count()
        window = ["session_window.start AS window_start", "session_window.end AS window_end"]
        return counts.selectExpr(*window, "bidder", "count AS bid_count")

    def q12(self) -> Any:
        from pyspark.sql import functions as F

        window = F.window(F.current_timestamp(), "10 seconds")
        counts = self.events("bid").groupBy("bidder", window).count()
        return counts.selectExpr("bidder", "window.start AS window_start", "count AS bid_count")

    def q13(self) -> Any:
        side = self.spark.read.format("delta").load(f"{self.data}/{SIDE_INPUT}")
        return stage_of("q13")(self.events("bid")).join(side, "key").drop("key")

    def q15(self) -> Any:
        from pyspark.sql import functions as F

        return self.bids_by_day().groupBy("day").agg(*map(F.expr, statistics()))

    def q16(self) -> Any:
        from pyspark.sql import functions as F

        minute = "max(date_format(date_time, 'HH:mm')) AS minute"
        return self.bids_by_day().groupBy("channel", "day").agg(*map(F.expr, [minute, *statistics()]))

    def q17(self) -> Any:
        from pyspark.sql import functions as F

        prices = [f"{name}(price) AS {name}_price" for name in ("min", "max", "avg", "sum")]
        return self.bids_by_day().groupBy("auction", "day").agg(*map(F.expr, [*statistics()[:4], *prices]))

    def q18(self) -> Any:
        from pyspark.sql import functions as F

        last = "max_by(struct(*), struct(date_time, price, extra)) AS last"
        return self.events("bid").groupBy("bidder", "auction").agg(F.expr(last)).select("last.*")

    def q19(self) -> Any:
        from pyspark.sql import functions as F

        bids = "sort_array(collect_list(struct(-price AS below, date_time, extra, bidder, price, channel, url)))"
        kept = self.events("bid").groupBy("auction").agg(F.expr(f"slice({bids}, 1, 10) AS kept"))
        ranked = kept.selectExpr("auction", "posexplode(kept) AS (place, bid)")
        return ranked.selectExpr("auction", "bid.*", "place + 1 AS rank").drop("below")

    def q20(self) -> Any:
        offers = self.events("auction").where("category = 10").withColumnRenamed("date_time", "auction_date_time")
        offers = offers.withColumnRenamed("extra", "auction_extra").withColumnRenamed("id", "auction")
        return self.events("bid").join(offers, "auction")


def found(query: str, out: Path, reference: Reference) -> Any:
    """Return the rows that a query has written, of changes what holds in the end."""
    table = open_table(Location(str(out / "table")))
    assert table is not None
    rows = read_table(table)
    if BATCH not in rows.column_names:
        return rows
    reference.database.register("changes", rows)
    keys = ", ".join(KEYS[query])
    newest = f"SELECT * EXCLUDE ({BATCH}) FROM changes QUALIFY {BATCH} = max({BATCH}) OVER (PARTITION BY {keys})"
    return reference.arrow(newest)


def stage_of(query: str) -> Callable[[Any], Any]:
    """Return the function of the query's only stage, or its first."""
    stages = QUERIES[query].pipeline().graph().stages
    return next(stage.function for stage in stages if isinstance(stage, StageNode))


def statistics() -> list[str]:
    """Return the aggregates of q15 and q16, with sets where Structured Streaming refuses DISTINCT."""
    conditions = {rank: which.removeprefix(" filter (where ").removesuffix(")") for rank, which in RANKS.items()}
    found = [f"count(*){which} AS {rank}_bids" for rank, which in RANKS.items()]
    for name, column in (("bidders", "bidder"), ("auctions", "auction")):
        for rank, condition in conditions.items():
            value = f"CASE WHEN {condition} THEN {column} END" if condition else column
            found.append(f"CAST(size(collect_set({value})) AS LONG) AS {rank}_{name}")
    return found
