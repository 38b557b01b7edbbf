"""Every operator gives the right tables, and the same however its input is cut into checkpoints, crashes or not."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.play import Play, sources
from tests.spark.reference import distinct_by, greatest_by, interval_join, least_apart, ranked, totals_of
from tidegate import Pipeline, seams
from tidegate.checkpoint.coordinator import Triggered
from tidegate.errors import Unavailable
from tidegate.operators import Deduplicate, IntervalJoin, Operator, OperatorContext, Watermarks
from tidegate.runtime.run_job import run_job
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.testing.faults import Fault

ORDERS = "k string, id long, v long, at timestamp"
PAYMENTS = "k string, pid long, w long, paid_at timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)
DELAY = timedelta(minutes=20)
NEAR = timedelta(minutes=-5), timedelta(minutes=10)


class Watermarked:
    """Watermarks until sources have them: the greatest time of each input, less the delay; the least over inputs."""

    columns: tuple[str, ...]

    def run(self, inputs: Sequence[Any], context: OperatorContext) -> Mapping[str, Any]:
        known: dict[str, Any] = dict(context.memory)
        for place, (frame, column) in enumerate(zip(inputs, self.columns, strict=True)):
            greatest = frame.selectExpr(f"unix_micros(max({column}))").first()[0]
            known[str(place)] = max((t for t in (greatest, known.get(str(place))) if t is not None), default=None)

        def least(times: Mapping[str, Any]) -> datetime | None:
            if len(times) < len(self.columns) or None in times.values():
                return None
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=min(times.values())) - DELAY

        marks = Watermarks(least(context.memory), least(known))  # type: ignore[arg-type]
        given = super().run(inputs, dataclasses.replace(context, watermarks=marks))  # type: ignore[misc]
        context.remember.update(known)
        return given


class TimedJoin(Watermarked, IntervalJoin):
    columns = ("at", "paid_at")


class TimedDeduplicate(Watermarked, Deduplicate):
    columns = ("at",)


def every_operator(pipeline: Pipeline) -> None:
    orders = sources(pipeline, ORDERS, "orders")
    payments = sources(pipeline, PAYMENTS, "payments")

    def put(name: str, operator: Operator, *others: Any) -> Any:
        return orders.apply(operator, *others, uid=name)

    orders.deduplicate(by="id", uid="once").sink("once", DeltaAppend("tables/once"))
    put("apart", TimedDeduplicate("k", "3 min", "at")).sink("apart", DeltaAppend("tables/apart"))
    for how in ("inner", "full"):
        joined = put(how, TimedJoin(["k"], ("-5 min", "10 min"), how, event_time=("at", "paid_at")), payments)
        joined.sink(how, DeltaAppend(f"tables/{how}"))
    orders.top_n(2, by="k", order_by=["v desc", "id asc"], uid="top").sink(
        "top", DeltaUpsert("tables/top", keys=["k", "rank"])
    )
    newest = orders.latest(by="k", order_by="at", uid="newest")
    newest.sink("newest", DeltaUpsert("tables/newest", keys=["k"]))
    paid = newest.join(payments.latest(by="k", order_by="paid_at", uid="last-payment"), on="k", how="left", uid="both")
    paid.sink("both", DeltaUpsert("tables/both", keys=["k"]))

    @pipeline.stage(newest)
    def even(rows: Any) -> Any:
        return rows.where("v % 2 = 0").withColumn("band", rows.v % 3)

    even.sink("even", DeltaUpsert("tables/even", keys=["k"]))
    bands = even.aggregate(by="band", uid="bands", n="count(*)", s="sum(v)", m="avg(v)", d="count(distinct v)")
    bands.sink("bands", DeltaUpsert("tables/bands", keys=["band"]))


def events(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Orders and payments by source, in an order in which none comes later than the watermark allows; some twice."""
    pick = random.Random(11)
    found: list[tuple[str, dict[str, Any]]] = []
    for number in range(count):
        at = START + timedelta(minutes=number * 3, seconds=pick.choice([0, 0, 30]))
        key = pick.choice(["a", "b", "c", "d", None])
        if pick.random() < 0.6:
            row: dict[str, Any] = {"k": key, "id": number, "v": pick.randint(0, 9), "at": at}
            found.append(("orders", row))
        else:
            row = {"k": key, "pid": number, "w": pick.randint(0, 9), "paid_at": at}
            found.append(("payments", row))
        if pick.random() < 0.2:
            found.append((found[-1][0], dict(row)))
    late = [place + pick.choice([0, 0, 4]) for place in range(len(found))]
    ordered = [event for _, event in sorted(zip(late, found, strict=True), key=lambda pair: pair[0])]
    end = START + timedelta(days=2)
    last = [
        ("orders", {"k": "end", "id": -1, "v": 1, "at": end}),
        ("payments", {"k": "end", "pid": -1, "w": 1, "paid_at": end}),
    ]
    return [*ordered, *last]


