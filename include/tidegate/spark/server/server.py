"""The embedded Spark Connect server: one per user, checkout and configuration, started by the first process that needs
it.

Rules:
- A process that starts or stops a server holds its start lock, so two that need one at once share it.
- A process that uses a server holds its lease, shared; the kernel releases a lease when its holder dies.
- A server has a watchdog (watchdog.py), which holds the watch lock for as long as it lives. If that lock is free, no
  server is running, even if server.json says so.
- The name of a server's folder is a hash of everything that defines it (configuration, jars, Java, pyspark, Python).
  After a change, another server with another folder is started. The old server is stopped at once if it is unused,
  otherwise it ends when it is idle.
- A process is signalled only if its pid *and* its start time match the recorded ones.
- Every wait has a deadline, and its error names the log.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidegate import seams
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.spark.conf import STARTS, SparkSettings, on_loopback, properties, server_conf
from tidegate.spark.errors import full_disk
from tidegate.spark.installation import file_identity, find_java, spark_home, spark_identity
from tidegate.spark.server.client import check_answers, loopback
from tidegate.spark.server.folder import Launch, ServerFolder, ServerPlace, ServerState, private_folder
from tidegate.spark.server.locks import Lock, lock, try_lock
from tidegate.spark.server.processes import is_alive, kill, lock_holders, machine, wait_for_end
from tidegate.spark.server.sockets import socket_settings

__all__ = [
    "ServerInfo",
    "acquire",
    "command",
    "conf_in",
    "environment",
    "identity",
    "launch",
    "start",
    "start_failed",
    "status",
    "still_starting",
    "stop",
]


_COMPILER = "org.codehaus.janino.SimpleCompiler"
"""Compiles a file and becomes the class in it."""
_SERVER = Path(__file__).with_name("ConnectServer.java")
_COUNTING = (Path(__file__).parents[1] / "SparkWork.java", Path(__file__).with_name("SparkWorkStatus.java"))
"""The classes that count the server's work, in the order in which they are compiled."""
LOGIN = "SPARK_STORE_LOGIN"
"""The variable that passes settings to Spark's process that must not be on a disk, as a Java properties file."""
_DAEMON = Path(__file__).parents[1] / "workers" / "daemon.py"
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
    definition = {
        "conf": conf,
        "server": [file_identity(file) for file in (_SERVER, *_COUNTING, _DAEMON)],
        "jars": [name if ":" in name else file_identity(Path(name)) for name in conf["spark.jars"].split(",")],
        "java": file_identity(find_java()),
        "pyspark": spark_identity(),
        "python": [sys.executable, sys.version, _python_path(settings)],
        "machine": machine(),
        "spare": settings.spare,
        "login": dict(settings.login),
    }
    text = json.dumps(definition, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def launch(folder: ServerFolder, settings: SparkSettings) -> None:
    """Start a watchdog with a server, and return while they are starting. The caller holds the start lock."""
    with lock(folder.watch_lock, timeout=5.0, purpose="The folder of the Spark server") as watch:
        folder.forget()
        if folder.log.exists():
            folder.log.replace(folder.path / "server.log.1")
        token = "".join(seams.new_id() for _ in range(4))
        folder.write_private(folder.token_file, token)
        # On a cluster a spare would hold unused executors.
        places = folder.places if settings.spare and not settings.on_cluster else folder.places[:1]
        for place in places:
            place.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            conf = conf_in(place, settings) | {"spark.connect.authenticate.token": token}
            folder.write_properties(place, conf)
        folder.write_launch(
            Launch(
                commands=tuple(command(place) for place in places),
                idle_timeout=settings.idle_timeout,
                answer_timeout=settings.answer_timeout,
                start_timeout=STARTS * settings.start_timeout,
                spare_after=SPARE_AFTER,
            )
        )
        _start_watchdog(folder, settings, watch.descriptor)
    # The client's imports take a second or two. The JVM starts meanwhile, so they cost nothing.
    import pyspark.sql.connect.session  # noqa: F401


def conf_in(place: ServerPlace, settings: SparkSettings) -> dict[str, str]:
    """Return the configuration of a server in this place. On a cluster, executors choose their own folders."""
    if settings.on_cluster:
        return server_conf(settings, place.scratch)
    starts_workers = not settings.master.startswith("local-cluster")
    if starts_workers:
        daemon = {"spark.python.daemon.module": "tidegate.spark.workers.daemon"}
    else:
        daemon = {}
    return socket_settings(place.scratch, begins_there=starts_workers) | daemon | server_conf(settings, place.scratch)


def command(place: ServerPlace) -> tuple[str, ...]:
    """Return the command line, without settings and token, because all users can see it in `ps`."""
    submit = str(spark_home() / "bin" / "spark-submit")
    options = ("--properties-file", str(place.properties_file), "--class", _COMPILER)
    return submit, *options, "spark-internal", str(_SERVER), _SERVER.stem, *map(str, _COUNTING)


def _start_watchdog(folder: ServerFolder, settings: SparkSettings, watch: int) -> None:
    """Start the watchdog with the watch lock, an open file that it inherits. The caller closes its own copy."""
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
    """Return the error for a server that ended before it was ready, with the cause from its log."""
    lines = _log_of(folder)
    if (full := full_disk("\n".join(lines))) is not None:
        return full
    complaints = []
    for line in lines:
        if _COMPLAINT.search(line) and not line.startswith(("\t", " ")):
            complaints.append(line.strip())
    wrong_settings = [line for line in complaints if _WRONG_INPUT.search(line)]
    causes = wrong_settings or complaints or [_last_line(lines) or "its log is empty"]
    kind = Invalid if wrong_settings else Unavailable
    return kind(
        f"The Spark server did not start: {causes[0][:300]}",
        help=("Correct the Spark settings. " if wrong_settings else "Try again. ") + f"Its log: {folder.log}",
        reason="SPARK_START",
    )


def still_starting(folder: ServerFolder, seconds: float) -> Unavailable:
    """Return the error for a server that is not ready in time, but keeps starting. Its last message shows the
    progress."""
    last_line = _last_line(_log_of(folder)) or "nothing yet"
    return Unavailable(
        f"The Spark server was not ready within {seconds:g} s, and is still starting. Its log ends: {last_line[:300]}",
        help="Nothing to do: the next try waits for the same server. If this machine always takes this long, "
        f"raise spark.start_timeout. Its log: {folder.log}",
        reason="SPARK_STARTING",
    )


def _last_line(lines: list[str]) -> str:
    """Return the last line that is not blank, or an empty text."""
    for line in reversed(lines):
        if line.strip():
            return line.strip()
    return ""


def _log_of(folder: ServerFolder) -> list[str]:
    try:
        return folder.log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def environment(settings: SparkSettings) -> dict[str, str]:
    """Return the environment of Spark's processes: ours, without variables that would override the configuration."""
    loopback_only = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}
    left_out = _NOT_INHERITED | loopback_only.keys() | {LOGIN}
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    if on_loopback(settings.master):
        variables |= loopback_only
    if settings.login:
        variables[LOGIN] = properties(settings.login)
    return variables | {
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": _python_path(settings),
        "TIDEGATE_PYTHON_PATH": os.pathsep.join(map(str, settings.python_path)),
        # Python workers convert timestamps to local time.
        "TZ": "UTC",
        "LOG4J_CONFIGURATION_FILE": str(Path(__file__).with_name("log4j2.properties")),
        "TIDEGATE_SPARK_LOG_LEVEL": os.environ.get("TIDEGATE_SPARK_LOG_LEVEL", "warn"),
    }


