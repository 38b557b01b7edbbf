"""What stands in for a function that an older Spark lacks does the same."""

import pytest
from pyspark.sql import functions as F

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate.sinks import DeltaAppend
from tidegate.versions.spark import by_hash

pytestmark = in_turn(seconds=30)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_rows_are_in_the_partition_that_their_id_names(spark, count):
    rows = spark.range(100).select("id", (F.col("id") % count).cast("int").alias("wanted"))
    spread = by_hash(rows, count, F.col("wanted")).withColumn("found", F.spark_partition_id())
    assert spread.where("found <> wanted").count() == 0
    assert spread.rdd.getNumPartitions() == count


def test_delta_sparks_own_class_reads_and_changes_what_tidegate_has_published(spark, tmp_path):
    """Stages, scripts and notebooks use it: its package and our jar fit each other."""
    from delta.tables import DeltaTable

    pipeline = SmallPipeline(
        tmp_path, spark, lambda pipeline: sources(pipeline, "id long").sink("out", DeltaAppend("tables/out"))
    )
    pipeline.play([[{"id": 1}, {"id": 2}]])
    table = DeltaTable.forPath(spark, str(tmp_path / "tables/out"))
    table.delete("id = 1")
    pipeline.play([[{"id": 3}]])
    assert sorted(row["id"] for row in table.toDF().collect()) == [2, 3]
