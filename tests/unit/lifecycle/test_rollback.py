"""Going back to a checkpoint, and on from there: told on a real ledger, with toy tables."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.kit.toy_world import ToyWorld, quietly
from tests.kit.toys import ToyCommit
from tidegate import seams
from tidegate.errors import Corrupt, Invalid, Rejected, Unavailable
from tidegate.lifecycle import rollback, rollback_preview


@pytest.fixture
def world(tmp_path):
    """Four checkpoints of two rows each are completed, and are on both tables."""
    world = ToyWorld(tmp_path)
    for number in range(1, 5):
        world.checkpoint(f"run {number}", rows=2)
    return world


def back(world, to, **how):
    run = how.pop("run", f"rollback {seams.new_id()}")
    return rollback.roll_back(world.coordinator(), to, run=run, by="a person", choices={}, **how)


def shown(world, table):
    """What a reader of the table sees."""
    found = world.tables[table]
    return sorted(offset for name in found.live() for offset, _ in found.files[name])


def test_scenario_1_back_and_on_nothing_is_skipped_and_nothing_is_there_twice(world):
    done = back(world, 2)
    assert done.id == 5
    assert done.preview.undone == (3, 4)
    assert shown(world, "a") == shown(world, "b") == [1, 2, 3, 4]
    assert world.published("a")[-1] == 5, "the rollback is a commit of its own"
    world.checkpoint("run 5")
    world.checkpoint("run 6", rows=2)
    assert shown(world, "a") == shown(world, "b") == list(range(1, 11))
    assert world.published("a") == [1, 2, 3, 4, 5, 6, 7], "ids go on rising"
    assert [world.ledger.plan(id).sources["in"].start for id in (5, 6)] == [{"at": 4}, {"at": 4}]


def test_a_run_that_was_rolled_back_and_is_cleared_does_nothing(world):
    back(world, 2)
    triggered = world.coordinator().trigger("run 4")
    assert triggered.adopted
    assert triggered.plan.id == 4
    assert world.coordinator().complete(4).state == "completed"
    world.coordinator().publish()
    assert shown(world, "a") == [1, 2, 3, 4]


def test_scenario_12_what_is_open_is_aborted_first_and_its_zombie_changes_nothing(world):
    world.feed_more(2)
    id = world.trigger("hanging")
    zombie = world.half_work(id)
    done = back(world, 2)
    assert (done.id, done.preview.aborted, world.state(id)) == (6, (), "aborted")
    assert quietly(lambda: zombie.refuse_ended()).kind == "fenced"
    world.checkpoint("run 5")
    assert shown(world, "a") == [1, 2, 3, 4, 5, 6, 7]


def test_a_publisher_that_slept_through_the_rollback_loses(world):
    """It has read the table and the log, and is about to commit what no longer counts."""
    id = world.decided("run 5", rows=2)
    world.weather.then["commit 5 on a"] = lambda: back(world, 2)
    world.coordinator().publish()
    assert world.state(id) == "completed"
    assert shown(world, "a") == shown(world, "b") == [1, 2, 3, 4]


def test_what_is_not_published_yet_never_is(world):
    """Table b does not answer. The rollback is the way out: checkpoint 5 is not owed to it any more."""
    world.weather.stuck.add("b")
    world.checkpoint("run 5", rows=2)
    assert shown(world, "a")[-1] == 10
    assert shown(world, "b")[-1] == 8
    world.weather.stuck.clear()
    back(world, 3)
    assert shown(world, "a") == shown(world, "b") == [1, 2, 3, 4, 5, 6]
    assert world.published("b") == [1, 2, 3, 4, 6]
    assert world.coordinator().ledger.published(5) is None


def test_what_it_had_staged_goes_when_it_is_retired(world):
    world.weather.stuck.add("b")
    id = world.checkpoint("run 5", rows=2)
    world.weather.stuck.clear()
    back(world, 3)
    assert len(world.staged("b")) == 2
    assert world.staged("a") == set()
    world.limit(num_retained=1)
    world.checkpoint("run 6")
    world.coordinator().retire()
    assert world.state(id) == "gone"
    assert world.staged("b") == set(), "no table has ever named it"
    assert len([name for name in world.tables["a"].files if f"/{id:08d}/" in name]) == 2, "an older version names these"


def test_what_was_rolled_back_before_it_was_on_every_table_is_no_target(world):
    world.weather.stuck.add("b")
    world.checkpoint("run 5", rows=2)
    world.weather.stuck.clear()
    back(world, 4)
    with pytest.raises(Rejected, match="checkpoint 5 .* rolled back before it was on every table"):
        back(world, 5)


def test_triggers_wait_until_it_is_on_every_table(world):
    world.weather.stuck.add("b")
    done = back(world, 2)
    assert list(done.report.stuck) == ["b"]
    assert shown(world, "b")[-1] == 8
    with pytest.raises(Rejected, match="rollback 5 is not on table 'b'") as caught:
        world.trigger("run 5")
    assert caught.value.reason == "ROLLBACK_UNPUBLISHED"
    world.weather.stuck.clear()
    world.checkpoint("run 5")
    assert shown(world, "b") == [1, 2, 3, 4, 5, 6, 7]


def test_scenario_12_two_rollbacks_the_later_one_holds(world):
    back(world, 3)
    assert back(world, 1).preview.undone == (2, 3), "4 did not count any more"
    assert shown(world, "a") == [1, 2]
    world.checkpoint("run 5")
    assert shown(world, "a") == [1, 2, 3, 4, 5]


def test_a_rollback_can_be_taken_back(world):
    """Going to a checkpoint that was rolled back, as long as it is there."""
    back(world, 1)
    done = back(world, 4)
    assert done.preview.undone == ()
    assert shown(world, "a") == list(range(1, 9))
    world.checkpoint("run 5", rows=1)
    assert shown(world, "a") == list(range(1, 10))


def test_two_at_once_one_wins_the_id_and_the_other_comes_behind_it(world):
    first = []
    real = world.coordinator().ledger.create_entry

    def meanwhile(plan):
        if not first:
            first.append(back(world, 3).id)
        return real(plan)

    coordinator = world.coordinator()
    coordinator.ledger.create_entry = meanwhile
    done = rollback.roll_back(coordinator, 1, run="another", by="another", choices={})
    assert (first, done.id) == ([5], 6)
    assert shown(world, "a") == [1, 2]
    assert [pin.rollback for pin in world.ledger.pins()] == [5, 6]


def test_whoever_slept_does_not_undo_what_was_never_shown(world):
    coordinator = world.coordinator()
    seen = rollback_preview.examine(coordinator, 2, {})
    world.checkpoint("run 5", rows=2)
    with pytest.raises(Rejected, match="checkpoint 5 .* has just completed"):
        back(world, 2, shown={*seen.undone, *seen.aborted})
    assert shown(world, "a") == list(range(1, 11))


def test_dead_before_the_decision_it_is_ended_and_nothing_has_changed(world):
    coordinator = world.coordinator()
    coordinator.ledger.create_decision = lambda decision: pytest.fail("killed")
    with pytest.raises(pytest.fail.Exception):
        rollback.roll_back(coordinator, 2, run="dead", by="x", choices={})
    with pytest.raises(Rejected, match="waits for checkpoint 5"):
        world.trigger("run 5")
    world.age(5, 3600)
    assert world.checkpoint("run 5", rows=1) == 6
    assert world.state(5) == "aborted"
    assert not world.ledger.decision(5).counts
    assert shown(world, "a") == list(range(1, 10))
    world.limit(num_retained=1)
    world.coordinator().retire()
    assert world.ledger.pins() == [], "its pin is of no use"
    assert world.ledger.ids() == [6]


def test_the_same_run_again_finds_it_done_and_undoes_nothing_that_came_behind_it(world):
    """Its answer was lost, and others have gone on since. (Found by the simulation: seed 3699.)"""
    assert back(world, 2, run="asked").id == 5
    world.checkpoint("run 5", rows=1)
    again = back(world, 2, run="asked")
    assert (again.id, again.error, world.ledger.view().last_id) == (5, None, 6)
    assert shown(world, "a") == list(range(1, 8))
    with pytest.raises(Invalid, match="is not a rollback to checkpoint 1"):
        back(world, 1, run="asked")
    world.limit(num_retained=1)
    for number in range(6, 8):
        world.checkpoint(f"run {number}", rows=1)
    with pytest.raises(Rejected, match="has made entry 5, which is decided and already retired"):
        back(world, 8, run="asked")


def test_a_decision_whose_answer_was_lost_may_count_so_the_target_stays_pinned(world):
    coordinator = world.coordinator()
    real = coordinator.ledger.create_decision

    def lost(decision):
        real(decision)
        raise Unavailable("the answer was lost")

    coordinator.ledger.create_decision = lost
    with pytest.raises(Unavailable):
        rollback.roll_back(coordinator, 2, run="dead", by="x", choices={})
    world.limit(num_retained=1)
    world.checkpoint("run 5")
    assert 2 in world.ledger.ids()
    assert shown(world, "a") == [1, 2, 3, 4, 5, 6, 7]


def test_scenario_11_dead_behind_the_decision_the_next_run_puts_the_tables_back(world):
    """Scenario 11: killed at table b."""
    world.weather.stuck.add("b")
    back(world, 2)
    world.weather.stuck.clear()
    world.checkpoint("run 5")
    assert shown(world, "a") == shown(world, "b") == [1, 2, 3, 4, 5, 6, 7]


def test_its_target_is_spared_by_retention_until_the_rollback_itself_goes(world):
    back(world, 2)
    world.limit(num_retained=1)
    world.coordinator().retire()
    assert world.ledger.ids() == [2, 5], "the next checkpoint goes on from the acks of 2"
    world.checkpoint("run 5")
    assert shown(world, "a") == [1, 2, 3, 4, 5, 6, 7]
    world.checkpoint("run 6", rows=1)
    world.checkpoint("run 7", rows=1)
    assert world.ledger.ids() == [8]
    assert world.ledger.pins() == []


def test_a_target_that_retention_has_claimed_is_refused(world):
    world.limit(num_retained=1)
    coordinator = world.coordinator()
    real = coordinator.ledger.create_pin

    def slow(pin):
        world.coordinator().retire()
        return real(pin)

    coordinator.ledger.create_pin = slow
    with pytest.raises(Rejected, match="claimed by retention"):
        rollback.roll_back(coordinator, 3, run="slow", by="x", choices={})
    assert world.ledger.ids() == [4]
    assert world.ledger.pins() == []


def test_retention_that_has_claimed_a_pinned_target_leaves_it(world):
    """Both at once: the pin is there when retention looks again, behind its tombstone."""
    world.limit(num_retained=1)
    coordinator = world.coordinator()
    real = coordinator.ledger.create_retired

    def claimed(retired):
        if retired.id == 2:
            back(world, 2)
        return real(retired)

    coordinator.ledger.create_retired = claimed
    coordinator.retire()
    world.checkpoint("run 5")
    assert 2 in world.ledger.ids()
    assert shown(world, "a") == [1, 2, 3, 4, 5, 6, 7]


def test_a_side_file_that_comes_back_with_the_positions_is_kept(tmp_path):
    """Splits lie in files of their own; those of the target's end are named by what continues from it."""
    world = ToyWorld(tmp_path, padding=40_000)
    for number in range(1, 5):
        world.checkpoint(f"run {number}", rows=2)
    back(world, 2)
    world.limit(num_retained=1)
    world.checkpoint("run 5")
    world.checkpoint("run 6")
    assert shown(world, "a") == list(range(1, 9))


