"""Four jobs on real Spark and Delta, killed for real: one hangs, a checkpoint goes past it, and that is killed too.

The matrix at every point is `make matrix`, without Spark (four_jobs.py). Here is that it holds with Spark's rows, and
with an operator that remembers.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.crash.harness import Crew
from tests.crash.overtaking import FourWorld, at_once, check
from tests.kit.sampling import in_turn

pytestmark = in_turn(seconds=48)

ACK_OF_PAYING = 3
"""Of a run's acks."""

KILLS = [
    ("S6.overtaken.after", 1, True),
    ("S8.manifest.after", 2, False),
    ("S10.publish.before", 1, True),
]
"""Where the run is killed that goes past, and whether the job that it went past continues afterwards, or is killed."""


@pytest.fixture(scope="session")
def begun_four(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> Path:
    """One checkpoint went well."""
    world = FourWorld(tmp_path_factory.mktemp("four"), at_once())
    world.feed(1)
    crew.run(world, "one")
    return world.root


@pytest.mark.parametrize(("point", "nth", "goes_on"), KILLS)
def test_killed_while_it_goes_past_a_job_that_hangs(
    tmp_path: Path, crew: Crew, begun_four: Path, point: str, nth: int, goes_on: bool
) -> None:
    shutil.copytree(begun_four, tmp_path, dirs_exist_ok=True)
    world = FourWorld(tmp_path, at_once())
    world.feed(3)
    busy = crew.start(world, "two", fault=("S6.ack.before", "Z", ACK_OF_PAYING))
    busy.reached()
    assert crew.start(world, "three", fault=(point, "K", nth)).ended() == -9
    assert crew.run(world, "three") == [3]
    assert len(world.table("orders")) == 12, "nobody has waited"
    assert {row["id"] for row in world.table("paid")} == {1}, "what it was busy with is not there yet"
    if goes_on:
        assert busy.resume() == 0
    else:
        assert busy.kill() == -9
    world.limits = at_once(unaligned=False)
    world.feed(4)
    crew.run(world, "last", "last-1", impatient=True)
    check(world, 4)
