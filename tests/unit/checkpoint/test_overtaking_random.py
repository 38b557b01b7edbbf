"""Random lives of a pipeline with two slow jobs: checkpoints go past them, attempts overlap, die and come late, entries
are aborted, retired and rolled back. In the end each table holds each row once. Toys: tables and channels."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.kit.limits import UNALIGNED
from tests.kit.toy_world import Outages, toy_limits
from tests.kit.toys import ToyFeed, ToyFrame, ToySink, ToySource, ToyTables
from tidegate import Pipeline
from tidegate.coordinator import Coordinator
from tidegate.delta import StagedFile
from tidegate.errors import Corrupt, Fenced, Rejected
from tidegate.execution.job.run_job import Attempt, run_job
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.ledger import Ledger, LocalStore
from tidegate.records.place import Place
from tidegate.sinks.channel import Channel, ChannelRows, Sent

SLOW = {"slow": "b", "slower": "c"}
"""Jobs and their tables; `main` writes a."""


def send(self: Channel, frame: Any, replaced: Any, context: Any, staging: Any, syncing: Any) -> Sent:
    location, path = self.location(context), f"{staging.folder(context)}/rows.json"
    with location.create(path) as file:
        file.write(json.dumps(frame.rows).encode())
    files = [StagedFile(path=path, size=location.size(path) or 0, rows=len(frame.rows))]
    return Sent(rows=ChannelRows(columns={}, files=files))


def take_all(self: Channel, sent: Sequence[Sent], context: Any, spark: Any) -> tuple[Any, None]:
    rows: list[Any] = []
    for file in (file for each in sent for file in each.rows.files):
        path = Path(self.location(context).full(file.path))
        if not path.exists():
            raise Corrupt(f"the channel has lost {file.path}", reason="CHANNEL_DAMAGED")
        rows += map(tuple, json.loads(path.read_text()))
    return ToyFrame(rows), None


@contextlib.contextmanager
def toy_channels() -> Iterator[None]:
    """Channels without Spark."""
    with mock.patch.object(Channel, "send", send), mock.patch.object(Channel, "take_all", take_all):
        yield


@pytest.fixture(autouse=True)
def _toy_channels() -> Iterator[None]:
    with toy_channels():
        yield


class Life:
    """One pipeline, and what its processes are in the middle of."""

    def __init__(self, root: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.root = root
        self.feed = ToyFeed()
        self.tables = ToyTables(weather=Outages())
        self.limits = toy_limits(recorded=UNALIGNED, max_concurrent_checkpoints=3, num_retained=2)
        self.halves: list[tuple[Attempt, Any, Any]] = []
        self.runs = 0
        self.passed = 0
        self.told: list[str] = []

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.root / "shop"), "shop")

    def coordinator(self) -> Coordinator:
        pipeline = Pipeline("shop")
        rows = pipeline.source("in", ToySource(self.feed, 3))
        rows.sink("a", ToySink("a", self.tables))
        for job, table in SLOW.items():
            rows.job(job).sink(table, ToySink(table, self.tables))
        return Coordinator(pipeline.graph(), self.ledger, self.limits, Place("/"))

    def open_ids(self) -> list[int]:
        return [entry.id for entry in self.ledger.view().entries if entry.open]

    # -- what happens --------------------------------------------------------------------------------

    def plan(self) -> None:
        self.feed.available += self.dice.randrange(3)
        self.runs += 1
        self.coordinator().trigger(f"run {self.runs}")

    def main(self) -> None:
        for id in self.open_ids():
            run_job(self.coordinator(), id, "main", None)

    def begin(self) -> None:
        """A slow job's task; whether those before it still work is any guess."""
        ids = self.ledger.ids()
        if not ids:
            return
        id, job, guess = self.dice.choice(ids[-4:]), self.dice.choice(sorted(SLOW)), self.dice.random() < 0.85
        attempt = Attempt(self.coordinator(), id, job, lambda _: None, lambda plan, job: guess)
        done, prev = attempt.ask()
        if done is not None:
            return
        with attempt.fenced_if_ended():
            staged = attempt.stage(attempt.read(None))
            attempt.exchange.finish()
        self.halves.append((attempt, staged, prev))

    def end(self) -> None:
        if self.halves:
            attempt, staged, prev = self.halves.pop(self.dice.randrange(len(self.halves)))
            attempt.refuse_ended()
            attempt.ack(staged, prev)

    def die(self) -> None:
        if self.halves and self.dice.random() < 0.3:
            self.halves.pop()

    def complete(self) -> None:
        for id in self.open_ids():
            if self.dice.random() < 0.7:
                self.coordinator().complete(id)

    def tidy(self) -> None:
        self.coordinator().publish()
        self.coordinator().retire()

    def abort(self) -> None:
        if self.dice.random() < 0.2 and (ids := self.open_ids()):
            self.coordinator().abort(self.dice.choice(ids), "TEST")

    def go_back(self) -> None:
        if self.dice.random() < 0.1:
            done = [e.id for e in self.ledger.view().entries if e.completed and e.restart is None]
            self.runs += 1
            if done:
                self.coordinator().roll_back(self.dice.choice(done), run=f"back {self.runs}", by="mia")

    def happen(self) -> None:
        acts = [self.plan, self.main, self.main, self.begin, self.begin, self.end, self.complete, self.complete]
        act = self.dice.choice([*acts, self.tidy, self.abort, self.die, self.go_back])
        try:
            act()
            self.told.append(act.__name__)
        except (Rejected, Fenced) as error:
            self.passed += error.reason == "PASSED_BY"
            self.told.append(f"{act.__name__}: {error.what}")

    def settle(self) -> None:
        """Everybody has died. One more checkpoint waits for all jobs."""
        self.halves = []
        for id in self.open_ids():
            self.coordinator().abort(id, "TEST")
        self.limits = toy_limits(recorded={"unaligned": False}, max_concurrent_checkpoints=3, num_retained=2)
        id = self.coordinator().trigger("the last").plan.id  # type: ignore[union-attr]
        for job in ("main", *SLOW):
            run_job(self.coordinator(), id, job, None, at_work=lambda plan, job: False)
        assert self.coordinator().complete(id).state == "completed"
        self.tidy()

    def shown(self, table: str) -> list[int]:
        found = self.tables[table]
        return sorted(offset for name in found.live() for offset, _ in found.files[name])


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_every_table_once(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    for _ in range(120):
        life.happen()
    life.settle()
    last = life.ledger.view().last_completed
    assert last is not None
    end = last.plan.sources["in"].end
    upto = end["at"] if end is not None else 0
    for table in ("a", *SLOW.values()):
        assert life.shown(table) == list(range(1, upto + 1)), "\n".join([f"table {table}", *life.told])
    assert not last.manifest.in_flight  # type: ignore[union-attr]


def taken(life: Life) -> Iterator[list[Any]]:
    """What slow jobs have taken at once."""
    entries = (life.ledger.entry(id) for id in life.ledger.ids())
    acks = (acked.ack for entry in entries if entry is not None for acked in entry.acks.values())
    return (handles for ack in acks for handles in ack.inputs.values())


def test_in_these_lives_much_is_passed_by_published_late_and_rolled_back(tmp_path: Path) -> None:
    """Else they would show nothing."""
    lives = [Life(tmp_path / str(seed), seed) for seed in range(12)]
    for life in lives:
        for _ in range(120):
            life.happen()
    told = [line for life in lives for line in life.told]
    assert sum(life.passed for life in lives) > 30
    assert told.count("end") > 100
    assert told.count("go_back") > 5
    assert any(len(handles) > 1 for life in lives for handles in taken(life)), "in one go"


class NoSpark:
    """Toys need none."""

    def __call__(self) -> Any:
        return None

    def drop(self) -> None:
        """Nothing to let go of."""


def test_tidegate_run_goes_past_a_job_at_which_another_process_works(tmp_path: Path) -> None:
    life = Life(tmp_path, 0)
    life.feed.available = 2
    life.plan()
    life.main()
    life.feed.available = 4
    attempt = Attempt(life.coordinator(), 1, "slow", lambda _: None)
    _, prev = attempt.ask()
    staged = attempt.stage(attempt.read(None))
    attempt.exchange.finish()
    outcomes = run_checkpoints(life.coordinator(), NoSpark(), Schedule(checkpoints=1), Observer())
    assert [(each.id, each.state) for each in outcomes] == [(2, "completed")]
    assert [life.ledger.entry(id).completed for id in (1, 2)] == [True, True]  # type: ignore[union-attr]
    assert (life.shown("a"), life.shown("b")) == ([1, 2, 3, 4], [])
    attempt.ack(staged, prev)
    life.settle()
    assert life.shown("a") == life.shown("b") == life.shown("c") == list(range(1, life.feed.available + 1))
