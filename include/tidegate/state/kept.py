"""Frames that are computed once, however often they are used.

By a local checkpoint, not by `persist`: what is behind a frame is then no part of later plans. A checkpoint of a few
operators has dozens of plans, each on top of those before; with cached frames in them Spark spends its time (measured:
nine tenths of it) with comparing, renaming and printing plans. It is also what the promise needs: rows that were
judged, counted or looked up are never computed again, not even if memory runs out.

If the executor that holds rows is lost, the attempt fails and is made again, as for any other loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.sinks.nothing import is_nothing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["keep", "kept", "let_go"]


def keep(frame: DataFrame) -> DataFrame:
    """The same rows, computed when they are first asked for, and kept until `let_go`."""
    return frame if is_nothing(frame) else frame.localCheckpoint(eager=False)


def let_go(frame: DataFrame) -> None:
    """Free the rows. A server frees them when nobody refers to the frame any more."""
    with contextlib.suppress(Exception):
        frame._jdf.queryExecution().logical().rdd().unpersist(False)


@contextlib.contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame, computed once, however often it is used in the block."""
    once = keep(frame)
    try:
        yield once
    finally:
        let_go(once)
