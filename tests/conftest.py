"""What every test needs before anything is imported, and Spark for those that ask for it."""

import os
import sys
import time
from collections import Counter

# Spark on loopback, its workers on this Python; one time zone everywhere, also in the JVM.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["SPARK_LOCAL_HOSTNAME"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# `tidegate` is on the path, as in an activated environment: commands that it prints begin with its name.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
os.environ["TZ"] = "UTC"
time.tzset()

FIRST = ("dags", "crash", "bench", "connectors", "spark", "simulation", "views", "replay", "world")


JVM = {"spark", "connect_spark", "connect_settings", "kafka_broker"}


def pytest_collection_modifyitems(items):
    """What takes long comes first, so that at the end no worker waits long for another. What starts a JVM is slow."""
    for item in items:
        if JVM & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    items.sort(key=lambda item: FIRST.index(name) if (name := item.path.parent.name) in FIRST else len(FIRST))
    leave_to_other_commits(items)


from tests.kit.kafka import kafka_broker  # noqa: E402, F401
from tests.kit.sampling import leave_to_other_commits  # noqa: E402
from tests.kit.spark_fixture import connect_settings, connect_spark, spark  # noqa: E402, F401
from tidegate.spark.server import priority  # noqa: E402

priority.LOWEST = 0
"""Beside other tests, what works at the real one hardly ever gets a processor."""


def pytest_collection_finish():
    """From here on no bytecode is kept, also by children: a module that a test writes twice within one second, in the
    same size, would be taken for the first one."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_terminal_summary(terminalreporter, config):
    """With --durations, also the files that take longest: many short tests cost as much as one long one."""
    if not config.getoption("durations"):
        return
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                seconds[report.nodeid.split("::")[0]] += report.duration
    terminalreporter.section("slowest files")
    for name, taken in seconds.most_common(40):
        terminalreporter.write_line(f"{taken:7.1f}s {name}")
    terminalreporter.write_line(f"{sum(seconds.values()):7.1f}s in all")
