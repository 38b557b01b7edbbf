"""Frames that are computed only once, even if they are used several times.

They use Spark's local checkpoints, not `persist`, so that later plans do not contain the frame's plan. A checkpoint of
a few operators has dozens of plans, each built on earlier ones; with cached frames, Spark spends 90 % of its time on
comparing, renaming and printing plans. Correctness needs it, too: rows that were judged, counted or looked up are never
computed again, not even if memory runs out.

If an executor with such rows is lost, the attempt fails and is repeated, as after any other loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.delta import Location
from tidegate.spark.frame_facts import is_known_empty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["StoredRows", "mark_stored", "materialize", "materialized", "release", "stored_rows"]

_STORED = "_tidegate_stored"
_PATIENCE_S = 2.0
"""The time limit for asking a server to release rows."""


@dataclass(frozen=True)
class StoredRows:
    """Files of this attempt with exactly a frame's rows and columns."""

    location: Location
    paths: Sequence[str]
    rows: int


def materialize(frame: DataFrame) -> DataFrame:
    """Return the same rows, computed on first use and cached until they are released. Rows in the attempt's own files
    are read from there instead."""
    if is_known_empty(frame) or _is_stored(frame):
        return frame
    return frame.localCheckpoint(eager=False)


def mark_stored(frame: DataFrame, rows: StoredRows | None = None) -> DataFrame:
    """Mark a frame that only reads files of this attempt: it is cheap to read again, and so is not cached.

    rows: the files, if they may be staged as they are. The mark is on the object: frames derived from it do not have
    it.
    """
    vars(frame)[_STORED] = rows
    return frame


def stored_rows(frame: DataFrame) -> StoredRows | None:
    """Return the files with exactly this frame's rows, or None."""
    stored: StoredRows | None = vars(frame).get(_STORED)
    return stored


def _is_stored(frame: DataFrame) -> bool:
    return _STORED in vars(frame)


def release(frame: DataFrame) -> None:
    """Release the rows. A server frees them with its next large garbage collection."""
    with contextlib.suppress(Exception):
        if _is_stored(frame):
            return
        plan: Any = vars(frame).get("_plan")  # only a frame of Spark Connect has one
        if plan is None:
            frame._jdf.queryExecution().logical().rdd().unpersist(False)
        elif plan._relation_id is not None:
            _forget(plan)
            plan._relation_id = None  # otherwise pyspark sends it again when the plan is collected


def _forget(plan: Any) -> None:
    """Send RemoveRemoteCachedRelation now instead of waiting for Python's garbage collector.

    pyspark sends it when a plan is collected, but plans and frames refer to each other in cycles, so that may be much
    later. Tried once, with a short timeout: the server releases everything with the session anyway.
    """
    from pyspark.sql.connect.plan import RemoveRemoteCachedRelation

    client = plan._spark_session.client
    request = client._execute_plan_request_with_metadata()
    request.user_context.user_id = client._user_id or ""
    request.plan.command.CopyFrom(RemoveRemoteCachedRelation(plan).command(session=client))
    for _ in client._stub.ExecutePlan(request, metadata=client._builder.metadata(), timeout=_PATIENCE_S):
        pass


@contextlib.contextmanager
def materialized(frame: DataFrame) -> Iterator[DataFrame]:
    """Cache the frame for the block, so that it is computed only once."""
    once = materialize(frame)
    try:
        yield once
    finally:
        release(once)
