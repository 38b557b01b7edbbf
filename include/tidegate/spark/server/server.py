"""The embedded Spark Connect server: one per user, checkout and configuration, started by the first process in need.

Rules:
- Who starts or stops a server holds its start lock, so two that want one at once share it.
- Who uses a server holds its lease, shared; the kernel gives a lease up when its holder dies.
- A server has a watchdog (watchdog.py), which holds the watch lock for as long as it lives. If that
  lock is free there is no server, whatever server.json says.
- What a server is made of (configuration, jars, Java, pyspark, Python) names its folder. Something changed means
  another folder and another server beside the old one: an old one that nobody uses is stopped at once, one
  that somebody uses goes away when it is idle.
- A process is signalled only if its pid *and* its start time are those that were written down.
- Every wait has a deadline, and its error names the log.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidegate import seams
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.spark.conf import SparkSettings
from tidegate.spark.server.client import check_answers, loopback
from tidegate.spark.server.folder import ServerFolder, ServerState, private_folder
from tidegate.spark.server.launch import identity, launch, start_failed, still_starting
from tidegate.spark.server.locks import Lock, lock, try_lock
from tidegate.spark.server.processes import is_alive, kill, lock_holders, wait_gone

__all__ = ["ServerInfo", "acquire", "start", "status", "stop"]

_KILL_TIMEOUT = 10.0
_STOP_TIMEOUT = 20.0  # the watchdog gives the JVM 10 s
_FOLDERS_KEPT = 4  # of servers that are gone: their logs


@dataclass(frozen=True)
class ServerInfo:
    """A server that was running when this was made.

    fresh: this call started it.
    used_by: the pids of its clients, as far as the system tells.
    """

    key: str
    port: int
    pid: int
    watchdog_pid: int
    started: str
    log: Path
    fresh: bool = False
    used_by: tuple[int, ...] = ()
    token: str = field(default="", repr=False)

    def to_json(self) -> dict[str, object]:
        """Return the fields for `--json`, without the token."""
        fields = {name: value for name, value in vars(self).items() if name not in ("token", "fresh")}
        return fields | {"log": str(self.log), "used_by": list(self.used_by)}


def start(settings: SparkSettings) -> ServerInfo:
    """Make sure that the server runs. Without a client, it stays for `idle_timeout`."""
    with acquire(settings) as info:
        return info


@contextlib.contextmanager
def acquire(settings: SparkSettings) -> Iterator[ServerInfo]:
    """Yield a server that answers, started if need be, and that does not idle out while the block runs."""
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
                _retire_others(home, folder)
                resources.enter_context(_lease(folder))
                info = _running_or_new(folder, settings)
        yield info


def status(home: Path) -> list[ServerInfo]:
    """Return the running servers. Reads the kernel's locks and the files; starts nothing and waits for nothing."""
    return [_info(folder, state) for folder in _folders(home) if (state := _live(folder)) is not None]


def stop(home: Path, *, force: bool = False) -> list[ServerInfo]:
    """Stop the servers and wait until they are gone. Return those that ran.

    force: also those that somebody uses; the jobs in there fail as Unavailable.
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
                    help="Wait for it, or stop it all the same with `tidegate spark stop --force`: jobs that "
                    "run in it fail as unavailable, and their retry starts a new server.",
                    reason="SPARK_IN_USE",
                )
            if (state := _live(folder)) is not None:
                stopped.append(_info(folder, state))
            _stop(folder)
    return stopped


@contextlib.contextmanager
def _usable(home: Path) -> Iterator[None]:
    """Turn errors about a folder that cannot be written, or has no locks, into one that names the folder."""
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
        help=f"Look into its log: {folder.log}",
        reason="SPARK_NO_ANSWER",
    )


def _await_ready(folder: ServerFolder, timeout: float) -> ServerState | None:
    """Wait for a running or starting server. Return None when there is none, or none any more. Raise Unavailable while
    it is still starting: the next attempt continues to wait for it."""
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
    """Return whether a server's watchdog should have given it up long ago."""
    try:
        since = seams.now().timestamp() - folder.launch_file.stat().st_mtime
        return since > folder.launch().start_timeout + _KILL_TIMEOUT
    except (OSError, ValueError, TypeError):
        return True


def _live(folder: ServerFolder) -> ServerState | None:
    """Return the content of server.json, if both processes that it names are alive."""
    state = folder.state()
    return state if state and is_alive(state.server) and is_alive(state.watchdog) else None


def _stop(folder: ServerFolder) -> None:
    """End the server, if there is one: without its state file the watchdog ends it. If it does not, kill it."""
    folder.state_file.unlink(missing_ok=True)
    try:
        lock(folder.watch_lock, timeout=_STOP_TIMEOUT, purpose="The Spark server").release()
    except Unavailable:
        _kill(folder)


def _kill(folder: ServerFolder) -> None:
    """Kill the server and its watchdog. The next launch removes what they leave."""
    state, watchdog = folder.state(), folder.watchdog()
    targets = ([watchdog] if watchdog else []) + ([state.server, state.watchdog] if state else [])
    for process in targets:
        kill(process, signal.SIGKILL)
    all_gone = all(wait_gone(process, _KILL_TIMEOUT) for process in targets)
    try:
        lock(folder.watch_lock, timeout=_KILL_TIMEOUT, purpose="The Spark server").release()
    except Unavailable:
        all_gone = False
    if not all_gone:
        pids = ", ".join(str(process.pid) for process in targets) or "unknown"
        raise Unavailable(
            f"A Spark server that hangs cannot be ended (process {pids}).",
            help=f"End it by hand, then try again. Its log: {folder.log}",
            reason="SPARK_HANGS",
        )


def _retire_others(home: Path, current: ServerFolder) -> None:
    """Make unused servers of other configurations end; remove the folders of the oldest that are gone."""
    unused = []
    for folder in _folders(home):
        # A locked folder is in use: leave it alone.
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
    """Take the right to start or stop this server. Another process may remove the folder meanwhile, as one of the
    oldest."""
    while True:
        private_folder(folder.path)
        with contextlib.suppress(FileNotFoundError):
            return lock(folder.start_lock, timeout=timeout, purpose=f"Starting the Spark server {folder.key}")


def _lease(folder: ServerFolder) -> Lock:
    """Take the lock that keeps the server from idling out. The touch shows the watchdog leases between two of its
    checks."""
    lease = lock(folder.lease_lock, shared=True, timeout=_STOP_TIMEOUT, purpose="The lease of the Spark server")
    os.utime(lease.path)
    return lease


def _folders(home: Path) -> list[ServerFolder]:
    """Return every folder that has, or had, a server."""
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
    )
