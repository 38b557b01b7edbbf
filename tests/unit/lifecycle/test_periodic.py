"""Periodic savepoints: made by themselves, kept by number, and like any other savepoint otherwise."""

from __future__ import annotations

import pytest

from tests.kit.retention_calendar import Calendar
from tidegate.lifecycle import savepoint


@pytest.fixture
def calendar(tmp_path):
    return Calendar(tmp_path)


def names(calendar):
    return [each.name for each in savepoint.savepoints(calendar.ledger)]


def test_every_so_often_the_last_checkpoint_gets_a_name_and_the_last_of_these_stay(calendar):
    calendar.keep(savepoint_interval="1.5 h", savepoints_retained=2)
    seen = [(calendar.at(hour), names(calendar))[1] for hour in range(6)]
    assert seen == [
        ["periodic-1"],
        ["periodic-1"],
        ["periodic-3", "periodic-1"],
        ["periodic-3", "periodic-1"],
        ["periodic-5", "periodic-3"],
        ["periodic-5", "periodic-3"],
    ]
    assert calendar.left() == [2, 4, 5], "what they name stays, what is named no more goes"


def test_without_the_setting_none_is_made_and_none_goes(calendar):
    calendar.keep(savepoint_interval="1 h", savepoints_retained=2)
    calendar.at(0)
    calendar.keep()
    for hour in (5, 10):
        calendar.at(hour)
    assert names(calendar) == ["periodic-1"]


def test_what_people_have_named_is_neither_counted_nor_disposed_of(calendar):
    calendar.keep(savepoint_interval="1 h", savepoints_retained=1)
    calendar.at(0)
    savepoint.create(calendar.ledger, "before-prices", 1, "anna")
    for hour in (2, 4):
        calendar.at(hour)
    assert names(calendar) == ["periodic-3", "before-prices"]
    assert calendar.left() == [0, 4]


def test_they_are_disposed_of_like_any_other_and_the_next_comes_in_its_time(calendar):
    calendar.keep(savepoint_interval="3 h", savepoints_retained=2)
    calendar.at(0)
    savepoint.dispose(calendar.ledger, "periodic-1")
    calendar.at(1)
    assert names(calendar) == ["periodic-2"], "none is left, so it is time"
    calendar.at(2)
    calendar.at(5)
    assert names(calendar) == ["periodic-4", "periodic-2"]
    calendar.clean(hour=5)
    assert names(calendar) == ["periodic-4", "periodic-2"], "one checkpoint, one savepoint"
