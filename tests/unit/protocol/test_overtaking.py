"""Going past a busy job: what the protocol answers, what no manifest may say, and who is always waited for."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.kit.toys import ToyFeed, ToySink, ToySource, ToyTables
from tests.model.overtaking import FIRST, SLOW, Fact, Made, Work, entry_of, handle, manifest_of
from tidegate import Pipeline
from tidegate.checkpoint import manifests
from tidegate.checkpoint.manifests import lowest_ack, manifest_flaws
from tidegate.errors import Corrupt
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol import rules
from tidegate.protocol.progress import job_progress, missing, overtaken_jobs
from tidegate.protocol.view import Entry
from tidegate.records.records import Handle, Overtaking, Payload, Position, Range

DONE = Fact(0, sent=True, slow=Work(0, (1,)), made=Made(1, (1,), ()))
BUSY = Fact(1, sent=True)
NEXT = Fact(2, sent=True)


def entry(id: int, fact: Fact, forced: bool = False, after_s: float = 0.0) -> Entry:
    found = entry_of(id, fact, forced)
    if forced or not after_s:
        return found
    plan = msgspec.structs.replace(found.plan, overtaking=Overtaking(jobs=[SLOW], after_s=after_s))
    return Entry(plan=plan, acks=found.acks, decision=found.decision, manifest=found.manifest)


def ask(*line: Entry, **known: object) -> object:
    base = line[1] if len(line) > 1 else None
    return rules.on_job(line[0], base, SLOW, (FIRST,), line[2:], **known)  # type: ignore[arg-type]


ONE, TWO, THREE = entry(1, DONE), entry(2, BUSY), entry(3, NEXT)


def test_a_job_that_is_busy_is_passed_and_one_that_is_not_begins() -> None:
    assert ask(TWO, ONE) == rules.RunJob(handle(SLOW, 1))
    assert ask(THREE, TWO, ONE) == rules.SkipJob(3, 2)
    assert ask(THREE, TWO, ONE, gone={2}) == rules.RunJob(handle(SLOW, 1))
    acked = entry(2, BUSY._replace(slow=Work(1, (2,))))
    assert ask(THREE, acked, ONE) == rules.RunJob(handle(SLOW, 2))


def test_with_a_timeout_it_is_waited_for_until_time_is_up() -> None:
    three = entry(3, NEXT, after_s=5.0)
    assert ask(three, TWO, ONE, time_up=False) == rules.Wait((2,))
    assert ask(three, TWO, ONE, time_up=True) == rules.SkipJob(3, 2)


def test_what_is_to_be_aligned_waits_however_long_it_takes() -> None:
    """O4."""
    assert ask(entry(3, NEXT, forced=True), TWO, ONE) == rules.Wait((2,))
    assert missing(entry(3, NEXT, forced=True), {SLOW}) == [SLOW]


def test_a_job_begins_nothing_before_what_it_takes_is_there() -> None:
    assert ask(entry(2, Fact(1)), ONE) == rules.Wait((2,))


@pytest.mark.parametrize(("forced", "answer"), [(False, rules.SkipJob(3, None)), (True, rules.Stop)])
def test_nobody_waits_for_input_that_can_never_count(forced: bool, answer: object) -> None:
    """The job in front has gone on from an attempt that the completed checkpoint below did not choose: for good."""
    two = entry(2, BUSY._replace(slow=Work(1, (2,)), made=Made(2, (2,), ())))
    assert two.manifest is not None
    another = Handle(entry=2, sha="of another attempt")
    two = replace(two, manifest=msgspec.structs.replace(two.manifest, jobs=two.manifest.jobs | {FIRST: another}))
    found = ask(entry(3, NEXT, forced), two, ONE)
    assert found == answer or type(found) is answer


def test_what_rests_on_something_aborted_however_far_below_is_left_alone() -> None:
    dead = entry(2, BUSY._replace(aborted=True))
    assert ask(entry(4, Fact(3, sent=True)), THREE, dead, ONE) == rules.Stop(
        "checkpoint 2, an ancestor of 4, was aborted"
    )


def test_it_may_work_in_a_checkpoint_that_was_completed_without_it_but_not_behind_itself() -> None:
    """O3."""
    two = entry(2, BUSY._replace(made=Made(1, (), (2,))))
    assert ask(two, ONE) == rules.RunJob(handle(SLOW, 1))
    assert isinstance(ask(two, ONE, beyond=True), rules.Stop)


def test_a_checkpoint_waits_until_a_later_one_has_gone_past() -> None:
    assert rules.on_completion(TWO, ONE) == rules.Wait((2,))
    failure = ("JOB_FAILED", "out of memory")
    assert isinstance(rules.on_completion(TWO, ONE, failure), rules.Abort)
    passed = rules.on_completion(TWO, ONE, None, (), {SLOW})
    assert isinstance(passed, rules.Complete)
    assert passed.acks == {FIRST: handle(FIRST, 2), SLOW: handle(SLOW, 1)}
    assert isinstance(rules.on_completion(TWO, ONE, failure, (), {SLOW}), rules.Complete)


def test_what_rests_on_an_attempt_that_lost_and_cannot_be_passed_is_aborted() -> None:
    two = entry(2, BUSY._replace(slow=Work(1, (2,)), made=Made(2, (2,), ())))
    three = entry(3, NEXT._replace(slow=Work(1, (2, 3))), forced=True)
    answer = rules.on_completion(three, two, None, (ONE,))
    assert isinstance(answer, rules.Abort)
    assert (answer.reason, answer.counts) == ("ACK_VOID", False)


def test_progress_is_told_for_people_too() -> None:
    assert overtaken_jobs(entry(3, NEXT._replace(made=Made(1, (), (2, 3))))) == {SLOW: {"at": 1, "in_flight": [2, 3]}}
    assert job_progress([THREE, TWO, ONE]).in_flight[SLOW][0].ack == handle(FIRST, 2)


FLAWS = {
    "may not lag": (manifest_of(3, Made(1, (), (2, 3))), True),
    "ahead of its upstream job 'main'": (manifest_of(3, Made(3, (), ())), False),
    "which is not in ascending order": (manifest_of(3, Made(1, (), (3, 2, 3))), False),
    "which is at 3": (manifest_of(3, Made(1, (), (2,))), False),
    "nothing is in flight between them": (manifest_of(3, Made(1, (), ())), False),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_manifest_that_cannot_be_is_seen(flaw: str) -> None:
    """Each job at the checkpoint, or behind it with all that lies between: m_down ≤ m_up, sources at n."""
    manifest, forced = FLAWS[flaw]
    if flaw.startswith("ahead"):
        manifest = msgspec.structs.replace(manifest, jobs={FIRST: handle(FIRST, 2), SLOW: handle(SLOW, 3)})
    assert any(flaw in told for told in manifest_flaws(manifest, entry(3, NEXT, forced)))


def test_sources_are_at_the_checkpoint() -> None:
    read = Range(kind="toy", start={"at": 1}, end={"at": 3}, splits=Payload(data={}), empty=False)
    plan = msgspec.structs.replace(THREE.plan, sources={"in": read})
    three = replace(THREE, plan=plan)
    right = manifest_of(3, Made(3, (3,), ()))
    for at, flawed in ((3, False), (2, True)):
        positions = {"in": Position(kind="toy", at={"at": at})}
        flaws = list(manifest_flaws(msgspec.structs.replace(right, positions=positions), three))
        assert flaws == (["source 'in' is not where its plan ends"] if flawed else [])


def test_no_manifest_is_made_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at as it is made: nothing is decided then."""
    three, two = entry(3, NEXT._replace(slow=Work(1, (2, 3)))), entry(2, BUSY._replace(made=Made(1, (), (2,))))
    assert manifests.manifest_of(three, two, [ONE]).jobs[SLOW] == handle(SLOW, 3)
    monkeypatch.setattr(manifests, "_counted", lambda line: ({FIRST: handle(FIRST, 2)}, [], {}))
    with pytest.raises(Corrupt, match="may not lag") as told:
        manifests.manifest_of(three, two, [ONE])
    assert told.value.reason == "BAD_MANIFEST"


