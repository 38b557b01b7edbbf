"""A pipeline with two slow jobs, which checkpoints overtake; channels without Spark."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.kit.limits import UNALIGNED, Limits
from tests.kit.ticking import TickingStore
from tests.kit.toy_world import Outages, toy_limits
from tests.kit.toys import NO_SPARK, ToyFeed, ToyFrame, ToySink, ToySource, ToyTables
from tidegate import Pipeline
from tidegate.connectors.channel import Channel, ChannelRows, Sent
from tidegate.coordinator import Coordinator, Triggered
from tidegate.delta import StagedFile
from tidegate.errors import Corrupt, Fenced, Rejected
from tidegate.execution.job.run_job import Attempt, run_job
from tidegate.ledger import Ledger, LocalStore
from tidegate.records.place import Place
from tidegate.records.records import Ack, Handle

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
    with mock.patch.object(Channel, "send", send), mock.patch.object(Channel, "read_all", take_all):
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
            run_job(self.coordinator(), id, "main", NO_SPARK)

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
            staged = attempt.stage_sinks(attempt.read(NO_SPARK))
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
            done = [e.id for e in self.ledger.view().entries if e.completed and e.rollback is None]
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
            run_job(self.coordinator(), id, job, NO_SPARK, at_work=lambda plan, job: False)
        assert self.coordinator().complete(id).state == "completed"
        self.tidy()

    def shown(self, table: str) -> list[int]:
        found = self.tables[table]
        return sorted(offset for name in found.live() for offset, _ in found.files[name])


class OvertakingStory(Life):
    """Told step by step."""

    def __init__(self, root: Path, limits: Limits | None = None) -> None:
        super().__init__(root, 0)
        self.limits = limits or toy_limits(recorded=UNALIGNED, max_concurrent_checkpoints=3, num_retained=2)

    @property
    def ledger(self) -> Ledger:
        return Ledger(TickingStore(self.root / "shop"), "shop")

    def planned(self, rows: int = 1, **options: Any) -> int:
        """Rows have come, and `main` has done its part of a checkpoint with them."""
        self.feed.available += rows
        self.runs += 1
        triggered = self.coordinator().trigger(f"run {self.runs}", **options)
        assert isinstance(triggered, Triggered)
        run_job(self.coordinator(), triggered.plan.id, "main", NO_SPARK)
        return triggered.plan.id

    def began(self, id: int, job: str, at_work: bool = True) -> tuple[Attempt, Any, Handle | None]:
        """The job is busy with a checkpoint: all is staged, nothing said."""
        attempt = Attempt(self.coordinator(), id, job, lambda _: None, lambda plan, job: at_work)
        _, prev = attempt.ask()
        staged = attempt.stage_sinks(attempt.read(NO_SPARK))
        attempt.exchange.finish()
        return attempt, staged, prev

    def ended(self, work: tuple[Attempt, Any, Handle | None]) -> None:
        attempt, staged, prev = work
        attempt.refuse_ended()
        attempt.ack(staged, prev)

    def work(self, id: int, job: str, at_work: bool = True) -> Ack:
        return run_job(self.coordinator(), id, job, NO_SPARK, at_work=lambda plan, job: at_work)

    def all_done(self, id: int) -> None:
        for job in SLOW:
            self.work(id, job)
        self.completed(id)

    def completed(self, *ids: int) -> None:
        for id in ids:
            assert self.coordinator().complete(id).state == "completed", id
        self.coordinator().publish()

    def refused(self, id: int, job: str = "slow") -> str:
        """Why the job's task does not begin."""
        with pytest.raises(Rejected) as told:
            self.work(id, job)
        return told.value.reason

    def in_flight(self, id: int, job: str = "slow") -> list[int]:
        entry = self.ledger.entry(id)
        assert entry is not None
        assert entry.manifest is not None
        return [each.ack.entry for each in entry.manifest.in_flight.get(job, ())]


def busy(tmp_path: Path, limits: Limits | None = None) -> tuple[OvertakingStory, tuple[Attempt, Any, Handle | None]]:
    """One checkpoint went well; in the second, `slow` is at work."""
    story = OvertakingStory(tmp_path, limits)
    story.all_done(story.planned())
    second = story.planned()
    story.work(second, "slower")
    return story, story.began(second, "slow")
