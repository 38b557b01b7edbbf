"""The example's checkpoints as `tidegate run` makes them, one for each line on the input (sides.py).

python -m tests.bench.floor_ours, in the folder of a copy of the example.
"""

from __future__ import annotations

from tests.bench.floor_project import EXAMPLE
from tests.bench.sides import serve
from tests.bench.worlds import Parts
from tidegate.cli.targets import open_target
from tidegate.coordinator import Coordinator
from tidegate.execution.loop import Schedule, run_checkpoints
from tidegate.spark.session import ReusedSession, spark_settings


def main() -> None:
    serve_checkpoints(EXAMPLE)


def serve_checkpoints(pipeline: str) -> None:
    """Make a checkpoint for each line of the input."""
    target = open_target(pipeline, {}, started=False)
    graph = target.graph()
    assert graph is not None
    coordinator = Coordinator(graph, target.ledger, target.settings, target.settings.place())
    with ReusedSession(spark_settings(target.settings)) as sessions:

        def take(number: int) -> float:
            parts = Parts()
            run_checkpoints(coordinator, sessions, Schedule(checkpoints=1), parts)
            return sum(parts.seconds.values())

        serve(take)


if __name__ == "__main__":
    main()
