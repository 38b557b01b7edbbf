"""Let a process die at a step of a checkpoint, without ending it.

What is raised there is no Exception, so that nothing of tidegate handles it: whatever the process would have done
afterwards does not happen.
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
    """The process is gone."""


@contextlib.contextmanager
def crash_at(point: str, times_passed: int = 0) -> Iterator[None]:
    """Die when the block comes to a fault point, one of `tidegate.testing.FAULT_POINTS`, and continue after the block.

    times_passed: how often the block passes the point before. Raise AssertionError if it never comes there.
    """
    if point not in seams.FAULT_POINTS:
        raise Invalid(
            f"there is no fault point {point!r}",
            expected="one of tidegate.testing.FAULT_POINTS, such as S9.decision.before",
            help="the table of crashes in docs/reliability.md lists all steps",
            reason="NO_SUCH_POINT",
        )
    passed = 0

    def stop(at: str) -> None:
        nonlocal passed
        if at == point:
            passed += 1
            if passed > times_passed:
                raise Crash(point)

    with _faults(stop):
        try:
            yield
        except Crash:
            return
    raise AssertionError(f"the block never came to {point}: {seams.FAULT_POINTS[point]}")


@contextlib.contextmanager
def points_reached() -> Iterator[list[str]]:
    """Collect the fault points that the block comes to, in their order."""
    reached: list[str] = []
    with _faults(reached.append):
        yield reached


@contextlib.contextmanager
def lines_reached(files: Collection[str]) -> Iterator[list[Line]]:
    """Collect the lines of these files that the block comes to, each once, in their order."""
    reached: dict[Line, None] = {}
    with _traced(files, lambda line: reached.setdefault(line)):
        lines: list[Line] = []
        yield lines
    lines += reached


@contextlib.contextmanager
def crash_at_line(line: Line) -> Iterator[None]:
    """Die when the block comes to a line for the first time, and continue after the block."""

    def stop(at: Line) -> None:
        if at == line:
            raise Crash(f"{at[0]}:{at[1]}")

    with contextlib.suppress(Crash), _traced((line[0],), stop):
        yield


@contextlib.contextmanager
def _traced(files: Collection[str], at_line: Callable[[Line], object]) -> Iterator[None]:
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            at_line((frame.f_code.co_filename, frame.f_lineno))
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
