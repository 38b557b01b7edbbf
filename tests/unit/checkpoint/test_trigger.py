"""Which run gets which checkpoint, and what comes before."""

from dataclasses import replace

import msgspec
import pytest

from tests.kit.toy_world import ToyWorld, quietly
from tests.kit.toys import ToyFeed, ToySource
from tidegate.checkpoint import troubles
from tidegate.checkpoint.compatibility import check
from tidegate.checkpoint.planning import Plans
from tidegate.errors import Corrupt, Invalid, Rejected, Unavailable
from tidegate.ledger import Ledger, LocalStore
from tidegate.records.place import Place
from tidegate.records.records import Rollback


def test_runs_in_a_row_read_each_row_once_and_in_order(world):
    assert [world.checkpoint(f"run{n}", rows=3) for n in range(4)] == [1, 2, 3, 4]
    world.exact()
    assert world.published("a") == [1, 2, 3, 4]


def test_a_plan_says_what_is_to_be_done(world):
    world.checkpoint("one", rows=3)
    world.feed_more(5)
    triggered = world.coordinator().trigger("two", kind="scheduled")
    plan = triggered.plan
    assert not triggered.adopted
    assert (plan.id, plan.base, plan.run, plan.kind) == (2, 1, "two", "scheduled")
    assert (plan.triggers, plan.acks, plan.commits) == (["in"], ["main"], ["a", "b"])
    assert (plan.sources["in"].start, plan.sources["in"].end) == ({"at": 3}, {"at": 6})
    assert (plan.sources["in"].empty, plan.sources["in"].more) == (False, True)
    assert plan.timeout_s == 600.0
    assert plan.config == {"num_retained": 100}
    assert plan.code_fingerprint == world.coordinator().graph.code_fingerprint()


def test_a_job_with_more_memory_continues_from_where_it_was(world):
    for number, memory in enumerate(("1g", "8g", "8g"), 1):
        world.limits = replace(
            world.limits, recorded={"jobs": {"main.spark.executor.memory": memory, "main.pool": memory}}
        )
        coordinator = world.coordinator()
        base = world.ledger.view().last_completed
        assert base is None or check(coordinator, base) == []
        assert world.checkpoint(f"run {number}", rows=3) == number
        plan = world.ledger.plan(number)
        assert (plan.base, plan.config["jobs"]["main.pool"]) == (number - 1 or None, memory)
    world.exact()


def test_a_retried_trigger_adopts_what_the_run_has(world):
    world.feed_more(9)
    first = world.coordinator().trigger("run")
    again = world.coordinator().trigger("run")
    assert (first.adopted, again.adopted) == (False, True)
    assert again.plan == first.plan
    world.work(1)
    assert world.trigger("run") == 1
    world.coordinator().complete(1)
    assert world.trigger("run") == 1
    assert world.ledger.ids() == [1]


def test_a_trigger_that_died_before_the_index_is_adopted_all_the_same(world):
    world.feed_more(3)
    plan = world.coordinator().trigger("run").plan
    LocalStore(world.folder).delete("runs")
    assert world.trigger("run") == plan.id
    assert world.ledger.run_ids("run") == [1], "and the index is made good"


def test_another_run_waits_for_the_one_that_is_open(world):
    world.feed_more(9)
    world.trigger("one")
    with pytest.raises(Rejected) as caught:
        world.trigger("two")
    assert caught.value.reason == "CHECKPOINT_IN_PROGRESS"
    assert "waits for checkpoint 1: max_concurrent_checkpoints is 1" in caught.value.what
    assert "ends by itself" in caught.value.help
    assert world.ledger.ids() == [1]


def test_nothing_new_is_no_checkpoint_if_that_is_asked_for(world):
    assert world.coordinator().trigger("idle", only_if_new=True) is None
    assert world.ledger.ids() == []
    world.checkpoint("one", rows=3)
    assert world.coordinator().trigger("idle", only_if_new=True) is None
    assert world.checkpoint("empty") == 2, "but without asking it is one, and it publishes nothing"
    assert world.published("a") == [1]
    world.checkpoint("more", rows=2)
    world.exact()


def test_what_is_owed_is_published_before_anything_is_planned(world):
    """A source may read a table that is owed a publish."""
    world.decided("one", rows=3)
    seen = []
    world.source = Watching(world.feed, lambda: seen.append(world.published("a")))
    world.feed_more(3)
    world.trigger("two")
    assert seen == [[1]]


class Watching(ToySource):
    """Does something each time it is asked to plan."""

    def __init__(self, feed, act):
        super().__init__(feed)
        self.act = act

    def plan(self, start, context):
        self.act()
        return super().plan(start, context)


