"""What stands in for a function that an older Spark lacks does the same."""

import pytest
from pyspark.sql import functions as F

from tidegate.versions.spark import by_hash


@pytest.mark.parametrize("count", [1, 2, 7])
def test_rows_are_in_the_partition_that_their_id_names(spark, count):
    rows = spark.range(100).select("id", (F.col("id") % count).cast("int").alias("wanted"))
    spread = by_hash(rows, count, F.col("wanted")).withColumn("found", F.spark_partition_id())
    assert spread.where("found <> wanted").count() == 0
    assert spread.rdd.getNumPartitions() == count
