"""What the simulation has found, told one by one: the real code, and somebody else at the worst moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from tests.kit.toy_gate import ToyGate
from tests.kit.toys import ToySink, ToySource
from tests.simulation.day import Day
from tidegate import Pipeline
from tidegate.checkpoint import approvals
from tidegate.coordinator import Coordinator
from tidegate.errors import Corrupt, Fenced, Rejected, Unavailable
from tidegate.execution.job.run_job import run_job
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import savepoint
from tidegate.verify.ledger import check_ledger


def others_continue(day: Day, runs: Iterable[str]) -> None:
    """Checkpoints are made, published, and all but the last retired."""
    for run in runs:
        day.checkpoint(run)
    day.coordinator().retire()


def test_a_trigger_that_slept_until_its_id_was_retired_gets_another_one() -> None:
    day = Day()
    day.checkpoint("a")
    day.weather.before("create checkpoints/00000002/plan.json", lambda: others_continue(day, "bcd"))
    assert day.trigger("sleeper") == 5
    assert day.published() == [1, 2, 3, 4]
    assert day.coordinator().complete(2).state in ("aborted", "retired")
    day.work(5)
    day.coordinator().complete(5)
    others_continue(day, "e")
    assert day.published() == [1, 2, 3, 4, 5, 6], "nothing that the real checkpoint 2 had staged was removed"
    assert day.disk.listing("checkpoints") == ["00000006"]


def test_a_sleeper_that_died_before_it_noticed_is_cleaned_up_and_counts_for_nothing() -> None:
    day = Day()
    day.limit(num_retained=2)
    day.checkpoint("a")

    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    def sleep() -> None:
        others_continue(day, "bcd")
        day.weather.before("sync checkpoints/00000002/plan.json", die)

    day.weather.before("create checkpoints/00000002/plan.json", sleep)
    with pytest.raises(Killed):
        day.trigger("sleeper")
    assert "00000002" in day.disk.listing("checkpoints")
    with pytest.raises(Fenced):
        day.work(2)
    others_continue(day, "e")
    assert day.disk.listing("checkpoints") == ["00000004", "00000005"], "the last two are kept, the ghost is not"
    assert day.published() == [1, 2, 3, 4, 5]


def test_without_the_hint_a_sleepers_ghost_is_not_taken_for_the_beginning_of_the_log() -> None:
    day = Day()
    day.checkpoint("a")
    day.weather.before("create checkpoints/00000002/plan.json", lambda: others_continue(day, "bcd"))
    day.trigger("sleeper")
    day.disk.delete("latest.json")
    assert day.view_ids() == [4, 5]


def test_a_run_whose_checkpoint_is_retired_is_not_told_anothers_under_the_same_id() -> None:
    day = Day()
    day.checkpoint("a")

    def again() -> None:
        with pytest.raises(Rejected) as caught:
            day.trigger("mine")
        assert caught.value.reason == "RETIRED"

    def sleep() -> None:
        others_continue(day, ["mine", "c", "d"])
        day.weather.before("read checkpoints/00000002/plan.json", again)

    day.weather.before("create checkpoints/00000002/plan.json", sleep)
    day.trigger("sleeper")
    assert "read checkpoints/00000002/plan.json" not in day.weather.moments
    again()


def test_a_run_is_not_alarmed_by_what_two_sleepers_left_under_the_id_of_its_retired_checkpoint() -> None:
    """Seed 15031. One had just written its manifest, the other its plan. Retention removed the checkpoint, they woke
    up, and there it was again: planned for the same run, completed by a manifest that does not exist."""
    day = Day()

    def aborted_and_retired() -> None:
        assert day.coordinator().abort(1, "CANCELLED").state == "aborted"
        others_continue(day, "bc")

    def sleep() -> None:
        day.work(day.trigger("mine"))
        day.weather.before("create checkpoints/00000001/decision.json", aborted_and_retired)
        assert day.coordinator().complete(1).state == "retired"

    day.weather.before("create checkpoints/00000001/plan.json", sleep)
    with pytest.raises(Rejected) as caught:
        day.trigger("mine")
    assert caught.value.reason == "RETIRED"
    assert {"plan.json", "decision.json"} <= set(day.disk.listing("checkpoints/00000001"))
    others_continue(day, "d")
    assert day.disk.listing("checkpoints") == ["00000004"]
    assert day.published() == [1, 2, 3]


def test_failures_are_read_once_however_often_the_log_is_looked_at() -> None:
    """Seed 12338. Every look at the log read all failures since the last success again. The more there were, the longer
    a checkpoint took, until each was past its timeout when it was done: they failed because others had failed."""

    def reads(failures: int) -> int:
        day = Day()
        for number in range(failures):
            day.coordinator().abort(day.trigger(f"failed {number}"), "CANCELLED")
        coordinator, before = day.coordinator(), day.weather.reads
        assert coordinator.trigger("good") is not None
        run_job(coordinator, failures + 1, "main", None)  # type: ignore[arg-type]
        assert coordinator.complete(failures + 1).state == "completed"
        assert coordinator.publish().published
        assert day.published() == [1]
        return day.weather.reads - before

    records_of_one = ("decision.json", "plan.json", "decision.json", "acks/main.json", "plan.json")
    assert reads(40) - reads(10) == 30 * len(records_of_one)


def test_retention_counts_nothing_that_a_sleeper_left_under_a_retired_id() -> None:
    """Seed 794. One who slept wrote an old count over a newer one. It begins at an entry that is gone by now, and there
    somebody else who slept had just aborted what was completed long ago: so one more was counted than there is."""
    day = Day()
    id = day.trigger("a")
    day.work(id)

    def counted_long_ago() -> None:
        assert day.coordinator().complete(id).state == "completed"
        day.coordinator().publish()
        day.weather.before("replace kept.json", lambda: others_continue(day, "b"))
        day.coordinator().retire()

    day.weather.before("create checkpoints/00000001/decision.json", counted_long_ago)
    assert day.coordinator().abort(id, "CANCELLED").state == "retired"
    assert day.disk.listing("checkpoints") == ["00000001", "00000002"]
    assert day.coordinator().retire() == [1]
    others_continue(day, "c")
    assert day.disk.listing("checkpoints") == ["00000003"]
    assert day.published() == [1, 2, 3]


def test_whoever_slept_between_two_records_of_an_entry_does_not_take_anothers_for_it() -> None:
    """Seed 3172. It had read the plan; then the checkpoint was completed and retired, somebody else who slept claimed
    its id anew, and aborted that. The plan of the one and the abort of the other: what was live in the table was let
    go of."""
    day = Day()
    id = day.trigger("mine")

    def others() -> None:
        day.work(id)
        assert day.coordinator().complete(id).state == "completed"
        day.coordinator().publish()
        others_continue(day, "bc")
        day.weather.moments.clear()

    def ghost() -> None:
        others()
        plan = f"checkpoints/{id:08d}/plan.json"
        day.disk.create(plan, claimed)
        day.coordinator().abort(id, "CANCELLED")
        day.disk.create(plan.replace("plan", "decision"), aborted)

    other = Day()
    other.coordinator().abort(other.trigger("sleeper"), "TOO_LATE")
    claimed = other.disk.files["checkpoints/00000001/plan.json"].data
    aborted = other.disk.files["checkpoints/00000001/decision.json"].data
    day.weather.before("read checkpoints/00000001/decision.json", ghost)
    day.coordinator().abort(id, "CANCELLED")
    assert day.published() == [1, 2, 3]


@pytest.mark.parametrize("dies", [True, False], ids=["dies", "aborts it"])
def test_the_doctor_is_not_alarmed_by_what_a_sleeper_left_below_a_checkpoint(dies: bool) -> None:
    """Seed 3022 of the years. A checkpoint rested on the one whose id was claimed anew: to the doctor it was completed
    on one that was not, and people were told to restore records from a copy."""
    day = Day()
    day.checkpoint("a")

    def sleep() -> None:
        others_continue(day, "bc")
        if dies:
            day.weather.before("sync checkpoints/00000002/plan.json", die)

    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    day.weather.before("create checkpoints/00000002/plan.json", sleep)
    with contextlib.suppress(Killed):
        assert day.trigger("sleeper") == 4
    assert {"00000002", "00000003"} <= set(day.disk.listing("checkpoints")), "3 rests on 2, which is another one now"
    assert wrong(day) == []


def test_a_job_that_wakes_up_when_its_checkpoint_is_retired_is_fenced_not_alarmed() -> None:
    """Its plan's side file is gone: that is no damage."""
    day = Day(padding=40_000)
    id = day.trigger("a")
    blob = next(path for path in day.disk.files if path.startswith("blobs/"))

    def others() -> None:
        day.work(id)
        day.coordinator().complete(id)
        others_continue(day, "bc")

    day.weather.before(f"read {blob}", others)
    with pytest.raises(Fenced):
        day.work(id)