def test_two_runs_that_plan_at_the_same_moment_get_different_ids(world):
    """The second plans while the first has planned and not created yet: its own create loses, it looks again."""
    world.feed_more(9)
    world.limit(max_concurrent_checkpoints=2)
    between = [lambda: other.append(ToyWorld.trigger(world, "other"))]
    other = []

    def act():
        if between:
            between.pop()()

    world.source = Watching(world.feed, act)
    mine = world.trigger("mine")
    assert (other, mine) == ([1], 2)
    plan = world.ledger.entry(2).plan
    assert (plan.base, plan.sources["in"].start) == (1, {"at": 3}), "planned anew, on top of the other"


# -- two at once -----------------------------------------------------------------------------------------


def test_with_two_at_once_the_second_starts_where_the_plan_of_the_first_ends(world):
    world.limit(max_concurrent_checkpoints=2).feed_more(9)
    assert (world.trigger("one"), world.trigger("two")) == (1, 2)
    with pytest.raises(Rejected):
        world.trigger("three")
    with pytest.raises(Rejected, match="waits for checkpoint 1"):
        world.work(2)
    world.work(1)
    world.work(2)
    assert world.coordinator().complete(2).state == "open", "never before its base"
    assert world.coordinator().complete(1).state == "completed"
    assert world.coordinator().complete(2).state == "completed"
    world.coordinator().publish()
    world.exact()


def test_with_two_at_once_an_abort_takes_down_what_rests_on_it_and_its_input_comes_back(world):
    world.limit(max_concurrent_checkpoints=2).feed_more(9)
    world.trigger("one")
    world.trigger("two")
    world.work(1)
    world.work(2)
    world.coordinator().abort(1, "CANCELLED")
    assert world.coordinator().complete(2).reason == "BASE_ABORTED"
    assert world.checkpoint("two") == 3
    assert world.checkpoint("one") == 4
    world.exact()
    assert world.staged("a") == set(), "what the dead ones staged is gone"


def test_with_two_at_once_a_trigger_ends_what_is_dead_by_its_base(world):
    world.limit(max_concurrent_checkpoints=2).feed_more(9)
    world.trigger("one")
    world.trigger("two")
    world.coordinator().abort(1, "CANCELLED")
    assert world.trigger("three") == 3
    assert (world.state(2), world.ledger.decision(2).reason) == ("aborted", "BASE_ABORTED")
    assert world.ledger.entry(3).plan.base is None


# -- giving up -------------------------------------------------------------------------------------------


def test_what_is_past_its_timeout_is_ended_and_its_input_comes_back(world):
    world.feed_more(3)
    world.trigger("one")
    world.age(1, 599)
    assert isinstance(quietly(lambda: world.trigger("two")), Rejected)
    world.age(1, 601)
    assert world.trigger("two") == 2
    decision = world.ledger.decision(1)
    assert (decision.outcome, decision.reason, decision.counts) == ("aborted", "CHECKPOINT_EXPIRED", True)
    assert world.ledger.entry(2).plan.sources["in"].start is None


def test_past_its_timeout_but_with_all_acks_in_it_is_completed_not_ended(world):
    world.feed_more(3)
    world.trigger("one")
    world.work(1)
    world.age(1, 10_000)
    assert isinstance(quietly(lambda: world.trigger("two")), Rejected)
    assert world.coordinator().complete(1).state == "completed"


def test_completion_itself_gives_up_what_is_past_its_timeout(world):
    world.feed_more(3)
    world.trigger("one")
    assert world.coordinator().complete(1).state == "open"
    world.age(1, 601)
    outcome = world.coordinator().complete(1)
    assert (outcome.state, outcome.reason) == ("aborted", "CHECKPOINT_EXPIRED")
    assert "600 s" in outcome.detail


@pytest.mark.parametrize("by", ["trigger", "completion"])
@pytest.mark.parametrize(
    ("reason", "expected"),
    [("SPARK_START", ("ENVIRONMENT_FAILED", False)), ("SPARK_LOST", ("CHECKPOINT_EXPIRED", True))],
)
def test_a_timeout_that_passed_without_spark_is_no_failure_of_the_pipeline(world, by, reason, expected):
    """As far as its jobs have left word: whatever has met something else since had Spark."""
    world.feed_more(3)
    world.trigger("one")
    troubles.record_error(world.ledger, "one", "job main", Unavailable("the server did not start", reason=reason))
    world.age(1, 601)
    if by == "trigger":
        assert world.trigger("two") == 2
    else:
        outcome = world.coordinator().complete(1)
        assert (outcome.reason, outcome.counts) == expected
        assert ("did not start" in outcome.detail) is (not outcome.counts)
    decision = world.ledger.decision(1)
    assert (decision.reason, decision.counts) == expected


