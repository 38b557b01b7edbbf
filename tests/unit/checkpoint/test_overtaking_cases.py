"""Stories of jobs that checkpoints go past: how long they are waited for, what becomes of them, and of savepoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.limits import UNALIGNED
from tests.kit.slow_jobs import OvertakingStory, busy, toy_channels
from tests.kit.toy_world import toy_limits
from tidegate import seams
from tidegate.checkpoint.manifests import ancestors
from tidegate.checkpoint.superseded_acks import superseded_attempts
from tidegate.errors import Fenced, Rejected, Unavailable
from tidegate.execution.job.run_job import Attempt
from tidegate.lifecycle.copies import copy_out, open_copy, verify
from tidegate.lifecycle.savepoint import create, dispose, jobs_with_input_in_flight
from tidegate.lifecycle.snapshot import checkpoint_snapshot
from tidegate.protocol.progress import job_progress
from tidegate.records.records import Ack


@pytest.fixture(autouse=True)
def _toy_channels() -> Iterator[None]:
    with toy_channels():
        yield


class Clock:
    """What time it is, for the ledger's store."""

    now = 1_000.0


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    clock = Clock()
    with seams.installed(replace(seams.Seams(), monotonic=lambda: clock.now)):
        yield clock


TIMED = UNALIGNED | {"aligned_timeout": "1 min"}
"""Patient, for a minute."""
ALIGNED = TIMED | {"unaligned": False}
"""The same timeout, and nothing that it is for."""


# -- for how long it is waited for ----------------------------------------------------------------------


def test_a_busy_job_is_waited_for_until_the_time_is_over_and_no_longer(tmp_path: Path, clock: Clock) -> None:
    story, work = busy(tmp_path, toy_limits(recorded=TIMED, max_concurrent_checkpoints=3))
    third = story.planned()
    story.work(third, "slower")
    clock.now += 59.9
    assert story.refused(third) == "BASE_IN_PROGRESS"
    assert story.coordinator().complete(2).state == "open"
    clock.now += 0.1
    assert story.refused(third) == "PASSED_BY"
    story.completed(2, third)
    assert story.in_flight(third) == [2, 3]
    story.ended(work)


def test_if_it_is_done_in_time_it_is_aligned(tmp_path: Path, clock: Clock) -> None:
    story, work = busy(tmp_path, toy_limits(recorded=TIMED, max_concurrent_checkpoints=3))
    third = story.planned()
    assert story.refused(third) == "BASE_IN_PROGRESS"
    story.ended(work)
    story.completed(2)
    clock.now += 300
    story.all_done(third)
    assert story.in_flight(third) == []
    assert [handle.entry for handle in story.ledger.entry(third).manifest.jobs.values()] == [3, 3, 3]  # type: ignore[union-attr]


def test_without_a_timeout_it_is_not_waited_for_at_all(tmp_path: Path) -> None:
    """0: nothing ever switches, for nothing is aligned first."""
    story, _ = busy(tmp_path)
    assert story.refused(story.planned()) == "PASSED_BY"


def test_aligned_no_timeout_ever_switches(tmp_path: Path, clock: Clock) -> None:
    story, work = busy(tmp_path, toy_limits(recorded=ALIGNED, max_concurrent_checkpoints=3))
    third = story.planned()
    clock.now += 300
    assert story.refused(third) == "BASE_IN_PROGRESS"
    story.ended(work)
    story.completed(2)
    story.all_done(third)


# -- what becomes of it ---------------------------------------------------------------------------------


def test_past_its_own_checkpoints_timeout_a_job_that_was_passed_still_counts(tmp_path: Path, clock: Clock) -> None:
    """The timeout is the checkpoint's, and that is completed."""
    story, work = busy(tmp_path)
    third = story.planned()
    assert {story.refused(third), story.refused(third, "slow")} == {"PASSED_BY"}
    story.work(third, "slower")
    story.completed(2, third)
    clock.now += 1_000
    fourth = story.planned()
    assert story.ledger.entry(third).completed, "nobody has taken it for overdue"  # type: ignore[union-attr]
    story.ended(work)
    story.all_done(fourth)
    assert story.shown("b") == story.shown("a") == [1, 2, 3, 4]


