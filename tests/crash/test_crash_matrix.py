"""The crash matrix of docs/reliability.md: at every step, killed, failed, answer lost, or overtaken while it hangs.

The story of each: two checkpoints go well. In the third, something happens at one point. Then the next runs come,
as they would from a scheduler, and read everything that has landed. Afterwards both tables must equal a pure-Python
reference, every checkpoint must be decided, and none may be on a table twice or out of order.

A process is killed at each point every time, and hangs there in one way or the other; the rest takes turns (sampling).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import Crew, finish
from tests.crash.world import CrashWorld, check
from tests.kit.limits import Limits
from tests.kit.sampling import in_turn, turn_of

pytestmark = in_turn(seconds=160)

BEFORE_DECISION = [
    "S1.entry.before",
    "S1.entry.after",
    "S2.run.before",
    "S2.run.after",
    "S3.inputs.after",
    "S4.stage.before",
    "S4.stage.after",
    "S6.ack.before",
    "S6.ack.after",
    "S8.manifest.before",
    "S8.manifest.after",
    "S9.decision.before",
]
AFTER_DECISION = [
    "S9.decision.after",
    "S10.publish.before",
    "S10.publish.after",
    "S11.published.before",
    "S11.published.after",
]
HISTORY = ["H1.history.before", "H1.history.after"]
RETENTION = ["S12.retire.before", "S12.retire.after", "S13.delete.before", "S13.delete.after"]
ABORT = ["A1.abort.before", "A1.abort.after"]
LOST_ANSWERS = ["plan.json", "runs/", "acks/", "manifest-", "decision.json", "published.json"]

# A job stages, and a publisher publishes, one table after the other: the second passing is the second table.
PASSINGS = {"S4.stage.before": 2, "S4.stage.after": 2, "S10.publish.before": 2, "S10.publish.after": 2}
POINTS = [(point, nth) for point in BEFORE_DECISION + AFTER_DECISION for nth in range(1, PASSINGS.get(point, 1) + 1)]


@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_killed_then_the_same_run_is_retried(crew: Crew, world: CrashWorld, point: str, nth: int) -> None:
    """Airflow finds the task dead and starts it again under the same run id: it continues where it was."""
    assert crew.start(world, "three", fault=(point, "K", nth)).ended() == -9
    (id,) = crew.run(world, "three")
    assert id == 3 or point in AFTER_DECISION, "no second id for one run"
    finish(crew, world, 4)


@pytest.mark.parametrize(("point", "nth"), turn_of(POINTS, 36))
def test_killed_then_another_run_takes_over(crew: Crew, world: CrashWorld, point: str, nth: int) -> None:
    """Nobody retries. The next run finds what is left, ends or publishes it, and continues."""
    assert crew.start(world, "three", fault=(point, "K", nth)).ended() == -9
    finish(crew, world, 4)


@pytest.mark.parametrize(("point", "nth"), turn_of(POINTS, 36))
def test_fails_with_an_error_then_is_retried(crew: Crew, world: CrashWorld, point: str, nth: int) -> None:
    """The step raises: what it leaves behind is found by the retry."""
    crew.start(world, "three", fault=(point, "E", nth)).ended()
    crew.run(world, "three")
    finish(crew, world, 4)


@pytest.mark.parametrize("record", LOST_ANSWERS)
def test_a_record_landed_but_its_answer_was_lost(crew: Crew, world: CrashWorld, record: str) -> None:
    """The store says 'error' after the create took effect: it is read back, and the run continues unharmed."""
    crew.run(world, "three", fault=(record, "A", 1))
    finish(crew, world, 4)


@pytest.mark.parametrize(("point", "nth"), turn_of(POINTS, 36))
def test_hangs_while_the_retry_does_its_work_then_resumes(crew: Crew, world: CrashWorld, point: str, nth: int) -> None:
    """The worker is taken for dead but lives: the same run is started again and finishes. Then the zombie continues."""
    zombie = crew.start(world, "three", fault=(point, "Z", nth))
    zombie.reached()
    crew.run(world, "three", "four")
    zombie.resume()
    finish(crew, world, 4)


@pytest.mark.parametrize(("point", "nth"), turn_of(POINTS, 36))
def test_hangs_while_others_take_over_then_resumes(crew: Crew, world: CrashWorld, point: str, nth: int) -> None:
    """Another run gives the hanging one up, repeats its work and continues; only then the zombie wakes."""
    zombie = crew.start(world, "three", fault=(point, "Z", nth))
    zombie.reached()
    finish(crew, world, 4)
    zombie.resume()
    check(world, 4) if point != "S1.entry.before" else finish(crew, world, 4, first="after-zombie")


@pytest.mark.parametrize("mode", ["K", "E", "Z"])
@pytest.mark.parametrize("point", ABORT)
def test_aborting_a_dead_checkpoint_is_itself_interrupted(crew: Crew, world: CrashWorld, point: str, mode: str) -> None:
    crew.start(world, "three", fault=("S6.ack.after", "K", 1)).ended()
    cleaner = crew.start(world, "four", fault=(point, mode, 1), impatient=True)
    if mode == "Z":
        cleaner.reached()
        finish(crew, world, 4)
        cleaner.resume()
    else:
        cleaner.ended()
    finish(crew, world, 5)


@pytest.mark.parametrize("mode", ["K", "E", "Z"])
@pytest.mark.parametrize("point", HISTORY)
def test_writing_the_history_is_interrupted(crew: Crew, world: CrashWorld, point: str, mode: str) -> None:
    """Whoever comes next writes what is missing; nobody waits for it, and each checkpoint is in it once."""
    writer = crew.start(world, "three", fault=(point, mode, 1))
    if mode == "Z":
        writer.reached()
        finish(crew, world, 4)
        assert writer.resume() == 0
        check(world, 4)
    else:
        assert writer.ended() == (-9 if mode == "K" else 0), "a history that cannot be written is no failure"
        finish(crew, world, 4)


@pytest.mark.parametrize("mode", ["K", "E", "Z"])
@pytest.mark.parametrize("point", RETENTION)
def test_retention_is_interrupted(tmp_path: Path, crew: Crew, point: str, mode: str) -> None:
    """With one checkpoint retained, forgetting breaks off anywhere: what is kept still works, the rest goes later."""
    world = CrashWorld(tmp_path, Limits(num_retained=1))
    world.feed(2)
    crew.run(world, "one")
    forgetful = crew.start(world, "two", fault=(point, mode, 1))
    if mode == "Z":
        forgetful.reached()
        finish(crew, world, 4)
        forgetful.resume()
    else:
        forgetful.ended()
    finish(crew, world, 5, first="later")  # runs of their own: what the others did is forgotten by now
    assert len(world.coordinator().ledger.ids()) == 1, "everything else is forgotten in the end"
