"""Interval pipelines: independent intervals, in any order, each replaced by its highest completed checkpoint."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import DriftingToySource, ToyIntervals, ToySink, ToySource
from tidegate import Pipeline
from tidegate.coordinator import AlreadyCovered, Coordinator
from tidegate.errors import Corrupt, Invalid, Rejected, Unavailable
from tidegate.execution.by_hand.editing import bootstrap, edit_state
from tidegate.execution.finish import finish
from tidegate.history import health
from tidegate.ledger.ledger import stamp
from tidegate.records.interval import Interval
from tidegate.records.records import Ack, Drain, Drift, Filled, FoundColumn, JobStats
from tidegate.sources import Files

DAY = datetime(2026, 1, 1, tzinfo=UTC)
NAIVE = DAY.replace(tzinfo=None)


def hour(number: int, hours: int = 1) -> tuple[datetime, datetime]:
    return DAY + timedelta(hours=number), DAY + timedelta(hours=number + hours)


class Intervals(ToyWorld):
    """An interval pipeline: hour n has the rows 10 n + 1 to 10 n + 3 at first."""

    def begin(self) -> Intervals:
        self.source = ToyIntervals(self.feed)
        self.limit(max_concurrent_checkpoints=3)
        for number in range(24):
            self.rows(number, [10 * number + 1, 10 * number + 2, 10 * number + 3])
        return self

    def rows(self, number: int, offsets: Sequence[int]) -> None:
        self.feed.intervals[Interval.between(*hour(number))] = list(offsets)

    def ask(self, run: str, number: int, **options: object) -> int:
        """Trigger; answers with the checkpoint's id."""
        triggered = self.coordinator().trigger(run, interval=hour(number), **options)
        assert not isinstance(triggered, AlreadyCovered)
        assert triggered is not None
        return triggered.plan.id

    def make(self, run: str, number: int, **options: object) -> int:
        """A whole run up to its decision."""
        id = self.ask(run, number, **options)
        self.work(id)
        assert self.coordinator().complete(id).state == "completed"
        return id

    def whole(self, run: str, number: int, **options: object) -> int:
        id = self.make(run, number, **options)
        self.coordinator().publish()
        self.coordinator().retire()
        return id

    def live(self, table: str) -> list[int]:
        """What a reader sees."""
        toy = self.tables[table]
        return sorted(offset for name in toy.live() for offset, _ in toy.files[name])

    def expected(self, *numbers: int) -> list[int]:
        return sorted(offset for n in numbers for offset in self.feed.intervals[Interval.between(*hour(n))])


@pytest.fixture
def world(tmp_path: Path) -> Intervals:
    return Intervals(tmp_path).begin()


# -- any order -------------------------------------------------------------------------------------------


def test_intervals_are_made_in_any_order_and_rest_on_nothing(world):
    order = list(range(10))
    random.Random(7).shuffle(order)
    for number in order:
        world.whole(f"run {number}", number)
    assert world.live("a") == world.live("b") == world.expected(*range(10))
    assert all(world.ledger.entry(id).plan.base is None for id in world.ledger.ids())


def test_several_at_once_complete_in_any_order(world):
    ids = [world.ask(f"run {number}", number) for number in (5, 3, 4)]
    for id in reversed(ids):
        world.work(id)
        assert world.coordinator().complete(id).state == "completed"
        world.coordinator().publish()
    assert world.live("a") == world.expected(3, 4, 5)
    assert world.published("a") == [3, 2, 1]
    assert world.ledger.view().settled == 3


def test_the_hint_stays_below_what_is_open_though_higher_ones_are_published(world):
    low, high = world.ask("low", 1), world.ask("high", 2)
    world.work(high)
    world.coordinator().complete(high)
    world.coordinator().publish()
    assert world.live("a") == world.expected(2)
    assert world.ledger.view().settled == 0
    world.work(low)
    world.coordinator().complete(low)
    world.coordinator().publish()
    assert world.live("a") == world.expected(1, 2)
    assert world.ledger.view().settled == high


