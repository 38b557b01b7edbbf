"""Operators that workers compute in one query: when they do, when they leave it to Spark, and that both agree."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.execution.job import run_job as run_job_module
from tidegate.operators.aggregate import Aggregate
from tidegate.operators.distinct import new_values, pre_aggregation
from tidegate.operators.expiry import RowExpiry
from tidegate.operators.window.sessions import SessionWindows
from tidegate.records.records import Drain
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.state import kernel_driver
from tidegate.state.arrow import workers
from tidegate.state.keyed import KeyedState

pytestmark = in_turn(seconds=265)


ORDERS = [{"id": n % 3, "v": f"order {n}", "at": f"2026-01-01T00:{n:02}:00Z"} for n in range(8)]
PAYMENTS = [{"id": n % 3, "paid": n, "at": f"2026-01-01T00:{n:02}:30Z"} for n in range(8)]


def paid_orders(pipeline: Pipeline) -> None:
    orders = sources(pipeline, "id long, v string, at timestamp", "orders", event_time="at", watermark="1 min")
    payments = sources(pipeline, "id long, paid long, at timestamp", "payments", event_time="at", watermark="1 min")
    once = orders.deduplicate(by="id", within="3 min", uid="once")
    paid = once.join(payments, on="id", within="2 min", how="left", prefix="paid_", uid="paid")
    once.sink("once", DeltaAppend("tables/once"))
    paid.sink("paid", DeltaAppend("tables/paid"))


def play_in_four(root: Path, spark: Any) -> SmallPipeline:
    """Four checkpoints of two orders and two payments each."""
    play = SmallPipeline(root, spark, paid_orders)
    for begin in range(0, 8, 2):
        play.feed(ORDERS[begin : begin + 2], "orders")
        play.feed(PAYMENTS[begin : begin + 2], "payments")
        play.checkpoint()
    return play


def rows(play: SmallPipeline) -> dict[str, Counter[Any]]:
    return {
        name: Counter(tuple(sorted(row.items(), key=str)) for row in play.rows(f"tables/{name}"))
        for name in ("once", "paid")
    }


def refuse_algebra(*_: Any, **__: Any) -> Any:
    raise AssertionError("workers can do this")


@pytest.fixture
def out_of_reach(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, workers do not reach files: Spark brings rows and takes them."""
    return lambda: monkeypatch.setattr(workers, "usable", lambda *_: False)


def as_an_earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put rows of one key into several key groups: by all keys of a state, the time of a row among them."""
    opened = KeyedState.__init__

    def as_before(self: KeyedState, *told: Any) -> None:
        opened(self, *told[:7])

    monkeypatch.setattr(KeyedState, "__init__", as_before)
    monkeypatch.setattr(KeyedState, "regroup", lambda *_: None)
    monkeypatch.setattr(workers, "usable", lambda *_: False)


def test_rows_are_the_same_whether_workers_reach_files_or_spark_brings_them(
    tmp_path: Path, spark: Any, out_of_reach: Callable[[], None]
) -> None:
    by_files = rows(play_in_four(tmp_path / "files", spark))
    assert sum(by_files["once"].values()) > 3
    assert sum(by_files["paid"].values()) > 3
    out_of_reach()
    assert rows(play_in_four(tmp_path / "spark", spark)) == by_files


@pytest.mark.parametrize("by_files", [True, False])
def test_of_rows_that_are_as_great_the_same_one_stays_however_they_come(
    by_files: bool, tmp_path: Path, spark: Any, out_of_reach: Callable[[], None]
) -> None:
    """Stored rows do not hold what tells them apart from others: Spark brings it along."""

    def newest(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k long, day date, v string")
        rows.latest(by="k", order_by="day", uid="it").sink("out", DeltaUpsert("tables/out", keys=["k"]))

    if not by_files:
        out_of_reach()
    rows = [{"k": k, "day": "2026-01-01", "v": f"{k} {n}"} for n in range(5) for k in range(3)]
    together = SmallPipeline(tmp_path / "together", spark, newest)
    together.play([rows])
    apart = SmallPipeline(tmp_path / "apart", spark, newest)
    apart.play([rows[begin : begin + 3] for begin in range(0, 15, 3)])
    assert sorted(map(str, apart.rows("tables/out"))) == sorted(map(str, together.rows("tables/out")))


VISITS = [
    {"page": None if n % 5 == 0 else f"p{n % 2}", "visitor": None if n % 7 == 0 else n % 4, "city": f"c{n % 3}"}
    for n in range(24)
]
OF_VISITS = {
    "visits": "count(*)",
    "visitors": "count(distinct visitor)",
    "early": "count(distinct visitor) filter (where visitor < 2)",
    "here": "count(distinct visitor) filter (where city = 'c1')",
    "cities": "count(distinct city)",
    "both": "count(distinct visitor, city)",
    "last_city": "max(city)",
}


def pages(by: list[str], functions: Mapping[str, str]) -> Callable[[Pipeline], None]:
    def build(pipeline: Pipeline) -> None:
        visits = sources(pipeline, "page string, visitor long, city string", "visits")
        totals = visits.aggregate(by=by, uid="totals", **functions)
        totals.sink("totals", DeltaUpsert("tables/totals", keys=by or ["visits"]))

    return build


@pytest.fixture(params=["little", "much"])
def arrives(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How much arrives, as tidegate sees it: Spark reduces what is much before workers get it."""
    reductions: list[int] = []
    reduced = new_values.reduce_values

    def counting(*told: Any) -> Any:
        reductions.append(1)
        return reduced(*told)

    monkeypatch.setattr(new_values, "reduce_values", counting)
    if request.param == "much":
        monkeypatch.setattr("tidegate.execution.job.run_job.is_small", lambda _: False)
        monkeypatch.setattr(pre_aggregation, "UNREDUCED", 0)
    yield request.param
    assert len(reductions) >= 3 if request.param == "much" else not reductions, "in each of three checkpoints"


