"""Values that need a wider type: rescued first, and from the next checkpoint on their column holds them, in every table
and every state."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.sampling import in_turn
from tests.kit.world import World
from tests.spark.mended_shop import OneSession, never
from tidegate import Pipeline
from tidegate.backfill import begin, replay, swap
from tidegate.delta import Location, open_table
from tidegate.errors import Invalid
from tidegate.execution.loop import Observer, Schedule
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pytestmark = in_turn(seconds=90)

BIG = 5_000_000_000


class Shop(World):
    """Orders as they come, the latest of each country, and totals by country."""

    on_type: Any = "widen"
    evolution: Any = "widen"
    sums = "amount"

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        schema = "id long, country string, amount int, price decimal(6,2)"
        files = Files("landing/*.json", schema=schema, on_type=self.on_type, on_new_column="evolve")
        orders = pipeline.source("orders", files)
        orders.sink("orders", DeltaAppend("tables/orders", schema_evolution=self.evolution))
        latest = orders.latest(by="country", order_by="id", uid="latest")
        latest.sink("latest", DeltaUpsert("tables/latest", keys=["country"], schema_evolution="widen"))
        totals = orders.aggregate(by="country", spent=f"sum({self.sums})", most="max(amount)", uid="totals")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["country"], schema_evolution="widen"))
        return pipeline

    def land(self, name: str, *records: Any) -> None:
        folder = self.root / "landing"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(json.dumps(record) for record in records))

    def schema(self, checkpoint: int) -> str:
        entry = self.ledger.entry(checkpoint)
        assert entry is not None
        schema = entry.plan.sources["orders"].schema
        assert schema is not None
        return str(schema.ddl)

    def by_spark(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table as Spark reads them."""
        return [
            row.asDict() for row in self.spark.read.format("delta").load(str(self.root / "tables" / name)).collect()
        ]


def shop(tmp_path: Path, spark: Any) -> Shop:
    shop = Shop(tmp_path)
    shop.spark = spark
    return shop


def order(id: int, country: str, amount: Any, price: Any = 1.25) -> dict[str, Any]:
    return {"id": id, "country": country, "amount": amount, "price": price}


def test_a_value_that_is_too_large_is_rescued_and_the_next_checkpoint_holds_such_values(
    tmp_path: Path, spark: Any
) -> None:
    orders = shop(tmp_path, spark)
    orders.land("1.json", order(1, "AT", 5), order(2, "DE", 7))
    orders.checkpoint("one")
    orders.land("2.json", order(3, "AT", BIG), order(4, "DE", 1, price=1.2575), order(5, "FR", "many", price=1e300))
    second = orders.checkpoint("two")
    found = orders.ledger.entry(second).acks["main"].ack.drift["orders"].found
    assert [(column.path, column.wider) for column in found] == [("amount", "bigint"), ("price", "decimal(8,4)")]
    orders.land("3.json", order(6, "AT", BIG + 1, price=2.0001))
    third = orders.checkpoint("three")
    assert orders.schema(third) == "`id` bigint, `country` string, `amount` bigint, `price` decimal(8,4)"
    rows = {row["id"]: row for row in orders.table("orders")}
    assert (rows[1]["amount"], rows[1]["price"]) == (5, Decimal("1.2500"))
    assert (rows[3]["amount"], rows[3]["_rescued"]) == (None, f'{{"amount":{BIG}}}')
    assert json.loads(rows[5]["_rescued"]) == {"amount": "many", "price": 1e300}
    assert (rows[6]["amount"], rows[6]["price"], rows[6]["_rescued"]) == (BIG + 1, Decimal("2.0001"), None)
    latest = {row["country"]: (row["id"], row["amount"]) for row in orders.table("latest")}
    assert latest == {"AT": (6, BIG + 1), "DE": (4, 1), "FR": (5, None)}
    totals = {row["country"]: (row["spent"], row["most"]) for row in orders.table("totals")}
    assert totals == {"AT": (BIG + 6, BIG + 1), "DE": (8, 7), "FR": (None, None)}
    for name in ("orders", "latest", "totals"):
        assert sorted(map(repr, orders.by_spark(name))) == sorted(map(repr, orders.table(name)))


