"""Hooks: what they keep is in the plan, goes back with a rollback, and nothing is planned without them."""

from __future__ import annotations

import threading
from unittest import mock

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySink, ToySource
from tidegate import Pipeline
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.execution.job.run_job import run_job
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.records.place import Place


class RecordingHook:
    """A hook that writes down what it is told, and counts."""

    def __init__(self):
        self.events = []
        self.gives = None

    def trigger(self, triggering):
        self.events.append(("trigger", triggering.id, triggering.base))
        return self.gives() if self.gives else {"count": len(self.events)}

    def restore(self, state):
        self.events.append(("restore", state))

    def reset(self):
        self.events.append(("reset",))


@pytest.fixture
def world(tmp_path):
    world = ToyWorld(tmp_path)
    world.hooks = {}
    world.coordinator = lambda: coordinator(world)
    return world


@pytest.fixture
def told(world):
    return hooked(world, "model")


def hooked(world, name, timeout="5 s"):
    told = RecordingHook()
    world.hooks[name] = {
        "on_trigger": told.trigger,
        "on_restore": told.restore,
        "on_reset": told.reset,
        "timeout": timeout,
    }
    return told


def coordinator(world):
    pipeline = Pipeline("orders")
    stream = pipeline.source("in", ToySource(world.feed, 3))
    stream.sink("a", ToySink("a", world.tables))
    for name, functions in world.hooks.items():
        pipeline.hook(name, **functions)
    return Coordinator(pipeline.graph(), world.ledger, world.limits, Place("/"))


def test_what_it_returns_is_kept_with_the_checkpoint(world, told):
    for run in ("one", "two"):
        world.checkpoint(run, rows=1)
    assert told.events == [("trigger", 1, None), ("trigger", 2, 1)]
    assert [world.ledger.plan(id).hooks for id in (1, 2)] == [{"model": {"count": 1}}, {"model": {"count": 2}}]


def test_behind_a_rollback_it_goes_back_before_anything_is_planned(world, told):
    for run in ("one", "two"):
        world.checkpoint(run, rows=1)
    done = world.coordinator().roll_back(1, run="back", by="x")
    assert world.ledger.plan(done.id).hooks == {"model": {"count": 1}}
    assert told.events[2:] == []
    world.checkpoint("three")
    assert told.events[2:] == [("restore", {"count": 1}), ("trigger", 4, 3)]
    world.checkpoint("four", rows=1)
    assert told.events[4:] == [("trigger", 5, 4)], "once it has gone on, it is not told again"


def test_one_that_came_later_is_reset(world):
    world.checkpoint("one", rows=1)
    late = hooked(world, "late")
    world.checkpoint("two", rows=1)
    world.coordinator().roll_back(1, run="back", by="x")
    world.checkpoint("three")
    assert late.events[1:] == [("reset",), ("trigger", 4, 3)]


# -- one that is taken out of the code ---------------------------------------------------------------------


def test_one_that_is_taken_out_does_not_lose_its_state_unnoticed(world, told):
    world.checkpoint("one", rows=1)
    del world.hooks["model"]
    world.feed_more(1)
    with pytest.raises(Invalid, match="has state of hook model, which pipeline 'orders' no longer stores") as caught:
        world.trigger("two")
    assert caught.value.reason == "HOOK_REMOVED"
    assert "allow_non_restored_state" in caught.value.help
    assert world.ledger.ids() == [1], "nothing was planned without it"
    world.hooks["model"] = {"on_trigger": told.trigger}
    assert world.trigger("two") == 2, "it is back"


def test_one_that_has_another_name_or_stores_nothing_any_more_is_told_apart_from_one_that_is_gone(world, told):
    world.checkpoint("one", rows=1)
    functions = world.hooks.pop("model")
    world.hooks["weights"] = functions
    with pytest.raises(Invalid) as caught:
        world.trigger("two")
    assert "name hook 'weights' \"model\" again" in caught.value.help
    world.hooks = {"model": {"on_restore": told.restore}}
    with pytest.raises(Invalid) as caught:
        world.trigger("two")
    assert "give hook 'model' its on_trigger back" in caught.value.help


def test_its_state_is_left_behind_when_that_is_allowed_once(world, told, monkeypatch, caplog):
    world.checkpoint("one", rows=1)
    del world.hooks["model"]
    with monkeypatch.context() as once:
        once.setattr(type(world.limits), "record", lambda self: {"allow_non_restored_state": True})
        world.checkpoint("two", rows=1)
    assert "The state of hook model is left behind with checkpoint 1" in caplog.text
    world.checkpoint("three", rows=1)
    assert world.ledger.plan(3).hooks == {}, "once is enough"


def test_one_that_has_stored_nothing_may_go(world, told):
    told.gives = dict
    world.checkpoint("one", rows=1)
    world.hooks = {}
    assert world.checkpoint("two", rows=1) == 2


def test_behind_a_rollback_to_where_it_had_state_it_must_be_there_again(world, told, monkeypatch):
    world.checkpoint("one", rows=1)
    del world.hooks["model"]
    with monkeypatch.context() as once:
        once.setattr(type(world.limits), "record", lambda self: {"allow_non_restored_state": True})
        world.checkpoint("two", rows=1)
    world.coordinator().roll_back(1, run="back", by="x")
    with pytest.raises(Invalid) as caught:
        world.trigger("three")
    assert caught.value.reason == "HOOK_REMOVED"