class DriftingIntervals(DriftingToySource, ToyIntervals):
    """Intervals whose schema follows their input."""


def test_a_schema_has_what_intervals_found_that_were_planned_at_once(world):
    world.source = DriftingIntervals(world.feed)

    def find(id: int, path: str) -> None:
        found = FoundColumn(path=path, kind="new", type="boolean", records=1, file="1.json")
        world.source.found = Drift(found=[found], records=1)
        world.work(id)
        assert world.coordinator().complete(id).state == "completed"
        world.source.found = None

    def ddl(id: int) -> str:
        return world.ledger.entry(id).plan.sources["in"].schema.ddl

    low, lost, high = world.ask("low", 1), world.ask("lost", 2), world.ask("high", 3)
    world.coordinator().abort(lost, "it takes too long")
    find(high, "vip")
    beside = world.ask("beside", 4)
    assert "vip" not in ddl(beside), "what is open below it may still find something, and that comes first"
    find(low, "coupon")
    world.work(beside)
    world.coordinator().complete(beside)
    world.coordinator().publish()
    assert world.ledger.view().settled == beside, "so the view has none of them but the last"
    assert ddl(world.make("next", 5)).endswith("`coupon` boolean, `vip` boolean")
    assert ddl(world.make("later", 6)).endswith("`coupon` boolean, `vip` boolean")


def test_an_interval_waits_for_a_free_place_like_any_checkpoint(world):
    world.limit(max_concurrent_checkpoints=1)
    first = world.ask("run 1", 1)
    with pytest.raises(Rejected, match=f"waits for checkpoint {first}: max_concurrent_checkpoints is 1"):
        world.ask("run 2", 2)


def test_an_expired_one_is_given_up_and_nobody_else_is_harmed(world):
    dead, alive = world.ask("dead", 1), world.ask("alive", 2)
    world.age(dead, 10_000)
    world.ask("next", 3)
    assert world.state(dead) == "aborted"
    assert world.state(alive) == "open"
    assert world.whole("again", 1) == 4
    assert world.live("a") == world.expected(1)


# -- again -----------------------------------------------------------------------------------------------


def test_a_new_run_for_a_completed_interval_is_a_no_op_that_says_so(world):
    id = world.whole("first", 1)
    answer = world.coordinator().trigger("second", interval=hour(1))
    assert isinstance(answer, AlreadyCovered)
    assert answer.checkpoint == id
    assert "--reprocess" in answer.why
    assert world.ledger.view().last_id == id


def test_the_no_op_publishes_what_its_interval_is_still_owed(world):
    world.make("first", 1)
    assert world.live("a") == []
    assert isinstance(world.coordinator().trigger("second", interval=hour(1)), AlreadyCovered)
    assert world.live("a") == world.expected(1)


def test_an_interval_is_not_called_done_while_a_table_does_not_show_it(world):
    """The run would be green, and nobody would look again: in a backfill, no later run comes by itself."""
    id = world.make("first", 1)
    world.weather.stuck.add("b")
    with pytest.raises(Unavailable, match=f"checkpoint {id} is completed, but sink 'b' could not be published to"):
        world.coordinator().trigger("second", interval=hour(1))
    world.weather.stuck.clear()
    assert isinstance(world.coordinator().trigger("second", interval=hour(1)), AlreadyCovered)
    assert world.live("a") == world.live("b") == world.expected(1)


def test_the_same_run_again_adopts_what_it_made(world):
    id = world.whole("run", 1)
    for reprocess in (False, True):
        again = world.coordinator().trigger("run", interval=hour(1), reprocess=reprocess)
        assert again is not None
        assert again.adopted
        assert again.plan.id == id


def test_reprocessing_replaces_exactly_the_interval_in_one_commit_per_table(world):
    for number in range(3):
        world.whole(f"run {number}", number)
    before = len(world.tables["a"].commits)
    world.rows(1, [17, 18])
    world.whole("again", 1, reprocess=True)
    assert world.live("a") == world.live("b") == world.expected(0, 1, 2)
    assert len(world.tables["a"].commits) == before + 1


