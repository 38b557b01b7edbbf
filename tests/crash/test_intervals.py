"""The crash matrix for interval pipelines: an hour is being made again when something happens at one point.

The story of each: three hours went well, and somebody else has rows in two tables. Hour 1 changes and is made again;
something happens. Then the run is retried, or others come. Afterwards hour 1 has its new rows, the other hours have
theirs, and nobody else's row has moved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.harness import Crew
from tests.crash.intervals import IntervalWorld, check, copy_of
from tests.kit.limits import Limits
from tests.kit.sampling import in_turn, some_of

pytestmark = in_turn(seconds=35)

POINTS = [
    ("S1.entry.after", 1),
    ("S4.stage.after", 1),
    ("S6.ack.after", 1),
    ("S9.decision.before", 1),
    ("S9.decision.after", 1),
    ("S10.publish.before", 1),
    ("S10.publish.before", 2),
    ("S10.publish.after", 1),
    ("S10.publish.after", 2),
    ("S10.publish.before", 3),
    ("S10.publish.after", 3),
    ("S11.interval.before", 1),
    ("S11.interval.after", 1),
    ("S11.published.before", 1),
]
AGAIN = {0: 1, 1: 2, 2: 1}


@pytest.fixture(scope="session")
def hours(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> Path:
    """Hours 0 to 2 are made, and somebody else has added rows."""
    world = IntervalWorld(tmp_path_factory.mktemp("hours"))
    for hour in range(3):
        world.write(hour)
    crew.run(world, "first@0", "first@2", "first@1")
    world.add_foreign_rows()
    check(world, {0: 1, 1: 1, 2: 1})
    return world.root


@pytest.fixture
def world(tmp_path: Path, hours: Path) -> IntervalWorld:
    """The same, and hour 1 has changed since."""
    world = copy_of(hours, tmp_path)
    world.write(1, edition=2)
    return world


@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_killed_then_the_same_run_is_retried(crew: Crew, world: IntervalWorld, point: str, nth: int) -> None:
    assert crew.start(world, "again@1!", fault=(point, "K", nth)).ended() == -9
    crew.run(world, "again@1!")
    check(world, AGAIN)


@pytest.mark.parametrize(("point", "nth"), some_of(POINTS, 3))
def test_killed_then_other_runs_come(crew: Crew, world: IntervalWorld, point: str, nth: int) -> None:
    assert crew.start(world, "again@1!", fault=(point, "K", nth)).ended() == -9
    world.write(3)
    crew.run(world, "next@3", "other@1!", impatient=True)
    check(world, AGAIN | {3: 1})


@pytest.mark.parametrize(("point", "nth"), some_of(POINTS, 3, 1))
def test_hangs_while_others_make_the_hour_again_then_resumes(
    crew: Crew, world: IntervalWorld, point: str, nth: int
) -> None:
    """The zombie's checkpoint has the lower id: whatever it still does, the higher one's rows stay."""
    zombie = crew.start(world, "again@1!", fault=(point, "Z", nth))
    zombie.reached()
    world.write(1, edition=3)
    crew.run(world, "other@1!", impatient=True)
    zombie.resume()
    check(world, AGAIN | {1: 3})


@pytest.mark.parametrize("mode", ["K", "Z"])
@pytest.mark.parametrize("point", ["S12.retire.after", "S13.delete.before", "S13.delete.after"])
def test_an_hour_is_found_again_after_its_checkpoint_was_forgotten(
    crew: Crew, world: IntervalWorld, point: str, mode: str
) -> None:
    world.limits = replace(Limits(), num_retained=1)
    forgetful = crew.start(world, "again@1!", fault=(point, mode, 1))
    if mode == "Z":
        forgetful.reached()
    else:
        forgetful.ended()
    world.write(0, edition=2)
    crew.run(world, "again@0!", impatient=True)
    if mode == "Z":
        forgetful.resume()
    world.write(2, edition=3)
    crew.run(world, "again@2!")
    assert len(world.coordinator().ledger.ids()) == 1
    check(world, {0: 2, 1: 2, 2: 3})
