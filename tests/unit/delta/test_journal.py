"""Rows that come a few at a time: whoever loses the race for a version takes nothing away from who won it."""

import pyarrow as pa
import pytest

from tests.kit.delta import schema, stamp
from tidegate import seams
from tidegate.delta import Location
from tidegate.delta.journal import FAN_IN, Journal
from tidegate.delta.log import commits
from tidegate.errors import Unavailable

NUMBERS = schema(id="long", what="string")


@pytest.fixture
def journal(tmp_path):
    journal = Journal(Location(str(tmp_path / "history")), NUMBERS, "id", "tidegate/u1/s")
    for number in range(1, FAN_IN):
        assert add(journal, journal.opened(), number) is not None
    return journal


def rows(*numbers):
    return pa.table({"id": pa.array(numbers, pa.int64()), "what": [f"row {number}" for number in numbers]})


def add(journal, snapshot, number):
    return journal.add(snapshot, rows(number), stamp(number, attempt=seams.new_id()))


def held(journal):
    return journal.read(["id"])["id"].to_pylist()


def test_a_commit_that_was_lost_removes_only_its_own_file(journal):
    """The eighth row makes one file of all; another writer has added it meanwhile, without merging any."""
    stale = journal.opened()
    before = {path for path, _ in journal.location.walk("") if path.endswith(".parquet")}
    monkey = Journal(journal.location, NUMBERS, "id", "tidegate/u1/s")
    winner = rows(FAN_IN)
    new = monkey._write([winner], seams.new_id())
    assert monkey._commit(stale, new, [], stamp(FAN_IN)) is not None
    assert add(journal, stale, FAN_IN) is None
    assert held(journal) == list(range(1, FAN_IN + 1))
    there = {path for path, _ in journal.location.walk("") if path.endswith(".parquet")}
    assert there == before | {new.path}, "the file of the one that lost is gone, and no other"


def test_a_commit_whose_outcome_is_unknown_removes_nothing(journal, monkeypatch):
    stale = journal.opened()
    real = commits.read_commit
    monkeypatch.setattr(commits, "read_commit", lambda *_: None)
    with pytest.raises(Unavailable):
        add(journal, stale, FAN_IN)
    monkeypatch.setattr(commits, "read_commit", real)
    assert held(journal) == list(range(1, FAN_IN + 1)), "it had landed all the same"


def test_who_wins_leaves_one_file_of_eight(journal):
    assert add(journal, journal.opened(), FAN_IN) is not None
    assert held(journal) == list(range(1, FAN_IN + 1))
    assert len([path for path, _ in journal.location.walk("") if path.endswith(".parquet")]) == 1
