"""The crash matrix for gates: a verdict is never beside its ack, and bad rows count with the good ones or not at all.

The story of each: two checkpoints went well, with bad rows in both. In the third something happens while it judges,
sets rows aside, says so, or publishes. Then it is retried. Afterwards every row is in exactly one place.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.gated import GatedWorld, ask, check
from tests.crash.harness import Crew
from tests.kit.faults import Fault
from tests.kit.sampling import in_turn
from tidegate import seams
from tidegate.checkpoint.approvals import answer

pytestmark = in_turn(seconds=35)

# All rows are staged for the table, then judged, then the bad ones for the quarantine, which is published first.
POINTS = [
    ("S5.gate.before", 1),
    ("S4.stage.before", 2),
    ("S5.gate.after", 1),
    ("S4.stage.after", 1),
    ("S6.ack.before", 1),
    ("S6.ack.after", 1),
    ("S10.publish.before", 2),
]
KEPT_POINTS = [("S5.gate.after", 1), ("S4.stage.after", 1), ("S6.ack.before", 1)]
"""Where rows are judged first, the quarantine is staged before the table."""
OVERLAPS = [("S5.gate.after", 1), ("S6.ack.before", 1)]
ABORTS = ["S5.gate.after", "S6.ack.after", "A1.abort.before", "A1.abort.after"]


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> Path:
    """Two checkpoints went well, each with bad rows."""
    world = GatedWorld(tmp_path_factory.mktemp("judged"))
    world.judge_by("warning")
    world.feed(2)
    crew.run(world, "one", "two")
    check(world, 2)
    acked = world.coordinator().ledger.ack(2, "main")
    assert acked is not None
    assert acked.ack.memory == {"gate.checked": {"draft": []}}, "so what follows is staged as drafts"
    return world.root


@pytest.fixture
def world(tmp_path: Path, judged: Path) -> GatedWorld:
    """The same, and there is more to read."""
    shutil.copytree(judged, tmp_path, dirs_exist_ok=True)
    world = GatedWorld(tmp_path)
    world.feed(3)
    return world


@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_killed_with_bad_rows_then_retried(crew: Crew, world: GatedWorld, point: str, nth: int) -> None:
    assert crew.start(world, "three", fault=(point, "K", nth)).ended() == -9
    crew.run(world, "three", "four", impatient=True)
    check(world, 3)


@pytest.mark.parametrize(("point", "nth"), POINTS[2:5])
def test_killed_in_the_first_checkpoint_whose_files_are_no_drafts(
    crew: Crew, tmp_path: Path, point: str, nth: int
) -> None:
    world = GatedWorld(tmp_path)
    world.judge_by("warning")
    world.feed(1)
    assert crew.start(world, "one", fault=(point, "K", nth)).ended() == -9
    crew.run(world, "one", "two", impatient=True)
    check(world, 1)


@pytest.mark.parametrize(("point", "nth"), KEPT_POINTS)
def test_killed_with_bad_rows_that_are_judged_before_any_is_staged(
    crew: Crew, world: GatedWorld, point: str, nth: int
) -> None:
    world.keep_rows()
    assert crew.start(world, "three", fault=(point, "K", nth)).ended() == -9
    crew.run(world, "three", "four", impatient=True)
    check(world, 3)


@pytest.mark.parametrize("point", ["S5.gate.after", "S4.stage.after"])
def test_killed_with_bad_rows_that_are_judged_in_a_folder_of_their_own(crew: Crew, tmp_path: Path, point: str) -> None:
    """Nobody reads that folder again. It goes with the checkpoint."""
    world = GatedWorld(tmp_path)
    world.limits = replace(world.limits, num_retained=1)
    world.judge_by("warning")
    world.deduplicate()
    world.feed(4)

    def judged() -> list[Path]:
        return [path for path in world.root.rglob("*-judged") if list(path.rglob("*.parquet"))]

    crew.run(world, "one")
    assert not judged()
    assert crew.start(world, "two", fault=(point, "K", 1)).ended() == -9
    assert judged(), "the killed attempt has left it"
    crew.run(world, "two", "three", "four", impatient=True)
    check(world, 4)
    assert not judged()


@pytest.mark.parametrize("point", ["S5.gate.before", "S4.stage.after", "S6.ack.before", "S6.ack.after"])
def test_killed_with_a_gate_that_remembers_keys(crew: Crew, tmp_path: Path, point: str) -> None:
    """The keys of an attempt whose ack does not count are forgotten: its rows are no repeats when they come again."""
    world = GatedWorld(tmp_path)
    world.judge_by("warning")
    world.be_unique()
    world.feed(2)
    crew.run(world, "one")
    assert crew.start(world, "two", fault=(point, "K", 1)).ended() == -9
    crew.run(world, "two", "three", impatient=True)
    check(world, 2)
    assert world.rows("ledger/crash/quarantine/once") == []


@pytest.mark.parametrize(("point", "nth"), OVERLAPS)
def test_hangs_with_bad_rows_while_the_retry_does_its_work(crew: Crew, world: GatedWorld, point: str, nth: int) -> None:
    """The first ack counts, whole: verdict, quarantine and good rows of one attempt."""
    zombie = crew.start(world, "three", fault=(point, "Z", nth))
    zombie.reached()
    crew.run(world, "three")
    zombie.resume()
    check(world, 3)


@pytest.mark.parametrize("point", ABORTS)
def test_killed_while_a_gate_aborts(crew: Crew, world: GatedWorld, point: str) -> None:
    """Whoever goes on comes to the same end: aborted, because a verdict says so. Its rows are in the next one."""
    world.judge_by("critical")
    assert crew.start(world, "three", fault=(point, "K", 1)).ended() == -9
    (id,) = crew.run(world, "three", impatient=True)
    outcome = world.coordinator().complete(3)
    assert (outcome.state, outcome.reason) == ("aborted", "GATE_FAILED"), "decided by its own verdict, not given up"
    assert (len(world.table("log")), len(world.quarantine())) == (9, 3), "nothing of it is visible"
    world.judge_by("warning")
    crew.run(world, "four", "five", impatient=True)
    check(world, 3)
    assert not [path for path in world.root.rglob("*.parquet") if f"/{3:08d}/" in str(path)], "what it staged is gone"
    assert id in (3, 4)


@pytest.mark.parametrize("point", ["S5.gate.after", "S6.ack.after"])
def test_killed_while_a_gate_only_warns(crew: Crew, world: GatedWorld, point: str) -> None:
    """Its rows continue once, and the warning with them."""
    world.only_warn()
    assert crew.start(world, "three", fault=(point, "K", 1)).ended() == -9
    (id,) = crew.run(world, "three", impatient=True)
    check(world, 3, approved=(2,))
    acked = world.coordinator().ledger.ack(id, "main")
    assert acked is not None
    verdict = acked.ack.gates["checked"]
    assert (verdict.outcome, [each.rule for each in verdict.broken]) == ("warn", ["key"])


RELEASES = [
    ("S1.entry.after", 1),
    ("S5.gate.after", 1),
    ("S6.ack.before", 1),
    ("S9.decision.after", 1),
    ("S10.publish.before", 1),
    ("S10.publish.before", 2),
]


def failing(tmp_path: Path, point: str) -> seams.Seams:
    """A person's command that breaks off at a point."""
    return Fault(point, "E", 1, tmp_path / "unused").installed()


