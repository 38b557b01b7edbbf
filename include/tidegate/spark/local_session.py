"""Spark inside this process, for tests and for debugging. One per process."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tidegate.errors import Invalid, Unavailable
from tidegate.spark.conf import SparkSettings, properties, server_conf
from tidegate.spark.errors import translated
from tidegate.spark.server.server import environment
from tidegate.spark.server.sockets import socket_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["opened", "use_in_thread"]

_ASKED_FOR: Mapping[str, tuple[str, ...]] = {
    "PythonUtils": ("getBroadcastThreshold", "toSeq"),
    "SimplePythonFunction": (),
    "functions": ("col", "lit"),
    "org.apache.spark.sql.api.python.PythonSQLUtils": ("toPyRow",),
    "org.apache.spark.sql.classic.SparkSession": ("getActiveSession",),
    "org.apache.spark.sql.execution.python.UserDefinedPythonFunction": (),
    "org.apache.spark.sql.functions": ("col", "count", "expr", "lit"),
}
"""Java classes, with their static methods, that pyspark looks up by name for every frame."""

_lock = threading.RLock()
_root: SparkSession | None = None
_root_settings: SparkSettings | None = None
_users = 0


@contextlib.contextmanager
def opened(settings: SparkSettings, conf: dict[str, str]) -> Iterator[SparkSession]:
    """Open a session with its own configuration and temporary views. All share one Spark, which the last one stops."""
    global _root, _root_settings, _users
    with _lock, translated():
        if _root is None:
            _root, _root_settings = _start(settings), settings
        elif _root_settings is not None and _static(_root_settings) != _static(settings):
            raise Invalid(
                "Spark is already running in this process, with other settings.",
                expected="the same master, memory and server keys for all local sessions of a process",
                help="Use mode connect, or one process for each configuration.",
            )
        _users += 1
        spark = _root.newSession()
    try:
        with translated():
            for key, value in conf.items():
                spark.conf.set(key, value)
        yield spark
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                root, _root, _root_settings = _root, None, None
                _stop(root)


def use_in_thread(spark: SparkSession) -> None:
    """Make this session the thread's active one, for parts of pyspark that look it up. Not needed for a session on a
    server, which is passed explicitly."""
    if hasattr(spark, "_jsparkSession"):
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def _stop(root: SparkSession) -> None:
    """Stop Spark. If its JVM has died, make pyspark forget it, so that the next session starts another."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    try:
        with translated():
            root.stop()
    except Unavailable:
        SparkContext._active_spark_context = None
        SparkContext._gateway = SparkContext._jvm = None
        for name in ("_instantiatedSession", "_activeSession"):
            setattr(SparkSession, name, None)


def _static(settings: SparkSettings) -> dict[str, str]:
    return server_conf(settings, Path("scratch")) | dict(settings.login)


def _start(settings: SparkSettings) -> SparkSession:
    """Start Spark, and on the first call its JVM. Later starts reuse the JVM and its memory."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise Invalid(
            "Spark is already running in this process, and tidegate did not start it.",
            help="Stop it first, or use mode connect.",
        )
    sockets = {} if settings.on_cluster else socket_settings(_scratch())
    conf = sockets | server_conf(settings, _scratch()) | {"spark.executorEnv.TZ": "UTC"}
    interrupt = signal.getsignal(signal.SIGINT)
    if SparkContext._gateway is None:
        _start_jvm(settings, conf)
    context = SparkContext.getOrCreate(SparkConf().setAll([*conf.items(), *settings.login.items()]))
    context.pythonExec = sys.executable  # it would use PYSPARK_PYTHON, or else any `python3`
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # Spark replaces the handler of Ctrl-C, which tidegate needs
    return SparkSession(context)


def _start_jvm(settings: SparkSettings, conf: dict[str, str]) -> None:
    """Start the JVM as pyspark would, but with the configuration in a file, because `ps` shows the command line."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    file = _scratch() / "spark.properties"
    file.touch(0o600)
    file.write_text(properties(conf), encoding="utf-8")
    variables = environment(settings)
    variables["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(file))} pyspark-shell"
    before = dict(os.environ)
    with open(_scratch() / "jvm.log", "ab") as log:
        try:
            os.environ.clear()  # pyspark passes its own environment to the JVM
            os.environ.update(variables)
            SparkContext._gateway = cast(Any, launch_gateway)(popen_kwargs={"stdout": log, "stderr": log})
            SparkContext._jvm = _with_classes(SparkContext._gateway.jvm)
        finally:
            os.environ.clear()
            os.environ.update(before)
            file.unlink()


def _with_classes(jvm: Any) -> Any:
    """Return py4j's view of the JVM, with some classes cached. For each other name it asks Java, which searches its
    packages and jars: that takes 5 % of a small checkpoint."""
    for name, methods in _ASKED_FOR.items():
        with contextlib.suppress(Exception):  # another version of Spark may not have it
            java_class = getattr(jvm, name)
            for method in methods:
                setattr(java_class, method, getattr(java_class, method))
            setattr(jvm, name, java_class)
    return jvm


@cache
def _scratch() -> Path:
    """Return a folder for Spark's temporary files and the JVM's log. Removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
