"""The loop of `tidegate run`: in a row, with failures, interruptions and others at work beside it."""

import os
import signal
import threading
from dataclasses import replace

import pytest

from tests.kit.limits import RESTARTS
from tests.kit.loop import DEAD, Loop, Session
from tests.kit.toy_world import quietly
from tests.kit.toys import ToySource
from tidegate.errors import Corrupt, Invalid, Rejected, Unavailable
from tidegate.execution import loop
from tidegate.execution.input_watch import Arrival, InputWatch
from tidegate.execution.runs import abandoned_reason, new_run
from tidegate.ledger import LocalStore
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import control


@pytest.fixture
def one(tmp_path):
    return Loop(tmp_path)


@pytest.fixture
def world(one):
    return one.world


def fail_once(error):
    def fail():
        raise error

    return fail


def fail_at(world, offset):
    """Let the checkpoint fail that stages this row; None: let it be."""
    if offset is not None:
        world.weather.then[f"stage {offset} on b"] = fail_once(Invalid("bad data"))


# -- in a row --------------------------------------------------------------------------------------------


def test_so_many_checkpoints_in_a_row(one, world):
    world.feed_more(9)
    assert [outcome.state for outcome in one.run(checkpoints=3)] == ["completed"] * 3
    assert one.told.of("completed") == [1, 2, 3]
    assert one.session.jobs == ["main"] * 3, "a job may have settings of its own"
    world.exact()


def test_until_nothing_is_new(one, world):
    world.feed_more(7)
    assert len(one.run(until_idle=True)) == 3
    assert one.run(until_idle=True) == []
    world.exact()


def test_an_endless_run_of_a_pipeline_that_finishes_ends_with_it(one, world):
    world.bounded = world.finishes = True
    world.feed_more(7)
    assert len(one.run()) == 3
    with pytest.raises(Rejected, match="finished by tidegate: all of its sources have been read to their end"):
        one.run()
    world.exact()


def test_until_it_is_stopped_the_running_one_is_brought_to_its_end(one, world):
    world.feed_more(30)
    assert len(one.run(stop=lambda: len(one.told.of("planned")) >= 4)) == 4
    assert world.state(4) == "completed"
    world.exact()


def test_from_the_start_of_one_to_the_start_of_the_next(one, world):
    world.feed_more(9)
    one.run(checkpoints=3, interval_s=10.0)
    assert sum(one.slept) == 20.0
    one.slept.clear()
    one.run(checkpoints=2, min_pause_s=3.0)
    assert sum(one.slept) == 3.0


def test_a_stop_ends_the_pause(one, world):
    world.feed_more(9)
    one.run(interval_s=3600.0, stop=lambda: len(one.slept) >= 2)
    assert sum(one.slept) <= 2.0


# -- failures --------------------------------------------------------------------------------------------


def test_what_does_not_answer_is_tried_again_with_growing_pauses_and_another_session(one, world):
    world.feed_more(3)
    world.weather.then["stage 2 on b"] = fail_once(Unavailable("Spark is gone"))
    one.run(checkpoints=1)
    assert one.told.events[1] == ("retrying", 1, 3)
    assert (one.slept, one.session.dropped) == ([1.0], 1)
    world.exact()


def test_what_never_answers_is_given_up_and_its_input_comes_back(one, world, monkeypatch):
    world.feed_more(3)
    with monkeypatch.context() as patched:
        patched.setattr(ToySource, "read", lambda *a: fail_once(Unavailable("no answer"))())
        with pytest.raises(Unavailable):
            one.run(checkpoints=1)
    assert one.slept == [1.0, 2.0, 4.0]
    assert (world.state(1), world.ledger.decision(1).reason) == ("aborted", "JOB_FAILED")
    one.run(checkpoints=1)
    world.exact()


def test_what_is_invalid_is_not_tried_again(one, world):
    world.feed_more(3)
    world.weather.then["stage 2 on b"] = fail_once(Invalid("bad data"))
    with pytest.raises(Invalid, match="bad data"):
        one.run(checkpoints=2)
    assert one.slept == []
    assert world.ledger.decision(1).counts
    assert one.told.of("aborted") == [1]
    assert world.staged("a") == set()


def test_so_many_failures_in_a_row_are_tolerated(one, world):
    world.feed_more(9)
    first_rows = {1: 1, 2: 1, 4: 4, 5: 4}
    one.told.planned = lambda plan: fail_at(world, first_rows.get(plan.id))
    outcomes = one.run(checkpoints=7, tolerable_failures=2)
    assert [outcome.state[0] for outcome in outcomes] == ["a", "a", "c", "a", "a", "c", "c"]
    world.exact()


