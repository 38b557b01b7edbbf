"""check: every reason why changed code cannot go on, each by a change that is really made."""

from __future__ import annotations

import sys

import pytest

from tests.unit.cli.test_rollback import CODE, Shop
from tests.unit.cli.test_run import SHOP

GOES_ON = {
    "nothing": ("", ""),
    "a sink is new": (
        'DeltaAppend("tables/good"))',
        'DeltaAppend("tables/good"))\n'
        'pipeline.source("more", Generator(rows=1)).sink("more", DeltaAppend("tables/more"))',
    ),
    "a setting": ("tolerable_failed_checkpoints=2", "tolerable_failed_checkpoints=9"),
}
STOPS = {
    "SOURCE_REMOVED": ('"events"', '"happenings"'),
    "SINK_TABLE_CHANGED": ("tables/good", "tables/other"),
    "OTHER_PARTITIONS": ('DeltaAppend("tables/good")', 'DeltaAppend("tables/good", partition_by="v")'),
}


@pytest.fixture
def shop(folder, tidegate):
    """Two checkpoints of what tests/unit/cli/test_run.py declares."""
    shop = Shop(folder)
    shop.folder = folder
    for _ in range(2):
        shop.checkpoint()
    return shop


def change(shop, before, after):
    assert before in SHOP
    (shop.folder / "shop.py").write_text(SHOP.replace(before, after) if before else SHOP)
    sys.modules.pop("shop", None)


@pytest.mark.parametrize("what", GOES_ON)
def test_what_is_new_is_fine(shop, tidegate, what):
    change(shop, *GOES_ON[what])
    said = tidegate("check", CODE, "--json")
    assert (said.code, said.json["possible"], said.json["from"]) == (0, True, 2)
    assert bool(said.json["new"]) is (what == "a sink is new")
    assert "can go on" in tidegate("check", CODE).out


@pytest.mark.parametrize("reason", STOPS)
def test_what_cannot_be_gone_on_from_is_named_with_what_to_do(shop, tidegate, reason):
    change(shop, *STOPS[reason])
    said = tidegate("check", CODE, "--json")
    assert said.code == 1
    (told,) = said.json["reasons"]
    assert told["reason"] == reason
    assert told["help"]


def test_all_reasons_are_named_at_once(shop, tidegate):
    text = SHOP
    for before, after in (STOPS["SOURCE_REMOVED"], STOPS["SINK_TABLE_CHANGED"]):
        text = text.replace(before, after)
    change(shop, SHOP, text)
    said = tidegate("check", CODE, "--json")
    assert [each["reason"] for each in said.json["reasons"]] == ["SOURCE_REMOVED", "SINK_TABLE_CHANGED"]
    assert "for 2 reasons" in tidegate("check", CODE).out


def test_from_a_savepoint_or_any_other_checkpoint(shop, tidegate):
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "1")
    assert tidegate("check", CODE, "--from", "good", "--json").json["from"] == 1
    assert tidegate("check", CODE, "--from", "2", "--json").json["from"] == 2
    assert tidegate("check", CODE, "--from", "9").code == 1


def test_a_pipeline_that_was_never_run_takes_any_code(folder, tidegate):
    (folder / "shop.py").write_text(SHOP)
    assert tidegate("check", CODE).code == 0
