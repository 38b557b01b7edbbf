"""The example as it runs, and computed again from the beginning and swapped in; a turn for each line (sides.py).

python -m tests.bench.backfill_ours DAYS LARGER, in the folder of a copy of the example. The first DAYS turns are
checkpoints of the pipeline, each further one a backfill of all of them.
"""

from __future__ import annotations

import sys
import time

from tests.bench.floor_project import EXAMPLE
from tests.bench.sides import serve
from tests.bench.worlds import Parts
from tidegate.backfill import begin, discard, replay, swap
from tidegate.cli.targets import open_target
from tidegate.coordinator import Coordinator
from tidegate.execution.loop import Schedule, run_checkpoints
from tidegate.spark.session import ReusedSession, spark_settings


def main(days: int, larger: int) -> None:
    target = open_target(EXAMPLE, {}, started=False)
    graph = target.graph()
    assert graph is not None
    coordinator = Coordinator(graph, target.ledger, target.settings, target.settings.place())
    with ReusedSession(spark_settings(target.settings)) as sessions:

        def take(number: int) -> float:
            if number < days:
                parts = Parts()
                run_checkpoints(coordinator, sessions, Schedule(checkpoints=1), parts)
                return sum(parts.seconds.values())
            began = time.perf_counter()
            line = begin(coordinator, f"again-{number}", 0, by="bench")
            line.backfill.larger = larger
            replay(line, sessions, Schedule(), Parts())
            swapped = swap(line, by="bench", choices={}, wait=print)
            assert swapped.error is None, swapped.error
            seconds = time.perf_counter() - began
            discard(line, "bench")
            return seconds

        serve(take)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