def _python_path(settings: SparkSettings) -> str:
    """Return the import path of workers: the user's setting, tidegate itself, and the inherited path."""
    own_paths = [*map(str, settings.python_path), str(Path(__file__).resolve().parents[2])]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(path for path in [*own_paths, *inherited] if path))


SPARE_AFTER = 20.0
"""The seconds between a server being ready and the start of its spare, so that the first checkpoint runs before."""
_KILL_TIMEOUT = 10.0
_STOP_TIMEOUT = 20.0  # longer than the 10 s that the watchdog waits for the JVM
_FOLDERS_KEPT = 4  # of ended servers, for their logs


@dataclass(frozen=True)
class ServerInfo:
    """A server that was running when this was created.

    fresh: this call started it.
    used_by: the pids of its clients, as far as the system knows them.
    spare_pid: the server that takes over if this one dies, or None if it has no spare, or none that is ready.
    """

    key: str
    port: int
    pid: int
    watchdog_pid: int
    started: str
    log: Path
    fresh: bool = False
    used_by: tuple[int, ...] = ()
    spare_pid: int | None = None
    token: str = field(default="", repr=False)

    def to_json(self) -> dict[str, object]:
        """Return the fields for `--json`, without the token."""
        fields = {}
        for name, value in vars(self).items():
            if name not in ("token", "fresh"):
                fields[name] = value
        return fields | {"log": str(self.log), "used_by": list(self.used_by)}


