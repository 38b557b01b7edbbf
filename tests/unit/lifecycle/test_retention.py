"""Retention: what may go, what must stay, and a deletion that breaks off anywhere."""

import os
import shutil

import pytest

from tests.kit.faults import Fault
from tests.kit.toy_gate import ToyGate
from tests.kit.toy_world import quietly
from tests.kit.toys import ToySink
from tidegate import seams
from tidegate.checkpoint import quarantine_requests
from tidegate.checkpoint.references import blobs_within
from tidegate.errors import Corrupt, Fenced, Rejected, Unavailable
from tidegate.ledger import Ledger
from tidegate.lifecycle import retention, savepoint
from tidegate.lifecycle.retention import retention_floor
from tidegate.lifecycle.rollback_preview import examine
from tidegate.records.records import Pin, Request, Retired, SampledRows, Samples

WHO = {"attempt": "x", "created": "now"}


def left(world):
    return world.ledger.ids()


def tree(world):
    return sorted(str(path.relative_to(world.folder)) for path in world.folder.rglob("*"))


# -- what goes and what stays ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_retained", "stay"), [(1, [6]), (3, [4, 5, 6]), (6, [1, 2, 3, 4, 5, 6]), (9, [1, 2, 3, 4, 5, 6])]
)
def test_the_last_completed_ones_stay(world, num_retained, stay):
    world.limit(num_retained=num_retained)
    for n in range(6):
        world.checkpoint(f"run{n}", rows=3)
    assert left(world) == stay
    world.exact()


def test_aborted_ones_do_not_count_and_go_with_their_neighbours(world):
    world.limit(num_retained=2)
    world.checkpoint("one", rows=3)
    for n in range(3):
        world.coordinator().abort(world.trigger(f"bad{n}"), "CANCELLED")
    world.checkpoint("two", rows=3)
    world.coordinator().abort(world.trigger("bad"), "CANCELLED")
    assert left(world) == [1, 2, 3, 4, 5, 6]
    world.checkpoint("three", rows=3)
    assert left(world) == [5, 6, 7]
    world.exact()


def test_what_was_rolled_back_does_not_count(world):
    """Behind a rollback, too, so many can be gone back to as num_retained says; then it goes with its neighbours."""
    world.limit(num_retained=3)
    for n in range(5):
        world.checkpoint(f"run{n}", rows=3)
    assert left(world) == [3, 4, 5]
    back = world.coordinator().roll_back(3, run="back", by="ann").id
    world.checkpoint("next", rows=3)
    assert left(world) == [3, 4, 5, back, 7], "3, 6 and 7: 4 and 5 are only between them"
    for id in (7, back, 3):
        assert examine(world.coordinator(), id, {}).problems == ()
    world.checkpoint("and next", rows=3)
    world.checkpoint("and last", rows=3)
    world.coordinator().retire()
    assert left(world) == [7, 8, 9]


def test_a_rollback_that_was_gone_back_behind_lets_what_it_had_undone_count_again(world):
    world.limit(num_retained=3)
    for n in range(3):
        world.checkpoint(f"run{n}", rows=3)
    world.coordinator().roll_back(1, run="back", by="ann")
    world.coordinator().roll_back(3, run="forth", by="ann")
    world.coordinator().retire()
    assert left(world) == [1, 2, 3, 4, 5], "2, 3 and 5"
    world.checkpoint("next", rows=3)
    assert left(world) == [1, 3, 4, 5, 6], "3, 5 and 6; and 1, to which 4 went back"


def test_what_is_open_and_what_it_rests_on_stays(world):
    world.limit(num_retained=1, max_concurrent_checkpoints=2)
    world.checkpoint("one", rows=3)
    world.feed_more(6)
    world.trigger("two")
    world.trigger("three")
    world.coordinator().retire()
    assert left(world) == [1, 2, 3]


def test_what_a_table_is_still_owed_stays(world):
    world.limit(num_retained=1, max_unpublished=9)
    world.checkpoint("one", rows=3)
    world.weather.stuck.add("b")
    world.checkpoint("two", rows=3)
    world.checkpoint("three", rows=3)
    assert left(world) == [1, 2, 3]
    world.weather.stuck.clear()
    world.checkpoint("four", rows=3)
    assert left(world) == [4]
    world.exact()


