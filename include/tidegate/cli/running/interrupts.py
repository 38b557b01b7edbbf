"""Ctrl-C: the first lets the running checkpoint finish, the second aborts it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]

_CANCEL_S = 5.0
"""The time for Spark to cancel its work."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Counts SIGINT and SIGTERM during a `with` block. Calling it returns whether to stop.

    stopping: called at the first signal, inside the signal handler.
    cancel: cancels Spark's work; called at the second signal, in a separate thread.
    """

    def __init__(self, stopping: Callable[[], None], cancel: Callable[[], None], notice: int | None) -> None:
        self._stopping = stopping
        self._cancel = cancel
        self._notice = notice
        self._count = 0
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self._count > 0

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers. Call it again after Spark has started, because in local mode it replaces that of
        SIGINT."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            self._stopping()
            self._write(b"tidegate: stopping after the running checkpoint; Ctrl-C again aborts it\n")
            return
        if self._count == 2:
            self._write(b"tidegate: aborting the running checkpoint\n")
            # In a thread, because this handler may have interrupted the client that must send the request.
            thread = threading.Thread(target=self._cancel, daemon=True)
            thread.start()
            thread.join(_CANCEL_S)
        raise KeyboardInterrupt

    def _write(self, text: bytes) -> None:
        """Write directly to the file, because the handler may have interrupted a print."""
        if self._notice is not None:
            os.write(self._notice, text)
