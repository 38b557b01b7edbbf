"""The crash matrix at least once: rows are in the tables before the decision; whatever is killed, none is missing.

One world goes on and on. In each checkpoint its process is killed at one seam, and a retry of its run, or another run,
does the work again.
"""

from __future__ import annotations

from pathlib import Path

from tests.crash.at_least_once import OnceWorld, check
from tests.crash.harness import Crew
from tests.kit.limits import Limits
from tests.kit.sampling import in_turn

pytestmark = in_turn(seconds=35)

# The first job writes to the log, the second one to the totals.
KILLED = [
    (("S5.through.after", 1), "retried", 1),
    (("S5.through.before", 2), "another", 1),
    (("S5.through.after", 2), "retried", 0),
    (("S6.ack.before", 2), "another", 1),
]
"""Where, who continues, and how many files' rows come to the log once more. (All other points: test_four_jobs.py.)"""


def test_killed_at_every_seam_nothing_is_missing(tmp_path: Path, crew: Crew) -> None:
    world = OnceWorld(tmp_path, Limits(num_retained=2))
    world.feed(1)
    crew.run(world, "run-1")
    for files, ((point, nth), who, more) in enumerate(KILLED, start=2):
        before = len(world.twice())
        world.feed(files)
        assert crew.start(world, f"run-{files}", fault=(point, "K", nth)).ended() == -9, point
        crew.run(world, f"run-{files}" if who == "retried" else f"other-{files}", impatient=True)
        check(world, files)
        assert len(world.twice()) - before == 6 * more, f"{point} {nth}"


def test_a_zombie_finds_that_others_have_gone_on(tmp_path: Path, crew: Crew) -> None:
    """It hangs with the totals' next commit in hand. Others give it up and continue; then its older totals stay out."""
    world = OnceWorld(tmp_path)
    world.feed(1)
    crew.run(world, "run-1")
    world.feed(2)
    zombie = crew.start(world, "run-2", fault=("S5.through.before", "Z", 2))
    zombie.reached()
    world.feed(3)
    crew.run(world, "other-2", "other-3", impatient=True)
    zombie.resume()
    check(world, 3)
    assert len(world.twice()) == 6, "what it had written to the log stays"
