"""Simulates the crash of a process at a step of a checkpoint.

`Crash` is raised there. It is no Exception, so tidegate does not handle it, and does nothing after that step.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

from tidegate import seams
from tidegate.errors import Invalid

__all__ = ["Crash", "crash_at", "crash_at_line", "lines_reached", "points_reached"]

Line = tuple[str, int]
"""A file, and the number of a line."""


class Crash(BaseException):
    """The process has crashed."""


@contextlib.contextmanager
def crash_at(point: str, times_passed: int = 0) -> Iterator[None]:
    """Crash when the block reaches a fault point, and continue after the block.

        with crash_at("S9.decision.before"):
            running.checkpoint()

    Raise AssertionError if the point is never reached.

    point: one of `tidegate.testing.FAULT_POINTS`.
    times_passed: how often the block passes the point before it crashes there.
    """
    if point not in seams.FAULT_POINTS:
        raise Invalid(
            f"there is no fault point {point!r}",
            expected="one of tidegate.testing.FAULT_POINTS, such as S9.decision.before",
            help="the table of crashes in docs/reliability.md lists all steps",
            reason="NO_SUCH_POINT",
        )
    passed = 0

    def on_point(reached: str) -> None:
        nonlocal passed
        if reached == point:
            passed += 1
            if passed > times_passed:
                raise Crash(point)

    with _faults(on_point):
        try:
            yield
        except Crash:
            return
    raise AssertionError(f"the block never reached {point}: {seams.FAULT_POINTS[point]}")


@contextlib.contextmanager
def points_reached() -> Iterator[list[str]]:
    """Collect the fault points that the block reaches, in order."""
    reached: list[str] = []
    with _faults(reached.append):
        yield reached


@contextlib.contextmanager
def lines_reached(files: Collection[str]) -> Iterator[list[Line]]:
    """Collect the lines of these files that the block reaches, each once, in order of first execution."""
    reached: dict[Line, None] = {}
    with _traced(files, lambda line: reached.setdefault(line)):
        lines: list[Line] = []
        yield lines
    lines += reached


@contextlib.contextmanager
def crash_at_line(line: Line) -> Iterator[None]:
    """Crash when the block reaches a line for the first time, and continue after the block."""

    def on_line(reached: Line) -> None:
        if reached == line:
            raise Crash(f"{reached[0]}:{reached[1]}")

    with contextlib.suppress(Crash), _traced((line[0],), on_line):
        yield


@contextlib.contextmanager
def _traced(files: Collection[str], on_line: Callable[[Line], object]) -> Iterator[None]:
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            on_line((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def _faults(fault: Callable[[str], None]) -> Iterator[None]:
    with seams.installed(replace(seams.current(), fault=fault)):
        yield
