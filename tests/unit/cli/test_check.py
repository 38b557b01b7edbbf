"""check, and the trigger: every reason why changed code cannot continue, each by a change that is really made."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pytest

from tests.kit.shop import CODE, Shop
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.targets import open_target
from tidegate.errors import Invalid, TidegateError

SHOP = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files, Generator

pipeline = Pipeline("orders", tolerable_failed_checkpoints=2)
events = pipeline.source("events", Generator(rows=1))
events.sink("good", DeltaAppend("tables/good"))
events.aggregate(by="k", n="count(*)", uid="totals").sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
"""
REMOVED = ('uid="totals"', 'uid="sums"')
GOES_ON = {
    "nothing": ("", ""),
    "a sink is new": (
        'DeltaAppend("tables/good"))',
        'DeltaAppend("tables/good"))\n'
        'pipeline.source("more", Generator(rows=1)).sink("more", DeltaAppend("tables/more"))',
    ),
    "a setting": ("tolerable_failed_checkpoints=2", "tolerable_failed_checkpoints=9"),
    "a result is new": ('n="count(*)"', 'n="count(*)", most="max(v)"'),
}
STOPS = {
    "SOURCE_REMOVED": ('"events"', '"happenings"'),
    "SOURCE_REPLACED": ("Generator(rows=1)", 'Files("landing/*.json", schema="k long, v string")'),
    "SINK_TABLE_CHANGED": ("tables/good", "tables/other"),
    "OTHER_PARTITIONS": ('DeltaAppend("tables/good")', 'DeltaAppend("tables/good", partition_by="v")'),
    "STATE_REMOVED": REMOVED,
    "STATE_CHANGED": ('n="count(*)"', 'n="sum(k)"'),
    "STATE_CHANGED by its key": ('by="k"', 'by="v"'),
    "MAX_PARALLELISM_CHANGED": ('"orders", ', '"orders", max_parallelism=64, '),
    "PIPELINE_KIND_CHANGED": (
        SHOP[SHOP.index("events =") :],
        'rows = pipeline.source("events", Files("landing/{start:%Y-%m-%d}/*.json", schema="k long, v string"))\n'
        'rows.sink("good", DeltaAppend("tables/good"))',
    ),
}
WITH_OTHERS = {"PIPELINE_KIND_CHANGED": {"SOURCE_REPLACED", "STATE_REMOVED"}}
"""What else such a change changes."""


@pytest.fixture
def shop(folder, tidegate):
    """Two checkpoints."""
    (folder / "landing").mkdir()
    shop = Shop(folder, SHOP)
    shop.folder = folder
    for _ in range(2):
        shop.checkpoint()
    return shop


def change(shop, before, after):
    assert before in SHOP
    (shop.folder / "shop.py").write_text(SHOP.replace(before, after) if before else SHOP)
    sys.modules.pop("shop", None)


def refusal():
    """What the next run is told by the changed code."""
    coordinator = coordinator_of(open_target(CODE, {}))
    hours = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(TidegateError) as caught:
        coordinator.trigger("next", interval=hours)
    return caught.value


@pytest.mark.parametrize("what", GOES_ON)
def test_what_is_new_is_fine(shop, tidegate, what):
    change(shop, *GOES_ON[what])
    said = tidegate("check", "--no-spark", CODE, "--json")
    assert (said.code, said.json["can_continue"], said.json["from"]) == (0, True, 2)
    assert bool(said.json["new_parts"]) is (what == "a sink is new")
    assert "can continue" in tidegate("check", "--no-spark", CODE).out
    assert coordinator_of(open_target(CODE, {})).trigger("next").plan.base == 2


@pytest.mark.parametrize("what", STOPS)
def test_what_cannot_be_gone_on_from_is_named_with_what_to_do_and_the_trigger_says_the_same(shop, tidegate, what):
    change(shop, *STOPS[what])
    said = tidegate("check", "--no-spark", CODE, "--json")
    assert said.code == 1
    reasons = {told["reason"]: told for told in said.json["reasons"]}
    reason = what.split()[0]
    assert set(reasons) == {reason} | WITH_OTHERS.get(what, set())
    assert all(told["help"] for told in reasons.values())
    assert (refused := refusal()).reason == reason
    assert isinstance(refused, Invalid), "nothing is damaged, so nothing is suspended"
    assert refused.what == reasons[reason]["message"]
    assert shop.coordinator.ledger.ids() == [1, 2], "nothing was planned"


