"""Keeps what a Python worker has imported away from its garbage collector.

Spark lets a worker collect all garbage after each task. The modules of Spark, Arrow and tidegate are so many objects
that it takes 40 ms to look at them, on every core, while the driver plans what comes next: more than the work itself
where batches are small.
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
"""The number of modules that are out of the collector's sight."""


def sparing_modules(work: Work[T]) -> Work[T]:
    """Return what a worker does in a task, ending with `spare_modules`."""

    def spared(batches: Iterator[T]) -> Iterator[T]:
        yield from work(batches)
        spare_modules()

    return spared


def spare_modules() -> None:
    """Let the collector never look again at what there is now, if modules have been imported since it was last said."""
    global _spared
    if len(sys.modules) != _spared:
        gc.freeze()
        _spared = len(sys.modules)
