"""A small pipeline to try operators on: rows are fed file by file, checkpoints are made, tables are read.

How rows are cut into files and checkpoints is the test's choice, so that it can show that it does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tests.kit.limits import Limits
from tests.kit.world import World
from tests.spark.changelog_check import watch
from tidegate import Pipeline
from tidegate.coordinator import Triggered
from tidegate.execution.job.run_job import run_job
from tidegate.pipeline import Graph
from tidegate.pipeline.graph.graph import OperatorNode
from tidegate.records.records import Ack, Drain, Json
from tidegate.sources import Files
from tidegate.state import StateTable

__all__ = ["SmallPipeline", "put_in_jobs", "sources"]


class SmallPipeline(World):
    """One pipeline below one folder. `build` declares it, anew for each checkpoint, as every process does."""

    def __init__(
        self, root: Path, spark: Any, build: Callable[[Pipeline], object], name: str = "play", **settings: Any
    ) -> None:
        self.root, self.spark, self.build, self.name = root, spark, build, name
        self.limits = Limits(num_retained=3, recorded=settings)
        self.files = 0
        self.in_jobs = False
        """Whether operators are in jobs of their own: nothing may depend on that."""
        self.finishes = False
        """Whether no source gets more than it has, each checkpoint reads a file of each, and then it ends by itself."""
        self.in_step: str | None = None
        """Then also: how far a source may be ahead of the others."""
        self.watched = False
        """Whether each stream that replaces rows has a table of all that it gives and takes back."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name, finishes=self.finishes)
        self.build(pipeline)
        if self.finishes:
            bound(pipeline, self.in_step)
        if self.in_jobs:
            put_in_jobs(pipeline)
        if self.watched:
            watch(pipeline, pipeline.graph(self.place, self.limits.recorded.get("mode")))
        return pipeline

    def graph(self) -> Graph:
        return self.pipeline().graph(self.place, self.limits.recorded.get("mode"))

    def feed(self, rows: Sequence[Json], source: str = "rows") -> None:
        """Let one file with these rows land."""
        folder = self.root / "landing" / source
        folder.mkdir(parents=True, exist_ok=True)
        self.files += 1
        (folder / f"{self.files:06d}.json").write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))

    def checkpoint(self, drain: Drain | None = None) -> int:
        """One checkpoint of all that has landed, to its end."""
        coordinator = self.coordinator()
        triggered = coordinator.trigger(f"run {coordinator.ledger.view().last_id + 1}", drain=drain)
        assert isinstance(triggered, Triggered)
        id = triggered.plan.id
        for job in coordinator.graph.jobs:
            run_job(coordinator, id, job.name, self.spark)
        outcome = coordinator.complete(id)
        assert outcome.state == "completed", outcome
        coordinator.publish()
        coordinator.retire()
        return id

    def decide(self) -> tuple[Ack, Any]:
        """One checkpoint of all that has landed, whatever becomes of it: what its job acked, and the outcome."""
        coordinator = self.coordinator()
        triggered = coordinator.trigger(f"run {coordinator.ledger.view().last_id + 1}")
        assert isinstance(triggered, Triggered)
        ack = run_job(coordinator, triggered.plan.id, "main", self.spark)
        outcome = coordinator.complete(triggered.plan.id)
        coordinator.publish()
        return ack, outcome

    def play(self, cuts: Sequence[Sequence[Json]], source: str = "rows") -> None:
        """One checkpoint for each of these lists of rows."""
        for rows in cuts:
            self.feed(rows, source)
            self.checkpoint()

    def ack(self, id: int, job: str = "main") -> Ack:
        """What the job said of checkpoint `id`."""
        found = self.coordinator().ledger.ack(id, job)
        assert found is not None
        return found.ack

    def state(self, name: str, id: int | None = None) -> StateTable:
        """A keyed state as of a checkpoint, by default the last."""
        ledger = self.coordinator().ledger
        payload = self.ack(id or ledger.view().last_id).states[f"state.{name}"]
        return msgspec.convert(ledger.unpack(payload), StateTable)


def bound(pipeline: Pipeline, max_ahead: str | None = None) -> None:
    """Say of all sources that there will be no more than there is, and that a file is read at a time."""
    for place, node in enumerate(pipeline._sources):
        assert isinstance(node.source, Files)
        node.source.max_files = 1
        ahead = max_ahead if node.event_time is not None else None
        pipeline._sources[place] = replace(node, bounded=True, max_ahead=ahead)


def put_in_jobs(pipeline: Pipeline) -> None:
    """Operators in jobs by how many lie in front of them."""
    depths: dict[str, int] = {}
    for place, stage in enumerate(pipeline._stages):
        depth = max(depths.get(name, 0) for name in stage.inputs) + isinstance(stage, OperatorNode)
        depths |= dict.fromkeys(stage.produces, depth)
        pipeline._stages[place] = replace(stage, job=f"depth{depth}")
    readers = {
        stage.inputs[-1]: stage.job
        for stage in pipeline._stages
        if isinstance(stage, OperatorNode) and stage.spec.inputs.lookup_table
    }
    for place, stage in enumerate(pipeline._stages):
        if stage.name in readers:  # a table to look up is in the job that looks it up
            pipeline._stages[place] = replace(stage, job=readers[stage.name])


def sources(
    pipeline: Pipeline, schema: str, name: str = "rows", max_files: int = 1000, policy: Any = None, **options: Any
) -> Any:
    """A source of all files that `SmallPipeline.feed` lets land under this name. policy: for what the schema lacks."""
    files = Files(f"landing/{name}/*.json", schema=schema, max_files=max_files, **(policy or {}))
    return pipeline.source(name, files, **options)