def test_a_sink_that_is_removed_while_it_is_owed_rows(shop, tidegate):
    shop.checkpoint(publish=False)
    change(shop, 'events.sink("good", DeltaAppend("tables/good"))', "")
    (told,) = tidegate("check", "--no-spark", CODE, "--json").json["reasons"]
    assert (told["reason"], refusal().reason) == ("SINK_REMOVED", "SINK_REMOVED")


def test_a_table_that_was_dropped_is_damage_to_both(shop, tidegate):
    (shop.folder / "tables" / "good").rename(shop.folder / "elsewhere")
    (told,) = tidegate("check", "--no-spark", CODE, "--json").json["reasons"]
    assert (told["reason"], told["kind"], refusal().reason) == ("TABLE_GONE", "corrupt", "TABLE_GONE")


def test_all_reasons_are_named_at_once(shop, tidegate):
    text = SHOP
    for before, after in (STOPS["SOURCE_REMOVED"], STOPS["SINK_TABLE_CHANGED"], REMOVED):
        text = text.replace(before, after)
    change(shop, SHOP, text)
    said = tidegate("check", "--no-spark", CODE, "--json")
    reasons = [each["reason"] for each in said.json["reasons"]]
    assert reasons == ["STATE_REMOVED", "SOURCE_REMOVED", "SINK_TABLE_CHANGED"]
    assert "for 3 reasons" in tidegate("check", "--no-spark", CODE).out


def test_a_removed_state_is_left_behind_when_that_is_allowed(shop, tidegate, caplog):
    change(shop, *REMOVED)
    allowed = ("-D", "allow_non_restored_state=true")
    said = tidegate("check", "--no-spark", CODE, "--json", *allowed)
    assert said.code == 0
    assert "state totals is left behind, as it is" in said.json["new_parts"]

    changed = Shop(shop.folder, SHOP.replace(*REMOVED))
    assert "allow_non_restored_state" in refusal().help
    changed.coordinator = coordinator_of(open_target(CODE, {"allow_non_restored_state": "true"}))
    assert changed.checkpoint() == 3
    assert "State state.totals is left behind with checkpoint 2" in caplog.text
    told = tidegate("explain", "orders", "3").out
    assert "The state totals is left unchanged since checkpoint 2." in " ".join(told.split())
    assert tidegate("check", "--no-spark", CODE).code == 0, "once is enough"


def test_for_a_changed_aggregate_the_backfill_is_named_too(shop, tidegate):
    change(shop, *STOPS["STATE_CHANGED"])
    (told,) = tidegate("check", "--no-spark", CODE, "--json").json["reasons"]
    assert "tidegate backfill MODULE:PIPELINE --from beginning" in told["help"]


def test_a_hook_that_is_gone_is_named_before_the_code_is_deployed(shop, tidegate):
    hooked = SHOP + "pipeline.hook('cursor', on_trigger=lambda it: {'at': it.id})\n"
    change(shop, SHOP, hooked)
    Shop(shop.folder, hooked).checkpoint()
    change(shop, "", "")
    (told,) = tidegate("check", "--no-spark", CODE, "--json").json["reasons"]
    assert told["reason"] == refusal().reason == "HOOK_REMOVED"
    assert told["message"] == refusal().what
    said = tidegate("check", "--no-spark", CODE, "--json", "-D", "allow_non_restored_state=true")
    assert (said.code, said.json["new_parts"]) == (0, ["the state of hook cursor is left behind"])


def test_from_a_savepoint_or_any_other_checkpoint(shop, tidegate):
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "1")
    assert tidegate("check", "--no-spark", CODE, "--from", "good", "--json").json["from"] == 1
    assert tidegate("check", "--no-spark", CODE, "--from", "2", "--json").json["from"] == 2
    assert tidegate("check", "--no-spark", CODE, "--from", "9").code == 1


def test_a_pipeline_that_was_never_run_takes_any_code(folder, tidegate):
    (folder / "shop.py").write_text(SHOP)
    assert tidegate("check", "--no-spark", CODE).code == 0


UNNAMED = """
from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Generator

pipeline = Pipeline("orders")
events = pipeline.source("events", Generator(rows=1))
events.aggregate(by="k", n="count(*)").sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
"""
ABOVE = """
events.aggregate(by="v", n="count(*)").sink("above", DeltaUpsert("tables/above", keys=["v"]))
events.aggregate("""


