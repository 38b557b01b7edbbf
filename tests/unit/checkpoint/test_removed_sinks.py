"""A table that never takes what it is owed: whoever lets go of it has a way on, also from the very first checkpoint."""

from __future__ import annotations

import pytest

from tests.kit.toy_world import ToyWorld, quietly
from tests.kit.toys import ToySink
from tidegate.errors import Invalid, Rejected
from tidegate.lifecycle import rollback, rollback_preview


class Dead:
    """The table of sink `b` refuses for good: its folder is a file, its owner is another, its rules changed …"""

    def __init__(self, monkeypatch, *calls):
        self.on = True
        for call in calls:
            self.patch(monkeypatch, call, getattr(ToySink, call))

    def patch(self, monkeypatch, call, real):
        def asked(sink, *args):
            if self.on and sink.name == "b":
                raise Invalid("table b can never be created", help="use another folder", reason="NEVER")
            return real(sink, *args)

        monkeypatch.setattr(ToySink, call, asked)


ALL = ("head", "publish", "locate", "restore_plan", "restore")


@pytest.fixture(params=[("publish",), ALL], ids=["to publish", "whatever is asked"])
def dead(request, monkeypatch):
    return Dead(monkeypatch, *request.param)


def back(world, to, **choices):
    return rollback.roll_back(world.coordinator(), to, run=f"back to {to}", by="a person", choices=choices)


def test_the_first_checkpoint_of_a_table_that_can_never_be_made_has_a_way_out(tmp_path, dead):
    world = ToyWorld(tmp_path)
    world.decided("run 1", rows=2)
    refused = quietly(lambda: world.trigger("run 2"))
    assert refused.reason == "NEVER"
    assert "--to 1 --leave b" in refused.help
    with pytest.raises(Rejected, match="leave b"):
        back(world, 1)
    done = back(world, 1, b="leave")
    assert (done.id, done.error, done.preview.undone) == (2, None, ())
    assert world.ledger.published(2) is not None, "nobody waits for the table any more"
    del world.sinks["b"]
    world.checkpoint("run 2", rows=2)
    world.exact("a")
    assert world.published("b") == []


def test_a_sink_can_be_removed_first_and_its_table_let_go_of_then(tmp_path, dead):
    world = ToyWorld(tmp_path)
    world.decided("run 1", rows=2)
    quietly(lambda: world.coordinator().publish())
    del world.sinks["b"]
    refused = quietly(lambda: world.trigger("run 2"))
    assert refused.reason == "SINK_REMOVED"
    assert "--to 1 --leave b" in refused.help
    back(world, 1, b="leave")
    world.checkpoint("run 2", rows=2)
    world.checkpoint("run 3", rows=2)
    world.exact("a")


def test_the_sink_continues_where_it_is_let_go_of_once_its_table_takes_rows_again(tmp_path, monkeypatch):
    world = ToyWorld(tmp_path)
    world.checkpoint("run 1", rows=2)
    dead = Dead(monkeypatch, "publish")
    world.decided("run 2", rows=2)
    assert quietly(lambda: world.trigger("run 3")).reason == "NEVER"
    back(world, 2, b="leave")
    dead.on = False
    world.checkpoint("run 3", rows=2)
    world.checkpoint("run 4", rows=2)
    world.exact("a")
    assert world.published("b") == [1, 4, 5]
    assert world.offsets("b") == [1, 2, 5, 6, 7, 8], "what was let go of never comes"
    back(world, 4)
    world.checkpoint("run 5")
    assert world.offsets("a")[-2:] == world.offsets("b")[-2:] == [7, 8]


def test_it_can_be_let_go_of_as_often_as_it_takes(tmp_path, dead):
    world = ToyWorld(tmp_path)
    for number in (1, 2, 3):
        world.decided(f"run {number}", rows=2)
        last = world.ledger.view().last_completed.id
        assert quietly(lambda: world.trigger("next")).reason == "NEVER"
        assert back(world, last, b="leave").error is None
    dead.on = False
    world.checkpoint("run 4", rows=2)
    world.exact("a")
    assert world.offsets("b") == [7, 8]


def test_a_publisher_that_slept_meanwhile_does_no_harm(tmp_path, monkeypatch):
    """It has seen that the table is owed checkpoint 2, and wakes up once that is let go of."""
    world = ToyWorld(tmp_path)
    world.checkpoint("run 1", rows=2)
    world.decided("run 2", rows=2)
    dead = Dead(monkeypatch, "publish")

    def meanwhile():
        dead.on = True
        back(world, 2, b="leave")
        dead.on = False

    dead.on = False
    world.weather.then["commit 2 on b"] = meanwhile
    world.coordinator().publish()
    assert world.published("b") == [1, 2]
    world.checkpoint("run 3", rows=2)
    world.checkpoint("run 4", rows=2)
    world.exact("ab" if world.published("a")[:2] == [1, 2] and 3 not in world.published("a") else "b")


def test_with_other_tables_it_goes_back_as_far_as_one_likes(tmp_path, monkeypatch):
    world = ToyWorld(tmp_path)
    for number in (1, 2):
        world.checkpoint(f"run {number}", rows=2)
    world.decided("run 3", rows=2)
    Dead(monkeypatch, *ALL)
    done = back(world, 1, b="leave")
    assert done.preview.undone == (2, 3)
    shown = world.tables["a"]
    assert sorted(offset for name in shown.live() for offset, _ in shown.files[name]) == [1, 2]
    del world.sinks["b"]
    world.checkpoint("run 4")
    assert sorted(offset for name in shown.live() for offset, _ in shown.files[name]) == [1, 2, 3, 4, 5]


def test_only_a_sinks_table_can_be_let_go_of(tmp_path):
    world = ToyWorld(tmp_path)
    world.checkpoint("run 1", rows=2)
    for name in ("c", "state.count", "quarantine.gate"):
        with pytest.raises(Invalid, match="has no choices"):
            rollback_preview.examine(world.coordinator(), 1, {name: "leave"})
