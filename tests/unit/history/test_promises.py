"""How old a table is, and what breaks a promise: nothing but the age of the input that the table has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.slow_jobs import busy, toy_channels
from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyIntervals, ToySource
from tests.simulation.toy_backfill import Endless, backfilled
from tidegate import Pipeline, seams
from tidegate.connectors.source import Planned
from tidegate.errors import Invalid
from tidegate.execution.runs import abandoned_reason
from tidegate.history.health import condition, observe
from tidegate.history.promises import PromiseStatus, age_text, promises_now
from tidegate.lifecycle import control
from tidegate.lifecycle.rollback import roll_back
from tidegate.pipeline.promises import refuse_short_promises
from tidegate.records.interval import Interval
from tidegate.records.records import Lag

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    """What time it is for everybody."""

    now = NOON

    def after(self, minutes: float) -> None:
        self.now = NOON + timedelta(minutes=minutes)


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    clock = Clock()
    with seams.installed(replace(seams.current(), now=lambda: clock.now)):
        yield clock


def promising(world: Any, *sinks: str, fresh: str = "15 min") -> Any:
    """Let the world's pipeline promise that these sinks are fresh; "a" by default."""
    declare = world.pipeline

    def pipeline() -> Pipeline:
        declared: Pipeline = declare()
        declared.promise(list(sinks) or "a", fresh=fresh)
        return declared

    world.pipeline = pipeline
    return world


@pytest.fixture
def world(tmp_path: Path) -> ToyWorld:
    made: ToyWorld = promising(ToyWorld(tmp_path))
    return made


def promise(world: Any) -> PromiseStatus:
    (status,) = promises_now(world.ledger, 0)
    return status


def health(world: Any, **options: Any) -> Any:
    limits: Any = type("Limits", (), {"tolerable_failed_checkpoints": 0, "root": "s3://a", "data": "s3://a"})
    return condition(observe(world.ledger, limits, options.pop("gone", abandoned_reason), **options))


# -- what a table's age is ------------------------------------------------------------------------------


def test_a_table_is_as_old_as_the_input_of_its_last_checkpoint(world: ToyWorld, clock: Clock) -> None:
    world.feed_more(1)
    id = world.trigger("slow")
    clock.after(10)
    world.work(id)
    world.complete(id)
    world.publish()
    assert (promise(world).checkpoint, promise(world).input_until) == (1, NOON), "not when it was completed"
    assert promise(world).is_kept
    clock.after(15)
    assert promise(world).is_kept
    clock.after(16)
    assert not promise(world).is_kept
    assert (promise(world).lateness_s, promise(world).breaks_at) == (60, NOON + timedelta(minutes=15))


def test_a_checkpoint_that_finds_nothing_new_keeps_the_promise(world: ToyWorld, clock: Clock) -> None:
    world.checkpoint("first", rows=1)
    clock.after(14)
    world.checkpoint("nothing new")
    clock.after(20)
    assert (promise(world).checkpoint, promise(world).is_kept) == (2, True)


def test_what_is_not_on_the_table_yet_does_not_count(world: ToyWorld, clock: Clock) -> None:
    world.checkpoint("first", rows=1)
    clock.after(10)
    world.weather.stuck = {"a"}
    world.checkpoint("stuck", rows=1)
    clock.after(16)
    assert (promise(world).checkpoint, promise(world).is_kept) == (1, False)
    world.weather.stuck = set()
    world.publish()
    assert (promise(world).checkpoint, promise(world).is_kept) == (2, True)


def test_what_was_published_last_is_found_however_far_below_it_lies(world: ToyWorld, clock: Clock) -> None:
    world.checkpoint("first", rows=1)
    for number in range(4):
        id = world.trigger(f"aborted {number}")
        world.coordinator().abort(id, "CANCELLED")
    world.weather.stuck = {"a"}
    world.checkpoint("stuck", rows=1)
    clock.after(5)
    assert (promise(world).checkpoint, promise(world).is_kept) == (1, True)


def test_a_new_pipeline_has_as_long_for_its_first_checkpoint(world: ToyWorld, clock: Clock) -> None:
    assert promises_now(world.ledger, 0) == ()
    world.trigger("first")
    assert (promise(world).checkpoint, promise(world).is_kept) == (None, True)
    clock.after(16)
    assert not promise(world).is_kept
    assert "it has no completed checkpoint yet" in promise(world).text


