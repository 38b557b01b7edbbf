"""Operators and upserts by data interval: each day gives what plain Python gives for that day's rows alone.

Days are made in any order, two at once, and again with other rows. Nothing is remembered from day to day, and what a
day gives takes the place of what it gave before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as Table
from deltalake import write_deltalake

from tests.kit.sampling import ALL, in_turn
from tests.spark.days import BEGIN, Days, Row, day
from tests.spark.graphs import GRAPHS
from tests.spark.random_cuts import Graph, counted
from tests.spark.small_pipeline import put_in_jobs
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.gates import Expectations
from tidegate.pipeline.graph.graph import OperatorNode
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pytestmark = in_turn(seconds=65)


# -- every operator, against plain Python ----------------------------------------------------------------


def by_day(graph: Graph, in_jobs: bool) -> Callable[[Pipeline], None]:
    """The same pipeline by day: its sources read the day's folder, all its sinks append, and what cannot be right by
    day is left out."""

    def build(pipeline: Pipeline) -> None:
        graph.build(pipeline)
        for place, node in enumerate(pipeline._sources):
            assert isinstance(node.source, Files)
            pattern = node.source.pattern.replace("landing/", "landing/{start:%Y-%m-%d}/")
            pipeline._sources[place] = replace(node, source=Files(pattern, schema=node.source.schema))
        refused = refused_in(pipeline)
        pipeline._stages[:] = [stage for stage in pipeline._stages if stage.name not in refused]
        sinks = [node for node in pipeline._sinks if node.input not in refused]
        pipeline._sinks[:] = [replace(node, sink=DeltaAppend(f"tables/{node.name}")) for node in sinks]
        if in_jobs:
            put_in_jobs(pipeline)

    return build


def refused_in(pipeline: Pipeline) -> set[str]:
    operators = [stage for stage in pipeline._stages if isinstance(stage, OperatorNode)]
    return {stage.name for stage in operators if stage.spec.interval_problems}


def events_of(graph: Graph, number: int) -> list[tuple[str, Row]]:
    """A day's events: those of a story, without the row that would let its event time end."""
    later = timedelta(days=number)
    return [
        (source, {name: value + later if isinstance(value, datetime) else value for name, value in row.items()})
        for source, row in graph.events(random.Random(f"{graph.name} {number}"))
        if row["k"] != "end"
    ]


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_each_operator_gives_for_each_day_what_plain_python_gives_for_its_rows(
    graph: Graph, spark: Any, tmp_path: Path
) -> None:
    """Day 1 comes before day 0, in as many files as rows; with all cases one graph is in several jobs."""
    graph.prepare(tmp_path)
    world = Days(tmp_path, spark, by_day(graph, in_jobs=ALL and graph.name == "near"))
    expected: dict[str, Counter[Any]] = {}
    for number in (1, 0) if ALL or graph.name == "kept" else (1,):
        events = events_of(graph, number)
        for source in sorted({source for source, _ in events}):
            rows = [row for name, row in events if name == source]
            world.write(number, rows, source, files=len(rows) if number else 1)
        id = world.make(number)
        for name, rows_of_day in graph.expected(events).items():
            expected[name] = expected.get(name, Counter()) + rows_of_day
    sinks = world.graph().sinks
    assert expected.keys() - sinks.keys() == ({"hopping-live"} if graph.name == "windows" else set())
    for name in sinks:
        found = counted(world.table(name))
        assert found == expected[name], name
    for job in world.graph().jobs:
        acked = world.ledger.ack(id, job.name)
        assert acked is not None
        assert (acked.ack.states, acked.ack.memory) == ({}, {}), "nothing is remembered"
    assert not list((world.folder / "state").rglob("*.parquet")), "an interval keeps nothing"


# -- a daily shop ----------------------------------------------------------------------------------------

ORDERS = "id long, customer long, amount long, day date, at timestamp"
SUITE = """
name: totals
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: spent, min_value: 0}, id: positive}
"""


def shop(pipeline: Pipeline) -> None:
    """Customers' totals of each day, once as rows and once by key, and each day's best orders."""
    orders = pipeline.source("orders", Files("landing/{start:%Y-%m-%d}/orders/*.json", schema=ORDERS), event_time="at")
    once = orders.deduplicate(by="id", uid="once")
    totals = once.aggregate(by=["day", "customer"], spent="sum(amount)", orders="count(*)", uid="totals")
    fine = totals.gate(Expectations("totals", on_failure={"critical": "quarantine"}), name="fine")
    fine.sink("log", DeltaAppend("tables/log"))
    fine.sink("totals", DeltaUpsert("tables/totals", keys=["day", "customer"], interval_column="day"))
    once.top_n(1, by="day", order_by="amount desc", uid="best").sink("best", DeltaAppend("tables/best"))


