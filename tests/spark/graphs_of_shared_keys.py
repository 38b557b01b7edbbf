"""Rows that share the key of a sink, though the stream tells them apart, and what plain Python says of the tables.

shared    projections of `latest` and of a LEFT JOIN, a union of two of them, equal ranks, stages of Python that keep a
          key or lose it: the sink goes by keys that do not contain those of its stream, or may not
deleted   rows and deletes of a key in any order: of the newest the table has the row, or nothing
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.spark.graphs import ORDERS, PAYMENTS, grouped, mixed, rows_of
from tests.spark.random_cuts import Event, Graph, Row, counted
from tests.spark.reference import greatest_by
from tests.spark.small_pipeline import sources
from tidegate import Pipeline
from tidegate.sinks import DeltaUpsert

__all__ = ["SHARED"]


def upserted(stream: Any, name: str, *keys: str) -> None:
    """The table has another name than the stream, of which it shows fewer rows."""
    stream.sink(f"by-{name}", DeltaUpsert(f"tables/by-{name}", keys=keys))


def shared(pipeline: Pipeline) -> None:
    orders = sources(pipeline, ORDERS, "orders", event_time="at", watermark="20 min")
    payments = sources(pipeline, PAYMENTS, "payments", event_time="paid_at", watermark="20 min")
    newest = orders.latest(by="k", order_by=["at", "id"], uid="newest")
    last = payments.latest(by="k", order_by=["paid_at", "pid"], uid="last")

    upserted(newest.select("v", "v % 2 = 1 AS odd", name="values"), "values", "v")
    both = orders.join(payments, on="k", how="left", uid="both")
    upserted(both.select("v", "w", name="pairs"), "pairs", "v", "w")
    ours, theirs = newest.select("v AS x", name="ours"), last.select("w AS x", name="theirs")
    upserted(ours.union(theirs, name="either"), "either", "x")
    ranks = orders.top_n(2, by="k", order_by="v desc", rank="rank", uid="ranks")
    upserted(ranks.select("k", "v", "rank", name="ranked"), "ranks", "k", "rank")
    held = newest.join(last, on="k", how="inner", prefix="p_", uid="held")
    upserted(held, "held", "k")
    most = orders.latest(by="v", order_by=["at", "id"], uid="most")
    pays = payments.latest(by="w", order_by=["paid_at", "pid"], uid="pays")
    alike = most.join(pays.select("k", "w AS v", name="pays-v"), on="k", prefix="p_", uid="alike")
    upserted(alike.select("k", "v", "p_v", name="few"), "alike", "v", "p_v")

    @pipeline.stage(newest)
    def kept(newest: Any) -> Any:
        return newest.where("v > 2").withColumn("twice", newest.v * 2).withColumnRenamed("k", "key").drop("at")

    @pipeline.stage(newest)
    def lost(newest: Any) -> Any:
        return newest.where("v < 8").selectExpr("v >= 0 AS any")

    upserted(kept, "kept", "key")
    upserted(lost, "lost", "any")


def shared_events(dice: random.Random) -> list[Event]:
    kinds: dict[str, tuple[Row, str]] = {
        "orders": ({"id": "id", "v": "value"}, "at"),
        "payments": ({"pid": "id", "w": "value"}, "paid_at"),
    }
    return mixed(dice, dice.choice([10, 30, 50]), kinds, end=False)


def distinct(rows: Sequence[Row]) -> list[Row]:
    return [dict(row) for row in {tuple(row.items()) for row in rows}]


def shared_expected(events: Sequence[Event]) -> dict[str, Counter[Any]]:
    orders, payments = rows_of(events, "orders"), rows_of(events, "payments")
    newest = greatest_by(orders, lambda row: row["k"], lambda row: (row["at"], row["id"]))
    last = greatest_by(payments, lambda row: row["k"], lambda row: (row["paid_at"], row["pid"]))
    paid = grouped(payments, lambda row: row["k"])
    pairs = [
        {"v": row["v"], "w": other["w"]}
        for row in orders
        for other in (paid.get(row["k"]) if row["k"] is not None else None) or [{"w": None}]
    ]
    ranks = [
        {"k": k, "v": row["v"], "rank": place}
        for k, rows in grouped(orders, lambda row: row["k"]).items()
        for row in rows
        if (place := 1 + sum(other["v"] > row["v"] for other in rows)) <= 2
    ]
    most = greatest_by(orders, lambda row: row["v"], lambda row: (row["at"], row["id"])).values()
    pays = greatest_by(payments, lambda row: row["w"], lambda row: (row["paid_at"], row["pid"])).values()
    found = {
        "alike": [
            {"k": row["k"], "v": row["v"], "p_v": other["w"]}
            for row in most
            for other in pays
            if row["k"] is not None and row["k"] == other["k"]
        ],
        "values": [{"v": row["v"], "odd": row["v"] % 2 == 1} for row in newest.values()],
        "pairs": pairs,
        "either": [{"x": row["v"]} for row in newest.values()] + [{"x": row["w"]} for row in last.values()],
        "ranks": ranks,
        "held": [{**last[k], **row} for k, row in newest.items() if k is not None and k in last],
        "kept": [
            {"key": k, "id": row["id"], "v": row["v"], "twice": row["v"] * 2}
            for k, row in newest.items()
            if row["v"] > 2
        ],
        "lost": [{"any": True} for row in newest.values() if row["v"] < 8],
    }
    return {f"by-{name}": counted(distinct(rows)) for name, rows in found.items()}


# -- removed rows --------------------------------------------------------------------------------------------

CHANGES = "k string, op string, at long, v double"


def deleted(pipeline: Pipeline) -> None:
    changes = sources(pipeline, CHANGES, "changes")
    sink = DeltaUpsert("tables/now", keys=["k"], order_by=["at", "v"], delete_when="op = 'D'")
    changes.sink("now", sink)


def deleted_events(dice: random.Random) -> list[Event]:
    """Changes in any order, no two of a key as new as each other but for copies."""
    found: list[Event] = []
    for place in range(dice.choice([10, 30, 50])):
        at = dice.choice([None, *range(100)])
        row: Row = {"k": dice.choice(["a", "b", "ü`.", None]), "at": at, "v": place / 2, "op": dice.choice("UUD")}
        found += [("changes", row)] * dice.choice([1, 1, 1, 2])
    dice.shuffle(found)
    return found


def deleted_expected(events: Sequence[Event]) -> dict[str, Counter[Any]]:
    newest = greatest_by(
        [row for _, row in events],
        lambda row: row["k"],
        lambda row: (row["at"] is not None, row["at"] or 0, row["v"]),
    )
    return {"now": counted([row for row in newest.values() if row["op"] != "D"])}


SHARED = (
    Graph("shared", shared, shared_events, shared_expected),
    Graph("deleted", deleted, deleted_events, deleted_expected),
)
