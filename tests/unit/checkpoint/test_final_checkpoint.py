"""The end: a checkpoint that is the last one, until somebody goes on on purpose."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidegate.checkpoint import suspension
from tidegate.errors import Invalid, Rejected
from tidegate.execution.runs import abandoned_reason
from tidegate.history.health import condition, observe
from tidegate.lifecycle import control
from tidegate.records.records import Drain

END = Drain(by="ann", reason="moved")


def refused(call):
    with pytest.raises(Rejected) as caught:
        call()
    return caught.value


def drained(world, run="end"):
    id = world.trigger(run, drain=END)
    world.work(id)
    assert world.coordinator().complete(id).state == "completed"
    world.coordinator().publish()
    return id


def test_it_reads_what_is_new_and_nothing_comes_after_it(world):
    world.checkpoint("one", rows=3)
    world.feed_more(2)
    assert drained(world) == 2
    error = refused(lambda: world.trigger("two"))
    assert (error.reason, error.what) == ("FINISHED", "pipeline 'orders' was finished by ann: moved")
    assert "resume orders --after-end" in error.help
    assert world.offsets("a") == [1, 2, 3, 4, 5]
    world.feed_more(1)
    world.coordinator().retire()
    assert refused(lambda: world.trigger("three")).reason == "FINISHED"
    assert refused(lambda: world.trigger("four", drain=END)).reason == "FINISHED"
    world.exact()


@pytest.mark.parametrize("act", ["stop", "suspend"])
def test_stopped_after_its_end_it_is_not_advised_what_would_be_refused(world, act):
    """A plain `resume` is refused after the end, so no remedy names it."""
    world.checkpoint("one", rows=3)
    drained(world)
    getattr(control, act)(world.ledger, "bob", "holidays")
    limits = SimpleNamespace(tolerable_failed_checkpoints=0, root="", data="")
    health = condition(observe(world.ledger, limits, abandoned_reason))
    advice = [refused(lambda: world.trigger("two")).help, *health.remedy]
    assert len(advice) == 2
    assert all("--after-end" in text for text in advice)


def test_as_long_as_it_is_open_nothing_is_planned_behind_it_and_if_it_is_aborted_all_continues(world):
    world.limit(max_concurrent_checkpoints=3)
    world.checkpoint("one", rows=3)
    below = world.trigger("two")
    last = world.trigger("end", drain=END)
    assert refused(lambda: world.trigger("three")).reason == "CHECKPOINT_IN_PROGRESS"
    world.work(below)
    world.coordinator().complete(below)
    world.coordinator().abort(last, "JOB_FAILED")
    assert suspension.finished(world.ledger.view()) is None
    assert world.checkpoint("three", rows=3) == 4, "its input is read again"
    world.exact()


def test_it_is_resumed_on_purpose_only(world):
    world.checkpoint("one", rows=3)
    drained(world)
    error = refused(lambda: world.coordinator().resume("ann"))
    assert (error.reason, "--to 1" in error.help) == ("FINISHED", True)
    control.stop(world.ledger, "ann", "twice over")
    assert refused(lambda: world.coordinator().resume("ann")).reason == "FINISHED", "stopping it changes nothing"
    assert refused(lambda: world.trigger("two")).reason == "STOPPED"
    control.resume(world.ledger, "ann", after_end=True)
    assert world.checkpoint("two", rows=2) == 5
    world.exact()


def test_going_back_before_it_takes_it_back_and_going_back_to_it_finishes_again(world):
    world.limit(tolerable_failed_checkpoints=0)
    world.checkpoint("one", rows=3)
    drained(world)
    coordinator = world.coordinator()
    coordinator.roll_back(1, run="back", by="ann")
    assert world.checkpoint("two", rows=2) == 4
    world.exact()
    coordinator.roll_back(2, run="there", by="ann")
    assert refused(lambda: world.trigger("three")).reason == "FINISHED"
    assert refused(lambda: world.coordinator().resume("ann")).reason == "FINISHED"


def test_a_run_that_asked_for_the_end_and_comes_again_finds_it(world):
    world.checkpoint("one", rows=3)
    id = world.trigger("end", drain=END)
    assert world.trigger("end", drain=END) == id
    world.work(id)
    world.coordinator().complete(id)
    assert world.trigger("end", drain=END) == id


def test_it_reads_on_until_nothing_is_left_and_only_then_comes_the_end(world):
    """The bound of the source is three: eight rows take three checkpoints, whoever makes them."""
    world.feed_more(8)
    first = world.trigger("end", drain=END)
    plan = world.ledger.entry(first).plan
    assert (plan.drain, plan.draining) == (None, END)
    world.work(first)
    world.coordinator().complete(first)
    second = world.trigger("some run of the schedule")
    world.coordinator().abort(second, "JOB_FAILED")
    third = world.checkpoint("the next one")
    assert suspension.finished(world.ledger.view()) is None
    last = world.trigger("and the next one", only_if_new=True)
    assert world.ledger.entry(last).plan.drain == END
    world.work(last)
    world.coordinator().complete(last)
    world.coordinator().publish()
    assert (third, last) == (3, 4)
    assert world.offsets("a") == list(range(1, 9))
    assert refused(lambda: world.trigger("five")).reason == "FINISHED"
    world.exact()


def test_what_exactly_fills_the_bound_is_followed_by_the_end_alone(world):
    world.feed_more(6)
    world.checkpoint("one")
    assert world.ledger.entry(drained(world)).plan.drain == END


def test_the_end_that_was_asked_for_can_be_taken_back_on_the_way(world):
    world.feed_more(8)
    first = world.trigger("end", drain=END)
    world.work(first)
    world.coordinator().complete(first)
    assert world.coordinator().resume("bob", "not yet") is not None
    assert world.coordinator().resume("bob") is None
    plan = world.ledger.entry(world.checkpoint("two")).plan
    assert (plan.drain, plan.draining) == (None, None)


def test_a_pipeline_that_finishes_does_so_with_the_checkpoint_that_leaves_nothing_to_read(world):
    """The bound of the source is three: eight rows take three checkpoints."""
    world.bounded = world.finishes = True
    world.feed_more(8)
    world.checkpoint("one")
    aborted = world.trigger("two")
    world.coordinator().abort(aborted, "JOB_FAILED")
    world.checkpoint("three")
    assert suspension.finished(world.ledger.view()) is None
    last = world.checkpoint("four")
    assert suspension.finished(world.ledger.view()).id == last == 4
    assert world.offsets("a") == list(range(1, 9))
    error = refused(lambda: world.trigger("five"))
    assert error.what == "pipeline 'orders' was finished by tidegate: all of its sources have been read to their end"
    world.coordinator().roll_back(1, run="back", by="ann")
    for run in ("six", "seven"):
        assert suspension.finished(world.ledger.view()) is None
        world.checkpoint(run)
    assert suspension.finished(world.ledger.view()) is not None


def test_a_checkpoint_by_hand_does_not_finish_a_pipeline(world):
    world.bounded = world.finishes = True
    world.feed_more(4)
    world.checkpoint("one")
    id = world.trigger("by hand", standing=True)
    assert world.ledger.entry(id).plan.drain is None


def test_a_bounded_source_that_was_at_its_end_gets_nothing_more(world):
    world.bounded = True
    world.checkpoint("one", rows=2)
    world.checkpoint("two")  # asked, and at its end
    world.feed_more(1)
    with pytest.raises(Invalid) as caught:
        world.trigger("three")
    assert caught.value.reason == "BOUNDED_SOURCE_GREW"
    assert "source 'in' is bounded, was at its end in checkpoint 2, and has new input" in caught.value.what
    assert "roll back to before checkpoint 2" in caught.value.help
    world.coordinator().roll_back(1, run="back", by="ann")
    world.bounded = False
    world.checkpoint("four")
    assert world.offsets("a") == [1, 2, 3]
    world.exact()
