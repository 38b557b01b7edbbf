"""The parent process of an embedded Spark server: `python -m tidegate.spark.server.watchdog`.

It belongs to no client, so it outlives all of them. It ends the server when

- no client has held the lease for `idle_timeout` (a client's death releases its lease),
- the server does not answer for `answer_timeout` (so that clients in the middle of a job see a broken connection
  instead of waiting forever),
- server.json is missing, or its content has changed: that is how other processes stop a server,
- it receives SIGTERM.

When the server ends on its own, so does the watchdog; when the watchdog is killed, the kernel kills the server.

With `spark.spare` it starts a second server some time after the first one, and warms it up. If the first one ends on
its own or hangs, the second one takes over, and gets a spare in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from tidegate import seams
from tidegate.spark.server.folder import Launch, ServerFolder, ServerPlace, ServerState
from tidegate.spark.server.locks import try_lock
from tidegate.spark.server.priority import lower_session_priority
from tidegate.spark.server.processes import ProcessId, identify

__all__ = ["answers", "main"]

_TICK = 0.5
_STOP_GRACE = 10.0
_LOG_LIMIT = 64 * 1024 * 1024
_READY = re.compile(rb"^ConnectServer: listens at 127\.0\.0\.1:(\d+)$", re.MULTILINE)
# HTTP/2: the client's preface and an empty SETTINGS frame. A server sends its own SETTINGS, type 4, first.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_PR_SET_PDEATHSIG = 1
_HANGS, _ENDED, _STOPPED, _TOLD = "did not answer", "ended on its own", "was stopped", "was asked to end"


def main(arguments: list[str]) -> int:
    """Watch a folder's server until it ends. The watch lock is an inherited open file."""
    folder = ServerFolder(Path(arguments[0]))
    # A grandchild of the process that started us: task runners kill the children of their tasks.
    if os.fork() > 0:
        os._exit(0)
    me = identify(os.getpid())
    assert me is not None
    folder.watch_lock.write_text(json.dumps(me.to_json()), encoding="utf-8")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ending_on_sigterm)
    launch = folder.launch()
    server, spare = _Server(folder, launch, 0), None
    reason, grace = _TOLD, _STOP_GRACE
    try:
        while True:
            port, spawned = server.await_port(launch.start_timeout), identify(server.process.pid)
            if port is None or spawned is None:
                reason = f"did not start: it was not ready within {launch.start_timeout:g} s, or ended before"
                return 1
            if spare is not None and folder.state() is None:
                reason = _STOPPED  # while the spare got ready
                return 0
            state = ServerState(port, spawned, me, seams.now().isoformat(timespec="seconds"))
            spare = None
            if len(launch.commands) > 1:
                spare = _Spare(folder, launch, 1 - server.number)
            reason = _watch(folder, server.process, state, launch, spare)
            # Clients of a hanging server wait until their connection breaks, so kill it at once.
            grace = 0.0 if reason.startswith(_HANGS) else _STOP_GRACE
            if spare is None or spare.server is None or not reason.startswith((_HANGS, _ENDED)):
                return 0
            server.remove()
            _report(f"{reason}; its spare takes over")
            server, reason, grace = spare.take_over(), _TOLD, _STOP_GRACE
    finally:
        if spare is not None:
            spare.end()
        _end(folder, server.process, grace)
        _report(reason)


def _report(event: str) -> None:
    print(f"{seams.now():%Y-%m-%dT%H:%M:%SZ} tidegate: the server {event}", file=sys.stderr, flush=True)


