"""Operators of one's own on real Spark: those of the guide, beside plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.sampling import in_turn
from tests.kit.streaks import Alerts, Carts, Streaks
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.records.records import Drain
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.state.arrow import workers

pytestmark = in_turn(seconds=40)

DAY, HOUR = date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)


def streaks(pipeline: Pipeline) -> None:
    """The longest streak of each customer; how many customers have one of a length; and one customer of each."""
    orders = sources(pipeline, "customer string, day date", "orders")
    longest = orders.apply(Streaks(), uid="streaks")
    longest.sink("streaks", DeltaUpsert("tables/streaks", keys=["customer"]))
    longest.aggregate(by="longest", customers="count(*)", uid="lengths").sink(
        "lengths", DeltaUpsert("tables/lengths", keys=["longest"])
    )
    longest.sink("examples", DeltaUpsert("tables/examples", keys=["longest"]))


def longest_of(days: set[date]) -> int:
    return max(next(n for n in range(1, 99) if day + timedelta(days=n) not in days) for day in days)


@pytest.mark.parametrize("by_files", [True, False])
def test_streaks_grow_and_what_is_behind_them_follows(
    by_files: bool, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_files:
        monkeypatch.setattr(workers, "usable", lambda *_: False)
    dice = random.Random(3)
    play = SmallPipeline(tmp_path, spark, streaks)
    ordered: dict[Any, set[Any]] = {}
    for _ in range(4):
        rows = [{"customer": dice.choice("abcd"), "day": DAY + timedelta(days=dice.randrange(9))} for _ in range(6)]
        for row in rows:
            ordered.setdefault(row["customer"], set()).add(row["day"])
        play.feed(rows, "orders")
        play.checkpoint()
        wanted = {customer: longest_of(days) for customer, days in ordered.items()}
        assert {row["customer"]: row["longest"] for row in play.rows("tables/streaks")} == wanted
        lengths = {row["longest"]: row["customers"] for row in play.rows("tables/lengths")}
        assert lengths == Counter(wanted.values())
        examples = {row["longest"]: row["customer"] for row in play.rows("tables/examples")}
        assert examples.keys() == lengths.keys()
        assert all(wanted[customer] == length for length, customer in examples.items())
    (step,) = (step for step in play.ack(4).stats.steps if step.name == "state streaks")
    assert step.computed is not None
    assert step.computed.spark is not by_files


def carts(pipeline: Pipeline) -> None:
    items = sources(pipeline, "cart string, item string, at timestamp", "items", event_time="at", watermark="1 min")
    abandoned = items.apply(Carts(minutes=10), uid="carts")
    abandoned.sink("carts", DeltaAppend("tables/carts"))
    abandoned["late"].sink("late", DeltaAppend("tables/late"))


def test_carts_are_given_once_time_has_passed_them_though_nothing_comes_for_them(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, carts)

    def checkpoint(*items: tuple[str, str, int]) -> list[tuple[str, list[str]]]:
        before = len(play.rows("tables/carts"))
        rows = [{"cart": c, "item": i, "at": (HOUR + timedelta(minutes=m)).isoformat()} for c, i, m in items]
        play.feed(json.loads(json.dumps(rows)), "items")
        play.checkpoint()
        given = [(row["cart"], row["items"]) for row in play.rows("tables/carts")]
        return sorted(given)[-(len(given) - before) :] if len(given) > before else []

    assert checkpoint(("a", "tea", 0), ("b", "cup", 1)) == []
    assert checkpoint(("a", "pot", 6), ("b", "jug", 9)) == []
    assert checkpoint(("c", "mug", 18)) == [("a", ["pot", "tea"])]
    assert checkpoint(("b", "lid", 25), ("b", "old", 3)) == [("b", ["cup", "jug"])]
    assert [row["item"] for row in play.rows("tables/late")] == ["old"]
    play.checkpoint(drain=Drain(by="a test"))
    assert sorted(row["cart"] for row in play.rows("tables/carts")) == ["a", "b", "b", "c"]


def alerts(pipeline: Pipeline) -> None:
    schema = "sensor string, level double, at timestamp"
    readings = sources(pipeline, schema, "readings", event_time="at", watermark="2 min")
    shown = readings.apply(Alerts(limit=50.0), uid="alerts")
    shown.sink("alerts", DeltaUpsert("tables/alerts", keys=["sensor"]))
    shown.aggregate(by=[], alerts="count(*)", uid="number").sink(
        "number", DeltaUpsert("tables/number", keys=["alerts"])
    )


def test_a_key_shows_a_row_for_some_time_and_then_none(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, alerts)

    def checkpoint(*readings: tuple[str, float, int]) -> list[str]:
        rows = [
            {"sensor": s, "level": level, "at": (HOUR + timedelta(minutes=m)).isoformat()} for s, level, m in readings
        ]
        play.feed(rows, "readings")
        play.checkpoint()
        shown = sorted(row["sensor"] for row in play.rows("tables/alerts"))
        assert sum(row["alerts"] for row in play.rows("tables/number")) == len(shown)
        return shown

    assert checkpoint(("a", 60, 0), ("b", 60, 0), ("a", 60, 2), ("b", 60, 3)) == []
    assert checkpoint(("a", 60, 1), ("b", 10, 2), ("c", 1, 6)) == ["a"], "b was below the limit in between"
    assert checkpoint(("b", 60, 6), ("b", 60, 7), ("c", 1, 10)) == ["a", "b"]
    assert checkpoint(("a", 10, 9), ("c", 1, 20)) == ["b"]


class LaterStreaks(Streaks):
    version = 2


class OtherStreaks(Streaks):
    def shows(self, state: pa.Table) -> pa.Table:
        return super().shows(state).slice(0, 1)


@pytest.mark.parametrize(
    ("operator", "told"), [(LaterStreaks(), "version is 2, and was 1"), (OtherStreaks(), "what it shows has changed")]
)
def test_another_version_does_not_misread_what_an_earlier_one_kept(
    operator: Streaks, told: str, tmp_path: Path, spark: Any
) -> None:
    play = SmallPipeline(tmp_path, spark, streaks)
    play.feed([{"customer": "a", "day": DAY}], "orders")
    play.checkpoint()

    def other(pipeline: Pipeline) -> None:
        orders = sources(pipeline, "customer string, day date", "orders")
        longest = orders.apply(operator, uid="streaks")
        longest.sink("streaks", DeltaUpsert("tables/streaks", keys=["customer"]))

    play.build = other
    play.feed([{"customer": "a", "day": DAY}], "orders")
    with pytest.raises(Invalid, match=told):
        play.checkpoint()
