"""The configuration of tidegate's Spark sessions: our defaults, the user's settings, and what safety requires.

Keys are of two kinds. *Session* keys may differ between sessions of one server, so they are set on each session, and
two pipelines with different ones share a server. All other keys define a server: changing one of them starts another
server.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from tidegate.config.spark_keys import FIXED, OF_THE_CLUSTER, check_spark_key, is_session_key
from tidegate.errors import Invalid
from tidegate.records.place import LOCAL_WRITES
from tidegate.spark.class_archive import archive_options
from tidegate.spark.jars import jar_paths
from tidegate.spark.storage.object_storage import FILE_SYSTEMS

__all__ = [
    "STARTS",
    "SparkSettings",
    "on_loopback",
    "properties",
    "server_conf",
    "session_conf",
]

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_MASTER = re.compile(r"local|local\[(\*|[1-9]\d*)(,\s*\d+)?\]|local-cluster\[(\d+),(\d+),\d+\]")
_CLUSTER = re.compile(r"(spark|k8s)://[^\s@]+|yarn")
_LOOPBACK = re.compile(r"local\b.*|spark://(127\.[\d.]+|localhost|\[::1\])(:\d+)?")
_MEMORY = re.compile(r"([1-9]\d*)([mgt])")
_PATIENT_COMPILER = (
    " -XX:Tier4InvocationThreshold=150000 -XX:Tier4MinInvocationThreshold=20000 -XX:Tier4CompileThreshold=300000"
    " -XX:Tier3DelayOn=0"
)
"""About thirty times the number of calls after which Java's optimizing compiler compiles a method. By default it
compiles Spark's planner during the first twenty small checkpoints, and takes a third of two cores, which these
checkpoints need. Methods that run per row still reach these thresholds, and loops have separate ones, so that a large
checkpoint is as fast as before."""
_TIERS = re.compile(r"-XX:Tier\d")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_JVM_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_SHORT_PAUSES_MB = 8 * 1024
"""With a larger heap, the pauses of a stop-the-world collector cost more than it saves."""

# Values for a Spark on this machine; a cluster has its own.
_EMBEDDED = (
    "spark.authenticate",
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.shuffle.compress",
    "spark.sql.shuffle.partitions",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism",
)

# Our values that differ from Spark's, the same for all settings. `spark.conf` may override them.
_DEFAULTS = {
    **FILE_SYSTEMS,
    "spark.app.name": "tidegate",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # A checkpoint of a few operators generates about 250 classes. With Spark's limit of 100, each is compiled again in
    # each checkpoint, and the JVM never optimizes it.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Hadoop's own class starts `chmod` for every file and folder: 3 to 5 ms each, a dozen times per write.
    LOCAL_WRITES: "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem",
    # Otherwise sessions do not share Python workers (ConnectServer.java). tidegate adds no artifacts to sessions.
    "spark.sql.artifact.isolation.enabled": "false",
    # By default 10,000. Larger batches still save a little, but with 65,536 a worker of a small checkpoint gets all of
    # its rows at the end, instead of working while Spark computes the next batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    # With it, Spark 4.2.0 hangs, or its workers crash, if a Python function directly follows a scan of Parquet files.
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.pyspark.python": sys.executable,
    "spark.pyspark.driver.python": sys.executable,
    # Spark's own pattern, and the key of an Azure account, which Spark would write into an event log.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|account[.]key",
    # Users see errors through errors.py: the first line only. The whole trace is in the log.
    "spark.sql.connect.serverStacktrace.enabled": "false",
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    # By default a server keeps each session's last 16 plans with their cached rows, which are those of five
    # checkpoints. tidegate hardly ever uses a frame twice.
    "spark.connect.session.planCache.maxSize": "0",
    # The plan's text that each query passes to listeners. The default, per operator, takes 5 % of a checkpoint with
    # many small queries, and no web UI is running to show it.
    "spark.sql.ui.explainMode": "simple",
    # A killed client's job must not keep the cores busy for the default seven minutes. The server notices that a client
    # is gone when it stops asking for more, and then waits for it to reconnect.
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "15s",
    "spark.connect.execute.manager.detachedTimeout": "30s",
    "spark.connect.execute.manager.maintenanceInterval": "10s",
}


STARTS = 5
"""An embedded server may take this many times `start_timeout` to start, so that several attempts wait for it."""


@dataclass(frozen=True)
class SparkSettings:
    """Where Spark runs, and its configuration.

    mode: `connect` (a server, embedded or remote), `local` (inside this process, for tests) or `submit` (a separate
        application for each job, on any cluster: spark/submit.py).
    remote: the sc:// URL of a server that the user runs; None for the embedded one.
    conf: Spark's own keys; they override our defaults, except the keys in FIXED.
    idle_timeout: the seconds without a client after which the embedded server ends.
    answer_timeout: the seconds after which a server that does not answer is replaced.
    start_timeout: the seconds for which a try waits for an embedded server to start. The next try continues to wait for
        the same server; after STARTS times as long its start has failed.
    spare: whether the embedded server has a spare, which takes over when it dies.
    home: the folder of the embedded server's token, lock, log and state, readable only by this user. By default inside
        the working folder, so one server per user and checkout: two checkouts may have different versions of
        everything, and users find the log there. Pass an absolute path if the working folder varies.
    python_path: folders from which Python workers import the user's modules.
    login: keys of object stores that must not be on a disk: Spark's process gets them through its environment.
    """

    mode: Literal["connect", "local", "submit"] = "connect"
    remote: str | None = field(default=None, repr=False)  # may hold a token
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold passwords
    idle_timeout: float = 600.0
    answer_timeout: float = 30.0
    start_timeout: float = 90.0
    spare: bool = False
    home: Path = field(default_factory=lambda: Path.cwd() / ".tidegate" / "spark")
    master: str = "local[*]"
    memory: str = "2g"
    python_path: tuple[Path, ...] = ()
    login: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "conf", MappingProxyType(dict(self.conf)))
        if self.mode not in ("connect", "local", "submit"):
            raise _bad("mode", self.mode, "connect, local or submit")
        if self.remote is not None and (self.mode != "connect" or not self.remote.startswith("sc://")):
            raise Invalid(
                "The Spark setting `remote` does not fit.",
                expected="sc://host:port with mode connect",
                help="Correct `remote`, or leave it out to use the embedded server.",
            )
        for name in ("idle_timeout", "answer_timeout", "start_timeout"):
            if not 0 < getattr(self, name) < 1e9:
                raise _bad(name, getattr(self, name), "a number of seconds above 0")
        if not _MASTER.fullmatch(self.master) and not (self.mode != "local" and self.on_cluster):
            clusters = ", and with mode connect or submit spark://host:port, k8s://… or yarn"
            raise _bad(
                "master", self.master, f"local[*], local[N], local[N,retries] or local-cluster[N,cores,MB]{clusters}"
            )
        if not _MEMORY.fullmatch(self.memory):
            raise _bad("memory", self.memory, "a size like 2g or 1500m")
        if not self.home.is_absolute():
            raise _bad("home", str(self.home), "an absolute path")
        for key, value in self.conf.items():
            if not (self.on_cluster or self.mode == "submit") or key not in OF_THE_CLUSTER:
                check_spark_key(key, value)

    @property
    def on_cluster(self) -> bool:
        """Whether Spark's tasks run on a cluster."""
        return _CLUSTER.fullmatch(self.master) is not None