def test_a_checkpoint_that_no_table_takes_yet_ends_a_row_of_failures(one, world):
    world.feed_more(9)
    world.weather.stuck.add("b")
    first_rows = {1: 1, 3: 4}
    one.told.planned = lambda plan: fail_at(world, first_rows.get(plan.id))
    outcomes = one.run(checkpoints=4, tolerable_failures=1)
    assert [outcome.state[0] for outcome in outcomes] == ["a", "c", "a", "c"]


def test_one_failure_more_than_that_ends_the_loop_with_it(one, world):
    world.feed_more(9)
    one.told.planned = lambda plan: world.weather.then.update(
        {"stage 1 on b": fail_once(Invalid(f"bad data {plan.id}"))}
    )
    with pytest.raises(Invalid, match="bad data 3"):
        one.run(checkpoints=9, tolerable_failures=2)
    assert [world.state(id) for id in world.ledger.ids()] == ["aborted"] * 3


def test_that_there_is_no_spark_is_no_failure_of_the_pipeline(one, world):
    """At the very first run a missing jar suspended a new pipeline: besides the jar, it took a `resume`."""
    world.feed_more(9)
    missing = Invalid("Spark needs a jar, which cannot be read", reason="JARS_MISSING")
    for _ in range(3):
        world.weather.then["stage 1 on b"] = fail_once(missing)
        with pytest.raises(Invalid, match="needs a jar"):
            one.run(checkpoints=1)
    decisions = [world.ledger.decision(id) for id in world.ledger.ids()]
    assert [(each.reason, each.counts) for each in decisions] == [("ENVIRONMENT_FAILED", False)] * 3
    assert world.coordinator().suspended() is None
    assert one.run(checkpoints=1)[0].state == "completed"


def test_what_is_corrupt_ends_the_checkpoint_and_the_loop_whatever_is_tolerated(one, world):
    world.feed_more(9)
    world.weather.then["stage 1 on b"] = fail_once(Corrupt("torn"))
    with pytest.raises(Corrupt):
        one.run(checkpoints=3, tolerable_failures=9)
    assert [world.state(id) for id in world.ledger.ids()] == ["aborted"]


