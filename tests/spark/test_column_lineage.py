"""What a catalog is told of the columns of a real checkpoint's tables: through SQL, and through functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from jobs import orders, orders_feed
from tests.kit.sampling import in_turn
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.dag.lineage.facts import of_checkpoint
from tidegate.history.asset_events.changes import SinkChange
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pytestmark = in_turn(seconds=60)

ROOT = Path(__file__).resolve().parents[2]


Origins = dict[str, list[tuple[str, str]]]


def made_of(world: World, checkpoint: int) -> dict[str, Origins]:
    """By table and column, the columns of sources that it is made of, each with its folder, and how."""
    changes = {name: SinkChange(checkpoint, rows=1) for name in world.graph().sinks}
    told = of_checkpoint(world.coordinator(), checkpoint, lambda: changes)
    return {
        output.dataset.name.rpartition("/")[2]: {
            column: [(f"{origin.dataset.name.rpartition('/')[2]}.{origin.column}", origin.how) for origin in origins]
            for column, origins in output.made_of.items()
        }
        for output in told.outputs
    }


class Shop(World):
    """Totals in SQL, and orders as they come, with columns that nobody has declared."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        schema = "id long, country string, amount double"
        orders = pipeline.source("orders", Files("landing/*.json", schema=schema, on_new_column="evolve"))
        orders.sink("every", DeltaAppend("tables/every", schema_evolution="add"))
        totals = pipeline.sql(
            "SELECT country AS land, sum(amount * 2) AS spent FROM orders WHERE id > 0 GROUP BY country", name="totals"
        )
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["land"]))
        return pipeline


def test_columns_are_traced_through_sql_and_so_are_new_ones(tmp_path: Path, spark: Any) -> None:
    shop = Shop(tmp_path)
    shop.spark = spark
    (tmp_path / "landing").mkdir()
    for number in (1, 2):
        record = {"id": number, "country": "AT", "amount": 2.5, "vip": True}
        (tmp_path / "landing" / f"{number}.json").write_text(json.dumps(record))
        checkpoint = shop.checkpoint(f"run {number}")
    assert made_of(shop, checkpoint) == {
        "every": {name: [(f"landing.{name}", "identity")] for name in ("id", "country", "amount", "vip", "_rescued")},
        "totals": {"land": [("landing.country", "identity")], "spent": [("landing.amount", "aggregation")]},
    }


class Example(World):
    """The shipped example, whose files and tables are somewhere else."""

    def pipeline(self) -> Pipeline:
        return orders.pipeline

    @property
    def place(self) -> Place:
        return Place(str(self.root), project=str(ROOT))


def test_each_column_of_the_shipped_example_leads_to_its_sources(tmp_path: Path, spark: Any) -> None:
    example = Example(tmp_path)
    example.spark = spark
    orders_feed.feed(tmp_path, files=2, rows=50)
    checkpoint = example.checkpoint("run")
    assert made_of(example, checkpoint) == {
        "revenue": {
            "window_start": [("orders.at", "transformation")],
            "window_end": [("orders.at", "transformation")],
            "country": [("orders.country", "identity")],
            "revenue": [("orders.amount", "aggregation")],
        },
        "totals": {
            "customer_id": [("orders.customer_id", "identity")],
            "spent": [("orders.amount", "aggregation")],
            "last": [("payments.at", "aggregation")],
        },
    }


class Traced(World):
    """A source whose columns come with its files, and a function of its rows that notes each call."""

    mended = False

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("traced")
        rows = pipeline.source("rows", Files("landing/*.json", schema="id long", on_new_column="evolve"))
        calls = self.root / "calls"

        def doubled(rows: Any) -> Any:
            with calls.open("a") as file:
                file.write("x")
            return rows.selectExpr("*", "id * 2 AS more")

        def one(rows: Any) -> Any:
            with calls.open("a") as file:
                file.write("x")
            return rows.selectExpr("*", "1L AS more")

        changed = pipeline.stage(rows, name="changed")(one if self.mended else doubled)
        changed.sink("out", DeltaAppend("tables/out", schema_evolution="add"))
        return pipeline

    def feed(self, number: int, **values: Any) -> int:
        """Make a checkpoint of one record. Return how often the function was called for it."""
        before = self.calls
        (self.root / "landing").mkdir(exist_ok=True)
        (self.root / "landing" / f"{number}.json").write_text(json.dumps({"id": number, **values}))
        assert self.checkpoint(f"run {number}") == number
        return self.calls - before

    @property
    def calls(self) -> int:
        path = self.root / "calls"
        return len(path.read_text()) if path.exists() else 0


def test_a_function_is_traced_once_for_its_code_and_its_columns(tmp_path: Path, spark: Any) -> None:
    world = Traced(tmp_path)
    world.spark = spark
    assert [world.feed(1), world.feed(2)] == [2, 1]
    assert set(made_of(world, 1)["out"]) == set(made_of(world, 2)["out"]) == {"id", "more", "_rescued"}
    assert [world.feed(3, vip=True), world.feed(4, vip=True)] == [1, 2], "the source has a new column from 4 on"
    assert made_of(world, 4)["out"]["vip"] == [("landing.vip", "identity")]
    assert made_of(world, 4)["out"]["more"] == [("landing.id", "transformation")]
    world.mended = True
    assert [world.feed(5), world.feed(6)] == [2, 1], "its code has changed"
    assert set(made_of(world, 6)["out"]) == {"id", "vip", "_rescued"}, "the other column is made of nothing"


def test_a_function_that_reads_rows_is_not_traced_and_does_its_work(tmp_path: Path, spark: Any) -> None:
    class Counting(Traced):
        def pipeline(self) -> Pipeline:
            pipeline = Pipeline("traced")
            rows = pipeline.source("rows", Files("landing/*.json", schema="id long"))
            counted = pipeline.stage(rows, name="counted")(lambda rows: rows.selectExpr(f"id + {rows.count()} AS id"))
            counted.sink("out", DeltaAppend("tables/out"))
            return pipeline

    world = Counting(tmp_path)
    world.spark = spark
    world.feed(1)
    assert made_of(world, 1) == {"out": {}}
    assert [row["id"] for row in DeltaTable(str(tmp_path / "tables/out")).to_pyarrow_table().to_pylist()] == [2]