def orders_of(number: int, *amounts: tuple[int, int, int]) -> list[Row]:
    """Orders as (id, customer, amount)."""
    at = BEGIN + timedelta(days=number, hours=9)
    return [
        {"id": id, "customer": customer, "amount": amount, "day": day(number), "at": at.isoformat()}
        for id, customer, amount in amounts
    ]


def totals_of(orders: Sequence[Row]) -> set[tuple[Any, ...]]:
    """What a day's totals must be."""
    once = {row["id"]: row for row in orders}.values()
    keys = {(row["day"], row["customer"]) for row in once}
    mine = {key: [row["amount"] for row in once if (row["day"], row["customer"]) == key] for key in keys}
    return {(*key, sum(values), len(values)) for key, values in mine.items() if sum(values) >= 0}


@pytest.fixture
def world(tmp_path: Path, spark: Any) -> Days:
    folder = tmp_path / "include" / "expectations"
    folder.mkdir(parents=True)
    (folder / "totals.yaml").write_text(SUITE)
    return Days(tmp_path, spark, shop)


def shown(world: Days, table: str) -> list[tuple[Any, ...]]:
    return sorted((r["day"], r["customer"], r["spent"], r["orders"]) for r in world.table(table))


def test_days_come_in_any_order_two_at_once_and_one_again_with_other_orders(world: Days) -> None:
    bought = ((1, 7, 10), (2, 7, 5), (1, 7, 10), (4, 9, -1))
    orders = {number: orders_of(number, *bought, (3, 8, number)) for number in range(3)}
    for number, rows in orders.items():
        world.write(number, rows)

    def whole(*foreign: tuple[Any, ...]) -> None:
        expected = [row for number in made for row in totals_of(orders[number])]
        assert shown(world, "log") == sorted(expected)
        assert shown(world, "totals") == sorted([*expected, *foreign])
        best = {r["day"]: r["amount"] for r in world.table("best")}
        assert best == {day(number): max(row["amount"] for row in orders[number]) for number in made}

    made = [2]
    steps = world.ledger.ack(world.make(2), "main").ack.stats.steps
    told = {step.computed.text for step in steps if step.computed is not None}
    assert told == {"workers"}
    whole()
    first, second = world.plan(0), world.plan(1)
    world.work(second)
    made = [2, 1]
    whole()
    world.work(first)
    made = [0, 1, 2]
    whole()
    aside = world.rows("ledger/days/quarantine/fine")
    assert sorted(row["customer"] for row in aside) == [9, 9, 9], "a gate may set totals aside: they replace nothing"

    foreign = [{**row, "customer": 99} for row in world.table("totals") if row["customer"] == 7]
    append(world, "totals", [row for row in foreign if row["day"] in (day(0), day(1))])
    Table(str(world.root / "tables" / "totals")).optimize.compact()
    orders[1] = orders_of(1, (1, 7, 1), (9, 5, 2))
    world.write(1, orders[1])
    world.make(1, "again")
    whole((day(0), 99, 15, 2))
    versions = Table(str(world.root / "tables" / "totals")).version()
    orders[1] = []
    world.write(1, orders[1])
    world.make(1, "once more")
    made = [0, 2]
    whole((day(0), 99, 15, 2))
    assert Table(str(world.root / "tables" / "totals")).version() == versions + 1, "one commit"


def append(world: Days, table: str, rows: Sequence[Row]) -> None:
    """Somebody else adds rows."""
    import pyarrow as pa

    path = str(world.root / "tables" / table)
    write_deltalake(path, pa.Table.from_pylist(list(rows), Table(path).to_pyarrow_table().schema), mode="append")


# -- upserts ---------------------------------------------------------------------------------------------

ITEMS = "day date, id long, v long, seq long, op string"


def items(pipeline: Pipeline) -> None:
    changes = pipeline.source("orders", Files("landing/{start:%Y-%m-%d}/orders/*.json", schema=ITEMS))
    sink = DeltaUpsert(
        "tables/items",
        keys=["day", "id"],
        order_by="seq",
        delete_when="op = 'd'",
        omit="op",
        partition_by="day",
        interval_column="day",
    )
    changes.sink("items", sink)


def change(number: int, id: int, v: int, seq: int, op: str = "u") -> Row:
    return {"day": day(number), "id": id, "v": v, "seq": seq, "op": op}