LIKE_IT = """
others = pipeline.source("others", Generator(rows=1))
others.aggregate(by="k", n="count(*)").sink("above", DeltaUpsert("tables/above", keys=["k"]))
events.aggregate("""


@pytest.fixture
def unnamed(folder, tidegate):
    shop = Shop(folder, UNNAMED)
    shop.folder = folder
    shop.checkpoint()
    return shop


def written(shop, text):
    (shop.folder / "shop.py").write_text(text)
    sys.modules.pop("shop", None)


def test_an_operator_that_is_added_above_another_takes_nothing_over(unnamed, tidegate):
    written(unnamed, UNNAMED.replace("\nevents.aggregate(", ABOVE, 1))
    said = tidegate("check", "--no-spark", CODE, "--json")
    assert said.code == 0
    assert "state aggregate-events-v is new: it begins with the next checkpoint" in said.json["new_parts"]
    assert not any("left unchanged" in each for each in said.json["new_parts"])


def test_nor_does_one_that_is_just_like_it_but_for_its_input(unnamed, tidegate):
    written(unnamed, UNNAMED.replace("\nevents.aggregate(", LIKE_IT, 1))
    added, kept = (each.name for each in open_target(CODE, {}).pipeline.graph().operators)
    said = tidegate("check", "--no-spark", CODE, "--json")
    assert said.code == 0
    assert f"state {added} is new: it begins with the next checkpoint" in said.json["new_parts"]
    assert not any(f"state {kept} " in each for each in said.json["new_parts"]), "it goes on with what it had"


@pytest.mark.parametrize("old", ["aggregate", "aggregate-2"])
def test_a_pipeline_with_uids_of_an_earlier_version_is_told_which_to_write(folder, tidegate, old):
    begun = Shop(folder, UNNAMED.replace('n="count(*)"', f'n="count(*)", uid="{old}"'))
    begun.folder = folder
    begun.checkpoint()
    written(begun, UNNAMED.replace("\nevents.aggregate(", ABOVE, 1))
    (told,) = tidegate("check", "--no-spark", CODE, "--json").json["reasons"]
    assert told["reason"] == refusal().reason == "STATE_REMOVED"
    assert f"write uid=\"{old}\" at aggregate 'aggregate-events-k', if that is the same one" in told["help"]
    assert "aggregate-events-v" not in told["help"], "by another key it cannot be"

    written(begun, UNNAMED.replace('n="count(*)"', f'n="count(*)", uid="{old}"'))
    assert tidegate("check", "--no-spark", CODE).code == 0


def test_a_gate_that_is_called_otherwise_now_keeps_its_quarantine_under_the_old_name(folder, tidegate):
    gated = 'events.gate(Expectations("orders", on_failure="quarantine"){name}).aggregate('
    (folder / "include/expectations").mkdir(parents=True)
    (folder / "include/expectations/orders.yaml").write_text(SUITE)
    begun = Shop(folder, UNNAMED.replace("events.aggregate(", gated.format(name=', name="events-gate"')))
    begun.folder = folder
    begun.checkpoint()
    written(begun, UNNAMED.replace("events.aggregate(", gated.format(name="")))
    (told,) = tidegate("check", "--no-spark", CODE, "--json").json["reasons"]
    assert told["reason"] == refusal().reason == "GATE_REMOVED"
    assert 'write name="events-gate" there' in told["help"]
    assert tidegate("check", "--no-spark", CODE, "-D", "allow_non_restored_state=true").code == 0
    written(begun, UNNAMED)
    assert tidegate("check", "--no-spark", CODE).code == 0, "a gate may go"


SUITE = """
expectations:
  - type: expect_column_values_to_not_be_null
    kwargs: {column: k}
"""


def test_a_source_is_let_go_of_when_that_is_allowed(shop, tidegate):
    change(shop, *STOPS["SOURCE_REMOVED"])
    assert "allow_non_restored_state" in refusal().help
    allowed = ("-D", "allow_non_restored_state=true")
    said = tidegate("check", "--no-spark", CODE, "--json", *allowed)
    assert said.code == 0
    assert "source events is removed: its position is forgotten" in said.json["new_parts"]

    changed = Shop(shop.folder, SHOP.replace(*STOPS["SOURCE_REMOVED"]))
    changed.coordinator = coordinator_of(open_target(CODE, {"allow_non_restored_state": "true"}))
    assert changed.checkpoint() == 3
    assert set(changed.coordinator.ledger.plan(3).sources) == {"happenings"}
    assert tidegate("check", "--no-spark", CODE).code == 0, "once is enough"
