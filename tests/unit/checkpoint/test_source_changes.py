"""A source that is renamed or gone: whoever says so has a way on, and nothing is read twice or left out."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.kit.toy_world import ToyWorld, quietly
from tests.kit.toys import ToyFeed, ToySink, ToySource
from tidegate import Pipeline
from tidegate.checkpoint import suspension
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.history.row import state_name
from tidegate.lifecycle import control, rollback
from tidegate.lifecycle.source_acts import accept_source, drop_source, move_source
from tidegate.records.records import Control, SourceChange


class OtherKind(ToySource):
    kind = "toy two"


class MovedOn(ToySource):
    """Its system is another one now, where positions are called otherwise."""

    def accept(self, position, context, *, unproven=False):
        if position.get("system") == "new":
            raise Invalid("it is the same", help="nothing to do", reason="NOTHING_TO_ACCEPT")
        return position | {"system": "new", "unproven": unproven}


@dataclass
class Feeds(ToyWorld):
    """A pipeline whose sources are declared by name; each has a sink, which is called after its feed."""

    named: dict[str, str] = field(default_factory=lambda: {"in": "a"})
    """Source to feed."""
    feeds: dict[str, ToyFeed] = field(default_factory=lambda: {"a": ToyFeed(), "b": ToyFeed()})
    kinds: dict[str, type[ToySource]] = field(default_factory=dict)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name)
        for name, feed in self.named.items():
            source = self.kinds.get(name, ToySource)(self.feeds[feed], 3)
            pipeline.source(name, source).sink(feed, ToySink(feed, self.tables))
        return pipeline

    def lands(self, feed: str, rows: int) -> None:
        self.feeds[feed].available += rows

    def move(self, name: str, to: str) -> int:
        return move_source(self.coordinator(), name, to, "a person")

    def drop(self, name: str) -> int:
        return drop_source(self.coordinator(), name, "a person")

    def accept(self, name: str, *, unproven: bool = False) -> int:
        return accept_source(self.coordinator(), name, "a person", unproven=unproven)


@pytest.fixture
def world(tmp_path):
    """One checkpoint, of three rows."""
    world = Feeds(tmp_path)
    world.lands("a", 3)
    world.checkpoint("one")
    return world


def test_a_source_that_is_renamed_continues_where_it_was(world):
    world.named = {"orders": "a"}
    world.lands("a", 2)
    refused = quietly(lambda: world.trigger("two"))
    assert refused.reason == "SOURCE_REMOVED"
    assert "source move MODULE:PIPELINE in orders" in refused.help
    entry = world.move("in", "orders")
    assert state_name(world.ledger.entry(entry)) == "source moved"
    plan = world.ledger.plan(world.checkpoint("two"))
    assert (plan.base, plan.sources["orders"].start) == (1, {"at": 3})
    assert "in" not in plan.sources
    world.lands("a", 1)
    world.checkpoint("three")
    assert world.offsets("a") == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_that_takes_it_up_and_is_aborted_leaves_it_to_the_next(world):
    world.named = {"orders": "a"}
    world.move("in", "orders")
    world.lands("a", 1)
    world.coordinator().abort(world.trigger("two"), "JOB_FAILED")
    world.checkpoint("three")
    assert world.offsets("a") == [1, 2, 3, 4]


def test_code_from_before_reads_nothing_twice(world):
    """It is still deployed somewhere, or deployed again."""
    world.named = {"orders": "a"}
    world.move("in", "orders")
    world.named = {"in": "a"}
    assert quietly(lambda: world.trigger("two")).reason == "SOURCE_STILL_THERE"
    world.named = {"in": "b", "orders": "a"}
    assert quietly(lambda: world.trigger("two")).reason == "SOURCE_STILL_THERE", "one checkpoint without it, first"
    world.named = {"orders": "a"}
    world.checkpoint("two")
    world.named = {"in": "a"}
    assert quietly(lambda: world.trigger("three")).reason == "SOURCE_REMOVED"
    world.move("orders", "in")
    world.lands("a", 1)
    world.checkpoint("three")
    assert world.offsets("a") == [1, 2, 3, 4]


def test_two_sources_exchange_nothing_but_their_names(world):
    world.named = {"in": "a", "more": "b"}
    world.lands("b", 2)
    world.checkpoint("two")
    world.named = {"first": "a", "second": "b"}
    world.move("in", "first")
    world.move("more", "second")
    world.lands("a", 1)
    world.lands("b", 1)
    world.checkpoint("three")
    assert (world.offsets("a"), world.offsets("b")) == ([1, 2, 3, 4], [1, 2, 3])


def test_a_source_that_is_dropped_is_not_missed_and_begins_anew_should_it_come_back(world):
    world.named = {"in": "a", "more": "b"}
    world.lands("b", 2)
    world.checkpoint("two")
    world.named = {"in": "a"}
    refused = quietly(lambda: world.trigger("three"))
    assert "source drop MODULE:PIPELINE more" in refused.help
    entry = world.drop("more")
    assert state_name(world.ledger.entry(entry)) == "source dropped"
    world.named = {"in": "a", "more": "b"}
    assert quietly(lambda: world.trigger("three")).reason == "SOURCE_STILL_THERE", "deployed too late"
    world.named = {"in": "a"}
    assert "more" not in world.ledger.plan(world.checkpoint("three")).sources
    world.named = {"in": "a", "more": "b"}
    assert world.ledger.plan(world.trigger("four")).sources["more"].start is None


def test_a_rollback_to_the_checkpoint_before_takes_it_back(world):
    world.named = {}
    world.named = {"other": "b"}
    world.drop("in")
    world.named = {"in": "a"}
    assert "rollback MODULE:PIPELINE --to 1" in quietly(lambda: world.trigger("two")).help
    rollback.roll_back(world.coordinator(), 1, run="back", by="a person", choices={})
    world.lands("a", 1)
    world.checkpoint("two")
    assert world.offsets("a") == [1, 2, 3, 4]


def refused_move(world, name, to):
    ids = world.ledger.ids()
    with pytest.raises((Invalid, Rejected, Unavailable)) as caught:
        world.move(name, to)
    assert world.ledger.ids() == ids, "nothing was written"
    assert caught.value.help or isinstance(caught.value, Unavailable)
    return caught.value.reason


def test_what_makes_no_sense_is_refused_before_anything_is_written(world):
    assert refused_move(world, "in", "orders") == "SOURCE_STILL_THERE"
    world.named = {"orders": "a"}
    assert refused_move(world, "inn", "orders") == "NO_SUCH_SOURCE"
    assert refused_move(world, "in", "order") == "NO_SUCH_SOURCE"
    world.kinds = {"orders": OtherKind}
    assert refused_move(world, "in", "orders") == "SOURCE_REPLACED"
    world.kinds = {}
    world.move("in", "orders")
    assert refused_move(world, "in", "orders") == "NO_SUCH_SOURCE", "it is done"
    world.named = {"orders": "a", "more": "b"}
    world.checkpoint("two")
    world.named = {"more": "b"}
    assert refused_move(world, "orders", "more") == "SOURCE_HAS_POSITION"


def test_a_source_that_cannot_plan_from_there_is_refused(world, monkeypatch):
    world.named = {"orders": "a"}

    def plan(source, start, context):
        raise Invalid(f"{context.source} has nothing at {start}", help="another one", reason="ELSEWHERE")

    monkeypatch.setattr(ToySource, "plan", plan)
    assert refused_move(world, "in", "orders") == "ELSEWHERE"


def test_it_waits_for_open_checkpoints_also_for_one_that_comes_at_that_moment(world, monkeypatch):
    open_id = world.trigger("two")
    world.named = {"orders": "a"}
    assert refused_move(world, "in", "orders") == "CHECKPOINT_IN_PROGRESS"
    world.coordinator().abort(open_id, "JOB_FAILED")
    create = control.create_entry_after

    def overtaken(ledger, view, act):
        monkeypatch.setattr(control, "create_entry_after", create)
        world.named = {"in": "a"}
        world.trigger("three")
        return create(ledger, view, act)

    monkeypatch.setattr(control, "create_entry_after", overtaken)
    with pytest.raises(Rejected) as caught:
        world.move("in", "orders")
    assert caught.value.reason == "CHECKPOINT_IN_PROGRESS"
    assert [world.state(id) for id in world.ledger.ids()] == ["completed", "aborted", "open"]


def test_a_suspension_stays_in_force(world):
    control.suspend(world.ledger, "a person", "the feed is broken")
    world.named = {"orders": "a"}
    world.move("in", "orders")
    current = suspension.suspended(world.ledger.view(), tolerable=0)
    assert current is not None
    assert current.why == "the feed is broken"
    assert quietly(lambda: world.trigger("two")).reason == "SUSPENDED"


def test_failures_before_it_still_count(world):
    world.coordinator().abort(world.trigger("two"), "JOB_FAILED", "boom", counts=True)
    world.named = {"orders": "a"}
    world.move("in", "orders")
    assert suspension.suspended(world.ledger.view(), tolerable=0).failed_checkpoints == (2,)


def test_an_entry_names_a_source_exactly_if_it_is_about_one(world):
    change = SourceChange(name="in", to=None)
    for act in (Control(action="move source", by="x"), Control(action="stop", by="x", source=change)):
        assert control._plan(9, act, "run").flaw() is not None
    assert control._plan(9, Control(action="drop source", by="x", source=change), "run").flaw() is None


def test_a_source_that_is_accepted_in_another_system_continues_from_the_position_there(world):
    world.kinds = {"in": MovedOn}
    entry = world.accept("in")
    assert state_name(world.ledger.entry(entry)) == "source accepted"
    assert quietly(lambda: world.accept("in")).reason == "NOTHING_TO_ACCEPT", (
        "until the next checkpoint takes it up, too"
    )
    world.lands("a", 2)
    plan = world.ledger.plan(world.checkpoint("two"))
    assert plan.sources["in"].start == {"at": 3, "system": "new", "unproven": False}
    world.lands("a", 1)
    world.checkpoint("three")
    assert world.offsets("a") == [1, 2, 3, 4, 5, 6]


def test_an_acceptance_goes_with_the_source_to_its_next_name_and_is_taken_back_by_a_rollback(world):
    world.kinds = {"in": MovedOn, "orders": MovedOn}
    world.accept("in", unproven=True)
    world.named = {"orders": "a"}
    world.move("in", "orders")
    plan = world.ledger.plan(world.trigger("two"))
    assert plan.sources["orders"].start == {"at": 3, "system": "new", "unproven": True}
    world.coordinator().abort(plan.id, "JOB_FAILED")
    world.named = {"in": "a"}
    rollback.roll_back(world.coordinator(), 1, run="back", by="ann", choices={})
    assert world.ledger.plan(world.trigger("three")).sources["in"].start == {"at": 3}


def test_only_a_source_that_can_tell_its_systems_apart_is_accepted(world):
    assert quietly(lambda: world.accept("in")).reason == "NOTHING_TO_ACCEPT"
    assert quietly(lambda: world.accept("none")).reason == "NO_SUCH_SOURCE"
    world.named = {"orders": "a"}
    assert quietly(lambda: world.accept("in")).reason == "NOTHING_TO_ACCEPT", "gone from the code"


def test_an_entry_that_accepts_a_source_has_its_position_and_no_other_has_one():
    here = SourceChange(name="in", to="in", position={"at": 1})
    assert control._plan(9, Control(action="accept source", by="x", source=here), "run").flaw() is None
    for act in (
        Control(action="accept source", by="x", source=SourceChange(name="in", to="in")),
        Control(action="accept source", by="x", source=SourceChange(name="in", to="b", position={"at": 1})),
        Control(action="move source", by="x", source=SourceChange(name="in", to="b", position={"at": 1})),
    ):
        assert control._plan(9, act, "run").flaw() is not None
