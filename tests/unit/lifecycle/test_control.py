"""Suspend and resume: nobody plans behind a suspension, and nothing is lost meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.kit.loop import DEAD
from tests.kit.toy_world import ToyWorld
from tidegate.coordinator import Coordinator
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.execution.finish import Finished, finish
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.execution.runs import new_run
from tidegate.lifecycle.control import resume, suspend
from tidegate.pipeline.hooks import Suspension, make_hook


def refused(world: ToyWorld, run: str, **options: object) -> Rejected:
    with pytest.raises(Rejected) as caught:
        world.trigger(run, **options)
    return caught.value


def shown(world: ToyWorld) -> list[int]:
    """Offsets on table a, in order."""
    table = world.tables["a"]
    return [offset for commit in table.commits for offset, _ in table.rows(commit)]


def fail(world: ToyWorld, run: str, *, counts: bool = True) -> int:
    id = world.trigger(run)
    world.coordinator().abort(id, "JOB_FAILED" if counts else "CANCELLED", "the disk is full", counts=counts)
    return id


def test_nobody_plans_while_it_is_suspended_and_the_input_waits(world: ToyWorld) -> None:
    world.checkpoint("r1", rows=3)
    world.coordinator().suspend("mia", "the feed is broken")
    world.feed_more(3)
    error = refused(world, "r2")
    assert error.reason == "SUSPENDED"
    assert "suspended by mia: the feed is broken" in str(error)
    assert "tidegate resume orders" in str(error)
    world.coordinator().resume("mia")
    world.checkpoint("r2")
    assert shown(world) == [1, 2, 3, 4, 5, 6]


def test_what_is_planned_already_continues_and_its_run_is_not_refused(world: ToyWorld) -> None:
    world.feed_more(3)
    id = world.trigger("r1")
    world.coordinator().suspend("mia", "")
    assert world.trigger("r1") == id
    world.work(id)
    assert world.coordinator().complete(id).state == "completed"
    world.coordinator().publish()
    assert len(shown(world)) == 3
    assert refused(world, "r2").reason == "SUSPENDED"


def test_a_pipeline_can_be_suspended_before_its_first_checkpoint(world: ToyWorld) -> None:
    assert world.coordinator().suspend("mia", "not yet") == 1
    assert refused(world, "r1").reason == "SUSPENDED"
    assert world.coordinator().resume("mia") == 2
    assert world.checkpoint("r1", rows=1) == 3


@pytest.mark.parametrize("tolerable", [0, 2])
def test_one_failure_more_than_is_tolerable_suspends(world: ToyWorld, tolerable: int) -> None:
    world.limit(tolerable_failed_checkpoints=tolerable)
    world.feed_more(3)
    failed = [fail(world, f"r{number}") for number in range(tolerable + 1)]
    error = refused(world, "late")
    assert error.reason == "SUSPENDED"
    assert f"Checkpoint {failed[-1]}: JOB_FAILED: the disk is full" in str(error)
    assert world.coordinator().suspended().failed_checkpoints == tuple(failed)
    world.coordinator().resume("mia", "more disk")
    for number in range(tolerable):
        fail(world, f"again{number}")
    assert world.checkpoint("last") > failed[-1], "failures are counted from the resumption on"


def test_a_completed_checkpoint_resets_the_count_and_only_what_counts_is_counted(world: ToyWorld) -> None:
    world.limit(tolerable_failed_checkpoints=1)
    fail(world, "r1")
    world.checkpoint("r2", rows=1)
    fail(world, "r3")
    for number in range(3):
        fail(world, f"c{number}", counts=False)
    assert world.checkpoint("r4", rows=1)


def test_a_completed_checkpoint_resets_the_count_before_it_is_published(world: ToyWorld) -> None:
    """A table that does not answer is no failure of the checkpoints."""
    world.limit(tolerable_failed_checkpoints=1)
    fail(world, "r1")
    world.weather.stuck.add("b")
    unpublished = world.decided("r2", rows=1)
    world.coordinator().publish()
    assert world.ledger.published(unpublished) is None
    fail(world, "r3")
    assert world.coordinator().suspended() is None
    world.weather.stuck.clear()
    assert world.checkpoint("r4", rows=1)


def test_retention_takes_old_acts_like_old_checkpoints(world: ToyWorld) -> None:
    world.limit(num_retained=2)
    for number in range(5):
        world.coordinator().suspend("mia", "")
        world.coordinator().resume("mia")
        world.checkpoint(f"r{number}", rows=1)
    assert len(world.ledger.ids()) <= 6
    assert shown(world) == [1, 2, 3, 4, 5]
    world.coordinator().suspend("mia", "")
    world.coordinator().retire()
    assert refused(world, "late").reason == "SUSPENDED"


def test_an_act_that_broke_off_is_finished_by_whoever_comes_next(world: ToyWorld) -> None:
    world.checkpoint("r1", rows=1)
    id = suspend(world.ledger, "mia", "")
    world.ledger.store.delete(f"checkpoints/{id:08d}/decision.json")
    assert world.coordinator().suspended() is not None, "it holds from its plan on"
    assert refused(world, "r2").reason == "SUSPENDED"
    assert world.ledger.decision(id).reason == "CONTROL"


def test_resuming_what_is_not_suspended_writes_nothing(world: ToyWorld) -> None:
    world.checkpoint("r1", rows=1)
    assert world.coordinator().resume("mia") is None
    assert world.ledger.ids() == [1]
    with pytest.raises(Invalid, match="run id"):
        world.coordinator().suspend("", "nobody said so")


def test_the_loop_continues_after_failures_but_not_after_a_person_said_stop(world: ToyWorld) -> None:
    told = []

    class Resumes(Observer):
        def resumed(self, failed: tuple[int, ...]) -> None:
            told.append(failed)

    world.limit(tolerable_failed_checkpoints=0)
    failed = fail(world, "r1")
    world.feed_more(1)
    assert [o.state for o in run_checkpoints(world.coordinator(), _no_spark(), Schedule(checkpoints=1), Resumes())] == [
        "completed"
    ]
    assert told == [(failed,)]
    world.coordinator().suspend("mia", "")
    with pytest.raises(Rejected, match="suspended by mia"):
        run_checkpoints(world.coordinator(), _no_spark(), Schedule(checkpoints=1), Resumes())


def test_the_loop_waits_for_a_swap_and_no_longer_than_somebody_swaps(world: ToyWorld) -> None:
    """`tidegate run` must survive the backfill that is swapped in beside it."""
    waited: list[str] = []

    class Swapping(Observer):
        def waiting(self, why: str) -> None:
            waited.append(why)
            resume(world.ledger, "backfill fix")

    def next_checkpoint() -> list[str]:
        world.feed_more(1)
        return [o.state for o in run_checkpoints(world.coordinator(), _no_spark(), Schedule(checkpoints=1), Swapping())]

    suspend(world.ledger, "backfill fix", "it is swapped in", run=new_run())
    assert next_checkpoint() == ["completed"]
    assert len(waited) == 1
    assert "suspended by backfill fix" in waited[0]
    suspend(world.ledger, "backfill fix", "it is swapped in", run=DEAD)
    suspend(world.ledger, "mia", "the feed is odd")
    with pytest.raises(Rejected, match="suspended by mia"):
        next_checkpoint()
    resume(world.ledger, "mia")
    suspend(world.ledger, "backfill fix", "it is swapped in", run=DEAD)
    assert next_checkpoint() == ["completed"]


class _no_spark:
    def __call__(self, job: str | None = None) -> None:
        return None

    def drop(self) -> None: ...


# -- min_pause -----------------------------------------------------------------------------------------


def test_a_scheduled_run_waits_for_the_pause_a_manual_one_does_not(world: ToyWorld) -> None:
    world.limit(min_pause=500.0)
    id = world.checkpoint("r1", rows=1)
    error = refused(world, "r2", kind="scheduled")
    assert error.reason == "MIN_PAUSE"
    assert 0 < error.wait_s <= 500
    assert world.trigger("by hand") == id + 1


def test_the_pause_is_over_when_the_store_says_so_and_a_clock_gone_back_holds_nobody(world: ToyWorld) -> None:
    world.limit(min_pause=500.0)
    id = world.checkpoint("r1", rows=1)
    decision = world.folder / f"checkpoints/{id:08d}/decision.json"
    for age in (501, -100_000):
        os.utime(decision, (time.time() - age,) * 2)
        later = world.trigger(f"r{age}", kind="scheduled")
        world.coordinator().abort(later, "CANCELLED", "")


def test_damage_in_the_log_is_told_before_any_suspension(world: ToyWorld) -> None:
    world.checkpoint("r1", rows=1)
    world.coordinator().suspend("mia", "")
    (world.folder / "checkpoints/00000001/plan.json").write_text("{}")
    with pytest.raises(Corrupt):
        world.trigger("r2")


# -- who is told ---------------------------------------------------------------------------------------


def told_by(world: ToyWorld, *hooks: Callable[[Suspension], object]) -> Coordinator:
    coordinator = world.coordinator()
    coordinator.graph = replace(coordinator.graph, on_suspended=hooks)
    return coordinator


def end(coordinator: Coordinator, id: int) -> Finished:
    return finish(coordinator, id, ("JOB_FAILED", "the disk is full"), give_up=lambda plan: None, wait=lambda: None)


def test_the_failure_that_suspends_tells_the_hooks_and_one_that_is_tolerated_does_not(world: ToyWorld) -> None:
    world.limit(tolerable_failed_checkpoints=1)
    told: list[Suspension] = []
    first = world.trigger("r1")
    assert end(told_by(world, told.append), first).suspension is None
    assert told == []
    second = world.trigger("r2")
    suspension = end(told_by(world, told.append), second).suspension
    assert suspension == Suspension("orders", "", "JOB_FAILED: the disk is full", (first, second))
    assert told == [suspension]


def test_whoever_aborted_it_may_die_before_the_hooks_are_told(world: ToyWorld) -> None:
    world.limit(tolerable_failed_checkpoints=0)
    told: list[Suspension] = []
    id = fail(world, "r1")
    assert end(told_by(world, told.append), id).outcome.state == "aborted"
    assert [each.failed for each in told] == [(id,)]


def test_a_hook_that_fails_changes_nothing_and_the_others_are_told(
    world: ToyWorld, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(suspension: Suspension) -> None:
        raise RuntimeError("the pager is off")

    world.limit(tolerable_failed_checkpoints=0)
    told: list[Suspension] = []
    id = world.trigger("r1")
    assert end(told_by(world, broken, told.append), id).outcome.state == "aborted"
    assert len(told) == 1
    assert "the pager is off" in caplog.text
    assert "tidegate resume orders" in caplog.text


def test_the_loop_tells_the_hooks_too(world: ToyWorld) -> None:
    class Broken:
        def __call__(self, job: str | None = None) -> None:
            raise Invalid("the stage is broken")

        def drop(self) -> None: ...

    world.limit(tolerable_failed_checkpoints=0)
    told: list[Suspension] = []
    with pytest.raises(Invalid, match="the stage is broken"):
        run_checkpoints(told_by(world, told.append), Broken(), Schedule(checkpoints=1), Observer())
    assert [each.failed for each in told] == [(1,)]


def test_the_first_run_that_a_persons_suspension_keeps_from_planning_tells_the_hooks_once(world: ToyWorld) -> None:
    """A page and a command have none of the pipeline's code."""
    told: list[Suspension] = []

    def run() -> None:
        with pytest.raises(Rejected, match="is suspended by mia"):
            run_checkpoints(told_by(world, told.append), lambda: None, Schedule(checkpoints=1), Observer())  # type: ignore[arg-type]

    suspend(world.ledger, "mia", "the feed is odd")
    run()
    assert told == [Suspension("orders", "mia", "the feed is odd")]
    run()
    assert len(told) == 1, "they know"
    resume(world.ledger, "mia")
    suspend(world.ledger, "mia", "odd again")
    run()
    assert [each.why for each in told] == ["the feed is odd", "odd again"]
    (world.folder / "told.json").write_text("{")
    run()
    assert len(told) == 3, "a hint that is lost costs another call"