def expected(all_events: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Counter[Any]]:
    orders = [row for source, row in all_events if source == "orders"]
    payments = [row for source, row in all_events if source == "payments"]

    def near(one: dict[str, Any], other: dict[str, Any]) -> bool:
        known = one["k"] is not None and one["k"] == other["k"]
        return known and NEAR[0] <= other["paid_at"] - one["at"] <= NEAR[1]

    nobody = ({"id": None, "v": None, "at": None}, {"pid": None, "w": None, "paid_at": None})
    full = interval_join(orders, payments, near, "full", nobody)
    full = [row for row in full if row["k"] != "end" or row["id"] == row["pid"]]
    newest = greatest_by(orders, "k", lambda row: row["at"])
    last = greatest_by(payments, "k", lambda row: row["paid_at"])
    even = [row for row in newest.values() if row["v"] % 2 == 0]
    bands = totals_of(even, lambda row: row["v"] % 3, "v")
    tables = {
        "once": distinct_by(orders, "id"),
        "apart": least_apart(orders, "k", "at", 180),
        "inner": interval_join(orders, payments, near, "inner", nobody),
        "full": full,
        "top": ranked(orders, "k", lambda row: (-row["v"], row["id"]), 2),
        "newest": list(newest.values()),
        "both": [
            {**nobody[1], **(last.get(row["k"], {}) if row["k"] is not None else {}), **row} for row in newest.values()
        ],
        "even": [{**row, "band": row["v"] % 3} for row in even],
        "bands": [{"band": band, "n": n, "s": s, "m": m, "d": d} for band, (n, s, m, d) in bands.items()],
    }
    return {name: counted(rows) for name, rows in tables.items()}


def counted(rows: Sequence[Mapping[str, Any]]) -> Counter[Any]:
    return Counter(tuple(sorted(row.items(), key=lambda item: item[0])) for row in rows)


def checkpoint(play: Play, rows: Sequence[tuple[str, dict[str, Any]]], crash: bool) -> None:
    """One checkpoint of these rows; if it crashes, the first attempt does all its work and dies before its ack."""
    for source in ("orders", "payments"):
        if chosen := [row for name, row in rows if name == source]:
            play.feed(chosen, source)
    if not crash:
        play.checkpoint()
        return
    coordinator = play.coordinator
    triggered = coordinator.trigger(f"run {coordinator.ledger.view().last_id + 1}")
    assert isinstance(triggered, Triggered)
    with seams.installed(Fault("S6.ack.before", "E").installed()), pytest.raises(Unavailable):
        run_job(coordinator, triggered.plan.id, "main", play.spark)
    run_job(coordinator, triggered.plan.id, "main", play.spark)
    assert coordinator.complete(triggered.plan.id).state == "completed"
    coordinator.publish()


@pytest.fixture
def interpreted(spark: Any) -> Iterator[None]:
    """Few rows and long plans: compiling them would take most of the time."""
    wanted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    before = {key: spark.conf.get(key) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, value)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("cuts", "crashes"), [([], []), ([23, 31, 60], [1, 2]), ([1, 2, 3], [0])])
def test_all_tables_are_right_however_the_events_are_cut_and_attempts_crash(
    tmp_path: Path, spark: Any, cuts: list[int], crashes: list[int]
) -> None:
    rows = events(70)
    play = Play(tmp_path, spark, every_operator)
    bounds = [0, *cuts, len(rows)]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        checkpoint(play, rows[begin:end], number in crashes)
    wanted = expected(rows)
    told = {name: counted(play.rows(f"tables/{name}")) for name in wanted}
    wrong = {name: (told[name] - wanted[name], wanted[name] - told[name]) for name in wanted}
    assert not {name: pair for name, pair in wrong.items() if any(pair)}, "in tables (too much, missing)"