def test_word_of_another_checkpoint_excuses_none(world):
    world.feed_more(3)
    world.trigger("one")
    troubles.record_error(
        world.ledger, "one", "job main", Unavailable("the server did not start", reason="SPARK_START")
    )
    world.coordinator().abort(1, "TEST")
    assert world.trigger("two") == 2
    world.age(2, 601)
    assert world.coordinator().complete(2).reason == "CHECKPOINT_EXPIRED"


def test_the_run_itself_adopts_what_is_past_its_timeout(world):
    world.feed_more(3)
    world.trigger("one")
    world.age(1, 10_000)
    assert world.trigger("one") == 1
    world.work(1)
    assert world.coordinator().complete(1).state == "completed"


def test_a_hint_that_a_run_is_gone_ends_its_checkpoint(world):
    world.feed_more(3)
    world.trigger("one")
    asked = []

    def give_up(plan):
        asked.append(plan.run)
        return "RUN_GONE"

    assert world.trigger("two", give_up=give_up) == 2
    assert asked == ["one"]
    assert (world.ledger.decision(1).reason, world.ledger.decision(1).counts) == ("RUN_GONE", False)


def test_a_wrong_hint_loses_against_a_completion_and_costs_nothing(world):
    world.feed_more(6)
    world.trigger("one")
    world.work(1)

    def give_up(plan):
        world.coordinator().complete(1)  # it was alive after all
        return "RUN_GONE"

    assert world.trigger("two", give_up=give_up) == 2
    assert world.state(1) == "completed"
    assert world.ledger.entry(2).plan.base == 1
    world.work(2)
    world.coordinator().complete(2)
    world.coordinator().publish()
    world.exact()


def test_a_run_is_never_asked_about_its_own_checkpoint(world):
    world.feed_more(3)
    world.trigger("one")
    world.age(1, 10_000)
    assert world.trigger("one", give_up=lambda plan: "RUN_GONE") == 1
    assert world.state(1) == "open"


# -- what must not change under a pipeline ---------------------------------------------------------------


def test_a_source_that_was_removed_is_refused_and_nothing_is_made(world):
    world.checkpoint("one", rows=3)
    world.source = Renamed(ToyFeed(9))
    renamed = world.coordinator()
    assert renamed.graph.sources["in"].source.kind == "toy two"
    with pytest.raises(Invalid) as caught:
        renamed.trigger("two")
    assert caught.value.reason == "SOURCE_REPLACED"
    assert "'toy' in checkpoint 1 and is 'toy two' now" in caught.value.what
    assert world.ledger.ids() == [1]


class Renamed(ToySource):
    kind = "toy two"


def test_a_source_under_another_name_is_another_source(world, monkeypatch):
    from tests.kit.toys import ToySink
    from tidegate import Pipeline
    from tidegate.coordinator import Coordinator

    world.checkpoint("one", rows=3)

    def coordinator(*names):
        pipeline = Pipeline("orders")
        for name in names:
            pipeline.source(name, ToySource(world.feed)).sink(f"sink-{name}", ToySink(name, world.tables))
        return Coordinator(pipeline.graph(), world.ledger, world.limits, Place("/"))

    with pytest.raises(Invalid) as caught:
        coordinator("other").trigger("two")
    assert caught.value.reason == "SOURCE_REMOVED"
    assert "source in," in caught.value.what
    plan = coordinator("in", "other").trigger("two").plan
    assert plan.sources["in"].start == {"at": 3}
    assert plan.sources["other"].start is None, "a source that is added later begins at its beginning"


def test_a_source_or_sink_that_refuses_declines_the_checkpoint_and_leaves_nothing(world):
    world.checkpoint("one", rows=3)
    world.source = Watching(world.feed, lambda: (_ for _ in ()).throw(Invalid("the folder is gone")))
    with pytest.raises(Invalid, match="the folder is gone"):
        world.trigger("two")
    world.source = None
    world.weather.down.add("b")
    with pytest.raises(Unavailable):
        world.trigger("two")
    world.weather.down.clear()
    assert world.ledger.ids() == [1]
    assert world.trigger("two") == 2


@pytest.mark.parametrize("run", ["", " ", None, 7, "\ud800", "x" * 1001], ids=lambda run: repr(run)[:10])
def test_what_is_no_run_id_is_refused_before_anything_is_made(world, run):
    with pytest.raises(Invalid) as caught:
        world.coordinator().trigger(run)
    assert caught.value.reason == "BAD_RUN"
    assert not world.folder.exists()


def test_a_plan_that_is_too_long_for_a_record_keeps_its_list_beside_it(world):
    world.padding = 100_000
    world.checkpoint("one", rows=3)
    splits = world.ledger.entry(1).plan.sources["in"].splits
    assert splits.data is None
    assert (world.folder / splits.blob.path).stat().st_size == splits.blob.size
    world.exact()


