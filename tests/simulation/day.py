"""A day told step by step: one pipeline, and somebody who acts just before one access to storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.kit.fake_store import FakeStore
from tests.kit.limits import Limits
from tests.kit.toys import ToyFeed, ToySink, ToySource, ToyTables
from tests.kit.weather import Weather
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.ledger import Store
from tidegate.records.place import Place


@dataclass
class Interrupted(Weather):
    """Somebody else acts just before one access to storage, or that access goes wrong."""

    moments: dict[str, Callable[[], object]] = field(default_factory=dict)
    mishaps: dict[str, str] = field(default_factory=dict)
    hidden: str = ""
    said: str = ""
    reads: int = 0

    def before(self, what: str, then: Callable[[], object]) -> None:
        self.moments[what] = then

    def pause(self, what: str) -> None:
        self.said = what
        self.reads += what.startswith("read ")
        then = self.moments.pop(what, None)
        if then is not None:
            then()

    def mishap(self, what: str, possible: str) -> str:
        return self.mishaps.pop(self.said, "")

    def unseen(self, folder: str, name: str, age: float) -> bool:
        return name == self.hidden


class Day(World):
    """One pipeline with one table, and all that is done to it."""

    def __init__(self, padding: int = 0) -> None:
        self.weather = Interrupted()
        self.disk = FakeStore(weather=self.weather)
        self.tables = ToyTables(weather=self.weather)
        self.feed = ToyFeed(1000, weather=self.weather)
        self.limits, self.name, self.spark = Limits(timeout=1e9, num_retained=1), "day", None
        pipeline = Pipeline("day")
        pipeline.source("in", ToySource(self.feed, 1, padding)).sink("out", ToySink("out", self.tables))
        self.declared = pipeline

    @property
    def place(self) -> Place:
        return Place("/")

    def pipeline(self) -> Pipeline:
        return self.declared

    def store(self) -> Store:
        return self.disk

    def checkpoint(self, run: str, **options: Any) -> int:
        """A run that leaves it to others to retire."""
        id = self.trigger(run, **options)
        self.work(id)
        self.complete(id)
        self.coordinator().publish()
        return id

    def published(self) -> list[int]:
        """Offsets on the table, in order. KeyError if a file is gone."""
        table = self.tables["out"]
        return [offset for commit in table.commits for offset, _ in table.rows(commit)]

    def view_ids(self) -> list[int]:
        return [entry.id for entry in self.ledger.view().entries]
