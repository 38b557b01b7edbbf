"""The scenarios of docs/reliability.md that need no Spark and no Delta, by their numbers."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.kit.faults import Fault
from tests.kit.toy_world import ToyWorld, quietly
from tidegate import seams
from tidegate.errors import Corrupt, Rejected


def test_scenario_3_completed_and_killed_before_publish_the_next_run_arrives_first(world):
    """n is published before n + 1."""
    n = world.decided("killed", rows=3)
    world.feed_more(3)
    following = world.trigger("next")
    assert world.published("a") == world.published("b") == [n], "before anything new was planned"
    world.work(following)
    world.coordinator().complete(following)
    world.coordinator().publish()
    assert world.published("a") == world.published("b") == [n, following]
    world.exact()


def test_scenario_3_killed_between_two_tables(world):
    n = world.decided("killed", rows=3)
    with seams.installed(Fault("S10.publish.before", "E", nth=2).installed()):
        quietly(lambda: world.coordinator().publish())
    assert (world.published("a"), world.published("b")) == ([n], [])
    following = world.decided("next", rows=3)
    world.coordinator().publish()
    assert world.published("a") == world.published("b") == [n, following]
    world.exact()


def test_scenario_6_the_same_task_started_twice_within_milliseconds_with_the_same_try_number(world):
    """Two schedulers start the trigger, then the job, then the completion: each pair overlaps."""
    world.feed_more(3)
    ids = {world.trigger("run"), world.trigger("run")}
    assert ids == {1}
    first, second = world.half_work(1), world.half_work(1)
    assert first.staging.attempt != second.staging.attempt, "the try number is no identity"
    acks = {first.ack(first.staged, None).attempt, second.ack(second.staged, None).attempt}
    assert acks == {first.staging.attempt}
    assert {world.coordinator().complete(1).state, world.coordinator().complete(1).state} == {"completed"}
    world.coordinator().publish()
    world.coordinator().publish()
    world.exact()
    assert world.staged("a") == set()


def test_scenario_7_work_done_finish_call_failed_retried(world):
    world.feed_more(3)
    id = world.trigger("run")
    for step in (lambda: world.work(id), lambda: world.coordinator().complete(id).state, lambda: world.published("a")):
        assert step() == step()
    world.coordinator().publish()
    before = world.published("a")
    world.coordinator().publish()
    assert world.published("a") == before
    world.exact()


@pytest.mark.parametrize("num_retained", [100, 1])
def test_scenario_8_an_old_successful_run_is_cleared_while_newer_ones_exist(world, num_retained):
    """Every task of it runs again, and nothing changes: also when retention has taken it meanwhile."""
    world.limit(num_retained=num_retained)
    world.checkpoint("old", rows=3)
    for n in range(3):
        world.checkpoint(f"newer{n}", rows=3)
    ids, published = world.ledger.ids(), world.published("a")
    again = quietly(lambda: world.trigger("old"))
    assert again == 1 if num_retained == 100 else isinstance(again, Rejected)
    quietly(lambda: world.work(1))
    world.coordinator().complete(1)
    world.coordinator().complete(1, ("JOB_FAILED", "cleared"))
    world.coordinator().publish()
    world.coordinator().retire()
    assert (world.ledger.ids(), world.published("a")) == (ids, published)
    world.exact()
    assert world.checkpoint("next", rows=3) == 5


def test_scenario_15_a_ledger_that_lost_its_log_is_no_fresh_pipeline(world):
    world.checkpoint("one", rows=3)
    world.folder.joinpath("checkpoints").rename(world.root / "elsewhere")
    for call in (lambda: world.trigger("two"), lambda: world.coordinator().publish()):
        with pytest.raises(Corrupt) as caught:
            call()
        assert caught.value.reason == "LEDGER_DAMAGED"
        assert "restore" in caught.value.help
    assert not world.folder.joinpath("checkpoints").exists()


def test_scenario_18_pipelines_whose_names_are_prefixes_of_one_another(tmp_path):
    """orders and orders1, below one root; ids 1 to 10; the tables are told apart too."""
    one, other = ToyWorld(tmp_path, sinks={"a": 0}), Other(tmp_path, sinks={"a1": 0})
    other.tables = one.tables
    for n in range(10):
        one.checkpoint(f"run{n}", rows=3)
        other.checkpoint(f"run{n}", rows=2)
    assert one.ledger.ids() == other.ledger.ids() == list(range(1, 11))
    assert one.ledger.start().uid != other.ledger.start().uid
    one.limit(num_retained=1)
    one.coordinator().retire()
    assert (one.ledger.ids(), len(other.ledger.ids())) == ([10], 10)
    one.exact("a")
    other.exact(["a1"])
    assert one.ledger.run_ids("run1") == [2]
    assert one.ledger.run_ids("run") == []


class Other(ToyWorld):
    """The pipeline with the longer name."""

    name = "orders1"


class Clock:
    """A wall clock that somebody sets."""

    def __init__(self):
        self.shift = 0.0

    def now(self):
        return datetime.now(UTC) + timedelta(seconds=self.shift)


@pytest.mark.parametrize("jump", [-86_400, 86_400, -86_400 * 365 * 60])
def test_scenario_19_the_clock_jumps_and_nothing_depends_on_it(world, jump):
    clock = Clock()
    with seams.installed(seams.Seams(now=clock.now)):
        world.checkpoint("one", rows=3)
        world.feed_more(3)
        open_one = world.trigger("two")
        clock.shift = jump
        assert isinstance(quietly(lambda: world.trigger("three")), Rejected), "nobody is given up by a clock"
        world.work(open_one)
        assert world.coordinator().complete(open_one).state == "completed"
        world.checkpoint("three", rows=3)
        world.coordinator().retire()
        world.exact()


@pytest.mark.parametrize("seconds", [86_400, -86_400])
def test_scenario_19_changed_file_times_change_nothing_but_when_to_give_up(world, seconds):
    """A copy of the ledger got new file times, or the store's clock was set: at worst a checkpoint is aborted."""
    for n in range(3):
        world.checkpoint(f"run{n}", rows=3)
    world.feed_more(3)
    world.trigger("open")
    for id in world.ledger.ids():
        world.age(id, seconds)
    waits = quietly(lambda: world.trigger("next"))
    assert isinstance(waits, Rejected) if seconds < 0 else waits == 5
    world.checkpoint("open" if seconds < 0 else "next")
    world.exact()
