"""Pipelines that hold every operator, with the events that they get, and what plain Python and plain Spark say of them.

near      what goes by event time: deduplicate, join, a window behind both, a join behind a left join
kept      what replaces rows: aggregate (by key, of all rows), latest, top_n, join of what both hold now, a table's
          join, and chains of these
windows   tumbling, hopping, session; given once, on every update, again for late rows; process with timers
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tests.spark.random_cuts import Event, Graph, Row, counted
from tests.spark.reference import (
    distinct_by,
    greatest_by,
    hops,
    interval_join,
    ranked,
    sessions,
    totals_of,
    windowed,
)
from tests.spark.small_pipeline import sources
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

__all__ = ["GRAPHS"]

ORDERS = "k string, id long, v long, at timestamp"
PAYMENTS = "k string, pid long, w long, paid_at timestamp"
REFUNDS = "k string, rid long, back_at timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NEAR = (-6 * MINUTE, 9 * MINUTE)
"""Rows lie at multiples of 3 minutes: some pairs are just as far apart as the bounds."""
BACK = (-15 * MINUTE, 15 * MINUTE)


def mixed(dice: random.Random, count: int, kinds: dict[str, tuple[Row, str]], end: bool) -> list[Event]:
    """Rows of several sources in an order in which none comes later than the watermark allows; some of them twice.

    kinds: source → its number column and value column (a row of these names), and its time column.
    """
    found: list[Event] = []
    for number in range(count):
        source, (columns, time) = dice.choice(list(kinds.items()))
        at = START + number * 3 * MINUTE + timedelta(seconds=dice.choice([0, 0, 30, 0.000001]))
        row: Row = {"k": dice.choice(["a", "b", "ü`.", "", None])}
        row |= {name: number if kind == "id" else dice.randint(0, 9) for name, kind in columns.items()}
        found.append((source, row | {time: at}))
        if dice.random() < 0.2:
            found.append((source, dict(found[-1][1])))
    late = [place + dice.choice([0, 0, 0, 3]) for place in range(len(found))]
    found = [event for _, event in sorted(zip(late, found, strict=True), key=lambda pair: pair[0])]
    if end:
        ends = {name: START + timedelta(days=3) for _, name in kinds.values()}
        for source, (columns, time) in kinds.items():
            found.append((source, {"k": "end", **dict.fromkeys(columns, -1), time: ends[time]}))
    return found


def rows_of(events: Sequence[Event], source: str) -> list[Row]:
    return [row for name, row in events if name == source and row["k"] != "end"]


# -- what goes by event time ---------------------------------------------------------------------------


def near(pipeline: Pipeline) -> None:
    orders = sources(pipeline, ORDERS, "orders", event_time="at", watermark="20 min")
    payments = sources(pipeline, PAYMENTS, "payments", event_time="paid_at", watermark="20 min")
    refunds = sources(pipeline, REFUNDS, "refunds", event_time="back_at", watermark="20 min")
    once = orders.deduplicate(by="id", within="1 hour", uid="once")
    once.sink("once", DeltaAppend("tables/once"))
    orders.deduplicate(by=["k", "id"], uid="ever").sink("ever", DeltaAppend("tables/ever"))
    for how in ("inner", "left", "full"):
        joined = orders.join(payments, on="k", within=("-6 min", "9 min"), how=how, uid=how)
        joined.sink(how, DeltaAppend(f"tables/{how}"))
        if how == "left":
            times = ("at", "back_at")
            twice = joined.join(refunds, on="k", within="15 min", how="left", event_time=times, uid="twice")
            twice.sink("twice", DeltaAppend("tables/twice"))
    paid = once.join(payments, on="k", within=("-6 min", "9 min"), how="left", uid="paid")
    hours = paid.window(tumbling="1 h", by="k", event_time="at", uid="hours", n="count(*)", p="count(pid)", s="sum(v)")
    hours.sink("hours", DeltaAppend("tables/hours"))


def near_events(dice: random.Random) -> list[Event]:
    kinds: dict[str, tuple[Row, str]] = {
        "orders": ({"id": "id", "v": "value"}, "at"),
        "payments": ({"pid": "id", "w": "value"}, "paid_at"),
        "refunds": ({"rid": "id"}, "back_at"),
    }
    found = mixed(dice, dice.choice([10, 30, 50]), kinds, end=True)
    again = [row for source, row in found if source == "orders" and dice.random() < 0.2 and row["k"] != "end"]
    for row in again:  # the same order much later is none of the copies
        late = {**row, "at": row["at"] + 90 * MINUTE}
        place = next(n for n, (_, other) in enumerate(found) if time_of(other) >= late["at"])
        found.insert(place, ("orders", late))
    return found


def time_of(row: Row) -> datetime:
    return next(value for value in row.values() if isinstance(value, datetime))


def meets(one: Row, other: Row, times: tuple[str, str], bounds: tuple[timedelta, timedelta]) -> bool:
    known = one["k"] is not None and one["k"] == other["k"]
    return known and bounds[0] <= other[times[1]] - one[times[0]] <= bounds[1]


def near_expected(events: Sequence[Event]) -> dict[str, Counter[Any]]:
    orders, payments, refunds = (rows_of(events, name) for name in ("orders", "payments", "refunds"))
    nobody = (
        {"id": None, "v": None, "at": None},
        {"pid": None, "w": None, "paid_at": None},
        {"rid": None, "back_at": None},
    )

    def paid(rows: Sequence[Row], how: str) -> list[Row]:
        return interval_join(
            rows, payments, lambda one, other: meets(one, other, ("at", "paid_at"), NEAR), how, nobody[:2]
        )

    left = paid(orders, "left")
    twice = interval_join(
        left, refunds, lambda one, other: meets(one, other, ("at", "back_at"), BACK), "left", (nobody[0], nobody[2])
    )
    once = distinct_by(orders, lambda row: (row["id"], row["at"]))
    first = greatest_by(orders, lambda row: (row["k"], row["id"]), lambda row: START - row["at"])
    hours = windowed(paid(once, "left"), "k", "at", lambda at: hops(at, 60 * MINUTE, 60 * MINUTE))
    return {
        "once": counted(once),
        "ever": counted(list(first.values())),
        "inner": counted(paid(orders, "inner")),
        "left": counted(left),
        "full": counted(paid(orders, "full")),
        "twice": counted(twice),
        "hours": counted(
            [
                {**window, "n": len(rows), "p": sum(r["pid"] is not None for r in rows), "s": sum(r["v"] for r in rows)}
                for window, rows in hours
            ]
        ),
    }


_ON = "o.k = p.k AND p.paid_at BETWEEN o.at - INTERVAL 6 MINUTES AND o.at + INTERVAL 9 MINUTES"
_PAID = "SELECT {k} AS k, o.id, o.v, o.at, p.pid, p.w, p.paid_at FROM orders o {how} JOIN payments p ON " + _ON
NEAR_BATCH = {
    "once": "SELECT DISTINCT * FROM orders",
    "inner": _PAID.format(k="o.k", how="INNER"),
    "left": _PAID.format(k="o.k", how="LEFT"),
    "full": _PAID.format(k="coalesce(o.k, p.k)", how="FULL"),
    "hours": (
        "SELECT w.start AS window_start, w.end AS window_end, k, n, p, s FROM (SELECT window(at, '1 hour') AS w, k, "
        "count(*) AS n, count(pid) AS p, sum(v) AS s FROM ("
        + _PAID.format(k="o.k", how="LEFT").replace("orders o", "(SELECT DISTINCT * FROM orders) o")
        + ") GROUP BY 1, 2)"
    ),
}


# -- what replaces rows --------------------------------------------------------------------------------


def kept(pipeline: Pipeline) -> None:
    orders = sources(pipeline, ORDERS, "orders")
    payments = sources(pipeline, PAYMENTS, "payments")
    calls = {
        "n": "count(*)", "s": "sum(v)", "m": "avg(v)", "d": "count(distinct v)", "lo": "min(v)", "hi": "max_by(id, v)",
        "l": "collect_list(v, 3)",
    }  # fmt: skip
    totals = orders.aggregate(by="k", uid="totals", **calls)
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
    plain = orders.aggregate(by=["k", "v"], uid="plain", n="count(*)", last="max(at)", s="sum(id)")
    plain.sink("plain", DeltaUpsert("tables/plain", keys=["k", "v"]))
    distinct = {"ks": "count(distinct k)", "even_ks": "count(distinct k) filter (where v % 2 = 0)"}
    sizes = plain.aggregate(by="n", uid="sizes", keys="count(*)", m="avg(v)", odd="bool_or(v % 2 = 1)", **distinct)
    sizes.sink("sizes", DeltaUpsert("tables/sizes", keys=["n"]))
    alone = {name: call for name, call in calls.items() if name in "nsmd"}
    orders.aggregate(by=[], uid="all", **alone).sink("all", DeltaUpsert("tables/all", keys=["n"]))
    orders.aggregate(by=[], uid="quick", n="count(*)", most="max(v)").sink(
        "quick", DeltaUpsert("tables/quick", keys=["n"])
    )
    whole = plain.aggregate(by=[], uid="whole", keys="count(*)", s="sum(n)", ks="count(distinct k)")
    whole.sink("whole", DeltaUpsert("tables/whole", keys=["s"]))

    best = plain.top_n(2, by="k", order_by=["s desc", "v asc"], uid="best")
    best.sink("best", DeltaUpsert("tables/best", keys=["k", "rank"]))
    plain.latest(by="v", order_by=["s", "k"], uid="most").sink("most", DeltaUpsert("tables/most", keys=["v"]))
    orders.top_n(2, by="k", order_by=["v desc", "id asc"], uid="top").sink(
        "top", DeltaUpsert("tables/top", keys=["k", "rank"])
    )
    newest = orders.latest(by="k", order_by=["at", "id"], uid="newest")
    newest.sink("newest", DeltaUpsert("tables/newest", keys=["k"]))
    both = newest.join(payments.latest(by="k", order_by="paid_at", uid="last-payment"), on="k", how="left", uid="both")
    both.sink("both", DeltaUpsert("tables/both", keys=["k"]))
    pairs = orders.join(payments, on="k", uid="pairs")
    pairs.aggregate(by="k", uid="counts", n="count(*)", s="sum(v * w)").sink(
        "counts", DeltaUpsert("tables/counts", keys=["k"])
    )
    orders.join(table="tables/customers", on="k", how="left", uid="named").sink("named", DeltaAppend("tables/named"))

    @pipeline.stage(newest)
    def even(rows: Any) -> Any:
        return rows.where("v % 2 = 0").withColumn("band", rows.v % 3)

    even.sink("even", DeltaUpsert("tables/even", keys=["k"]))
    bands = even.aggregate(by="band", uid="bands", n="count(*)", s="sum(v)", m="avg(v)")
    bands.sink("bands", DeltaUpsert("tables/bands", keys=["band"]))


def customers(root: Path) -> None:
    table = pa.table({"k": ["a", "ü`.", "x"], "name": ["Ann", "Über", "Xi"]})
    write_deltalake(str(root / "tables/customers"), table)


def kept_events(dice: random.Random) -> list[Event]:
    kinds: dict[str, tuple[Row, str]] = {
        "orders": ({"id": "id", "v": "value"}, "at"),
        "payments": ({"pid": "id", "w": "value"}, "paid_at"),
    }
    return mixed(dice, dice.choice([10, 30, 50]), kinds, end=False)


def kept_expected(events: Sequence[Event]) -> dict[str, Counter[Any]]:
    orders, payments = rows_of(events, "orders"), rows_of(events, "payments")
    names = {"a": "Ann", "ü`.": "Über"}
    newest = greatest_by(orders, lambda row: row["k"], lambda row: (row["at"], row["id"]))
    last = greatest_by(payments, lambda row: row["k"], lambda row: row["paid_at"])
    nobody = {"pid": None, "w": None, "paid_at": None}
    both = [{**nobody, **(last.get(row["k"], {}) if row["k"] is not None else {}), **row} for row in newest.values()]
    even = [{**row, "band": row["v"] % 3} for row in newest.values() if row["v"] % 2 == 0]
    plain = grouped(orders, lambda row: (row["k"], row["v"]))
    plains = [
        {"k": k, "v": v, "n": len(r), "last": max(o["at"] for o in r), "s": sum(o["id"] for o in r)}
        for (k, v), r in plain.items()
    ]
    most = greatest_by(plains, lambda row: row["v"], lambda row: (row["s"], row["k"] is not None, row["k"] or ""))
    sizes: dict[int, list[tuple[Any, int]]] = defaultdict(list)
    for key, rows in plain.items():
        sizes[len(rows)].append(key)
    pairs = [(o, p) for o in orders for p in payments if o["k"] is not None and o["k"] == p["k"]]
    counts = grouped(pairs, lambda pair: pair[0]["k"])
    alone = [] if not orders else [{name: each for name, each in total("", orders).items() if name in "nsmd"}]
    quick = [{"n": len(orders), "most": max(row["v"] for row in orders)}] if orders else []
    known = {k for k, _ in plain if k is not None}
    return {
        "all": counted(alone),
        "quick": counted(quick),
        "whole": counted([{"keys": len(plain), "s": len(orders), "ks": len(known)}] if orders else []),
        "totals": counted([total(k, rows) for k, rows in grouped(orders, lambda row: row["k"]).items()]),
        "plain": counted(plains),
        "best": counted(ranked(plains, "k", lambda row: (-row["s"], row["v"]), 2)),
        "most": counted(list(most.values())),
        "sizes": counted(
            [
                {
                    "n": n,
                    "keys": len(keys),
                    "m": sum(v for _, v in keys) / len(keys),
                    "ks": len({k for k, _ in keys if k is not None}),
                    "even_ks": len({k for k, v in keys if k is not None and v % 2 == 0}),
                    "odd": any(v % 2 for _, v in keys),
                }
                for n, keys in sizes.items()
            ]
        ),
        "top": counted(ranked(orders, "k", lambda row: (-row["v"], row["id"]), 2)),
        "newest": counted(list(newest.values())),
        "both": counted(both),
        "counts": counted([{"k": k, "n": len(r), "s": sum(o["v"] * p["w"] for o, p in r)} for k, r in counts.items()]),
        "named": counted([{**row, "name": names.get(row["k"])} for row in orders]),
        "even": counted(even),
        "bands": counted(
            [
                {"band": band, "n": n, "s": s, "m": m}
                for band, (n, s, m, _) in totals_of(even, lambda row: row["band"], "v").items()
            ]
        ),
    }


def grouped(rows: Sequence[Any], key: Any) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def total(key: Any, rows: Sequence[Row]) -> Row:
    values = [row["v"] for row in rows]
    n, s, m, d = totals_of(rows, lambda _: key, "v")[key]
    return {
        "k": key, "n": n, "s": s, "m": m, "d": d, "lo": min(values), "l": sorted(values)[:3],
        "hi": max((row["v"], row["id"]) for row in rows)[1],
    }  # fmt: skip


KEPT_BATCH = {
    "quick": "SELECT count(*) AS n, max(v) AS most FROM orders",
    "plain": "SELECT k, v, count(*) AS n, max(at) AS last, sum(id) AS s FROM orders GROUP BY k, v",
    "sizes": (
        "SELECT n, count(*) AS keys, avg(v) AS m, count(distinct k) AS ks, count(distinct k) FILTER (WHERE v "
        "% 2 = 0) AS even_ks, bool_or(v % 2 = 1) AS odd FROM "
        "(SELECT k, v, count(*) AS n FROM orders GROUP BY k, v) GROUP BY n"
    ),
    "top": (
        "SELECT k, id, v, at, rank FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY v DESC, id) AS rank "
        "FROM orders) WHERE rank <= 2"
    ),
    "best": (
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY s DESC, v) AS rank FROM (SELECT k, v, "
        "count(*) AS n, max(at) AS last, sum(id) AS s FROM orders GROUP BY k, v)) WHERE rank <= 2"
    ),
    "newest": ("SELECT row.* FROM (SELECT max_by(struct(*), struct(at, id)) AS row FROM orders GROUP BY k)"),
    "counts": "SELECT o.k, count(*) AS n, sum(o.v * p.w) AS s FROM orders o JOIN payments p ON o.k = p.k GROUP BY o.k",
}


# -- windows -------------------------------------------------------------------------------------------

WINDOWS: dict[str, dict[str, Any]] = {
    "tumbling-once": {"tumbling": "10 min"},
    "tumbling-again": {"tumbling": "10 min", "allowed_lateness": "30 min"},
    "hopping-live": {"hopping": ("15 min", "10 min"), "emit": "update"},
    "session-once": {"session": "6 min"},
    "session-live": {"session": "6 min", "emit": "update"},
    "session-again": {"session": "6 min", "allowed_lateness": "30 min"},
}
CALLS = {"n": "count(*)", "s": "sum(v)", "m": "avg(v)", "d": "count(distinct v)", "last": "max_by(v, id)"}


def windows(pipeline: Pipeline) -> None:
    # Rows lie at multiples of 3 minutes, so sessions end just where others begin, and where the watermark stands.
    orders = sources(pipeline, ORDERS, "orders", event_time="at", watermark="21 min")
    # The same rows, but by a watermark that does not wait for those that come late: allowed lateness must do.
    hasty = pipeline.source("hasty", Files("landing/orders/*.json", schema=ORDERS), event_time="at")
    for name, given in WINDOWS.items():
        window = (hasty if name.endswith("again") else orders).window(**given, by="k", uid=name, **CALLS)
        path, keys = f"tables/{name}", ["window_start", "k"]
        window.sink(name, DeltaAppend(path) if name.endswith("once") else DeltaUpsert(path, keys=keys))
    told = orders.process(
        by="k",
        state="n long, seen array<long>",
        output="k string, said string, at timestamp",
        in_order=True,
        uid="told",
    )(speaks)
    told.sink("told", DeltaAppend("tables/told"))


def speaks(key: Row, rows: Any, state: Any, timers: Any) -> Iterator[Row]:
    """Says when it has been quiet for 7 minutes, and what it has heard by then; a 9 is announced as if it were past."""
    for fired in timers.fired:
        yield {"k": key["k"], "said": f"{fired.name} after {state.n}: {state.seen}", "at": fired.at}
        if fired.name == "quiet":
            state.clear()
    for row in rows.to_pylist():
        state.n = (state.n or 0) + 1
        state.seen.append(row["id"])
        timers.event(row["at"] + timedelta(minutes=7), "quiet")
        if row["v"] == 9:
            timers.event(row["at"] - timedelta(minutes=1), "nine")


def spoken(rows: Sequence[Row]) -> Iterator[Row]:
    """The same for the rows of one key, by hand."""
    heard: list[int] = []
    quiet: datetime | None = None
    for at in sorted({row["at"] for row in rows}):
        if quiet is not None and quiet <= at:
            yield {"k": rows[0]["k"], "said": f"quiet after {len(heard)}: {heard}", "at": quiet}
            heard = []
        now = sorted((row for row in rows if row["at"] == at), key=lambda row: row["id"])
        heard, quiet = heard + [row["id"] for row in now], at + 7 * MINUTE
        if any(row["v"] == 9 for row in now):
            yield {"k": rows[0]["k"], "said": f"nine after {len(heard)}: {heard}", "at": at - MINUTE}
    if quiet is not None:
        yield {"k": rows[0]["k"], "said": f"quiet after {len(heard)}: {heard}", "at": quiet}


def window_events(dice: random.Random) -> list[Event]:
    kinds: dict[str, tuple[Row, str]] = {"orders": ({"id": "id", "v": "value"}, "at")}
    return mixed(dice, dice.choice([10, 30, 50]), kinds, end=True)


def windows_expected(events: Sequence[Event]) -> dict[str, Counter[Any]]:
    orders = rows_of(events, "orders")
    found = {
        "tumbling": windowed(orders, "k", "at", lambda at: hops(at, 10 * MINUTE, 10 * MINUTE)),
        "hopping": windowed(orders, "k", "at", lambda at: hops(at, 15 * MINUTE, 10 * MINUTE)),
        "session": sessions(orders, "k", "at", 6 * MINUTE),
    }

    def result(window: Row, rows: Sequence[Row]) -> Row:
        n, s, m, d = totals_of(rows, lambda _: 0, "v")[0]
        return {**window, "n": n, "s": s, "m": m, "d": d, "last": max((row["id"], row["v"]) for row in rows)[1]}

    spoke = [each for rows in grouped(orders, lambda row: row["k"]).values() for each in spoken(rows)]
    return {"told": counted(spoke)} | {
        name: counted([result(*window) for window in found[name.partition("-")[0]]]) for name in WINDOWS
    }


_WINDOW = (
    "SELECT w.start AS window_start, w.end AS window_end, k, n, s, m, d, last FROM (SELECT {window} AS w, k, "
    "count(*) AS n, sum(v) AS s, avg(v) AS m, count(distinct v) AS d, max_by(v, id) AS last FROM orders GROUP BY 1, 2)"
)
WINDOWS_BATCH = {
    "tumbling-once": _WINDOW.format(window="window(at, '10 minutes')"),
    "hopping-live": _WINDOW.format(window="window(at, '15 minutes', '10 minutes')"),
    "session-again": _WINDOW.format(window="session_window(at, '6 minutes')"),
}


GRAPHS = (
    Graph("near", near, near_events, near_expected, NEAR_BATCH),
    Graph("kept", kept, kept_events, kept_expected, KEPT_BATCH, customers),
    Graph(
        "windows", windows, window_events, windows_expected, WINDOWS_BATCH, together={"tumbling-once": "window_start"}
    ),
)
