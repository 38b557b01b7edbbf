"""One pipeline with a ledger in a folder, and the steps of its runs: the base of what tests set up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.kit.limits import Limits
from tidegate import Pipeline
from tidegate.coordinator import Coordinator, Triggered
from tidegate.execution.job.run_job import run_job
from tidegate.ledger import Ledger, LocalStore, Store
from tidegate.pipeline import Graph
from tidegate.records.place import Place
from tidegate.records.records import Json

__all__ = ["World"]


@dataclass
class World:
    """A pipeline's surroundings, which outlive its processes. A subclass declares the pipeline."""

    root: Path
    limits: Limits = field(default_factory=Limits)
    name: str = field(default="orders", init=False)
    spark: Any = field(default=None, init=False)
    """The session in which jobs run; toys need none."""

    def pipeline(self) -> Pipeline:
        """Declare the pipeline anew, as every process does."""
        raise NotImplementedError

    def limit(self, **changed: Any) -> Self:
        """Change settings, for what is done from now on."""
        self.limits = replace(self.limits, **changed)
        return self

    @property
    def place(self) -> Place:
        """Where relative paths of sources and sinks start."""
        return Place(str(self.root))

    @property
    def folder(self) -> Path:
        """The ledger's folder."""
        return self.root / "ledger" / self.name

    def store(self) -> Store:
        """Open the ledger's storage."""
        return LocalStore(self.folder)

    @property
    def ledger(self) -> Ledger:
        """The ledger, as somebody who comes to it now reads it."""
        return Ledger(self.store(), self.name)

    def graph(self) -> Graph:
        """Return the declared graph."""
        return self.pipeline().graph(self.place)

    def coordinator(self) -> Coordinator:
        """Make a coordinator, as each process does: all state is on storage."""
        return Coordinator(self.graph(), self.ledger, self.limits, self.place)

    # -- the tasks of a run --------------------------------------------------------------------------

    def trigger(self, run: str, **options: Any) -> int:
        """Plan a checkpoint; return its id."""
        triggered = self.coordinator().trigger(run, **options)
        assert isinstance(triggered, Triggered), f"run {run} got no checkpoint: {triggered}"
        return triggered.plan.id

    def work(self, id: int, job: str = "main") -> str:
        """Run a job of a checkpoint; return the attempt whose ack counts."""
        return run_job(self.coordinator(), id, job, self.spark).attempt

    def complete(self, id: int) -> None:
        """Decide a checkpoint, for which all jobs have acked."""
        outcome = self.coordinator().complete(id)
        assert outcome.state == "completed", outcome

    def publish(self) -> None:
        """Publish what is decided, and retire what nobody needs any more."""
        self.coordinator().publish()
        self.coordinator().retire()

    def checkpoint(self, run: str, **options: Any) -> int:
        """Do all the tasks of a run, one after the other."""
        id = self.trigger(run, **options)
        for job in self.graph().jobs:
            self.work(id, job.name)
        self.complete(id)
        self.publish()
        return id

    # -- what a reader sees --------------------------------------------------------------------------

    def table(self, name: str) -> list[Json]:
        """Return the rows of a Delta table below `tables`; none if there is no table."""
        return self.rows(f"tables/{name}")

    def rows(self, path: str) -> list[Json]:
        """Return the rows of any Delta table below the root; none if there is no table."""
        from tidegate.delta import Location, open_table
        from tidegate.delta.dataset import dataset

        snapshot = open_table(Location(str(self.root / path)))
        return dataset(snapshot).to_table().to_pylist() if snapshot is not None else []