def test_a_rollback_returns_to_the_narrow_type_and_the_tables_stay_readable(tmp_path: Path, spark: Any) -> None:
    orders = shop(tmp_path, spark)
    orders.land("1.json", order(1, "AT", 5))
    first = orders.checkpoint("one")
    orders.land("2.json", order(2, "AT", BIG))
    orders.checkpoint("two")
    orders.land("3.json", order(3, "AT", BIG))
    orders.checkpoint("three")
    assert orders.coordinator().roll_back(first, run="back", by="ann").error is None
    orders.publish()
    assert [row["amount"] for row in orders.by_spark("orders")] == [5]
    again = orders.checkpoint("again")
    assert orders.schema(again).endswith("`amount` int, `price` decimal(6,2)"), "the first has found nothing"
    amounts = {row["id"]: (row["amount"], row["_rescued"]) for row in orders.by_spark("orders")}
    rescued = f'{{"amount":{BIG}}}'
    assert amounts == {1: (5, None), 2: (None, rescued), 3: (None, rescued)}
    orders.land("4.json", order(4, "AT", BIG))
    orders.checkpoint("on")
    assert {row["country"]: row["spent"] for row in orders.by_spark("totals")} == {"AT": 5 + BIG}


class OnlyOrders(Shop):
    """Orders as they come, by a schema that may be declared anew."""

    schema_of_source = "id long, country string, amount int, price decimal(6,2)"

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        orders = pipeline.source("orders", Files("landing/*.json", schema=self.schema_of_source, on_type="widen"))
        orders.sink("orders", DeltaAppend("tables/orders", schema_evolution="widen"))
        return pipeline


def test_after_a_rollback_a_column_may_become_wider_in_another_way_than_its_table(tmp_path: Path, spark: Any) -> None:
    """Two decimals have a third that holds both. A bigint and a double have none: the refusal says what to declare."""
    orders = OnlyOrders(tmp_path)
    orders.spark = spark
    orders.land("1.json", order(1, "AT", 5))
    first = orders.checkpoint("one")
    orders.land("2.json", order(2, "AT", BIG, price=1.2575))
    orders.checkpoint("two")
    orders.land("3.json", order(3, "AT", BIG, price=1.2575))
    orders.checkpoint("three")
    assert orders.coordinator().roll_back(first, run="back", by="ann").error is None
    orders.publish()
    for name in ("2.json", "3.json"):
        (tmp_path / "landing" / name).unlink()
    orders.land("4.json", order(4, "AT", 2.5, price=1234567.5))
    orders.checkpoint("four")
    orders.land("5.json", order(5, "AT", 3.5, price=7654321.5))
    id = orders.trigger("five")
    with pytest.raises(Invalid, match="'amount' is double; the table has bigint") as refused:
        orders.work(id)
    orders.coordinator().abort(id, "TEST")
    assert "declare it there with the table's type" in str(refused.value.help)
    orders.schema_of_source = "id long, country string, amount bigint, price decimal(6,2)"
    orders.checkpoint("again")
    rows = {row["id"]: row for row in orders.by_spark("orders")}
    assert {id: row["price"] for id, row in rows.items()} == {
        1: Decimal("1.2500"), 4: None, 5: Decimal("7654321.5000"),
    }  # fmt: skip
    assert {id: row["amount"] for id, row in rows.items()} == {1: 5, 4: None, 5: None}
    assert rows[5]["_rescued"] == '{"amount":3.5}'


@pytest.mark.parametrize("cuts", ["own", "recorded"])
def test_a_backfill_reads_with_the_types_of_today_or_of_the_past(tmp_path: Path, spark: Any, cuts: Any) -> None:
    orders = shop(tmp_path, spark)
    orders.land("1.json", order(1, "AT", BIG))
    orders.checkpoint("one")
    orders.land("2.json", order(2, "AT", BIG))
    orders.checkpoint("two")
    orders.sums = "2 * amount"
    line = begin(orders.coordinator(), "doubled", 0, by="ann", cuts=cuts)
    replay(line, OneSession(spark), Schedule(), Observer())
    assert swap(line, by="ann", choices={}, wait=never).error is None
    orders.publish()
    amounts = {row["id"]: row["amount"] for row in orders.by_spark("orders")}
    assert amounts == {1: BIG if cuts == "own" else None, 2: BIG}
    assert [row["spent"] for row in orders.by_spark("totals")] == [4 * BIG if cuts == "own" else 2 * BIG]


def test_a_state_that_cannot_follow_is_named_before_anything_is_written(tmp_path: Path, spark: Any) -> None:
    orders = shop(tmp_path, spark)
    orders.land("1.json", order(1, "AT", 5))
    orders.checkpoint("one")
    orders.land("2.json", order(2, "AT", 2.5))  # an int becomes a double, but a sum of whole numbers does not
    orders.checkpoint("two")
    orders.land("3.json", order(3, "AT", 2.5))
    with pytest.raises(Invalid, match=r"'totals' cannot continue from its state:\s+.*double; the state has bigint"):
        orders.checkpoint("three")
    orders.coordinator().abort(3, "failed")
    orders.on_type = "rescue"
    orders.checkpoint("four")
    assert {row["id"]: row["amount"] for row in orders.table("orders")} == {1: 5, 2: None, 3: None}


