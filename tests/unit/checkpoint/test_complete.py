"""Decisions: one per checkpoint, whoever makes it, and what is let go afterwards."""

import errno

import pytest

from tests.contract.broken_disk import BrokenDisk
from tests.kit.faults import lose_answers
from tidegate.errors import Fenced, Unavailable
from tidegate.ledger import LocalStore


def test_completing_twice_or_too_late_changes_nothing(world):
    id = world.checkpoint("one", rows=3)
    decision = world.ledger.decision(id)
    for _ in range(3):
        assert world.coordinator().complete(id).state == "completed"
        assert world.coordinator().complete(id, ("JOB_FAILED", "late")).state == "completed"
        assert world.coordinator().abort(id, "CANCELLED").state == "completed"
    assert world.ledger.decision(id) == decision
    world.exact()


def test_aborting_twice_or_completing_what_is_aborted_changes_nothing(world):
    world.feed_more(3)
    id = world.trigger("one")
    world.work(id)
    assert world.coordinator().abort(id, "CANCELLED", "by hand").state == "aborted"
    outcome = world.coordinator().complete(id)
    assert (outcome.state, outcome.reason, outcome.detail) == ("aborted", "CANCELLED", "by hand")
    assert world.coordinator().abort(id, "OTHER").reason == "CANCELLED"
    assert world.published("a") == []
    assert world.staged("a") == set()


def test_a_failed_job_aborts_and_the_input_comes_back(world):
    world.feed_more(3)
    id = world.trigger("one")
    outcome = world.coordinator().complete(id, ("JOB_FAILED", "out of memory"))
    assert (outcome.state, outcome.reason, outcome.detail) == ("aborted", "JOB_FAILED", "out of memory")
    assert world.ledger.decision(id).counts
    assert world.checkpoint("one") == 2
    world.exact()


def test_without_its_ack_nothing_is_decided(world):
    world.feed_more(3)
    id = world.trigger("one")
    assert world.coordinator().complete(id).state == "open"
    assert not list(world.path(id).glob("manifest*")), "and no manifest is written"


def test_the_decision_names_a_manifest_that_says_it_all(world):
    world.sinks = {"a": 0, "even": 1}  # keeps nothing: every offset can be divided by 1
    world.checkpoint("one", rows=3)
    id = world.decided("two", rows=2)
    entry = world.ledger.entry(id)
    manifest = entry.manifest
    assert (manifest.id, manifest.base) == (2, 1)
    assert manifest.base_manifest == world.ledger.decision(1).manifest
    assert manifest.positions["in"].at == {"at": 5}
    assert manifest.jobs == {"main": entry.acks["main"].handle}
    assert (manifest.tables["a"].after, len(manifest.tables["a"].committables)) == (1, 1)
    assert (manifest.tables["even"].after, manifest.tables["even"].committables) == (None, [])


def test_the_run_is_indexed_before_the_decision_even_if_its_trigger_died(world):
    world.feed_more(3)
    id = world.trigger("one")
    LocalStore(world.folder).delete("runs")
    world.work(id)
    world.coordinator().complete(id)
    assert world.ledger.run_ids("one") == [id]


@pytest.mark.parametrize("record", ["plan.json", "acks/", "manifest-", "decision.json"])
def test_a_lost_answer_at_any_record_is_read_back(world, record):
    """W1: the create landed and the answer did not. The same call continues; nothing is done twice."""
    undo = lose_answers(record)
    try:
        world.checkpoint("one", rows=3)
    finally:
        undo()
    assert world.ledger.ids() == [1]
    world.checkpoint("two", rows=3)
    world.exact()


def test_a_decision_that_could_not_be_written_is_made_by_the_next_call(world, monkeypatch):
    world.feed_more(3)
    id = world.trigger("one")
    world.work(id)
    disk = BrokenDisk(monkeypatch)
    with disk.fails("link", errno.ENOSPC), pytest.raises(Unavailable) as caught:
        world.coordinator().complete(id)
    assert caught.value.reason == "DISK_FULL"
    assert world.state(id) == "open"
    assert world.coordinator().complete(id).state == "completed"


# -- attempts --------------------------------------------------------------------------------------------


def test_two_attempts_at_once_the_first_ack_counts_whole_and_the_other_lets_go(world):
    world.feed_more(3)
    id = world.trigger("one")
    slow = world.half_work(id)
    winner = world.work(id)
    assert len(world.tables["a"].files) == 6, "both have staged"
    ack = slow.ack(slow.staged, None)
    assert ack.attempt == winner
    assert len(world.tables["a"].files) == 3, "the loser's files are gone"
    world.coordinator().complete(id)
    world.coordinator().publish()
    world.exact()


