"""Many at once on one ledger: what a create or a compare-and-swap settles, threads cannot unsettle."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kit.toy_world import quietly
from tests.kit.toys import ToySink
from tidegate.errors import Rejected, TidegateError


class LockedSink(ToySink):
    """A table that has a true compare-and-swap for threads, as delta-rs has."""

    lock = threading.Lock()

    def publish(self, publication, head, context):
        with self.lock:
            return super().publish(publication, head, context)


@pytest.fixture(autouse=True)
def locked(monkeypatch):
    monkeypatch.setattr("tests.kit.toy_world.ToySink", LockedSink)


def call_in_parallel(count, do):
    """Run `do(n)` in so many threads, started together; errors of tidegate are answers too."""
    gate = threading.Barrier(count)

    def one(n):
        gate.wait()
        return quietly(lambda: do(n))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.slow
def test_fifty_triggers_of_fifteen_runs_get_fifteen_ids_on_top_of_each_other(world):
    world.limit(max_concurrent_checkpoints=50)
    world.feed_more(500)
    ids = call_in_parallel(50, lambda n: (n % 15, world.trigger(f"run{n % 15}")))
    assert len(set(ids)) == 15, "each run has one, whoever asked for it"
    assert {id for _, id in ids} == set(range(1, 16))
    for id in range(2, 16):
        plan, base = world.ledger.entry(id).plan, world.ledger.entry(id - 1).plan
        assert plan.base == id - 1
        assert plan.sources["in"].start == base.sources["in"].end


def test_fifty_triggers_of_one_run_get_one_id(world):
    world.feed_more(9)
    assert set(call_in_parallel(50, lambda n: world.trigger("run"))) == {1}
    assert world.ledger.ids() == [1]


def test_of_fifty_runs_that_may_not_overlap_one_gets_in(world):
    world.feed_more(9)
    answers = call_in_parallel(50, lambda n: world.trigger(f"run{n}"))
    assert [answer for answer in answers if not isinstance(answer, Rejected)] == [1]
    assert world.ledger.ids() == [1]


def test_fifty_starts_of_a_new_pipeline_agree_on_its_uid(world):
    uids = {answer.uid for answer in call_in_parallel(50, lambda n: world.ledger.start())}
    assert len(uids) == 1


def test_of_fifty_deciders_one_counts_and_all_see_the_same(world):
    world.feed_more(3)
    id = world.trigger("run")
    world.work(id)

    def decide(n):
        coordinator = world.coordinator()
        return coordinator.complete(id) if n % 2 else coordinator.abort(id, "CANCELLED")

    outcomes = call_in_parallel(50, decide)
    assert len({(outcome.state, outcome.reason) for outcome in outcomes}) == 1
    assert outcomes[0].state == world.state(id)
    world.coordinator().publish()
    assert world.published("a") == ([id] if world.state(id) == "completed" else [])


def test_concurrent_publishers_publish_each_checkpoint_once_per_table(world):
    for n in range(6):
        world.decided(f"run{n}", rows=3)
        world.weather.stuck.update("ab")  # the trigger publishes too: not yet
        world.limit(max_unpublished=99)
    world.weather.stuck.clear()
    assert not [
        a for a in call_in_parallel(12, lambda n: world.coordinator().publish()) if isinstance(a, TidegateError)
    ]
    assert world.published("a") == world.published("b") == list(range(1, 7))
    world.exact()


def test_two_jobs_at_once_one_ack_and_no_files_of_the_other(world):
    world.feed_more(3)
    id = world.trigger("run")
    assert len(set(call_in_parallel(8, lambda n: world.work(id)))) == 1
    world.coordinator().complete(id)
    world.coordinator().publish()
    world.exact()
    assert world.staged("a") == world.staged("b") == set()


@pytest.mark.parametrize("at_once", [1, 2])
def test_whole_runs_side_by_side_lose_and_double_nothing(world, at_once):
    """Each thread is a process that makes one checkpoint after the other, ends what it takes for dead (often
    wrongly), publishes and retires: for all that, each row is in each table once."""
    world.limit(max_concurrent_checkpoints=at_once, num_retained=2, max_unpublished=99)
    world.feed_more(40)

    def process(n):
        done = 0
        for turn in range(20):
            coordinator = world.coordinator()
            impatient = (lambda plan: "RUN_GONE") if turn % 7 == n else (lambda plan: None)
            try:
                triggered = coordinator.trigger(f"run{n}-{turn}", give_up=impatient, only_if_new=True)
                if triggered is None:
                    return done
                world.work(triggered.plan.id)
                done += coordinator.complete(triggered.plan.id).state == "completed"
                coordinator.publish()
                coordinator.retire()
            except Rejected:
                continue
            except TidegateError as error:
                if error.kind not in ("fenced", "unavailable"):
                    raise
        return done

    answers = call_in_parallel(4, process)
    assert all(isinstance(answer, int) for answer in answers), answers
    finish(world)
    world.exact()
    assert world.offsets("a") == list(range(1, 41))


def finish(world):
    """Once all others are gone, one process brings everything to its end."""
    for turn in range(20):
        coordinator = world.coordinator()
        triggered = coordinator.trigger(f"last-{turn}", give_up=lambda plan: "RUN_GONE", only_if_new=True)
        if triggered is None:
            coordinator.publish()
            return
        world.work(triggered.plan.id)
        assert coordinator.complete(triggered.plan.id).state == "completed"
        coordinator.publish()
