"""Ctrl-C, once and twice: the first lets the running checkpoint end, the second aborts it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]

_CANCEL_S = 5.0
"""How long Spark is given to let go of what it works on."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Counts SIGINT and SIGTERM for the length of a `with` block. Asked, it says whether to stop.

    stopping: told of the first one, from inside the signal handler.
    cancel: lets go of what runs in Spark; called in a thread of its own at the second one.
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
        """Take the signals. Again after Spark has started: in local mode it takes SIGINT for itself."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            self._stopping()
            self._tell(b"tidegate: stopping after the running checkpoint; Ctrl-C again aborts it\n")
            return
        if self._count == 2:
            self._tell(b"tidegate: aborting the running checkpoint\n")
            # In a thread: this handler may have interrupted the very client that has to send the request.
            thread = threading.Thread(target=self._cancel, daemon=True)
            thread.start()
            thread.join(_CANCEL_S)
        raise KeyboardInterrupt

    def _tell(self, text: bytes) -> None:
        """Straight to the file: the handler may have interrupted a print."""
        if self._notice is not None:
            os.write(self._notice, text)
