"""At least once: rows are in the tables when a job has them. Whatever dies, none is missing; some may come twice."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from tests.kit.faults import Fault
from tests.kit.limits import AT_LEAST_ONCE
from tests.kit.toy_world import ToyWorld, quietly, toy_limits
from tests.kit.toys import ToySink
from tidegate import seams
from tidegate.errors import Corrupt, Fenced, Rejected, Unavailable
from tidegate.execution.job.run_job import Attempt, run_job
from tidegate.lifecycle.rollback_preview import examine


@pytest.fixture
def world(tmp_path: Path) -> ToyWorld:
    return ToyWorld(tmp_path, toy_limits(recorded=AT_LEAST_ONCE))


def nothing_is_missing(world: ToyWorld) -> None:
    """Each table holds each row that completed checkpoints have read; readers find every file that the tables name."""
    last = world.ledger.view().last_completed
    assert last is not None
    upto = last.plan.sources["in"].end["at"]  # type: ignore[index]
    for table in "ab":
        assert set(world.offsets(table)) >= set(range(1, upto + 1)), table


def twice(world: ToyWorld, table: str = "a") -> list[int]:
    return [offset for offset, times in Counter(world.offsets(table)).items() if times > 1]


def test_rows_are_visible_before_the_decision(world: ToyWorld) -> None:
    world.feed_more(3)
    id = world.trigger("one")
    world.work(id)
    assert world.state(id) == "open"
    assert world.offsets("a") == world.offsets("b") == [1, 2, 3]
    assert world.coordinator().complete(id).state == "completed"
    world.coordinator().publish()
    assert world.offsets("a") == [1, 2, 3], "publishing has nothing left to do"


def test_exactly_once_shows_nothing_before_it(tmp_path: Path) -> None:
    world = ToyWorld(tmp_path)
    world.feed_more(3)
    world.work(world.trigger("one"))
    assert world.offsets("a") == []


def test_a_checkpoint_says_where_its_tables_stood(world: ToyWorld) -> None:
    world.sinks = {"a": 0, "b": 2}  # b takes no even row
    world.bound = 1
    for number in range(3):
        world.checkpoint(f"run {number}", 1)
    stood = [world.ledger.published(id).tables for id in (1, 2, 3)]  # type: ignore[union-attr]
    assert [each["a"].version for each in stood] == [0, 1, 2]
    assert [each["b"].version for each in stood] == [0, 0, 1], "the second had nothing for b"


POINTS = {
    ("S5.through.before", 1): "",
    ("S5.through.before", 2): "retried another",
    ("S5.through.after", 1): "retried another",
    ("S5.through.after", 2): "retried another",
    ("S6.ack.before", 1): "retried another",
    ("S6.ack.after", 1): "another",
    ("S8.manifest.before", 1): "another",
    ("S9.decision.before", 1): "another",
    ("S9.decision.after", 1): "",
    ("S11.published.before", 1): "",
}
"""Where a process dies, and who writes rows once more then: a retry of its run, or another run."""


def no_ack(attempt: Attempt) -> None:
    """What a dead process finds out about its own ack."""


@pytest.mark.parametrize("who", ["retried", "another"])
@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_a_process_that_dies_anywhere_loses_no_row(world: ToyWorld, point: str, nth: int, who: str) -> None:
    world.checkpoint("one", 2)
    world.feed_more(2)
    dead = mock.patch.multiple("tidegate.execution.job.run_job.Attempt", release=mock.DEFAULT, find_counting_ack=no_ack)
    with dead, seams.installed(Fault(point, "E", nth).installed()):
        quietly(lambda: world.checkpoint("two"))
    id = world.trigger("two" if who == "retried" else "three", give_up=lambda plan: "RUN_GONE")
    world.work(id)
    assert world.coordinator().complete(id).state == "completed"
    world.coordinator().publish()
    world.checkpoint("last", 1)
    nothing_is_missing(world)
    assert bool(twice(world)) == (who in POINTS[point, nth])


def test_a_second_attempt_writes_the_rows_once_more(world: ToyWorld) -> None:
    world.feed_more(2)
    id = world.trigger("one")
    world.half_work(id)
    world.work(id)
    assert world.offsets("a") == [1, 2, 1, 2]
    world.coordinator().complete(id)
    world.coordinator().retire()
    nothing_is_missing(world)


def test_what_an_attempt_has_written_outlives_its_abort_and_its_retirement(world: ToyWorld) -> None:
    world.limit(num_retained=1)
    world.feed_more(2)
    lost = world.trigger("one")
    world.work(lost)
    world.coordinator().abort(lost, "TEST")
    for number in range(3):
        world.checkpoint(f"run {number}", 1)
    assert world.state(lost) == "gone"
    nothing_is_missing(world)
    assert twice(world) == [1, 2]


def test_one_that_was_ended_meanwhile_writes_nothing(world: ToyWorld) -> None:
    world.feed_more(2)
    id = world.trigger("one")
    world.weather.then["stage 1 on a"] = lambda: world.coordinator().abort(id, "TEST")
    with pytest.raises(Fenced):
        world.work(id)
    assert world.offsets("a") == []
    assert world.staged("a") == set(), "what no table can have is removed"


def test_one_that_has_slept_does_not_write_over_what_came_later(world: ToyWorld) -> None:
    """It was past its last look when its checkpoint was ended: the table itself tells it."""
    world.feed_more(2)
    slow = world.trigger("one")

    def meanwhile() -> None:
        world.coordinator().abort(slow, "TEST")
        world.checkpoint("two")

    world.weather.then["head of a"] = meanwhile
    with pytest.raises(Fenced, match="holds rows of checkpoint 2 already"):
        world.work(slow)
    assert world.offsets("a") == [1, 2]


@pytest.mark.parametrize("moment", ["head of a", "commit 1 on a"])
def test_one_that_has_slept_does_not_write_over_what_was_published_exactly_once(world: ToyWorld, moment: str) -> None:
    world.feed_more(2)
    slow = world.trigger("one")

    def meanwhile() -> None:
        world.coordinator().abort(slow, "TEST")
        world.limits = toy_limits()
        world.checkpoint("two")

    world.weather.then[moment] = meanwhile
    with pytest.raises(Fenced, match="holds rows of checkpoint 2 already"):
        world.work(slow)
    assert world.offsets("a") == [1, 2]


def test_a_race_for_the_tables_next_version_is_run_again(world: ToyWorld) -> None:
    world.feed_more(2)
    one = world.trigger("one")
    world.weather.then["commit 1 on a"] = lambda: world.work(one)
    world.work(one)
    assert world.offsets("a") == [1, 2, 1, 2]


def test_a_commit_whose_answer_is_lost_keeps_its_files(world: ToyWorld) -> None:
    """The attempt fails and lets go of what it staged; but the table may have that."""
    world.feed_more(2)
    id = world.trigger("one")
    world.weather.lose_answer_of = {"a"}
    with pytest.raises(Unavailable):
        world.work(id)
    assert world.offsets("a") == [1, 2], "its files are there"
    world.work(id)
    world.coordinator().complete(id)
    nothing_is_missing(world)
    assert twice(world) == [1, 2]


def test_several_at_once_each_write_when_they_have_rows(world: ToyWorld) -> None:
    world.limit(max_concurrent_checkpoints=3)
    world.bound = 1
    world.feed_more(3)
    ids = [world.trigger(f"run {number}") for number in range(3)]
    for id in ids:
        world.work(id)
    assert [world.state(id) for id in ids] == ["open"] * 3
    assert world.offsets("a") == [1, 2, 3]
    world.coordinator().abort(ids[1], "TEST")
    assert world.coordinator().complete(ids[0]).state == "completed"
    assert world.coordinator().complete(ids[2]).state == "aborted", "it rests on the second"
    world.checkpoint("again")
    world.checkpoint("and again")
    nothing_is_missing(world)
    assert twice(world) == [2, 3]


# -- beside exactly once -----------------------------------------------------------------------------------


def test_from_exactly_once_and_back(tmp_path: Path) -> None:
    world = ToyWorld(tmp_path)
    for number, limits in enumerate(
        [
            toy_limits(),
            toy_limits(recorded=AT_LEAST_ONCE),
            toy_limits(recorded=AT_LEAST_ONCE),
            toy_limits(),
            toy_limits(),
        ]
    ):
        world.limits = limits
        world.checkpoint(f"run {number}", 1)
    world.bound = 1
    assert world.offsets("a") == [1, 2, 3, 4, 5]
    assert [each.version for id in range(1, 6) for each in [world.ledger.published(id).tables["a"]]] == [0, 1, 2, 3, 4]  # type: ignore[union-attr]


def test_what_is_owed_exactly_once_comes_first(tmp_path: Path) -> None:
    """Else an upsert would put its older rows over those that a job has written meanwhile."""
    world = ToyWorld(tmp_path)
    world.checkpoint("one", 1)
    world.decided("two", 1)
    world.weather.stuck = {"a"}
    world.limits = toy_limits(recorded=AT_LEAST_ONCE)
    world.feed_more(1)
    with pytest.raises(Rejected):
        world.trigger("three")
    world.weather.stuck = set()
    world.checkpoint("three")
    assert world.offsets("a") == [1, 2, 3]


def test_no_mode_begins_on_an_open_checkpoint_of_the_other(tmp_path: Path) -> None:
    world = ToyWorld(tmp_path).limit(max_concurrent_checkpoints=2)
    world.feed_more(2)
    world.bound = 1
    open_one = world.trigger("one")
    world.limits = toy_limits(recorded=AT_LEAST_ONCE, max_concurrent_checkpoints=2)
    with pytest.raises(Rejected):
        world.trigger("two")
    world.work(open_one)
    world.coordinator().complete(open_one)
    world.checkpoint("two")
    assert world.offsets("a") == [1, 2]


def test_a_rollback_leaves_what_was_written_and_says_so(world: ToyWorld) -> None:
    world.bound = 1
    for number in range(3):
        world.checkpoint(f"run {number}", 1)
    preview = examine(world.coordinator(), 1, {})
    assert [(each.table, each.method, each.written_directly) for each in preview.changes] == [
        ("a", "keep", True),
        ("b", "keep", True),
    ]
    assert not preview.problems
    world.coordinator().roll_back(1, run="back", by="mia")
    assert world.offsets("a") == [1, 2, 3]
    world.checkpoint("again")
    world.checkpoint("and again")
    nothing_is_missing(world)
    assert twice(world) == [2, 3]


def test_a_rollback_cannot_take_out_what_was_written(world: ToyWorld) -> None:
    world.checkpoint("one", 1)
    world.checkpoint("two", 1)
    with pytest.raises(Rejected, match="jobs wrote to it at least once"):
        world.coordinator().roll_back(1, run="back", by="mia", choices={"a": "discard"})


def test_a_rollback_to_exactly_once_takes_all_of_it_back(tmp_path: Path) -> None:
    world = ToyWorld(tmp_path)
    world.checkpoint("one", 1)
    world.limits = toy_limits(recorded=AT_LEAST_ONCE)
    world.checkpoint("two", 1)
    world.coordinator().roll_back(1, run="back", by="mia")
    shown = world.tables["a"]
    assert [offset for name in shown.live() for offset, _ in shown.files[name]] == [1]


def test_a_sink_that_cannot_write_through_is_published_after_the_decision(world: ToyWorld) -> None:
    with mock.patch.object(ToySink, "can_publish_directly", False):
        world.feed_more(2)
        id = world.trigger("one")
        run_job(world.coordinator(), id, "main", None)
        assert world.offsets("a") == []
        world.coordinator().complete(id)
        world.coordinator().publish()
    world.exact()


def test_a_table_that_was_dropped_is_told_not_begun_anew(world: ToyWorld) -> None:
    """Nothing is owed to it, so nobody but the job would notice."""
    world.checkpoint("one", 2)
    dropped = world.tables.tables.pop("a")
    world.feed_more(1)
    two = world.trigger("two")
    with pytest.raises(Corrupt, match="table 'a', toy:a, is missing: checkpoint 1 was published there, as version 0"):
        world.work(two)
    assert world.offsets("a") == []
    world.tables.tables["a"] = dropped
    world.work(two)
    assert world.offsets("a") == [1, 2, 3]


def test_a_ledger_that_was_put_back_from_an_older_copy_is_told(world: ToyWorld) -> None:
    world.checkpoint("one", 1)
    shutil.copytree(world.folder, world.root / "copy")
    for run in ("two", "three"):
        world.checkpoint(run, 1)
    shutil.rmtree(world.folder)
    (world.root / "copy").rename(world.folder)
    again = world.trigger("two again")
    with pytest.raises(Corrupt, match="the table holds rows of checkpoint 3, the log ends at 2"):
        world.work(again)