def gated(every: int) -> Day:
    """A gate holds what has a multiple of this."""
    day, pipeline = Day(), Pipeline("day")
    rows = pipeline.source("in", ToySource(day.feed, 1, 0)).gate(ToyGate(every, 1e9, "approve"), name="checked")
    rows.sink("out", ToySink("out", day.tables))
    day.declared = pipeline
    return day


def test_a_job_whose_checkpoint_another_attempt_has_made_is_not_alarmed_that_the_base_is_gone() -> None:
    """It has read that its base is there; then others continued, and retention took it. (Seed 11672.)"""
    day = gated(10**9)
    day.checkpoint("a")
    id = day.trigger("b")
    reads = iter(range(2))

    def others() -> None:
        if next(reads) == 0:  # the one that looks whether it is there
            day.weather.before("read checkpoints/00000001/acks/main.json", others)
            return
        day.work(id)
        day.coordinator().complete(id)
        day.coordinator().publish()
        others_continue(day, "c")

    day.weather.before("read checkpoints/00000001/acks/main.json", others)
    with pytest.raises(Fenced):
        day.work(id)
    assert day.published() == [1, 2, 3]


@pytest.mark.parametrize("others_finish", [True, False], ids=["acked by another", "acked by nobody"])
def test_an_attempt_that_fails_on_what_is_retired_takes_the_ack_of_another(others_finish: bool) -> None:
    """Seeds 9251 and 11863 of the years. It slept while another attempt did the job, and retention took the files of
    the state from which it continued: it told of damage, which suspends a pipeline, and left its own files behind."""
    day = Day()
    day.checkpoint("a")
    id = day.trigger("b")

    def lost() -> None:
        if others_finish:
            day.work(id)
            day.coordinator().complete(id)
            day.coordinator().publish()
        raise Corrupt("the state has lost a file", reason="STATE_FILES_GONE")

    day.weather.before(f"stage {id} on out", lost)
    attempt = lambda: run_job(day.coordinator(), id, "main", None)  # type: ignore[arg-type]  # noqa: E731
    if others_finish:
        acked = day.coordinator().ledger.ack(id, "main")
        assert acked is None
        acked = attempt()
        assert acked == day.coordinator().ledger.ack(id, "main").ack  # type: ignore[union-attr]
        assert day.published() == [1, 2]
    else:
        with pytest.raises(Corrupt, match="the state has lost a file"):
            attempt()


