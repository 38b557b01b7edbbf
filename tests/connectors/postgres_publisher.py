"""A process that publishes staged checkpoints to PostgreSQL in order, until all are there: what tests kill and stop.

python -m tests.connectors.postgres_publisher CONFIGURATION, a file of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.kit.postgres_sinks import CONNECTION, PostgresPublished
from tidegate.connectors.postgres import mark
from tidegate.errors import Unavailable
from tidegate.records.place import Place
from tidegate.sinks import PostgresAppend, PostgresUpsert

SINKS: dict[str, Any] = {
    "append": lambda: PostgresAppend("t", connection=CONNECTION, allow_rollback=True),
    "upsert": lambda: PostgresUpsert("t", connection=CONNECTION, keys=["k"], allow_rollback=True),
}


def publish_all(configuration: dict[str, Any]) -> None:
    """Publish what the target lacks, as the coordinator does: read the head, then publish what comes after it."""
    place = Place(configuration["folder"], connections=configuration["connections"])
    published = PostgresPublished(Path(configuration["folder"]), place, SINKS[configuration["sink"]]())
    staged = configuration["staged"]
    while True:
        try:
            last = published.head().last_entry or 0
            if last == len(staged):
                return
            published.publish(last + 1, staged[last])
        except Unavailable:
            time.sleep(0.05)


def stop_at(step: str) -> None:
    """Stop this process, as a signal from outside does, at a step of the first publish."""
    import tidegate.connectors.postgres.append as append
    import tidegate.connectors.postgres.sink as table

    module, name = {"locked": (table, "find_table"), "copied": (table, "move_mark"), "copying": (append, "copy_rows")}[
        step
    ]
    real, stopped = getattr(module, name), []

    def stopping(cursor: Any, *arguments: Any, **options: Any) -> Any:
        if stopped or (name == "find_table" and not hasattr(cursor, "adbc_ingest")):
            return real(cursor, *arguments, **options)
        stopped.append(True)
        if step != "copying":
            os.kill(os.getpid(), signal.SIGSTOP)
            return real(cursor, *arguments, **options)
        batches = iter(arguments[0])

        def halting() -> Any:
            yield next(batches)
            os.kill(os.getpid(), signal.SIGSTOP)
            yield from batches

        return real(cursor, halting(), *arguments[1:], **options)

    setattr(module, name, stopping)


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    if given.get("lock_seconds"):
        mark.LOCK_SECONDS = given["lock_seconds"]
    if given.get("stop_at"):
        stop_at(given["stop_at"])
    print("begins", flush=True)
    publish_all(given)
