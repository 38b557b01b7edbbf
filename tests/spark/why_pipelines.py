"""Random pipelines for `tidegate why`, and what plain Python says that they make of any choice of their records.

sums     rows by key and value, then totals of these, behind a gate that sets rows aside
latest   the last row of each key, by a number
firsts   the first row of each key
pairs    orders and their customers, whose key has another name
ranked   the two greatest rows of each key
hours    windows of an hour
odd      a window's rows only count in pairs, by a stage of the user's own: a record may make another one necessary
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

__all__ = ["KINDS", "Kind", "Row", "records_of"]

Row = dict[str, Any]
Records = Mapping[str, Sequence[Row]]
"""By source, its records in the order of their checkpoints."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = "k string, id long, v long, at timestamp"
CUSTOMERS = "name string, city string"


@dataclass(frozen=True)
class Kind:
    """A pipeline with one sink, and its table in plain Python."""

    build: Callable[[Pipeline], None]
    made: Callable[[Records], list[Row]]
    keys: tuple[str, ...]
    """What identifies a row of the table."""
    columns: tuple[str, ...]


def records_of(dice: random.Random, kind: str) -> list[dict[str, list[Row]]]:
    """By checkpoint and source, the records that arrive."""
    cuts: list[dict[str, list[Row]]] = []
    id = 0
    for cut in range(dice.choice([2, 3, 4])):
        orders: list[Row] = []
        for _ in range(dice.randint(1, 5)):
            id += 1
            at = BEGIN + timedelta(minutes=60 * cut + dice.randint(0, 40))
            orders.append({"k": dice.choice(["a", "b", None]), "id": id, "v": dice.randint(-2, 5), "at": at})
        if kind == "firsts":  # which of two of one checkpoint is the first is not said
            orders = list({row["k"]: row for row in orders}.values())
        customers: list[Row] = []
        if kind == "pairs" and (cut == 0 or dice.random() < 0.5):
            names = ["a", "b", "c"] if cut == 0 else [f"late {cut}"]
            customers = [{"name": name, "city": dice.choice(["Graz", "Wien"])} for name in names]
        cuts.append({"orders": orders, "customers": customers})
    return cuts


def _orders(pipeline: Pipeline, **options: Any) -> Any:
    return pipeline.source("orders", Files("landing/orders/*.json", schema=ORDERS), **options)


