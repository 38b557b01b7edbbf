"""The process that watches one pipeline's sources: `python -m tidegate.execution.watching`, started by Airflow's
triggerer (`dag/watching.py`).

It is a separate process, because it runs the user's code and clients of stores and brokers, which may block or crash.
It reads a request from its standard input, writes a line of JSON for each arrival and each problem, and ends when its
input is closed, since the process that started it has then ended.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final, NoReturn

import msgspec

from tidegate import seams
from tidegate.errors import TidegateError, Unavailable, name_of
from tidegate.execution.input_watch import InputWatch
from tidegate.execution.loading import find_pipeline
from tidegate.execution.opening import open_coordinator, refuse_by_interval
from tidegate.execution.watch_request import WatchReport, WatchRequest
from tidegate.records import typed
from tidegate.stores import pause_between_looks

__all__ = ["main"]

POLL_S: Final = 0.5
MAX_POLL_S: Final = 60.0
MAX_SHARE: Final = 0.01
"""The largest share of a core to use while no input arrives."""


def main() -> None:
    """Watch until standard input is closed."""
    request = typed.decode(_read_line(), WatchRequest)
    threading.Thread(target=_end_with_starter, daemon=True, name="end-with-starter").start()
    try:
        pipeline = find_pipeline(request.pipeline, request.declared_in, "the process that watches for input")
        coordinator, settings = open_coordinator(pipeline, request.project)
        refuse_by_interval(coordinator.graph)
        watch = InputWatch(coordinator, settings.max_pause)
    except TidegateError as error:
        _fail(f"{error.reason}: {error.what}")
    except Exception as error:
        _fail(name_of(error))
    began = seams.monotonic()
    while True:
        used = time.process_time()
        began = _look(watch, began)
        used = time.process_time() - used
        pause_s = max(pause_between_looks(coordinator.ledger.home, seams.monotonic() - began, POLL_S), used / MAX_SHARE)
        seams.sleep(min(pause_s, MAX_POLL_S))


def _look(watch: InputWatch, began: float) -> float:
    """Look once, and report. Return since when nothing has happened."""
    try:
        arrival = watch.look()
    except Unavailable as error:
        _report(WatchReport(problem=f"{error.reason}: {error.what}"))
        return began
    except TidegateError as error:
        _fail(f"{error.reason}: {error.what}")
    if arrival is None:
        return began
    _report(WatchReport(key=arrival.key, reason=arrival.reason))
    return seams.monotonic()


def _fail(why: str) -> NoReturn:
    _report(WatchReport(problem=why))
    os._exit(1)  # another thread reads standard input


def _report(report: WatchReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def _end_with_starter() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
