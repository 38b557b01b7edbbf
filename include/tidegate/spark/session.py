"""A Spark session for as long as a `with` block: on a server (`connect`) or inside this process (`local`).

    with session(SparkSettings()) as spark:      # milliseconds on a server that runs, seconds on one that does not
        for checkpoint in ...:
            with translated():
                run(spark, checkpoint)

Use one session for many checkpoints, because Python workers are warm per session. After a block raised Unavailable,
open another session: the server may be a new one. Nothing is opened at import, and nothing survives a fork: a child
process opens its own session.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast

from tidegate.config import Settings
from tidegate.config.keys import DRIVER_MEMORY
from tidegate.errors import Invalid, Unavailable
from tidegate.spark import local_session
from tidegate.spark.conf import SparkSettings, session_conf
from tidegate.spark.errors import translate, translated
from tidegate.spark.server import client
from tidegate.spark.server import server as connect_server
from tidegate.spark.storage.arrow_memory import load_arrow
from tidegate.spark.storage.object_storage import address_in, hadoop_options
from tidegate.spark.storage.same_disk import is_tidegate_server, on_one_machine
from tidegate.spark.workers.shipping import ship_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "ReusedSession",
    "SparkSettings",
    "cancel_in",
    "control_settings",
    "reused_session",
    "session",
    "spark_settings",
    "translate",
    "translated",
]


_LOOPBACK_PATIENCE = 3  # retries within a second: a server on this machine that is gone does not come back
_IDLE_ASIDE_S = 60.0
_REMOTE_PATIENCE = 8  # retries within about half a minute: a connection may break while the server is fine


@contextlib.contextmanager
def session(settings: SparkSettings) -> Iterator[SparkSession]:
    """Open a session for the block, and release it at its end.

    connect: a process may have several at once. While one is open, `pyspark.sql.functions` only works for Connect, so
    do not mix both modes in a process at the same time.
    local: the first one starts Spark in this process, and the last one stops it.
    """
    if settings.mode == "submit":
        raise Invalid(
            "With spark.mode = submit no Spark session can be opened here: each job is a separate application.",
            expected="mode connect or local",
            help="Run the pipeline under Airflow, or choose a mode: -D spark.mode=connect -D spark.master='local[*]'.",
            reason="SPARK_SUBMIT_ONLY",
        )
    conf = session_conf(settings)
    with contextlib.ExitStack() as resources:
        if settings.mode == "local":
            yield resources.enter_context(local_session.opened(settings, conf))
            return
        patience = _REMOTE_PATIENCE
        if settings.remote is not None:
            builder = client.remote(settings.remote)
        else:
            server = resources.enter_context(connect_server.acquire(settings))
            builder = client.loopback(server.port, server.token)
            patience = _LOOPBACK_PATIENCE
        timeout = settings.answer_timeout
        opening = client.open_session(builder, conf, answer_timeout=timeout, patience=patience)
        try:
            opened = resources.enter_context(opening)
        except Unavailable as error:
            if error.reason != "SPARK_LOST":
                raise
            help = error.help
            if settings.remote is not None:
                help = "It is tried again. If it keeps failing: is the server running that spark.remote names?"
            raise Unavailable(
                f"The Spark server cannot be reached: {error.what}", help=help, reason="SPARK_UNREACHABLE"
            ) from error
        if not (on_one_machine(opened) and is_tidegate_server(opened)):
            with translated(), tempfile.TemporaryDirectory(prefix="tidegate-code-") as folder:
                ship_code(opened, settings.python_path, Path(folder))
        yield opened


class ReusedSession:
    """Call it to get the session, and `drop` it after a failure. It is released at the end of the `with` block.

    of_jobs: the settings of jobs with their own settings. Each of them gets a separate session.
    """

    def __init__(self, settings: SparkSettings, of_jobs: Mapping[str, SparkSettings] = MappingProxyType({})) -> None:
        load_arrow()
        self.settings = settings
        self.opened: Callable[[], None] = lambda: None
        """Called after a session has been opened."""
        self._of_jobs = of_jobs
        self._resources = contextlib.ExitStack()
        self._sessions: dict[str | None, SparkSession] = {}

    def __call__(self, job: str | None = None) -> SparkSession:
        """Return the session for a job, opened on the first call."""
        key = job if job in self._of_jobs else None
        if key not in self._sessions:
            settings = self.settings if key is None else self._of_jobs[key]
            self._sessions[key] = self._resources.enter_context(session(settings))
            self.opened()
        return self._sessions[key]

    def drop(self) -> None:
        """Release the sessions after a failure. The next call opens another, on a new server if necessary."""
        resources, self._resources, self._sessions = self._resources, contextlib.ExitStack(), {}
        with contextlib.suppress(Exception):
            resources.close()

    def cancel(self) -> None:
        """Cancel all work in the sessions. May be called from any thread."""
        for opened in list(self._sessions.values()):
            cancel_in(opened)

    def __enter__(self) -> ReusedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


def cancel_in(spark: SparkSession) -> None:
    """Cancel all work in a session. May be called from any thread. Never raises."""
    from pyspark.sql import SparkSession as InThisProcess

    with contextlib.suppress(Exception):
        if isinstance(spark, InThisProcess):
            spark.sparkContext.cancelAllJobs()
        else:
            spark.interruptAll()


def spark_settings(settings: Settings, job: str | None = None) -> SparkSettings:
    """Return the Spark settings of a project, whose embedded server belongs to the project's folder.

    job: include this job's own settings.
    """
    spark = settings.spark
    stores: dict[str, str] = {}
    login: dict[str, str] = {}
    if spark.remote is None:
        stores, login = hadoop_options(address_in(os.environ)), hadoop_options(settings.storage_options)
    if settings.storage is None:  # logins in the settings are on a disk already
        stores, login = stores | login, {}
    job_conf = dict(settings.job(job).spark) if job is not None else {}
    memory = job_conf.pop(DRIVER_MEMORY, spark.memory)
    conf = {key: value for key, value in stores.items() if key not in login} | dict(spark.conf) | job_conf
    return SparkSettings(
        mode=cast(Literal["connect", "local", "submit"], spark.mode),
        remote=spark.remote,
        conf=conf,
        login={key: value for key, value in login.items() if key not in conf},
        idle_timeout=spark.idle_timeout,
        start_timeout=spark.start_timeout,
        spare=spark.spare,
        home=server_home(settings.project),
        master=spark.master,
        memory=memory,
        python_path=(settings.project.absolute(),),
    )


def server_home(project: Path) -> Path:
    """Return the folder of the project's embedded server: in the project, where users look for its log. If this user
    may not write there, as in an image whose code belongs to root, a folder per project among the user's own files."""
    project = project.absolute()
    folder = project / ".tidegate"
    if os.access(folder if folder.is_dir() else project, os.W_OK | os.X_OK) or not project.is_dir():
        return folder / "spark"
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        state_home = Path(state)
    else:
        state_home = Path.home() / ".local" / "state"
    return state_home / "tidegate" / f"{project.name}-{hashlib.sha256(bytes(project)).hexdigest()[:12]}" / "spark"