# -- loss is never taken for a fresh start ---------------------------------------------------------------


def test_a_checkpoint_that_never_was_is_refused(world):
    world.checkpoint("one", rows=3)
    for call in (world.coordinator().complete, lambda id: world.coordinator().abort(id, "X")):
        with pytest.raises(Invalid) as caught:
            call(7)
        assert caught.value.reason == "NO_SUCH_CHECKPOINT"
        assert "no checkpoint 7" in caught.value.what
        assert caught.value.expected == "one up to 1"


def test_completing_in_a_ledger_that_is_not_there_is_not_taken_for_done(tmp_path, world):
    world.checkpoint("one", rows=3)
    world.folder.rename(tmp_path / "moved")
    with pytest.raises(Invalid, match="no checkpoint 1"):
        world.coordinator().complete(1)


def test_a_base_that_is_lost_is_damage(world):
    world.checkpoint("one", rows=3)
    world.feed_more(3)
    world.trigger("two")
    Ledger(LocalStore(world.folder), "orders").store.delete("checkpoints/00000001/plan.json")
    for call in (lambda: world.coordinator().complete(2), lambda: world.work(2), lambda: world.trigger("three")):
        with pytest.raises(Corrupt) as caught:
            call()
        assert caught.value.reason == "LEDGER_DAMAGED"


# -- what nobody came back to --------------------------------------------------------------------------


def test_what_is_done_but_for_its_decision_is_decided_by_whoever_waits_for_it(world):
    """Its process died on another machine, so nobody can tell that it is gone."""
    world.feed_more(2)
    id = world.trigger("r1")
    world.work(id)
    with pytest.raises(Rejected, match="waits for checkpoint 1"):
        world.trigger("r2")
    world.age(id, 3600)
    with pytest.raises(Rejected, match="waits for checkpoint 1"):
        world.trigger("r2")
    assert world.state(id) == "completed"
    assert world.trigger("r2") == id + 1


# -- a source that begins "from now on" -----------------------------------------------------------------------


class FromNowOn(ToySource):
    """Begins with what comes after the first look at it."""

    def beginning(self, context):
        return {"at": self.feed.available}


@pytest.fixture
def late(world):
    world.source = FromNowOn(world.feed, 100)
    world.feed_more(10)
    return world


def taken(world, id):
    """From where to where a checkpoint reads."""
    part = world.ledger.entry(id).plan.sources["in"]
    return (part.start or {}).get("at"), part.end["at"]


def test_what_comes_while_the_first_checkpoint_fails_is_read_by_the_next(late):
    """`from now on` is decided by the first look, not by the first look that leads to something."""
    first = late.trigger("first")
    late.feed_more(3)
    late.coordinator().complete(first, ("JOB_FAILED", "a full disk"))
    assert taken(late, late.checkpoint("second", 2)) == (10, 15)
    assert taken(late, late.checkpoint("third", 1)) == (15, 16)


def test_what_comes_after_a_look_that_found_nothing_is_read(late):
    assert late.coordinator().trigger("idle", only_if_new=True) is None
    late.feed_more(3)
    assert taken(late, late.coordinator().trigger("again", only_if_new=True).plan.id) == (10, 13)


def test_a_rollback_to_before_a_source_begins_it_where_it_began_and_one_put_back_begins_anew(late):
    late.source = None
    first = late.checkpoint("without it")
    plans, view = Plans(late.coordinator()), late.ledger.view()
    base = late.ledger.entry(first)
    sourcing = replace(plans.graph.sources["in"], name="new", source=FromNowOn(late.feed, 100))
    assert plans._beginning(sourcing, 5, view, base) == {"at": 10}
    late.feed_more(7)
    assert plans._beginning(sourcing, 6, view, base) == {"at": 10}, "whoever proposes another id meanwhile"
    later = replace(base, plan=msgspec.structs.replace(base.plan, id=9))
    assert plans._beginning(sourcing, 10, view, later) == {"at": 17}, "it was there, was taken out, and is put back"
    record = Rollback(target=first, manifest="ab" * 32, by="ann", tables={})
    back = replace(later, plan=msgspec.structs.replace(later.plan, kind="restart", rollback=record))
    assert plans._beginning(sourcing, 11, view, back) == {"at": 10}


def test_a_change_by_hand_does_not_move_the_beginning_of_a_source_that_nobody_has_read(late):
    """It reads nothing, and is completed between the first look and the first checkpoint that reads."""
    first = late.trigger("first")
    late.feed_more(3)
    late.coordinator().complete(first, ("JOB_FAILED", "a full disk"))
    assert taken(late, late.checkpoint("by hand", standing=True)) == (10, 10)
    assert taken(late, late.checkpoint("second", 2)) == (10, 15)
