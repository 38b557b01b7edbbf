"""A small table that a stage looks up, on real Spark: whole in every checkpoint, whatever becomes of the attempts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.random_cuts import Telling
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.sinks import DeltaAppend

PLANS: list[str] = []


@pytest.fixture(autouse=True)
def _without_broadcasts_by_size(spark: Any) -> Iterator[None]:
    known = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")  # so that only the hint can do it
    yield
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", known)


def test_a_row_that_has_not_come_for_too_long_is_in_the_table_no_more(tmp_path: Path, spark: Any) -> None:
    """By the clock: each checkpoint is a day after the one before."""

    def declare(pipeline: Pipeline) -> None:
        orders = sources(pipeline, "id long, country string", "orders")
        changes = sources(pipeline, "country string, tax long, changed long", "changes")
        rules = changes.broadcast(by="country", order_by="changed", state_ttl="36 h", uid="rules")
        joined = pipeline.stage(orders, rules, name="priced")(
            lambda orders, rules: orders.join(rules, "country", "left")
        )
        joined.sink("priced", DeltaAppend("tables/priced"))

    play = SmallPipeline(tmp_path, spark, declare)
    for day, changed in enumerate(([rule("AT", 20, 1), rule("DE", 19, 1)], [rule("AT", 21, 2)], [], [])):
        play.feed(changed, "changes")
        play.feed(
            [{"id": 10 * day + place, "country": country} for place, country in enumerate(("AT", "DE"))], "orders"
        )
        with seams.installed(seams.Seams(now=lambda day=day: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day))):
            Telling(play, spark, itertools.cycle([1, 3])).checkpoint(("", "crash", "twice", "")[day])
    seen = {row["id"]: row["tax"] for row in play.rows("tables/priced")}
    assert seen == {0: 20, 1: 19, 10: 21, 11: 19, 20: 21, 21: None, 30: None, 31: None}


def taxed(pipeline: Pipeline) -> None:
    """Orders, in a job of their own, and what their country asks for now."""
    orders = sources(pipeline, "id long, country string, amount long", "orders")
    changes = sources(pipeline, "country string, tax long, changed long", "changes")
    kept = pipeline.stage(changes, name="kept")(lambda frame: frame.where("tax >= 0"))
    rules = kept.job("pricing").broadcast(by="country", order_by="changed", uid="rules")

    def priced(orders: Any, rules: Any) -> Any:
        found = orders.join(rules.where("tax < 100"), "country", "left").selectExpr("id", "amount", "tax")
        PLANS.append(found._jdf.queryExecution().executedPlan().toString())
        return found

    pipeline.stage(orders.job("pricing"), rules, name="priced")(priced).sink("priced", DeltaAppend("tables/priced"))


def rule(country: str | None, tax: int, changed: int) -> dict[str, Any]:
    return {"country": country, "tax": tax, "changed": changed}


def test_orders_see_what_holds_in_their_checkpoint(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, taxed)
    for source in ("orders", "changes"):
        (tmp_path / "landing" / source).mkdir(parents=True)

    def checkpoint(fault: str = "") -> None:
        Telling(play, spark, itertools.cycle([1, 3])).checkpoint(fault)

    def sold(*numbers: int) -> None:
        play.feed([{"id": n, "country": "AT" if n % 2 else "DE", "amount": n} for n in numbers], "orders")

    def seen() -> dict[int, int | None]:
        return {row["id"]: row["tax"] for row in play.rows("tables/priced")}

    sold(1, 2)
    checkpoint()  # nothing is known yet
    assert seen() == {1: None, 2: None}
    play.feed([rule("AT", 20, 1), rule("AT", 10, 0), rule("DE", 19, 1), rule("FR", -1, 1)], "changes")
    sold(3, 4)
    checkpoint("abort")
    checkpoint("crash")
    sold(5, 6)
    checkpoint()  # nothing has changed
    play.feed([rule("AT", 21, 2), rule("DE", 7, 0)], "changes")  # one is newer, one has been overtaken
    sold(7, 8)
    checkpoint("twice")
    play.feed([rule(None, 99, 1)], "changes")
    checkpoint()  # no orders
    sold(9, 10)
    checkpoint()
    assert seen() == {1: None, 2: None, 3: 20, 4: 19, 5: 20, 6: 19, 7: 21, 8: 19, 9: 21, 10: 19}
    # The function is also called on frames that have no rows, to trace its columns: Spark knows no size of theirs.
    joined = [plan for plan in PLANS if "Join" in plan and "it must not compute rows here" not in plan]
    assert joined
    assert all("BroadcastHashJoin" in plan for plan in joined), joined
