"""What waits for the watermark and takes rows in the order of event time, and what plain Python and Spark say of it.

ordered   rows over those before them (running values, the last three, lag, numbers); windows of two and of three rows;
          the first rows of each half hour; a union
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from tests.spark.graphs import ORDERS, grouped, mixed, rows_of
from tests.spark.random_cuts import Event, Graph, Row, counted
from tests.spark.small_pipeline import sources
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend

__all__ = ["IN_ORDER"]

HALF_HOUR = timedelta(minutes=30)
RUNNING = {
    "total": "sum(v)", "mean": "avg(v)", "least": "min(v)", "odd": "count_if(v % 2 = 1)", "before": "lag(v)",
    "third": "lag(id, 3)", "nth": "row_number()",
}  # fmt: skip


def ordered(pipeline: Pipeline) -> None:
    orders = sources(pipeline, ORDERS, "orders", event_time="at", watermark="20 min")
    returns = sources(pipeline, ORDERS, "returns", event_time="at", watermark="20 min")
    orders.over(by="k", uid="running", **RUNNING).sink("running", DeltaAppend("tables/running"))
    recent = orders.over(by="k", rows=3, uid="recent", total="sum(v)", most="max(id)")
    recent.sink("recent", DeltaAppend("tables/recent"))
    both = orders.union(returns, name="both")
    both.sink("both", DeltaAppend("tables/both"))
    threes = both.window(count=3, by="k", uid="threes", n="count(*)", s="sum(v)", d="count(distinct v)", m="avg(id)")
    threes.sink("threes", DeltaAppend("tables/threes"))
    pairs = both.window(count=2, by="k", uid="pairs", n="count(*)", s="sum(v)", most="max(id)", m="avg(v)")
    pairs.sink("pairs", DeltaAppend("tables/pairs"))
    tops = both.top_n(2, tumbling="30 min", by="k", order_by="v desc", rank="rank", uid="tops")
    tops.sink("tops", DeltaAppend("tables/tops"))


def half_hour(at: datetime) -> datetime:
    return at - timedelta(minutes=at.minute % 30, seconds=at.second, microseconds=at.microsecond)


def ordered_events(dice: random.Random) -> list[Event]:
    kinds: dict[str, tuple[Row, str]] = {
        "orders": ({"id": "id", "v": "value"}, "at"),
        "returns": ({"id": "id", "v": "value"}, "at"),
    }
    return mixed(dice, dice.choice([10, 30, 50]), kinds, end=True)


def ordered_expected(events: Sequence[Event]) -> dict[str, Counter[Any]]:
    orders, both = rows_of(events, "orders"), rows_of(events, "orders") + rows_of(events, "returns")
    running, recent, threes, pairs = [], [], [], []
    for rows in grouped(orders, lambda row: row["k"]).values():
        rows.sort(key=lambda row: row["at"])
        for place, row in enumerate(rows):
            so_far = [each["v"] for each in rows[: place + 1]]
            running.append(
                row
                | {
                    "total": sum(so_far),
                    "mean": sum(so_far) / len(so_far),
                    "least": min(so_far),
                    "odd": sum(v % 2 for v in so_far),
                    "before": so_far[-2] if place else None,
                    "third": rows[place - 3]["id"] if place >= 3 else None,
                    "nth": place + 1,
                }
            )
            last = rows[max(0, place - 2) : place + 1]
            recent.append(row | {"total": sum(each["v"] for each in last), "most": max(each["id"] for each in last)})
    for k, rows in grouped(both, lambda row: row["k"]).items():
        rows.sort(key=lambda row: row["at"])
        for begin in range(0, len(rows) - 2, 3):
            window = rows[begin : begin + 3]
            values = [row["v"] for row in window]
            ends = {"window_start": window[0]["at"], "window_end": window[-1]["at"], "k": k}
            ids = [row["id"] for row in window]
            threes.append(ends | {"n": 3, "s": sum(values), "d": len(set(values)), "m": sum(ids) / 3})
        for begin in range(0, len(rows) - 1, 2):
            window = rows[begin : begin + 2]
            values = [row["v"] for row in window]
            ends = {"window_start": window[0]["at"], "window_end": window[1]["at"], "k": k}
            most = max(row["id"] for row in window)
            pairs.append(ends | {"n": 2, "s": sum(values), "most": most, "m": sum(values) / 2})
    tops = [
        row | {"window_start": start, "window_end": start + HALF_HOUR, "rank": place}
        for (_, start), rows in grouped(both, lambda row: (row["k"], half_hour(row["at"]))).items()
        for row in rows
        if (place := 1 + sum(other["v"] > row["v"] for other in rows)) <= 2
    ]
    found = {"running": running, "recent": recent, "both": both, "threes": threes, "pairs": pairs, "tops": tops}
    return {name: counted(rows) for name, rows in found.items()}


ORDERED_BATCH = {
    "both": "SELECT * FROM orders UNION ALL SELECT * FROM returns",
    "recent": (
        "SELECT *, sum(v) OVER (PARTITION BY k ORDER BY at ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS total, "
        "max(id) OVER (PARTITION BY k ORDER BY at ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS most FROM orders"
    ),
    "running": (
        "SELECT *, sum(v) OVER so_far AS total, avg(v) OVER so_far AS mean, min(v) OVER so_far AS least, "
        "count_if(v % 2 = 1) OVER so_far AS odd, lag(v) OVER by_time AS before, lag(id, 3) OVER by_time AS third, "
        "CAST(row_number() OVER by_time AS long) AS nth FROM orders WINDOW by_time AS (PARTITION BY k ORDER BY at), "
        "so_far AS (PARTITION BY k ORDER BY at ROWS UNBOUNDED PRECEDING)"
    ),
    "threes": (
        "SELECT min(at) AS window_start, max(at) AS window_end, k, count(*) AS n, sum(v) AS s, count(distinct v) AS d, "
        "avg(id) AS m FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY at) - 1 AS place FROM "
        "(SELECT * FROM orders UNION ALL SELECT * FROM returns)) GROUP BY k, place DIV 3 HAVING count(*) = 3"
    ),
    "tops": (
        "SELECT * FROM (SELECT *, w.start AS window_start, w.end AS window_end, CAST(rank() OVER (PARTITION BY k, w "
        "ORDER BY v DESC) AS long) AS rank FROM (SELECT *, window(at, '30 minutes') AS w FROM (SELECT * FROM orders "
        "UNION ALL SELECT * FROM returns))) WHERE rank <= 2"
    ),
}

IN_ORDER = (
    Graph("ordered", ordered, ordered_events, ordered_expected, ORDERED_BATCH, together={"tops": "window_start"}),
)
