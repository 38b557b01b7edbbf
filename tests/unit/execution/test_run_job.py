"""One job of one checkpoint: asked first, staged out of sight, acked once, let go of when it fails."""

import pytest

from tests.kit.toy_world import ToyWorld, quietly
from tests.kit.toys import ToyFeed, ToySink, ToySource
from tidegate import seams
from tidegate.errors import Corrupt, Fenced, Invalid, Rejected, Unavailable
from tidegate.execution.job.run_job import Attempt, run_job
from tidegate.pipeline.graph.graph import Graph


@pytest.fixture
def world(tmp_path):
    world = ToyWorld(tmp_path)
    world.feed_more(3)
    world.trigger("run")
    return world


def staged(world):
    return sorted(name for table in "ab" for name in world.tables[table].files)


def test_the_ack_names_all_that_was_staged_and_what_it_took(world):
    steps = []
    ack = run_job(world.coordinator(), 1, "main", None, steps.append)
    assert steps == ["reading in", "staging a", "staging b", "acknowledging"]
    assert world.ledger.entry(1).acks["main"].ack == ack
    named = [name for payload in ack.sinks.values() for name in world.ledger.unpack(payload)["files"]]
    assert sorted(named) == staged(world)
    assert (ack.stats.rows, ack.stats.files) == ({"a": 3, "b": 3}, {"a": 3, "b": 3})
    assert set(ack.stats.seconds) == {"read", "share in", "stage a", "stage b"}
    assert ack.prev is None


def test_a_job_continues_from_the_ack_that_its_base_holds(world):
    world.work(1)
    world.coordinator().complete(1)
    world.feed_more(3)
    world.trigger("two")
    ack = run_job(world.coordinator(), 2, "main", None)
    assert ack.prev == world.ledger.entry(1).acks["main"].handle


def test_an_attempt_knows_whether_the_checkpoint_below_is_decided(world):
    """If it is not, its rows are in no table yet, and what is worked out ahead on a table would be in vain."""
    world.work(1)
    world.limit(max_concurrent_checkpoints=2).feed_more(3)
    world.trigger("two")
    assert world.half_work(2).staging.on_open_base
    world.coordinator().complete(1)
    assert not world.half_work(2).staging.on_open_base


def test_each_attempt_has_a_folder_of_its_own(world):
    attempts = {world.half_work(1).staging.attempt for _ in range(5)}
    assert len(attempts) == 5
    assert len({name.split("/")[-2] for name in staged(world)}) == 5


def test_code_that_changed_under_a_running_checkpoint_is_told_as_that(world, monkeypatch):
    """Its stages are today's, its state's columns are yesterday's: what comes of it is anything, such as a KeyError."""

    def fail(step):
        raise KeyError("id")

    with pytest.raises(KeyError):
        run_job(world.coordinator(), 1, "main", None, fail)
    monkeypatch.setattr(Graph, "code_fingerprint", lambda self: "of today")
    with pytest.raises(Invalid) as told:
        run_job(world.coordinator(), 1, "main", None, fail)
    assert (told.value.reason, told.value.help[:15]) == ("CODE_CHANGED", "nothing is lost")
    assert "code has changed since checkpoint 1 was planned" in told.value.what
    assert "of the other code: KeyError (" in told.value.what
    assert told.value.quoted == "KeyError: 'id'"
    assert staged(world) == []
    world.coordinator().abort(1, "JOB_FAILED", str(told.value))
    assert world.checkpoint("next") == 2, "which takes its input"
    world.exact()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unavailable("Spark is gone"), Unavailable),
        (Invalid("bad data"), Invalid),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failed_attempt_takes_what_it_staged_with_it(world, error, kind):
    def fail():
        raise error

    world.weather.then["stage 2 on b"] = fail
    with pytest.raises(kind):
        world.work(1)
    assert staged(world) == []
    world.work(1)
    world.coordinator().complete(1)
    world.coordinator().publish()
    world.exact()


def test_what_is_corrupt_is_left_as_it_is_for_whoever_looks_into_it(world):
    def fail():
        raise Corrupt("a record is torn")

    world.weather.then["stage 2 on b"] = fail
    with pytest.raises(Corrupt):
        world.work(1)
    assert len(staged(world)) == 4


def test_letting_go_does_not_hide_why(world):
    def fail():
        world.weather.down.update("ab")
        raise Invalid("bad data")

    world.weather.then["stage 2 on b"] = fail
    with pytest.raises(Invalid, match="bad data"):
        world.work(1)


@pytest.mark.parametrize("answer", ["landed", "lost"])
def test_an_ack_whose_outcome_is_unclear_lets_nothing_go(world, answer, monkeypatch):
    """If it landed, it names the files."""
    from tidegate.ledger import LocalStore

    create = LocalStore.create

    def unclear(self, path, data):
        if "/acks/" not in path:
            return create(self, path, data)
        if answer == "landed":
            create(self, path, data)
        monkeypatch.setattr(LocalStore, "read", lambda self, path: (_ for _ in ()).throw(Unavailable("no answer")))
        raise Unavailable("no answer")

    with monkeypatch.context() as patched:
        monkeypatch = patched
        patched.setattr(LocalStore, "create", unclear)
        with pytest.raises(Unavailable):
            world.work(1)
    assert len(staged(world)) == 6
    world.work(1)
    world.coordinator().complete(1)
    world.coordinator().publish()
    world.exact()