def test_the_doctor_is_not_alarmed_by_holes_that_retention_made_before_a_rollback() -> None:
    """Seed 13876 of the years. Retention passed 2 and 3, because 1 was named; then the name went, and a rollback to 4
    made 1 count again."""
    day = Day()
    day.limit(num_retained=3)
    day.checkpoint("a")
    savepoint.create(day.coordinator().ledger, "named", 1, "x")
    others_continue(day, "bcdef")
    assert day.disk.listing("checkpoints") == ["00000001", "00000004", "00000005", "00000006"]
    savepoint.dispose(day.coordinator().ledger, "named")
    day.coordinator().roll_back(4, run="back", by="x")
    day.coordinator().retire()
    assert "00000001" in day.disk.listing("checkpoints")
    assert wrong(day) == []


def test_the_doctor_is_not_alarmed_by_a_decision_that_came_when_its_checkpoint_was_retired() -> None:
    """Seed 16800 of the years, in which a sleeper had also put back how far retention had got."""
    day = Day()
    day.limit(num_retained=3)
    day.checkpoint("a")
    savepoint.create(day.coordinator().ledger, "named", 1, "x")
    id = day.trigger("b")

    def others() -> None:
        day.coordinator().abort(id, "CANCELLED")
        others_continue(day, "cdefg")

    day.weather.before(f"create checkpoints/{id:08d}/decision.json", others)
    day.coordinator().abort(id, "SLOW")
    savepoint.dispose(day.coordinator().ledger, "named")
    day.coordinator().roll_back(5, run="back", by="x")
    day.coordinator().retire()
    assert day.disk.listing("checkpoints")[:3] == ["00000001", "00000002", "00000005"]
    assert wrong(day) == []


def test_a_sleeper_does_not_put_back_how_far_retention_has_got() -> None:
    day = Day()
    for run in "abc":
        day.checkpoint(run)
    sleeper, ledger = day.coordinator(), day.coordinator().ledger
    reads = iter(range(9))

    def others() -> None:
        if next(reads) == 0:  # the read with which it begins
            day.weather.before("read kept.json", others)
        else:
            others_continue(day, "def")

    day.weather.before("read kept.json", others)
    sleeper.retire()
    kept = ledger.retained_count()
    assert kept is not None
    assert (kept.low, kept.upto) == (6, 6)


def wrong(day: Day) -> list[str]:
    """What the doctor finds in the ledger."""
    subject = SimpleNamespace(name="day", ledger=day.coordinator().ledger)
    _, findings = check_ledger(subject)  # type: ignore[arg-type]
    return [each.detail for each in findings if each.state == "bad"]


