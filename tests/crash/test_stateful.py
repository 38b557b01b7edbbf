"""The crash matrix with state: whatever happens to an attempt, what is remembered is that of the attempt that counts.

One world goes on and on, and is hit at one seam after another: while state is written or merged, around the ack, and
while its tables are published. After each, outputs and the state of every retained checkpoint equal the reference.
"""

from __future__ import annotations

from pathlib import Path

from tests.crash.harness import Crew
from tests.crash.stateful import STATES, StatefulWorld, check, completed_ids
from tests.kit.limits import Limits
from tests.kit.sampling import in_turn

pytestmark = in_turn(seconds=50)

# The first state is written and merged by workers in one go; the other is the second, and its merge is the third.
# Three sinks are published before the two states.
KILLED = [
    ("S4.state.after", 1),
    ("S4.state.before", 3),
    ("S4.state.after", 3),
    ("S6.ack.before", 1),
    ("S6.ack.after", 1),
    ("S10.publish.after", 4),
]


def merged(world: StatefulWorld) -> list[str]:
    """The states of which the last checkpoint has merged runs: some that the one before it names are gone."""
    before, last = completed_ids(world)[-2:]
    return [name for name in STATES if not set(paths(world, name, before)) <= set(paths(world, name, last))]


def paths(world: StatefulWorld, name: str, id: int) -> list[str]:
    return [each.file.path for each in world.state(name, id).files]


def begun(tmp_path: Path, crew: Crew) -> StatefulWorld:
    """Two checkpoints went well: from the third on, runs are merged in each."""
    world = StatefulWorld(tmp_path, Limits(num_retained=3))
    world.feed(2)
    crew.run(world, "run-1", "run-2")
    return world


def test_killed_at_every_seam_then_retried(tmp_path: Path, crew: Crew) -> None:
    world = begun(tmp_path, crew)
    for files, (point, nth) in enumerate(KILLED, start=3):
        world.feed(files)
        assert crew.start(world, f"run-{files}", fault=(point, "K", nth)).ended() == -9, point
        crew.run(world, f"run-{files}")
        check(world, files)
        assert merged(world) == list(STATES), "in the middle of it"
    first = completed_ids(world)[0]
    assert first > 3, "old checkpoints are forgotten, and what is retained has been read above"
    for name in STATES:
        named = {path for id in completed_ids(world) for path in paths(world, name, id)}
        root = world.state_root(name)
        there = {path.relative_to(root).as_posix() for path in root.rglob("*.parquet")}
        assert all(int(path.split("/")[2]) >= first for path in there - named), "lost tries go with their checkpoint"


def test_hangs_while_others_continue_then_resumes(tmp_path: Path, crew: Crew) -> None:
    """With its state written and merged, it finds an ack; with a state's next commit in hand, it finds it made."""
    world = begun(tmp_path, crew)
    world.feed(3)
    zombie = crew.start(world, "run-3", fault=("S4.state.after", "Z", 3))
    zombie.reached()
    crew.run(world, "run-3")
    zombie.resume()
    check(world, 3)
    world.feed(4)
    zombie = crew.start(world, "run-4", fault=("S10.publish.before", "Z", 4))
    zombie.reached()
    world.feed(5)
    crew.run(world, "other-4", "other-5", impatient=True)
    zombie.resume()
    check(world, 5)