def test_a_fault_of_ours_ends_the_checkpoint_and_is_seen(one, world):
    world.feed_more(9)
    world.weather.then["stage 1 on b"] = fail_once(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        one.run(checkpoints=3)
    decision = world.ledger.decision(1)
    assert (decision.outcome, decision.counts) == ("aborted", True)
    assert decision.detail.startswith("ZeroDivisionError (")
    assert "ours" not in decision.detail, "what it says may quote a row"


def test_a_fault_of_ours_is_seen_even_if_the_checkpoint_cannot_be_ended(one, world, monkeypatch):
    world.feed_more(9)

    def fail():
        monkeypatch.setattr(LocalStore, "create", lambda *a: fail_once(Unavailable("no answer"))())
        raise ZeroDivisionError("ours")

    world.weather.then["stage 1 on b"] = fail
    with pytest.raises(ZeroDivisionError):
        one.run(checkpoints=3)


# -- the deadline and the retries, which are those of Airflow ------------------------------------------------


def test_a_job_that_hangs_is_ended_when_the_timeout_of_its_checkpoint_is_over(one, world):
    world.limit(timeout=2.0).feed_more(3)
    world.weather.then["stage 1 on b"] = lambda: threading.Event().wait(60)
    with pytest.raises(Invalid, match="job 'main' was not done within checkpoint 1's timeout of 2 s") as caught:
        one.run(checkpoints=1)
    assert caught.value.reason == "CHECKPOINT_EXPIRED"
    decision = world.ledger.decision(1)
    assert (decision.outcome, decision.reason, decision.counts) == ("aborted", "CHECKPOINT_EXPIRED", True)
    assert one.session.cancelled >= 1, "Spark was told to drop its work"
    assert world.staged("a") == set()
    world.limit(timeout=600.0)
    assert one.run(checkpoints=1)[0].state == "completed", "its input is in the next one"
    world.exact()


def test_a_spark_that_does_not_start_in_time_is_no_failure_of_the_pipeline(one, world):
    world.limit(timeout=2.0).feed_more(3)
    one.session = NeverReady()
    with pytest.raises(Unavailable, match="Spark was not ready for job 'main'"):
        one.run(checkpoints=1)
    assert (world.ledger.decision(1).outcome, world.ledger.decision(1).counts) == ("aborted", False)


class NeverReady(Session):
    def __call__(self, job=None):
        threading.Event().wait(60)


def test_all_attempts_share_the_deadline(one, world, monkeypatch):
    """Each one fails quickly, and there would be a thousand of them."""
    world.limit(restart=replace(RESTARTS, strategy="fixed", attempts=1000)).feed_more(3)
    monkeypatch.setattr(ToySource, "read", lambda *a: fail_once(Unavailable("no answer"))())
    one.while_asleep = [lambda: None, lambda: None, lambda: world.age(1, 10_000)]
    with pytest.raises(Invalid) as caught:
        one.run(checkpoints=1)
    assert caught.value.reason == "CHECKPOINT_EXPIRED"
    assert one.slept == [1.0] * 3


def test_a_pause_between_attempts_ends_with_the_deadline_at_the_latest(one, world, monkeypatch):
    world.limit(restart=replace(RESTARTS, strategy="fixed", attempts=5, delay=200.0)).feed_more(3)
    monkeypatch.setattr(ToySource, "read", lambda *a: fail_once(Unavailable("no answer"))())
    monkeypatch.setattr(Ledger, "age", lambda *a: sum(one.slept))
    world.limit(timeout=450.0)
    with pytest.raises(Invalid, match="job 'main' could not begin within checkpoint 1's timeout of 450 s") as caught:
        one.run(checkpoints=1)
    assert one.slept == [200.0, 200.0, 50.0]
    assert caught.value.reason == "CHECKPOINT_EXPIRED"


def test_a_job_whose_time_is_over_before_it_begins_does_not_blame_spark(one, world):
    """It does not even ask for it: something else has taken all of the time."""
    world.feed_more(3)
    one.session = NeverReady()
    one.told.planned = lambda plan: world.age(plan.id, 10_000)
    with pytest.raises(Invalid, match="job 'main' could not begin within checkpoint 1's timeout") as caught:
        one.run(checkpoints=1)
    assert caught.value.reason == "CHECKPOINT_EXPIRED"
    assert (world.ledger.decision(1).reason, world.ledger.decision(1).counts) == ("CHECKPOINT_EXPIRED", True)


def test_a_deadline_leaves_the_timer_of_others_as_it_was(one, world):
    world.feed_more(3)
    signal.setitimer(signal.ITIMER_REAL, 3600.0)
    one.run(checkpoints=1)
    assert 3000 < signal.setitimer(signal.ITIMER_REAL, 0)[0] <= 3600


def test_in_another_thread_a_job_ends_with_the_work_that_was_cancelled(one, world):
    """Only the main thread can be interrupted."""
    world.limit(timeout=2.0).feed_more(3)
    cancelled = threading.Event()
    one.session.cancel = cancelled.set

    def hang():
        cancelled.wait()
        raise Unavailable("cancelled")

    world.weather.then["stage 1 on b"] = hang
    found = []
    thread = threading.Thread(target=lambda: found.append(quietly(lambda: one.run(checkpoints=1))))
    thread.start()
    thread.join()
    assert [error.reason for error in found] == ["CHECKPOINT_EXPIRED"]
    assert world.ledger.decision(1).reason == "CHECKPOINT_EXPIRED"


@pytest.mark.parametrize(
    ("restart", "pauses"),
    [
        ({"strategy": "none"}, []),
        ({"strategy": "fixed", "attempts": 2, "delay": 7.0}, [7.0, 7.0]),
        ({"attempts": 4, "delay": 2.0, "max_delay": 5.0}, [2.0, 4.0, 5.0, 5.0]),
        ({"strategy": "failure_rate", "attempts": 2, "per": 400.0}, [200.0] * 3),
    ],
    ids=lambda each: each.get("strategy", "exponential") if isinstance(each, dict) else "",
)
def test_a_job_is_tried_again_as_the_settings_say(one, world, restart, pauses, monkeypatch):
    world.limit(restart=replace(RESTARTS, **restart)).feed_more(3)
    monkeypatch.setattr(ToySource, "read", lambda *a: fail_once(Unavailable("no answer"))())
    with pytest.raises(Unavailable):
        one.run(checkpoints=1)
    assert one.slept == pauses


def test_it_begins_later_by_the_delay_and_so_does_each_checkpoint(one, world):
    world.feed_more(9)
    one.run(checkpoints=2, interval_s=10.0, initial_delay_s=4.0)
    assert sum(one.slept) == 14.0
    one.slept.clear()
    assert one.run(initial_delay_s=4.0, stop=lambda: len(one.slept) >= 2) == []


# -- how urgent it is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "rank"),
    [
        ({"checkpoints": 1, "savepoint": True}, "savepoint"),
        ({"checkpoints": 1}, "manual"),
        ({"until_idle": True}, "manual"),
        ({}, "periodic"),
    ],
)
def test_while_it_waits_others_know_how_urgent_it_is(one, world, schedule, rank):
    world.feed_more(6)
    world.trigger(new_run())
    one.run(**schedule, stop=lambda: bool(one.slept))
    assert [waiter.rank for waiter in world.ledger.waiters()] == ([] if rank == "periodic" else [rank])


