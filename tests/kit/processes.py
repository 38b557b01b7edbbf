"""Processes that a test or a bench starts."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path

__all__ = ["die_with_parent", "input_watchers"]


def die_with_parent() -> None:
    """Let a process end when the one that started it ends, however that was, and even if it stands still.

    As `preexec_fn`. A signal that can be ignored would not do: what a shell starts in the background ignores some.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def input_watchers(project: Path) -> list[int]:
    """The processes that watch for input of this project's pipelines."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, folder = (process / "cmdline").read_bytes(), (process / "cwd").resolve()
        except OSError:  # it has ended
            continue
        if b"tidegate.execution.watching" in command and folder == project.resolve():
            found.append(int(process.name))
    return found