def test_nothing_goes_while_there_is_no_hint(world):
    world.limit(num_retained=1)
    for n in range(3):
        world.decided(f"run{n}", rows=3)
        world.coordinator().publish()
    world.ledger.store.delete("latest.json")
    assert world.coordinator().retire() == []
    assert left(world) == [1, 2, 3]


def test_the_run_index_is_never_removed(world):
    """Scenario 8, forever: an old run that is cleared finds that it is done."""
    world.limit(num_retained=1)
    for n in range(4):
        world.checkpoint(f"run{n}", rows=3)
    assert world.ledger.run_ids("run0") == [1]
    with pytest.raises(Rejected) as caught:
        world.trigger("run0")
    assert caught.value.reason == "RETIRED"
    assert "checkpoint 1" in caught.value.what
    assert left(world) == [4]


def test_retention_goes_down_as_well_as_up(world):
    for n in range(6):
        world.checkpoint(f"run{n}", rows=3)
    world.limit(num_retained=2)
    world.checkpoint("more", rows=3)
    assert left(world) == [6, 7]
    world.limit(num_retained=4)
    for n in range(4):
        world.checkpoint(f"again{n}", rows=3)
    assert left(world) == [8, 9, 10, 11]
    world.exact()


def test_the_hint_is_synced_before_what_lies_below_it_is_removed(world, monkeypatch):
    """Else a power loss brings an older hint back, which names what is gone."""
    world.limit(num_retained=1)
    order = []
    for name in ("sync_hint", "create_retired"):
        real = getattr(Ledger, name)
        monkeypatch.setattr(Ledger, name, lambda self, *a, real=real, name=name: (order.append(name), real(self, *a)))
    world.checkpoint("one", rows=3)
    world.checkpoint("two", rows=3)
    assert order == ["sync_hint", "create_retired"]


# -- side files ------------------------------------------------------------------------------------------


def test_side_files_go_with_their_entry(world):
    world.limit(num_retained=2)
    world.padding = 100_000
    for n in range(4):
        world.checkpoint(f"run{n}", rows=3)
    assert len(os.listdir(world.folder / "blobs")) == 2


def test_side_files_that_a_kept_position_shares_stay(world):
    """Positions carry their lists on from plan to plan, as Files by arrival does."""
    world.limit(num_retained=1)
    world.source = Sharing(world.feed)
    for n in range(4):
        world.checkpoint(f"run{n}", rows=3)
    assert left(world) == [4]
    end = world.ledger.entry(4).plan.sources["in"].end
    assert len(end["seen"]) == 4
    for blob in blobs_within(end):
        assert world.ledger.get_blob(blob) == b"names"
    assert len(os.listdir(world.folder / "blobs")) == 4


def test_a_side_file_that_is_passed_on_while_others_are_read_stays(world, monkeypatch):
    """The clean-up of 1 has listed 2, and sleeps. Others make 3, which takes the file over, and retire 2. And so on."""
    world.limit(num_retained=1)
    world.source = Sharing(world.feed)
    world.checkpoint("one", rows=3)
    list_ids, awake, naps = retention._Remaining.ids, [True], []

    def list_and_sleep(self, but):
        ids = list_ids(self, but)
        if awake and len(naps) < 3:
            awake.clear()
            naps.append(but)
            world.checkpoint(f"meanwhile{len(naps)}", rows=3)
            awake.append(True)
        return ids

    monkeypatch.setattr(retention._Remaining, "ids", list_and_sleep)
    world.checkpoint("two", rows=3)
    [last] = left(world)
    for blob in blobs_within(world.ledger.entry(last).plan.sources["in"].end):
        assert world.ledger.get_blob(blob) == b"names"
    assert len(naps) > 1


