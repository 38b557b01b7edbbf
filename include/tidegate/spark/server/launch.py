"""Starts an embedded Spark server: its identity, its command line, and the diagnosis if it does not start."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tidegate import seams
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.spark.conf import STARTS, SparkSettings, server_conf
from tidegate.spark.installation import file_identity, find_java, spark_home, spark_identity
from tidegate.spark.server.folder import Launch, ServerFolder
from tidegate.spark.server.locks import lock
from tidegate.spark.server.processes import machine

__all__ = ["command", "environment", "identity", "launch", "start_failed", "still_starting"]

_COMPILER = "org.codehaus.janino.SimpleCompiler"
"""Compiles a file and becomes the class in it."""
_SERVER = Path(__file__).with_name("ConnectServer.java")
# Environment variables that would change our Spark against its configuration.
_NOT_INHERITED = frozenset(
    """
    PYSPARK_DRIVER_PYTHON PYSPARK_GATEWAY_PORT PYSPARK_GATEWAY_SECRET PYSPARK_SUBMIT_ARGS SPARK_API_MODE
    SPARK_CLASSPATH SPARK_CONF_DIR SPARK_CONNECT_AUTHENTICATE_TOKEN SPARK_CONNECT_MODE SPARK_CONNECT_MODE_ENABLED
    SPARK_DAEMON_JAVA_OPTS SPARK_DRIVER_MEMORY SPARK_ENV_LOADED SPARK_LOCAL_REMOTE SPARK_MASTER SPARK_MEM
    SPARK_REMOTE SPARK_SUBMIT_OPTS SPARK_TESTING
    """.split()  # noqa: SIM905
)
# Messages of a JVM or Spark after which a retry is useless.
_WRONG_INPUT = re.compile(
    r"^Error: |Could not create the Java Virtual Machine|UnsupportedClassVersionError|IllegalArgumentException"
    r"|ClassNotFoundException|NoSuchMethodError|Module \S+ not found|should be specified|Invalid Spark|NumberFormat"
)
_COMPLAINT = re.compile(r"\berror\b|exception|fatal|not found|invalid|unrecognized|cannot", re.IGNORECASE)


def identity(settings: SparkSettings) -> str:
    """Return the name of the server for these settings: a hash of everything that defines it."""
    conf = server_conf(settings, Path("scratch"))
    made_of = {
        "conf": conf,
        "server": file_identity(_SERVER),
        "jars": [name if ":" in name else file_identity(Path(name)) for name in conf["spark.jars"].split(",")],
        "java": file_identity(find_java()),
        "pyspark": spark_identity(),
        "python": [sys.executable, sys.version, _python_path(settings)],
        "machine": machine(),
    }
    text = json.dumps(made_of, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def launch(folder: ServerFolder, settings: SparkSettings) -> None:
    """Start a watchdog with a server, and return while they are starting. The caller has the start lock."""
    with lock(folder.watch_lock, timeout=5.0, purpose="The folder of the Spark server") as watch:
        folder.forget()
        if folder.log.exists():
            folder.log.replace(folder.path / "server.log.1")
        token = "".join(seams.new_id() for _ in range(4))
        conf = server_conf(settings, folder.scratch) | {"spark.connect.authenticate.token": token}
        folder.write_private(folder.token_file, token)
        folder.write_properties(conf)
        folder.write_launch(
            Launch(
                command=command(folder),
                idle_timeout=settings.idle_timeout,
                answer_timeout=settings.answer_timeout,
                start_timeout=STARTS * settings.start_timeout,
            )
        )
        _start_watchdog(folder, settings, watch.descriptor)
    # The client's imports take a second or two. The JVM takes longer, so they cost nothing here.
    import pyspark.sql.connect.session  # noqa: F401


def command(folder: ServerFolder) -> tuple[str, ...]:
    """Return the command line, which everybody can see in `ps`: no setting and no token."""
    submit = str(spark_home() / "bin" / "spark-submit")
    options = ("--properties-file", str(folder.properties_file), "--class", _COMPILER)
    return submit, *options, "spark-internal", str(_SERVER), _SERVER.stem


def _start_watchdog(folder: ServerFolder, settings: SparkSettings, watch: int) -> None:
    """Start it with the watch lock: an open file that it inherits, and that we close then."""
    command = [sys.executable, "-m", "tidegate.spark.server.watchdog", str(folder.path)]
    log = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        subprocess.run(
            command,
            cwd=folder.path,
            env=environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(watch,),
            start_new_session=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise start_failed(folder) from error
    finally:
        os.close(log)


def start_failed(folder: ServerFolder) -> TidegateError:
    """Return why the server ended before it was ready, from its log."""
    lines = _log_of(folder)
    complaints = [line.strip() for line in lines if _COMPLAINT.search(line) and not line.startswith(("\t", " "))]
    wrong = [line for line in complaints if _WRONG_INPUT.search(line)]
    kind = Invalid if wrong else Unavailable
    last = next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
    return kind(
        f"The Spark server did not start: {(wrong or complaints or [last])[0][:300]}",
        help=("Correct the Spark settings. " if wrong else "Try again. ") + f"Its log: {folder.log}",
        reason="SPARK_START",
    )


def still_starting(folder: ServerFolder, seconds: float) -> Unavailable:
    """Return the error for a server that is not ready in time. It keeps starting; its last message shows how far it
    is."""
    last = next((line.strip() for line in reversed(_log_of(folder)) if line.strip()), "nothing yet")
    return Unavailable(
        f"The Spark server has not come up within {seconds:g} s, and is still starting. Its log ends: {last[:300]}",
        help="Nothing needs to be done: the next try waits for the same server. If this machine always takes so long, "
        f"raise spark.start_timeout. Its log: {folder.log}",
        reason="SPARK_STARTING",
    )


def _log_of(folder: ServerFolder) -> list[str]:
    try:
        return folder.log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def environment(settings: SparkSettings) -> dict[str, str]:
    """Return the environment of Spark's processes: ours, without variables that would override the configuration."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return inherited | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": _python_path(settings),
        # Python workers turn timestamps into local time.
        "TZ": "UTC",
        "LOG4J_CONFIGURATION_FILE": str(Path(__file__).with_name("log4j2.properties")),
        "TIDEGATE_SPARK_LOG_LEVEL": os.environ.get("TIDEGATE_SPARK_LOG_LEVEL", "warn"),
    }


def _python_path(settings: SparkSettings) -> str:
    """Return the import path of workers: the user's setting, tidegate itself, and what they inherit."""
    ours = [*map(str, settings.python_path), str(Path(__file__).resolve().parents[2])]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(path for path in [*ours, *inherited] if path))
