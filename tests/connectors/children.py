"""Processes of their own for tests that kill and stop them: forked from one that has imported everything and done
nothing, so that they are there at once, and no client of Kafka is older than its process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit.waiting import eventually

PRELOADED = [
    "confluent_kafka.admin",
    "deltalake",
    "pyarrow.parquet",
    "pyspark.sql.connect.session",
    "tidegate.coordinator",
]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


class Child:
    """A process that calls a function, and says all else into a log."""

    def __init__(self, log: Path, do: Callable[..., Any], *arguments: Any) -> None:
        self.log = log
        self.process = _context.Process(target=_logged, args=(str(log), do, *arguments), daemon=True)
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        """As by kill -9."""
        self.process.kill()
        self.process.join(30)

    def stop(self) -> None:
        self._send(signal.SIGSTOP)

    def wake(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(self.pid, number)

    def stopped(self) -> None:
        """Wait until it has stopped itself."""
        eventually("the process stops itself", self._is_stopped)

    def _is_stopped(self) -> bool:
        assert self.alive, f"it ended: {self.said()}"
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def ended(self, timeout: float = 180) -> None:
        """Wait for its end, which must be a good one."""
        self.process.join(timeout)
        assert self.process.exitcode == 0, f"{self.process.exitcode}: {self.said()}"

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else "nothing"


def _logged(log: str, do: Callable[..., Any], *arguments: Any) -> None:
    into = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(into, 1)
    os.dup2(into, 2)
    code = 1
    try:
        do(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without the clean-up of clients, which may wait for a broker that has gone
