"""What sources are told: which position is completed, and what nobody will read again. Never too early.

Whatever may delete is guilty until tried: the lives below roll back to every checkpoint that is left, in a copy of the
world, and read on from there.
"""

from __future__ import annotations

import copy
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyFeed, ToySource
from tidegate import seams
from tidegate.connectors.source import Planned, SourceContext
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import rollback, savepoint
from tidegate.records.records import Amount, Json, Lag, Pin


@dataclass
class HeldFeed(ToyFeed):
    """Input that its origin holds back until it is released."""

    released: int = 0
    told: list[Json] | None = None
    """The positions of completed checkpoints, as a tool that watches the source was told."""
    deaf: bool = False


class HeldSource(ToySource):
    """A source that lets go of its input when it is told to, and can read nothing before that."""

    feed: HeldFeed

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        begin = start["at"] if start else 0
        assert begin >= self.feed.released, f"it goes on from {begin}, and all before {self.feed.released} is released"
        planned = super().plan(start, context)
        return replace(planned, lag=Lag(rows=self.feed.available - planned.end["at"], seconds=2.5))

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        if splits["after"] < self.feed.released:
            raise Invalid(f"all before {self.feed.released} is released")
        return super().verify(splits, context)

    def on_checkpoint_completed(self, end: Json, context: SourceContext) -> None:
        if self.feed.deaf:
            raise Unavailable("the group's coordinator does not answer")
        self.feed.told = [*(self.feed.told or []), end]

    def release(self, before: Json, context: SourceContext) -> None:
        if self.feed.deaf:
            raise Unavailable("the slot does not answer")
        self.feed.released = max(self.feed.released, before["at"])


def world_of(root: Path, num_retained: int = 2) -> ToyWorld:
    feed = HeldFeed()
    world = ToyWorld(root, feed=feed, source=HeldSource(feed, bound=1000)).limit(num_retained=num_retained)
    world.sinks = {"a": 0}
    return world


@pytest.fixture
def world(tmp_path: Path) -> ToyWorld:
    return world_of(tmp_path)


def feed_of(world: ToyWorld) -> HeldFeed:
    assert isinstance(world.feed, HeldFeed)
    return world.feed


def checkpoint(world: ToyWorld, rows: int = 2) -> int:
    return world.checkpoint(f"run {seams.new_id()}", rows=rows)


def back(world: ToyWorld, to: int) -> int:
    done = rollback.roll_back(world.coordinator(), to, run=f"back {seams.new_id()}", by="a person", choices={})
    return done.id


# -- stories -----------------------------------------------------------------------------------------


def test_the_completed_position_is_told_when_there_is_one(world):
    for _ in range(2):
        checkpoint(world)
    told = feed_of(world).told
    assert told is not None
    assert [each["at"] for each in told] == sorted(each["at"] for each in told)
    assert told[-1] == {"at": 4}


def test_an_aborted_checkpoint_is_never_told(world):
    checkpoint(world)
    world.feed_more(5)
    world.coordinator().abort(world.trigger("dead"), "JOB_FAILED", "boom")
    world.publish()
    assert feed_of(world).told[-1] == {"at": 2}


def test_input_is_released_up_to_the_oldest_checkpoint_that_is_kept(world):
    for _ in range(5):
        checkpoint(world)
    assert world.ledger.ids() == [4, 5]
    assert feed_of(world).released == 8, "checkpoint 4 ended there, and a rollback to it reads on from there"


def test_a_savepoint_keeps_all_input_after_it(world):
    checkpoint(world)
    savepoint.create(world.ledger, "early", 1, "a person")
    for _ in range(5):
        checkpoint(world)
    assert feed_of(world).released == 2
    back(world, 1)
    checkpoint(world, rows=0)
    savepoint.dispose(world.ledger, "early")
    for _ in range(6):
        checkpoint(world)
    assert feed_of(world).released > 2


def test_while_a_checkpoint_is_forked_its_input_is_kept(world):
    checkpoint(world)
    manifest = world.ledger.decision(1).manifest
    made = stamp(seams.new_id())
    pin = Pin(**made, owner="fork-trial-1", kind="fork", entry=1, manifest=manifest, by="a person", note="")
    world.ledger.create_pin(pin)
    for _ in range(5):
        checkpoint(world)
    assert feed_of(world).released == 2
    world.ledger.delete_pin(pin.owner)
    checkpoint(world)
    assert feed_of(world).released > 2


def test_after_a_rollback_the_input_of_what_no_longer_counts_is_kept(world):
    for _ in range(3):
        checkpoint(world)
    back(world, 2)
    world.coordinator().retire()
    assert feed_of(world).released <= 4
    checkpoint(world)
    assert world.ledger.view().last_completed.plan.sources["in"].start == {"at": 4}


