"""A source with `on_new_column="hold"`: a person decides whether a new key of the input becomes a column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.kit.world import World
from tests.spark.mended_shop import OneSession, never
from tidegate import Pipeline
from tidegate.backfill import begin, replay, swap
from tidegate.checkpoint.approvals import answer, approval_text
from tidegate.coordinator import Outcome
from tidegate.errors import Invalid
from tidegate.execution.loop import Observer, Schedule
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

pytestmark = in_turn(seconds=60)

GATE = "orders-new-columns"


class Shop(World):
    """Orders as they come."""

    policy: dict[str, Any]
    waiting: dict[str, Any] = {}

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        orders = pipeline.source("orders", Files("landing/*.json", schema="id long", **self.policy), **self.waiting)
        pipeline.sql("SELECT * FROM orders WHERE id > 0", name="all").sink(
            "orders", DeltaAppend("tables/orders", schema_evolution="add")
        )
        orders.where("id < 0").sink("odd", DeltaAppend("tables/odd", schema_evolution="add"))
        return pipeline

    def land(self, name: str, *records: Any) -> None:
        folder = self.root / "landing"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(json.dumps(record) for record in records))

    def held(self, run: str) -> int:
        """Make a checkpoint that is held."""
        id = self.trigger(run)
        self.work(id)
        outcome = self.coordinator().complete(id)
        assert (outcome.state, outcome.reason) == ("open", "HELD"), outcome
        return id

    def answered(self, id: int, *, approve: bool) -> Outcome:
        answer(self.ledger, id, None, approve=approve, by="ann")
        outcome = self.coordinator().complete(id)
        self.publish()
        return outcome

    def rules(self, id: int) -> dict[str, str]:
        entry = self.ledger.entry(id)
        assert entry is not None
        return {rule.rule: rule.why for rule in entry.acks["main"].ack.gates[GATE].broken}

    def orders(self) -> dict[int, dict[str, Any]]:
        return {row.pop("id"): {k: v for k, v in row.items() if v is not None} for row in self.table("orders")}


@pytest.fixture
def orders(tmp_path: Path, spark: Any) -> Shop:
    orders = Shop(tmp_path)
    orders.spark, orders.policy = spark, {"on_new_column": "hold"}
    return orders


def test_a_new_column_waits_for_a_person_once_and_is_a_column_from_then_on(orders: Shop) -> None:
    orders.land("1.json", {"id": 1})
    orders.checkpoint("one")
    orders.land("2.json", {"id": 2, "vip": True}, {"id": 3, "vip": False, "n": 1})
    second = orders.held("two")
    assert orders.rules(second) == {"new_columns": "n bigint in 1 record, vip boolean in 2 records"}
    entry = orders.ledger.entry(second)
    assert entry is not None
    assert f"Gate {GATE} holds it because of new_columns: n bigint in 1 record" in approval_text(entry)
    assert orders.orders() == {1: {}}, "nothing is published before the answer"

    assert orders.answered(second, approve=True).state == "completed"
    orders.land("3.json", {"id": 4, "vip": True})
    orders.checkpoint("three")
    assert orders.orders() == {
        1: {},
        2: {"_rescued": '{"vip":true}'},
        3: {"_rescued": '{"vip":false,"n":1}'},
        4: {"vip": True},
    }


def test_a_rejected_column_suspends_the_pipeline_and_another_policy_lets_it_go_on(orders: Shop) -> None:
    orders.land("1.json", {"id": 1, "vip": True})
    assert orders.answered(orders.held("one"), approve=False).reason == "GATE_REJECTED"
    orders.coordinator().resume("ann")
    again = orders.held("two")
    assert orders.rules(again) == {"new_columns": "vip boolean in 1 record"}, "nobody has agreed to it"
    orders.answered(again, approve=False)
    orders.coordinator().resume("ann")
    orders.policy = {"on_new_column": "rescue"}
    orders.checkpoint("three")
    assert orders.orders() == {1: {"_rescued": '{"vip":true}'}}


def test_keys_that_become_no_columns_are_asked_about_once_and_without_their_names(orders: Shop) -> None:
    orders.land("1.json", {"id": 1, "ann@example.org": 5, "ID": 3})
    first = orders.held("one")
    assert orders.rules(first) == {"other_keys": "2 keys become no columns: they stay in the rescue column"}
    orders.answered(first, approve=True)
    orders.land("2.json", {"id": 2, "ann@example.org": 6})
    orders.checkpoint("two")
    assert orders.orders()[2] == {"_rescued": '{"ann@example.org":6}'}


def test_a_key_that_was_null_so_far_is_asked_about_when_it_has_a_type(orders: Shop) -> None:
    orders.land("1.json", {"id": 1, "vip": None})
    orders.checkpoint("one")
    orders.land("2.json", {"id": 2, "vip": "gold"})
    assert orders.rules(orders.held("two")) == {"new_columns": "vip string in 1 record"}


def test_what_arrives_in_the_middle_of_a_hold_is_asked_about_after_it(orders: Shop) -> None:
    orders.land("1.json", {"id": 1, "vip": True})
    first = orders.held("one")
    orders.land("2.json", {"id": 2, "vip": False, "n": 1})
    assert orders.coordinator().complete(first).reason == "HELD", "the answer is about the first file only"
    orders.answered(first, approve=True)
    second = orders.held("two")
    assert orders.rules(second) == {"new_columns": "n bigint in 1 record"}
    orders.answered(second, approve=True)
    assert orders.orders() == {1: {"_rescued": '{"vip":true}'}, 2: {"vip": False, "_rescued": '{"n":1}'}}


def test_a_backfill_does_not_ask_again(orders: Shop) -> None:
    orders.land("1.json", {"id": 1, "vip": True})
    orders.answered(orders.held("one"), approve=True)
    orders.land("2.json", {"id": 2, "vip": True})
    orders.checkpoint("two")
    line = begin(orders.coordinator(), "again", 0, by="ann", cuts="recorded")
    replay(line, OneSession(orders.spark), Schedule(), Observer())
    assert swap(line, by="ann", choices={}, wait=never).error is None
    orders.publish()
    assert orders.orders() == {1: {"_rescued": '{"vip":true}'}, 2: {"vip": True}}


def test_a_hold_waits_as_long_as_the_source_says_and_then_has_the_answer_that_it_says(orders: Shop) -> None:
    pipeline = Pipeline("orders")
    files = Files("landing/*.json", schema="id long", on_new_column="hold")
    held = pipeline.source("orders", files, hold_for="3 days", unanswered="approve")
    held.sink("orders", DeltaAppend("tables/orders"))
    (gate,) = [stage.gate for stage in pipeline.graph().stages if isinstance(stage, GateNode)]
    assert (gate.hold_record.limit_s, gate.hold_record.default) == (3 * 86_400, "approve")
    orders.waiting = {"hold_for": 0, "unanswered": "approve"}
    orders.land("1.json", {"id": 1, "vip": True})
    orders.checkpoint("one")
    orders.land("2.json", {"id": 2, "vip": False})
    orders.checkpoint("two")
    assert orders.orders() == {1: {"_rescued": '{"vip":true}'}, 2: {"vip": False}}


def test_a_source_that_holds_nothing_has_nobody_to_wait_for() -> None:
    pipeline = Pipeline("orders")
    pipeline.source("orders", Files("landing/*.json", schema="id long", on_new_column="evolve"), hold_for="1 hour")
    with pytest.raises(Invalid, match="hold_for and unanswered are for on_new_column='hold'"):
        pipeline.graph()