def test_runs_that_cannot_plan_tell_the_hooks_once_there_are_more_than_are_tolerated(world: ToyWorld) -> None:
    """Nothing is suspended by that: the next run finds out by itself whether the cause is mended."""

    def away(*given: object) -> None:
        raise Invalid("the folder is away", help="mount it", reason="NO_FOLDER")

    world.limit(tolerable_failed_checkpoints=1)
    world.checkpoint("r1", rows=3)
    told: list[Suspension] = []

    def run() -> None:
        coordinator = told_by(world, told.append)
        coordinator.graph = replace(coordinator.graph, hooks=(make_hook("folder", "30 s", {"on_trigger": away}),))
        with pytest.raises(Invalid, match="is away"):
            run_checkpoints(coordinator, lambda: None, Schedule(checkpoints=1), Observer())  # type: ignore[arg-type]

    run()
    assert told == [], "one is tolerated"
    run()
    why = "2 runs in a row could not plan a checkpoint: NO_FOLDER: the folder is away"
    assert told == [Suspension("orders", "", why, suspended=False)]
    run()
    assert len(told) == 1, "they know"
    assert (world.ledger.ids(), world.coordinator().suspended()) == ([1], None)
    world.checkpoint("r2", rows=3)
    run()
    assert len(told) == 1, "a checkpoint was planned since: counted anew"
    run()
    assert len(told) == 2