def test_side_files_that_are_shared_over_aborted_entries_stay(world):
    world.limit(num_retained=1, max_concurrent_checkpoints=2)
    world.source = Sharing(world.feed)
    world.checkpoint("one", rows=3)
    world.coordinator().abort(world.trigger("bad"), "CANCELLED")
    world.feed_more(9)
    for run in ("base", "on top"):
        world.trigger(run)
    world.coordinator().abort(3, "CANCELLED")
    world.coordinator().complete(4)
    for n in range(3):
        world.checkpoint(f"run{n}")
        for id in left(world):
            for part in (
                world.ledger.entry(id).plan.sources["in"].start,
                world.ledger.entry(id).plan.sources["in"].end,
            ):
                for blob in blobs_within(part):
                    assert world.ledger.get_blob(blob) == b"names"
    assert left(world) == [7]
    assert len(os.listdir(world.folder / "blobs")) == 4, "of the aborted ones nothing is left"


def test_a_side_file_that_aborted_entries_merged_away_stays_for_those_that_continue_from_before_them(world):
    world.limit(num_retained=1, max_concurrent_checkpoints=2)
    world.source = Sharing(world.feed)
    world.checkpoint("one", rows=3)
    world.feed_more(9)
    world.source.merge = True
    for run in ("merges", "on top"):
        world.trigger(run)
    world.source.merge = False
    world.coordinator().abort(2, "CANCELLED")
    world.coordinator().complete(3)
    world.checkpoint("goes on from one")
    assert left(world) == [4]
    end = world.ledger.entry(4).plan.sources["in"].end
    assert len(end["seen"]) == 2
    for blob in blobs_within(end):
        assert world.ledger.get_blob(blob) == b"names"


@pytest.mark.parametrize("named", [True, False])
def test_a_side_file_that_was_merged_away_on_a_line_that_was_left_stays_for_those_behind_the_rollback(world, named):
    """Checkpoint 3 merges what it has seen, and 4 has a name; then 2 is gone back to."""
    world.limit(num_retained=3)
    world.source = Sharing(world.feed)
    for run in ("one", "two"):
        world.checkpoint(run, rows=3)
    world.source.merge = True
    world.checkpoint("merges", rows=3)
    world.source.merge = False
    world.checkpoint("merged", rows=3)
    if named:
        savepoint.create(world.ledger, "before", 4, "ann")
    world.coordinator().roll_back(2, run="back", by="ann")
    for n in range(7):
        world.checkpoint(f"behind{n}", rows=3)
        for id in left(world):
            for blob in blobs_within(world.ledger.entry(id).plan.sources["in"].end):
                assert world.ledger.get_blob(blob) == b"names"
    assert left(world) == [*([4] if named else []), 10, 11, 12]
    assert len(os.listdir(world.folder / "blobs")) == 9 + 2 * named, "and nothing else does"


def test_a_row_that_was_released_on_a_line_that_was_left_waits_for_those_behind_the_rollback(world):
    """Row 3 is set aside, and checkpoint 4, which has a name, releases it. Then 3 is gone back to, and the request is
    taken back; 7 takes up another one. As of 6 the row waits, in the file that 3 put there, and 6 can be gone back to.
    """
    world.limit(num_retained=3)
    world.bound = 1
    world.gates = {"checked": ToyGate(0, 1e9, "approve", 3, world.tables)}

    def asked(**what):
        request = Request(**WHO, number=1, gate="checked", by="ann", **what)
        return quarantine_requests.ask(world.ledger, request).number

    for run in ("one", "two", "three"):
        world.checkpoint(run, rows=1)
    (waits,) = world.tables["quarantine.checked"].live()
    first = asked(action="release", seen=3)
    world.checkpoint("four", rows=1)
    assert waits not in world.tables["quarantine.checked"].live()
    savepoint.create(world.ledger, "released", 4, "ann")
    world.coordinator().roll_back(3, run="back", by="ann")
    asked(action="withdraw", withdraws=first)
    world.checkpoint("six", rows=1)
    assert waits in world.tables["quarantine.checked"].live()
    asked(action="release", seen=3)
    for run in ("seven", "eight"):
        world.checkpoint(run, rows=1)
    for _ in range(3):
        world.coordinator().retire()
    assert left(world) == [4, 6, 7, 8]
    assert waits in world.tables["quarantine.checked"].files
    world.coordinator().roll_back(6, run="back to six", by="ann")
    assert world.tables["quarantine.checked"].live() == [waits]


