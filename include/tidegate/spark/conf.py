"""The configuration of tidegate's Spark sessions: our defaults, the user's settings, and what safety requires.

Two kinds of keys. *Session* keys may differ between sessions of one server, so they are set on each session and
two pipelines with different ones share a server. All others make a server what it is: changing one of them
means another server.
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
"""About thirty times Java's own thresholds, from which its slow compiler takes up a method. It cannot get done with
Spark's planner in fewer than twenty small checkpoints, and takes a third of two cores for that long, which the first
ones under Airflow need for themselves. What is called for each row reaches these thresholds all the same, and loops
over rows have others, which are as they were: a large checkpoint takes as much time as before."""
_TIERS = re.compile(r"-XX:Tier\d")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_JVM_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_SHORT_PAUSES_MB = 8 * 1024
"""With a larger heap, the pauses of a stop-the-world collector cost more than it saves."""

# Right for a Spark on this machine; a cluster has its own.
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
    # A checkpoint of a few operators takes about 250 classes of generated code. With Spark's limit of 100 each is
    # compiled anew in each checkpoint, and never gets warm.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Hadoop's own class starts `chmod` for every file and folder: 3 to 5 ms each, a dozen times per write.
    LOCAL_WRITES: "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem",
    # Otherwise each session has Python workers of its own (ConnectServer.java). Nobody adds artifacts to sessions.
    "spark.sql.artifact.isolation.enabled": "false",
    # By default 10,000. Longer ones still save a little, but with 65,536 a worker of a small checkpoint gets all of its
    # rows at the end, in place of working while Spark makes the next batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    # With it, Spark 4.2.0 waits forever, or its workers crash, where a Python function follows right on Parquet files.
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.pyspark.python": sys.executable,
    "spark.pyspark.driver.python": sys.executable,
    # Spark's own pattern, and the key of an account of Azure, which it would write into an event log.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|account[.]key",
    # Users see errors through errors.py: the first line only. The whole trace is in the log.
    "spark.sql.connect.serverStacktrace.enabled": "false",
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    # A server keeps the last plans of each session, and with them the cached rows: by default 16 plans, so those of
    # five checkpoints. A frame is hardly ever used twice here.
    "spark.connect.session.planCache.maxSize": "0",
    # The text of a plan that each query passes to listeners: written out by operator it costs a twentieth of a
    # checkpoint of many small queries, and there is no web UI that shows it.
    "spark.sql.ui.explainMode": "simple",
    # The job of a client that was killed must not keep the cores busy for the default seven minutes: the server notices
    # that a client is gone when it has to ask for more, and then gives it some time to come back.
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "15s",
    "spark.connect.execute.manager.detachedTimeout": "30s",
    "spark.connect.execute.manager.maintenanceInterval": "10s",
}


STARTS = 5
"""An embedded server may take this many times `start_timeout` to start: as many attempts wait for it, or more."""


@dataclass(frozen=True)
class SparkSettings:
    """The place where Spark runs, and its configuration.

    mode: `connect` (a server, embedded or remote), `local` (inside this process, for tests) or `submit` (an application
        of its own for each job, on any cluster: spark/submit.py).
    remote: the sc:// URL of a server that somebody else runs; None is the embedded one.
    conf: Spark's own keys; they override our defaults, except what FIXED fixes.
    idle_timeout: after so many seconds without a client the embedded server goes away.
    answer_timeout: a server that does not answer for so many seconds hangs, and is replaced.
    start_timeout: so many seconds a try waits for an embedded server to come up. The next one continues to wait for the
        same server; after STARTS times as long it has failed.
    spare: whether the embedded server has another one beside it, which takes over when it dies.
    home: the folder of the embedded server's token, lock, log and state; only for this user. By default inside
        the working folder, so one server per user and checkout: two checkouts may have different versions of
        everything, and people who look for the log find it. Give an absolute path where the working folder varies.
    python_path: folders that Python workers import your modules from.
    login: keys of object stores that are on no disk: Spark's process gets them through its environment.
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
        """Whether Spark's tasks run wherever a cluster has machines."""
        return _CLUSTER.fullmatch(self.master) is not None