def on_loopback(master: str) -> bool:
    """Return whether all of Spark is on this machine, according to its master."""
    return _LOOPBACK.fullmatch(master) is not None


def server_conf(settings: SparkSettings, scratch: Path) -> dict[str, str]:
    """Return the keys that define a server: all but the user's session keys. scratch: for Spark's temporary files."""
    # Delta's jars and extension come first; the user's own are added.
    jars = [str(path) for path in jar_paths()]
    defaults = {
        **_DEFAULTS,
        "spark.master": settings.master,
        "spark.driver.memory": settings.memory,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(_cores(settings.master)),
        # Above 32 paths Spark lists them in a job, by default with a task for each, which costs 4 ms per file.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * _cores(settings.master)),
        # A JVM that continues after running out of memory is worse than a dead one, which is noticed and replaced.
        "spark.driver.defaultJavaOptions": _java_options(settings),
    }
    if not settings.master.startswith("local-cluster"):
        # Keeps other users of this machine out of Spark's own ports. In local mode Spark generates the secret.
        defaults["spark.authenticate"] = "true"
        # Shuffled rows stay on this machine, mostly in its memory: compressing them costs more than it saves, 5 % of a
        # checkpoint with operators. Rows spilled to disk are still compressed.
        defaults["spark.shuffle.compress"] = "false"
    fixed = {_hadoop(key): values[0] for key, (values, _) in FIXED.items()}
    if settings.on_cluster:
        dropped = set(_EMBEDDED)
        if on_loopback(settings.master):
            dropped -= {"spark.driver.bindAddress", "spark.driver.host"}
        for key in dropped:
            defaults.pop(key, None)
            fixed.pop(key, None)
        defaults["spark.executorEnv.TZ"] = "UTC"
    user_conf = {key: value for key, value in settings.conf.items() if not is_session_key(key)}
    merged = defaults | fixed | user_conf
    merged["spark.jars"] = _joined(jars, user_conf.get("spark.jars", ""))
    merged["spark.sql.extensions"] = _joined([_DELTA_EXTENSION], user_conf.get("spark.sql.extensions", ""))
    return merged


