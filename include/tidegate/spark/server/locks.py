"""Locks between processes, which the kernel releases when their holder dies.

A flock belongs to an open file, and a forked child shares its parent's open files: it would keep the lock after its
parent has ended. So every child closes the inherited files, which does not release the parent's lock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from tidegate import seams
from tidegate.errors import Unavailable

__all__ = ["Lock", "lock", "try_lock"]


class Lock:
    """A lock that this process holds. Released by `release`, at the end of a `with` block, or when the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        _track(self)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self in _held:
            _held.discard(self)
            os.close(self.descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_held: set[Lock] = set()
_tracking = False


def _track(lock: Lock) -> None:
    global _tracking
    _held.add(lock)
    if not _tracking:
        _tracking = True
        os.register_at_fork(after_in_child=_close_inherited)


def _close_inherited() -> None:
    for inherited in _held:
        os.close(inherited.descriptor)
    _held.clear()


def try_lock(path: Path, *, shared: bool = False) -> Lock | None:
    """Take the lock on a file, which is created if missing. Return None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # The file may have been removed in between. Then this lock protects nothing.
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return Lock(path, descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def lock(path: Path, *, shared: bool = False, timeout: float, purpose: str) -> Lock:
    """Take the lock on a file, and wait for it. purpose: the lock's purpose, for an error."""
    deadline = seams.monotonic() + timeout
    while (acquired := try_lock(path, shared=shared)) is None:
        if seams.monotonic() > deadline:
            raise Unavailable(
                f"{purpose} has been held by another process for more than {timeout:g} s ({path}).",
                help="Try again. If it is still held, look for a stopped or hanging tidegate process and end it.",
                reason="LOCKED",
            )
        seams.sleep(0.02)
    return acquired
