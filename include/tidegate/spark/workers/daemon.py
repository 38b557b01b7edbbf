"""Spark's daemon for Python workers, with one difference: they forget modules of the user that have changed.

Workers of the embedded server serve one session after the other, and what they have imported stays. Without this, a run
of changed code would be computed by the code from before, for as long as workers are warm.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys
from pathlib import Path

from tidegate import seams

__all__ = ["OwnModules", "main"]

Stamp = tuple[int, int]
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class OwnModules:
    """The imported modules that lie in some folders, and what their files were. Not what is installed there, and not
    tidegate."""

    def __init__(self, folders: list[str]) -> None:
        self._folders = [Path(folder).resolve() for folder in folders]
        self._stamps: dict[str, Stamp | None] = {}
        self._looked_at: set[str] = set(sys.modules)

    def __bool__(self) -> bool:
        return bool(self._stamps)

    def note(self, since: float) -> None:
        """Note the modules that have been imported since then. One whose file has changed since may have been read
        before that: it counts as changed."""
        for name in sys.modules.keys() - self._looked_at:
            self._looked_at.add(name)
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and self._is_own(name, Path(file)):
                stamp = _stamp(file)
                self._stamps[name] = None if stamp is None or stamp[0] >= since * 1e9 else stamp

    def forget_changed(self) -> None:
        """Forget all of them if one has changed: others may hold what they have taken from it."""
        if all(stamp is not None and stamp == _stamp_of(name) for name, stamp in self._stamps.items()):
            return
        for name in self._stamps:
            sys.modules.pop(name, None)
        self._looked_at -= self._stamps.keys()
        self._stamps.clear()
        importlib.invalidate_caches()

    def _is_own(self, name: str, file: Path) -> bool:
        if name.partition(".")[0] == "tidegate" or not _INSTALLED.isdisjoint(file.parts):
            return False
        return any(folder in file.resolve().parents for folder in self._folders)


def _stamp_of(name: str) -> Stamp | None:
    return _stamp(sys.modules[name].__file__) if name in sys.modules else None


def _stamp(file: str | None) -> Stamp | None:
    try:
        found = os.stat(file or "")
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def main() -> None:
    """Run the daemon. Each worker is a fork of this process, with modules of its own."""
    from pyspark import daemon

    own = OwnModules(os.environ.get("TIDEGATE_PYTHON_PATH", "").split(os.pathsep))
    work = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        if own:
            select.select([sock], [], [])  # until the next task begins, which may be long after the last one
            own.forget_changed()
        begun = seams.now().timestamp()
        try:
            return work(sock, authenticated)
        finally:
            own.note(begun)

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
