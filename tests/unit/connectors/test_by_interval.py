"""Sources that read by the run's data interval: each plan is what belongs to it, whatever was read before."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidegate.errors import Invalid, Unavailable
from tidegate.records.interval import Interval
from tidegate.sources import DeltaTable, Files

DAY = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = Interval.between(DAY + timedelta(hours=7), DAY + timedelta(hours=8))
PATTERN = "landing/{start:%Y-%m-%d}/{start:%H}-*.json"


@pytest.fixture
def hour(context):
    return replace(context, interval=HOUR)


@pytest.fixture
def day(tmp_path):
    folder = tmp_path / "landing" / "2026-01-01"
    folder.mkdir(parents=True)
    return folder


def names(planned):
    return [file["name"] for file in planned.splits["files"]]


def test_the_files_of_the_interval_are_read_whatever_was_read_before(day, hour):
    for name in ("06-a.json", "07-b.json", "07-a.json", "08-a.json"):
        (day / name).write_text("{}")
    source = Files(PATTERN, schema="id long")
    assert source.problems() == []
    assert source.by_interval
    planned = source.plan(None, hour)
    assert names(planned) == ["07-a.json", "07-b.json"]
    assert (planned.end, planned.is_empty) == (None, False)
    (day / "07-c.json").write_text("{}")
    assert names(source.plan(None, hour)) == ["07-a.json", "07-b.json", "07-c.json"]
    source.verify(planned.splits, hour)


def test_an_interval_without_a_folder_is_empty(day, hour):
    tomorrow = replace(hour, interval=Interval.between(DAY + timedelta(days=1), DAY + timedelta(days=2)))
    assert Files(PATTERN, schema="id long").plan(None, tomorrow).is_empty


def test_what_all_intervals_have_in_common_must_be_there(hour):
    with pytest.raises(Invalid, match="folder .*landing does not exist"):
        Files(PATTERN, schema="id long").plan(None, hour)


def test_an_interval_is_not_ready_without_its_files_if_they_are_required(day, hour):
    with pytest.raises(Unavailable, match="no files yet"):
        Files(PATTERN, schema="id long", required=True).plan(None, hour)


def test_a_young_file_makes_the_interval_wait_it_is_never_left_out(day, hour):
    (day / "07-a.json").write_text("{}")
    with pytest.raises(Unavailable, match="1 files younger than min_age"):
        Files(PATTERN, schema="id long", min_age=3600).plan(None, hour)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("landing/{start}/*.json", "has no format"),
        ("landing/{start:%Y}/{country}/*.json", "{country} is unknown"),
        ("landing/{start:%Y/*.json", "double other braces"),
        ("landing/{start!r:%Y}/*.json", "has no format"),
    ],
)
def test_a_pattern_that_does_not_tell_intervals_apart_is_a_problem(pattern, problem):
    assert any(problem in found for found in Files(pattern, schema="id long").problems())


def test_bounds_mean_nothing_for_an_interval():
    assert any("read completely" in found for found in Files(PATTERN, schema="id long", max_bytes=5).problems())
    assert any("required" in found for found in Files("landing/*.json", schema="id long", required=True).problems())


def test_other_braces_are_letters_as_ever():
    source = Files("landing/{x}/*.json", schema="id long")
    assert not source.by_interval
    assert source.problems() == []


# -- tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()])
def test_only_files_that_may_hold_rows_of_the_interval_are_planned(tmp_path, context, kind):
    path = str(tmp_path / "t")
    for number in range(4):
        at = DAY + timedelta(days=number)
        value = at.date() if kind == pa.date32() else at if kind.tz else at.replace(tzinfo=None)
        write_deltalake(path, pa.table({"at": pa.array([value], kind)}), mode="append")
    source = DeltaTable("t", by_interval="at")
    assert source.problems() == []
    wanted = replace(context, interval=Interval.between(DAY + timedelta(days=1), DAY + timedelta(days=2)))
    planned = source.plan(None, wanted)
    assert planned.summary.startswith("version 3: 1 of 4 files")
    assert planned.splits["commits"][0][0] == 3
    source.verify(planned.splits, wanted)


def test_a_column_that_is_no_time_is_refused(tmp_path, hour):
    write_deltalake(str(tmp_path / "t"), pa.table({"at": [1]}))
    for column, problem in (("at", "is long"), ("when", "does not exist")):
        with pytest.raises(Invalid, match=problem):
            DeltaTable("t", by_interval=column).plan(None, hour)


def test_what_means_nothing_by_interval_is_a_problem():
    assert DeltaTable("t", "changes", by_interval="at").problems() == [
        "by_interval reads the current table: mode, start, bounds and ignore_* have no effect with it"
    ]
    assert DeltaTable("t", by_interval="").problems()