def test_an_interval_that_has_no_rows_any_more_is_emptied(world):
    world.whole("first", 1)
    world.rows(1, [])
    world.whole("again", 1, reprocess=True)
    assert world.live("a") == []
    world.rows(1, [11])
    world.whole("once more", 1, reprocess=True)
    assert world.live("a") == [11]


def test_while_an_interval_is_being_made_nobody_else_makes_it(world):
    world.whole("first", 1)
    second = world.ask("second", 1, reprocess=True)
    with pytest.raises(Rejected, match=f"waits for checkpoint {second}: its interval overlaps"):
        world.ask("third", 1, reprocess=True)


def test_the_highest_id_wins_and_a_lower_one_that_was_owed_is_left_out(world):
    first = world.make("first", 1)
    world.weather.stuck = {"a", "b"}
    world.rows(1, [17])
    second = world.make("second", 1, reprocess=True)
    world.weather.stuck = set()
    world.coordinator().publish()
    assert world.published("a") == [second], "the lower one is not published at all"
    assert world.live("a") == [17]
    assert world.ledger.view().settled == second > first


def test_what_is_empty_is_committed_too_so_that_a_late_publisher_loses_the_version(world):
    world.whole("zero", 0)
    world.rows(1, [])
    id = world.whole("first", 1)
    assert world.published("a") == world.published("b") == [1, id]
    assert world.live("a") == world.expected(0)


def test_a_zombie_that_read_table_and_log_long_ago_loses_the_version(world):
    world.make("first", 1)

    def others_continue() -> None:
        world.coordinator().publish()
        world.rows(1, [])
        world.whole("second", 1, reprocess=True)

    world.weather.then["commit 1 on a"] = others_continue
    world.coordinator().publish()
    assert world.live("a") == []
    assert world.published("a") == [1, 2]


# -- retention -------------------------------------------------------------------------------------------


def test_an_interval_can_be_replaced_after_its_checkpoint_was_forgotten(world):
    world.limit(num_retained=1)
    for number in range(6):
        world.whole(f"run {number}", number)
    assert len(world.ledger.ids()) == 1
    world.rows(2, [27])
    world.whole("again", 2, reprocess=True)
    assert world.live("a") == world.live("b") == world.expected(*range(6))


def test_a_forgotten_interval_is_still_known_as_done(world):
    world.limit(num_retained=1)
    first = world.whole("run 0", 0)
    for number in range(1, 4):
        world.whole(f"run {number}", number)
    answer = world.coordinator().trigger("late", interval=hour(0))
    assert isinstance(answer, AlreadyCovered)
    assert answer.checkpoint == first
    with pytest.raises(Invalid, match="overlaps"):
        world.coordinator().trigger("daily", interval=hour(0, 24))


def test_retention_keeps_all_that_is_live(world):
    world.limit(num_retained=1)
    for number in range(5):
        world.whole(f"run {number}", number)
    for number in range(5):
        world.rows(number, [10 * number + 7])
        world.whole(f"again {number}", number, reprocess=True)
    for table in "ab":
        assert all(name in world.tables[table].files for name in world.tables[table].live())
    assert world.live("a") == world.expected(*range(5))


def test_a_crash_between_publish_and_index_is_made_good(world):
    """The hint does not move before the index is there."""
    world.make("first", 1)
    coordinator = world.coordinator()
    dies = mock.Mock(side_effect=KeyboardInterrupt)
    with mock.patch.object(coordinator.ledger, "index_interval", dies), pytest.raises(KeyboardInterrupt):
        coordinator.publish()
    assert world.live("a") == world.expected(1)
    assert world.ledger.intervals() == []
    assert world.ledger.view().settled == 0
    world.coordinator().publish()
    assert world.ledger.intervals() == [Interval.between(*hour(1))]
    assert world.published("a") == [1]


# -- many ----------------------------------------------------------------------------------------------


