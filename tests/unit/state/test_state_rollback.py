"""A state's table goes back by its record: to exactly the files that the target names, or to none."""

from __future__ import annotations

import msgspec
import pytest

from tests.kit.delta import KV, kv, rows_of, staged
from tidegate.connectors.sink import Publication, SinkContext
from tidegate.records.place import Place
from tidegate.records.records import Restored
from tidegate.state.record import StateFile, StateTable
from tidegate.state.table import StateSink

BACK = Restored(how="restore", to=None)


class State:
    """The state of one operator. Each checkpoint has a file of its own; the second merges what was there."""

    def __init__(self, folder):
        self.sink = StateSink("totals", "")
        self.context = SinkContext("p", "u1", "state.totals", Place(str(folder)), home=str(folder / "p"))
        self.location = self.sink.location(self.context)
        self.records = {}

    def record(self, id, *keys):
        (file,) = staged(
            self.location, f"tidegate/u1-state.totals/{id:08d}/a{id}", kv(*((key, f"{id}") for key in keys))
        )
        return StateFile(file=file, checkpoint=id, oldest=id, groups=(0, 0))

    def put(self, id, *files):
        self.records[id] = msgspec.to_builtins(StateTable(columns=KV, keys=["k"], groups=1, files=list(files)))
        return self.publish(id, self.records[id])

    def publish(self, id, *records, **more):
        head = self.sink.head(self.context)
        publication = Publication(id, 0, f"publisher{id}", head.last_entry, records, **more)
        act = self.sink.restore if more else self.sink.publish
        return act(publication, head, self.context)

    def look(self, to, *records):
        return self.sink.restore_plan(to, None, records, self.context)

    def rows(self):
        return [key for key, _ in rows_of(self.location)]


@pytest.fixture
def state(tmp_path):
    state = State(tmp_path)
    first = state.record(1, 1, 2)
    state.put(1, first)
    state.put(2, first, state.record(2, 3))
    state.put(3, state.record(3, 1, 2, 3))
    return state


def test_what_was_merged_away_comes_back(state):
    assert state.rows() == [1, 2, 3]
    assert state.look(2, state.records[2]).problems == ()
    assert state.publish(4, state.records[2], restore=BACK, target=2) is not None
    assert sorted(state.rows()) == [1, 2, 3]
    assert state.publish(5, state.records[1], restore=BACK, target=1) is not None
    assert state.rows() == [1, 2]
    assert state.sink.head(state.context).last_entry == 5
    assert state.publish(5, state.records[1], restore=BACK, target=1) is None, "once"


def test_a_state_that_began_later_is_emptied(state):
    assert state.look(None).problems == ()
    assert state.publish(4, restore=BACK, target=0) is not None
    assert state.rows() == []
    assert state.publish(4, restore=BACK, target=0) is None
    state.put(5, state.record(5, 7))
    assert state.rows() == [7]


def test_files_that_are_gone_are_named_before_anything_is_done(state):
    state.location.remove_folder("tidegate/u1-state.totals/00000001")
    (problem,) = state.look(2, state.records[2]).problems
    assert "1 of its files are gone" in problem
    assert state.look(3, state.records[3]).problems == ()


def test_what_it_was_not_given_yet_is_told(state, tmp_path):
    assert state.look(4, state.records[3]).not_published_yet
    assert State(tmp_path / "none").look(1, state.records[1]).not_published_yet
    assert not State(tmp_path / "none").look(None).not_published_yet