def test_a_suspension_is_carried_on_and_one_may_be_asked_for(world):
    world.coordinator().suspend("ops", "the feed is broken")
    back(world, 2)
    with pytest.raises(Rejected, match="suspended by ops: the feed is broken"):
        world.trigger("run 5")
    world.coordinator().resume("ops")
    world.checkpoint("run 5")
    back(world, 2, suspend="to be looked at")
    with pytest.raises(Rejected, match="suspended by a person: to be looked at"):
        world.trigger("run 6")
    world.coordinator().resume("ops")
    world.checkpoint("run 6")
    assert shown(world, "a") == [1, 2, 3, 4, 5, 6, 7]


def test_failures_that_suspend_still_do_behind_a_rollback(world):
    world.limit(tolerable_failed_checkpoints=0)
    world.feed_more(1)
    world.coordinator().abort(world.trigger("bad"), "JOB_FAILED", "a stage failed", counts=True)
    back(world, 2)
    with pytest.raises(Rejected, match="suspended by the failure of checkpoint 5"):
        world.trigger("run 5")


def test_a_rollback_that_was_ended_leaves_a_suspension_in_place(world):
    world.coordinator().suspend("ops", "wait")
    coordinator = world.coordinator()
    coordinator.ledger.create_manifest = lambda manifest: world.coordinator().abort(6, "CANCELLED") and "0" * 64
    with pytest.raises(Rejected, match="ended before it was decided"):
        rollback.roll_back(coordinator, 2, run="ended", by="x", choices={})
    with pytest.raises(Rejected, match="suspended by ops"):
        world.trigger("run 5")


