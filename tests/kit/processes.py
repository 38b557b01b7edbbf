"""Processes that a test or a bench starts."""

from __future__ import annotations

import ctypes
import signal

__all__ = ["die_with_parent"]


def die_with_parent() -> None:
    """Let a process end when the one that started it ends, however that was, and even if it stands still.

    As `preexec_fn`. A signal that can be ignored would not do: what a shell starts in the background ignores some.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
