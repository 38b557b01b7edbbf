"""What the benches with rows share: a pipeline over landed Parquet files, run as `tidegate run` does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.control import PIPELINE
from tests.bench.spark import sessions
from tests.kit.limits import Limits
from tidegate import Pipeline
from tidegate.connectors.sink import Sink
from tidegate.coordinator import Coordinator, Outcome
from tidegate.errors import TidegateError
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.gates import Gate
from tidegate.ledger import open_ledger
from tidegate.pipeline import Stream
from tidegate.records.place import Place
from tidegate.records.records import Ack, Plan
from tidegate.sources import Files


class BenchedPipeline:
    """One folder: landed files, a pipeline that maps them into one table, and its ledger."""

    connections: Mapping[str, str] = {}
    files: Mapping[str, Any] = {}

    def __init__(
        self,
        root: Path,
        schema: str,
        stage: Callable[[Any], Any],
        sink: Sink,
        spark: str,
        gate: Gate | None = None,
        connections: Mapping[str, str] | None = None,
        files: Mapping[str, Any] | None = None,
    ) -> None:
        """files: further arguments of the source; its format is that of the landed files."""
        self.connections = connections or {}
        self.files = files or {}

        def build(rows: Stream) -> None:
            mapped = rows.pipeline.stage(rows, name="mapped")(stage)
            (mapped.gate(gate, name="checked") if gate is not None else mapped).sink("table", sink)

        self.begin(root, schema, spark, build)

    def begin(self, root: Path, schema: str, spark: str, build: Callable[[Stream], object], **source: Any) -> None:
        """Declare the pipeline behind its source (of which `source` tells more), and open its ledger."""
        self.root = root
        self.schema = schema
        self.sessions = sessions(spark)
        self.parts: list[dict[str, float]] = []
        """Where the seconds of each checkpoint went."""
        pipeline = Pipeline(PIPELINE)
        rows = pipeline.source(
            "rows", Files("landing/**/*", **{"format": "parquet", "schema": schema, **self.files}), **source
        )
        build(rows)
        place = Place(str(root), connections=self.connections)
        self.control = Coordinator(pipeline.graph(place), open_ledger(f"{root}/ledger", PIPELINE), Limits(), place)

    def landing(self, number: int) -> Path:
        """Where the input of round `number` lies."""
        return self.root / "landing" / f"{number:04d}"

    def land(self, number: int, files: Sequence[Path]) -> None:
        """These files as the input of round `number`; links, so that nothing is written."""
        folder = self.landing(number)
        folder.mkdir(parents=True)
        for at, file in enumerate(files):
            os.link(file, folder / f"{at:04d}{file.suffix}")

    def checkpoint(self) -> dict[str, float]:
        """One whole checkpoint, from trigger to published and retired."""
        parts = Parts()
        run_checkpoints(self.control, self.sessions, Schedule(checkpoints=1), parts)
        self.parts.append(parts.seconds)
        return parts.seconds


class Parts(Observer):
    """Seconds from one step of a checkpoint to the next, from the moment this was made."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()
        self._what = "trigger"

    def _next(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[self._what] = self.seconds.get(self._what, 0.0) + now - self._began
        self._began, self._what = now, what

    def planned(self, plan: Plan) -> None:
        self._next("start")

    def step(self, plan: Plan, what: str) -> None:
        self._next(what.split()[0])

    def decided(self, plan: Plan, outcome: Outcome, acks: list[Ack], seconds: float) -> None:
        self._next("")
        assert outcome.state == "completed", outcome

    def retrying(self, plan: Plan, error: TidegateError, tries_left: int) -> None:
        raise error

    def stuck(self, table: str, error: TidegateError) -> None:
        raise error
