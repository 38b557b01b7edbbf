"""Joins by columns that are called otherwise on the two sides: which row meets which, what comes out, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=30)

AUCTIONS = "id long, seller long, item string, at timestamp"
PERSONS = "id long, name string, at timestamp"


def auctions_and_persons(put: Callable[[Any, Any], object]) -> Callable[[Pipeline], None]:
    def build(pipeline: Pipeline) -> None:
        auctions = sources(pipeline, AUCTIONS, "auctions", event_time="at")
        put(auctions, sources(pipeline, PERSONS, "persons", event_time="at"))

    return build


def auction(id: int, seller: int, item: str, minute: int = 0) -> dict[str, Any]:
    return {"id": id, "seller": seller, "item": item, "at": f"2026-01-01T00:{minute:02}:00Z"}


def person(id: int, name: str, minute: int = 0) -> dict[str, Any]:
    return {"id": id, "name": name, "at": f"2026-01-01T00:{minute:02}:00Z"}


def both_ways(auctions: Any, persons: Any) -> None:
    newest = persons.latest(by="id", order_by="at", uid="newest")
    sold = auctions.join(newest, on={"seller": "id"}, how="left", prefix="seller_", uid="sold")
    sold.sink("sold", DeltaUpsert("tables/sold", keys=["id"]))
    offers = newest.join(auctions, on={"id": "seller"}, prefix="auction_", uid="offers")
    offers.sink("offers", DeltaUpsert("tables/offers", keys=["id", "auction_id"]))
    near = persons.join(auctions, on={"id": "seller"}, within="10 min", how="full", prefix="auction_", uid="near")
    near.sink("near", DeltaAppend("tables/near"))


def test_a_stream_meets_another_by_columns_of_other_names(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, auctions_and_persons(both_ways))
    play.feed([auction(7, 1, "lamp"), auction(1, 2, "vase"), auction(8, 9, "clock")], "auctions")
    play.feed([person(1, "Ada"), person(7, "Bo")], "persons")
    play.checkpoint()
    play.feed([auction(9, 1, "desk", 5)], "auctions")
    play.feed([person(1, "Ada L.", 5), person(2, "Cy", 59)], "persons")
    play.checkpoint()

    sold = sorted((row["id"], row["seller"], row["item"], row["name"]) for row in play.rows("tables/sold"))
    assert sold == [(1, 2, "vase", "Cy"), (7, 1, "lamp", "Ada L."), (8, 9, "clock", None), (9, 1, "desk", "Ada L.")]
    assert set(play.rows("tables/sold")[0]) == {"seller", "id", "item", "at", "name", "seller_at"}

    offers = sorted((row["id"], row["name"], row["auction_id"], row["item"]) for row in play.rows("tables/offers"))
    assert offers == [(1, "Ada L.", 7, "lamp"), (1, "Ada L.", 9, "desk"), (2, "Cy", 1, "vase")]
    assert set(play.rows("tables/offers")[0]) == {"id", "name", "at", "auction_id", "item", "auction_at"}

    near = sorted(
        ((row["id"], row["name"], row["auction_id"]) for row in play.rows("tables/near") if row["name"]), key=str
    )
    assert near == [(1, "Ada L.", 7), (1, "Ada L.", 9), (1, "Ada", 7), (1, "Ada", 9)]
    play.feed([auction(50, 50, "late", 59)], "auctions")
    play.checkpoint()
    alone = {(row["id"], row["name"], row["auction_id"]) for row in play.rows("tables/near")}
    assert {(7, "Bo", None), (2, None, 1), (9, None, 8)} < alone, "with nobody, under the same key"


def test_a_table_is_looked_up_by_a_column_of_another_name(tmp_path: Path, spark: Any) -> None:
    import pyarrow as pa

    people = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["Ada", "Cy"], "item": ["x", "y"]})
    write_deltalake(str(tmp_path / "tables/people"), people)

    def looked_up(auctions: Any, _: Any) -> None:
        _.sink("persons", DeltaAppend("tables/persons"))
        named = auctions.join(table="tables/people", on={"seller": "id"}, prefix="seller_")
        named.sink("named", DeltaAppend("tables/named"))

    play = SmallPipeline(tmp_path, spark, auctions_and_persons(looked_up))
    play.feed([auction(7, 1, "lamp"), auction(8, 9, "clock")], "auctions")
    play.feed([person(1, "Ada")], "persons")
    play.checkpoint()
    (row,) = play.rows("tables/named")
    assert (row["id"], row["seller"], row["name"], row["item"], row["seller_item"]) == (7, 1, "Ada", "lamp", "x")


def test_a_key_that_the_other_side_has_for_something_else_needs_a_prefix(tmp_path: Path, spark: Any) -> None:
    def put(auctions: Any, persons: Any) -> None:
        offers = persons.join(auctions, on={"id": "seller"})
        offers.sink("offers", DeltaUpsert("tables/offers", keys=["id"]))

    play = SmallPipeline(tmp_path, spark, auctions_and_persons(put))
    play.feed([auction(7, 1, "lamp")], "auctions")
    play.feed([person(1, "Ada")], "persons")
    with pytest.raises(Invalid) as caught:
        play.checkpoint()
    assert caught.value.reason == "BAD_JOIN"
    assert "both sides have a column 'id'" in caught.value.what
    assert 'prefix="…"' in caught.value.help