# -- asked first, and again --------------------------------------------------------------------------------


def test_a_checkpoint_that_was_ended_while_the_job_staged_gets_no_ack_and_nothing_stays(world):
    world.weather.then["stage 3 on b"] = lambda: world.coordinator().abort(1, "RUN_GONE")
    with pytest.raises(Fenced, match="was aborted without job 'main'") as caught:
        world.work(1)
    assert caught.value.help
    assert staged(world) == []
    assert world.ledger.ack(1, "main") is None


def test_a_checkpoint_that_was_retired_while_the_job_staged_is_not_made_anew(world):
    """Its ack would make the folder again."""
    world.limit(num_retained=1)

    def meanwhile():
        world.coordinator().abort(1, "RUN_GONE")
        for n in range(3):
            world.checkpoint(f"run{n}", rows=3)

    world.weather.then["stage 3 on b"] = meanwhile
    with pytest.raises(Fenced, match="not in the log any more"):
        world.work(1)
    assert not world.path(1).exists()
    world.exact()
    assert world.staged("a") == world.staged("b") == set()


def test_a_job_that_is_done_touches_neither_source_nor_sink(world):
    world.work(1)
    world.weather.down.update("ab")
    world.feed.available = 0
    assert run_job(world.coordinator(), 1, "main", None).attempt == world.ledger.ack(1, "main").ack.attempt


def test_a_source_that_is_not_as_planned_stops_the_job_before_anything_is_written(world):
    world.feed.available = 1
    with pytest.raises(Invalid, match="ends at 1"):
        world.work(1)
    assert staged(world) == []


def test_a_job_whose_turn_has_not_come_says_what_it_waits_for(world):
    world.limit(max_concurrent_checkpoints=2).feed_more(3)
    world.trigger("two")
    with pytest.raises(Rejected) as caught:
        world.work(2)
    assert caught.value.reason == "BASE_IN_PROGRESS"
    assert "waits for checkpoint 1" in caught.value.what
    assert staged(world) == []


def test_a_job_that_the_code_does_not_have_is_refused(world):
    with pytest.raises(Invalid) as caught:
        run_job(world.coordinator(), 1, "other", None)
    assert caught.value.reason == "UNKNOWN_JOB"


def test_a_checkpoint_that_never_was_is_refused(world):
    with pytest.raises(Invalid) as caught:
        world.work(9)
    assert caught.value.reason == "NO_SUCH_CHECKPOINT"


# -- the code changed between plan and job -----------------------------------------------------------------


def changed(world, act):
    act()
    with pytest.raises(Invalid) as caught:
        world.work(1)
    assert caught.value.reason == "CODE_CHANGED"
    assert "abort checkpoint 1 and trigger again" in caught.value.help
    assert staged(world) == []
    return caught.value


def test_rows_for_a_sink_that_the_plan_does_not_know_are_not_staged_for_nobody(world):
    error = changed(world, lambda: world.sinks.update(c=0))
    assert "sink c is not the same" in error.what
    assert error.expected == "job main, sink a, sink b, source in"


def test_a_sink_that_the_plan_promises_is_not_left_out(world):
    assert "sink b" in changed(world, lambda: world.sinks.pop("b")).what


def test_a_source_of_another_kind_does_not_get_a_range_that_means_nothing_to_it(world):
    class Other(ToySource):
        kind = "other"

    world.source = Other(ToyFeed(3))
    assert "source in" in changed(world, lambda: None).what


def test_after_an_abort_the_new_code_gets_the_same_input(world):
    world.sinks["c"] = 0
    assert isinstance(quietly(lambda: world.work(1)), Invalid)
    world.coordinator().abort(1, "CODE_CHANGED")
    world.checkpoint("run")
    assert world.offsets("c") == [1, 2, 3]
    world.exact("abc")


# -- time --------------------------------------------------------------------------------------------------


def test_durations_come_from_a_clock_that_never_jumps(world):
    ticks = iter(range(100))
    with seams.installed(seams.Seams(monotonic=lambda: float(next(ticks)))):
        ack = run_job(world.coordinator(), 1, "main", None)
    assert ack.stats.seconds == {"read": 1.0, "share in": 1.0, "stage a": 1.0, "stage b": 1.0}


def test_an_attempt_knows_its_place_among_others(world):
    attempt = Attempt(world.coordinator(), 1, "main", lambda _: None)
    attempt.ask()
    assert world.ledger.entry(1).owns(attempt.staging.attempt)
    assert isinstance(world.coordinator().graph.sinks["a"].sink, ToySink)
