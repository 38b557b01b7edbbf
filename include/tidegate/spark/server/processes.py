"""Identifies processes: a pid alone is not enough, because pids are reused."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tidegate import seams
from tidegate.errors import Invalid

__all__ = ["ProcessId", "identify", "is_alive", "kill", "lock_holders", "machine", "signal_name", "wait_for_end"]

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """A process: its pid, and when and where it was started, which no other process with that pid shares."""

    pid: int
    start: str

    @classmethod
    def from_json(cls, value: object) -> ProcessId:
        """Read what `to_json` wrote."""
        match value:
            case {"pid": int(pid), "start": str(start)} if pid > 1:
                return cls(pid, start)
        raise Invalid(
            f"This is not a process: {value!r}.", expected='{"pid": number, "start": text}', help="Remove that record."
        )

    def to_json(self) -> dict[str, object]:
        return {"pid": self.pid, "start": self.start}


def identify(pid: int) -> ProcessId | None:
    """Return the process that has this pid now, or None. A zombie counts as gone."""
    start = _start(pid)
    return ProcessId(pid, start) if start else None


def is_alive(process: ProcessId) -> bool:
    """Return whether exactly this process is still running. False for one of another container or before a reboot."""
    return identify(process.pid) == process


def kill(process: ProcessId, number: signal.Signals) -> bool:
    """Send a signal to this process and to no other. Return False when it is gone."""
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return False
    try:
        # Checked after the handle was opened: from now on the handle refers to this process or to none.
        if not is_alive(process):
            return False
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL. Real-time signals only have a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def wait_for_end(process: ProcessId, timeout: float) -> bool:
    """Wait until this process has ended. Return False when it still runs after the timeout."""
    deadline = seams.monotonic() + timeout
    while is_alive(process):
        if seams.monotonic() > deadline:
            return False
        seams.sleep(0.02)
    return True


def lock_holders(path: Path) -> list[int]:
    """Return the pids that hold a flock on a file, for messages. Empty if the system does not report them."""
    try:
        inode = path.stat().st_ino
        lines = (_PROC / "locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    # "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF"
    fields = [line.split() for line in lines]
    return sorted(
        {int(f[4]) for f in fields if f[1:2] == ["FLOCK"] and len(f) > 5 and f[5].endswith(f":{inode}")} - {-1}
    )


def _start(pid: int) -> str:
    """Return when the process was started, in a form that is unique across reboots and containers."""
    if not _PROC.joinpath("self/stat").exists():
        listing = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout.split(maxsplit=1)
        if len(listing) == 2 and not listing[0].startswith("Z"):
            return listing[1].strip()
        return ""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name in parentheses may contain anything, so count from its end: the state is field 3, the start field 22.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return ""
    return f"{fields[19]}/{machine()}"


@cache
def machine() -> str:
    """Return the identity of this boot and pid namespace: elsewhere, the same pid is another process."""
    if not _PROC.joinpath("self/ns/pid").exists():
        return ""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