def start(settings: SparkSettings) -> ServerInfo:
    """Make sure that the server runs. Without a client, it stays for `idle_timeout`."""
    with acquire(settings) as info:
        return info


@contextlib.contextmanager
def acquire(settings: SparkSettings) -> Iterator[ServerInfo]:
    """Yield a server that answers, started if necessary. It does not idle out while the block runs."""
    if settings.mode != "connect" or settings.remote is not None:
        raise Invalid(
            "Only the embedded Spark server is started and stopped by tidegate.",
            expected="spark.mode = connect, and no spark.remote",
            help="Correct the settings, or use the server that spark.remote names.",
        )
    with contextlib.ExitStack() as resources:
        with _usable(settings.home):
            home = private_folder(settings.home)
            folder = ServerFolder(home / identity(settings))
            with _start_lock(folder, settings.start_timeout + _STOP_TIMEOUT):
                _retire_unused_servers(home, folder)
                resources.enter_context(_lease(folder))
                info = _running_or_new(folder, settings)
        yield info


def status(home: Path) -> list[ServerInfo]:
    """Return the running servers, from the kernel's locks and the files. Starts nothing, and does not wait."""
    servers = []
    for folder in _folders(home):
        state = _live(folder)
        if state is not None:
            servers.append(_info(folder, state))
    return servers


def stop(home: Path, *, force: bool = False) -> list[ServerInfo]:
    """Stop the servers, and wait until they are gone. Return those that were running.

    force: also servers in use. Their jobs fail as Unavailable.
    """
    stopped = []
    for folder in _folders(home):
        with _usable(home), _start_lock(folder, _STOP_TIMEOUT), contextlib.ExitStack() as resources:
            if (lease := try_lock(folder.lease_lock)) is not None:
                resources.enter_context(lease)
            elif not force:
                users = ", ".join(map(str, lock_holders(folder.lease_lock))) or "unknown"
                raise Rejected(
                    f"The Spark server {folder.key} is in use (process {users}).",
                    help="Wait for it, or stop it anyway with `tidegate spark stop --force`: its jobs fail as "
                    "unavailable, and their retry starts a new server.",
                    reason="SPARK_IN_USE",
                )
            if (state := _live(folder)) is not None:
                stopped.append(_info(folder, state))
            _stop(folder)
    return stopped


@contextlib.contextmanager
def _usable(home: Path) -> Iterator[None]:
    """Raise an error that names the folder if it cannot be written, or its files cannot be locked."""
    try:
        yield
    except OSError as error:
        wrong = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOLCK)
        raise (Invalid if wrong else Unavailable)(
            f"The folder of the Spark server cannot be used: {error}",
            expected="a folder on a local disk that this user can write and lock files in",
            help=f"Make {home} one, or run in another project folder.",
            reason="SPARK_HOME",
        ) from error


def _running_or_new(folder: ServerFolder, settings: SparkSettings) -> ServerInfo:
    """Return the server of this folder if it answers, otherwise a new one."""
    for _ in range(2):
        state = _await_ready(folder, settings.start_timeout)
        fresh = state is None
        if state is None:
            launch(folder, settings)
            state = _await_ready(folder, settings.start_timeout)
            if state is None:
                raise start_failed(folder)
        # The first answer of a new server is slow: classes are loaded, and the machine may be busy.
        patience = settings.start_timeout if fresh else settings.answer_timeout
        try:
            token = folder.token_file.read_text(encoding="ascii")
            check_answers(loopback(state.port, token), patience)
        except (TidegateError, OSError) as error:
            failure = error
            _kill(folder)
        else:
            return replace(_info(folder, state), fresh=fresh, token=token)
    raise Unavailable(
        f"A Spark server was started, but does not answer: {str(failure).splitlines()[0]}",
        help=f"See its log: {folder.log}",
        reason="SPARK_NO_ANSWER",
    )


def _await_ready(folder: ServerFolder, timeout: float) -> ServerState | None:
    """Wait for a running or starting server. Return None if none is running, or it ends. Raise Unavailable if it is
    still starting after the timeout: the next attempt continues to wait for it."""
    deadline = seams.monotonic() + timeout
    while (state := _live(folder)) is None:
        if (unwatched := try_lock(folder.watch_lock)) is not None:
            unwatched.release()
            return None
        if seams.monotonic() > deadline:
            if _watchdog_hangs(folder):
                _kill(folder)
                return None
            raise still_starting(folder, timeout)
        seams.sleep(0.02)
    return state


