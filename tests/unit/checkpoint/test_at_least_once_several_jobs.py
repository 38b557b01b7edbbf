"""At least once, in several jobs: a job takes all that is there. Killed anywhere, nothing is missing, much is twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from tests.kit import slow_jobs
from tests.kit.limits import AT_LEAST_ONCE
from tests.kit.sampling import some_of
from tests.kit.toy_world import ToyWorld, quietly, toy_limits
from tests.kit.toys import ToySink, ToySource
from tidegate import Pipeline, seams
from tidegate.connectors.channel import Channel
from tidegate.coordinator import Coordinator, Triggered
from tidegate.errors import Corrupt, Unavailable
from tidegate.execution.job.run_job import Attempt, run_job
from tidegate.records.place import Place
from tidegate.records.records import Ack

JOBS = ("main", "left", "right", "last")
TABLES = {"main": "a", "left": "b", "right": "c", "last": "d"}


@pytest.fixture(autouse=True)
def _toy_channels() -> Iterator[None]:
    with mock.patch.object(Channel, "send", slow_jobs.send), mock.patch.object(Channel, "read_all", slow_jobs.take_all):
        yield


class Several(ToyWorld):
    """Four jobs: what the first one reads goes to three others, each with a table."""

    def coordinator(self) -> Coordinator:
        pipeline = Pipeline(self.name, mode="at_least_once")
        rows = pipeline.source("in", ToySource(self.feed, 1))
        for job, table in TABLES.items():
            (rows if job == "main" else rows.job(job)).sink(table, ToySink(table, self.tables))
        return Coordinator(pipeline.graph(), self.ledger, self.limits, Place("/"))

    def do(self, id: int, *jobs: str) -> list[Ack]:
        return [run_job(self.coordinator(), id, job, None) for job in jobs]

    def missing(self) -> dict[str, set[int]]:
        """By table, rows that completed checkpoints have read and that it does not show."""
        last = self.ledger.view().last_completed
        upto = last.plan.sources["in"].end["at"] if last is not None else 0  # type: ignore[index]
        return {table: left for table in TABLES.values() if (left := {*range(1, upto + 1)} - {*self.offsets(table)})}

    def twice(self, table: str) -> list[int]:
        return [offset for offset, times in Counter(self.offsets(table)).items() if times > 1]


@pytest.fixture
def world(tmp_path: Path) -> Several:
    return Several(tmp_path, toy_limits(recorded=AT_LEAST_ONCE, max_concurrent_checkpoints=3))


def three(world: Several) -> list[int]:
    """Three checkpoints at once, of which the first job is done in all."""
    world.feed_more(3)
    ids = [world.trigger(f"run {number}") for number in range(3)]
    for id in ids:
        world.do(id, "main")
    return ids


def test_a_job_takes_what_is_there_and_not_again_when_its_turn_comes(world: Several) -> None:
    one, two, tri = three(world)
    (ack,) = world.do(one, "left")
    assert world.offsets("b") == [1, 2, 3], "of all three"
    assert [handle.entry for handle in ack.inputs["main"]] == [1, 2, 3]
    assert [handle.entry for handle in ack.ahead] == [2, 3]
    (ack,) = world.do(two, "left")
    assert (ack.inputs["main"], [handle.entry for handle in ack.ahead]) == ([], [3])
    (ack,) = world.do(tri, "left")
    assert (ack.inputs["main"], ack.ahead) == ([], [])
    assert world.offsets("b") == [1, 2, 3]
    for id in (one, two, tri):
        world.do(id, "right", "last")
        assert world.coordinator().complete(id).state == "completed"
    assert world.missing() == {}
    assert [world.twice(table) for table in "abcd"] == [[], [], [], []]


def test_what_comes_while_it_works_is_for_the_next(world: Several) -> None:
    world.feed_more(2)
    one = world.trigger("one")
    world.do(one, "main", "left")
    two = world.trigger("two")
    world.do(two, "main", "left")
    assert world.offsets("b") == [1, 2]


def test_what_was_taken_ahead_and_then_aborted_comes_again(world: Several) -> None:
    one, two, _ = three(world)
    world.do(one, "left", "right", "last")
    assert world.coordinator().complete(one).state == "completed"
    world.coordinator().abort(two, "TEST")
    again = world.trigger("again")
    world.do(again, *JOBS)
    world.coordinator().complete(again)
    assert world.missing() == {}
    assert world.twice("b") == [2], "the third was read again by nobody yet"


def test_taken_ahead_of_one_that_is_ended_meanwhile_it_is_tried_again(world: Several) -> None:
    """Its channels are gone: that is no damage."""
    one, two, _ = three(world)
    attempt = Attempt(world.coordinator(), one, "left", lambda _: None)
    attempt.ask()

    def ended(*_: object) -> object:
        world.coordinator().abort(two, "TEST")
        raise Corrupt("the channel has lost a file", reason="CHANNEL_DAMAGED")

    told = pytest.raises(Unavailable, match=f"checkpoint {two}")
    with mock.patch.object(Channel, "read_all", ended), told, attempt.fenced_if_ended():
        attempt.read(None)  # type: ignore[arg-type]
    (ack,) = world.do(one, "left")
    assert ack.ahead == []


def test_a_job_begins_when_all_that_it_takes_from_has_come_to_the_checkpoint(world: Several) -> None:
    world.feed_more(1)
    one = world.trigger("one")
    assert getattr(quietly(lambda: world.do(one, "left")), "reason", "") == "UPSTREAM_MISSING"


# -- killed anywhere ---------------------------------------------------------------------------------------


@dataclass
class Passed:
    """Notes every passing of a fault point."""

    seen: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, point: str) -> None:
        self.seen.append((point, 1 + sum(each == point for each, _ in self.seen)))


@dataclass
class Killed:
    """Ends the story at one passing."""

    point: str
    nth: int
    passed: int = 0

    def __call__(self, point: str) -> None:
        self.passed += point == self.point
        if point == self.point and self.passed == self.nth:
            raise Dead


class Dead(BaseException):
    """Nothing catches it, so nothing is cleaned up."""


def story(world: Several, at_once: int) -> None:
    """So many checkpoints at once, jobs in an order in which they take ahead."""
    ids = [world.trigger(f"run {number}") for number in range(at_once)]
    for job in JOBS:
        for id in ids:
            world.do(id, job)
    for id in ids:
        world.coordinator().complete(id)
    world.coordinator().publish()
    world.coordinator().retire()


def go_on(world: Several, first: str) -> None:
    """Whoever comes next, until all is read."""
    for run in [first, *(f"later {number}" for number in range(6))]:
        planned = world.coordinator().trigger(run, give_up=lambda plan: "RUN_GONE", only_if_new=True)
        if isinstance(planned, Triggered):
            world.do(planned.plan.id, *JOBS)
            world.coordinator().complete(planned.plan.id)
    last = world.ledger.view().last_completed
    assert last is not None
    assert last.plan.sources["in"].end == {"at": world.feed.available}, "all is read"


@pytest.mark.slow
@pytest.mark.parametrize(("at_once", "who"), some_of([(3, "another"), (1, "another"), (1, "run 0"), (3, "run 0")], 2))
def test_killed_at_every_step_nothing_is_missing_and_much_is_there_twice(
    tmp_path: Path, at_once: int, who: str
) -> None:
    passed = Passed()
    with seams.installed(seams.Seams(fault=passed)):
        story(fed(tmp_path / "whole", at_once), at_once)
    doubled = 0
    points = [each for each in passed.seen if each[0] != "S3.inputs.after" and not each[0].startswith("S13")]
    points = points[::at_once]  # before and after take turns, for three is odd
    for number, (point, nth) in enumerate(points):
        world = fed(tmp_path / str(number), at_once)
        with seams.installed(seams.Seams(fault=Killed(point, nth))), pytest.raises(Dead):
            story(world, at_once)
        go_on(world, who)
        assert world.missing() == {}, f"{point} {nth}"
        doubled += any(world.twice(table) for table in TABLES.values())
    assert len(points) > 20
    assert doubled > len(points) / 4, "else this would show nothing"


def fed(root: Path, at_once: int) -> Several:
    world = Several(root, toy_limits(recorded=AT_LEAST_ONCE, max_concurrent_checkpoints=at_once, num_retained=2))
    world.feed_more(at_once + 1)
    return world
