"""A pipeline by data interval whose days a test writes and makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.kit.limits import Limits
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.coordinator import Triggered
from tidegate.execution.job.run_job import run_job

__all__ = ["BEGIN", "Days", "Row", "day"]

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def day(number: int) -> date:
    return (BEGIN + timedelta(days=number)).date()


class Days(World):
    """An interval pipeline with a folder of files for each day."""

    def __init__(self, root: Path, spark: Any, build: Callable[[Pipeline], object]) -> None:
        self.root, self.spark, self.build, self.name = root, spark, build, "days"
        self.limits = Limits(max_concurrent_checkpoints=2, num_retained=10)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name)
        self.build(pipeline)
        return pipeline

    def write(self, number: int, rows: Sequence[Row], source: str = "orders", files: int = 1) -> None:
        """What there is to read of a day from now on, in so many files."""
        folder = self.root / "landing" / str(day(number)) / source
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.json"):
            old.unlink()
        for file in range(files):
            (folder / f"{file}.json").write_text("".join(json.dumps(r, default=str) + "\n" for r in rows[file::files]))

    def plan(self, number: int, run: str = "first") -> int:
        """Trigger a day's run."""
        start = BEGIN + timedelta(days=number)
        triggered = self.coordinator().trigger(
            f"{run} {number}", interval=(start, start + timedelta(days=1)), reprocess=run != "first"
        )
        assert isinstance(triggered, Triggered)
        return triggered.plan.id

    def work(self, id: int, job: str = "main") -> str:
        """All jobs of a checkpoint, its decision and its publication."""
        coordinator = self.coordinator()
        for each in coordinator.graph.jobs:
            run_job(coordinator, id, each.name, self.spark)
        assert coordinator.complete(id).state == "completed"
        coordinator.publish()
        coordinator.retire()
        return job

    def make(self, number: int, run: str = "first") -> int:
        """One day, to its end."""
        id = self.plan(number, run)
        self.work(id)
        return id