def test_values_that_a_sketch_would_count_twice_are_refused_before_anything_is_written(
    tmp_path: Path, spark: Any
) -> None:
    class Counting(Shop):
        def pipeline(self) -> Pipeline:
            pipeline = Pipeline("orders")
            orders = pipeline.source(
                "orders", Files("landing/*.json", schema="id long, one int, amount int", on_type="widen")
            )
            kinds = orders.aggregate(by="one", kinds="approx_count_distinct(amount)", uid="kinds")
            kinds.sink("kinds", DeltaUpsert("tables/kinds", keys=["one"]))
            return pipeline

    orders = Counting(tmp_path)
    orders.spark = spark
    orders.land("1.json", {"id": 1, "amount": 5})
    orders.checkpoint("one")
    orders.land("2.json", {"id": 2, "amount": 5}, {"id": 3, "amount": BIG})
    orders.checkpoint("two")
    assert [row["kinds"] for row in orders.table("kinds")] == [1]
    orders.land("3.json", {"id": 4, "amount": 5})
    with pytest.raises(Invalid, match="'kinds' counts values of the type bigint; the state has counted those of int"):
        orders.checkpoint("three")


def test_a_table_that_may_not_change_is_named_with_what_to_write(tmp_path: Path, spark: Any) -> None:
    orders = shop(tmp_path, spark)
    orders.evolution = "add"
    orders.land("1.json", order(1, "AT", 5))
    orders.checkpoint("one")
    orders.land("2.json", order(2, "AT", BIG))
    orders.checkpoint("two")
    orders.land("3.json", order(3, "AT", BIG))
    with pytest.raises(Invalid, match="'amount' is bigint; the table has int") as refused:
        orders.checkpoint("three")
    assert 'schema_evolution="widen"' in refused.value.help
    assert {row["country"]: row["spent"] for row in orders.table("totals")} == {"AT": 5}, "no table went ahead"


def test_whole_numbers_that_a_double_would_round_are_rescued(tmp_path: Path, spark: Any) -> None:
    class Numbers(Shop):
        def pipeline(self) -> Pipeline:
            pipeline = Pipeline("orders")
            files = Files("landing/*.json", schema="id long, amount int, mixed int", on_type="widen")
            sink = DeltaAppend("tables/orders", schema_evolution="widen")
            pipeline.source("orders", files).sink("orders", sink)
            return pipeline

    orders = Numbers(tmp_path)
    orders.spark = spark
    large = 2**53
    orders.land("1.json", {"id": 1, "amount": 2.5, "mixed": 0.5}, {"id": 2, "amount": BIG, "mixed": large + 1})
    orders.checkpoint("one")
    orders.land(
        "2.json",
        {"id": 3, "amount": large + 1, "mixed": large + 1},
        {"id": 4, "amount": large, "mixed": 1},
        {"id": 5, "amount": 1e300, "mixed": 0.5},
        {"id": 6, "amount": -large - 1, "mixed": 1},
        {"id": 7, "amount": 10**25, "mixed": 1},
    )
    assert orders.schema(orders.checkpoint("two")) == "`id` bigint, `amount` double, `mixed` bigint"
    rows = {row["id"]: (row["amount"], row["mixed"], row["_rescued"]) for row in orders.table("orders")}
    assert rows[3] == (None, large + 1, f'{{"amount":{large + 1}}}')
    assert rows[4] == (float(large), 1, None)
    assert rows[5] == (1e300, None, '{"mixed":0.5}')
    assert rows[6] == (None, 1, f'{{"amount":{-large - 1}}}')
    assert rows[7] == (None, 1, f'{{"amount":{10**25}}}')


