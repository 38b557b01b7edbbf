"""Run ids of processes on this machine, and whether such a process still exists.

Under Airflow the run id is the DAG run's. Without Airflow each checkpoint of `tidegate run` gets an id with its
process, so that the next `tidegate run` can distinguish a crashed process from a running one. This is only a hint: if
it is wrong, the checkpoint of a running process is aborted, and that process plans another.
"""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

from tidegate import seams
from tidegate.records.records import Plan

__all__ = ["abandoned_reason", "new_run", "user_and_machine"]

_PREFIX = "process"


def new_run() -> str:
    """Return a fresh run id: process:<host>:<pid>:<start of the process>:<random>."""
    pid = os.getpid()
    return ":".join([_PREFIX, socket.gethostname(), str(pid), _started(pid) or "", seams.new_id()])


def user_and_machine() -> str:
    """Return who works here, for records. In a container the user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return f"{user} on {socket.gethostname()}"


def abandoned_reason(plan: Plan) -> str | None:
    """Return RUN_GONE if the plan was made by a process of this host that no longer runs."""
    parts = plan.responsible_run.split(":")
    if len(parts) != 5 or parts[0] != _PREFIX or parts[1] != socket.gethostname() or not parts[2].isdigit():
        return None
    pid = int(parts[2])
    if not _alive(pid) or (parts[3] and _started(pid) != parts[3]):
        return "RUN_GONE"
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _started(pid: int) -> str | None:
    """Return when the kernel started the process; None where /proc does not say. A zombie counts as gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
