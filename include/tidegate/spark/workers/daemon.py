"""Spark's daemon for Python workers, with one difference: workers reload the user's modules that have changed.

Workers of the embedded server serve one session after the other, and keep their imported modules. Otherwise, a run of
changed code would be computed by the old code for as long as the workers live.
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
    """The imported modules in some folders, with the state of their files. Without installed packages and tidegate."""

    def __init__(self, folders: list[str]) -> None:
        self._folders = [Path(folder).resolve() for folder in folders]
        self._stamps: dict[str, Stamp | None] = {}
        self._looked_at: set[str] = set(sys.modules)

    def __bool__(self) -> bool:
        return bool(self._stamps)

    def note(self, since: float) -> None:
        """Note the modules that were imported since then. If a file has changed since, its module may be the old one,
        and counts as changed."""
        for name in sys.modules.keys() - self._looked_at:
            self._looked_at.add(name)
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and self._is_in_user_folder(name, Path(file)):
                stamp = _stamp(file)
                self._stamps[name] = None if stamp is None or stamp[0] >= since * 1e9 else stamp

    def forget_changed(self) -> None:
        """Forget all of these modules if one has changed, because the rest may refer to its old content."""
        if all(stamp is not None and stamp == _stamp_of(name) for name, stamp in self._stamps.items()):
            return
        for name in self._stamps:
            sys.modules.pop(name, None)
        self._looked_at -= self._stamps.keys()
        self._stamps.clear()
        importlib.invalidate_caches()

    def _is_in_user_folder(self, name: str, file: Path) -> bool:
        if name.partition(".")[0] == "tidegate" or not _INSTALLED.isdisjoint(file.parts):
            return False
        return any(folder in file.resolve().parents for folder in self._folders)


def _stamp_of(name: str) -> Stamp | None:
    if name in sys.modules:
        return _stamp(sys.modules[name].__file__)
    return None


def _stamp(file: str | None) -> Stamp | None:
    try:
        status = os.stat(file or "")
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def main() -> None:
    """Run the daemon. Each worker is a fork of this process, and has its own modules."""
    from pyspark import daemon

    own = OwnModules(os.environ.get("TIDEGATE_PYTHON_PATH", "").split(os.pathsep))
    work = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        if own:
            select.select([sock], [], [])  # wait for the next task, which may begin much later
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