def distinct_visits(root: Path, spark: Any, build: Callable[[Pipeline], None]) -> list[dict[str, Any]]:
    """Play the visits in three checkpoints, and return the totals of each page; without pages, of each checkpoint."""
    play = SmallPipeline(root, spark, build)
    for begin in range(0, len(VISITS), 8):
        play.feed(VISITS[begin : begin + 8], "visits")
        play.checkpoint()
    return sorted(play.rows("tables/totals"), key=str)


def of_visits(visits: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts in plain Python."""
    visitors = {visit["visitor"] for visit in visits} - {None}
    both = {(visit["visitor"], visit["city"]) for visit in visits if visit["visitor"] is not None}
    cities = {visit["city"] for visit in visits}
    early = len([visitor for visitor in visitors if visitor < 2])
    here = len({visit["visitor"] for visit in visits if visit["city"] == "c1"} - {None})
    row = {"visits": len(visits), "visitors": len(visitors), "early": early, "here": here}
    return row | {"cities": len(cities), "both": len(both), "last_city": max(cities)}


@pytest.mark.usefixtures("arrives")
def test_distinct_values_are_counted_as_by_plain_python_however_rows_come_to_workers(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, out_of_reach: Callable[[], None]
) -> None:
    wanted = []
    for page in {visit["page"] for visit in VISITS}:
        wanted.append({"page": page} | of_visits([visit for visit in VISITS if visit["page"] == page]))
    wanted.sort(key=str)
    build = pages(["page"], OF_VISITS)
    with monkeypatch.context() as only_workers:
        only_workers.setattr(Aggregate, "_distinct", refuse_algebra)
        assert distinct_visits(tmp_path / "workers", spark, build) == wanted
    out_of_reach()
    assert distinct_visits(tmp_path / "spark", spark, build) == wanted


@pytest.mark.usefixtures("arrives")
@pytest.mark.parametrize("name", ["_value0", "_tidegate_new0", "_tidegate_alike"])
def test_a_result_may_be_called_as_a_column_of_the_fold(name: str, tmp_path: Path, spark: Any) -> None:
    """It does not come along then, where two columns would have one name."""
    build = pages(["page"], {name: "count(*)", "visitors": "count(distinct visitor)"})
    wanted = []
    for page in {visit["page"] for visit in VISITS}:
        row = of_visits([visit for visit in VISITS if visit["page"] == page])
        wanted.append({"page": page, name: row["visits"], "visitors": row["visitors"]})
    assert distinct_visits(tmp_path, spark, build) == sorted(wanted, key=str)


@pytest.mark.usefixtures("arrives")
@pytest.mark.parametrize(("by", "left_out"), [(["page"], "last_city"), (["page"], ""), ([], "")])
def test_beside_counts_of_values_of_one_type_the_other_aggregates_come_along(
    by: list[str],
    left_out: str,
    tmp_path: Path,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    out_of_reach: Callable[[], None],
) -> None:
    """The batch is read once. A row without any value counts, too. Without the text, a row that carries what comes
    along is reduced with those of other counts, which do not."""
    alike = {name: text for name, text in OF_VISITS.items() if name not in ("cities", "both", left_out)}
    functions = alike | {"seen": "count(visitor)", "of_one": "count(distinct visitor % 2)", "mean": "avg(visitor)"}
    wanted = []
    for page in {visit["page"] for visit in VISITS} if by else [None]:
        of_page = [visit for visit in VISITS if not by or visit["page"] == page]
        seen = [visit["visitor"] for visit in of_page if visit["visitor"] is not None]
        row = {name: value for name, value in of_visits(of_page).items() if name in alike}
        more = {"seen": len(seen), "of_one": len({visitor % 2 for visitor in seen}), "mean": sum(seen) / len(seen)}
        wanted.append(({"page": page} if by else {}) | row | more)
    with monkeypatch.context() as once:
        once.setattr("tidegate.operators.aggregate.to_partials", refuse_algebra)
        once.setattr(Aggregate, "_distinct", refuse_algebra)
        totals = distinct_visits(tmp_path / "workers", spark, pages(by, functions))
    last = totals if by else [max(totals, key=lambda row: row["visits"])]
    assert last == sorted(wanted, key=str)
    out_of_reach()
    assert distinct_visits(tmp_path / "spark", spark, pages(by, functions)) == totals


def test_rows_are_reduced_again_after_a_while_where_that_has_not_made_them_fewer(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each checkpoint has ten rows of one city: first of ten visitors, later of one. 5 has no rows, 8 is small, and 10
    has a single row, which says nothing."""
    told: dict[str, list[int]] = {"bigint": [], "string": []}
    reduced, is_small = new_values.reduce_values, run_job_module.is_small

    def telling(batch: Any, *others: Any) -> Any:
        told[batch.schema["_value0"].dataType.simpleString()].append(number)
        return reduced(batch, *others)

    monkeypatch.setattr(new_values, "reduce_values", telling)
    monkeypatch.setattr(pre_aggregation, "WORTH_REDUCING", 10)
    monkeypatch.setattr(pre_aggregation, "UNREDUCED", 3)
    functions = {"visitors": "count(distinct visitor)", "cities": "count(distinct city)"}
    play = SmallPipeline(tmp_path, spark, pages(["page"], functions))
    for number in range(1, 12):
        monkeypatch.setattr(run_job_module, "is_small", is_small if number == 8 else lambda _: False)
        each = [number if number > 4 else 100 * number + n for n in range({5: 0, 10: 1}.get(number, 10))]
        if each:
            play.feed([{"page": "p", "visitor": visitor, "city": "c"} for visitor in each], "visits")
        play.checkpoint()
    assert told == {"bigint": [1, 4, 7, 9, 10, 11], "string": [1, 2, 3, 4, 6, 7, 9, 10, 11]}
    assert play.rows("tables/totals") == [{"page": "p", "visitors": 40 + 6, "cities": 1}]


def to_the_end(root: Path, spark: Any) -> SmallPipeline:
    play = play_in_four(root, spark)
    play.checkpoint(drain=Drain(by="a test"))
    return play


def spilled(play: SmallPipeline) -> int:
    """The bytes that workers have written to local disk, in the checkpoints that are retained."""
    last = play.coordinator().ledger.view().last_id
    steps = [step for id in (last - 1, last) for step in play.ack(id).stats.steps]
    return sum(step.computed.spilled for step in steps if step.computed is not None)


@pytest.mark.parametrize("by_files", [True, False])
def test_more_rows_than_workers_can_hold_wait_on_local_disk(
    by_files: bool, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, out_of_reach: Callable[[], None]
) -> None:
    """Of the batch, of what is stored, and of what ends when event time does."""
    small = to_the_end(tmp_path / "small", spark)
    assert not spilled(small)
    monkeypatch.setattr(kernel_driver, "MAX_BYTES", 100)
    if not by_files:
        out_of_reach()
    large = to_the_end(tmp_path / "large", spark)
    assert rows(large) == rows(small)
    assert spilled(large)


def test_a_key_with_more_rows_than_memory_can_hold_is_refused_and_nothing_of_the_attempt_is_left(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_driver, "MAX_BYTES", 2)
    with pytest.raises(Invalid, match="one key has more rows than a worker can hold") as refused:
        play_in_four(tmp_path, spark)
    assert refused.value.reason == "HOT_KEY"
    assert re.search(r"id = \d", refused.value.quoted), "who may read rows is told which"
    assert "id = " not in str(refused.value)
    assert not [path for path in (tmp_path / "ledger").rglob("*fold-*") if path.is_dir() and any(path.iterdir())]


def matches(within: str) -> Callable[[Pipeline], None]:
    """Orders with their payments: an inner join."""

    def build(pipeline: Pipeline) -> None:
        orders = sources(pipeline, "id long, v string, at timestamp", "orders", event_time="at", watermark="1 min")
        payments = sources(pipeline, "id long, paid long, at timestamp", "payments", event_time="at", watermark="1 min")
        orders.join(payments, on="id", within=within, prefix="paid_", uid="paid").sink(
            "paid", DeltaAppend("tables/paid")
        )

    return build


def pairs(orders: list[dict[str, Any]], payments: list[dict[str, Any]], seconds: int) -> set[tuple[str, int]]:
    """What an inner join gives, in plain Python."""

    def second(row: dict[str, Any]) -> int:
        return 60 * int(row["at"][14:16]) + int(row["at"][17:19])

    return {
        (order["v"], payment["paid"])
        for order in orders
        for payment in payments
        if order["id"] == payment["id"] and abs(second(payment) - second(order)) <= seconds
    }


def deleted(play: SmallPipeline) -> list[bool]:
    """Of each row in the files of the left side's state, whether it says that a row is gone."""
    paths = [next((play.root / "ledger").rglob(file.name)) for file in play.state("paid.left").files]
    return [gone for path in paths for gone in pq.ParquetFile(path).read()["_deleted"].to_pylist()]


@pytest.mark.parametrize("by", ["files", "Spark"])
def test_rows_that_meet_nothing_any_more_are_forgotten_without_being_looked_for_and_do_not_come_back(
    by: str, tmp_path: Path, spark: Any, out_of_reach: Callable[[], None]
) -> None:
    """Nothing is written to delete them: their files go whole. A bound that is wider later does not bring back those
    that are still in files which others share."""
    if by == "Spark":
        out_of_reach()
    orders = [{"id": 1, "v": f"order {n}", "at": f"2026-01-01T00:{n:02}:00Z"} for n in range(24)]
    play = SmallPipeline(tmp_path, spark, matches("2 min"))

    def given() -> set[tuple[str, int]]:
        return {(row["v"], row["paid"]) for row in play.rows("tables/paid")}

    payments: list[dict[str, Any]] = []
    for begin in range(0, 20, 2):
        payments.append({"id": 1, "paid": begin, "at": f"2026-01-01T00:{begin:02}:30Z"})
        play.feed(orders[begin : begin + 2], "orders")
        play.feed(payments[-1:], "payments")
        play.checkpoint()
    assert given() == pairs(orders[:20], payments, 120)
    assert 0 < len(deleted(play)) <= 8
    assert not any(deleted(play))

    play.build = matches("30 min")
    play.feed(orders[20:22], "orders")
    play.feed([{"id": 1, "paid": 20, "at": "2026-01-01T00:20:30Z"}], "payments")
    id = play.checkpoint()
    new = given() - pairs(orders[:20], payments, 120)
    # The watermark was at 00:17:30 or 18:00, and rows lived until it was two minutes past them.
    assert {pair for pair in new if pair[1] == 20} == {(f"order {n}", 20) for n in range(16, 22)}, id
    play.feed([{"id": 1, "paid": 22, "at": "2026-01-01T00:22:30Z"}], "payments")
    play.checkpoint()
    assert {pair for pair in given() if pair[1] == 22} >= {("order 20", 22), ("order 21", 22)}


def test_the_rows_of_a_join_that_an_earlier_version_began_are_deleted_when_they_are_over(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not say until when they live."""
    orders = [{"id": 1, "v": f"order {n}", "at": f"2026-01-01T00:{n:02}:00Z"} for n in range(12)]
    payments = [{"id": 1, "paid": n, "at": f"2026-01-01T00:{n:02}:30Z"} for n in range(12)]
    play = SmallPipeline(tmp_path, spark, matches("2 min"))

    def checkpoints(first: int, last: int) -> None:
        for begin in range(first, last, 2):
            play.feed(orders[begin : begin + 2], "orders")
            play.feed(payments[begin : begin + 2], "payments")
            play.checkpoint()

    with monkeypatch.context() as earlier:
        earlier.setattr(RowExpiry, "ttl", lambda *_: None)
        checkpoints(0, 4)
    assert "_touched" not in {field["name"] for field in play.state("paid.left").columns["fields"]}
    checkpoints(4, 12)
    assert {(row["v"], row["paid"]) for row in play.rows("tables/paid")} == pairs(orders, payments, 120)
    assert any(deleted(play))


VISITORS = [
    {"who": f"visitor {n % 41}", "paid": f"{n}.25", "at": f"2026-01-01T00:{n * 7 // 60:02}:{n * 7 % 60:02}Z"}
    for n in range(0, 400)
]
"""Each of them comes every 287 seconds: with a gap of five minutes that is one session, over several checkpoints."""


def visits_of(gap: str, **functions: str) -> Callable[[Pipeline], None]:
    def build(pipeline: Pipeline) -> None:
        visits = sources(
            pipeline, "who string, paid decimal(28, 2), at timestamp", "visits", event_time="at", watermark="1 s"
        )
        sessions = visits.window(session=gap, by="who", uid="sessions", **functions)
        sessions.sink("sessions", DeltaAppend("tables/sessions"))

    return build


def test_sessions_that_an_earlier_version_began_continue_with_workers(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept them in other key groups: they are written anew once, and what is held is found in these."""
    play = SmallPipeline(tmp_path, spark, visits_of("5 min", visits="count(*)"))
    with monkeypatch.context() as earlier:
        as_an_earlier_version(earlier)
        for begin in (0, 100):
            play.feed(VISITORS[begin : begin + 100], "visits")
            play.checkpoint()
    assert play.state("sessions").grouped_by == []
    monkeypatch.setattr(SessionWindows, "_run_through_spark", refuse_algebra)
    for begin in (200, 300):
        play.feed(VISITORS[begin : begin + 100], "visits")
        play.checkpoint()
    assert play.state("sessions").grouped_by == ["who"]
    play.checkpoint(drain=Drain(by="a test"))
    found = {row["who"]: row["visits"] for row in play.rows("tables/sessions")}
    assert len(play.rows("tables/sessions")) == 41, "a session came in pieces"
    assert found == Counter(visit["who"] for visit in VISITORS)


def test_sessions_of_what_workers_add_otherwise_than_spark_are_left_to_spark(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums with as many digits as there are, and the greatest of structs."""
    left: list[str] = []
    by_algebra = SessionWindows._run_through_spark

    def counted(self: SessionWindows, rows: Any) -> Any:
        left.append("sessions")
        return by_algebra(self, rows)

    monkeypatch.setattr(SessionWindows, "_run_through_spark", counted)
    for number, functions in enumerate([{"paid": "sum(paid)"}, {"last": "max(struct(paid, who))"}]):
        play = SmallPipeline(tmp_path / str(number), spark, visits_of("5 min", **functions))
        play.feed(VISITORS[:50], "visits")
        play.checkpoint(drain=Drain(by="a test"))
        assert len(left) == number + 1
        assert len(play.rows("tables/sessions")) == 41


def test_a_state_of_an_earlier_version_is_regrouped_once_and_continues(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It put rows of one key into several key groups: by all its keys, the time of a row among them."""
    wanted = rows(play_in_four(tmp_path / "new", spark))
    play = SmallPipeline(tmp_path / "old", spark, paid_orders)
    with monkeypatch.context() as earlier:
        as_an_earlier_version(earlier)
        for begin in (0, 2):
            play.feed(ORDERS[begin : begin + 2], "orders")
            play.feed(PAYMENTS[begin : begin + 2], "payments")
            play.checkpoint()
    assert play.state("once").grouped_by == []
    for begin in (4, 6):
        play.feed(ORDERS[begin : begin + 2], "orders")
        play.feed(PAYMENTS[begin : begin + 2], "payments")
        play.checkpoint()
    assert play.state("once").grouped_by == ["id"]
    assert play.state("paid.left").grouped_by == ["id"]
    assert rows(play) == wanted
    rewritten = [file.file.path for file in play.state("once", 3).files]
    assert any("rewritten" in path for path in rewritten)
    assert not any(
        "rewritten" in path for path in {file.file.path for file in play.state("once", 4).files} - set(rewritten)
    )


NESTED = "c0 long, l0 string, `a.b` struct<x: long, y: array<string>>, at timestamp"
WITH_MAP = "c0 long, l0 string, m map<string, long>, at timestamp"


@pytest.mark.parametrize("schema", [NESTED, WITH_MAP])
def test_odd_columns_come_through_both_ways(
    schema: str, tmp_path: Path, spark: Any, out_of_reach: Callable[[], None]
) -> None:
    """Keys with names such as tidegate's own aliases, nested values in front of the time, types that only Spark has."""

    def build(pipeline: Pipeline) -> None:
        left = sources(pipeline, schema, "left", event_time="at", watermark="1 min")
        right = sources(pipeline, "c0 long, l0 string, r0 double, at timestamp", "right", event_time="at")
        once = left.deduplicate(by=["c0", "l0"], within="1 min", uid="once")
        joined = once.join(right, on=["c0", "l0"], within="1 min", how="full", prefix="their_", uid="joined")
        joined.sink("joined", DeltaAppend("tables/joined"))

    value = {"a.b": {"x": 1, "y": ["é", None]}} if schema == NESTED else {"m": {"k": 1}}
    lefts = [{"c0": n % 2, "l0": None if n == 3 else "k", **value, "at": f"2026-01-01T00:0{n}:00Z"} for n in range(6)]
    rights = [{"c0": n % 2, "l0": "k", "r0": n / 2, "at": f"2026-01-01T00:0{n}:20Z"} for n in range(6)]

    def joined(root: Path) -> Counter[Any]:
        play = SmallPipeline(root, spark, build)
        for begin in range(0, 6, 2):
            play.feed(lefts[begin : begin + 2], "left")
            play.feed(rights[begin : begin + 2], "right")
            play.checkpoint()
        return Counter(str(sorted(row.items())) for row in play.rows("tables/joined"))

    found = joined(tmp_path / "one")
    assert len(found) >= 4
    out_of_reach()
    assert joined(tmp_path / "other") == found


def short(n: int) -> str:
    return f"order {n}"


def long(n: int) -> str:
    return random.Random(n).randbytes(2000).hex()


def counted_texts(pipeline: Pipeline) -> None:
    orders = sources(pipeline, "id long, v string, at timestamp", "orders")
    orders.aggregate(by="v", n="count(*)", uid="n").sink("n", DeltaUpsert("tables/n", keys=["v"]))


@pytest.fixture
def weighed(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[bool]]]:
    """Tells whether Spark weighs the batches of each query by workers, in two checkpoints with 300 orders each."""
    told: list[list[bool]] = []
    real = workers.reported

    def reported(*args: Any, light: bool = False) -> Any:
        told[-1].append(not light)
        return real(*args, light=light)

    def tell(build: Callable[[Pipeline], None], text: Callable[[int], str]) -> list[list[bool]]:
        play = SmallPipeline(tmp_path, spark, build)
        for begin in (0, 300):
            told.append([])
            times = {n: f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z" for n in range(begin, begin + 300)}
            play.feed([{"id": n, "v": text(n), "at": at} for n, at in times.items()], "orders")
            if build is paid_orders:
                play.feed([{"id": n, "paid": n, "at": at} for n, at in times.items()], "payments")
            play.checkpoint()
        return told

    monkeypatch.setattr(workers, "reported", reported)
    return tell


def test_batches_are_weighed_until_rows_are_known_to_be_short(weighed):
    """Those of deduplication always: it keeps keys, which say nothing of the rows."""
    assert weighed(paid_orders, short) == [[True, True], [True, False]]


def test_batches_are_weighed_where_rows_are_long(weighed):
    assert weighed(paid_orders, long) == [[True, True], [True, True]]


def test_batches_are_weighed_where_much_arrives(weighed, monkeypatch):
    monkeypatch.setattr("tidegate.execution.job.run_job.is_small", lambda _: False)
    assert weighed(paid_orders, short) == [[True, True], [True, True]]


@pytest.mark.parametrize(("text", "then"), [(short, [False]), (long, [True])])
def test_a_merge_is_weighed_where_its_keys_are_long(weighed, text, then):
    assert weighed(counted_texts, text) == [[True], then]