def test_a_promise_for_a_new_sink_of_an_old_pipeline_is_not_broken_from_the_start(tmp_path: Path, clock: Clock) -> None:
    world = ToyWorld(tmp_path)
    world.checkpoint("long ago", rows=1)
    clock.after(600)
    world.sinks["new"] = 0
    promising(world, "new")
    world.trigger("first with it")
    clock.after(610)
    assert (promise(world).checkpoint, promise(world).is_kept) == (None, True)
    clock.after(616)
    assert not promise(world).is_kept


def test_a_suspension_does_not_stop_the_clock_but_the_end_of_the_pipeline_does(world: ToyWorld, clock: Clock) -> None:
    world.checkpoint("first", rows=1)
    control.suspend(world.ledger, "ann", "prices")
    clock.after(16)
    assert not promise(world).is_kept
    assert health(world).state == "suspended", "that is the cause"
    control.resume(world.ledger, "ann", "")
    control.stop(world.ledger, "ann", "no longer needed")
    assert promises_now(world.ledger, 0) == ()


def test_a_rollback_makes_a_table_old_again(world: ToyWorld, clock: Clock) -> None:
    world.checkpoint("first", rows=1)
    clock.after(10)
    world.checkpoint("second", rows=1)
    clock.after(16)
    assert promise(world).is_kept
    roll_back(world.coordinator(), 1, run="back", by="ann", choices={})
    world.publish()
    assert (promise(world).checkpoint, promise(world).input_until, promise(world).is_kept) == (1, NOON, False)
    world.checkpoint("third")
    assert (promise(world).checkpoint, promise(world).is_kept) == (4, True)


def test_a_swap_leaves_a_table_as_new_as_what_was_replayed(tmp_path: Path, clock: Clock) -> None:
    world: Endless = promising(Endless(tmp_path))
    for number in range(3):
        clock.after(number)
        world.checkpoint(f"run {number}")
    clock.after(10)
    swapped = backfilled(world, 1)
    assert promise(world).input_until == NOON + timedelta(minutes=2), "it has read no more than the pipeline had"
    assert promise(world).checkpoint == 3
    assert swapped.id == 4
    assert world.ledger.plan(4).promises == {}  # type: ignore[union-attr]


class TellsAges(ToySource):
    """A source that knows how old the oldest row is that it leaves: as many minutes as rows."""

    def plan(self, start: Any, context: Any) -> Planned:
        planned = super().plan(start, context)
        rows = self.feed.available - planned.end["at"]
        return replace(planned, lag=Lag(rows=rows, seconds=60.0 * rows if rows else None))


def test_input_that_a_checkpoint_leaves_waiting_makes_a_table_older(tmp_path: Path) -> None:
    world: ToyWorld = promising(ToyWorld(tmp_path))
    world.source = TellsAges(world.feed, bound=3)
    world.checkpoint("first", rows=20)
    assert (promise(world).age_s, promise(world).is_kept) == (17 * 60, False)
    world.checkpoint("second")
    assert (promise(world).age_s, promise(world).is_kept) == (14 * 60, True)
    for number in range(5):
        world.checkpoint(f"later {number}")
    assert promise(world).age_s == 0


def test_a_job_that_was_overtaken_keeps_its_own_table_old_and_no_other(tmp_path: Path, clock: Clock) -> None:
    with toy_channels():
        story, work = busy(tmp_path)
        coordinator = story.coordinator

        def with_promises() -> Any:
            made = coordinator()
            made.graph = replace(made.graph, promises={"a": 900.0, "b": 900.0, "c": 900.0})
            return made

        story.coordinator = with_promises  # type: ignore[method-assign]
        clock.after(5)
        third = story.planned()
        story.work(third, "slower")
        assert story.refused(third) == "PASSED_BY"
        story.completed(2, third)
        story.coordinator().publish()
        found = {status.sink: (status.checkpoint, status.input_until) for status in promises_now(story.ledger, 0)}
        assert found["a"] == (3, NOON + timedelta(minutes=5))
        assert found["b"] == (1, NOON), "its job still works on checkpoint 2"
        story.ended(work)


