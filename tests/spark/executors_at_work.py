"""A pipeline in a process of its own, and what Spark itself notes of its tasks: its event log.

python -m tests.spark.executors_at_work FOLDER MASTER
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.jvm import INTERPRETED
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.spark.session import SparkSettings, session

KEYS, ROWS = 1000, 4000
"""Of each source in a checkpoint."""
PAD_BYTES = 600
"""Of each row, however well it is packed."""
CHECKPOINTS = 2


def build(pipeline: Pipeline) -> None:
    columns = "k long, v long, pad string, at timestamp"
    rows, others = (
        sources(pipeline, columns, name, event_time="at", watermark="1 hour") for name in ("rows", "others")
    )
    totals = rows.aggregate(by="k", n="count(*)", total="sum(v)", longest="max(pad)", uid="aggregate")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
    rows.deduplicate(by="v", within="1 day", uid="deduplicate").sink("once", DeltaAppend("tables/once"))
    windows = rows.window(tumbling="1 min", by="k", n="count(*)", longest="max(pad)", emit="update", uid="window")
    windows.sink("windows", DeltaUpsert("tables/windows", keys=["window_start", "k"]))
    pairs = rows.join(others, on="v", within="1 min", prefix="other_", uid="join")
    pairs.sink("pairs", DeltaAppend("tables/pairs"))


def row(checkpoint: int, number: int) -> dict[str, Any]:
    """Each key comes four times; each `v` once in a checkpoint, and again in the next."""
    pad = random.Random(number).randbytes(PAD_BYTES).hex()
    at = f"2026-01-01T00:0{checkpoint}:{number % 60:02d}Z"
    return {"k": number % KEYS, "v": number, "pad": pad, "at": at}


def play_in(folder: Path, spark: Any = None) -> SmallPipeline:
    return SmallPipeline(folder, spark, build)


def main(folder: Path, master: str) -> None:
    log = folder / "events"
    log.mkdir()
    conf = INTERPRETED | {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(log),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    with session(SparkSettings(mode="local", home=folder / "spark", master=master, memory="1g", conf=conf)) as spark:
        play = play_in(folder, spark)
        for checkpoint in range(CHECKPOINTS):
            for source in ("rows", "others"):
                play.feed([row(checkpoint, number) for number in range(ROWS)], source)
            play.checkpoint()


# -- what Spark notes --------------------------------------------------------------------------------------


@dataclass
class Work:
    """The work of the tasks of a step."""

    tasks: int = 0
    executors: set[str] = field(default_factory=set)
    read_rows: int = 0
    """From files."""
    read_bytes: int = 0
    written_rows: int = 0
    """To files, by Spark."""
    written_bytes: int = 0
    shuffled_rows: int = 0
    shuffled_bytes: int = 0
    python_bytes: int = 0
    """Sent to Python workers."""
    result_bytes: int = 0
    """Sent to the driver."""

    def add(self, event: dict[str, Any]) -> None:
        told = event["Task Metrics"]
        read, written, shuffled = (told[f"{kind} Metrics"] for kind in ("Input", "Output", "Shuffle Write"))
        self.tasks += 1
        self.executors.add(event["Task Info"]["Executor ID"])
        self.read_rows += read["Records Read"]
        self.read_bytes += read["Bytes Read"]
        self.written_rows += written["Records Written"]
        self.written_bytes += written["Bytes Written"]
        self.shuffled_rows += shuffled["Shuffle Records Written"]
        self.shuffled_bytes += shuffled["Shuffle Bytes Written"]
        self.result_bytes += told["Result Size"]
        for figure in event["Task Info"]["Accumulables"]:
            if figure.get("Name") == "data sent to Python workers":
                self.python_bytes += int(figure["Update"])


def noted(folder: Path) -> list[dict[int, Work]]:
    """By checkpoint and number of the step what Spark's event log tells of its tasks."""
    (log,) = (folder / "events").iterdir()
    steps: dict[int, tuple[str, int]] = {}
    found: dict[str, dict[int, Work]] = defaultdict(lambda: defaultdict(Work))
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerStageSubmitted":
            tagged = re.search(r"tidegate_step_([^,]+)_(\d+)\.", event["Properties"].get("spark.job.tags", ""))
            if tagged is not None:
                steps[event["Stage Info"]["Stage ID"]] = tagged[1], int(tagged[2])
        elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in steps:
            checkpoint, step = steps[event["Stage ID"]]
            found[checkpoint][step].add(event)
    return list(found.values())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