def test_savepoints_of_what_no_longer_counts_keep_their_input(world):
    world.limit(num_retained=9)
    for _ in range(4):
        checkpoint(world)
    first = back(world, 1)
    second = back(world, 2)
    world.publish()
    for id in (3, first, second):
        savepoint.create(world.ledger, f"s{id}", id, "a person")
    world.limit(num_retained=1)
    for _ in range(3):
        checkpoint(world)
    assert set(world.ledger.ids()) >= {1, 2, 3, first, second}, "a rollback keeps the checkpoint that it went back to"
    assert feed_of(world).released <= 2, f"a rollback to {first} reads on from 2, where checkpoint 1 ended"
    back(world, first)
    checkpoint(world)
    assert world.ledger.view().last_completed.plan.sources["in"].start == {"at": 2}


def test_a_source_that_does_not_answer_fails_no_checkpoint_and_hears_it_later(world, caplog):
    feed_of(world).deaf = True
    for _ in range(4):
        checkpoint(world)
    assert (feed_of(world).told, feed_of(world).released) == (None, 0)
    assert "Source 'in' could not be notified that checkpoint 4 is completed: the group's coordinator" in caplog.text
    feed_of(world).deaf = False
    checkpoint(world)
    assert feed_of(world).told[-1] == {"at": 10}
    assert feed_of(world).released == 8


def test_how_far_a_source_is_behind_is_in_its_plan(world):
    world.source.bound = 3
    checkpoint(world, rows=10)
    assert world.ledger.plan(1).sources["in"].lag == Lag(rows=7, seconds=2.5)


# -- lives -------------------------------------------------------------------------------------------


class Life:
    """A pipeline whose days are drawn from a seed."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.draw = root, random.Random(seed)
        self.world = world_of(root / "life", num_retained=self.draw.choice([1, 2, 4]))
        self.copies = 0
        self.story: list[str] = []

    def day(self) -> None:
        deeds = [self.checkpoint] * 5 + [self.dead_checkpoint, self.name_one, self.dispose_of_one, self.retain_more]
        deed = self.draw.choice([*deeds, self.go_back, self.go_back])
        self.story.append(deed.__name__)
        deed()

    def checkpoint(self) -> None:
        checkpoint(self.world, rows=self.draw.choice([0, 1, 5]))

    def dead_checkpoint(self) -> None:
        self.world.feed_more(1)
        self.world.coordinator().abort(self.world.trigger(f"dead {seams.new_id()}"), "JOB_FAILED", "boom")

    def go_back(self) -> None:
        targets = self.targets()
        if targets:
            to = self.draw.choice(targets)
            self.story[-1] += f" to {to}"
            back(self.world, to)
            self.world.publish()

    def name_one(self) -> None:
        targets = self.targets()
        if targets:
            name = f"s{self.draw.randrange(1000)}-{len(self.story)}"
            savepoint.create(self.world.ledger, name, self.draw.choice(targets), "a person")

    def dispose_of_one(self) -> None:
        named = savepoint.savepoints(self.world.ledger)
        if named:
            savepoint.dispose(self.world.ledger, self.draw.choice(named).name)

    def retain_more(self) -> None:
        self.world.limit(num_retained=self.draw.choice([1, 2, 4]))

    def targets(self) -> list[int]:
        """All checkpoints that one may go back to, as `tidegate rollback` says."""
        from tidegate.lifecycle.rollback_preview import examine

        coordinator, possible = self.world.coordinator(), []
        for id in self.world.ledger.ids():
            try:
                preview = examine(coordinator, id, {})
            except TidegateError:
                continue
            if not preview.problems:
                possible.append(id)
        return possible

    def try_each(self) -> None:
        """In a copy of the world, go back to each checkpoint and read on: it must find its input."""
        for to in self.targets():
            twin = self.twin()
            back(twin, to)
            twin.publish()
            start = twin.ledger.view().last_completed.plan.sources["in"].end
            done = checkpoint(twin, rows=1)
            assert twin.ledger.plan(done).sources["in"].start == start

    def twin(self) -> ToyWorld:
        self.copies += 1
        root = self.root / f"copy {self.copies}"
        shutil.copytree(self.world.root, root)
        twin = world_of(root, self.world.limits.num_retained)
        twin.feed.__dict__.update(copy.deepcopy({k: v for k, v in vars(self.world.feed).items() if k != "weather"}))
        twin.tables.tables.update(copy.deepcopy(self.world.tables.tables))
        return twin


@pytest.mark.parametrize("seed", range(8))
def test_in_no_life_is_input_released_that_a_rollback_still_needs(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    before: Any = 0
    for _ in range(30):
        life.day()
        feed = feed_of(life.world)
        if feed.released > before:
            before = feed.released
            life.try_each()
    life.world.limit(num_retained=1)
    for named in savepoint.savepoints(life.world.ledger):
        savepoint.dispose(life.world.ledger, named.name)
    for _ in range(4):
        life.checkpoint()
    assert feed_of(life.world).released > 0, "in the end something is let go of"
