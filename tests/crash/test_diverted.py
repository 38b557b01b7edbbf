"""A target refuses one row of a decided checkpoint, and whoever diverts it is killed at any step, or overtaken.

The story of each: two checkpoints went well. The third is decided, and the table refuses an id that is taken. A person
diverts the row, something happens meanwhile, and they do it again. Afterwards each row is in one place.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.crash.diverted import DivertedWorld, check
from tests.crash.harness import Crew
from tests.kit.sampling import in_turn

pytestmark = in_turn(seconds=40)

POINTS = [
    ("S1.entry.after", 1),
    ("S6.ack.before", 1),
    ("S6.ack.after", 1),
    ("S9.decision.before", 1),
    ("S9.decision.after", 1),
    ("S10.publish.after", 1),
    ("S10.divert.before", 1),
    ("S10.divert.after", 1),
    ("S11.published.before", 1),
]


@pytest.fixture(scope="session")
def refused(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> Path:
    """Two checkpoints went well, and the table refuses a row of the third."""
    world = DivertedWorld(tmp_path_factory.mktemp("refused"))
    world.feed(2)
    crew.run(world, "one", "two")
    world.take_an_id()
    world.feed(3)
    crew.run(world, "three")
    assert len(world.in_database()) == 12, "nothing of it is there"
    return world.root


@pytest.fixture
def diverting(tmp_path: Path, refused: Path) -> DivertedWorld:
    shutil.copytree(refused, tmp_path, dirs_exist_ok=True)
    return DivertedWorld(tmp_path)


@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_a_person_who_is_killed_while_they_divert_a_row_does_it_again(
    crew: Crew, diverting: DivertedWorld, point: str, nth: int
) -> None:
    killed = crew.start(diverting, "divert", fault=(point, "K", nth))
    assert killed.ended() == -9, killed.log()
    crew.run(diverting, "divert-again", "four", impatient=True)
    check(diverting, 3, diverted=True)
    diverting.feed(4)
    crew.run(diverting, "five", "six", impatient=True)
    check(diverting, 4, diverted=True)


def test_a_publisher_that_wakes_up_after_a_divert_publishes_nothing_of_its_own(
    crew: Crew, diverting: DivertedWorld
) -> None:
    paused = crew.start(diverting, "four", fault=("S10.publish.before", "Z", 1))
    paused.reached()  # it is about to publish all rows
    crew.run(diverting, "divert", impatient=True)
    check(diverting, 3, diverted=True)
    diverting.give_it_back()
    assert paused.resume() == 0, paused.log()
    check(diverting, 3, diverted=True)


def test_a_divert_that_the_next_run_ends_diverts_nothing(crew: Crew, diverting: DivertedWorld) -> None:
    paused = crew.start(diverting, "divert", fault=("S9.decision.before", "Z", 1))
    paused.reached()
    diverting.give_it_back()
    diverting.feed(4)
    crew.run(diverting, "four", impatient=True)
    assert paused.resume() != 0, "it is told that it was aborted"
    crew.run(diverting, "five", impatient=True)
    check(diverting, 4, diverted=False)


def test_whoever_publishes_next_publishes_what_the_divert_leaves(crew: Crew, diverting: DivertedWorld) -> None:
    paused = crew.start(diverting, "divert", fault=("S9.decision.after", "Z", 1))
    paused.reached()  # it is decided, and on no table yet
    publisher = crew.start(diverting, "four", fault=("S10.publish.after", "Z", 1))
    publisher.reached()
    diverting.give_it_back()
    assert paused.resume() == 0, paused.log()
    assert publisher.resume() == 0, publisher.log()
    diverting.feed(4)
    crew.run(diverting, "five", impatient=True)
    check(diverting, 4, diverted=True)
