"""A backfill that cuts its input as the pipeline did, and the clocks by which backfills go."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import NO_SPARK, ToySource
from tests.simulation.line_storage import ShadowedSink
from tidegate import Pipeline, seams
from tidegate.backfill import OpenBackfill, begin, discard, replay, swap
from tidegate.backfill.choosing import outlook
from tidegate.backfill.recorded import RecordedPlans
from tidegate.backfill.swap import _sources
from tidegate.connectors.source import SourceContext
from tidegate.errors import Rejected
from tidegate.execution.loop import Observer, Schedule
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.lifecycle import savepoint
from tidegate.records.records import ChangeByHand, Json, Pin, Plan, Retired

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LATER = BEGIN + timedelta(days=300)
EDIT = ChangeByHand(operator="totals", action="edit", by="mia on laptop")


class Compared(ToySource):
    """It tells which of two positions is the farther one. Its splits are long, so they lie in side files."""

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        return other is None or (position is not None and position["at"] >= other["at"])


class Days(ToyWorld):
    """A pipeline from a source to a table that can have a shadow, a checkpoint a day."""

    day = 0

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name)
        source = Compared(self.feed, self.bound, padding=40_000)
        pipeline.source("in", source).sink("a", ShadowedSink("a", self.tables))
        return pipeline

    def live(self, *rows: int) -> None:
        for number in rows:
            self.day += 1
            with at_time(BEGIN + timedelta(days=self.day)):
                self.checkpoint(f"day {self.day}", rows=number)

    def find_edited_rows(self, change: ChangeByHand | None = EDIT) -> int:
        return self.checkpoint(f"by hand {self.ledger.view().last_id}", standing=True, by_hand=change)

    def files(self) -> list[list[int]]:
        """What the table shows, by the files of each checkpoint."""
        table = self.tables["a"]
        found: dict[str, list[int]] = {}
        for name in table.live():
            found.setdefault(name.rpartition("/")[0], []).extend(offset for offset, _ in table.files[name])
        return sorted(found.values())

    def line(self, origin: int, name: str = "fix", **options: Any) -> OpenBackfill:
        with at_time(LATER):
            return begin(self.coordinator(), name, origin, by="ann", **options)


class NoSpark:
    """The session of toys."""

    def __call__(self, job: str | None = None) -> Any:
        return NO_SPARK

    def drop(self) -> None:
        """There is none."""


def at_time(moment: datetime) -> Any:
    return seams.installed(seams.Seams(now=lambda: moment))


def replayed(line: OpenBackfill) -> OpenBackfill:
    with at_time(LATER):
        replay(line, NoSpark(), Schedule(), Observer())
    return line


def swapped(line: OpenBackfill) -> int:
    with at_time(LATER):
        return swap(line, by="ann", choices={}, wait=never).id


def never(why: str) -> None:
    raise AssertionError(why)


def made(line: OpenBackfill) -> list[tuple[list[int], int, str]]:
    """Of each checkpoint of the line: what it replays, how far it has read, and its day."""
    ledger = line.backfill.ledger
    plans = [plan for id in ledger.ids(after=line.record.origin) if (plan := ledger.plan(id)) is not None]
    ends = [(plan.sources["in"].end or {"at": 0})["at"] for plan in plans]
    return [(plan.replays, end, plan.time[:10]) for plan, end in zip(plans, ends, strict=True)]


@pytest.fixture
def days(tmp_path: Path) -> Days:
    """Three rows, none, then one, with an aborted checkpoint in between; two that were rolled back; then two more."""
    world = Days(tmp_path)
    world.live(3, 0)
    aborted = world.trigger("aborted")
    world.coordinator().abort(aborted, "TEST")
    world.live(1)
    world.live(2)
    world.coordinator().roll_back(4, run="back", by="bob")
    world.publish()
    world.live(0, 2)
    return world


@pytest.mark.parametrize("origin", [0, 1, 2])
def test_each_checkpoint_that_counts_is_repeated_by_one_with_its_ranges_and_its_clock(days: Days, origin: int) -> None:
    days.bound = 100  # by bounds of today it would be one
    before = days.files()
    line = replayed(days.line(origin, cuts="recorded"))
    assert (
        made(line)
        == [
            ([1], 3, "2026-01-02"),
            ([2], 3, "2026-01-03"),
            ([4], 4, "2026-01-04"),
            ([7], 6, "2026-01-06"),
            ([8], 8, "2026-01-07"),
        ][origin:]
    )
    live = days.ledger.plan(8)
    own = line.backfill.ledger.plan(line.backfill.ledger.view().last_id)
    assert live is not None
    assert own is not None
    assert own.sources["in"] == live.sources["in"]
    id = swapped(line)
    assert days.files() == before, "to the row, and to the file"
    plan = days.ledger.plan(id)
    assert plan is not None
    assert plan.time[:10] == "2026-01-07"
    discard(line, "ann")
    days.live(1)
    assert sorted(offset for rows in days.files() for offset in rows) == [*range(1, 10)]


def test_each_checkpoint_of_the_pipeline_is_read_and_made_durable_once(days: Days, monkeypatch: Any) -> None:
    """However many checkpoints the backfill makes of them, and also where the pipeline moves on or back meanwhile."""
    read, synced = list[int](), list[int]()
    ledger: Any = SimpleNamespace(view=days.ledger.view, plan=lambda id: read.append(id) or days.ledger.plan(id))
    recorded = RecordedPlans(ledger, 0)
    assert [[plan.id for plan in recorded.counting()] for _ in range(5)] == [[1, 2, 4, 7, 8]] * 5
    assert sorted(read) == [1, 2, 4, 6, 7]
    read.clear()
    days.live(1)
    assert [plan.id for plan in recorded.counting()] == [1, 2, 4, 7, 8, 9]
    days.coordinator().roll_back(4, run="again", by="bob")
    days.publish()
    days.live(1)
    assert [plan.id for plan in recorded.counting()] == [1, 2, 4, 11]
    assert [plan.id for plan in recorded.between(1, 4)] == [2, 4]
    assert sorted(read) == [4, 8, 10]
    real = Ledger.sync_decision
    line = days.line(0, cuts="recorded")

    def noted(of: Ledger, id: int) -> None:
        synced.extend([id] if of is line.live.ledger else [])
        real(of, id)

    monkeypatch.setattr(Ledger, "sync_decision", noted)
    replayed(line)
    assert sorted(synced) == [1, 2, 4, 11]


def test_it_continues_with_what_the_pipeline_has_made_meanwhile(days: Days) -> None:
    line = replayed(days.line(1, cuts="recorded"))
    days.live(0, 3)
    assert [replays for replays, *_ in made(replayed(line))][-2:] == [[9], [10]]
    swapped(line)
    assert sum(map(len, days.files())) == 11


def test_a_backfill_continues_with_the_cuts_that_it_has_begun_with(days: Days) -> None:
    days.line(1, cuts="recorded")
    assert days.line(1).backfill.repeats_cuts
    with pytest.raises(Rejected, match="was begun with --cuts recorded, not own"):
        days.line(1, cuts="own")


def test_recorded_cuts_need_every_checkpoint_since(tmp_path: Path) -> None:
    days = Days(tmp_path).limit(num_retained=2)
    days.live(3)
    savepoint.create(days.ledger, "monday", 1, "ann")
    days.live(1, 1, 1, 1)
    assert 3 not in days.ledger.ids()
    with pytest.raises(Rejected, match="checkpoint 3, on which 4 rests, is not retained"):
        days.line(1, cuts="recorded")
    assert [pin.kind for pin in days.ledger.pins()] == ["savepoint"], "nothing was begun"
    assert outlook(days.coordinator(), 1, "recorded")["possible"] is False
    assert outlook(days.coordinator(), 1, "own")["possible"] is True
    assert outlook(days.coordinator(), 4, "recorded")["possible"] is True
    replayed(days.line(1))


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("origin", [0, 1])
def test_a_checkpoint_that_retention_takes_just_as_a_backfill_begins_is_missed(
    tmp_path: Path, monkeypatch: Any, origin: int, removed: bool
) -> None:
    """Retention has looked at the pins before there was this one. The rows of that checkpoint would be lost."""
    days = Days(tmp_path).limit(num_retained=9)
    days.live(3, 1, 1)
    taken = origin + 1

    pinned = Ledger.create_pin

    def retired_meanwhile(ledger: Ledger, pin: Pin) -> Any:
        days.ledger.create_retired(Retired(**stamp("other"), id=taken))
        if removed:
            shutil.rmtree(days.path(taken))
        return pinned(ledger, pin)

    monkeypatch.setattr(Ledger, "create_pin", retired_meanwhile)
    with pytest.raises(Rejected) as refused:
        days.line(origin, cuts="recorded")
    assert refused.value.reason == "RETIRED"
    assert f"checkpoint {taken}" in refused.value.what
    assert "--discard" in refused.value.help


def test_a_backfill_does_not_begin_with_the_next_one_if_the_record_of_the_first_is_lost(tmp_path: Path) -> None:
    days = Days(tmp_path).limit(num_retained=9)
    days.live(3, 1, 1)
    line = days.line(0, cuts="recorded")
    shutil.rmtree(days.path(1))
    with pytest.raises(Rejected, match="checkpoint 1, on which 2 rests, is not retained") as refused:
        replayed(line)
    assert refused.value.reason == "LINE_REFUSED"


def test_recorded_cuts_do_not_go_past_a_swap_that_has_read_further(days: Days) -> None:
    days.feed_more(2)  # what no checkpoint of the pipeline has read yet
    days.bound = 100
    other = replayed(days.line(1, "other"))
    swapped(other)
    discard(other, "ann")
    days.live(1)
    with pytest.raises(Rejected, match="begins source 'in' elsewhere than where the one before it ended"):
        days.line(1, cuts="recorded")


# -- the clock of a backfill that cuts its input by itself -------------------------------------------------


def test_recorded_cuts_name_no_checkpoint_that_is_taken_back_just_then(tmp_path: Path, monkeypatch: Any) -> None:
    world = Days(tmp_path)
    world.live(1, 1, 1)
    line = world.line(1, cuts="recorded")
    seen = line.backfill.refuse

    def seen_before_it_is_taken_back() -> Any:
        step = seen()
        world.coordinator().roll_back(1, run="back", by="ann")
        return step

    monkeypatch.setattr(line.backfill, "refuse", seen_before_it_is_taken_back)
    line.backfill.trigger("just then")
    assert [(replays, end) for replays, end, _ in made(line)] == [([], 1)], "it has repeated nothing, and says so"


def test_own_cuts_go_by_the_clock_of_the_last_checkpoint_whose_input_they_read(days: Days) -> None:
    days.bound = 3
    assert [(end, day) for _, end, day in made(replayed(days.line(0)))] == [
        (3, "2026-01-03"),  # the second checkpoint had nothing to read
        (6, "2026-01-06"),
        (8, "2026-01-07"),
    ]


def test_what_no_checkpoint_of_the_pipeline_has_read_is_of_now(days: Days) -> None:
    days.bound = 100
    days.feed_more(1)
    line = replayed(days.line(1))
    assert [(end, day) for _, end, day in made(line)] == [(9, LATER.isoformat()[:10])]
    id = swapped(line)
    plan = days.ledger.plan(id)
    assert plan is not None
    assert plan.time[:10] == LATER.isoformat()[:10], "the clock never goes back"
    days.live(1)
    after = days.ledger.plan(id + 1)
    assert after is not None
    assert (after.time[:10], after.created[:7]) == (LATER.isoformat()[:10], "2026-01")


def test_the_clock_of_the_pipeline_goes_back_only_with_a_rollback(tmp_path: Path) -> None:
    days = Days(tmp_path)
    clocks: list[str] = []

    def look() -> None:
        plan = days.ledger.plan(days.ledger.view().last_id)
        assert plan is not None
        clocks.append(plan.time[:10])

    days.live(1)
    look()
    with at_time(LATER):  # by the clock of another machine, which is wrong
        days.checkpoint("ahead", rows=1)
    look()
    days.live(1)
    look()
    days.find_edited_rows()
    look()
    days.coordinator().roll_back(1, run="back", by="bob")
    look()
    days.publish()
    days.live(1)
    look()
    ahead = LATER.isoformat()[:10]
    assert clocks == ["2026-01-02", ahead, ahead, ahead, "2026-01-02", "2026-01-04"]


# -- what somebody has changed by hand ---------------------------------------------------------------------


@pytest.mark.parametrize("change", [EDIT, None])
@pytest.mark.parametrize("cuts", ["own", "recorded"])
def test_a_change_by_hand_stops_a_backfill_before_it_begins(days: Days, cuts: str, change: ChangeByHand | None) -> None:
    """None: as an earlier version has recorded it, which did not say who."""
    id = days.find_edited_rows(change)
    days.live(1)
    who = "mia on laptop edited the state of operator 'totals'" if change else "was made by hand, by run by hand 8"
    with pytest.raises(Rejected, match=who) as refused:
        days.line(1, cuts=cuts)
    assert f"checkpoint {id}" in str(refused.value)
    assert "--drop-by-hand" in refused.value.help
    found = outlook(days.coordinator(), 1, cuts)  # type: ignore[arg-type]
    assert [each["checkpoint"] for each in found["manual_edits"]] == [id]
    assert found["possible"] is False
    assert outlook(days.coordinator(), id)["possible"] is True, "after it"

    line = replayed(days.line(1, cuts=cuts, drops_by_hand=True))
    head = line.head()
    assert head is not None
    assert head.plan.drops == [id]
    swapped(line)
    assert sum(map(len, days.files())) == 9


@pytest.mark.parametrize("cuts", ["own", "recorded"])
def test_a_change_by_hand_after_a_backfill_has_begun_is_not_lost_by_its_swap(days: Days, cuts: str) -> None:
    line = replayed(days.line(1, cuts=cuts))
    id = days.find_edited_rows()
    days.live(1)
    for attempt in (lambda: replayed(line), lambda: replayed(days.line(1))):
        refuses(attempt, f"in checkpoint {id} mia on laptop edited")
    with pytest.raises(Rejected):
        swapped(line)
    assert days.ledger.view().last_id == id + 1, "nothing was written"
    line = replayed(days.line(1, drops_by_hand=True))
    swapped(line)
    assert sum(map(len, days.files())) == 9


def test_a_backfill_of_an_earlier_version_that_has_passed_over_one_is_not_swapped_in(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = days.find_edited_rows()
    monkeypatch.setattr(Plan, "is_manual_edit", property(lambda _: False))
    line = replayed(days.line(1))
    monkeypatch.undo()
    refuses(lambda: swapped(line), f"in checkpoint {id} mia on laptop edited")


def refuses(act: Callable[[], object], text: str) -> None:
    with pytest.raises(Rejected) as refused:
        act()
    assert text in str(refused.value)


@pytest.mark.parametrize("origin", [0, 1])
def test_a_swap_lets_requests_since_the_origin_be_taken_up_again(days: Days, origin: int) -> None:
    """Also those that a backfill with recorded cuts has repeated: its rows of quarantine are not the pipeline's."""
    line = days.line(origin, cuts="recorded")
    head = replayed(line).head()
    assert head is not None
    read = head.plan.sources["in"]
    repeated = msgspec.structs.replace(read, kind="quarantine", start=None, end={"request": 7})
    plan = msgspec.structs.replace(head.plan, sources={"in": read, "quarantine.checked": repeated})
    taken = _sources(line, dataclasses.replace(head, plan=plan))
    assert taken.keys() == {"in"}
    assert taken["in"].end == read.end