def on_loopback(master: str) -> bool:
    """Return whether all of Spark is on this machine, according to its master."""
    return _LOOPBACK.fullmatch(master) is not None


def server_conf(settings: SparkSettings, scratch: Path) -> dict[str, str]:
    """Return what defines a server: everything but the user's session keys. scratch: for Spark's temporary files."""
    # Delta's jars and extension come first; the user's own are added.
    jars = [str(path) for path in jar_paths()]
    ours = {
        **_DEFAULTS,
        "spark.master": settings.master,
        "spark.driver.memory": settings.memory,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(_cores(settings.master)),
        # Above 32 paths Spark lists them in a job; by default with a task for each, which costs 4 ms a file.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * _cores(settings.master)),
        # Half-dead after running out of memory is worse than dead: a dead server is noticed and replaced.
        "spark.driver.defaultJavaOptions": _java_options(settings),
    }
    if not settings.master.startswith("local-cluster"):
        # Spark's own ports, too, answer nobody else on this machine. In local mode Spark generates a secret by itself.
        ours["spark.authenticate"] = "true"
        # What is shuffled stays on it, and mostly in its memory: packing it takes more time than it saves, a twentieth
        # of a checkpoint with operators. What is spilled from memory is still compressed.
        ours["spark.shuffle.compress"] = "false"
    fixed = {_hadoop(key): values[0] for key, (values, _) in FIXED.items()}
    if settings.on_cluster:
        here = ("spark.driver.bindAddress", "spark.driver.host") if on_loopback(settings.master) else ()
        ours, fixed = ({k: v for k, v in each.items() if k not in _EMBEDDED or k in here} for each in (ours, fixed))
        ours["spark.executorEnv.TZ"] = "UTC"
    wished = {key: value for key, value in settings.conf.items() if not is_session_key(key)}
    merged = ours | fixed | wished
    merged["spark.jars"] = _joined(jars, wished.get("spark.jars", ""))
    merged["spark.sql.extensions"] = _joined([_DELTA_EXTENSION], wished.get("spark.sql.extensions", ""))
    return merged


def session_conf(settings: SparkSettings) -> dict[str, str]:
    """Return the settings of each session. A remote server has its own configuration, so it gets ours here."""
    wished = {key: value for key, value in settings.conf.items() if is_session_key(key)}
    if settings.remote is None:
        return wished
    if unknown := sorted(settings.conf.keys() - wished.keys()):
        raise Invalid(
            f"A remote Spark server takes {', '.join(unknown)} only at its own start.",
            expected="session keys only (spark.sql.…, spark.databricks.…)",
            help="Set it where the server is started, or leave out `remote` to use the embedded server.",
        )
    fixed = {key: values[0] for key, (values, _) in FIXED.items() if is_session_key(key) or key.startswith("mapreduce")}
    return fixed | {"spark.databricks.delta.snapshotPartitions": "2"} | wished


def properties(conf: Mapping[str, str]) -> str:
    """Return a Java properties file. Spark reads its configuration from it, so that no `ps` shows a password."""
    lines = []
    for key, value in sorted(conf.items()):
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        lines.append(f"{key}={escaped}\n")
    return "".join(lines)


def _hadoop(key: str) -> str:
    return key if key.startswith("spark.") else f"spark.hadoop.{key}"


def _joined(ours: list[str], theirs: str) -> str:
    return ",".join(dict.fromkeys([*ours, *(part.strip() for part in theirs.split(",") if part.strip())]))


def _cores(master: str) -> int:
    """Return the number of tasks that run at once."""
    match = _MASTER.fullmatch(master)
    if match is not None and match[3] and match[4]:
        return int(match[3]) * int(match[4])
    if match is not None and match[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(match[1]) if match is not None and match[1] else 1


def _java_options(settings: SparkSettings) -> str:
    """Return the options of the driver's JVM. A collector that the user names anywhere wins: a JVM refuses two.

    Java's default works beside the program, to make pauses short. Nobody waits for a pause here, and on few cores it
    takes them from the tasks: the parallel one makes a checkpoint of 1 M rows faster by a sixth, with no more memory.
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
