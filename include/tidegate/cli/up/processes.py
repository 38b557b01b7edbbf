"""The processes of `tidegate up`: each gets its own session, and ends together with its whole session.

Sessions, not process groups, because Airflow gives each task its own group. A process is identified by its recorded
identity, not by its pid alone, because pids are reused.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate import seams
from tidegate.cli.up.home import Home
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.spark.server.locks import try_lock
from tidegate.spark.server.processes import ProcessId, identify, is_alive, kill, machine, wait_for_end

__all__ = ["Child", "Processes", "adopt_processes", "end_leftover_processes", "last_error", "lock_project", "log_end"]

_KILL_S = 10.0
_TICK_S = 0.1
_LOG_LINES = 25
_NO_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)
_LOG_END = 16 * 1024
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_REQUEST = re.compile(r'"(GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) |\bhttp_access\b|request finished')
_ERROR = re.compile(
    r"^\s*[\w.]*(Error|Exception|Exit)\b(:|$)|\b(ERROR|CRITICAL|FATAL)\b|\[(error|critical)\s*\]", re.ASCII
)
"""The line of a traceback that names the exception, or a line that a logger marks as an error."""


@dataclass
class Child:
    """A session's leading process: one that we started, or took over from a call that was killed."""

    name: str
    id: ProcessId | None
    log: Path
    process: subprocess.Popen[bytes] | None = None
    """None if it was taken over."""

    @property
    def ended(self) -> bool:
        if self.process is None:
            return self.id is None or not is_alive(self.id)
        return self.process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code once it has ended, or None if it has not, or if it was taken over: then it is unknown."""
        if self.process is None:
            return None
        return self.process.poll()

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.process is not None:
            self.process.terminate()
        elif self.id is not None:
            kill(self.id, signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, for at most this time."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        elif self.id is not None:
            wait_for_end(self.id, seconds)


@contextlib.contextmanager
def lock_project(home: Home) -> Iterator[None]:
    """Allow only one `tidegate up` in a project folder."""
    lock = try_lock(home.lock)
    if lock is None:
        port = home.state().get("port")
        address = f" on http://127.0.0.1:{port}" if port else ""
        raise Rejected(
            f"Airflow of this project is already running{address}",
            expected="no other `tidegate up` in this folder",
            help="stop that one with Ctrl-C, or use it",
            reason="UP_ALREADY",
        )
    with lock:
        yield


class Processes:
    """Starts processes, and ends all of them at the end of the `with` block, the last started first."""

    def __init__(self, home: Home, port: int, taken_over: Iterable[Child] = ()) -> None:
        self.home = home
        self.environment = home.environment(port)
        self.children = list(taken_over)
        self._port = port

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(0.0, lambda: True)

    def start(self, name: str, command: Sequence[str]) -> Child:
        """Start a process in its own session. Its output goes to its log; the previous log is kept."""
        log = self.home.log(name)
        with contextlib.suppress(FileNotFoundError):
            log.replace(log.with_suffix(".log.1"))
        with log.open("wb") as file:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=self.home.project,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                if error.errno not in _NO_PROGRAM:
                    raise
                raise Invalid(
                    f"{command[0]} cannot be started: {error.strerror or error}",
                    expected="a program and its arguments",
                    help="name a program on this machine; tidegate runs in the environment in which it is installed",
                    reason="NO_SUCH_PROGRAM",
                ) from error
        child = Child(name, identify(process.pid), log, process)
        self.children.append(child)
        try:
            self._write_state()
        except OSError:  # if we were killed, the next call would not find it
            self.end(child)
            raise
        return child

    def end(self, child: Child) -> None:
        """Kill a process and everything in its session: its workers and their tasks, too."""
        _end_sessions([child.id] if child.id else [], self.home)
        child.wait(_KILL_S)
        self.children.remove(child)
        with contextlib.suppress(
            OSError
        ):  # the disk is full: the state still names an ended process, which is harmless
            self._write_state()

    def stop(self, grace: float, hurried: Callable[[], bool]) -> None:
        """End all: first with SIGTERM, the scheduler and its tasks before the servers that they call, then with
        SIGKILL.

        grace: the time limit for all of them. hurried: called repeatedly; True means SIGKILL now.
        """
        until = seams.monotonic() + grace
        for child in sorted(self.children, key=lambda child: child.name != "scheduler"):
            if not child.ended and not hurried():
                child.terminate()
                if child.name == "scheduler":
                    _wait(lambda child=child: child.ended, until, hurried)  # type: ignore[misc]
        _wait(lambda: all(child.ended for child in self.children), until, hurried)
        _end_sessions([child.id for child in self.children if child.id], self.home)
        for child in self.children:
            child.wait(_KILL_S)
        self.children.clear()
        self._write_state()

    def _write_state(self) -> None:
        # Also for processes that have ended: the next call must find the remaining ones of their sessions.
        processes = {child.name: child.id.to_json() for child in self.children if child.id}
        state = {
            "format": 1,
            "port": self._port,
            "fingerprint": self.home.fingerprint(self.environment),
            "processes": processes,
        }
        self.home.write_private(self.home.state_file, json.dumps(state, indent=1) + "\n")


def adopt_processes(home: Home, names: Iterable[str], server: str, port: int | None) -> list[Child]:
    """Return the processes of a killed `tidegate up` that are equal to those that this call would start.

    names: the components' names. server: without this one, none is taken over, because the rest call its port.
    port: the requested port, or None for any.
    """
    recorded = home.state()
    last = recorded.get("port")
    if not isinstance(last, int) or port not in (None, last):
        return []
    if recorded.get("fingerprint") != home.fingerprint(home.environment(last)):
        return []
    leaders = {}
    for leader, name in _recorded(home).items():
        if name in names and is_alive(leader):
            leaders[name] = leader
    if server not in leaders:
        return []
    return [Child(name, leader, home.log(name)) for name, leader in leaders.items()]


def end_leftover_processes(home: Home, kept: Iterable[Child] = ()) -> list[str]:
    """End the processes of a killed `tidegate up`, except the kept ones. Return the names of the ended ones."""
    keep = {child.id for child in kept}
    leaders = {leader: name for leader, name in _recorded(home).items() if leader not in keep}
    ended = _end_sessions(leaders, home)
    return [name for leader, name in leaders.items() if leader.pid in ended]


def _recorded(home: Home) -> dict[ProcessId, str]:
    """Return the processes that the last call started, with their names."""
    leaders: dict[ProcessId, str] = {}
    recorded = home.state().get("processes")
    for name, value in recorded.items() if isinstance(recorded, dict) else ():
        with contextlib.suppress(Invalid):
            leaders[ProcessId.from_json(value)] = str(name)
    return leaders


def log_end(path: Path, lines: int = _LOG_LINES) -> str:
    """Return the last lines of a log."""
    texts = _last_lines(path)
    if texts is None:
        return f"({path} cannot be read)"
    return "\n".join(f"  {line[:300]}" for line in texts[-lines:]) or "  (it is empty)"


def last_error(path: Path) -> str:
    """Return the line of a log that most likely says why its process ended: the last one with an error, otherwise the
    last one that is not about a request. Empty if the log has neither."""
    texts = []
    for line in _last_lines(path) or ():
        if not _REQUEST.search(line):
            texts.append(_COLOURS.sub("", line).strip()[:300])
    return next((line for line in reversed(texts) if _ERROR.search(line)), texts[-1] if texts else "")


def _last_lines(path: Path) -> list[str] | None:
    """Return the end of a log, without empty lines, or None if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_END))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    return [line for line in text.splitlines() if line.strip()]