def test_columns_of_parquet_files_become_wider_too(tmp_path: Path, spark: Any) -> None:
    class Parquet(Shop):
        def pipeline(self) -> Pipeline:
            pipeline = Pipeline("orders")
            schema = "id long, amount int, share float, day date"
            files = Files("landing/*.parquet", schema=schema, on_type="widen", on_new_column="evolve", max_files=1)
            sink = DeltaAppend("tables/orders", schema_evolution="widen")
            pipeline.source("orders", files).sink("orders", sink)
            return pipeline

    orders = Parquet(tmp_path)
    orders.spark = spark
    (tmp_path / "landing").mkdir()

    def land(name: str, amount: Any, share: Any, day: Any, **further: Any) -> None:
        columns = {"id": [int(name)], "amount": amount, "share": share, "day": day, **further}
        pq.write_table(pa.table(columns), tmp_path / "landing" / f"{name}.parquet")

    midnight, noon = datetime.fromisoformat("2026-11-29"), datetime.fromisoformat("2026-11-30T12:00:00")
    land("1", pa.array([5], pa.int32()), pa.array([0.5], pa.float32()), pa.array([date(2026, 11, 29)]), n=[1])
    land("2", [BIG], [0.1], pa.array([noon], pa.timestamp("us")), n=["many"])
    land("3", [BIG], [0.1], pa.array([noon], pa.timestamp("us")), n=[2])
    land("4", pa.array([7], pa.int32()), pa.array([0.5], pa.float32()), pa.array([date(2026, 11, 29)]))
    for run in ("one", "two", "three", "four"):
        orders.checkpoint(run)
    assert orders.schema(4) == "`id` bigint, `amount` bigint, `share` double, `day` timestamp_ntz, `n` bigint"
    rows = {row["id"]: row for row in orders.by_spark("orders")}
    assert (rows[1]["day"], rows[1]["share"]) == (midnight, 0.5)
    rescued = json.loads(rows[2]["_rescued"])
    assert (rows[2]["amount"], rescued["amount"]) == (None, BIG)
    assert rescued["n"] == "many", "no wider type holds texts and numbers"
    assert (rows[3]["amount"], rows[3]["share"], rows[3]["day"], rows[3]["n"]) == (BIG, 0.1, noon, 2)
    assert (rows[4]["amount"], rows[4]["share"], rows[4]["day"], rows[4]["n"]) == (7, 0.5, midnight, None)
    assert sorted(map(repr, orders.table("orders"))) == sorted(map(repr, orders.by_spark("orders")))


def test_the_log_of_a_wider_table_is_as_delta_wants_it(tmp_path: Path, spark: Any) -> None:
    orders = shop(tmp_path, spark)
    for number, amount in enumerate([5, BIG, BIG], 1):
        orders.land(f"{number}.json", order(number, "AT", amount))
        orders.checkpoint(f"run {number}")
    snapshot = open_table(Location(str(tmp_path / "tables/orders")))
    assert snapshot is not None
    (amount,) = [field for field in snapshot.schema["fields"] if field["name"] == "amount"]
    assert amount["metadata"] == {"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}
    table = f"delta.`{tmp_path / 'tables/orders'}`"
    spark.sql(f"INSERT INTO {table} VALUES (9, 'FR', 9, 9, null)")
    spark.sql(f"OPTIMIZE {table}")
    assert {row["id"]: row["amount"] for row in orders.by_spark("orders")} == {1: 5, 2: None, 3: BIG, 9: 9}
    orders.land("4.json", order(4, "AT", 7) | {"vip": True})
    orders.checkpoint("run 4")
    orders.land("5.json", order(5, "AT", 7) | {"vip": True})
    orders.checkpoint("run 5")
    assert {row["id"]: row["vip"] for row in orders.by_spark("orders")}[5] is True


class Ranked(Shop):
    """Orders beside the highest price of their country, which is retracted when a higher one comes."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        schema = "id long, country string, amount int, price decimal(6,2)"
        orders = pipeline.source("orders", Files("landing/*.json", schema=schema, on_type="widen"))
        highest = orders.aggregate(by="country", most="max(price)", largest="max(amount)", uid="highest")
        joined = orders.join(highest, on="country", uid="joined")
        joined.sink("joined", DeltaUpsert("tables/joined", keys=["id"], schema_evolution="widen"))
        return pipeline


def test_a_join_retracts_rows_that_it_stored_with_a_narrower_type(tmp_path: Path, spark: Any) -> None:
    """The ids of its rows depend on the places of a decimal, and on whether a number is a double."""
    orders = Ranked(tmp_path)
    orders.spark = spark
    orders.land("1.json", order(1, "AT", 5, price=2.5), order(2, "DE", 7))
    orders.checkpoint("one")
    orders.land("2.json", order(3, "AT", 0.5, price=1.2575))
    orders.checkpoint("two")
    orders.land("3.json", order(4, "AT", 7.5, price=2.5001))
    orders.checkpoint("three")
    highest = {"AT": (Decimal("2.5001"), 7.5), "DE": (Decimal("1.2500"), 7.0)}
    rows = orders.table("joined")
    assert {row["id"] for row in rows} == {1, 2, 3, 4}
    assert {row["id"]: (row["most"], row["largest"]) for row in rows} == {
        row["id"]: highest[row["country"]] for row in rows
    }