def test_others_commits_are_told_and_nothing_is_done_without_a_choice(world):
    world.tables["a"].commits.append(ToyCommit("somebody else", None, ()))
    with pytest.raises(Rejected, match="others have committed since: version 4"):
        back(world, 2)
    assert world.ledger.ids() == [1, 2, 3, 4]
    done = rollback.roll_back(world.coordinator(), 2, run="r", by="x", choices={"a": "discard"})
    assert shown(world, "a") == [1, 2, 3, 4]
    assert world.ledger.entry(done.id).rollback.tables["a"].how == "discard"


def test_a_table_that_is_kept_keeps_its_rows_and_is_fenced(world):
    rollback.roll_back(world.coordinator(), 2, run="r", by="x", choices={"a": "keep"})
    assert shown(world, "a") == list(range(1, 9))
    assert shown(world, "b") == [1, 2, 3, 4]
    world.checkpoint("run 5")
    assert shown(world, "a") == [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8], "what is read again is added: that was the choice"


def test_choices_for_what_is_no_sink_are_refused(world):
    with pytest.raises(Exception, match="'c' has no choices"):
        rollback_preview.examine(world.coordinator(), 2, {"c": "keep"})
    with pytest.raises(Exception, match="'ignore' is not a choice"):
        rollback_preview.examine(world.coordinator(), 2, {"a": "ignore"})