def _end_sessions(leaders: Iterable[ProcessId], home: Home) -> set[int]:
    """Kill all processes in the sessions of these leaders. Return the sessions that had any."""
    leaders = list(leaders)
    sessions: set[int] = set()
    deadline = seams.monotonic() + _KILL_S
    while members := _members(leaders, home):
        sessions |= set(members.values())
        for process in members:
            kill(process, signal.SIGKILL)
        if seams.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in members)
            raise Unavailable(
                f"processes of Airflow cannot be ended ({pids})", help="end them by hand", reason="AIRFLOW_HANGS"
            )
        seams.sleep(0.05)
    return sessions


def _members(leaders: list[ProcessId], home: Home) -> dict[ProcessId, int]:
    """Return the processes of these sessions, each with its session.

    A living leader must be the recorded process. The pid of an ended leader is not reused while its session has a
    process; after that it may be, so the remaining processes must look like ours.
    """
    led = {leader.pid for leader in leaders if is_alive(leader)}
    ended = set()
    for leader in leaders:
        if _same_machine(leader) and identify(leader.pid) is None:
            ended.add(leader.pid)
    members = {}
    for pid, session in _all_processes() if led | ended else ():
        if session in led or (session in ended and _is_our_process(pid, home)):
            process = identify(pid)
            if process is not None:
                members[process] = session
    return members


def _all_processes() -> Iterator[tuple[int, int]]:
    """Yield each pid with its session; without /proc, with its process group."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-axo", "pid=,pgid="], capture_output=True, text=True, check=False).stdout
        for pid, group in map(str.split, listed.splitlines()):
            yield (int(pid), int(group))
        return
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield int(entry), int(fields[3])


def _same_machine(process: ProcessId) -> bool:
    return process.start.endswith(machine())


def _is_our_process(pid: int, home: Home) -> bool:
    """Return true if it runs our Python, as all of Airflow does, or was started with our AIRFLOW_HOME. (Airflow's
    processes overwrite the environment that the kernel shows with their title.)"""
    try:
        if Path(f"/proc/{pid}/exe").resolve() == Path(sys.executable).resolve():
            return True
        return f"AIRFLOW_HOME={home.folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _wait(is_done: Callable[[], bool], until: float, hurried: Callable[[], bool]) -> None:
    while not is_done() and not hurried() and seams.monotonic() < until:
        seams.sleep(_TICK_S)