def test_one_that_fails_is_made_up_for_by_the_next_with_all_that_is_in_flight(tmp_path: Path) -> None:
    story, (attempt, _, _) = busy(tmp_path)
    third = story.planned()
    story.refused(third)
    story.work(third, "slower")
    story.completed(2, third)
    attempt.release()  # what a failed attempt does
    fourth = story.planned()
    ack = story.work(fourth, "slow", at_work=False)
    assert [handle.entry for handle in ack.inputs["main"]] == [2, 3, 4]
    story.work(fourth, "slower")
    story.completed(fourth)
    assert story.shown("b") == story.shown("a") == [1, 2, 3, 4]
    with pytest.raises(Fenced, match="without job 'slow', which is further now"):
        story.work(2, "slow", at_work=False)


def voided(tmp_path: Path) -> tuple[OvertakingStory, str]:
    """`slow` was taken for gone at checkpoint 2, and continued in 4 from the same ack: only one of both counts."""
    story, late = busy(tmp_path)
    third = story.planned()
    story.refused(third)
    story.work(third, "slower")
    story.completed(2, third)
    fourth = story.planned()
    story.work(fourth, "slow", at_work=False)
    story.work(fourth, "slower")
    story.ended(late)
    story.completed(fourth)
    return story, late[0].staging.attempt


def staged_by(story: OvertakingStory, attempt: str) -> list[str]:
    return [name for name in story.tables["b"].files if f"/{attempt}/" in name]


def test_what_counts_nowhere_is_removed_with_its_checkpoint(tmp_path: Path) -> None:
    story, lost = voided(tmp_path)
    assert story.shown("b") == [1, 2, 3, 4]
    assert staged_by(story, lost)
    second = story.ledger.entry(2)
    assert second is not None
    assert superseded_attempts(story.ledger, second) == {lost}
    for _ in range(3):
        story.all_done(story.planned())
        story.coordinator().retire()
    assert story.ledger.entry(2) is None
    assert not staged_by(story, lost)
    assert story.shown("b") == story.shown("a") == list(range(1, 8))


def test_what_may_have_counted_in_a_checkpoint_that_is_retired_is_not_removed(tmp_path: Path) -> None:
    """A savepoint outlives the one above it, whose manifest had taken what was done late."""
    story, late = busy(tmp_path)
    third = story.planned()
    story.refused(third)
    story.work(third, "slower")
    story.completed(2, third)
    create(story.ledger, "kept", 2, "mia")
    story.ended(late)
    for _ in range(5):
        story.all_done(story.planned())
        story.coordinator().retire()
    assert story.ledger.ids()[:2] == [1, 2], "the savepoint goes on from the first"
    assert story.ledger.entry(4) is None
    dispose(story.ledger, "kept")
    story.coordinator().retire()
    assert story.ledger.entry(2) is None
    assert story.shown("b") == story.shown("a") == list(range(1, 9))


def asleep(story: OvertakingStory) -> Attempt:
    """An attempt that has asked, and slept while another one did the work, and its checkpoint was aborted."""
    id = story.planned()
    attempt = Attempt(story.coordinator(), id, "slow", lambda _: None)
    attempt.ask()
    story.work(id, "slow", at_work=False)
    story.coordinator().abort(id, "TEST")
    return attempt


def test_who_wakes_up_when_all_is_aborted_is_fenced_though_others_had_done_its_work(tmp_path: Path) -> None:
    """What it was to read is gone; that is no damage, for which a pipeline would be suspended."""
    attempt = asleep(OvertakingStory(tmp_path))
    with pytest.raises(Fenced, match="was aborted"), attempt.fenced_if_ended():
        attempt.read(None)  # type: ignore[arg-type]


def test_as_long_as_nobody_can_tell_nothing_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = asleep(OvertakingStory(tmp_path))

    def refuse() -> None:
        raise Unavailable("the ledger does not answer")

    monkeypatch.setattr(attempt, "refuse_ended", refuse)
    with pytest.raises(Unavailable, match="does not answer"), attempt.fenced_if_ended():
        attempt.read(None)  # type: ignore[arg-type]


