"""One Spark session for all benches of a run, made by tidegate itself: both sides share it, warm."""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

from tidegate.spark.session import ReusedSession, SparkSettings

CORES = 2
MEMORY = "3g"


STANDS_STILL = {"spark.executor.heartbeatInterval": "1h", "spark.network.timeout": "6h"}
"""For a Spark whose processes stand still between turns: otherwise it misses its own heartbeats, and ends."""


@cache
def sessions(mode: Any, stands_still: bool = False) -> ReusedSession:
    """mode: `local` runs Spark in this process, `connect` on tidegate's embedded server."""
    conf = STANDS_STILL if stands_still else {}
    held = ReusedSession(SparkSettings(mode=mode, master=f"local[{CORES}]", memory=MEMORY, conf=conf))
    atexit.register(held.drop)
    return held


def fingerprint(frame: Any) -> dict[str, Any]:
    """The same for two tables with the same rows, in whatever order, files and order of columns."""
    columns = ", ".join(f"`{name}`" for name in sorted(frame.columns))
    found = frame.selectExpr("count(*) AS rows", f"sum(cast(xxhash64({columns}) AS decimal(38))) AS hash").first()
    return dict(found.asDict())