def indexed(world, *intervals: Interval) -> None:
    """As if all of these had been made: their names are all that is listed."""
    world.ledger.start()
    for interval in intervals:
        Path(world.ledger.home, "intervals", interval.key).mkdir(parents=True)


def listed(world, monkeypatch) -> list[int]:
    """How many names each listing of the index gives, as triggers continue."""
    store, counted = type(world.ledger.store), []
    names = store.names

    def count(self, folder, *bounds, **named):
        found = names(self, folder, *bounds, **named)
        if folder == "intervals":
            counted.append(len(found))
        return found

    monkeypatch.setattr(store, "names", count)
    return counted


def test_what_a_trigger_lists_does_not_grow_with_the_intervals_that_were_made(world, monkeypatch):
    indexed(world, *(Interval.between(*hour(number)) for number in range(-500, 500)))
    counted = listed(world, monkeypatch)
    near = world.ledger.overlapping_intervals
    assert near(Interval.between(*hour(500))) == [Interval.between(*hour(499))], "the next one"
    assert Interval.between(*hour(0)) in near(Interval.between(*hour(0))), "one that is made again"
    assert near(Interval.between(*hour(520))) == [Interval.between(*hour(number)) for number in range(488, 500)]
    assert 0 < sum(counted) < 20
    world.ledger.index_interval(Filled(**stamp("filled"), id=7, interval=Interval.between(*hour(3)).record, traces={}))
    again = world.coordinator().trigger("again", interval=hour(3))
    assert isinstance(again, AlreadyCovered)
    assert again.checkpoint == 7
    world.feed.intervals[Interval.between(*hour(500))] = [1]
    assert not isinstance(world.coordinator().trigger("the next one", interval=hour(500)), AlreadyCovered)
    assert 0 < sum(counted) < 40


@pytest.mark.parametrize("seed", range(5))
def test_every_interval_that_overlaps_is_found_however_far_back_it_begins(world, seed):
    chance, at, made = random.Random(seed), -2000, []
    for _ in range(60):
        at += chance.choice((0, 0, 1, 3, 90))
        hours = chance.choice((1, 1, 1, 5, 200))
        made.append(Interval.between(*hour(at, hours)))
        at += hours
    indexed(world, *made)
    for _ in range(300):
        asked = Interval.between(*hour(chance.randint(-2100, at + 100), chance.choice((1, 1, 7, 300))))
        found = world.ledger.overlapping_intervals(asked)
        assert {each for each in made if each.overlaps(asked)} == {each for each in found if each.overlaps(asked)}
    assert world.ledger.overlapping_intervals(Interval(datetime.min.replace(tzinfo=UTC), made[0].start)) == []


# -- what does not fit -----------------------------------------------------------------------------------


def test_overlapping_intervals_are_refused_disjoint_ones_are_not(world):
    world.whole("hourly", 5)
    with pytest.raises(Invalid, match="overlaps") as error:
        world.coordinator().trigger("daily", interval=hour(0, 24))
    assert error.value.reason == "INTERVALS_OVERLAP"
    assert world.ledger.view().last_id == 1, "refused before anything is planned"
    world.feed.intervals[Interval.between(*hour(6, 18))] = [99]
    assert world.coordinator().trigger("rest of the day", interval=hour(6, 18)).plan.id == 2


def test_an_open_overlapping_interval_is_waited_for(world):
    dead = world.ask("hourly", 5)
    with pytest.raises(Rejected, match=f"waits for checkpoint {dead}: its interval overlaps"):
        world.coordinator().trigger("daily", interval=hour(0, 24))
    world.coordinator().abort(dead, "CANCELLED")
    assert world.coordinator().trigger("daily", interval=hour(0, 24)).plan.id == 2


@pytest.mark.parametrize("given", [None, (DAY, DAY)])
def test_a_run_without_an_interval_is_refused(world, given):
    with pytest.raises(Invalid, match="reads by data interval") as error:
        world.coordinator().trigger("manual", interval=given)
    assert error.value.reason == "NO_INTERVAL"
    assert world.ledger.identity() is None, "nothing was written"