def test_of_a_days_rows_with_one_key_the_newest_counts_whatever_the_day_gave_before(spark: Any, tmp_path: Path) -> None:
    world = Days(tmp_path, spark, items)

    def held() -> list[tuple[int, int]]:
        return sorted((row["id"], row["v"]) for row in world.table("items") if row["day"] == day(0))

    rows = [change(0, 1, 30, 3), change(0, 1, 10, 1), change(0, 1, 20, 2)]
    rows += [change(0, 2, 1, 1), change(0, 2, 1, 2, "d"), change(0, 3, 1, 1, "d"), change(0, 3, 5, 2)]
    world.write(0, rows, files=3)
    world.write(1, [change(1, 1, 7, 1)])
    world.make(0)
    world.make(1)
    assert held() == [(1, 30), (3, 5)]
    named = set(Table(str(tmp_path / "tables/items")).file_uris())
    lying = {str(path) for path in (tmp_path / "tables/items").rglob("*.parquet") if "_delta_log" not in path.parts}
    assert lying == named, "what decided among the rows is not left lying"

    world.write(0, [change(0, 1, 11, 1), change(0, 4, 4, 1), change(0, 4, 4, 0, "d")])
    world.make(0, "again")
    assert held() == [(1, 11), (4, 4)], "an older row is back, as the day now says, and what it no longer says is gone"
    assert [row["v"] for row in world.table("items") if row["day"] == day(1)] == [7]


@pytest.mark.parametrize("op", ["u", "d"])
def test_a_row_of_another_day_is_refused_also_one_to_be_removed(spark: Any, tmp_path: Path, op: str) -> None:
    """Its own day's run would not know of it, and this one may not touch that day."""
    world = Days(tmp_path, spark, items)
    world.write(0, [change(0, 1, 1, 1), change(1, 2, 2, 2, op)])
    with pytest.raises(Invalid, match="1 rows have a 'day' outside of interval 2026-01-01T00:00/2026-01-02T00:00"):
        world.make(0)
    assert world.table("items") == []


# -- event time ------------------------------------------------------------------------------------------


def test_a_time_behind_the_end_of_time_is_not_left_waiting(spark: Any, tmp_path: Path) -> None:
    """9999-12-31 says "no end" in many tables. There is no later checkpoint that could give what waits for it."""

    def build(pipeline: Pipeline) -> None:
        rows = pipeline.source(
            "orders", Files("landing/{start:%Y-%m-%d}/orders/*.json", schema="k long, at timestamp"), event_time="at"
        )
        others = pipeline.source(
            "others", Files("landing/{start:%Y-%m-%d}/others/*.json", schema="k long, until timestamp"),
            event_time="until",
        )  # fmt: skip
        hours = rows.job("hours").window(tumbling="1 hour", by="k", n="count(*)", uid="hours")
        hours.sink("hours", DeltaAppend("tables/hours"))
        rows.window(session="1 hour", by="k", n="count(*)", uid="visits").sink("visits", DeltaAppend("tables/visits"))
        rows.deduplicate(by="k", within="1 hour", uid="once").sink("once", DeltaAppend("tables/once"))
        rows.join(others, on="k", within="1 hour", how="left", uid="left").sink("left", DeltaAppend("tables/left"))

        @rows.process(by="k", state="n long", output="k long, said string", in_order=True, uid="told")
        def told(key: Row, rows: Any, state: Any, timers: Any) -> Iterator[Row]:
            for fired in timers.fired:
                yield {"k": key["k"], "said": f"{state.n} by {fired.at:%Y}"}
            for row in rows.to_pylist():
                state.n = (state.n or 0) + 1
                timers.event(row["at"] + timedelta(hours=1))

        told.sink("told", DeltaAppend("tables/told"))

    world = Days(tmp_path, spark, build)
    world.write(0, [{"k": 1, "at": "2026-01-01T10:00:00Z"}, {"k": 2, "at": "9999-12-31T20:10:00Z"}])
    world.make(0)
    for table in ("hours", "visits", "once", "left"):
        assert sorted(row["k"] for row in world.table(table)) == [1, 2], table
    assert sorted(row["said"] for row in world.table("told")) == ["1 by 2026", "1 by 9999"]


def test_a_timer_of_the_clock_has_no_later_checkpoint_to_fire_in(spark: Any, tmp_path: Path) -> None:
    def build(pipeline: Pipeline) -> None:
        rows = pipeline.source("orders", Files("landing/{start:%Y-%m-%d}/orders/*.json", schema="k long"))

        @rows.process(by="k", state="n long", output="k long", uid="told")
        def told(key: Row, rows: Any, state: Any, timers: Any) -> Iterator[Row]:
            timers.clock(timers.now)
            yield key

        told.sink("told", DeltaAppend("tables/told"))

    world = Days(tmp_path, spark, build)
    world.write(0, [{"k": 1}])
    with pytest.raises(Invalid, match=r"timers\.clock requests a call in a later checkpoint"):
        world.make(0)