def _grouped(rows: Sequence[Row], *names: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


# -- sums -------------------------------------------------------------------------------------------------


def _build_sums(pipeline: Pipeline) -> None:
    good = _orders(pipeline).gate(Expectations("positive", on_failure="quarantine"), name="good")
    renamed = good.select("k AS shop", "v", where="v <> 3", name="renamed")
    parts = renamed.aggregate(by=["shop", "v"], n="count(*)", uid="parts")
    totals = parts.aggregate(by="shop", kinds="count(*)", n="sum(n)", total="sum(n * v)", uid="totals")
    totals.sink("table", DeltaUpsert("tables/table", keys=["shop"]))


def _made_sums(records: Records) -> list[Row]:
    rows = [row for row in records["orders"] if row["v"] >= 0 and row["v"] != 3]
    return [
        {"shop": shop, "kinds": len({r["v"] for r in rows}), "n": len(rows), "total": sum(r["v"] for r in rows)}
        for (shop,), rows in _grouped(rows, "k").items()
    ]


# -- latest, firsts, ranked -------------------------------------------------------------------------------


def _build_latest(pipeline: Pipeline) -> None:
    _orders(pipeline).latest(by="k", order_by="id", uid="last").sink("table", DeltaUpsert("tables/table", keys=["k"]))


def _made_latest(records: Records) -> list[Row]:
    return [max(rows, key=lambda row: row["id"]) for rows in _grouped(records["orders"], "k").values()]


def _build_firsts(pipeline: Pipeline) -> None:
    _orders(pipeline).deduplicate(by="k", uid="first").sink("table", DeltaAppend("tables/table"))


def _made_firsts(records: Records) -> list[Row]:
    return [rows[0] for rows in _grouped(records["orders"], "k").values()]


def _build_ranked(pipeline: Pipeline) -> None:
    best = _orders(pipeline).top_n(2, by="k", order_by=["v desc", "id asc"], uid="best")
    best.sink("table", DeltaUpsert("tables/table", keys=["k", "rank"]))


def _made_ranked(records: Records) -> list[Row]:
    made = []
    for rows in _grouped(records["orders"], "k").values():
        best = sorted(rows, key=lambda row: (-row["v"], row["id"]))[:2]
        made += [{**row, "rank": rank} for rank, row in enumerate(best, 1)]
    return made


# -- pairs ------------------------------------------------------------------------------------------------


def _build_pairs(pipeline: Pipeline) -> None:
    customers = pipeline.source("customers", Files("landing/customers/*.json", schema=CUSTOMERS))
    pairs = _orders(pipeline).join(customers, on={"k": "name"}, uid="pairs")
    by_city = pairs.aggregate(by=["city", "k"], n="count(*)", total="sum(v)", uid="by_city")
    by_city.sink("table", DeltaUpsert("tables/table", keys=["city", "k"]))


def _made_pairs(records: Records) -> list[Row]:
    pairs = [
        {**order, "city": customer["city"]}
        for order in records["orders"]
        for customer in records["customers"]
        if order["k"] is not None and order["k"] == customer["name"]
    ]
    return [
        {"city": city, "k": k, "n": len(rows), "total": sum(row["v"] for row in rows)}
        for (city, k), rows in _grouped(pairs, "city", "k").items()
    ]


# -- hours, odd -------------------------------------------------------------------------------------------


def _build_hours(pipeline: Pipeline) -> None:
    orders = _orders(pipeline, event_time="at", watermark="30 min")
    hours = orders.window(tumbling="1 h", by="k", n="count(*)", total="sum(v)", least="min(v)", uid="hours")
    hours.sink("table", DeltaAppend("tables/table"))


def _hour(row: Row) -> datetime:
    at: datetime = row["at"]
    return at.replace(minute=0)


def _made_hours(records: Records) -> list[Row]:
    rows = [{**row, "window_start": _hour(row)} for row in records["orders"]]
    return [
        {
            "window_start": start,
            "window_end": start + timedelta(hours=1),
            "k": k,
            "n": len(rows),
            "total": sum(row["v"] for row in rows),
            "least": min(row["v"] for row in rows),
        }
        for (start, k), rows in _grouped(rows, "window_start", "k").items()
    ]


def _even(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.max("id").alias("id")).where("n % 2 = 0")


def _build_odd(pipeline: Pipeline) -> None:
    orders = _orders(pipeline).where("v > 0", name="positive")
    even = pipeline.stage(orders, name="even")(_even)
    even.sink("table", DeltaAppend("tables/table"))


def _made_odd(records: Records) -> list[Row]:
    raise NotImplementedError("a stage sees the rows of one checkpoint: see `made_of_cuts`")


def made_of_cuts(kind: str, cuts: Sequence[Records]) -> list[Row]:
    """Return the table after all checkpoints, from the records that each has read."""
    if kind != "odd":
        together: dict[str, list[Row]] = {"orders": [], "customers": []}
        for cut in cuts:
            for source, rows in cut.items():
                together[source] += rows
        return KINDS[kind].made(together)
    made = []
    for cut in cuts:
        for (k,), rows in _grouped([row for row in cut["orders"] if row["v"] > 0], "k").items():
            if len(rows) % 2 == 0:
                made.append({"k": k, "n": len(rows), "id": max(row["id"] for row in rows)})
    return made


KINDS = {
    "sums": Kind(_build_sums, _made_sums, ("shop",), ("shop", "kinds", "n", "total")),
    "latest": Kind(_build_latest, _made_latest, ("k",), ("k", "id", "v", "at")),
    "firsts": Kind(_build_firsts, _made_firsts, ("k",), ("k", "id", "v", "at")),
    "pairs": Kind(_build_pairs, _made_pairs, ("city", "k"), ("city", "k", "n", "total")),
    "ranked": Kind(_build_ranked, _made_ranked, ("k", "rank"), ("k", "id", "v", "at", "rank")),
    "hours": Kind(_build_hours, _made_hours, ("window_start", "k"), ("window_start", "k", "n", "total", "least")),
    "odd": Kind(_build_odd, _made_odd, ("k", "id"), ("k", "n", "id")),
}
