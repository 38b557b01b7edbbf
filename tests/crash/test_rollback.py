"""The crash matrix of rollbacks, R1 to R3: killed or hanging at every seam, on real Spark and Delta.

One world of four files goes on and on. Each time somebody goes back to where two of them had been read, and something
happens; then the next runs come. Whatever it was, in the end every file is in every output once, and all that is named
is there, what is pinned too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from tests.crash.harness import Crew
from tests.crash.stateful import STATES, StatefulWorld, check_outputs, completed_ids, totals_of
from tests.crash.world import CrashWorld, check
from tests.kit.limits import Limits
from tests.kit.sampling import in_turn
from tidegate.delta import Location, missing_files

pytestmark = in_turn(seconds=35)

W = TypeVar("W", bound=CrashWorld)

FILES = 4
UNDECIDED = ["R1.pin.before", "R1.pin.after", "S1.entry.before", "S1.entry.after", "S9.decision.before"]
DECIDED = [("S9.decision.after", 1), ("S10.publish.before", 2), ("S10.publish.after", 1), ("S11.published.before", 1)]


def begun(world: W, crew: Crew) -> W:
    """Four files were read by four checkpoints; of these, three are retained."""
    world.feed(FILES)
    crew.run(world, *(f"run-{number}" for number in range(FILES)))
    return world


def target(world: CrashWorld) -> int:
    """Where two files had been read: a checkpoint, later a rollback to there."""
    return completed_ids(world)[-3]


def go_on(crew: Crew, world: CrashWorld, name: str) -> int:
    """The next runs, until nothing is new; how many files they have read."""
    made = crew.run(world, *(f"{name}-{number}" for number in range(FILES)), impatient=True)
    assert made[-1] is None, "all is read"
    return sum(id is not None for id in made)


def test_killed_at_every_seam_then_the_next_runs_come(tmp_path: Path, crew: Crew) -> None:
    world = begun(CrashWorld(tmp_path, Limits(num_retained=3)), crew)
    for point in UNDECIDED:
        assert crew.start(world, back_to=target(world), fault=(point, "K", 1)).ended() == -9, point
    assert go_on(crew, world, "undecided") == 0, "nothing has changed"
    check(world, FILES)
    for point, nth in DECIDED:
        assert crew.start(world, back_to=target(world), fault=(point, "K", nth)).ended() == -9, point
        assert go_on(crew, world, f"{point}-{nth}") == 2, f"{point}: two files are read again"
        check(world, FILES)
    ledger = world.coordinator().ledger
    assert {pin.rollback for pin in ledger.pins()} <= set(ledger.ids()), "none that is of no use"


def test_hangs_while_others_continue_then_resumes(tmp_path: Path, crew: Crew) -> None:
    """Somebody else goes back, or on, while it hangs. Then it wakes, and changes nothing that is decided."""
    world = begun(CrashWorld(tmp_path, Limits(num_retained=3)), crew)
    zombies = []
    for point in ("R1.pin.after", "S9.decision.before", "S10.publish.before"):
        zombies.append(crew.start(world, back_to=completed_ids(world)[0], fault=(point, "Z", 1)))
        zombies[-1].reached()
    crew.run(world, back_to=completed_ids(world)[0])
    go_on(crew, world, "meanwhile")
    for zombie in zombies:
        zombie.resume()
    go_on(crew, world, "after")
    world.coordinator().retire()  # takes what a zombie has written under an id that was retired meanwhile
    check(world, FILES)


def test_answers_are_lost_and_it_continues(tmp_path: Path, crew: Crew) -> None:
    world = begun(CrashWorld(tmp_path, Limits(num_retained=3)), crew)
    for record in ("pins/", "plan.json", "decision.json"):
        (id,) = crew.run(world, back_to=completed_ids(world)[0], fault=(record, "A", 1))
        assert id == completed_ids(world)[-1]
    assert go_on(crew, world, "then") == 2
    check(world, FILES)


def test_states_go_back_with_the_outputs(tmp_path: Path, crew: Crew) -> None:
    """Killed at the first of two states, behind three outputs; and older checkpoints are forgotten behind it."""
    world = begun(StatefulWorld(tmp_path, Limits(num_retained=3)), crew)
    assert crew.start(world, back_to=target(world), fault=("S10.publish.after", "K", 4)).ended() == -9
    assert go_on(crew, world, "again") == 2
    marks = check_outputs(world, FILES)
    ledger = world.coordinator().ledger
    completed = completed_ids(world)
    assert completed[0] > 1, "some are forgotten"
    for name in STATES:
        states = [world.state(name, id) for id in completed if ledger.ack(id, "main")]
        files = [each.file for state in states for each in state.files]
        assert missing_files(Location(str(world.state_root(name))), files) == [], "I6: of all that are retained"
    totals = {row["key"]: (row["n"], row["marks"]) for row in world.state_rows("totals", completed[-1])}
    assert totals == totals_of(FILES, marks), "I2, I7: the state is as if nothing had ever been rolled back"