# -- storage that fails around it ------------------------------------------------------------------------


@pytest.mark.parametrize("record", ["plan.json", "runs/", "acks/", "manifest-", "decision.json", "published.json"])
@pytest.mark.parametrize("landed", [True, False])
def test_an_outage_at_any_record_is_ridden_out(one, world, record, landed, monkeypatch):
    """The write landed or it did not; and for a moment the store cannot be read either."""
    world.feed_more(6)
    create, read = LocalStore.create, LocalStore.read
    outages = [1]

    def failing(self, path, data):
        if record in path and outages:
            outages.pop()
            if landed:
                create(self, path, data)
            monkeypatch.setattr(LocalStore, "read", lambda *a: fail_once(Unavailable("no answer"))())
            one.while_asleep.append(lambda: monkeypatch.setattr(LocalStore, "read", read))
            raise Unavailable("no answer")
        return create(self, path, data)

    monkeypatch.setattr(LocalStore, "create", failing)
    assert [outcome.state for outcome in one.run(checkpoints=2)] == ["completed"] * 2
    assert world.ledger.ids() == [1, 2]
    world.exact()


def test_retention_that_fails_fails_nothing_else(one, world, monkeypatch):
    world.feed_more(9)
    monkeypatch.setattr(type(world.coordinator()), "retire", lambda self: fail_once(Unavailable("no answer"))())
    assert [outcome.state for outcome in one.run(checkpoints=3)] == ["completed"] * 3
    assert one.slept == []


def test_a_stuck_table_is_told_each_time_and_holds_back_nothing_until_it_is_too_much(one, world):
    world.feed_more(30)
    world.weather.stuck.add("b")
    with pytest.raises(Rejected) as caught:
        one.run(checkpoints=9)
    assert caught.value.reason == "TOO_MANY_UNPUBLISHED"
    assert one.told.of("completed") == [1, 2, 3]
    assert one.told.of("stuck") == ["b"] * 3
    world.weather.stuck.clear()
    one.run(checkpoints=1)
    world.exact()


def test_with_no_end_in_sight_it_waits_until_a_stuck_table_is_repaired(one, world):
    """P4: triggers wait. Whoever runs forever must not be ended by a table that is away for an hour."""
    world.feed_more(30)
    world.weather.stuck.add("b")
    one.while_asleep = [lambda: None, lambda: None, world.weather.stuck.clear]
    one.run(stop=lambda: len(one.told.of("completed")) >= 5)
    assert one.told.of("completed") == [1, 2, 3, 4, 5]
    assert any("not published" in why for why in one.told.of("waiting")), one.told.of("waiting")
    world.exact()


def test_a_stuck_table_is_told_also_when_there_is_nothing_new(one, world):
    """All is read, but not all is published: success without a word would be a lie."""
    world.feed_more(3)
    world.weather.stuck.add("b")
    one.run(until_idle=True)
    one.told.events.clear()
    assert one.run(until_idle=True) == []
    assert one.told.of("stuck") == ["b"]


def test_a_damaged_table_ends_the_loop_and_nothing_is_planned_on_top(one, world):
    world.feed_more(9)
    one.run(checkpoints=2)
    world.tables.tables.pop("b")
    with pytest.raises(Corrupt):
        one.run(checkpoints=1)
    assert world.ledger.ids() == [1, 2]


def test_a_source_that_refuses_ends_the_loop_before_anything_is_made(one, world, monkeypatch):
    monkeypatch.setattr(ToySource, "plan", lambda *a: fail_once(Invalid("the folder is gone"))())
    with pytest.raises(Invalid):
        one.run(checkpoints=1)
    assert world.ledger.ids() == []


