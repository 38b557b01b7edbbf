"""The crash matrix of rollbacks, R1 to R3: killed or hanging at every seam, with state, on real Spark and Delta.

One world of four files goes on and on. Each time somebody goes back to where two of them had been read, and something
happens; then the next runs come. Whatever it was, in the end every file is in every output once, state and outputs are
of the same attempts, and what is pinned is there as long as something rests on it.
"""

from __future__ import annotations

from pathlib import Path

from tests.crash.harness import Crew
from tests.crash.stateful import STATES, StatefulWorld, check_outputs, completed_ids, totals_of
from tests.crash.world import Limits
from tidegate.tables import Location, missing_files

FILES = 4
UNDECIDED = [
    ("R1.pin.before", 1),
    ("R1.pin.after", 1),
    ("S1.entry.before", 1),
    ("S1.entry.after", 1),
    ("S9.decision.before", 1),
]
DECIDED = [("S9.decision.after", 1), ("S10.publish.before", 2), ("S10.publish.after", 4), ("S11.published.before", 1)]
"""Three outputs, then two states: the second commit is an output's, the fourth a state's."""


def begun(tmp_path: Path, crew: Crew) -> StatefulWorld:
    """Four files were read by four checkpoints; of these, three are retained."""
    world = StatefulWorld(tmp_path, Limits(num_retained=3))
    world.feed(FILES)
    crew.run(world, *(f"run-{number}" for number in range(FILES)))
    check_outputs(world, FILES)
    return world


def target(world: StatefulWorld) -> int:
    """Where two files had been read: a checkpoint, later a rollback to there."""
    return completed_ids(world)[-3]


def go_on(crew: Crew, world: StatefulWorld, name: str) -> list[int | None]:
    """The next runs, until nothing is new; then all must be right."""
    made = crew.run(world, *(f"{name}-{number}" for number in range(FILES)), impatient=True)
    assert made[-1] is None, "all is read"
    marks = check_outputs(world, FILES)
    for name in STATES:
        states = [world.state(name, id) for id in completed_ids(world) if world.coordinator().ledger.ack(id, "main")]
        files = [each.file for state in states for each in state.files]
        assert missing_files(Location(str(world.state_root(name))), files) == [], "I6: of all that are retained"
    last = completed_ids(world)[-1]
    totals = {row["key"]: (row["n"], row["marks"]) for row in world.state_rows("totals", last)}
    assert totals == totals_of(FILES, marks), "I2, I7: the state is as if nothing had ever been rolled back"
    return [id for id in made if id is not None]


def test_killed_at_every_seam_then_the_next_runs_come(tmp_path: Path, crew: Crew) -> None:
    world = begun(tmp_path, crew)
    for point, nth in UNDECIDED:
        assert crew.start(world, back_to=target(world), fault=(point, "K", nth)).ended() == -9, point
        assert go_on(crew, world, f"{point}-{nth}") == [], f"{point}: nothing has changed"
    for point, nth in DECIDED:
        assert crew.start(world, back_to=target(world), fault=(point, "K", nth)).ended() == -9, point
        assert len(go_on(crew, world, f"{point}-{nth}")) == 2, f"{point}: two files are read again"
    ledger = world.coordinator().ledger
    assert {pin.restart for pin in ledger.pins()} <= set(ledger.ids()), "none that is of no use"


def test_hangs_while_others_go_on_then_resumes(tmp_path: Path, crew: Crew) -> None:
    """Somebody else rolls back, or reads what is new, while it hangs: it changes nothing that is decided."""
    world = begun(tmp_path, crew)
    for number, point in enumerate(["R1.pin.after", "S1.entry.after", "S9.decision.before", "S10.publish.before"]):
        zombie = crew.start(world, back_to=target(world), fault=(point, "Z", 1))
        zombie.reached()
        if number % 2:
            crew.run(world, back_to=target(world))
        go_on(crew, world, f"meanwhile-{number}")
        zombie.resume()
        go_on(crew, world, f"after-{number}")


def test_a_rollback_whose_answers_are_lost_goes_on(tmp_path: Path, crew: Crew) -> None:
    world = begun(tmp_path, crew)
    for number, record in enumerate(["pins/", "plan.json", "decision.json"]):
        (id,) = crew.run(world, back_to=target(world), fault=(record, "A", 1))
        assert id is not None
        assert len(go_on(crew, world, f"answer-{number}")) == 2
