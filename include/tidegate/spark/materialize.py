"""Frames that are computed once, however often they are used.

By a local checkpoint, not by `persist`: what is behind a frame is then no part of later plans. A checkpoint of a few
operators has dozens of plans, each on top of those before; with cached frames in them Spark spends its time (measured:
nine tenths of it) with comparing, renaming and printing plans. It is also what the promise needs: rows that were
judged, counted or looked up are never computed again, not even if memory runs out.

If the executor that holds rows is lost, the attempt fails and is made again, as for any other loss.
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
"""How long to wait for a server to forget rows."""


@dataclass(frozen=True)
class StoredRows:
    """Files of this attempt that hold the rows of a frame, with its columns and no others."""

    location: Location
    paths: Sequence[str]
    rows: int


def materialize(frame: DataFrame) -> DataFrame:
    """Return the same rows, computed at their first use, and cached until they are released. Rows in files of the
    attempt's own are read from there."""
    return frame if is_known_empty(frame) or _is_stored(frame) else frame.localCheckpoint(eager=False)


def mark_stored(frame: DataFrame, rows: StoredRows | None = None) -> DataFrame:
    """Mark a frame that only reads files of this attempt: it costs little to read again, and is not cached.

    rows: the files, if whoever wants to write the frame may take them as they are. The mark is on the object. What is
    made of a frame is another one, which is computed."""
    vars(frame)[_STORED] = rows
    return frame


def stored_rows(frame: DataFrame) -> StoredRows | None:
    """Return the files that hold exactly this frame, if there are any."""
    stored: StoredRows | None = vars(frame).get(_STORED)
    return stored


def _is_stored(frame: DataFrame) -> bool:
    return _STORED in vars(frame)


def release(frame: DataFrame) -> None:
    """Free the rows. A server forgets them, and frees them with its next large garbage collection."""
    with contextlib.suppress(Exception):
        if _is_stored(frame):
            return
        plan: Any = vars(frame).get("_plan")  # a server's frame has one
        if plan is None:
            frame._jdf.queryExecution().logical().rdd().unpersist(False)
        elif plan._relation_id is not None:
            _forget(plan)
            plan._relation_id = None  # otherwise pyspark sends it again when the plan is collected


def _forget(plan: Any) -> None:
    """Send RemoveRemoteCachedRelation now instead of waiting for Python's garbage collector.

    pyspark sends it when a plan is collected, but plans and frames refer to each other in cycles, so that may be much
    later. Tried once, with a short timeout: the server forgets everything with the session anyway.
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
    """Cache the frame for the block, so that it is computed once, however often it is used."""
    once = materialize(frame)
    try:
        yield once
    finally:
        release(once)