# -- interruptions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["plan in", "check a", "read rows of in", "stage 2 on b"])
def test_an_interrupt_before_the_decision_ends_the_checkpoint_and_the_next_run_need_not_wait(one, world, where):
    world.feed_more(9)
    world.feed.weather = world.weather
    world.weather.then[where] = fail_once(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        one.run(checkpoints=3)
    assert {world.state(id) for id in world.ledger.ids()} <= {"aborted"}
    assert world.staged("a") == set()
    one.run(checkpoints=3)
    assert one.slept == []
    world.exact()


@pytest.mark.parametrize("record", ["plan.json", "runs/", "acks/"])
@pytest.mark.parametrize("landed", [True, False])
def test_an_interrupt_at_a_record_before_the_decision_ends_the_checkpoint(one, world, record, landed, monkeypatch):
    world.feed_more(9)
    interrupt_at(record, landed, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        one.run(checkpoints=3)
    assert {world.state(id) for id in world.ledger.ids()} <= {"aborted"}
    one.run(checkpoints=3)
    assert one.slept == [], "the next run finds nothing that it has to wait for"
    world.exact()


@pytest.mark.parametrize("record", ["manifest-", "decision.json", "published.json"])
@pytest.mark.parametrize("landed", [True, False])
def test_an_interrupt_at_the_decision_or_behind_it_loses_and_doubles_nothing(one, world, record, landed, monkeypatch):
    world.feed_more(9)
    interrupt_at(record, landed, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        one.run(checkpoints=3)
    if world.state(1) == "open":
        world.coordinator().complete(1)
    one.run(until_idle=True)
    world.exact()


def interrupt_at(record, landed, monkeypatch):
    create = LocalStore.create
    left = [1]

    def interrupted(self, path, data):
        if record in path and left:
            left.pop()
            if landed:
                create(self, path, data)
            raise KeyboardInterrupt
        return create(self, path, data)

    monkeypatch.setattr(LocalStore, "create", interrupted)


def test_an_interrupt_while_storage_is_down_is_still_an_interrupt(one, world, monkeypatch):
    world.feed_more(9)

    def fail():
        monkeypatch.setattr(LocalStore, "create", lambda *a: fail_once(Unavailable("no answer"))())
        raise KeyboardInterrupt

    world.weather.then["stage 1 on b"] = fail
    with pytest.raises(KeyboardInterrupt):
        one.run(checkpoints=3)


# -- others beside it ------------------------------------------------------------------------------------


def test_a_checkpoint_of_a_process_that_is_gone_is_ended_at_once(one, world):
    world.feed_more(6)
    world.trigger(DEAD)
    one.run(checkpoints=2)
    assert (world.state(1), world.ledger.decision(1).reason) == ("aborted", "RUN_GONE")
    assert one.slept == []
    world.exact()


def test_others_that_are_alive_are_waited_for(one, world):
    world.feed_more(6)
    alive = new_run()
    world.trigger(alive)
    one.while_asleep = [lambda: None, lambda: world.work(1), lambda: world.coordinator().complete(1)]
    one.run(checkpoints=1)
    assert one.told.of("completed") == [2]
    assert "waits for checkpoint 1:" in one.told.of("waiting")[0]
    world.exact()


def test_a_stop_while_waiting_for_others_ends_the_loop(one, world):
    world.feed_more(6)
    world.trigger(new_run())
    assert one.run(stop=lambda: len(one.slept) >= 3) == []


def test_ended_by_others_is_no_failure_and_its_input_is_in_the_next(one, world):
    """Somebody took us for dead. That was wrong: we plan another."""
    world.feed_more(3)
    world.weather.then["stage 2 on b"] = lambda: world.coordinator().abort(1, "RUN_GONE")
    outcomes = one.run(checkpoints=2)
    assert [(outcome.state, outcome.reason) for outcome in outcomes] == [("aborted", "RUN_GONE"), ("completed", "")]
    world.exact()


def test_with_two_at_once_the_second_waits_for_its_turn_and_both_complete(one, world):
    """The other process is in the middle of its job. Ours must neither fail nor stay open behind it."""
    world.limit(max_concurrent_checkpoints=2).feed_more(6)
    world.trigger(new_run())
    one.while_asleep = [lambda: None, lambda: world.work(1)]
    assert [outcome.state for outcome in one.run(checkpoints=1)] == ["completed"]
    assert [world.state(id) for id in world.ledger.ids()] == ["completed", "completed"]
    world.exact()


def test_with_two_at_once_a_base_whose_process_died_with_its_job_done_is_completed_by_whoever_waits(one, world):
    world.limit(max_concurrent_checkpoints=2).feed_more(6)
    world.trigger(new_run())
    world.work(1)
    assert [outcome.state for outcome in one.run(checkpoints=1)] == ["completed"]
    assert world.state(1) == "completed"
    world.exact()


@pytest.mark.parametrize("when", ["gone", "overdue"])
def test_with_two_at_once_a_base_that_never_gets_done_is_ended_by_whoever_waits(one, world, when):
    world.limit(max_concurrent_checkpoints=2).feed_more(6)
    world.trigger(new_run())

    def dies():
        if when == "overdue":
            world.age(1, 10_000)
        else:
            loop_gone.append("RUN_GONE")

    loop_gone = []
    one.while_asleep = [lambda: None, dies]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "abandoned_reason", lambda plan: "RUN_GONE" if plan.id == 1 and loop_gone else None)
        outcomes = one.run(checkpoints=2)
    assert [(outcome.state, outcome.reason) for outcome in outcomes] == [("aborted", "BASE_ABORTED"), ("completed", "")]
    world.exact()


def test_with_two_at_once_done_before_its_base_it_waits_instead_of_going_on(one, world):
    """It would stay open forever: its own process is alive, and nobody else would complete it."""
    world.limit(max_concurrent_checkpoints=2).feed_more(9)
    world.trigger(new_run())
    half = world.half_work(1)
    acked = []

    def ack():
        acked.append(half.ack(half.staged, None))

    # The base's job acks, but its process turns to something else before it decides.
    one.while_asleep = [ack]
    outcomes = one.run(checkpoints=2)
    assert [outcome.state for outcome in outcomes] == ["completed"] * 2
    assert [world.state(id) for id in world.ledger.ids()] == ["completed"] * 3
    world.exact()


# -- run ids ---------------------------------------------------------------------------------------------


def plan_of(world, run):
    world.feed_more(3)
    return world.coordinator().trigger(run).plan


@pytest.mark.parametrize(
    ("run", "answer"),
    [
        (DEAD, "RUN_GONE"),
        (f"process:{os.uname().nodename}:{os.getpid()}:1:0011", "RUN_GONE"),  # the pid was given to us since
        ("process:another-host:999999999:1:0011", None),
        ("scheduled__2026-03-01T00:00:00+00:00", None),
        (f"process:{os.uname().nodename}:not-a-pid:1:0011", None),
        ("process", None),
        ("process::::", None),
    ],
    ids=["dead", "pid given anew", "other host", "Airflow's", "no pid", "no parts", "empty parts"],
)
def test_whether_a_process_is_gone(world, run, answer):
    assert abandoned_reason(plan_of(world, run)) == answer


def test_a_living_process_is_not_gone(world):
    assert abandoned_reason(plan_of(world, new_run())) is None
    assert new_run() != new_run()
    assert quietly(lambda: world.trigger("x")) is not None


# -- by event --------------------------------------------------------------------------------------------


def test_by_event_each_arrival_is_a_checkpoint_and_a_pause_without_one_is_too(one, world):
    def arrive():
        world.feed_more(1)

    one.while_asleep = [arrive, lambda: None, arrive]
    ends = lambda: len(one.told.of("completed")) == 4  # noqa: E731
    one.run(by_event=True, max_pause_s=0.0, stop=ends)
    assert one.told.of("completed") == [1, 2, 3, 4]
    world.exact()


def test_by_event_a_pipeline_that_is_over_ends_the_process(one, world):
    one.run(checkpoints=1)
    control.stop(world.ledger, "ann", "not needed any more")
    with pytest.raises(Rejected, match="was stopped by ann"):
        one.run(by_event=True, max_pause_s=3600.0, stop=lambda: len(one.slept) > 5)


def test_by_event_the_checkpoint_of_a_process_that_is_gone_holds_nothing_up(one, world):
    dead = plan_of(world, DEAD).id
    one.run(by_event=True, max_pause_s=3600.0, stop=lambda: bool(one.told.of("completed")) or len(one.slept) > 5)
    assert (world.state(dead), one.told.of("completed")) == ("aborted", [2])


def test_by_event_input_that_another_run_has_read_makes_no_checkpoint(one, monkeypatch):
    one.run(checkpoints=1)
    looks = iter([Arrival("1", "there is new input for in")] * 2)
    monkeypatch.setattr(InputWatch, "look", lambda watch: next(looks, None))
    one.run(by_event=True, max_pause_s=3600.0, stop=lambda: len(one.slept) > 2)
    assert one.told.of("completed") == [1]
