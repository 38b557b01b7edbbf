"""Old commit files go when nobody may ask for them any more; the table does not notice, whoever reads it."""

import os

import pytest
from deltalake import DeltaTable

from tests.kit.delta import appended, head, log_file, made, rows_of, stamp, table_at
from tidegate.delta import append, find_commit, forget_log
from tidegate.delta.log.cleanup import YOUNG_S


@pytest.fixture
def location(tmp_path):
    """Eight versions, and Delta's own checkpoints of the third and the sixth. All but the last two are old."""
    location = table_at(tmp_path)
    made(location, (0, "first"))
    for id in range(2, 9):
        appended(location, id, (id, "next"))
        if id in (4, 7):
            DeltaTable(location.url).create_checkpoint()
    newest = os.stat(log_file(location, 7)).st_mtime
    for path in location.local("_delta_log").iterdir():
        if not path.name.startswith(("00000000000000000006.json", "00000000000000000007")):
            os.utime(path, (newest - YOUNG_S - 60,) * 2)
    return location


def log(location):
    return sorted(
        path.name.lstrip("0") or "0" for path in location.local("_delta_log").iterdir() if path.suffix == ".json"
    )


def test_what_lies_before_a_checkpoint_of_delta_goes_and_every_later_version_reads_as_before(location):
    before = {version: rows_of(location, version) for version in (6, 7)}
    gone = forget_log(location, 6)
    assert len(gone) == 7
    assert log(location) == ["6.json", "7.json"]
    assert {version: rows_of(location, version) for version in (6, 7)} == before
    assert head(location).txn("tidegate/u1/s") == 8
    assert DeltaTable(location.url).to_pyarrow_table().num_rows == 8
    assert find_commit(head(location), "tidegate/u1/s", 7) is not None
    assert find_commit(head(location), "tidegate/u1/s", 3) is None, "nobody can tell any more"
    assert append(head(location), [], stamp(9)) is not None, "and it goes on"
    assert forget_log(location, 6) == []


def test_a_version_that_may_be_asked_for_keeps_all_that_it_is_read_from(location):
    before = {version: rows_of(location, version) for version in (3, 4, 5)}
    forget_log(location, 5)
    assert log(location)[0] == "3.json", "up to Delta's checkpoint before it"
    assert {version: rows_of(location, version) for version in (3, 4, 5)} == before


@pytest.mark.parametrize("below", [0, 2])
def test_without_a_checkpoint_of_delta_before_it_all_stays(location, below):
    assert forget_log(location, below) == []


@pytest.mark.parametrize("hours", [0, 1, 23])
def test_what_is_young_stays_for_whoever_sleeps_there(location, hours):
    """It is older than the newest commit, but not by a day."""
    young = log_file(location, 2)
    os.utime(young, (os.stat(log_file(location, 7)).st_mtime - hours * 3600,) * 2)
    forget_log(location, 6)
    assert log(location)[0] == "2.json", "oldest first, so there are no holes"
    assert len(rows_of(location, 4)) == 5


def test_a_torn_checkpoint_takes_the_place_of_nothing(location):
    torn = location.local("_delta_log/00000000000000000006.checkpoint.parquet")
    torn.write_bytes(torn.read_bytes()[:100])
    assert forget_log(location, 7) == []
    assert len(log(location)) == 8


def test_it_can_be_broken_off_anywhere(location, monkeypatch):
    from tidegate.delta import Location

    real = Location.remove_files

    def two(self, paths):
        real(self, list(paths)[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Location, "remove_files", two)
        with pytest.raises(KeyboardInterrupt):
            forget_log(location, 6)
    assert len(rows_of(location)) == 8
    forget_log(location, 6)
    assert log(location) == ["6.json", "7.json"]
