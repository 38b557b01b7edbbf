"""One pipeline on a real ledger in a folder, with toy sources and sinks; stories are told by its methods."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidegate import Pipeline
from tidegate.coordinator import Coordinator
from tidegate.errors import TidegateError
from tidegate.execution.job.run_job import Attempt, run_job
from tidegate.gates import Gate
from tidegate.ledger import Ledger, LocalStore, Store
from tidegate.records.names import entry_name
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.testing.toys import ToyFeed, ToySink, ToySource, ToyTables
from tidegate.testing.weather import Weather

NAME = "orders"


@dataclass(frozen=True)
class Limits:
    """Settings, as far as the coordinator looks at them."""

    timeout: float = 600.0
    max_concurrent_checkpoints: int = 1
    max_unpublished: int = 3
    num_retained: int = 100
    tolerable_failed_checkpoints: int = 1_000_000
    min_pause: float = 0.0
    root: str = "s3://ledger"
    """Not on a disk of this machine: what is free there is asked for by none of these stories."""
    data: str = "s3://data"

    def record(self) -> Json:
        return {"num_retained": self.num_retained}


class Outages(Weather):
    """Tables that do not answer, for as long as they are listed; and commits whose answer is lost, once."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.stuck: set[str] = set()
        """These can be checked and staged for, but not published to."""
        self.lose_answer_of: set[str] = set()
        self.lose_locate = False
        self.then = {}
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


@dataclass
class World:
    """The pipeline's surroundings, which outlive its processes."""

    root: Path
    limits: Limits = field(default_factory=Limits)
    feed: ToyFeed = field(default_factory=ToyFeed)
    tables: ToyTables = field(default_factory=lambda: ToyTables(weather=Outages()))
    sinks: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    """Name to `skip`."""
    gates: dict[str, Gate] = field(default_factory=dict)
    source: object = None
    bound: int = 3
    padding: int = 0
    name = NAME

    @property
    def weather(self) -> Outages:
        return self.tables.weather

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.store(), self.name)

    def store(self) -> Store:
        return LocalStore(self.folder)

    def limit(self, **changed: object) -> World:
        self.limits = replace(self.limits, **changed)
        return self

    def coordinator(self) -> Coordinator:
        """A fresh one, as each process has; all state is on storage."""
        pipeline = Pipeline(self.name)
        stream = pipeline.source("in", self.source or ToySource(self.feed, self.bound, self.padding))
        for name, gate in self.gates.items():
            stream = stream.gate(gate, name=name)
        for name, skip in self.sinks.items():
            stream.sink(name, ToySink(name, self.tables, skip))
        return Coordinator(pipeline.graph(), self.ledger, self.limits, Place("/"))

    # -- what a run does -----------------------------------------------------------------------------

    def feed_more(self, rows: int) -> None:
        self.feed.available += rows

    def trigger(self, run: str, **options: object) -> int:
        return self.coordinator().trigger(run, **options).plan.id

    def work(self, id: int) -> str:
        """The job of a checkpoint; answers with the attempt whose ack counts."""
        return run_job(self.coordinator(), id, "main", None).attempt

    def half_work(self, id: int) -> Attempt:
        """An attempt that has staged everything and not acked yet."""
        attempt = Attempt(self.coordinator(), id, "main", lambda _: None)
        attempt.ask()
        attempt.staged = attempt.stage(attempt.read(None))
        return attempt

    def decided(self, run: str, rows: int = 0) -> int:
        """A run up to its decision, and no further."""
        self.feed_more(rows)
        id = self.trigger(run)
        self.work(id)
        outcome = self.coordinator().complete(id)
        assert outcome.state == "completed", outcome
        return id

    def checkpoint(self, run: str, rows: int = 0) -> int:
        """A whole run."""
        id = self.decided(run, rows)
        self.coordinator().publish()
        self.coordinator().retire()
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
        return [commit.id for commit in self.tables[table].commits]

    def staged(self, table: str) -> set[str]:
        """Staged files that no commit of the table names."""
        named = {name for commit in self.tables[table].commits for name in commit.files}
        return set(self.tables[table].files) - named

    def exact(self, tables: str = "ab") -> None:
        """Each table holds each row once, and each checkpoint's rows are of one attempt only."""
        for table in tables:
            upto = self.ledger.view().last_completed.plan.sources["in"].end["at"]
            assert self.offsets(table) == list(range(1, upto + 1)), table
            assert self.published(table) == sorted(set(self.published(table)))
            for commit in self.tables[table].commits:
                assert len({tag for _, tag in self.tables[table].rows(commit)}) <= 1


def quietly(do: object) -> object:
    """Call, and answer with the error instead of raising it."""
    try:
        return do()
    except TidegateError as error:
        return error
