"""Backpressure: a checkpoint takes as much as lasts as long as it should; whatever happens, at least a little."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyIntervals, ToySink, ToySource
from tidegate import Pipeline, seams
from tidegate.checkpoint.pacing import WINDOW, allowed, fixed_time, last_ones, target_of
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid
from tidegate.execution.job.run_job import run_job
from tidegate.records.place import Place
from tidegate.records.records import Pace, Timed
from tidegate.sources import Adaptive, Generator

QUICK = settings(max_examples=60, deadline=None)
TARGET = 48.0

fixed_times = st.floats(0, TARGET / 2)
rates = st.floats(100, 1e8)
firsts = st.integers(1, 10**9)


class PacedCheckpoints:
    """Checkpoints whose time is `fixed + amount / rate`, one after the other, as plans remember them."""

    def __init__(self, fixed: float, rate: float, first: int) -> None:
        self.fixed, self.rate, self.first = fixed, rate, first
        self.seen: list[Timed] = []
        self.known = 0.0
        self.failed: list[int] = []
        self.amounts: list[int] = []

    @property
    def at_most(self) -> int:
        self.known = fixed_time(self.seen, self.known)
        found = allowed(self.seen, TARGET, self.known, self.failed)
        assert found is None or found >= 1
        return self.first if found is None else found

    def seconds(self, amount: int) -> float:
        return self.fixed + amount / self.rate

    def checkpoint(self, there: int | None = None, odd: float = 1.0) -> float:
        """there: how much there is to be read; None: more than it takes. odd: how many times as long it takes."""
        amount = self.at_most if there is None else min(there, self.at_most)
        self.amounts.append(amount)
        seconds = self.seconds(amount) * odd
        self.seen = last_ones([*self.seen, Timed(id=len(self.amounts), amount=amount, seconds=seconds)])
        self.failed = []
        return seconds

    def fails(self) -> None:
        self.failed = [*self.failed, min(self.at_most, self.first)]


def settled(story: PacedCheckpoints, checkpoints: int = 60) -> float:
    """How long checkpoints take in the end."""
    times = [story.checkpoint() for _ in range(checkpoints)]
    assert max(story.amounts[-10:]) <= 1 + 1.02 * min(story.amounts[-10:]), "it goes back and forth"
    return times[-1]


# -- the controller ----------------------------------------------------------------------------------------


@QUICK
@given(fixed_times, rates, firsts)
def test_it_comes_to_the_target_and_stays_there(fixed: float, rate: float, first: int) -> None:
    story = PacedCheckpoints(fixed, rate, first)
    took = settled(story)
    one = story.seconds(1)
    assert TARGET * 0.93 <= took <= max(TARGET * 1.07, one) or took + 1 / rate >= TARGET * 0.93


@QUICK
@given(fixed_times, rates, st.integers(1, 1000))
def test_from_below_it_does_not_go_beyond(fixed: float, rate: float, first: int) -> None:
    story = PacedCheckpoints(fixed, rate, first)
    if story.seconds(first) > TARGET:
        return
    assert max(story.checkpoint() for _ in range(40)) <= TARGET * 1.001


@QUICK
@given(st.floats(TARGET / 2, TARGET * 3), rates, st.floats(1, 10_000))
@example(48.0, 100.0, 1.0)  # shrank by a hundredth in each checkpoint
def test_where_starting_takes_most_of_the_time_it_does_not_starve(fixed: float, rate: float, first: float) -> None:
    """first: for how many seconds the first checkpoint has rows."""
    story = PacedCheckpoints(fixed, rate, round(first * rate))
    for _ in range(200):
        story.checkpoint()
    useful = [amount / rate for amount in story.amounts[-40:]]
    assert max(useful) >= (TARGET * 0.9 - fixed if fixed < TARGET else TARGET * 0.5)
    assert max(useful) <= max(fixed, TARGET) * 1.2 + 1 / rate


@QUICK
@given(fixed_times, rates, firsts, st.lists(st.sampled_from(["idle", "little", "fails", "full"]), max_size=60))
def test_whatever_happens_it_comes_back(fixed: float, rate: float, first: int, events: list[str]) -> None:
    story = PacedCheckpoints(fixed, rate, first)
    for event in events:
        if event == "fails":
            story.fails()
        else:
            story.checkpoint({"idle": 0, "little": 1, "full": None}[event])
    took = settled(story, 80)
    assert took <= max(TARGET * 1.07, story.seconds(1))
    assert took >= TARGET * 0.9 or took + 1 / rate >= TARGET * 0.9


def test_one_checkpoint_that_is_odd_makes_no_difference() -> None:
    story = PacedCheckpoints(2.0, 100.0, 4600)
    settled(story)
    before = story.at_most
    for odd in (30.0, 0.01):
        story.checkpoint(odd=odd)
        assert 0.95 * before <= story.at_most <= 1.05 * before
        for _ in range(WINDOW):
            story.checkpoint()


def test_slower_is_noticed_sooner_than_faster() -> None:
    def until_settled(rate: float) -> int:
        story = PacedCheckpoints(0.0, 100.0, 4800)
        settled(story)
        story.rate, count = rate, 0
        while abs(story.checkpoint() - TARGET) > 1:
            count += 1
        return count

    assert until_settled(50.0) <= 3
    assert 3 < until_settled(200.0) <= WINDOW


def test_it_is_calm_where_times_are_not() -> None:
    """Each checkpoint takes up to 30 % more or less than it would, by chance."""
    for seed in range(40):
        story, dice = PacedCheckpoints(3.0, 1000.0, 500), random.Random(seed)
        for _ in range(60):
            story.checkpoint(odd=dice.uniform(0.7, 1.3))
        wanted, later = (TARGET - 3) * 1000, story.amounts[-40:]
        assert 0.8 * wanted <= statistics.median(later) <= 1.1 * wanted, seed
        assert all(0.6 * wanted <= amount <= 1.4 * wanted for amount in later), (seed, min(later), max(later))


def test_each_failure_in_a_row_halves_it_and_success_brings_it_back() -> None:
    story = PacedCheckpoints(0.0, 100.0, 4800)
    settled(story)
    story.failed = [4800]
    assert story.at_most == 2400
    story.failed = [4800, 2400, 1200]
    assert story.at_most == 600
    story.checkpoint()
    assert story.at_most > 4000


def test_what_lies_far_beyond_all_that_was_seen_is_not_tried_at_once() -> None:
    story = PacedCheckpoints(0.0, 1e6, 10)
    for _ in range(4):
        story.checkpoint()
    assert story.amounts == [10, 40, 160, 640]


def test_of_nothing_known_a_failure_says_the_first_thing() -> None:
    assert allowed([], TARGET, 0.0) is None
    assert allowed([], TARGET, 0.0, [1000]) == 500
    assert allowed([], TARGET, 0.0, [1]) == 1
    assert allowed([Timed(id=1, amount=0, seconds=2.0)], TARGET, 2.0) is None, "idle ones tell nothing of amounts"


@pytest.mark.parametrize(
    ("adaptive", "config", "timeout_s", "target"),
    [
        (Adaptive(), {"interval": "1 min"}, 600, 48),
        (Adaptive(share=0.5), {"interval": "1 h"}, 600, 300),
        (Adaptive(interval="10 min"), {"interval": "1 min"}, 3600, 480),
        (Adaptive(), {"interval": "never"}, 600, None),
        (Adaptive(), {}, 600, None),
    ],
)
def test_the_target_is_a_share_of_the_interval_or_of_the_timeout(
    adaptive: Adaptive, config: dict[str, str], timeout_s: float, target: float | None
) -> None:
    assert target_of(adaptive, config, timeout_s) == target


# -- in plans ----------------------------------------------------------------------------------------------


class Paced(ToyWorld):
    """A pipeline whose rows take 0.1 s each and whose checkpoints take 3 s besides, by a clock of its own."""

    seconds = 0.0
    adaptive: Adaptive | None = Adaptive(share=0.5, interval="1 min")

    def coordinator(self) -> Coordinator:
        pipeline = Pipeline(self.name)
        stream = pipeline.source("in", ToySource(self.feed, self.bound), max_per_checkpoint=self.adaptive)
        for name in self.sinks:
            stream.sink(name, ToySink(name, self.tables))
        return Coordinator(pipeline.graph(), self.ledger, self.limits, Place("/"))

    def planned(self) -> int:
        return self.trigger(f"run {self.ledger.view().last_id + 1}")

    def work(self, id: int) -> str:
        self.seconds += 3 + 0.1 * self.taken(id)
        return run_job(self.coordinator(), id, "main", None).attempt  # type: ignore[arg-type]

    def taken(self, id: int) -> int:
        splits = self.ledger.plan(id).sources["in"].splits.data  # type: ignore[union-attr]
        return splits["to"] - splits["after"]  # type: ignore[index,no-any-return]

    def pace(self, id: int) -> Pace:
        found = self.ledger.plan(id).sources["in"].pace  # type: ignore[union-attr]
        assert found is not None
        return found

    def lived(self, checkpoints: int) -> list[int]:
        """What each has taken."""
        took = []
        for _ in range(checkpoints):
            id = self.planned()
            took.append(self.taken(id))
            self.work(id)
            assert self.coordinator().complete(id).state == "completed"
            self.coordinator().publish()
            self.coordinator().retire()
        return took


@pytest.fixture
def paced(tmp_path: Path) -> object:
    world = Paced(tmp_path, bound=1000)
    clock = seams.Seams(
        now=lambda: datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=world.seconds), sleep=lambda _: None
    )
    with seams.installed(clock):
        yield world


def test_a_backlog_is_taken_in_checkpoints_that_last_as_long_as_they_should(paced: Paced) -> None:
    paced.limit(num_retained=1)
    paced.feed.available = 100_000
    assert paced.lived(1) == [1000], "nothing is known yet: the source's own bound"
    took = paced.lived(12)
    assert all(3 + 0.1 * amount <= 33 for amount in took)
    assert 28 <= 3 + 0.1 * took[-1] <= 31
    pace = paced.pace(13)
    assert (pace.at_most, pace.planned, pace.target_s, pace.unit) == (took[-1], took[-1], 30.0, "rows")
    assert [each.id for each in pace.based_on] == [1, *range(6, 13)], "also those whose records are gone"
    assert f"at most {took[-1]:,} rows, so that a checkpoint takes about 30 s" in pace.why
    paced.exact()


def test_the_sources_own_bound_holds_whatever_is_possible(paced: Paced) -> None:
    paced.bound, paced.feed.available = 50, 100_000
    assert set(paced.lived(8)) == {50}
    assert paced.pace(8).at_most is not None
    assert paced.pace(8).at_most > 50  # type: ignore[operator]


def test_idle_checkpoints_tell_what_a_checkpoint_takes_anyway(paced: Paced) -> None:
    paced.feed.available = 100
    assert paced.lived(3) == [100, 0, 0]
    paced.feed.available = 100_000
    paced.lived(1)
    assert paced.pace(4).fixed_s == 3.0
    assert "3.0 s of it is fixed time" in paced.pace(4).why
    assert paced.lived(3)[-1] == pytest.approx(270, abs=2)


def test_after_a_failure_it_tries_half(paced: Paced) -> None:
    paced.feed.available = 100_000
    for amount in (1000, 500, 250):
        id = paced.planned()
        assert paced.taken(id) == amount
        paced.coordinator().abort(id, "TIMEOUT", "it took too long", counts=True)
    assert paced.lived(1) == [125]
    assert "the last 3 have failed" in paced.pace(4).why
    id = paced.planned()
    paced.coordinator().abort(id, "CANCELLED", "by hand")
    assert paced.pace(paced.planned()).at_most == paced.pace(id).at_most, "it has not failed"


def test_it_can_be_turned_on_and_off(paced: Paced) -> None:
    paced.adaptive, paced.feed.available = None, 100_000
    assert paced.lived(2) == [1000, 1000]
    paced.adaptive = Adaptive(share=0.5, interval="1 min")
    assert paced.lived(1)[0] == pytest.approx(300, abs=20), "acks have told what was read before"
    paced.adaptive = None
    assert paced.lived(1) == [1000]


def test_what_it_goes_by_outlives_a_rollback(paced: Paced) -> None:
    paced.feed.available = 100_000
    before = paced.lived(6)
    done = paced.coordinator().roll_back(4, run="back", by="mia")
    assert done.error is None
    paced.coordinator().publish()
    assert paced.lived(1) == [before[4]], "as the one behind the target"


def test_without_an_interval_there_is_nothing_to_go_by(paced: Paced) -> None:
    paced.adaptive, paced.feed.available = Adaptive(), 5000
    assert paced.lived(2) == [1000, 1000]
    assert paced.ledger.plan(2).sources["in"].pace is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda p, s: p.source("in", s, max_per_checkpoint=100), "max_per_checkpoint is 100; say Adaptive"),
        (lambda p, s: p.source("in", s, max_per_checkpoint=Adaptive(share=0)), "share is 0"),
        (lambda p, s: p.source("in", s, max_per_checkpoint=Adaptive(share=True)), "share is True"),
        (lambda p, s: p.source("in", s, max_per_checkpoint=Adaptive(interval="soon")), "interval is 'soon'"),
        (lambda p, s: p.source("in", s, max_per_checkpoint=Adaptive(interval=0)), "interval is 0"),
        (
            lambda p, s: p.source("in", ToyIntervals(s.feed), max_per_checkpoint=Adaptive()),
            "cannot be bounded",
        ),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(
    paced: Paced, declare: Callable[[Pipeline, ToySource], object], said: str
) -> None:
    pipeline = Pipeline("orders")
    stream = declare(pipeline, ToySource(paced.feed))
    stream.sink("a", ToySink("a", paced.tables))  # type: ignore[attr-defined]
    with pytest.raises(Invalid, match=said):
        pipeline.graph()


def test_a_generator_can_be_bounded() -> None:
    pipeline = Pipeline("orders")
    assert Generator.unit == "rows"
    pipeline.source("in", Generator(), max_per_checkpoint=Adaptive())
