"""A disk that fails, or a process that dies, at a chosen system call of tidegate.ledger.store."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

CALLS = ("open", "fsync", "link", "unlink", "mkdir", "replace", "listdir")


class Crash(BaseException):
    """The process is gone: nothing that it would do afterwards happens."""


class BrokenDisk:
    """Wraps the os functions that the store uses."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.calls = []
        self.before = lambda name, path: None

    @contextlib.contextmanager
    def watched(self):
        with self.monkeypatch.context() as patched:
            for name in CALLS:
                patched.setattr(os, name, self._wrapped(name, getattr(os, name)))
            yield self

    @contextlib.contextmanager
    def fails(self, call, code, which=None, times=1_000_000):
        """`call` fails with `code`: always, at the n-th time, or for a file's or a folder's fsync; so many times."""
        passed = failed = 0

        def before(name, path):
            nonlocal passed, failed
            if name != call:
                return
            passed += 1
            kind = "folder" if path is not None and path.is_dir() else "file"
            if which in (None, passed, kind) and failed < times:
                failed += 1
                raise OSError(code, os.strerror(code), str(path))

        self.before = before
        with self.watched():
            yield self

    @contextlib.contextmanager
    def dies_before(self, step):
        """Before the step-th system call of all, for good."""

        def before(name, path):
            if len(self.calls) >= step:
                raise Crash(name)

        self.before = before
        with self.watched():
            yield self

    def _wrapped(self, name, real):
        def call(what, *args, **kwargs):
            path = Path(os.readlink(f"/proc/self/fd/{what}")) if name == "fsync" else Path(what)
            self.calls.append((name, path))
            self.before(name, path)
            return real(what, *args, **kwargs)

        return call
