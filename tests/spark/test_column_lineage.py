"""What a catalog is told of the columns of a real checkpoint's tables, for a pipeline that SQL declares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kit.sampling import in_turn
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.dag.lineage.facts import of_checkpoint
from tidegate.dag.tasks.asset_events import SinkChange
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pytestmark = in_turn(seconds=20)


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

    def made_of(self, checkpoint: int) -> dict[str, dict[str, list[tuple[str, str]]]]:
        """By table and column, the columns of the source that it is made of."""
        changes = {name: SinkChange(checkpoint, rows=1) for name in ("every", "totals")}
        told = of_checkpoint(self.coordinator(), checkpoint, lambda: changes)
        assert {origin.dataset.name for output in told.outputs for of in output.made_of.values() for origin in of} == {
            str(self.root / "landing")
        }
        return {
            output.dataset.name.rpartition("/")[2]: {
                column: [(origin.column, origin.how) for origin in origins]
                for column, origins in output.made_of.items()
            }
            for output in told.outputs
        }


def test_columns_are_traced_through_sql_and_so_are_new_ones(tmp_path: Path, spark: Any) -> None:
    shop = Shop(tmp_path)
    shop.spark = spark
    (tmp_path / "landing").mkdir()
    for number in (1, 2):
        record = {"id": number, "country": "AT", "amount": 2.5, "vip": True}
        (tmp_path / "landing" / f"{number}.json").write_text(json.dumps(record))
        checkpoint = shop.checkpoint(f"run {number}")
    assert shop.made_of(checkpoint) == {
        "every": {name: [(name, "identity")] for name in ("id", "country", "amount", "vip", "_rescued")},
        "totals": {"land": [("country", "identity")], "spent": [("amount", "aggregation")]},
    }