def session_conf(settings: SparkSettings) -> dict[str, str]:
    """Return the settings of each session. A remote server has its own configuration, so sessions get ours."""
    user_conf = {key: value for key, value in settings.conf.items() if is_session_key(key)}
    if settings.remote is None:
        return user_conf
    if unknown := sorted(settings.conf.keys() - user_conf.keys()):
        raise Invalid(
            f"A remote Spark server only reads {', '.join(unknown)} when it starts.",
            expected="session keys only (spark.sql.…, spark.databricks.…)",
            help="Set it where the server is started, or leave out `remote` to use the embedded server.",
        )
    fixed = {}
    for key, (values, _) in FIXED.items():
        if is_session_key(key) or key.startswith("mapreduce"):
            fixed[key] = values[0]
    return fixed | {"spark.databricks.delta.snapshotPartitions": "2"} | user_conf


def properties(conf: Mapping[str, str]) -> str:
    """Return the text of a Java properties file. Spark reads it, so that `ps` does not show passwords."""
    lines = []
    for key, value in sorted(conf.items()):
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        lines.append(f"{key}={escaped}\n")
    return "".join(lines)


def _hadoop(key: str) -> str:
    if key.startswith("spark."):
        return key
    return f"spark.hadoop.{key}"


def _joined(defaults: list[str], user_list: str) -> str:
    """Return the comma-separated list of both, without duplicates."""
    user_parts = [part.strip() for part in user_list.split(",")]
    return ",".join(dict.fromkeys(part for part in [*defaults, *user_parts] if part))


def _cores(master: str) -> int:
    """Return the number of tasks that run at once."""
    match = _MASTER.fullmatch(master)
    if match is not None and match[3] and match[4]:
        return int(match[3]) * int(match[4])
    if match is not None and match[1] == "*":
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if match is not None and match[1]:
        return int(match[1])
    return 1


def _java_options(settings: SparkSettings) -> str:
    """Return the options of the driver's JVM. If the user chooses a garbage collector anywhere, we choose none, because
    a JVM refuses two.

    Java's default collector runs concurrently, to keep pauses short. Pauses do not matter here, and on few cores it
    takes time from the tasks: with the parallel collector a checkpoint of 1 M rows is faster by a sixth, in the same
    memory.
    """
    options = "-XX:+ExitOnOutOfMemoryError"
    variables = (os.environ.get(name, "") for name in _JVM_VARIABLES)
    user_options = [settings.conf.get("spark.driver.extraJavaOptions", ""), *variables]
    if settings.mode != "submit":
        options += archive_options(user_options)
        if not any(map(_TIERS.search, user_options)):
            options += _PATIENT_COMPILER
    if any(map(_COLLECTOR.search, user_options)) or _megabytes(settings.memory) > _SHORT_PAUSES_MB:
        return options
    return f"{options} -XX:+UseParallelGC"


def _megabytes(memory: str) -> int:
    match = _MEMORY.fullmatch(memory)
    assert match is not None
    return int(match[1]) * {"m": 1, "g": 1024, "t": 1024 * 1024}[match[2]]


def _bad(name: str, value: object, expected: str) -> Invalid:
    return Invalid(
        f"The Spark setting `{name}` is {value!r}.",
        expected=expected,
        help=f"Correct spark.{name}; `tidegate config` shows where it comes from.",
    )