def test_a_retried_job_finds_the_ack_and_stages_nothing(world):
    world.feed_more(3)
    id = world.trigger("one")
    first = world.work(id)
    before = dict(world.tables["a"].files)
    assert world.work(id) == first
    assert world.tables["a"].files == before


def test_a_job_of_an_aborted_checkpoint_stops_before_it_touches_anything(world):
    world.feed_more(3)
    id = world.trigger("one")
    world.coordinator().abort(id, "CANCELLED")
    with pytest.raises(Fenced, match="was aborted without job 'main'"):
        world.work(id)
    assert world.tables["a"].files == {}


def test_a_zombie_that_acks_after_the_abort_changes_nothing_and_its_files_go_with_the_entry(world):
    world.feed_more(3)
    id = world.trigger("one")
    zombie = world.half_work(id)
    world.coordinator().abort(id, "RUN_GONE")
    assert world.staged("a") == set(), "the abort took what was staged"
    assert world.checkpoint("two") == 2
    zombie.ack(zombie.staged, None)
    assert world.coordinator().complete(id).state == "aborted"
    assert world.published("a") == [2]
    world.exact()


def test_what_one_attempt_staged_in_part_is_named_by_nobody(world):
    """It died between two sinks. The next attempt adopts nothing of it."""
    world.feed_more(3)
    id = world.trigger("one")
    world.weather.then["stage 2 on b"] = lambda: (_ for _ in ()).throw(SystemExit)
    with pytest.raises(SystemExit):
        world.work(id)
    assert len(world.tables["a"].files) == 3
    winner = world.work(id)
    world.coordinator().complete(id)
    world.coordinator().publish()
    world.exact()
    assert all(f"/{winner}/" in name for commit in world.tables["a"].commits for name in commit.files)


# -- what a decision rests on is durable first -----------------------------------------------------------


def test_everything_that_a_decision_rests_on_is_synced_before_it(world, monkeypatch):
    """W2: another process wrote the acks and the base's decision, and a power loss may take back what it had
    not synced. Then this decision must not stand on what is gone."""
    world.checkpoint("one", rows=3)
    world.feed_more(3)
    id = world.trigger("two")
    world.work(id)
    disk = BrokenDisk(monkeypatch)
    with disk.watched():
        world.coordinator().complete(id)
    done = [(what, path.name) for what, path in disk.calls if what in ("fsync", "link")]
    decided = next(n for n, (what, name) in enumerate(done) if what == "link" and ".decision.json." in name)
    synced = [str(path.relative_to(world.folder)) for what, path in disk.calls if what == "fsync"]
    upto = done[:decided]
    assert ("fsync", "main.json") in upto
    assert ("fsync", "decision.json") in upto
    assert "checkpoints/00000001" in synced
    assert "checkpoints/00000002/acks" in synced


def test_an_abort_is_synced_before_anything_is_planned_around_it(world, monkeypatch):
    """Else a power loss brings the aborted checkpoint back to life, it completes, and its input is read twice."""
    world.feed_more(3)
    id = world.trigger("one")
    world.work(id)
    world.coordinator().abort(id, "CANCELLED")
    disk = BrokenDisk(monkeypatch)
    with disk.watched():
        world.trigger("two")
    calls = [(what, str(path.relative_to(world.folder))) for what, path in disk.calls if world.folder in path.parents]
    created = next(n for n, (what, name) in enumerate(calls) if what == "link" and "00000002/.plan.json." in name)
    assert ("fsync", "checkpoints/00000001/decision.json") in calls[:created]
    assert ("fsync", "checkpoints/00000001") in calls[:created]


def test_an_abort_that_cannot_be_synced_lets_nothing_go(world, monkeypatch):
    world.feed_more(3)
    id = world.trigger("one")
    world.work(id)
    world.coordinator().decide(world.coordinator()._abort(_abort(id)))
    with BrokenDisk(monkeypatch).fails("fsync", errno.EIO):
        assert world.coordinator().complete(id).state == "aborted"
    assert len(world.tables["a"].files) == 3, "not yet: the abort may be taken back"
    world.coordinator().complete(id)
    assert world.tables["a"].files == {}


def _abort(id):
    from tidegate.protocol.rules import Abort

    return Abort(id, "RUN_GONE", "", counts=False)
