"""One pipeline on a real ledger in a folder, with toy sources and sinks; stories are told by its methods."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.kit.limits import Limits
from tests.kit.toys import NO_SPARK, DriftingToySource, ToyFeed, ToySink, ToySource, ToyTables
from tests.kit.weather import Weather
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.connectors.sink import Prepared
from tidegate.connectors.source import Source
from tidegate.errors import TidegateError
from tidegate.execution.job.run_job import Attempt
from tidegate.gates import Gate
from tidegate.records.names import entry_name
from tidegate.records.place import Place
from tidegate.records.records import Drift, FoundColumn


class HalfDone(Attempt):
    """An attempt that remembers what it has staged."""

    staged: Mapping[str, Prepared]


class Outages(Weather):
    """Tables that do not answer, for as long as they are listed; and commits whose answer is lost, once."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.stuck: set[str] = set()
        """These can be checked and staged for, but not published to."""
        self.lose_answer_of: set[str] = set()
        self.lose_locate = False
        self.then: dict[str, Callable[[], object]] = {}
        """What happens just before a call, once: "commit 1 on a" → function."""
        self._table = ""

    def pause(self, what: str) -> None:
        self._table = what.split()[-1]
        if (act := self.then.pop(what, None)) is not None:
            act()

    def mishap(self, what: str, possible: str) -> str:
        if self._table in self.down and "lost" in possible:
            return "lost"
        if self._table in self.stuck and what in ("head", "commit"):
            return "lost"
        if what == "locate" and self.lose_locate:
            return "lost"
        if what == "commit" and self._table in self.lose_answer_of:
            self.lose_answer_of.discard(self._table)
            return "unclear"
        return ""


def toy_limits(**changed: Any) -> Limits:
    """Return the settings of a toy's world: nearly everything stays, and little may wait to be published."""
    return replace(Limits(max_unpublished=3, num_retained=100), **changed)


@dataclass
class ToyWorld(World):
    """A pipeline from a toy source to toy tables. `root` is the ledger's: there is no other data on disk."""

    limits: Limits = field(default_factory=toy_limits)
    feed: ToyFeed = field(default_factory=ToyFeed)
    tables: ToyTables = field(default_factory=lambda: ToyTables(weather=Outages()))
    sinks: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    """Name to `skip`."""
    gates: dict[str, Gate] = field(default_factory=dict)
    source: Source | None = None
    bound: int = 3
    padding: int = 0
    bounded: bool = False
    finishes: bool = False

    @property
    def weather(self) -> Outages:
        assert isinstance(self.tables.weather, Outages)
        return self.tables.weather

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def place(self) -> Place:
        return Place("/")

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name, finishes=self.finishes)
        source = self.source or ToySource(self.feed, self.bound, self.padding)
        stream = pipeline.source("in", source, bounded=self.bounded)
        for name, gate in self.gates.items():
            stream = stream.gate(gate, name=name)
        for name, skip in self.sinks.items():
            stream.sink(name, ToySink(name, self.tables, skip))
        return pipeline

    def drifting_checkpoint(self, run: str, *found: FoundColumn) -> int:
        """A checkpoint of a source whose schema follows its input, in which this does not fit."""
        before, source = self.source, DriftingToySource(self.feed, self.bound)
        source.found = Drift(found=list(found), records=sum(each.records for each in found)) if found else None
        self.source = source
        try:
            return self.checkpoint(run, rows=3)
        finally:
            self.source = before

    # -- what a run does -----------------------------------------------------------------------------

    def feed_more(self, rows: int) -> None:
        self.feed.available += rows

    def half_work(self, id: int) -> HalfDone:
        """An attempt that has staged everything and not acked yet."""
        attempt = HalfDone(self.coordinator(), id, "main", lambda _: None)
        attempt.ask()
        attempt.staged = attempt.stage_sinks(attempt.read(NO_SPARK))
        return attempt

    def decided(self, run: str, rows: int = 0, **options: Any) -> int:
        """A run up to its decision, and no further."""
        self.feed_more(rows)
        id = self.trigger(run, **options)
        self.work(id)
        self.complete(id)
        return id

    def checkpoint(self, run: str, rows: int = 0, **options: Any) -> int:
        """A whole run."""
        id = self.decided(run, rows, **options)
        self.publish()
        return id

    # -- what time and people do ---------------------------------------------------------------------

    def age(self, id: int, seconds: float) -> None:
        """Let the entry have been created so long ago."""
        plan = self.folder / "checkpoints" / entry_name(id) / "plan.json"
        os.utime(plan, (time.time() - seconds,) * 2)

    def path(self, id: int, name: str = "") -> Path:
        return self.folder / "checkpoints" / entry_name(id) / name

    # -- what is seen --------------------------------------------------------------------------------

    def state(self, id: int) -> str:
        entry = self.ledger.entry(id)
        return "gone" if entry is None else entry.decision.outcome if entry.decision else "open"

    def offsets(self, table: str) -> list[int]:
        """All rows of a table, in commit order, without their tags."""
        commits = self.tables[table].commits
        return [offset for commit in commits for offset, _ in self.tables[table].rows(commit)]

    def published(self, table: str) -> list[int]:
        return [commit.id for commit in self.tables[table].commits if commit.id is not None]

    def staged(self, table: str) -> set[str]:
        """Staged files that no commit of the table names."""
        named = {name for commit in self.tables[table].commits for name in commit.files}
        return set(self.tables[table].files) - named

    def exact(self, tables: str = "ab") -> None:
        """Each table holds each row once, and each checkpoint's rows are of one attempt only."""
        for table in tables:
            last = self.ledger.view().last_completed
            assert last is not None
            end = last.plan.sources["in"].end
            assert end is not None
            upto = end["at"]
            assert self.offsets(table) == list(range(1, upto + 1)), table
            assert self.published(table) == sorted(set(self.published(table)))
            for commit in self.tables[table].commits:
                assert len({tag for _, tag in self.tables[table].rows(commit)}) <= 1


def quietly(do: Callable[[], Any]) -> Any:
    """Call, and answer with the error instead of raising it."""
    try:
        return do()
    except TidegateError as error:
        return error
