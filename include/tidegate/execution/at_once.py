"""Work of one attempt that need not wait for each other, done at once.

What a small query costs is mostly its planning, which keeps one core busy; and a large one leaves cores idle when its
last tasks are at work. Spark runs several queries of one session at once, each asked for by a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Final, TypeVar

__all__ = ["all_at_once"]

MAX_AT_ONCE: Final = 4
"""More queries at once would only compete for the same cores, and each has rows in memory."""

Result = TypeVar("Result")


def all_at_once(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Do all of it, and return the results in order. Raise the first failure: once nothing is at work any more, so that
    nobody writes where the caller removes."""
    if len(works) == 1:
        return [works[0]()]
    with ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="at-once") as pool:
        begun = [pool.submit(copy_context().run, work) for work in works]
        try:
            wait(begun, return_when=FIRST_EXCEPTION)
        finally:
            for future in begun:
                future.cancel()
    failures = [future.exception() for future in begun if not future.cancelled()]
    for failure in failures:
        if failure is not None:
            raise failure
    return [future.result() for future in begun]