def reused_session(settings: Settings, *, aside: bool = False) -> ReusedSession:
    """Return the sessions for all jobs of a pipeline in one process: jobs without their own settings share one.

    aside: not on the embedded server that production uses, but on one beside it.
    """
    of_jobs = {}
    for job in {entry.partition(".")[0] for entry in settings.jobs}:
        if settings.job(job).spark:
            of_jobs[job] = _separate_server_settings(spark_settings(settings, job), aside=aside)
    return ReusedSession(_separate_server_settings(spark_settings(settings), aside=aside), of_jobs)


def _separate_server_settings(settings: SparkSettings, *, aside: bool) -> SparkSettings:
    if not aside:
        return settings
    idle = min(settings.idle_timeout, _IDLE_ASIDE_S)
    return replace(settings, home=settings.home.with_name("spark-aside"), spare=False, idle_timeout=idle)


_ANYWHERE = ("spark.sql.", "spark.databricks.", "spark.hadoop.", "spark.jars")


def control_settings(settings: Settings, job: str | None = None) -> SparkSettings:
    """Return the settings for `trigger` and `complete`, which only need Spark for tables that delta-rs cannot publish.

    If jobs are submitted to a cluster, the embedded server does that, with the user's settings for tables and storage.
    job: return those of this job's task instead, which runs in that session unless it is submitted.
    """
    spark = spark_settings(settings)
    if spark.mode != "submit":
        return spark_settings(settings, job)
    conf = {key: value for key, value in spark.conf.items() if key.startswith(_ANYWHERE)}
    return replace(spark, mode="connect", master="local[*]", conf=conf)