def _ending_on_sigterm(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


class _Server:
    """A JVM. It inherits our output, which is the log."""

    def __init__(self, folder: ServerFolder, launch: Launch, number: int) -> None:
        self.folder, self.number = folder, number
        self.place.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log_before = folder.log.stat().st_size
        self.process = _spawn(launch.commands[number], self.place.scratch)

    @property
    def place(self) -> ServerPlace:
        return self.folder.places[self.number]

    @property
    def port(self) -> int | None:
        """The port on which it listens, or None if it has not reported one yet."""
        match = _READY.search(self.folder.log.read_bytes(), self._log_before)
        return int(match[1]) if match is not None else None

    def await_port(self, timeout: float) -> int | None:
        """Return the port, once the server has reported it; None if it ended or took too long."""
        deadline = seams.monotonic() + timeout
        while self.process.poll() is None and seams.monotonic() < deadline:
            if (port := self.port) is not None:
                return port
            seams.sleep(0.05)
        return None

    def remove(self) -> None:
        """Kill it, and remove its files."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.place.scratch, ignore_errors=True)


class _Spare:
    """The second server. It starts some time after the first one, so that it does not slow down jobs that waited for
    that. A separate client warms it up."""

    def __init__(self, folder: ServerFolder, launch: Launch, number: int) -> None:
        self.folder, self.launch, self.number = folder, launch, number
        self.server: _Server | None = None
        self.client: subprocess.Popen[bytes] | None = None
        self.pause = launch.spare_after
        self.due = seams.monotonic() + self.pause
        """When to start it, or to give up because it is not ready."""

    def poll(self) -> ProcessId | None:
        """Start it when it is due, and check its progress. Return it once it is warm."""
        now = seams.monotonic()
        if self.server is None:
            if now >= self.due:
                self.server = _Server(self.folder, self.launch, self.number)
                self.due = now + self.launch.start_timeout
        elif self.server.process.poll() is not None or (now >= self.due and self.client is None):
            self.end()
            self.pause *= 2  # a machine without room for it should not be tried all the time
            self.due = now + self.pause
        elif self.client is not None:
            if self.client.poll() is None:
                return None
            return identify(self.server.process.pid)
        elif (port := self.server.port) is not None:
            words = (sys.executable, "-m", "tidegate.spark.server.warm_up", str(self.folder.path), str(port))
            self.client = _spawn(words, self.server.place.scratch)
        return None

    def take_over(self) -> _Server:
        """Return the server, warm or not, for the caller to watch."""
        server, self.server = self.server, None
        assert server is not None
        self.end()  # its client
        return server

    def end(self) -> None:
        """End the spare and its client."""
        if self.client is not None:
            self.client.kill()
            self.client.wait()
        if self.server is not None:
            self.server.remove()
        self.server = self.client = None


def _spawn(words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that is killed when this process ends in any way. It has our priority, too, as a session."""
    watchdog = os.getpid()

    def die_with_watchdog() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != watchdog:  # it died before the line above
                os._exit(1)
        lower_session_priority()

    return subprocess.Popen(
        words,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_watchdog,
    )


def _watch(
    folder: ServerFolder,
    server: subprocess.Popen[bytes],
    state: ServerState,
    launch: Launch,
    spare: _Spare | None = None,
) -> str:
    """Announce that the server is ready. Return when it has ended or must end, with the reason."""
    written = folder.write_state(state)
    probe_every = min(5.0, launch.answer_timeout / 4)
    answered = probed = used = seams.monotonic()
    failures = 0
    touched = 0
    while True:
        seams.sleep(min(_TICK, launch.idle_timeout / 4, probe_every))
        now = seams.monotonic()
        if _read(folder.state_file) != written:
            return _STOPPED
        if (code := server.poll()) is not None:
            return f"{_ENDED} with {code}"
        if spare is not None and (ready := spare.poll()) != state.spare:
            state = replace(state, spare=ready)
            written = folder.write_state(state)
        if now - probed >= probe_every:
            ok = answers(state.port, probe_every)
            failures, answered = (0, seams.monotonic()) if ok else (failures + 1, answered)
            probed = seams.monotonic()
            # Count misses as well: after a pause of the whole machine, the first answer may only be late.
            if failures >= 3 and probed - answered >= launch.answer_timeout:
                return f"{_HANGS} for {probed - answered:.0f} s"
        # A process that takes the lease also touches it, so that a client between two checks is noticed.
        in_use = folder.lease_lock.stat().st_mtime_ns
        lease = try_lock(folder.lease_lock)
        if lease is None or in_use != touched:
            used, touched = now, in_use
        elif now - used >= launch.idle_timeout:
            # While we hold the lease, no client can join a stopping server. It is held until we exit.
            return f"had no client for {launch.idle_timeout:g} s"
        if lease is not None:
            lease.release()
        _limit(folder.log)


def answers(port: int, timeout: float) -> bool:
    """Return whether a program answers on this port, not only the kernel: it sends its HTTP/2 settings."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            connection.sendall(_HELLO)
            head = b""
            while len(head) < 4:
                part = connection.recv(9)
                if not part:
                    return False
                head += part
            return head[3] == 4
    except OSError:
        return False


def _end(folder: ServerFolder, server: subprocess.Popen[bytes], grace: float) -> None:
    """End the JVM, first with SIGTERM, so that it removes its files elsewhere; then remove its files here."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder.state_file.unlink(missing_ok=True)
    server.terminate()
    try:
        server.wait(grace)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    folder.forget()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _limit(log: Path) -> None:
    """Limit the size of the log, to which users' functions may print."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _LOG_LIMIT:
            shutil.copyfile(log, log.with_name("server.log.1"))
            os.truncate(log, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
