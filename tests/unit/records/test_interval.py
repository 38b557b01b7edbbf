"""Intervals: equal in every time zone, told apart by their keys, and never of half a moment."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Invalid
from tidegate.records.interval import Interval

DAY = datetime(2026, 1, 1, tzinfo=UTC)
moments = st.datetimes(DAY.replace(tzinfo=None), timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))]))


@given(moments, moments)
def test_an_interval_comes_back_from_a_record_and_from_a_folders_name(one, other):
    interval = Interval.between(min(one, other), max(one, other))
    assert Interval.of_record(interval.record) == interval
    assert Interval.of_key(interval.key) == interval


def test_the_same_moments_in_another_time_zone_are_the_same_interval():
    east = timezone(timedelta(hours=9))
    here, there = Interval.between(DAY, DAY), Interval.between(DAY.astimezone(east), DAY.astimezone(east))
    assert here == there
    assert here.key == there.key


def test_intervals_that_only_touch_do_not_overlap():
    first, second = (Interval.between(DAY + timedelta(hours=n), DAY + timedelta(hours=n + 1)) for n in (0, 1))
    assert not first.overlaps(second)
    assert not second.overlaps(first)
    assert first.overlaps(Interval.between(DAY, DAY + timedelta(hours=2)))


@pytest.mark.parametrize("name", ["", "20260101", "20260101T000000.000000Z", "latest", "a_b", "00000001.json"])
def test_other_names_are_no_intervals(name):
    assert Interval.of_key(name) is None


def test_people_read_it_as_the_command_line_takes_it():
    assert str(Interval.between(DAY, DAY + timedelta(days=1))) == "2026-01-01T00:00/2026-01-02T00:00"
    assert str(Interval.between(DAY, DAY + timedelta(seconds=5))) == "2026-01-01T00:00/2026-01-01T00:00:05"
    assert str(Interval.between(DAY, DAY + timedelta(milliseconds=5))) == "2026-01-01T00:00/2026-01-01T00:00:00.005"


def test_a_moment_without_a_zone_is_refused():
    with pytest.raises(Invalid, match="moments with a time zone") as error:
        Interval.between(DAY.replace(tzinfo=None), DAY)
    assert error.value.reason == "BAD_INTERVAL"
