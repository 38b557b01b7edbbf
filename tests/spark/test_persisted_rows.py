"""Rows that are computed once and kept are gone when they are let go, wherever Spark is."""

import os
import signal

import pytest

from tidegate.spark.materialize import materialize, release
from tidegate.spark.server import server as connect_server


def test_in_this_process_their_memory_is_freed(spark):
    held = spark.sparkContext._jsc.getPersistentRDDs
    before = set(held())
    frame = materialize(spark.range(3))
    assert frame.count() == 3
    assert set(held()) > before
    release(frame)
    assert set(held()) == before


def test_a_server_forgets_them(connect_spark):
    """Although Python still refers to them, and although the server has seen the same question before."""
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import CachedRemoteRelation

    frame = materialize(connect_spark.range(3))
    other = DataFrame(CachedRemoteRelation(frame._plan._relation_id, connect_spark), connect_spark)
    assert other.collect() == frame.collect()
    release(frame)
    with pytest.raises(PySparkException, match="DATAFRAME_NOT_FOUND"):
        other.collect()
    release(frame)  # twice is as good as once
    assert connect_spark.range(3).count() == 3


def test_a_server_that_does_not_answer_is_not_waited_for(connect_settings, connect_spark):
    server = connect_server.start(connect_settings).pid
    frame = materialize(connect_spark.range(3))
    os.kill(server, signal.SIGSTOP)
    try:
        release(frame)
    finally:
        os.kill(server, signal.SIGCONT)
    assert frame._plan._relation_id is not None, "so it is said when nobody refers to the frame any more"