def test_a_slow_run_whose_base_is_retired_while_it_plans_plans_again(world):
    """What it reads of the base's position is gone then. That is no damage: others continued."""
    world.limit(num_retained=1)
    world.source = Sharing(world.feed)
    for run in ("one", "two"):
        world.checkpoint(run, rows=3)
    world.feed_more(3)
    real, slow = world.source.plan, []

    def plan(start, context):
        if not slow:
            slow.append(start)
            world.source.merge = True
            for n in range(3):
                world.checkpoint(f"fast{n}", rows=3)
            world.source.merge = False
        for blob in blobs_within(start):
            context.blobs.get_blob(blob)
        return real(start, context)

    world.source.plan = plan
    assert world.trigger("slow") == 6
    assert slow[0] == {"at": 6, "seen": slow[0]["seen"]}
    world.source.plan = real


def test_a_side_file_that_is_lost_is_damage_all_the_same(world):
    world.source = Sharing(world.feed)
    world.checkpoint("one", rows=3)
    shutil.rmtree(world.folder / "blobs")
    world.source.plan = lambda start, context: [context.blobs.get_blob(blob) for blob in blobs_within(start)]
    with pytest.raises(Corrupt, match="is missing"):
        world.trigger("two")


class Sharing:
    """A source whose position names one side file more with each plan, or `merge`s all into one."""

    def __new__(cls, feed):
        from tests.kit.toys import ToySource
        from tidegate.connectors.source import Planned

        class Source(ToySource):
            merge = False

            def plan(self, start, context):
                planned = super().plan(start, context)
                blob = context.blobs.put_blob(b"names")
                segment = {"path": blob.path, "sha": blob.sha, "size": blob.size}
                seen = [segment] if self.merge else [*(start or {"seen": []})["seen"], segment]
                return Planned(end=planned.end | {"seen": seen}, splits=planned.splits, is_empty=planned.is_empty)

        return Source(feed)


@pytest.mark.parametrize(
    "value",
    [
        {"path": "/data/landing/a.json", "sha": "ab" * 32, "size": 3},
        {"path": "checkpoints/00000009", "sha": "ab" * 32, "size": 3},
        {"path": "blobs/../pipeline.json", "sha": "ab" * 32, "size": 3},
        {"path": "blobs/x", "sha": "short", "size": 3},
        {"path": "blobs/x", "sha": "ab" * 32, "size": "3"},
        {"path": None, "sha": None, "size": None},
    ],
)
def test_what_only_looks_like_a_side_file_is_never_removed(value):
    """A source's position may hold any JSON, also file names that others chose."""
    assert list(blobs_within({"last": [value]})) == []


# -- staged files: a live file must never go ---------------------------------------------------------------


def test_files_of_attempts_that_lost_go_and_those_of_the_winner_stay(world):
    world.limit(num_retained=1)
    world.feed_more(3)
    id = world.trigger("one")
    world.half_work(id)  # died behind staging: an orphan
    world.half_work(id)  # a zombie that will never ack
    world.work(id)
    world.coordinator().complete(id)
    world.coordinator().publish()
    assert len(world.staged("a")) == 3 + 3
    world.checkpoint("two", rows=3)
    assert world.state(id) == "gone"
    assert world.staged("a") == set()
    world.exact()


def test_files_that_a_zombie_staged_for_an_aborted_entry_go_with_it(world):
    world.limit(num_retained=1)
    world.feed_more(3)
    id = world.trigger("one")
    zombie = world.half_work(id)
    world.coordinator().abort(id, "RUN_GONE")
    zombie.stage_sinks(zombie.read(None))
    assert len(world.staged("a")) == 3
    world.checkpoint("two")
    world.checkpoint("three", rows=3)
    assert left(world) == [3]
    assert world.staged("a") == set()
    world.exact()


STEPS = range(1, 16)