# -- rollbacks (R4) -------------------------------------------------------------------------------------


def gone_back(tmp_path: Path) -> tuple[OvertakingStory, int, Ack]:
    """Back to 2, past which `slow` was; it was done with 2 since, and that was published by 4. Then one more."""
    story, late = busy(tmp_path)
    third = story.planned()
    story.refused(third)
    story.work(third, "slower")
    story.completed(2, third)
    story.ended(late)
    story.all_done(story.planned())
    assert story.shown("b") == [1, 2, 3, 4]
    back = story.coordinator().roll_back(2, run="back", by="mia")
    assert (back.error, story.shown("a"), story.shown("b")) == (None, [1, 2], [1])
    last = story.planned(rows=0)
    ack = story.work(last, "slow", at_work=False)
    story.work(last, "slower")
    story.completed(last)
    return story, last, ack


def test_behind_a_rollback_what_was_done_since_is_done_again(tmp_path: Path) -> None:
    """Others may have removed the files that it had brought: a table's older versions are theirs to clean up."""
    story, last, ack = gone_back(tmp_path)
    assert [handle.entry for handle in ack.inputs["main"]] == [2, last]
    manifest = story.ledger.entry(last).manifest  # type: ignore[union-attr]
    assert manifest is not None
    assert {handle.entry for handle in manifest.jobs.values()} == {last}
    assert len(manifest.tables["b"].committables) == 1
    assert story.shown("b") == story.shown("a") == [1, 2, 3, 4]


def test_nobody_reads_what_lies_below_a_rollback_and_nothing_of_it_counts(tmp_path: Path) -> None:
    """Each of both would do; and each is tried here without the other."""
    story, last, _ = gone_back(tmp_path)
    entry, base = story.coordinator().entry_and_base(last)
    assert entry is not None
    assert base is not None
    assert base.rollback is not None
    assert ancestors(story.ledger, entry, base) == []
    second = story.ledger.entry(2)
    assert second is not None
    assert second.acks["slow"].ack.prev == base.manifest.jobs["slow"]  # type: ignore[union-attr]
    unfinished = replace(entry, acks={"main": entry.acks["main"]})
    found = job_progress([unfinished, base, second])
    assert found.chosen["slow"].entry == 1
    assert [each.ack.entry for each in found.in_flight["slow"]] == [2, last]


# -- savepoints -----------------------------------------------------------------------------------------


def test_a_savepoint_that_is_asked_for_waits_for_every_job_and_can_be_copied(tmp_path: Path, clock: Clock) -> None:
    """O4: alignment is forced, whatever else is set, and so it is for those behind."""
    story, work = busy(tmp_path)
    third = story.planned()
    story.refused(third)
    story.work(third, "slower")
    story.completed(2, third)
    with pytest.raises(Rejected, match="slow lagged") as refused:
        checkpoint_snapshot(story.ledger, third, {}, by="mia")
    assert refused.value.reason == "IN_FLIGHT"
    fourth, fifth = story.planned(aligned=True), story.planned()
    clock.now += 500
    assert (story.refused(fourth), story.refused(fifth)) == ("BASE_IN_PROGRESS", "BASE_IN_PROGRESS")
    assert story.coordinator().complete(fourth).state == "open"
    story.ended(work)
    story.all_done(fourth)
    assert story.in_flight(fourth) == []
    create(story.ledger, "good", fourth, "mia")
    assert (jobs_with_input_in_flight(story.ledger, third), jobs_with_input_in_flight(story.ledger, fourth)) == (
        ["slow"],
        [],
    ), "what people are told"
    copied = copy_out(checkpoint_snapshot(story.ledger, fourth, {}, by="mia"), str(tmp_path / "copy"), "good")
    assert verify(open_copy(copied.ledger.home, {})) == []
    story.all_done(fifth)
    assert story.shown("b") == story.shown("a") == [1, 2, 3, 4, 5]
