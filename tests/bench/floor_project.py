"""A copy of the shipped example in a folder of its own, and `tidegate run` there, watched from outside."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import orders_feed
from tests.bench.harness import ROOT, core_seconds
from tests.bench.sides import environment
from tidegate.ledger import open_ledger
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.record_files import folder as record_folder
from tidegate.spark.server import server as connect_server

EXAMPLE = "jobs.orders:pipeline"
LOOK_S = 0.005
PATIENCE_S = 600.0

ONE_OPERATOR = """
from tidegate import Pipeline
from tidegate.sinks import DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("counts", interval="never")
events = pipeline.source("events", Files("landing/events/*.json", schema="k long, amount long", max_files=1))
counts = events.aggregate(by=["k"], n="count(*)", amount="sum(amount)", uid="counts")
counts.sink("counts", DeltaUpsert("tables/counts", keys=["k"]))
"""
"""A source, one aggregate and a sink."""


@dataclass(frozen=True)
class Made:
    """A checkpoint, as seen from outside."""

    ended: float
    """When it was published in all tables, by the clock of the day."""
    seconds: float
    """From the end of the one before it; of the first, from the start of the process."""
    cpu_s: float
    """Processor time of the process and of the Spark server since then; unless the server was started since then."""


class Project:
    """The example, whose sources take so many files a checkpoint; its data, its ledger and its Spark server.

    settings: more lines for its tidegate.toml.
    """

    def __init__(self, folder: Path, files: int, rows: int, settings: str = "") -> None:
        self.folder, self.files, self.rows = folder, files, rows
        for name in ("jobs", "dags", "plugins", "include/expectations"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "tidegate.toml").write_text((ROOT / "tidegate.toml").read_text() + settings)
        (folder / "one_operator.py").write_text(ONE_OPERATOR)
        # Of a run under Airflow, the bench is the schedule.
        self._change({"max_files=20": f"max_files={files}", 'interval="1 min"': 'interval="never"'})

    def _change(self, texts: dict[str, str]) -> None:
        code = self.folder / "jobs" / "orders.py"
        text = code.read_text()
        for old, new in texts.items():
            assert old in text, f"{code.name} has no {old}"
            text = text.replace(old, new)
        code.write_text(text)

    def change_code(self) -> None:
        """Give a stage other code, which does the same."""
        self._change({'.drop("_corrupt_record")': '.drop("_corrupt_record", "no_such_column")'})

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def home(self) -> Path:
        """Of its Spark server."""
        return self.folder / ".tidegate" / "spark"

    @property
    def fed(self) -> int:
        """The number of files of orders, and of payments, so far."""
        return orders_feed.last_file(self.data)

    def feed(self, checkpoints: int) -> None:
        """The input of so many checkpoints."""
        orders_feed.feed(self.data, checkpoints * self.files, self.rows)

    def feed_events(self, checkpoints: int, rows: int) -> None:
        """The input of so many checkpoints of the pipeline with one operator."""
        landing = self.data / "landing" / "events"
        landing.mkdir(parents=True)
        for number in range(checkpoints):
            lines = [json.dumps({"k": row * 7 % rows, "amount": row + number}) for row in range(rows)]
            (landing / f"{number:04d}.json").write_text("\n".join(lines) + "\n")

    def ledger(self, pipeline: str) -> Ledger:
        return open_ledger(str(self.data / "ledger"), pipeline)

    def run(self, code: str, pipeline: str, checkpoints: int) -> list[Made]:
        """`tidegate run` from its start: so many checkpoints, one after the other."""
        first = (self.ledger(pipeline).ids() or [0])[-1] + 1
        command = [sys.executable, "-m", "tidegate", "run", code, "--checkpoints", str(checkpoints)]
        log = self.folder / f"{pipeline}.log"
        clock, began = time.time(), time.perf_counter()
        made: list[Made] = []
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment(), stdout=output, stderr=subprocess.STDOUT
            )
        try:
            before, cpu = 0.0, self._cpu_s(process.pid)
            for id in range(first, first + checkpoints):
                self._await(self.data / "ledger" / pipeline / record_folder(id) / "published.json", process, log)
                now, cpu_now = time.perf_counter() - began, self._cpu_s(process.pid)
                made.append(Made(clock + now, now - before, cpu_now - cpu))
                before, cpu = now, cpu_now
            if process.wait(PATIENCE_S):
                raise RuntimeError(log.read_text())
        finally:
            process.kill()
            process.wait()
        return made

    def _await(self, file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not file.exists():
            over = process.poll() is not None or time.monotonic() > deadline
            if over and not file.exists():
                raise RuntimeError(f"there is no {file}:\n{log.read_text()}")
            time.sleep(LOOK_S)

    def server(self) -> list[int]:
        """The pid of its Spark server, if it runs."""
        return [info.pid for info in connect_server.status(self.home)]

    def _cpu_s(self, process: int) -> float:
        return sum(map(core_seconds, [process, *self.server()]))

    def stop_spark(self) -> None:
        connect_server.stop(self.home, force=True)


LOGGED = """
[spark.conf]
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.eventLog.rolling.enabled" = "false"
"spark.eventLog.dir" = "{folder}"
"""


def event_log(folder: Path) -> str:
    """Settings of a server that writes down all that it does."""
    folder.mkdir()
    return LOGGED.format(folder=folder.as_uri())


@dataclass(frozen=True)
class Work:
    """What Spark did for one checkpoint."""

    queries: int
    """SQL executions."""
    jobs: int
    tasks: int


EVENTS: dict[str, tuple[str, Callable[[Any], float]]] = {
    "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart": ("queries", lambda event: event["time"]),
    "SparkListenerJobStart": ("jobs", lambda event: event["Submission Time"]),
    "SparkListenerTaskEnd": ("tasks", lambda event: event["Task Info"]["Launch Time"]),
}
"""What is counted, and when it began, in milliseconds."""


def works(folder: Path, made: Sequence[Made]) -> list[Work]:
    """What a server that has been stopped did for each of these checkpoints, from its event log."""
    counts = [dict.fromkeys(("queries", "jobs", "tasks"), 0) for _ in made]
    ends = [each.ended * 1000 for each in made]
    for file in folder.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["Event"] in EVENTS:
                what, time_of = EVENTS[event["Event"]]
                place = next((at for at, end in enumerate(ends) if time_of(event) <= end), None)
                if place is not None:
                    counts[place][what] += 1
    return [Work(**each) for each in counts]