@pytest.mark.parametrize("step", STEPS)
def test_a_deletion_that_breaks_off_anywhere_harms_nothing_and_is_taken_up_again(world, step, monkeypatch):
    """S13, between any two deletes: the process dies. In between, the old run is cleared (Scenario 8): its
    retried tasks find a half-deleted entry and must neither complete, abort nor release anything of it."""
    world.limit(num_retained=2)
    world.padding = 100_000
    world.checkpoint("one", rows=3)
    world.checkpoint("two", rows=3)
    world.feed_more(3)
    world.decided("three")
    world.coordinator().publish()

    died = _die_at_delete(world, step, monkeypatch)
    if world.path(1, "plan.json").exists():
        world.age(1, 10_000)

    for retried in (
        lambda: world.coordinator().trigger("one"),
        lambda: world.work(1),
        lambda: world.coordinator().complete(1),
        lambda: world.coordinator().complete(1, ("JOB_FAILED", "late")),
        lambda: world.coordinator().abort(1, "CANCELLED"),
        lambda: world.coordinator().publish(),
    ):
        error = quietly(retried)
        assert not isinstance(error, Corrupt | Unavailable), error
    world.exact()

    world.coordinator().retire()
    if died:
        assert left(world) == [2, 3]
        assert not world.path(1).exists()
    assert len(os.listdir(world.folder / "blobs")) == 2
    world.checkpoint("four", rows=3)
    world.exact()
    assert left(world) == [3, 4]


def _die_at_delete(world, step, monkeypatch):
    """Retire, and die before the step-th removal of a file or folder."""
    calls = []

    def counted(real):
        def call(*args, **kwargs):
            calls.append(args)
            if len(calls) >= step:
                raise SystemExit
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for name in ("unlink", "rmdir"):
            patched.setattr(os, name, counted(getattr(os, name)))
        try:
            world.coordinator().retire()
        except SystemExit:
            return True
    return False


@pytest.mark.parametrize("point", ["S12.retire.before", "S12.retire.after", "S13.delete.before", "S13.delete.after"])
@pytest.mark.parametrize("hint", ["kept", "lost"])
def test_retention_that_stops_at_a_fault_point_is_taken_up_again(world, point, hint):
    world.limit(num_retained=1)
    for n in range(3):
        world.decided(f"run{n}", rows=3)
    world.coordinator().publish()
    for nth in (1, 2):
        with seams.installed(Fault(point, "E", nth=nth).installed()):
            quietly(lambda: world.coordinator().retire())
        if hint == "lost":
            world.ledger.store.delete("latest.json")
        assert [entry.id for entry in world.ledger.view().entries][-1] == 3
        world.coordinator().publish()
    world.coordinator().retire()
    assert left(world) == [3]
    world.exact()


@pytest.mark.parametrize("lost", ["acks", "acks/main.json"])
def test_an_entry_whose_ack_is_lost_is_not_cleaned_up_by_guessing(world, lost):
    """Without its ack, the attempt whose files are live looks like one that lost."""
    world.limit(num_retained=1)
    world.checkpoint("one", rows=3)
    path = world.path(1, lost)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    world.checkpoint("two", rows=3)
    world.exact()


def test_two_that_retire_at_once_do_not_take_the_winner_for_a_loser(world, monkeypatch):
    """The second has read the plan; then the first removes the acks and all else."""
    world.limit(num_retained=1)
    world.checkpoint("one", rows=3)
    world.decided("two", rows=3)
    world.coordinator().publish()
    filled = Ledger._entry_of

    def filled_late(self, plan):
        if plan.id == 1 and world.path(1, "plan.json").exists():
            monkeypatch.setattr(Ledger, "_entry_of", filled)
            assert world.coordinator().retire() == [1]
        return filled(self, plan)

    monkeypatch.setattr(Ledger, "_entry_of", filled_late)
    world.coordinator().retire()
    assert left(world) == [2]
    world.exact()


def test_a_target_that_does_not_answer_leaves_the_entry_for_later(world):
    world.limit(num_retained=1)
    world.checkpoint("one", rows=3)
    world.decided("two", rows=3)
    world.coordinator().publish()
    world.weather.down.add("b")
    assert world.coordinator().retire() == []
    assert left(world) == [1, 2]
    world.weather.down.clear()
    assert world.coordinator().retire() == [1]


def test_what_cannot_go_yet_holds_back_what_is_above_it(world, monkeypatch):
    """In order: what is left of the log has no hole."""
    for n in range(3):
        world.checkpoint(f"run{n}", rows=3)
    world.limit(num_retained=1)
    attempts = ToySink.attempts

    def not_the_first(self, id, context):
        if id == 1:
            raise Unavailable("no answer")
        return attempts(self, id, context)

    monkeypatch.setattr(ToySink, "attempts", not_the_first)
    assert world.coordinator().retire() == []
    assert left(world) == [1, 2, 3]
    monkeypatch.setattr(ToySink, "attempts", attempts)
    assert world.coordinator().retire() == [1, 2]