@pytest.mark.parametrize(("point", "nth"), RELEASES)
def test_killed_while_rows_are_released_then_recovered(crew: Crew, world: GatedWorld, point: str, nth: int) -> None:
    """Quarantine, release, crash, recovery: every row is in the table or waits, once, and those released are marked."""
    ask(world, checkpoints=[1, 2])
    assert crew.start(world, "three", fault=(point, "K", nth)).ended() == -9
    crew.run(world, "four", "five", impatient=True)
    check(world, 3, released=2)


def test_a_zombie_that_releases_rows_releases_none_twice(crew: Crew, world: GatedWorld) -> None:
    ask(world)
    zombie = crew.start(world, "three", fault=("S6.ack.before", "Z", 1))
    zombie.reached()
    crew.run(world, "three")
    zombie.resume()
    check(world, 3, released=2)


@pytest.mark.parametrize("point", ["Q1.request.before", "Q1.request.after"])
def test_a_command_that_broke_off_is_repeated_and_rows_continue_once(crew: Crew, world: GatedWorld, point: str) -> None:
    with seams.installed(failing(world.root, point)), pytest.raises(Exception, match=point):
        ask(world)
    ask(world)
    ask(world, "discard")  # what comes later finds nothing left
    crew.run(world, "three", impatient=True)
    check(world, 3, released=2)


@pytest.mark.parametrize("point", ["S5.gate.after", "S6.ack.after", "S7.answer.before", "S7.answer.after"])
def test_interrupted_around_a_hold_then_approved(crew: Crew, world: GatedWorld, point: str) -> None:
    """Held, nothing of it is visible; approved, all of it is, whoever died in between."""
    world.judge_by("info")
    if point.startswith("S7"):
        crew.run(world, "three")
        with seams.installed(failing(world.root, point)), pytest.raises(Exception, match=point):
            answer(world.coordinator().ledger, 3, None, approve=True, by="a person")
    else:
        assert crew.start(world, "three", fault=(point, "K", 1)).ended() == -9
        crew.run(world, "three")
    assert len(world.table("log")) == 9, "nothing of it is visible"
    if point != "S7.answer.after":
        answer(world.coordinator().ledger, 3, None, approve=True, by="a person")
    crew.run(world, "three", impatient=True)
    check(world, 3, approved=(2,))


def test_rejected_its_rows_are_in_the_next_one(crew: Crew, world: GatedWorld) -> None:
    world.judge_by("info")
    crew.run(world, "three")
    answer(world.coordinator().ledger, 3, "checked", approve=False, by="a person")
    assert crew.start(world, "three", fault=("A1.abort.after", "K", 1)).ended() == -9
    assert world.coordinator().complete(3).reason == "GATE_REJECTED"
    world.judge_by("warning")
    world.coordinator().resume("a person")
    crew.run(world, "four")
    check(world, 3)


# -- rows that the table would refuse ------------------------------------------------------------------------


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_killed_with_rows_that_the_table_would_refuse(
    crew: Crew, tmp_path: Path, point: str, nth: int, keeps: bool
) -> None:
    """At any step: all rows that the table takes are in it once, and the others in quarantine, by the table's rule."""
    world = GatedWorld(tmp_path)
    world.refuse_by_table()
    if keeps:
        world.keep_rows()
    world.feed(2)
    crew.run(world, "one")
    assert crew.start(world, "two", fault=(point, "K", nth)).ended() == -9
    crew.run(world, "two", "three", impatient=True)
    check(world, 2)