def test_a_manifest_that_can_be_has_no_flaw() -> None:
    for made in (Made(3, (3,), ()), Made(1, (), (2, 3)), Made(0, (), (1, 2, 3))):
        assert not list(manifest_flaws(manifest_of(3, made), THREE))


def test_retention_spares_what_a_checkpoint_continues_from() -> None:
    assert lowest_ack(entry(3, NEXT._replace(made=Made(3, (3,), ())))) == 3
    assert lowest_ack(entry(3, NEXT._replace(made=Made(1, (), (2, 3))))) == 1
    assert lowest_ack(entry(3, NEXT._replace(made=Made(0, (), (2, 3))))) == 1, "what it goes on from lies below 2"
    assert lowest_ack(THREE) == 3


def graph(build: object) -> Graph:
    pipeline = Pipeline("shop")
    clean = pipeline.stage(pipeline.source("in", ToySource(ToyFeed(), 3)), name="clean")(lambda rows: rows)
    build(pipeline, clean)  # type: ignore[operator]
    return pipeline.graph()


def chain(pipeline: Pipeline, clean: object, **last: bool) -> None:
    slow = pipeline.stage(clean.job("slow"), name="slow")(lambda rows: rows)  # type: ignore[attr-defined]
    slow.job("last", **last).sink("last", ToySink("last", ToyTables()))


def reads_too(pipeline: Pipeline, clean: object) -> None:
    other = pipeline.source("other", ToySource(ToyFeed(), 3))
    slow = pipeline.stage(clean.job("slow"), name="slow")(lambda rows: rows)  # type: ignore[attr-defined]
    both = pipeline.stage(slow.job("both"), other, name="both")(lambda rows, other: rows)
    both.sink("both", ToySink("both", ToyTables()))
    clean.job("free").sink("free", ToySink("free", ToyTables()))  # type: ignore[attr-defined]


def test_jobs_that_only_take_channels_may_be_passed() -> None:
    assert graph(chain).overtakable == ("slow", "last")
    assert graph(chain).channels_of_jobs == {"slow": {"clean": "main"}, "last": {"slow": "slow"}}


def test_who_reads_a_source_or_is_said_to_be_aligned_is_waited_for_and_so_are_those_before() -> None:
    assert graph(reads_too).overtakable == ("free",)
    assert graph(lambda pipeline, clean: chain(pipeline, clean, aligned=True)).overtakable == ()