@pytest.mark.parametrize("to", [5, 9])
def test_only_completed_checkpoints_that_are_there_are_targets(world, to):
    world.coordinator().abort(world.trigger("bad"), "CANCELLED")
    with pytest.raises(Exception, match="was not completed|does not exist"):
        back(world, to)


def test_a_target_whose_ack_was_changed_is_refused_before_anything_is_touched(world):
    ack = world.path(2, "acks/main.json")
    ack.write_bytes(ack.read_bytes() + b" ")
    with pytest.raises(Rejected, match="ack of job 'main' for checkpoint 2 was changed"):
        back(world, 2)
    assert world.ledger.ids() == [1, 2, 3, 4]


def test_files_of_the_older_version_that_are_gone_are_named_first(world):
    table = world.tables["a"]
    table.files.pop(table.commits[0].files[0])
    with pytest.raises(Rejected, match="tidegate/"):
        back(world, 2)
    assert shown(world, "b") == list(range(1, 9))


def test_a_sink_that_came_later_is_emptied(world):
    world.sinks["late"] = 0
    world.checkpoint("run 5", rows=2)
    assert shown(world, "late") == [9, 10]
    back(world, 4)
    assert shown(world, "late") == []
    world.checkpoint("run 6")
    assert shown(world, "late") == [9, 10]
    assert shown(world, "a") == list(range(1, 11))


def test_a_sink_that_was_removed_must_come_back_first_if_it_was_given_something(world):
    del world.sinks["b"]
    with pytest.raises(Rejected, match="sink 'b' is not in the code any more"):
        back(world, 2)
    world.checkpoint("run 5", rows=2)
    back(world, 4)
    assert shown(world, "a") == list(range(1, 9))
    world.sinks["b"] = 0
    world.checkpoint("run 6")
    assert shown(world, "b") == list(range(1, 11)), "it goes on from where it was: nothing was put there since"


def test_damage_stays_damage(world):
    world.path(2, "plan.json").unlink()
    with pytest.raises((Corrupt, Rejected)):
        back(world, 2)


def test_a_rollback_that_wakes_up_late_completes_no_checkpoint_under_its_number(world):
    """Its number was retired and used anew while it slept: its manifest names no ack of that checkpoint, so it is none
    of what completes it (found by simulation seed 16036)."""
    gone_back = world.coordinator().real_entry(back(world, 2).id)
    assert gone_back.acks_agree
    anew = msgspec.structs.replace(world.ledger.plan(4), id=gone_back.id)
    assert not replace(gone_back, plan=anew).acks_agree
