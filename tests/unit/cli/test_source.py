"""`tidegate source`: the ways out that a refused trigger names, taken."""

from __future__ import annotations

import sys

import pytest

from tests.kit.shop import CODE, Shop
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.targets import open_target
from tidegate.errors import Invalid

SHOP = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("orders")
pipeline.source("events", Generator(rows=1)).sink("good", DeltaAppend("tables/good"))
pipeline.source("faxes", Generator(rows=1)).sink("faxes", DeltaAppend("tables/faxes"))
"""

REPLACED = """
from tidegate.errors import Invalid
from tidegate.sources import Generator

class Replaced(Generator):
    def plan(self, start, context):
        if start.get("timeline") != 2:
            raise Invalid("another timeline", help="tidegate source accept MODULE:PIPELINE " + context.source)
        return super().plan({name: start[name] for name in start if name not in ("timeline", "unproven")}, context)

    def accept(self, position, context, *, unproven=False):
        return position | {"timeline": 2} | ({"unproven": True} if unproven else {})
"""


@pytest.fixture
def shop(folder):
    """One checkpoint of two sources."""
    shop = Shop(folder, SHOP)
    shop.folder = folder
    shop.checkpoint()
    return shop


def change(shop, before, after):
    assert before in SHOP
    (shop.folder / "shop.py").write_text(SHOP.replace(before, after))
    sys.modules.pop("shop", None)


def trigger():
    return coordinator_of(open_target(CODE, {})).trigger("next").plan


def way_out(refused):
    """The first command that the refusal names, for this pipeline."""
    found = refused.help[refused.help.index("tidegate source") :].replace("MODULE:PIPELINE", CODE)
    return found.split(";")[0].split(",")[0].split()[1:]


def test_a_renamed_source_is_moved_by_the_command_that_the_refusal_names(shop, tidegate):
    change(shop, '"events"', '"happenings"')
    with pytest.raises(Invalid) as caught:
        trigger()
    command = way_out(caught.value)
    assert command == ["source", "move", CODE, "events", "happenings"]
    said = tidegate(*command, "--reason", "as the others call it", "--json")
    assert (said.code, said.json["entry"]) == (0, 2)
    refused = {each["reason"] for each in tidegate("check", CODE, "--json").json["reasons"]}
    assert refused <= {"BAD_OUTPUT"}, "nothing is missing any more; these tables were never this code's"
    told = tidegate("explain", "orders", "2").out
    assert "moved source events to happenings, because: as the others call it" in told
    assert trigger().sources["happenings"].start == shop.coordinator.ledger.plan(1).sources["events"].end


def test_a_backfill_does_not_begin_before_a_source_was_moved(shop, tidegate):
    change(shop, '"events"', '"happenings"')
    assert tidegate("source", "move", CODE, "events", "happenings").code == 0
    dry = tidegate("backfill", CODE, "--from", "1", "--dry-run", "--json")
    refused = tidegate("backfill", CODE, "--from", "1", "--yes", "--json")
    assert "source 'events' was moved to 'happenings' after checkpoint 1" in dry.out
    assert "source 'events' was moved to 'happenings' after checkpoint 1" in refused.json["error"]["message"]
    assert "begin at a later checkpoint" in refused.json["error"]["message"]


def test_a_removed_source_is_dropped_by_the_command_that_the_refusal_names(shop, tidegate):
    change(shop, 'pipeline.source("faxes", Generator(rows=1)).sink("faxes", DeltaAppend("tables/faxes"))', "")
    with pytest.raises(Invalid) as caught:
        trigger()
    command = way_out(caught.value)
    assert command == ["source", "drop", CODE, "faxes"]
    assert tidegate(*command, "--json").code == 2, "somebody has to say yes"
    assert shop.coordinator.ledger.ids() == [1]
    dropped = tidegate(*command, "--yes")
    assert dropped.code == 0
    assert f"tidegate check {CODE}" in dropped.out, "the name alone does not tell the next checkpoint's code"
    assert "dropped source faxes" in tidegate("explain", "orders", "2").out
    assert list(trigger().sources) == ["events"]


def test_a_source_that_the_code_still_has_is_not_let_go_of(shop, tidegate):
    said = tidegate("source", "drop", CODE, "faxes", "--yes", "--json")
    assert (said.code, said.json["error"]["reason"]) == (2, "SOURCE_STILL_THERE")
    assert shop.coordinator.ledger.ids() == [1]


def test_a_source_that_leads_elsewhere_by_right_is_accepted_by_the_command_that_the_refusal_names(shop, tidegate):
    (shop.folder / "shop.py").write_text(REPLACED + SHOP.replace("Generator(", "Replaced("))
    sys.modules.pop("shop", None)
    with pytest.raises(Invalid) as caught:
        trigger()
    command = way_out(caught.value)
    assert command == ["source", "accept", CODE, "events"]
    said = tidegate(*command, "--reason", "the standby took over", "--json")
    assert (said.code, said.json["entry"], said.json["to"]) == (0, 2, "events")
    assert "accepted the new system of source events, because: the standby took over" in (
        tidegate("explain", "orders", "2").out
    )
    unproven = ("source", "accept", CODE, "faxes", "--unproven")
    assert tidegate(*unproven, "--json").code == 2, "somebody has to say yes"
    assert tidegate(*unproven, "--yes").code == 0
    assert "the last input that was read was not looked for" in tidegate("explain", "orders", "3").out
    starts = {name: part.start for name, part in trigger().sources.items()}
    before = shop.coordinator.ledger.plan(1).sources
    assert starts["events"] == before["events"].end | {"timeline": 2}
    assert starts["faxes"] == before["faxes"].end | {"timeline": 2, "unproven": True}


FROM_NOW_ON = """
class FromNowOn(Replaced):
    def beginning(self, context):
        return {"offset": 0, "timeline": 1}
