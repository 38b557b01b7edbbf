"""The example computed from the beginning by Structured Streaming, into new tables; a turn for each line (sides.py).

python -m tests.bench.backfill_refresh FOLDER LANDING
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.bench.floor_streaming import Streaming
from tests.bench.sides import serve
from tests.bench.window import CONF


class Refresh(Streaming):
    """Both queries; with a batch at the end that appends the minutes that are complete."""

    conf = CONF | {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}


def main(folder: Path, landing: Path) -> None:
    def take(number: int) -> float:
        """Seconds until both tables have all rows; each query reads its input in one batch."""
        root = folder / f"{number}"
        root.mkdir()
        (root / "landing").symlink_to(landing)
        began = time.perf_counter()
        queries = Refresh(root).queries
        for query in queries:
            query.processAllAvailable()
        seconds = time.perf_counter() - began
        for query in queries:
            query.stop()
        return seconds

    serve(take)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
