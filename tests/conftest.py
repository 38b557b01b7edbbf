"""What every test needs before anything is imported, and Spark for those that ask for it."""

import os
import sys
import time

# Spark on loopback, its workers on this Python; one time zone everywhere, also in the JVM.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["SPARK_LOCAL_HOSTNAME"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["TZ"] = "UTC"
time.tzset()

from tests.spark_fixture import connect_settings, connect_spark, spark  # noqa: E402, F401
