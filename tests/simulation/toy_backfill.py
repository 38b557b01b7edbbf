"""A toy pipeline that can be backfilled: its table can have a shadow, and its sources compare positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import NO_SPARK, ToyFrame
from tests.simulation.line_storage import ShadowedSink
from tidegate import Pipeline
from tidegate.backfill import CompletedSwap, OpenBackfill, begin, replay, swap
from tidegate.connectors.source import SourceContext
from tidegate.execution.loop import Observer, Schedule
from tidegate.records.records import Json
from tidegate.sources import Generator

__all__ = ["Endless", "NoSpark", "Numbers", "backfilled", "never", "replayed"]


class Numbers(Generator):
    """Its rows without Spark."""

    def read(self, spark: Any, splits: Json, context: SourceContext) -> Any:
        return ToyFrame([(id, "") for id in range(splits["from"], splits["to"])])


@dataclass
class Endless(ToyWorld):
    """A pipeline from a source, through gates if there are any, to a table that can have a shadow."""

    hooks: Mapping[str, Any] = field(default_factory=dict)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name)
        stream = pipeline.source("in", self.source or Numbers(rows=2))
        for name, gate in self.gates.items():
            stream = stream.gate(gate, name=name)
        stream.sink("a", ShadowedSink("a", self.tables))
        for name, callbacks in self.hooks.items():
            pipeline.hook(name, **callbacks)
        return pipeline

    def rows(self, path: str = "a") -> list[Any]:
        table = self.tables[path]
        return [offset for name in table.live() for offset, _ in table.files[name]]


class NoSpark:
    """The session of toys."""

    def __call__(self, job: str | None = None) -> Any:
        return NO_SPARK

    def drop(self) -> None:
        """There is none."""


def replayed(line: OpenBackfill) -> int:
    """Replay what is left; return in how many checkpoints."""
    return len(replay(line, NoSpark(), Schedule(), Observer()))


def never(why: str) -> None:
    """Refuse to wait."""
    raise AssertionError(why)


def backfilled(world: Endless, origin: int, name: str = "fix") -> CompletedSwap:
    """Make a whole backfill from a checkpoint, or from the beginning (0), and swap it in."""
    line = begin(world.coordinator(), name, origin, by="ann")
    replayed(line)
    return swap(line, by="ann", choices={}, wait=never)