def test_a_tombstone_on_what_has_to_stay_is_ignored(world):
    """Created, then the log was read again: num_retained had been raised meanwhile. It stays as it is."""
    for n in range(3):
        world.checkpoint(f"run{n}", rows=3)
    world.ledger.create_retired(Retired(**WHO, id=3))
    world.limit(num_retained=3)
    assert world.coordinator().retire() == []
    assert world.checkpoint("next", rows=3) == 4
    assert world.state(3) == "completed"
    world.exact()


@pytest.mark.parametrize("claimed", [None, 2, 3])
def test_nothing_goes_from_where_a_line_was_forked_on(world, claimed):
    """L1: not even an entry on which somebody has left a tombstone before the pin was there."""
    world.limit(num_retained=4)
    for n in range(4):
        world.checkpoint(f"run{n}", rows=3)
    pin = Pin(**WHO, owner="line-fix", kind="line", entry=2, manifest=world.ledger.decision(2).manifest)
    world.ledger.create_pin(pin)
    if claimed is not None:
        world.ledger.create_retired(Retired(**WHO, id=claimed))
    world.limit(num_retained=1).coordinator().retire()
    assert left(world) == [2, 3, 4]
    world.ledger.delete_pin(pin.owner)
    world.coordinator().retire()
    assert left(world) == [4]


def test_whoever_retires_looks_again_behind_its_tombstone(world, monkeypatch):
    """The setting was raised by another process between the first look and the tombstone."""
    for n in range(3):
        world.checkpoint(f"run{n}", rows=3)
    coordinator = world.limit(num_retained=1).coordinator()
    real = Ledger.create_retired

    def raised(self, retired):
        real(self, retired)
        coordinator.settings = world.limit(num_retained=3).limits

    monkeypatch.setattr(Ledger, "create_retired", raised)
    assert coordinator.retire() == []
    assert [world.state(id) for id in (1, 2, 3)] == ["completed"] * 3


# -- zombies behind a deletion ---------------------------------------------------------------------------


def test_an_ack_that_comes_after_the_abort_is_seen_by_who_has_read_the_entry_before(world):
    """Else a process that goes on and on would never remove the side files that it names."""
    world.feed_more(3)
    id = world.trigger("one")
    zombie, ledger = world.half_work(id), world.coordinator().ledger
    world.coordinator().abort(id, "RUN_GONE")
    assert not ledger.entry(id).acks
    quietly(lambda: zombie.ack(zombie.staged, None))
    assert set(ledger.entry(id).acks) == {"main"}


def test_a_zombie_that_wakes_behind_the_deletion_writes_what_nobody_reads(world):
    """Its ack makes the folder anew. Nobody takes that for a checkpoint, not even when the hint is lost."""
    world.limit(num_retained=1)
    world.feed_more(3)
    id = world.trigger("one")
    zombie = world.half_work(id)
    world.coordinator().abort(id, "RUN_GONE")
    for n in range(3):
        world.checkpoint(f"run{n}", rows=3)
    assert world.state(id) == "gone"
    quietly(lambda: zombie.ack(zombie.staged, None))
    world.ledger.store.delete("latest.json")
    assert world.checkpoint("next", rows=3) == 5
    world.exact()
    world.checkpoint("last", rows=3)
    assert left(world) == [6], "and retention sweeps it up"


def test_a_job_of_a_retired_checkpoint_is_fenced(world):
    world.limit(num_retained=1)
    for n in range(3):
        world.checkpoint(f"run{n}", rows=3)
    with pytest.raises(Fenced, match="not in the log any more"):
        world.work(1)
    assert world.coordinator().complete(1).state == "retired"
    assert world.coordinator().abort(1, "CANCELLED").state == "retired"


