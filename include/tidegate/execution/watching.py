"""The process that watches one pipeline's sources: `python -m tidegate.execution.watching`, started by Airflow's
triggerer (`dag/watching.py`).

It is a separate process, because it runs the user's code and clients of stores and brokers, which may block or crash.
It reads a request from its standard input, writes a line of JSON for each arrival and each problem, and ends when its
input is closed, since the process that started it has then ended. The user's code cannot use these two streams: its
output goes to the log.
"""

from __future__ import annotations

import os
import threading
import time
from typing import BinaryIO, Final, NoReturn

import msgspec

from tidegate import seams
from tidegate.errors import TidegateError, Unavailable, name_of
from tidegate.execution.input_watch import InputWatch, Pauses
from tidegate.execution.loading import find_pipeline
from tidegate.execution.opening import open_coordinator, refuse_interval_pipeline
from tidegate.execution.watch_request import WatchReport, WatchRequest
from tidegate.records import typed
from tidegate.stores import polling_pause

__all__ = ["main"]

POLL_S: Final = 0.5
MAX_POLL_S: Final = 60.0
MAX_SHARE: Final = 0.01
"""The largest share of a core to use while no input arrives."""

REPEAT_S: Final = 60.0
"""How often a problem is reported while it lasts."""

LIFETIME_S: Final = 3600.0
"""How long it runs before it is started again, because code and logins may have changed."""

AWAY_S: Final = 300.0
"""How long it may be unable to look before it is started again."""


def main() -> None:
    """Watch until standard input is closed."""
    requests, reports = _redirect_streams()
    reporter = _Reporter(reports)
    request = typed.decode(_read_line(requests), WatchRequest)
    threading.Thread(target=_end_with_starter, args=(requests,), daemon=True, name="end-with-starter").start()
    try:
        pipeline = find_pipeline(request.pipeline, request.declared_in, "the process that watches for input")
        coordinator, settings = open_coordinator(pipeline, request.project)
        refuse_interval_pipeline(coordinator.graph)
        watch = InputWatch(coordinator, settings.max_pause)
    except TidegateError as error:
        reporter.fail(f"{error.reason}: {error.what}")
    except (Exception, SystemExit) as error:
        reporter.fail(name_of(error))
    _watch_until_outdated(watch, reporter)
    os._exit(0)  # another thread reads standard input


def _watch_until_outdated(watch: InputWatch, reporter: _Reporter) -> None:
    """Look and report, until it is time to start anew."""
    home = watch.pipeline.ledger.home
    pauses = Pauses(watch.pipeline, reporter.notice)
    started = answered = began = seams.monotonic()
    while seams.monotonic() - started < LIFETIME_S and seams.monotonic() - answered < AWAY_S:
        used = time.process_time()
        try:
            arrival = watch.look()
            answered = seams.monotonic()
            if arrival is None:
                reporter.all_well()
            else:
                reporter.report(arrival.key, arrival.reason)
                began = answered
        except Unavailable as error:
            reporter.problem(f"{error.reason}: {error.what}")
        except TidegateError as error:
            reporter.fail(f"{error.reason}: {error.what}")
        except Exception as error:
            reporter.fail(name_of(error))
        used = time.process_time() - used
        pause_s = max(polling_pause(home, seams.monotonic() - began, POLL_S), used / MAX_SHARE)
        pauses.pause(watch, min(pause_s, MAX_POLL_S))


class _Reporter:
    """Tells the process that has started this one."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._has_problem = True  # the one before it may have had
        self._next_problem = seams.monotonic()

    def report(self, key: str, reason: str) -> None:
        """Report an arrival."""
        self._has_problem = False
        self._write(WatchReport(key=key, reason=reason))

    def all_well(self) -> None:
        """Report that it can look, if it could not before."""
        if self._has_problem:
            self._has_problem = False
            self._write(WatchReport())

    def problem(self, why: str) -> None:
        """Report that it cannot look: once a minute, since it looks far more often."""
        if seams.monotonic() >= self._next_problem:
            self._has_problem = True
            self._next_problem = seams.monotonic() + REPEAT_S
            self._write(WatchReport(problem=why[:2000]))

    def notice(self, text: str) -> None:
        """Report what a person should know, although it can look."""
        self._write(WatchReport(notice=text[:2000]))

    def fail(self, why: str) -> NoReturn:
        """Report that it cannot look, and end."""
        self._write(WatchReport(problem=why[:2000]))
        os._exit(0)

    def _write(self, report: WatchReport) -> None:
        self._stream.write(msgspec.json.encode(report) + b"\n")
        self._stream.flush()


def _redirect_streams() -> tuple[int, BinaryIO]:
    """Return this process's input and output, and put nothing and the log in their places for the user's code."""
    requests, reports = os.dup(0), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, reports


def _read_line(stream: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(stream, 1)):
        line += byte
    return line


def _end_with_starter(stream: int) -> None:
    while os.read(stream, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
