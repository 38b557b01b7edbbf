"""A side of the race in a process of its own: tidegate or Structured Streaming, each with a Spark of its own.

    python -m tests.bench.nexmark_side ours|streaming|streaming_append

A line of JSON in, a line of JSON out, as with Flink's driver: {"query", "out", "landing", "files", "checkpoints"} is
answered with {"seconds", "checkpoints"}, or {"error"}. What a query needs before it can run is no part of the seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.nexmark_streaming import Streaming
from tests.bench.spark import sessions
from tests.kit.limits import Limits
from tests.nexmark.playing import Play, prepare
from tidegate.coordinator import Coordinator
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.ledger import open_ledger
from tidegate.records.place import Place

Figures = dict[str, float]


def ours(query: str, out: Path, files: int, checkpoints: int) -> Figures:
    """Run a query with tidegate until nothing is left."""
    play = Play(query, out, max_files=files)
    place = Place(str(out / "data"))
    ledger = open_ledger(str(out / "ledger"), play.pipeline.name)
    held = sessions("local", stands_still=True)
    held().conf.set("spark.sql.shuffle.partitions", "2")
    began = time.perf_counter()
    control = Coordinator(play.pipeline.graph(place), ledger, Limits(), place)
    outcomes = run_checkpoints(control, held, Schedule(until_idle=True), Observer())
    seconds = time.perf_counter() - began
    states = [outcome.state for outcome in outcomes]
    if states != ["completed"] * checkpoints:
        raise RuntimeError(f"{checkpoints} checkpoints should have been completed, but: {outcomes}")
    return {"seconds": seconds, "checkpoints": len(outcomes)}


def streaming(query: str, out: Path, files: int, checkpoints: int, *, appends: bool = False) -> Figures:
    """Run a query with Structured Streaming until nothing is left."""
    running = Streaming(query, out / "data", out, sessions("local", stands_still=True)(), files, appends=appends)
    began = time.perf_counter()
    batches = running.run()
    return {"seconds": time.perf_counter() - began, "checkpoints": batches}


SIDES: Mapping[str, Callable[[str, Path, int, int], Figures]] = {
    "ours": ours,
    "streaming": streaming,
    "streaming_append": partial(streaming, appends=True),
}


def main(side: str) -> None:
    """Answer each line until there are no more. What is printed goes to the log."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        sessions("local", stands_still=True)().range(1).count()
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(side, json.loads(line))), file=answers, flush=True)


def answer(side: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a run took, or why there was none."""
    out = Path(asked["out"])
    try:
        prepare(out, Path(asked["landing"]))
        return SIDES[side](asked["query"], out, asked["files"], asked["checkpoints"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:4000]}


if __name__ == "__main__":
    main(sys.argv[1])
