"""How a pipeline is: one answer for each thing that can be the matter, and which comes first of several."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from tests.kit.limits import Limits
from tests.kit.loop import DEAD, Loop
from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.checkpoint import troubles
from tidegate.errors import Fenced, Invalid, Rejected, Unavailable
from tidegate.execution.runs import abandoned_reason
from tidegate.history.health import BEHIND, PUBLISHING_S, condition, describe_texts, observe
from tidegate.lifecycle import control
from tidegate.records.records import Lag


@pytest.fixture
def world(tmp_path):
    return ToyWorld(tmp_path)


def seen(world, tolerable=0):
    return condition(observed_of(world, tolerable))


LIMITS = type("Limits", (), {"tolerable_failed_checkpoints": 0, "root": "s3://a", "data": "s3://a"})


def observed_of(world, tolerable=0):
    limits = type("Limits", (), {"tolerable_failed_checkpoints": tolerable, "root": "s3://a", "data": "s3://a"})
    return observe(world.ledger, limits, abandoned_reason)


def completed(world, run="first"):
    world.feed_more(1)
    id = world.trigger(run)
    world.work(id)
    world.coordinator().complete(id)
    return id


def test_from_new_to_well(world):
    world.ledger.start()
    assert seen(world).state == "new"
    world.feed_more(1)
    id = world.trigger("first")
    assert (seen(world).state, seen(world).checkpoint) == ("working", id)
    assert "job main has not acknowledged it" in seen(world).summary
    world.work(id)
    assert "it waits to be decided" in seen(world).summary
    world.coordinator().complete(id)
    assert (seen(world).state, seen(world).needs_nothing) == ("working", True), "whoever has decided it publishes it"
    assert "is being published" in seen(world).summary
    world.coordinator().publish()
    assert (seen(world).state, seen(world).needs_nothing, seen(world).cause) == ("well", True, "")


def test_what_nobody_publishes_is_told_when_its_process_has_died_or_a_minute_has_passed(world, monkeypatch):
    world.decided("first", rows=1)
    assert seen(world).state == "working"
    dead = observe(world.ledger, LIMITS, lambda plan: "its process is gone")
    assert (condition(dead).state, condition(dead).needs_nothing) == ("unpublished", False)
    later = seams.now() + timedelta(seconds=PUBLISHING_S)
    with seams.installed(replace(seams.current(), now=lambda: later)):
        assert (seen(world).state, seen(world).needs_nothing) == ("unpublished", False)


def test_an_open_checkpoint_of_a_paused_dag_waits_for_somebody_to_unpause_it(world):
    """However late it is: a longer timeout would change nothing."""
    world.feed_more(1)
    id = world.trigger("first")
    world.age(id, 10_000)
    assert seen(world).state == "late"
    paused = condition(observe(world.ledger, LIMITS, lambda plan: None, paused=True))
    assert (paused.state, paused.needs_nothing, paused.checkpoint) == ("paused", False, id)
    assert "unpause the DAG" in paused.remedy[0]
    assert "timeout" not in paused.summary
    world.coordinator().abort(id, "CANCELLED", "by hand")
    assert condition(observe(world.ledger, LIMITS, lambda plan: None, paused=True)).state != "paused"


@pytest.mark.parametrize(("room", "says"), [(4 << 20, "may not be able to continue"), (0, "cannot continue")])
def test_a_disk_with_little_room_is_not_called_full_before_it_is(world, room, says):
    """Where 4 MiB are left, the last checkpoint has just been completed."""
    world.checkpoint("first", rows=1)
    found = replace(observe(world.ledger, LIMITS, lambda plan: None), full=("/data",), room=room)
    health_now = condition(found)
    assert (health_now.state, health_now.needs_nothing) == ("disk full", False)
    assert says in health_now.summary
    assert ("4.0 MiB" in health_now.cause) is bool(room)
    trouble = Unavailable("no room", reason="DISK_FULL")
    note(world, "second", trouble)
    met = replace(observe(world.ledger, LIMITS, lambda plan: None), full=("/data",), room=room)
    assert "cannot continue" in condition(met).summary, "something has failed for it"


def with_lags(world, *amounts, unit="rows"):
    """The observations, as if so much had waited after the last checkpoints."""
    observed = observed_of(world)
    entries = []
    for number, waited in enumerate(amounts, 1):
        entry = world.ledger.entry(number)
        part = msgspec.structs.replace(entry.plan.sources["in"], lag=Lag(**{unit: waited}), more=True)
        entries.append(replace(entry, plan=msgspec.structs.replace(entry.plan, sources={"in": part})))
    return replace(observed, recent=tuple(entries))


def test_it_is_well_only_if_it_keeps_up(world):
    for number in range(BEHIND):
        world.checkpoint(f"run {number}", rows=1)
    assert condition(with_lags(world, 0, 0, 0, 0, 0)).state == "well"
    grows = condition(with_lags(world, 5, 6, 7, 8, 1_000))
    assert (grows.state, grows.needs_nothing, grows.checkpoint) == ("behind", True, BEHIND)
    assert "at source in 5 rows waited, and 1,000 do now" in grows.cause
    assert condition(with_lags(world, 9, 1_000, 8, 7, 6)).state == "well", "it works the backlog off"
    assert condition(with_lags(world, 7, 8, 9, 10)).state == "well", "that was not seen often enough"
    files = condition(with_lags(world, 5, 6, 7, 8, 9, unit="files"))
    assert "at source in 5 files waited, and 9 do now" in files.cause
    stays = condition(with_lags(world, 5, 7, 6, 5, 5, unit="bytes"))
    assert (stays.state, "more than its bound allows" in stays.cause) == ("behind", True)


def test_of_a_source_that_cannot_tell_how_much_waits_it_is_told_that_more_does(world):
    world.feed_more(3 * BEHIND + 1)
    for number in range(BEHIND - 1):
        world.checkpoint(f"run {number}")
    assert seen(world).state == "well"
    world.checkpoint("one more")
    behind = seen(world)
    assert (behind.state, behind.needs_nothing) == ("behind", True), "nobody has to act: it may catch up"
    assert "Source in had more than its bound allows" in behind.cause
    world.checkpoint("the last of it")
    assert seen(world).state == "well"


def test_what_a_person_has_said(world):
    completed(world)
    world.coordinator().publish()
    control.suspend(world.ledger, "ann", "the feed is being repaired")
    found = seen(world)
    assert (found.state, found.cause) == ("suspended", "It was suspended by ann: the feed is being repaired")
    assert "tidegate resume toy" in found.remedy[0].replace(world.name, "toy")
    control.resume(world.ledger, "ann")
    assert seen(world).state == "well"
    control.stop(world.ledger, "bob", "")
    assert (seen(world).state, seen(world).cause) == ("stopped", "It was stopped by bob; no reason was given")


def test_a_failure_that_is_tolerated_and_one_that_is_not(world):
    completed(world)
    world.coordinator().publish()
    world.feed_more(1)
    id = world.trigger("second")
    world.coordinator().complete(id, ("JOB_FAILED", "the disk is gone\n  Expected: a disk\n  Help: mount it"))
    found = seen(world, tolerable=1)
    assert (found.state, found.checkpoint, found.reason) == ("failed", id, "JOB_FAILED")
    assert found.cause == "JOB_FAILED, one of its jobs failed for good: The disk is gone. Expected: a disk."
    assert found.remedy == ("mount it", "the next run reads its input again")
    found = seen(world)
    assert (found.state, found.checkpoint, found.remedy[0]) == ("suspended", id, "mount it")
    assert "tidegate resume" in found.remedy[1]


def test_a_process_that_has_died(world):
    world.feed_more(1)
    world.trigger(DEAD)
    assert (seen(world).state, seen(world).reason) == ("orphaned", "RUN_GONE")


# -- troubles --------------------------------------------------------------------------------------------


def note(world, run, error):
    troubles.record_error(world.ledger, run, "job main", error)
    return world.ledger.trouble()


def test_a_trouble_without_a_checkpoint_is_over_once_another_is_planned(world):
    completed(world)
    world.coordinator().publish()
    note(world, "second", Invalid("no such folder", expected="a folder", help="make it", reason="NO_FOLDER"))
    found = seen(world)
    assert (found.state, found.reason, found.remedy) == ("troubled", "NO_FOLDER", ("make it",))
    assert found.cause == "NO_FOLDER: No such folder. Expected: a folder."
    control.suspend(world.ledger, "ann", "")
    control.resume(world.ledger, "ann")
    assert seen(world).state == "troubled"  # nothing was planned since
    world.feed_more(1)
    world.trigger("third")
    assert seen(world).state == "working"


def test_a_trouble_with_a_checkpoint_is_over_once_that_is_published(world):
    world.feed_more(1)
    id = world.trigger("first")
    assert note(world, "first", Invalid("wrong rows", help="correct them")).entry == id
    assert (seen(world).state, seen(world).checkpoint) == ("troubled", id)
    world.work(id)
    world.coordinator().complete(id)
    assert seen(world).state == "troubled"
    world.coordinator().publish()
    assert seen(world).state == "well"


def test_what_may_pass_and_is_tried_again_asks_nobody_to_do_anything(world):
    """A killed Spark server: the retry has a new one. Nobody is alarmed while it is at work."""
    world.feed_more(1)
    id = world.trigger("first")
    note(world, "first", Unavailable("the server is gone", help="try again", reason="SPARK_LOST"))
    found = seen(world)
    assert (found.state, found.needs_nothing, found.checkpoint) == ("working", True, id)
    assert found.cause == "It has met an error, and retries. SPARK_LOST: The server is gone."
    world.age(id, 10_000)
    assert (seen(world).state, seen(world).reason) == ("troubled", "SPARK_LOST"), "nobody has brought it to its end"


@pytest.mark.parametrize(("interval", "said"), [("5 min", False), ("never", True)])
def test_nobody_is_promised_another_run_that_does_not_come_by_itself(tmp_path, interval, said):
    world = ToyWorld(tmp_path, limits=Limits(recorded={"interval": interval}))
    completed(world)
    world.coordinator().publish()
    note(world, "second", Unavailable("it is away", help="the next attempt tries again", reason="DATABASE_AWAY"))
    remedy = seen(world).remedy
    assert remedy[0] == "the next attempt tries again"
    assert any("tidegate trigger" in each for each in remedy) == said
    note(world, "second", Invalid("wrong", help="correct it"))
    assert seen(world).remedy == ("correct it",)


def test_an_unforeseen_exception_is_a_cause_like_any_other(world):
    """It takes the place of what was met before: else that one would be told forever."""
    world.feed_more(1)
    id = world.trigger("first")
    note(world, "first", Unavailable("the server is gone", reason="SPARK_LOST"))
    with pytest.raises(KeyError), troubles.recording_errors(world.ledger, "first", "job main"):
        raise KeyError("id")
    found = seen(world)
    assert (found.state, found.reason, found.checkpoint) == ("troubled", "UNFORESEEN", id)
    assert found.cause.startswith("UNFORESEEN: KeyError (")
    assert "test_health.py, line" in found.cause
    assert "'id'" not in found.cause, "it may be a value"
    assert "log" in found.remedy[0]


def test_a_pipeline_that_was_never_started_gets_no_word(world):
    """A file without pipeline.json beside it would be taken for damage."""
    troubles.record_error(world.ledger, "first", "planning", Invalid("no such folder"))
    assert world.ledger.store.names("") == []
    assert world.ledger.identity() is None


@pytest.mark.parametrize("error", [Fenced("others lead"), Rejected("not now")])
def test_that_there_is_nothing_to_do_is_no_trouble(world, error):
    world.ledger.start()
    with pytest.raises(type(error)), troubles.recording_errors(world.ledger, "first", "planning"):
        raise error
    assert world.ledger.trouble() is None


def test_a_long_text_is_cut_and_a_damaged_hint_is_none(world):
    world.ledger.start()
    assert len(note(world, "first", Invalid("x" * 100_000)).what) == troubles.MAX_TEXT
    (world.folder / "trouble.json").write_text("{")
    assert world.ledger.trouble() is None
    assert seen(world).state == "new"


def test_the_loop_leaves_word_of_what_it_meets(tmp_path):
    """A table that cannot be published to, and a job that is tried again."""
    one = Loop(tmp_path)
    one.world.feed_more(3)
    one.world.weather.stuck.add("b")
    one.run(checkpoints=1)
    found = seen(one.world)
    assert (found.state, found.checkpoint) == ("troubled", 1)
    assert "publishing to b" in found.summary
    one.world.weather.stuck.clear()
    one.world.coordinator().publish()
    assert seen(one.world).state == "well"


def test_an_errors_text_in_its_parts():
    text = "task job_main is failed: it broke\n  at line 3\n  Expected: none\n  Help: mend it\n  Help: mend it"
    assert describe_texts(text) == ("task job_main is failed: it broke at line 3", "none", ("mend it",))


def test_a_wrong_declaration_is_not_called_going_on(world):
    """Every run is refused until it changes."""
    world.checkpoint("first", rows=1)
    world.feed_more(1)
    id = world.trigger("second")
    world.coordinator().abort(id, "BAD_DECLARATION", "operator 'totals' names 'price'")
    found = seen(world)
    assert (found.state, found.needs_nothing, found.checkpoint) == ("failed", False, id)
    assert "makes no checkpoints: its declaration is wrong" in found.summary
    assert "continues" not in found.summary
    assert "the first run after that is fixed" in found.remedy[-1]