def test_a_slow_reader_whom_retention_overtakes_reads_again(world, monkeypatch):
    """It has read the hint; before it lists, others continue and retire what the hint names."""
    world.limit(num_retained=1)
    world.checkpoint("one", rows=3)
    ids = Ledger.ids

    def ids_late(self, after=0, before=None):
        monkeypatch.setattr(Ledger, "ids", ids)
        for n in range(3):
            world.checkpoint(f"fast{n}", rows=3)
        return ids(self, after, before)

    monkeypatch.setattr(Ledger, "ids", ids_late)
    view = world.ledger.view()
    assert view.last_id == 4
    assert view.last_completed.id == 4


def test_a_slow_reader_between_two_records_of_one_entry_reads_again(world, monkeypatch):
    """Scenario 8 while retention is at work: what it misses must not look open."""
    world.limit(num_retained=1)
    world.checkpoint("one", rows=3)
    plan = Ledger.plan

    def late_after_the_plan(self, id):
        found = plan(self, id)
        if id == 1:
            monkeypatch.setattr(Ledger, "plan", plan)
            for n in range(3):
                world.checkpoint(f"fast{n}", rows=3)
        return found

    monkeypatch.setattr(Ledger, "plan", late_after_the_plan)
    assert world.ledger.entry(1) is None
    assert world.coordinator().complete(1, ("JOB_FAILED", "late")).state == "retired"
    world.exact()


def test_the_floor_needs_so_many_completed_ones(world):
    assert retention_floor(world.ledger, 1) == 0
    world.checkpoint("one", rows=3)
    assert (retention_floor(world.ledger, 1), retention_floor(world.ledger, 2)) == (1, 0)


def test_upserts_get_their_winner_retired_not_discarded(world, monkeypatch):
    calls = []
    for name in ("retire", "discard"):
        monkeypatch.setattr(
            ToySink, name, lambda self, context, staging, name=name: calls.append((name, staging.attempt))
        )
    world.limit(num_retained=1)
    world.feed_more(3)
    id = world.trigger("one")
    loser = world.half_work(id).staging.attempt
    winner = world.work(id)
    world.coordinator().complete(id)
    world.coordinator().publish()
    world.checkpoint("two", rows=3)
    assert set(calls) == {("retire", winner), ("discard", loser)}


# -- samples ---------------------------------------------------------------------------------------------


def keep_samples(world, id):
    """What an attempt does after its ack, if settings ask for samples."""
    rows = {"in": SampledRows(columns=["a"], rows=[["1"]])}
    world.ledger.put_samples(Samples(**WHO, id=id, job="main", streams=rows))
    assert id in samples_left(world)


def samples_left(world):
    return sorted(int(path.parent.name) for path in world.folder.glob("checkpoints/*/samples"))


def test_samples_go_with_their_entry_wherever_its_deletion_breaks_off(world, monkeypatch):
    world.limit(num_retained=1)
    step, died = 0, True
    while died:
        step += 1
        keep_samples(world, world.checkpoint(f"one {step}", rows=3))
        world.decided(f"two {step}", rows=3)
        world.coordinator().publish()
        died = _die_at_delete(world, step, monkeypatch)
        world.coordinator().retire()
        assert samples_left(world) == []
    assert step > 3
    world.exact()


def test_samples_that_come_after_their_entry_was_removed_go_with_the_next_one(world):
    """Its attempt slept between the ack and the samples. They make no entry, and hold nothing up."""
    world.limit(num_retained=1)
    first = world.checkpoint("one", rows=3)
    world.checkpoint("two", rows=3)
    assert left(world) == [2]
    keep_samples(world, first)
    assert world.ledger.entry(first) is None
    world.checkpoint("three", rows=3)
    assert left(world) == [3]
    assert samples_left(world) == []
    world.exact()


def test_samples_are_those_of_the_attempt_whose_ack_counts(world):
    """The slower of two attempts replaces nothing."""
    world.feed_more(3)
    id = world.trigger("one")
    first, second = world.half_work(id), world.half_work(id)
    for attempt, value in ((first, "1"), (second, "2")):
        attempt.samples = {"in": SampledRows(columns=["a"], rows=[[value]])}
        attempt.ack(attempt.staged, None)
    kept = world.ledger.samples(id, "main")
    assert (kept.attempt, kept.streams["in"].rows) == (first.staging.attempt, [["1"]])