# -- when it fails ------------------------------------------------------------------------------------------


def test_if_it_fails_nothing_is_planned_and_the_reason_is_told(world, told):
    world.feed_more(1)
    told.gives = lambda: 1 / 0
    with pytest.raises(Unavailable, match="on_trigger of hook 'model' raised ZeroDivisionError") as caught:
        world.trigger("one")
    assert caught.value.reason == "HOOK_FAILED"
    assert world.ledger.ids() == []
    told.gives = None
    assert world.trigger("one") == 1


def test_its_own_refusal_is_told_as_it_is(world, told):
    def refuse():
        raise Rejected("the model is being trained", reason="TRAINING")

    told.gives = refuse
    with pytest.raises(Rejected, match="being trained"):
        world.trigger("one")


def test_one_that_hangs_is_not_waited_for_longer_than_it_may_take(world):
    told, never = hooked(world, "slow", timeout="1 s"), threading.Event()
    told.gives = never.wait
    with pytest.raises(Unavailable, match="did not return within 1 s"):
        world.trigger("one")
    never.set()
    assert world.ledger.ids() == []


@pytest.mark.parametrize(
    "given",
    [["a list"], {"a set": {1}.__iter__()}, {"long": "x" * 70_000}],
    ids=["a list", "JSON cannot hold", "too long"],
)
def test_what_cannot_be_kept_is_refused(world, told, given):
    told.gives = lambda: given
    with pytest.raises(Invalid) as caught:
        world.trigger("one")
    assert caught.value.reason == "HOOK_STATE"
    assert world.ledger.ids() == []


def test_nothing_is_kept_if_it_returns_nothing(world, told):
    told.gives = lambda: None
    id = world.trigger("one")
    run_job(world.coordinator(), id, "main", None)
    assert world.ledger.plan(id).hooks == {"model": {}}


# -- before a job's snapshot counts ------------------------------------------------------------------------


def prepared_by(world, prepare, timeout="5 s"):
    world.hooks["flush"] = {"on_prepare": prepare, "timeout": timeout}
    world.feed_more(1)
    return world.trigger("one")


def test_it_prepares_when_all_is_staged_and_nothing_counts_yet(world):
    seen = []

    def prepare(preparing):
        files = list(world.tables["a"].files)
        seen.append((preparing.pipeline, preparing.id, preparing.job, world.ledger.ack(1, "main"), len(files)))
        assert preparing.attempt in files[0]

    id = prepared_by(world, prepare)
    ack = run_job(world.coordinator(), id, "main", None)
    assert seen == [("orders", 1, "main", None, 1)]
    assert "hook flush" in ack.stats.seconds
    run_job(world.coordinator(), id, "main", None)
    assert len(seen) == 1, "a job that is done is not prepared again"


def test_if_it_cannot_the_checkpoint_is_declined_and_its_input_comes_again(world):
    id = prepared_by(world, lambda preparing: 1 / 0)
    observer, schedule = Observer(), Schedule(checkpoints=1)
    world.coordinator().abort(id, "CANCELLED")
    with pytest.raises(Invalid, match="on_prepare of hook 'flush' raised ZeroDivisionError") as caught:
        run_checkpoints(world.coordinator(), mock.Mock(), schedule, observer)
    assert caught.value.reason == "HOOK_DECLINED"
    assert "on_prepare of hook 'flush'" in world.ledger.decision(2).detail
    assert world.tables["a"].files == {}, "what was staged is gone"
    world.hooks["flush"]["on_prepare"] = lambda preparing: None
    run_checkpoints(world.coordinator(), mock.Mock(), schedule, observer)
    assert world.offsets("a") == [1]


def test_one_that_hangs_declines_and_one_that_asks_for_another_try_gets_it(world):
    never = threading.Event()
    id = prepared_by(world, lambda preparing: never.wait(), timeout="1 s")
    with pytest.raises(Invalid, match="did not return within 1 s"):
        run_job(world.coordinator(), id, "main", None)
    never.set()

    def later(preparing):
        raise Unavailable("the other system is being restarted")

    world.hooks["flush"]["on_prepare"] = later
    with pytest.raises(Unavailable, match="restarted"):
        run_job(world.coordinator(), id, "main", None)


@pytest.mark.parametrize(
    ("declare", "what"),
    [
        (lambda p: p.hook("model"), "nothing to be called"),
        (lambda p: p.hook("model", on_trigger=7), "on_trigger that cannot be called"),
        (lambda p: p.hook("model", on_prepare="flush"), "on_prepare that cannot be called"),
        (lambda p: p.hook("Model", on_reset=print), "not allowed"),
        (lambda p: p.hook("model", on_reset=print, timeout="soon"), "soon"),
        (lambda p: [p.hook("model", on_reset=print) for _ in range(2)], "two hooks are named 'model'"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(world, declare, what):
    pipeline = Pipeline("orders")
    pipeline.source("in", ToySource(world.feed)).sink("a", ToySink("a", world.tables))

    def all_of_it():
        declare(pipeline)
        pipeline.graph()

    with pytest.raises(Invalid, match=what):
        all_of_it()