"""


def test_a_server_that_is_replaced_before_anything_was_read_is_accepted_too(folder, tidegate):
    """The source begins with what is new, as of the first look at it, and the first checkpoint never comes about."""
    code = REPLACED + FROM_NOW_ON + SHOP.replace("Generator(", "FromNowOn(")
    shop = Shop(folder, code)
    with pytest.raises(Invalid, match="another timeline") as caught:
        shop.coordinator.trigger("first")
    assert tidegate("source", "move", CODE, "events", "others", "--json").json["error"]["reason"] == "NO_POSITION"
    assert way_out(caught.value) == ["source", "accept", CODE, "events"]
    assert tidegate("source", "accept", CODE, "faxes", "--json").json["error"]["reason"] == "NO_POSITION"
    assert tidegate("source", "accept", CODE, "events").code == 0
    with pytest.raises(Invalid, match="another timeline"):
        trigger()
    assert tidegate("source", "accept", CODE, "faxes").code == 0
    plan = trigger()
    began = shop.coordinator.ledger.beginning("events", 0).at
    assert plan.sources["events"].start == began | {"timeline": 2}


def test_a_position_that_is_moved_to_a_source_that_was_accepted_unread_is_that_of_the_moved_one(folder, tidegate):
    """`faxes` begins with what is new, and was never read: what was read of `events` comes in its place."""
    only = SHOP.replace('pipeline.source("faxes", Generator(rows=1)).sink("faxes", DeltaAppend("tables/faxes"))', "")
    shop = Shop(folder, only)
    shop.checkpoint()
    shop.folder = folder
    read = shop.coordinator.ledger.plan(1).sources["events"].end
    code = REPLACED + FROM_NOW_ON + SHOP.replace('"faxes", Generator(', '"faxes", FromNowOn(')
    (folder / "shop.py").write_text(code)
    sys.modules.pop("shop", None)
    with pytest.raises(Invalid, match="another timeline"):
        trigger()
    assert tidegate("source", "accept", CODE, "faxes").code == 0
    (folder / "shop.py").write_text(
        code.replace(
            'pipeline.source("events", Generator(rows=1)).sink("good", DeltaAppend("tables/good"))', ""
        ).replace('start.get("timeline") != 2', "False")
    )
    sys.modules.pop("shop", None)
    assert tidegate("source", "move", CODE, "events", "faxes").code == 0
    assert trigger().sources["faxes"].start == read