def test_a_trigger_that_slept_until_what_it_was_to_rest_on_is_retired_is_not_alarmed() -> None:
    """Behind a rollback it rests on the target's acks, and the target goes with the rollback."""
    day = Day()
    day.limit(num_retained=3)
    for run in "abc":
        day.checkpoint(run)
    day.coordinator().roll_back(2, run="back", by="x")
    day.limit(num_retained=1)

    def others() -> None:
        others_continue(day, "def")
        day.coordinator().retire()  # the target goes once the rollback's entry is gone

    day.weather.before("read checkpoints/00000002/acks/main.json", others)
    with pytest.raises(Unavailable, match="has just been retired"):
        day.trigger("g")
    assert day.checkpoint("g") == 8
    live = day.tables["out"].live()
    assert sorted(offset for name in live for offset, _ in day.tables["out"].files[name]) == [1, 2, 3, 4, 5, 6]


def test_a_view_never_shows_a_checkpoint_completed_and_its_base_open() -> None:
    """Both are completed while the log is read: a publisher would have called the table damaged."""
    day = Day()
    day.limit(max_concurrent_checkpoints=2)
    first, second = day.trigger("a"), day.trigger("b")
    day.work(first)
    day.work(second)
    for record in (f"checkpoints/{id:08d}/{name}" for id in (first, second) for name in ("plan.json", "decision.json")):
        copy = Day()
        copy.disk.files = dict(day.disk.files)
        copy.disk._folders = {name: dict(within) for name, within in day.disk._folders.items()}
        copy.limit(max_concurrent_checkpoints=2)
        copy.tables.tables = dict(day.tables.tables)
        coordinator = copy.coordinator()

        def both(coordinator: Coordinator = coordinator) -> None:
            assert coordinator.complete(1).state == coordinator.complete(2).state == "completed"

        copy.weather.before(f"read {record}", both)
        entries = Ledger(copy.disk, "day").view().entries
        assert [entry.completed for entry in entries] in ([False, False], [True, False], [True, True])


def test_a_listing_that_lags_behind_the_table_is_no_damage() -> None:
    day = Day()
    day.checkpoint("a")
    day.checkpoint("b")
    day.disk.delete("latest.json")
    day.weather.hidden = "00000002"
    assert day.view_ids() == [1]
    assert not day.coordinator().publish().stuck
    assert day.checkpoint("c") == 3
    assert day.published() == [1, 2, 3]


def test_no_index_outlives_its_plan() -> None:
    """The plan was seen but not durable, and its run came again: an index without a plan looks like damage."""
    day = Day()
    day.weather.mishaps["create checkpoints/00000001/plan.json"] = "unsynced"
    day.weather.mishaps["settle checkpoints/00000001/plan.json"] = "lost"
    with pytest.raises(Exception, match="cannot sync"):
        day.trigger("a")
    day.trigger("a")
    day.disk.power_loss()
    assert day.trigger("a") == 1
    assert day.view_ids() == [1]


def test_what_was_planned_on_survives_a_power_loss() -> None:
    """Checkpoint 1 can be seen, its creator has not synced it yet, and 2 is planned on top of it."""
    day = Day()
    day.limit(max_concurrent_checkpoints=2)

    def second() -> None:
        assert day.trigger("b") == 2
        day.disk.power_loss()

    day.weather.before("sync checkpoints/00000001/plan.json", second)
    day.trigger("a")
    assert day.view_ids() == [1, 2]


def test_what_was_said_survives_a_power_loss_if_what_follows_from_it_does() -> None:
    """The no can be seen, whoever said it has not synced it yet, and another one aborts by it. (Seed 18591.)"""
    day = gated(1)
    id = day.trigger("a")
    day.work(id)

    def others() -> None:
        assert day.coordinator().complete(id).reason == "GATE_REJECTED"
        day.disk.power_loss()

    day.weather.before(f"sync checkpoints/{id:08d}/holds/checked.json", others)
    approvals.answer(Ledger(day.disk, "day"), id, None, approve=False, by="ann")
    entry = Ledger(day.disk, "day").entry(id)
    assert entry is not None
    assert entry.aborted
    assert entry.answers["checked"].by == "ann"


def test_a_publisher_who_was_overtaken_while_storage_failed_is_not_alarmed_that_the_table_is_gone() -> None:
    """Seed 263 of the days by event. It saw a table without commits; its write failed; it looked again, in vain; then
    another one made the first commit, and its record of it was all that the first one saw."""
    day = Day()
    id = day.trigger("a")
    day.work(id)
    day.coordinator().complete(id)

    def fail() -> None:
        day.weather.before(f"read checkpoints/{id:08d}/published.json", lambda: day.coordinator().publish())
        raise Unavailable("the weather")

    day.weather.before(f"commit {id} on out", fail)
    report = day.coordinator().publish()
    assert report.stuck == {}
    assert day.published() == [1]
