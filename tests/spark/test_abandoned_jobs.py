"""A Spark job that no client can reach: Spark Connect has interrupted its operation too early, and forgotten it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.kit.waiting import eventually
from tidegate.spark import server

SOURCE = Path(server.__file__).with_name("ConnectServer.java")
ABANDONED = "SparkConnect_OperationTag_User_ann_Session_s_Operation_o"
ENDLESS = "pmod(xxhash64(id), 1000003) = -1"


def compiled(spark: Any) -> Any:
    """The embedded server's class, in this test's JVM."""
    jvm = spark.sparkContext._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.read_text())
    return compiler.getClassLoader().loadClass("ConnectServer")


def look_once(spark: Any, server_class: Any) -> None:
    context = spark.sparkContext
    gateway, scala_context = context._gateway, context._jsc.sc()
    kinds = gateway.new_array(gateway.jvm.java.lang.Class, 1)
    kinds[0] = scala_context.getClass()
    values = gateway.new_array(gateway.jvm.java.lang.Object, 1)
    values[0] = scala_context
    server_class.getMethod("cancelAbandonedNow", kinds).invoke(None, values)


class Job(threading.Thread):
    """A job that only ends if somebody cancels it."""

    def __init__(self, spark: Any, tag: str) -> None:
        super().__init__(daemon=True)
        self.spark, self.tag, self.error = spark, tag, ""
        self.start()

    def run(self) -> None:
        self.spark.sparkContext.addJobTag(self.tag)
        try:
            self.spark.range(10**13).where(ENDLESS).count()
        except Exception as error:
            self.error = str(error)
        finally:
            self.spark.sparkContext.removeJobTag(self.tag)


def test_a_job_whose_operation_is_gone_is_cancelled_and_no_other(spark: Any) -> None:
    """It would keep the cores from the next try forever."""
    server_class, context = compiled(spark), spark.sparkContext
    abandoned, other = Job(spark, ABANDONED), Job(spark, "of-somebody")
    try:
        eventually("both are at work", lambda: len(context.statusTracker().getActiveJobsIds()) == 2)
        look_once(spark, server_class)
        abandoned.join(60)
        assert "its client has released the operation" in abandoned.error
        assert other.is_alive()
    finally:
        context.cancelJobsWithTag("of-somebody")
    other.join(60)
    assert "released" not in other.error