def test_an_interval_pipeline_is_as_new_as_its_latest_interval(tmp_path: Path, clock: Clock) -> None:
    world = ToyWorld(tmp_path)
    world.source = ToyIntervals(world.feed)
    promising(world, fresh="90 min")

    def interval(hours: int) -> tuple[datetime, datetime]:
        bounds = NOON + timedelta(hours=hours - 1), NOON + timedelta(hours=hours)
        world.feed.intervals[Interval.between(*bounds)] = [hours + 100]
        return bounds

    world.checkpoint("this hour's", interval=interval(0))
    assert (promise(world).checkpoint, promise(world).input_until) == (1, NOON)
    clock.after(60)
    world.checkpoint("yesterday's", interval=interval(-24))
    assert promise(world).input_until == NOON, "an old interval makes the table no newer, and no older"
    clock.after(100)
    world.checkpoint("another of yesterday's", interval=interval(-23))
    assert not promise(world).is_kept
    world.checkpoint("the next", interval=interval(1))
    assert (promise(world).input_until, promise(world).is_kept) == (NOON + timedelta(hours=1), True)


# -- what is told of it -----------------------------------------------------------------------------------


def test_a_broken_promise_is_a_state_of_its_own_only_if_nothing_else_is_known(world: ToyWorld, clock: Clock) -> None:
    world.checkpoint("first", rows=1)
    assert health(world).state == "well"
    clock.after(16)
    stale = health(world)
    assert (stale.state, stale.reason, stale.needs_nothing) == ("stale", "PROMISE_BROKEN", False)
    assert "sink a is more than 15 min old since 2026-03-01 12:15:00 UTC" in stale.summary
    assert "scheduler" in stale.remedy[0]
    assert health(world, paused=True).remedy == ("unpause the DAG",)
    id = world.trigger("second")
    assert (health(world).state, health(world).checkpoint) == ("stale", id), "more than that somebody works at it"
    world.work(id)
    world.complete(id)
    world.publish()
    assert health(world).state == "well"


def test_ages_are_told_in_two_units() -> None:
    texts = {0: "0 s", 59.6: "1 min", 61: "1 min 1 s", 3600: "1 h", 3660: "1 h 1 min", 90_000: "1 d 1 h"}
    assert {seconds: age_text(seconds) for seconds in texts} == texts


# -- how it is declared -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sinks", "fresh", "expected"),
    [
        ("a", "soon", "fresh='soon'"),
        ("a", "0 s", "fresh='0 s'"),
        ("a", "never", "fresh='never'"),
        ([], "15 min", "a promise is for []"),
        (7, "15 min", "a promise is for 7"),
    ],
)
def test_a_promise_has_a_sink_and_a_duration(sinks: Any, fresh: str, expected: str) -> None:
    with pytest.raises(Invalid) as error:
        Pipeline("orders").promise(sinks, fresh=fresh)
    assert expected in error.value.what
    assert error.value.help


def test_a_promise_for_no_sink_names_the_nearest_one(tmp_path: Path) -> None:
    world = ToyWorld(tmp_path, sinks={"revenue": 0, "orders": 0})
    with pytest.raises(Invalid, match=r"the promise for 'revenu' is for no sink: did you mean 'revenue'\?"):
        promising(world, "revenu").graph()
    with pytest.raises(Invalid, match="sink 'orders' has two promises"):
        promising(ToyWorld(tmp_path, sinks={"orders": 0}), "orders", "orders").graph()


def test_a_promise_must_leave_time_between_two_checkpoints(world: ToyWorld) -> None:
    def settings(**values: Any) -> Any:
        return type("Settings", (), {"by_event": False, "interval": None, "max_pause": 300.0, **values})

    for kept in ({"interval": 300.0}, {"interval": None}, {"by_event": True}):
        refuse_short_promises(world.graph(), settings(**kept))
    with pytest.raises(Invalid, match="within 15 min, and interval is 15 min"):
        refuse_short_promises(world.graph(), settings(interval=900.0))
    with pytest.raises(Invalid, match="within 15 min, and max_pause is 1 h"):
        refuse_short_promises(world.graph(), settings(by_event=True, max_pause=3600.0))
