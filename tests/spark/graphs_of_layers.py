"""What stands on other operators, and what has a function of the user's: what plain Python and plain Spark say of it.

layered   windows of windows, and the first ones of them by each rank; a window behind pairs of any age; three streams
          near in time; a function of two streams with a list, a map, timers, a table to look up and a second output;
          windows by the clock; states whose rows may expire, but do not yet
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from tests.spark.graphs import MINUTE, NEAR, ORDERS, PAYMENTS, grouped, meets, mixed, rows_of
from tests.spark.graphs_in_order import half_hour
from tests.spark.graphs_of_joins import BLOCKS, met
from tests.spark.random_cuts import Event, Graph, Row, counted
from tests.spark.reference import distinct_by, greatest_by, hops, ranked, windowed
from tests.spark.small_pipeline import sources
from tidegate import Pipeline
from tidegate.operators import ListState, MapState
from tidegate.sinks import DeltaAppend, DeltaUpsert

__all__ = ["LAYERS"]

NAMES = {"a": "Ann"}
"""It is the first event, and so in the first checkpoint: each order meets it."""
RANKS = ("row_number", "rank", "dense_rank")
THREE = ("left", "semi", "anti")
LATER: dict[str, Any] = {"state_ttl": "1000 days"}
"""Nothing is so old: what expires is written, looked at and merged all the same."""
TOLD = "k string, id long, n long, times long, name string, seen string"


def layered(pipeline: Pipeline) -> None:
    orders = sources(pipeline, ORDERS, "orders", event_time="at", watermark="20 min")
    payments = sources(pipeline, PAYMENTS, "payments", event_time="paid_at", watermark="20 min")
    blocks = sources(pipeline, BLOCKS, "blocks", event_time="blocked_at", watermark="20 min")
    names = sources(pipeline, "k string, name string, since long", "names")

    tens = orders.window(tumbling="10 min", by="k", uid="tens", n="count(*)", s="sum(v)", last="max(id)")
    hours = tens.window(tumbling="1 h", by="k", event_time="window_start", uid="hours", n="sum(n)", most="max(s)")
    hours.sink("hours", DeltaAppend("tables/hours"))
    for rank in RANKS:
        order_by = ["n desc", "s desc"] + (["last desc"] if rank == "row_number" else [])
        best = tens.top_n(2, by="window_start", order_by=order_by, rank=rank, uid=f"best-{rank}")
        best.sink(f"best-{rank}", DeltaAppend(f"tables/best-{rank}"))
    tops = orders.top_n(2, tumbling="30 min", by="k", order_by="v desc", rank="dense_rank", uid="tops")
    tops.sink("tops", DeltaAppend("tables/tops"))

    @pipeline.stage(orders.join(payments, on="k", uid="pairs"))
    def dated(pairs: Any) -> Any:
        return pairs.selectExpr("k", "v * w AS paid", "greatest(at, paid_at) AS met")

    pairs = dated.window(tumbling="30 min", by="k", event_time="met", uid="paid", n="count(*)", s="sum(paid)")
    pairs.sink("paid", DeltaAppend("tables/paid"))
    for how in THREE:
        near = orders.join(payments, blocks, on="k", within=("-6 min", "9 min"), how=how, uid=f"three-{how}")
        near.sink(f"three-{how}", DeltaAppend(f"tables/three-{how}"))

    named = names.broadcast(by="k", order_by="since", uid="named", **LATER)
    told = orders.process(
        by="k", state="n long", output=TOLD, other=payments, lookup=named, in_order=True, uid="told",
        outputs={"quiet": "k string, after long, at timestamp"}, lists={"seen": ListState("id long")},
        maps={"times": MapState(by="v", state="n long", **LATER)}, state_ttl={"n": LATER["state_ttl"]},
    )(tells)  # fmt: skip
    told.sink("told", DeltaAppend("tables/told"))
    told["quiet"].sink("quiet", DeltaAppend("tables/quiet"))

    clocked = orders.window(tumbling="1 h", time="processing", emit="update", by="k", uid="clocked", n="count(*)")
    clocked.aggregate(by="k", uid="clocks", n="sum(n)").sink("clocks", DeltaUpsert("tables/clocks", keys=["k"]))

    orders.deduplicate(by=["k", "v"], uid="first", **LATER).aggregate(by="k", uid="firsts", n="count(*)", **LATER).sink(
        "firsts", DeltaUpsert("tables/firsts", keys=["k"])
    )
    top = orders.top_n(2, by="k", order_by=["v desc", "id asc"], uid="top", **LATER)
    top.sink("top", DeltaUpsert("tables/top", keys=["k", "rank"]))
    newest = orders.latest(by="k", order_by=["at", "id"], uid="newest", **LATER)
    newest.sink("newest", DeltaUpsert("tables/newest", keys=["k"]))
    orders.join(payments, on="k", uid="both", **LATER).sink("both", DeltaAppend("tables/both"))
    orders.over(by="k", uid="steps", nth="row_number()", s="sum(v)", **LATER).sink("steps", DeltaAppend("tables/steps"))
    orders.window(count=3, by="k", uid="threes", s="sum(v)", **LATER).sink("threes", DeltaAppend("tables/threes"))
    then = orders.join(blocks, on="k", as_of=True, uid="then", **LATER)
    then.sink("then", DeltaAppend("tables/then"))


def tells(key: Row, orders: Any, payments: Any, state: Any, timers: Any, names: Any) -> Iterator[Any]:
    """Numbers the orders of a key, and how often each value came; a payment tells which orders it is for. Six quiet
    minutes begin a new count, also where a row comes at that very moment."""
    for fired in timers.fired:
        yield "quiet", {"k": key["k"], "after": state.n, "at": fired.at}
        state.n = 0
    known = {row["k"]: row["name"] for row in names.to_pylist()}
    for row in orders.to_pylist():
        state.n = (state.n or 0) + 1
        state.seen.append({"id": row["id"]})
        entry = state.times[row["v"]]
        entry.n = (entry.n or 0) + 1
        yield {"k": key["k"], "id": row["id"], "n": state.n, "times": entry.n, "name": known.get(key["k"]), "seen": ""}
        timers.event(row["at"] + 6 * MINUTE)
    for row in payments.to_pylist():
        seen = " ".join(str(each["id"]) for each in state.seen)
        yield {"k": key["k"], "id": row["pid"], "n": state.n, "times": None, "name": None, "seen": seen}
        state.seen.clear()


def told_by_hand(k: Any, orders: Sequence[Row], payments: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    """The same for one key."""
    moments = sorted({row["at"] for row in orders} | {row["paid_at"] for row in payments})
    n: int | None = None
    quiet: datetime | None = None
    seen: list[int] = []
    times: Counter[int] = Counter()
    for at in [*moments, None]:
        if quiet is not None and (at is None or quiet <= at):
            yield "quiet", {"k": k, "after": n, "at": quiet}
            n, quiet = 0, None
        for row in (row for row in orders if row["at"] == at):
            n, quiet = (n or 0) + 1, row["at"] + 6 * MINUTE
            seen.append(row["id"])
            times[row["v"]] += 1
            told = {"id": row["id"], "n": n, "times": times[row["v"]], "name": NAMES.get(k), "seen": ""}
            yield "told", {"k": k, **told}
        for row in (row for row in payments if row["paid_at"] == at):
            told = {"id": row["pid"], "n": n, "times": None, "name": None, "seen": " ".join(map(str, seen))}
            yield "told", {"k": k, **told}
            seen = []


def layered_events(dice: random.Random) -> list[Event]:
    kinds: dict[str, tuple[Row, str]] = {
        "orders": ({"id": "id", "v": "value"}, "at"),
        "payments": ({"pid": "id", "w": "value"}, "paid_at"),
        "blocks": ({"bid": "id", "why": "value"}, "blocked_at"),
    }
    names: list[Event] = [("names", {"k": k, "name": name, "since": 1}) for k, name in NAMES.items()]
    return names + mixed(dice, dice.choice([10, 30, 50]), kinds, end=True)


def near_three(orders: Sequence[Row], others: Sequence[tuple[Sequence[Row], str, Row]], how: str) -> list[Row]:
    """One join after the other, each seen from the orders. others: rows, their time, and a row without values."""
    found = list(orders)
    for rows, time, nothing in others:
        joined = []
        for row in found:
            near = [other for other in rows if meets(row, other, ("at", time), NEAR)]
            if how == "left":
                joined += [{**other, **row} for other in near] or [{**nothing, **row}]
            elif bool(near) == (how == "semi"):
                joined.append(row)
        found = joined
    return found


def layered_expected(events: Sequence[Event]) -> dict[str, Counter[Any]]:
    orders, payments, blocks = (rows_of(events, name) for name in ("orders", "payments", "blocks"))
    of_key = grouped(orders, lambda row: row["k"])
    tens = [
        {**window, "n": len(rows), "s": sum(row["v"] for row in rows), "last": max(row["id"] for row in rows)}
        for window, rows in windowed(orders, "k", "at", lambda at: hops(at, 10 * MINUTE, 10 * MINUTE))
    ]
    hours = windowed(tens, "k", "window_start", lambda at: hops(at, 60 * MINUTE, 60 * MINUTE))
    found: dict[str, list[Row]] = {
        "hours": [
            {**window, "n": sum(each["n"] for each in rows), "most": max(each["s"] for each in rows)}
            for window, rows in hours
        ]
    }
    by_start = grouped(tens, lambda row: row["window_start"])

    def values(row: Row) -> tuple[int, int]:
        return row["n"], row["s"]

    found["best-row_number"] = ranked(tens, "window_start", lambda row: (-row["n"], -row["s"], -row["last"]), 2)
    for rank in ("rank", "dense_rank"):
        found[f"best-{rank}"] = [
            row | {"rank": place}
            for rows in by_start.values()
            for row in rows
            if (place := _place([values(other) for other in rows], values(row), rank)) <= 2
        ]
    found["tops"] = [
        row | {"window_start": start, "window_end": start + timedelta(minutes=30), "rank": place}
        for (_, start), rows in grouped(orders, lambda row: (row["k"], half_hour(row["at"]))).items()
        for row in rows
        if (place := _place([other["v"] for other in rows], row["v"], "dense_rank")) <= 2
    ]
    pairs = [
        {"k": one["k"], "paid": one["v"] * other["w"], "met": max(one["at"], other["paid_at"])}
        for one, other in met(orders, payments)
    ]
    found["paid"] = [
        {**window, "n": len(rows), "s": sum(row["paid"] for row in rows)}
        for window, rows in windowed(pairs, "k", "met", lambda at: hops(at, 30 * MINUTE, 30 * MINUTE))
    ]
    nothing: tuple[Row, Row] = (dict.fromkeys(("pid", "w", "paid_at")), dict.fromkeys(("bid", "why", "blocked_at")))
    for how in THREE:
        others = [(payments, "paid_at", nothing[0]), (blocks, "blocked_at", nothing[1])]
        found[f"three-{how}"] = near_three(orders, others, how)
    paid_by = grouped(payments, lambda row: row["k"])
    told = [
        each for k in of_key.keys() | paid_by.keys() for each in told_by_hand(k, of_key.get(k, []), paid_by.get(k, []))
    ]
    found |= {name: [row for output, row in told if output == name] for name in ("told", "quiet")}
    found["clocks"] = [{"k": k, "n": len(rows)} for k, rows in of_key.items()]
    firsts = grouped(distinct_by(orders, lambda row: (row["k"], row["v"])), lambda row: row["k"])
    found["firsts"] = [{"k": k, "n": len(rows)} for k, rows in firsts.items()]
    found["top"] = ranked(orders, "k", lambda row: (-row["v"], row["id"]), 2)
    found["newest"] = list(greatest_by(orders, lambda row: row["k"], lambda row: (row["at"], row["id"])).values())
    found["both"] = [{**other, **one} for one, other in met(orders, payments)]
    found["steps"], found["threes"] = [], []
    for k, rows in of_key.items():
        rows.sort(key=lambda row: row["at"])
        sums = [sum(row["v"] for row in rows[: place + 1]) for place in range(len(rows))]
        found["steps"] += [row | {"nth": place + 1, "s": sums[place]} for place, row in enumerate(rows)]
        for begin in range(0, len(rows) - 2, 3):
            three = rows[begin : begin + 3]
            ends = {"window_start": three[0]["at"], "window_end": three[-1]["at"], "k": k}
            found["threes"].append(ends | {"s": sum(row["v"] for row in three)})
    held = [(row, [other for _, other in met([row], blocks) if other["blocked_at"] <= row["at"]]) for row in orders]
    found["then"] = [{**max(others, key=lambda row: row["blocked_at"]), **row} for row, others in held if others]
    return {name: counted(rows) for name, rows in found.items()}


def _place(values: Sequence[Any], own: Any, rank: str) -> int:
    greater = [value for value in values if value > own]
    return 1 + len(set(greater) if rank == "dense_rank" else greater)


_TENS = (
    "(SELECT w.start AS window_start, w.end AS window_end, k, count(*) AS n, sum(v) AS s, max(id) AS last FROM "
    "(SELECT *, window(at, '10 minutes') AS w FROM orders) GROUP BY w, k)"
)
_BEST = (
    "SELECT * FROM (SELECT *, CAST({rank}() OVER (PARTITION BY window_start ORDER BY {order}) AS long) AS rank FROM "
    + _TENS
    + ") WHERE rank <= 2"
)
_THREE = "o.k = {side}.k AND {side}.{time} BETWEEN o.at - INTERVAL 6 MINUTES AND o.at + INTERVAL 9 MINUTES"
_PAID, _BLOCKED = _THREE.format(side="p", time="paid_at"), _THREE.format(side="b", time="blocked_at")
LAYERED_BATCH = {
    "hours": (
        "SELECT w.start AS window_start, w.end AS window_end, k, sum(n) AS n, max(s) AS most FROM (SELECT *, "
        f"window(window_start, '1 hour') AS w FROM {_TENS}) GROUP BY w, k"
    ),
    "best-row_number": _BEST.format(rank="row_number", order="n DESC, s DESC, last DESC"),
    "best-rank": _BEST.format(rank="rank", order="n DESC, s DESC"),
    "best-dense_rank": _BEST.format(rank="dense_rank", order="n DESC, s DESC"),
    "tops": (
        "SELECT * FROM (SELECT *, w.start AS window_start, w.end AS window_end, CAST(dense_rank() OVER (PARTITION BY "
        "k, w ORDER BY v DESC) AS long) AS rank FROM (SELECT *, window(at, '30 minutes') AS w FROM orders)) "
        "WHERE rank <= 2"
    ),
    "paid": (
        "SELECT w.start AS window_start, w.end AS window_end, k, count(*) AS n, sum(paid) AS s FROM (SELECT o.k, "
        "v * w AS paid, window(greatest(at, paid_at), '30 minutes') AS w FROM orders o JOIN payments p ON o.k = p.k) "
        "GROUP BY w, k"
    ),
    "three-left": (
        "SELECT o.*, p.pid, p.w, p.paid_at, b.bid, b.why, b.blocked_at FROM orders o LEFT JOIN payments p ON "
        f"{_PAID} LEFT JOIN blocks b ON {_BLOCKED}"
    ),
    **{
        f"three-{how}": (
            f"SELECT o.* FROM orders o LEFT {how} JOIN payments p ON {_PAID} LEFT {how} JOIN blocks b ON {_BLOCKED}"
        )
        for how in ("semi", "anti")
    },
    "clocks": "SELECT k, count(*) AS n FROM orders GROUP BY k",
    "firsts": "SELECT k, count(distinct v) AS n FROM orders GROUP BY k",
    "both": "SELECT o.*, p.pid, p.w, p.paid_at FROM orders o JOIN payments p ON o.k = p.k",
}

WHOLE = dict.fromkeys(["hours", "tops", "paid", *(f"best-{rank}" for rank in RANKS)], "window_start")

LAYERS = (Graph("layered", layered, layered_events, layered_expected, LAYERED_BATCH, together=WHOLE),)