def _watchdog_hangs(folder: ServerFolder) -> bool:
    """Return whether a server's watchdog is so late that it must be hanging."""
    try:
        since = seams.now().timestamp() - folder.launch_file.stat().st_mtime
        return since > folder.launch().start_timeout + _KILL_TIMEOUT
    except (OSError, ValueError, TypeError):
        return True


def _live(folder: ServerFolder) -> ServerState | None:
    """Return the content of server.json, if both processes that it names are alive."""
    state = folder.state()
    if state and is_alive(state.server) and is_alive(state.watchdog):
        return state
    return None


def _stop(folder: ServerFolder) -> None:
    """End the server, if one is running: its watchdog ends it when the state file is gone. Otherwise kill it."""
    folder.state_file.unlink(missing_ok=True)
    try:
        lock(folder.watch_lock, timeout=_STOP_TIMEOUT, purpose="The Spark server").release()
    except Unavailable:
        _kill(folder)


def _kill(folder: ServerFolder) -> None:
    """Kill the server and its watchdog. The next launch removes their files."""
    state, watchdog = folder.state(), folder.watchdog()
    targets = [watchdog] if watchdog else []
    if state:
        targets += [state.server, state.watchdog]
    for process in targets:
        kill(process, signal.SIGKILL)
    all_gone = all(wait_for_end(process, _KILL_TIMEOUT) for process in targets)
    try:
        lock(folder.watch_lock, timeout=_KILL_TIMEOUT, purpose="The Spark server").release()
    except Unavailable:
        all_gone = False
    if not all_gone:
        pids = ", ".join(str(process.pid) for process in targets) or "unknown"
        raise Unavailable(
            f"A hanging Spark server cannot be ended (process {pids}).",
            help=f"End it by hand, then try again. Its log: {folder.log}",
            reason="SPARK_HANGS",
        )


def _retire_unused_servers(home: Path, current: ServerFolder) -> None:
    """End unused servers of other configurations, and remove the oldest folders of ended servers."""
    unused = []
    for folder in _folders(home):
        # A locked folder is in use.
        with contextlib.ExitStack() as resources:
            if folder == current or (starting := try_lock(folder.start_lock)) is None:
                continue
            resources.enter_context(starting)
            if (lease := try_lock(folder.lease_lock)) is None:
                continue
            resources.enter_context(lease)
            if _live(folder) is not None:
                folder.state_file.unlink(missing_ok=True)
            elif (watch := try_lock(folder.watch_lock)) is not None:
                watch.release()
                unused.append(folder)
    unused.sort(key=lambda folder: folder.lease_lock.stat().st_mtime, reverse=True)
    for folder in unused[_FOLDERS_KEPT:]:
        shutil.rmtree(folder.path, ignore_errors=True)


def _start_lock(folder: ServerFolder, timeout: float) -> Lock:
    """Take the right to start or stop this server. Create the folder again if another process removes it."""
    while True:
        private_folder(folder.path)
        with contextlib.suppress(FileNotFoundError):
            return lock(folder.start_lock, timeout=timeout, purpose=f"Starting the Spark server {folder.key}")


def _lease(folder: ServerFolder) -> Lock:
    """Take the lock that keeps the server from idling out. Touch it, so that the watchdog notices even leases that
    begin and end between two of its checks."""
    lease = lock(folder.lease_lock, shared=True, timeout=_STOP_TIMEOUT, purpose="The lease of the Spark server")
    os.utime(lease.path)
    return lease


def _folders(home: Path) -> list[ServerFolder]:
    """Return the folders of all servers, running or ended."""
    if not home.is_dir():
        return []
    private_folder(home)
    return [ServerFolder(path) for path in sorted(home.iterdir()) if (path / "start.lock").is_file()]


def _info(folder: ServerFolder, state: ServerState) -> ServerInfo:
    return ServerInfo(
        key=folder.key,
        port=state.port,
        pid=state.server.pid,
        watchdog_pid=state.watchdog.pid,
        started=state.started,
        log=folder.log,
        used_by=tuple(lock_holders(folder.lease_lock)),
        spare_pid=state.spare.pid if state.spare is not None else None,
    )