@pytest.mark.parametrize("given", [(hour(2)[0], hour(1)[0]), (NAIVE, NAIVE), ("a", "b")])
def test_an_interval_that_is_none_is_refused(world, given):
    with pytest.raises(Invalid, match="not allowed"):
        world.coordinator().trigger("run", interval=given)


def test_its_time_has_no_end(world):
    with pytest.raises(Invalid, match="event time ends with each interval"):
        world.ask("one", 1, drain=Drain(by="ann"))
    assert world.ledger.ids() == []


class Windowed(Intervals):
    """The same hours, counted by two."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name)
        rows = pipeline.source("in", ToyIntervals(self.feed), event_time="at")
        rows.window(tumbling="2 hours", n="count(*)", uid="two").sink("a", ToySink("a", self.tables))
        return pipeline


def test_an_interval_with_a_part_of_a_window_is_refused_before_anything_is_written(tmp_path):
    """Both hours would give the window, each a half of it."""
    world = Windowed(tmp_path).begin()
    with pytest.raises(
        Invalid, match="window 'two': windows of 2 h, .* do not fill interval 2026-01-01T01:00"
    ) as error:
        world.ask("one", 1)
    assert error.value.reason == "INTERVAL_SPLITS_WINDOWS"
    assert world.ledger.identity() is None, "nothing was written"
    planned = world.coordinator().trigger("both", interval=hour(0, 2)).plan
    assert planned.commits == ["a"], "no state is kept"


def test_what_an_operator_remembers_cannot_be_changed_where_it_remembers_nothing(tmp_path):
    world = Windowed(tmp_path).begin()
    for change in (partial(bootstrap, rows={"in": None}), partial(edit_state, change=lambda rows: rows)):
        with pytest.raises(Invalid, match="operator 'two' has no state") as error:
            change(world.coordinator(), None, "two")
        assert error.value.reason == "BY_INTERVAL"
    assert world.ledger.ids() == []


def test_sources_by_interval_and_others_are_not_mixed():
    pipeline = Pipeline("mixed")
    world = ToyWorld(Path("/nowhere"))
    pipeline.source("hourly", ToyIntervals(world.feed)).sink("a", ToySink("a", world.tables))
    pipeline.source("stream", ToySource(world.feed)).sink("b", ToySink("b", world.tables))
    with pytest.raises(Invalid, match="source hourly reads by data interval, stream reads all new rows"):
        pipeline.graph()


def test_a_pipeline_does_not_change_from_one_kind_to_the_other(world):
    world.whole("run", 1)
    world.source = None
    with pytest.raises(Invalid, match="has run by interval") as error:
        world.coordinator().trigger("manual")
    assert error.value.reason == "PIPELINE_KIND_CHANGED"


def test_a_table_that_was_made_again_is_noticed(world):
    world.whole("run", 1)
    world.tables.tables.clear()
    with pytest.raises(Corrupt, match="is missing"):
        world.whole("run 2", 2)


# -- continuous pipelines --------------------------------------------------------------------------------


@pytest.fixture
def continuous(tmp_path: Path) -> ToyWorld:
    return ToyWorld(tmp_path)


def run(world: ToyWorld, name: str, interval: tuple[datetime, datetime] | None) -> int:
    world.feed_more(1)
    coordinator: Coordinator = world.coordinator()
    triggered = coordinator.trigger(name, interval=interval)
    assert not isinstance(triggered, AlreadyCovered)
    assert triggered is not None
    world.work(triggered.plan.id)
    assert coordinator.complete(triggered.plan.id).state == "completed"
    coordinator.publish()
    return triggered.plan.id


def test_a_continuous_pipeline_that_went_past_an_interval_does_nothing_and_says_so(continuous):
    run(continuous, "3", hour(3))
    last = run(continuous, "5", hour(5))
    for number in (3, 4, 5):
        answer = continuous.coordinator().trigger(f"backfill {number}", interval=hour(number))
        assert isinstance(answer, AlreadyCovered)
        assert answer.checkpoint == last
    assert run(continuous, "6", hour(6)) == 3


def test_a_run_without_an_interval_in_between_does_not_forget_how_far_the_others_went(continuous):
    run(continuous, "3", hour(3))
    run(continuous, "manual", None)
    assert isinstance(continuous.coordinator().trigger("backfill", interval=hour(3)), AlreadyCovered)


def test_what_lies_before_the_first_checkpoint_is_refused_with_what_to_do(continuous):
    run(continuous, "3", hour(3))
    with pytest.raises(Rejected, match="begins before the first interval") as error:
        continuous.coordinator().trigger("backfill", interval=hour(2))
    assert error.value.reason == "BEFORE_FIRST_CHECKPOINT"


def test_an_aborted_checkpoint_covers_nothing(continuous):
    continuous.feed_more(1)
    id = continuous.coordinator().trigger("3", interval=hour(3)).plan.id
    continuous.coordinator().abort(id, "CANCELLED")
    assert continuous.coordinator().trigger("again", interval=hour(3)).plan.id == id + 1


def test_a_continuous_pipeline_is_not_reprocessed(continuous):
    with pytest.raises(Invalid, match="is continuous") as error:
        continuous.coordinator().trigger("backfill", interval=hour(3), reprocess=True)
    assert error.value.reason == "NOT_INDEPENDENT"


# -- what was left out ------------------------------------------------------------------------------------


def standing(world):
    limits = type("Limits", (), {"tolerable_failed_checkpoints": 0, "root": "s3://a", "data": "s3://a"})
    return health.condition(health.observe(world.ledger, limits, lambda plan: None))


def test_time_that_was_left_out_is_told_until_it_is_made(world):
    """Also once the intervals around it are known from the index only."""
    world.limit(num_retained=1)
    for number in (2, 0, 1):
        world.whole(f"run {number}", number)
    assert standing(world).state == "well"
    for number in (6, 3, 9, 10):
        world.whole(f"run {number}", number)
    found = standing(world)
    assert (found.state, found.reason, found.needs_nothing) == ("skipping", "INTERVALS_MISSING", False)
    assert "2026-01-01T04:00/2026-01-01T06:00, 2026-01-01T07:00/2026-01-01T09:00 (UTC)" in found.cause
    assert "airflow backfill create --dag-id orders --from-date 2026-01-01T04:00:00+00:00" in found.remedy[0]
    for number in (4, 5, 7, 8):
        world.whole(f"later {number}", number)
    assert standing(world).state == "well"


def test_an_interval_that_failed_is_left_out_too_and_an_open_one_is_not(world):
    world.whole("first", 0)
    failed = world.ask("second", 1)
    world.coordinator().complete(failed, ("JOB_FAILED", "a torn file"))
    world.whole("third", 2)
    assert standing(world).reason == "INTERVALS_MISSING"
    world.ask("second again", 1)
    assert standing(world).state == "working"


def test_gaps_that_are_meant_are_not_told(world):
    with mock.patch.object(type(world.limits), "record", return_value={"gaps": "expected"}):
        world.whole("first", 0)
        world.whole("second", 5)
    assert standing(world).state == "well"


# -- a table that one interval cannot be replaced on --------------------------------------------------------


class Rewritten(ToySink):
    """A table of which others have rewritten the rows of hour 1: whose these are cannot be told."""

    mended = False

    def publish(self, publication, head, context):
        if publication.interval == Interval.between(*hour(1)) and publication.replaces is not None and not self.mended:
            raise Invalid("which rows are to be replaced cannot be told", help="RESTORE", reason="INTERVAL_REWRITTEN")
        return super().publish(publication, head, context)


@pytest.fixture
def rewritten(world, monkeypatch):
    """Hour 1 was made again, and after that others have rewritten its rows, before it was published."""
    monkeypatch.setattr("tests.kit.toy_world.ToySink", Rewritten)
    monkeypatch.setattr(Rewritten, "mended", False)
    world.whole("run 0", 0)
    world.whole("run 1", 1)
    world.rows(1, [17])
    world.make("again", 1, reprocess=True)
    return world


def test_an_interval_that_cannot_be_replaced_holds_back_no_other(rewritten):
    before = rewritten.ledger.view().settled
    for number in (2, 3, 4):
        rewritten.whole(f"run {number}", number)
    rewritten.rows(0, [5])
    rewritten.whole("again 0", 0, reprocess=True)
    assert rewritten.live("a") == sorted([11, 12, 13, *rewritten.expected(0, 2, 3, 4)])
    assert [rewritten.ledger.published(id) is not None for id in range(1, 8)] == [True, True, False] + [True] * 4
    assert rewritten.ledger.view().settled == before, "the log is read from there until it is published"
    found = standing(rewritten)
    assert (found.state, found.reason, found.checkpoint, found.remedy) == (
        "troubled",
        "INTERVAL_REWRITTEN",
        3,
        ("RESTORE",),
    )


def test_who_wants_that_interval_is_told_what_to_do_before_anything_is_planned(rewritten):
    for options in ({}, {"reprocess": True}):
        with pytest.raises(Invalid) as caught:
            rewritten.ask("once more", 1, **options)
        assert (caught.value.reason, caught.value.help) == ("INTERVAL_REWRITTEN", "RESTORE")
    assert rewritten.ledger.view().last_id == 3
    with pytest.raises(Invalid, match="cannot be told"):
        finish(rewritten.coordinator(), 3, None, give_up=lambda plan: None, wait=print)


def test_once_the_table_is_mended_it_is_published_and_all_is_well(rewritten):
    rewritten.whole("run 2", 2)
    Rewritten.mended = True
    rewritten.whole("run 3", 3)
    assert rewritten.live("a") == rewritten.live("b") == rewritten.expected(0, 1, 2, 3)
    assert standing(rewritten).state == "well"
    assert rewritten.ledger.view().settled == 5


# -- files that were archived --------------------------------------------------------------------------------


@pytest.mark.parametrize("retained", [100, 1])
def test_an_interval_whose_files_were_archived_is_not_replaced_with_nothing(tmp_path, retained):
    """Also once the checkpoint that made it is known from the index only."""
    world = ToyWorld(tmp_path)
    world.limit(num_retained=retained)
    landing = tmp_path / "landing"
    landing.mkdir()
    world.source = Files(f"{landing}/{{start:%H}}-*.json", schema="id long")
    world.sinks = {"a": 0}

    def made(run, number, **options):
        plan = world.coordinator().trigger(run, interval=hour(number), **options).plan
        ack = acknowledged(world, plan)
        world.ledger.create_ack(ack)
        assert world.coordinator().complete(plan.id).state == "completed"
        world.coordinator().publish()
        world.coordinator().retire()
        return plan.id

    (landing / "01-a.json").write_text('{"id": 1}')
    made("one", 1)
    for number in (2, 3):
        made(f"empty {number}", number)
    (landing / "01-a.json").rename(tmp_path / "01-a.json")
    with pytest.raises(Invalid, match="are all missing now") as caught:
        made("again", 1, reprocess=True)
    assert caught.value.reason == "INTERVAL_ARCHIVED"
    assert made("never had any", 2, reprocess=True) == 4
    (landing / "01-none.json").write_text("")
    assert made("meant to be empty", 1, reprocess=True) == 5


def acknowledged(world, plan):
    """What a job would say that has staged a file for each file that was planned."""
    attempt = f"{plan.attempt}-{plan.id}"
    names = [f"{Interval.of_record(plan.interval).key}/{plan.id}"] if not plan.sources["in"].empty else []
    toy = world.tables["a"]
    key = Interval.of_record(plan.interval).key
    names = [f"{plan.id}/{attempt}/{key}/0"] if names else []
    for name in names:
        toy.files[name] = [(plan.id, attempt)]
    return Ack(
        **stamp(attempt),
        id=plan.id,
        job="main",
        prev=None,
        sinks={"a": world.ledger.pack({"files": names})},
        stats=JobStats(),
    )
