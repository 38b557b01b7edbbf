"""Joins of every kind, with and without bounds, and what plain Python and plain Spark say of them.

paired    both sides only add rows: inner and semi joins without bounds add, too; so a maximum and an append follow them
          a side replaces rows: every kind replaces
          near in time: right, semi, anti; and as of event time
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.spark.graphs import NEAR, ORDERS, PAYMENTS, grouped, meets, mixed, rows_of
from tests.spark.random_cuts import Event, Graph, Row, counted
from tests.spark.reference import greatest_by
from tests.spark.small_pipeline import sources
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert

__all__ = ["JOINS"]

BLOCKS = "k string, bid long, why long, blocked_at timestamp"
NO_ORDER = {"id": None, "v": None, "at": None}
NO_PAYMENT = {"pid": None, "w": None, "paid_at": None}
KEEPS = ("right", "full", "semi", "anti")


def paired(pipeline: Pipeline) -> None:
    orders = sources(pipeline, ORDERS, "orders", event_time="at", watermark="20 min")
    payments = sources(pipeline, PAYMENTS, "payments", event_time="paid_at", watermark="20 min")
    blocks = sources(pipeline, BLOCKS, "blocks", event_time="blocked_at", watermark="20 min")

    pairs = orders.join(payments, on="k", uid="pairs")
    pairs.sink("pairs", DeltaAppend("tables/pairs"))
    best = pairs.aggregate(by="k", uid="best", most="max(v * w)", n="count(*)")
    best.sink("best", DeltaUpsert("tables/best", keys=["k"]))
    orders.join(payments, on="k", how="semi", uid="some").sink("some", DeltaAppend("tables/some"))
    three = orders.join(payments, blocks, on="k", uid="three")
    three.aggregate(by="k", uid="threes", n="count(*)", s="sum(v * w + why)").sink(
        "threes", DeltaUpsert("tables/threes", keys=["k"])
    )

    newest = orders.latest(by="k", order_by=["at", "id"], uid="newest")
    last = payments.latest(by="k", order_by=["paid_at", "pid"], uid="last")
    for how in KEEPS:
        held = newest.join(last, on="k", how=how, uid=f"held-{how}")
        keys = ["k"] if how in ("semi", "anti") else ["k", "id", "pid"]
        held.sink(f"held-{how}", DeltaUpsert(f"tables/held-{how}", keys=keys))
        if how in ("right", "semi", "anti"):
            near = orders.join(payments, on="k", within=("-6 min", "9 min"), how=how, uid=f"near-{how}")
            near.sink(f"near-{how}", DeltaAppend(f"tables/near-{how}"))
    for how in ("inner", "left"):
        then = orders.join(blocks, on="k", as_of=True, how=how, uid=f"then-{how}")
        then.sink(f"then-{how}", DeltaAppend(f"tables/then-{how}"))


def paired_events(dice: random.Random) -> list[Event]:
    kinds: dict[str, tuple[Row, str]] = {
        "orders": ({"id": "id", "v": "value"}, "at"),
        "payments": ({"pid": "id", "w": "value"}, "paid_at"),
        "blocks": ({"bid": "id", "why": "value"}, "blocked_at"),
    }
    return mixed(dice, dice.choice([10, 30, 50]), kinds, end=True)


def met(left: Iterable[Row], right: Iterable[Row]) -> list[tuple[Row, Row]]:
    return [(one, other) for one in left for other in right if one["k"] is not None and one["k"] == other["k"]]


def joined(left: Sequence[Row], right: Sequence[Row], how: str, near: Callable[[Row, Row], bool]) -> list[Row]:
    pairs = [(one, other) for one, other in met(left, right) if near(one, other)]
    with_left, with_right = {id(one) for one, _ in pairs}, {id(other) for _, other in pairs}
    if how in ("semi", "anti"):
        return [row for row in left if (id(row) in with_left) == (how == "semi")]
    found = [{**other, **one} for one, other in pairs]
    found += [{**NO_ORDER, **row} for row in right if id(row) not in with_right]
    return found + ([{**NO_PAYMENT, **row} for row in left if id(row) not in with_left] if how == "full" else [])


def as_of(row: Row, versions: Sequence[Row]) -> Row | None:
    """The newest version that is not newer than the row. No two of a key are of one time, but for copies."""
    held = [one for _, one in met([row], versions) if one["blocked_at"] <= row["at"]]
    return max(held, key=lambda one: one["blocked_at"], default=None)


def paired_expected(events: Sequence[Event]) -> dict[str, Counter[Any]]:
    orders, payments, blocks = (rows_of(events, name) for name in ("orders", "payments", "blocks"))
    pairs = met(orders, payments)
    threes = [(one, other, third) for one, other in pairs for _, third in met([one], blocks)]
    newest = list(greatest_by(orders, lambda row: row["k"], lambda row: (row["at"], row["id"])).values())
    last = list(greatest_by(payments, lambda row: row["k"], lambda row: (row["paid_at"], row["pid"])).values())
    found = {
        "pairs": [{**other, **one} for one, other in pairs],
        "some": joined(orders, payments, "semi", lambda *_: True),
        "best": [
            {"k": k, "most": max(o["v"] * p["w"] for o, p in rows), "n": len(rows)}
            for k, rows in grouped(pairs, lambda pair: pair[0]["k"]).items()
        ],
        "threes": [
            {"k": k, "n": len(rows), "s": sum(o["v"] * p["w"] + b["why"] for o, p, b in rows)}
            for k, rows in grouped(threes, lambda three: three[0]["k"]).items()
        ],
    }
    for how in KEEPS:
        found[f"held-{how}"] = joined(newest, last, how, lambda *_: True)
    for how in ("right", "semi", "anti"):
        found[f"near-{how}"] = joined(
            orders, payments, how, lambda one, other: meets(one, other, ("at", "paid_at"), NEAR)
        )
    nothing = {"bid": None, "why": None, "blocked_at": None}
    held = [(row, as_of(row, blocks)) for row in orders]
    found["then-inner"] = [{**version, **row} for row, version in held if version is not None]
    found["then-left"] = [{**(version or nothing), **row} for row, version in held]
    return {name: counted(rows) for name, rows in found.items()}


_NEAR = "o.k = p.k AND p.paid_at BETWEEN o.at - INTERVAL 6 MINUTES AND o.at + INTERVAL 9 MINUTES"
_HELD = (
    " FROM (SELECT row.* FROM (SELECT max_by(struct(*), struct(at, id)) AS row FROM orders GROUP BY k)) o {how} JOIN "
    "(SELECT row.* FROM (SELECT max_by(struct(*), struct(paid_at, pid)) AS row FROM payments GROUP BY k)) p "
    "ON o.k = p.k"
)
_THEN = (  # orders that are alike are numbered, so that each keeps its own version
    "SELECT k, id, v, at, b.bid, b.why, b.blocked_at FROM (SELECT o.k, o.id, o.v, o.at, "
    "max_by(struct(b.*), b.blocked_at) AS b FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY at) AS copy "
    "FROM orders) o LEFT JOIN blocks b ON o.k = b.k AND b.blocked_at <= o.at GROUP BY o.k, o.id, o.v, o.at, o.copy) "
    "{where}"
)
PAIRED_BATCH = {
    "pairs": "SELECT o.k, o.id, o.v, o.at, p.pid, p.w, p.paid_at FROM orders o JOIN payments p ON o.k = p.k",
    "some": "SELECT o.* FROM orders o LEFT SEMI JOIN payments p ON o.k = p.k",
    "best": (
        "SELECT o.k, max(o.v * p.w) AS most, count(*) AS n FROM orders o JOIN payments p ON o.k = p.k GROUP BY o.k"
    ),
    "held-right": "SELECT coalesce(o.k, p.k) AS k, o.id, o.v, o.at, p.pid, p.w, p.paid_at" + _HELD.format(how="RIGHT"),
    "held-full": "SELECT coalesce(o.k, p.k) AS k, o.id, o.v, o.at, p.pid, p.w, p.paid_at" + _HELD.format(how="FULL"),
    "held-semi": "SELECT o.*" + _HELD.format(how="LEFT SEMI"),
    "held-anti": "SELECT o.*" + _HELD.format(how="LEFT ANTI"),
    "threes": (
        "SELECT o.k, count(*) AS n, sum(o.v * p.w + b.why) AS s FROM orders o JOIN payments p ON o.k = p.k "
        "JOIN blocks b ON o.k = b.k GROUP BY o.k"
    ),
    "then-left": _THEN.format(where=""),
    "then-inner": _THEN.format(where="WHERE b.bid IS NOT NULL"),
    "near-right": (
        "SELECT coalesce(o.k, p.k) AS k, o.id, o.v, o.at, p.pid, p.w, p.paid_at FROM orders o RIGHT JOIN payments p ON "
        + _NEAR
    ),
    "near-semi": "SELECT o.* FROM orders o LEFT SEMI JOIN payments p ON " + _NEAR,
    "near-anti": "SELECT o.* FROM orders o LEFT ANTI JOIN payments p ON " + _NEAR,
}

JOINS = (Graph("paired", paired, paired_events, paired_expected, PAIRED_BATCH),)
