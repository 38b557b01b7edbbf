"""A toy pipeline that can be backfilled: its table can have a shadow, and its sources compare positions."""

from __future__ import annotations

from typing import Any

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import NO_SPARK, ToyFrame
from tests.simulation.line_storage import ShadowedSink
from tidegate import Pipeline
from tidegate.backfill import OpenLine, replay
from tidegate.execution.loop import Observer, Schedule
from tidegate.records.records import Json
from tidegate.sources import Generator
from tidegate.sources.base import SourceContext

__all__ = ["Endless", "NoSpark", "Numbers", "never", "replayed"]


class Numbers(Generator):
    """Its rows without Spark."""

    def read(self, spark: Any, splits: Json, context: SourceContext) -> Any:
        return ToyFrame([(id, "") for id in range(splits["from"], splits["to"])])


class Endless(ToyWorld):
    """A pipeline from a source to a table that can have a shadow."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name)
        pipeline.source("in", self.source or Numbers(rows=2)).sink("a", ShadowedSink("a", self.tables))
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


def replayed(line: OpenLine) -> int:
    """Replay what is left; return in how many checkpoints."""
    return len(replay(line, NoSpark(), Schedule(), Observer()))


def never(why: str) -> None:
    """Refuse to wait."""
    raise AssertionError(why)
