"""Retention by age, and by day: what is young stays, and of what is older the last of each day."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from tests.kit.retention_calendar import START, Calendar
from tidegate import seams
from tidegate.ledger import LocalStore
from tidegate.lifecycle import savepoint
from tidegate.lifecycle.ages import Ages
from tidegate.records.records import Retired


@pytest.fixture
def calendar(tmp_path):
    return Calendar(tmp_path)


def test_what_is_young_stays_however_many_there_are(calendar):
    calendar.keep(retain_for="2.5 h")
    for hour in range(6):
        calendar.at(hour)
    assert calendar.left() == [3, 4, 5]
    calendar.clean(hour=100)
    assert calendar.left() == [5], "and num_retained of them, however old"


def test_of_older_ones_the_last_of_each_day_stay(calendar):
    calendar.keep(retain_per_day=1, retain_days=3)
    for hour in (0, 1, 2, 24, 25, 49, 50, 72, 73):
        calendar.at(hour)
    assert calendar.left() == [2, 25, 50, 73]
    for hour in (96, 97, 120):
        calendar.at(hour)
    assert calendar.left() == [50, 73, 97, 120], "the first two days are more than three days ago"
    assert sorted(pin.entry for pin in calendar.ledger.pins()) == calendar.ledger.ids()[:-1]


def test_one_checkpoint_that_claims_to_be_of_next_month_lets_nothing_go(calendar):
    """A clock that was wrong for an hour, and the clean-up by that clock; then it is right again."""
    calendar.keep(retain_per_day=1)
    days = [24 * day for day in range(8)]
    for hour in days:
        calendar.at(hour)
    calendar.ahead = 40 * 24
    calendar.at(8 * 24)
    assert calendar.left() == [*days, 192]
    calendar.ahead = 0
    calendar.at(9 * 24)
    calendar.at(10 * 24)
    assert calendar.left() == [*days, 192, 216, 240]


def test_nor_if_the_store_has_the_same_clock(calendar):
    """On one machine it has: then all that was made before looks forty days old."""
    calendar.keep(retain_per_day=1)
    days = [24 * day for day in range(8)]
    for hour in days:
        calendar.at(hour)
    calendar.at(48 * 24)
    assert calendar.left() == [*days, 48 * 24]


def test_a_clock_that_stands_still_makes_no_single_day_of_many(calendar):
    calendar.keep(retain_per_day=1)
    for day in range(6):
        calendar.ahead = -25 * day
        calendar.at(25 * day)
    assert calendar.left() == [25 * day for day in range(6)]


def test_a_clock_that_runs_through_a_year_in_a_day_makes_no_year_of_it(calendar):
    calendar.keep(retain_per_day=1, retain_days=3)
    for hour in range(8):
        calendar.ahead = 48 * hour
        calendar.at(hour)
    assert calendar.left() == list(range(8))


def test_several_a_day_and_those_that_are_young(calendar):
    calendar.keep(retain_for="3.5 h", retain_per_day=2)
    for hour in (0, 1, 2, 3, 24, 25, 26, 27, 28):
        calendar.at(hour)
    assert calendar.left() == [2, 3, 25, 26, 27, 28]
    calendar.clean(hour=40)
    assert calendar.left() == [2, 3, 27, 28]


def test_a_day_is_gone_back_to_like_any_other_and_what_is_rolled_back_is_kept_by_none(calendar):
    calendar.keep(retain_per_day=1)
    for hour in (0, 1, 24, 25, 48):
        calendar.at(hour)
    assert calendar.left() == [1, 25, 48]
    with seams.installed(seams.Seams(now=lambda: START + timedelta(hours=49))):
        back = calendar.coordinator().roll_back(2, run="back", by="ann").id
    calendar.hours[back] = 49
    calendar.at(72)
    calendar.at(73)
    assert calendar.left() == [1, 73], "25 and 48 are no longer true"
    table = calendar.tables["a"]
    assert sorted(row for name in table.live(len(table.commits) - 1) for row, _ in table.files[name]) == list(
        range(1, 8)
    )


def test_other_settings_count_from_the_next_clean_up_on_and_names_stay(calendar):
    calendar.keep(retain_per_day=1)
    for hour in (0, 24, 48, 72):
        calendar.at(hour)
    savepoint.create(calendar.ledger, "good", 2, "ann")
    calendar.keep()
    calendar.at(73)
    assert calendar.left() == [24, 73]
    assert [pin.kind for pin in calendar.ledger.pins()] == ["savepoint"]


def test_aborted_ones_are_kept_by_no_day(calendar):
    calendar.keep(retain_per_day=1)
    calendar.at(0)
    id = calendar.trigger("bad")
    calendar.coordinator().abort(id, "CANCELLED")
    calendar.hours[id] = 1
    calendar.at(24)
    calendar.at(25)
    assert calendar.left() == [0, 25]


def test_the_settings_are_those_of_the_plan():
    assert Ages.from_settings({}) == Ages(0.0, 0, 30)
    assert Ages.from_settings({"retain_for": "2 h", "retain_per_day": 3, "retain_days": 7}) == Ages(7200.0, 3, 7)


def test_what_retention_has_claimed_is_not_kept_for_its_day(calendar):
    """The tombstone is there, and nothing is deleted yet: whoever made it may not have seen the pin."""
    calendar.keep(num_retained=3, retain_per_day=1, retain_days=9)
    for hour in range(3):
        calendar.at(hour)
    ledger, id = calendar.ledger, calendar.ledger.ids()[0]
    assert Ages(per_day=1, days=9)._pin(ledger, id, START.date())
    ledger.delete_pin(f"day-{id:08d}")
    ledger.create_retired(Retired(attempt="x", created="now", id=id))
    assert not Ages(per_day=1, days=9)._pin(ledger, id, START.date())
    assert ledger.pins() == []


def test_what_somebody_else_retires_at_the_same_time_is_not_kept_for_its_day(calendar):
    """Another process has deleted its decision since it was listed (found by simulation seed 10157)."""
    calendar.keep(num_retained=3, retain_per_day=1, retain_days=9)
    for hour in range(3):
        calendar.at(hour)
    ledger, id = calendar.ledger, calendar.ledger.ids()[0]
    calendar.path(id, "decision.json").unlink()
    assert not Ages(per_day=1, days=9)._pin(ledger, id, START.date())
    assert not list(calendar.path(id, "decision.json").parents[2].glob("pins/day-*"))


def test_a_day_that_is_kept_costs_a_few_reads_at_each_retirement(calendar, monkeypatch):
    """It was 14 for each, and each is there for years."""
    calendar.keep(retain_per_day=1, retain_days=99)
    reads, read = [], LocalStore.read
    monkeypatch.setattr(LocalStore, "read", lambda store, path: reads.append(path) or read(store, path))

    def reads_of_one_more(day: int) -> int:
        calendar.at(24 * day + 1)
        reads.clear()
        calendar.at(24 * day + 2)
        return len(reads)

    few = reads_of_one_more(0)
    for day in range(1, 20):
        calendar.at(24 * day)
    assert len(calendar.ledger.pins()) == 19
    assert reads_of_one_more(20) <= few + 4 * 20


def test_a_pin_of_a_day_by_an_earlier_version_tells_no_day_and_holds_all_the_same(calendar):
    calendar.keep(retain_per_day=1, retain_days=3)
    for hour in (0, 24, 25):
        calendar.at(hour)
    (pin,) = calendar.ledger.pins()
    assert pin.note == "2026-01-01"
    calendar.ledger.delete_pin(pin.owner)
    calendar.ledger.create_pin(msgspec.structs.replace(pin, note=""))
    calendar.at(26)
    assert calendar.left() == [0, 26]
    for hour in (48, 72, 96, 120):
        calendar.at(hour)
    assert calendar.left() == [48, 72, 96, 120]
