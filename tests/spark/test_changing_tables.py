"""Delta tables whose columns change upstream: with a declared schema, its policy says what becomes of what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.checkpoint.approvals import answer
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend
from tidegate.sources import DeltaTable

pytestmark = in_turn(seconds=60)


class Shop(World):
    """Orders as another job appends them to a table."""

    policy: dict[str, Any]
    evolution: Any = "add"

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        table = DeltaTable("upstream", schema="id bigint, n int", **self.policy)
        pipeline.source("orders", table).sink("orders", DeltaAppend("tables/orders", schema_evolution=self.evolution))
        return pipeline

    def append(self, *rows: str, **properties: str) -> None:
        """Append rows, each a SELECT, to the table upstream."""
        writer = self.spark.sql(" UNION ALL ".join(rows)).write.format("delta").mode("append")
        for name, value in properties.items():
            writer = writer.option(name, value)
        writer.option("mergeSchema", "true").save(f"{self.root}/upstream")

    def alter(self, change: str) -> None:
        self.spark.sql(f"ALTER TABLE delta.`{self.root}/upstream` {change}")

    def orders(self) -> dict[int, dict[str, Any]]:
        return {row.pop("id"): {k: v for k, v in row.items() if v is not None} for row in self.table("orders")}

    def found(self, id: int) -> list[tuple[str, str, str, int]]:
        entry = self.ledger.entry(id)
        assert entry is not None
        drift = entry.acks["main"].ack.drift.get("orders")
        return [(each.path, each.kind, each.type, each.records) for each in drift.found] if drift else []


@pytest.fixture
def orders(tmp_path: Path, spark: Any) -> Shop:
    orders = Shop(tmp_path)
    orders.spark, orders.policy = spark, {}
    orders.append("SELECT 1L AS id, 5 AS n")
    return orders


def test_a_column_that_is_new_upstream_is_rescued_and_becomes_a_column(orders: Shop) -> None:
    orders.policy = {"on_new_column": "evolve"}
    orders.checkpoint("one")
    orders.append("SELECT 2L AS id, 6 AS n, true AS vip", "SELECT 3L AS id, 7 AS n, null AS vip")
    second = orders.checkpoint("two")
    assert orders.found(second) == [("vip", "new", "boolean", 1)]
    orders.append("SELECT 4L AS id, 8 AS n, false AS vip")
    assert orders.found(orders.checkpoint("three")) == []
    assert orders.orders() == {
        1: {"n": 5},
        2: {"n": 6, "_rescued": '{"vip":true}'},
        3: {"n": 7},
        4: {"n": 8, "vip": False},
    }


def test_a_new_column_upstream_may_wait_for_a_person(orders: Shop) -> None:
    orders.policy = {"on_new_column": "hold"}
    orders.checkpoint("one")
    orders.append("SELECT 2L AS id, 6 AS n, true AS vip")
    id = orders.trigger("two")
    orders.work(id)
    assert orders.coordinator().complete(id).reason == "HELD"
    answer(orders.ledger, id, None, approve=True, by="ann")
    orders.complete(id)
    orders.append("SELECT 3L AS id, 6 AS n, true AS vip")
    orders.checkpoint("three")
    assert orders.orders()[3] == {"n": 6, "vip": True}


@pytest.mark.parametrize(
    ("policy", "row"),
    [("ignore", {"n": 6}), ("rescue", {"n": 6, "_rescued": '{"of":{"a":{"b":{"c":1}}}}'})],
)
def test_a_new_column_upstream_is_left_out_or_kept(orders: Shop, policy: str, row: dict[str, Any]) -> None:
    orders.policy = {"on_new_column": policy}
    orders.append("SELECT 2L AS id, 6 AS n, named_struct('a', named_struct('b', named_struct('c', 1))) AS of")
    orders.checkpoint("one")
    assert orders.orders()[2] == row


def test_a_moment_that_is_rescued_keeps_its_microseconds(orders: Shop) -> None:
    orders.policy = {"on_new_column": "rescue"}
    orders.append("SELECT 2L AS id, 6 AS n, TIMESTAMP'2026-01-31 12:00:00.123456' AS at")
    orders.checkpoint("one")
    assert orders.orders()[2]["_rescued"].startswith('{"at":"2026-01-31T12:00:00.123456')


def test_of_a_wider_type_upstream_the_values_that_do_not_fit_are_rescued(orders: Shop) -> None:
    orders.policy = {"on_type": "rescue"}
    orders.checkpoint("one")
    orders.alter("SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    orders.alter("ALTER COLUMN n TYPE bigint")
    orders.append("SELECT 2L AS id, 6L AS n", "SELECT 3L AS id, 5000000000L AS n")
    assert orders.found(orders.checkpoint("two")) == [("n", "type", "bigint", 1)]
    assert orders.orders() == {1: {"n": 5}, 2: {"n": 6}, 3: {"_rescued": '{"n":5000000000}'}}


def test_a_declared_type_widens_with_the_table(orders: Shop) -> None:
    orders.policy, orders.evolution = {"on_type": "widen"}, "widen"
    orders.checkpoint("one")
    orders.alter("SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    orders.alter("ALTER COLUMN n TYPE bigint")
    orders.append("SELECT 2L AS id, 5000000000L AS n")
    orders.checkpoint("two")
    orders.append("SELECT 3L AS id, 5000000000L AS n")
    assert orders.found(orders.checkpoint("three")) == []
    rows = orders.spark.read.format("delta").load(f"{orders.root}/tables/orders").collect()
    assert sorted((row.id, row.n, row["_rescued"]) for row in rows) == [
        (1, 5, None),
        (2, None, '{"n":5000000000}'),
        (3, 5000000000, None),
    ]


def test_a_column_that_is_gone_upstream_and_comes_back_with_another_type(orders: Shop) -> None:
    orders.policy = {"on_type": "rescue", "missing_columns": "null"}
    orders.checkpoint("one")
    orders.alter("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    orders.alter("DROP COLUMN n")
    orders.append("SELECT 2L AS id")
    orders.checkpoint("two")
    orders.append("SELECT 3L AS id, 'many' AS n")
    assert orders.found(orders.checkpoint("three")) == [("n", "type", "string", 1)]
    assert orders.orders() == {1: {"n": 5}, 2: {}, 3: {"_rescued": '{"n":"many"}'}}


def test_what_no_policy_takes_is_refused_with_its_name_and_type(orders: Shop) -> None:
    orders.policy = {"on_new_column": "refuse"}
    orders.append("SELECT 2L AS id, 6 AS n, true AS vip")
    with pytest.raises(Invalid, match=r"does not fit the schema: column 'vip' \(boolean\) is not in the schema"):
        orders.checkpoint("one")
