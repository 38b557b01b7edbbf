"""Excludes a Python worker's imported modules from garbage collection.

Spark makes a worker collect all garbage after each task. The modules of Spark, Arrow and tidegate have enough objects
to make that take 40 ms, on every core, while the driver plans the next step. With small batches, that is more than the
work itself.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["spare_modules", "sparing_modules"]

T = TypeVar("T")
Work = Callable[[Iterator[T]], Iterator[T]]

_spared = 0
"""The number of modules that the collector ignores."""


def sparing_modules(work: Work[T]) -> Work[T]:
    """Return what a worker does in a task, ending with `spare_modules`."""

    def spared(batches: Iterator[T]) -> Iterator[T]:
        yield from work(batches)
        spare_modules()

    return spared


def spare_modules() -> None:
    """Make the collector ignore all current objects, if modules have been imported since the last call."""
    global _spared
    if len(sys.modules) != _spared:
        gc.freeze()
        _spared = len(sys.modules)
