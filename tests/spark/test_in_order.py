"""Rows that come in the order of event time: without a key, over state that expires, and while the code changes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.random_cuts import Telling
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.errors import Invalid
from tidegate.execution.by_hand import editing
from tidegate.operators.join.as_of import AsOfJoin
from tidegate.operators.over import OverRows
from tidegate.sinks import DeltaAppend
from tidegate.spark.row_id import row_id

pytestmark = in_turn(seconds=30)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SCHEMA = "k string, v long, at timestamp"


def test_keys_that_have_been_quiet_for_too_long_begin_anew(tmp_path: Path, spark: Any) -> None:
    """By the clock: each checkpoint is a day after the one before."""

    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, SCHEMA, event_time="at")
        rows.over(before="lag(v)", uid="all").sink("all", DeltaAppend("tables/all"))
        kept = rows.over(by="k", before="lag(v, 2)", nth="row_number()", s="sum(v)", state_ttl="36 h", uid="kept")
        kept.sink("kept", DeltaAppend("tables/kept"))
        twos = rows.window(count=2, by="k", s="sum(v)", state_ttl="36 h", uid="twos")
        twos.sink("twos", DeltaAppend("tables/twos"))

    play, moved, tasks = SmallPipeline(tmp_path, spark, declare), iter(range(100)), itertools.cycle([1, 2, -2])

    def day(number: int, *rows: tuple[str, int], fault: str = "") -> None:
        play.feed([{"k": k, "v": v, "at": (BEGIN + next(moved) * MINUTE).isoformat()} for k, v in (*rows, ("-", 0))])
        with seams.installed(seams.Seams(now=lambda: BEGIN + timedelta(days=number))):
            Telling(play, spark, tasks).checkpoint(fault)

    day(0, ("a", 1), ("a", 2), ("b", 4), ("c", 8))
    day(1, ("a", 16), fault="crash")
    day(2, ("a", 32), ("b", 64), fault="twice")  # b's first row is two days old
    day(3, ("c", 128), fault="early")
    kept = [(r["k"], r["v"], r["before"], r["nth"], r["s"]) for r in play.rows("tables/kept") if r["k"] != "-"]
    assert sorted(kept) == [
        ("a", 1, None, 1, 1),
        ("a", 2, None, 2, 3),
        ("a", 16, 1, 3, 19),
        ("a", 32, 2, 4, 51),
        ("b", 4, None, 1, 4),
        ("b", 64, None, 1, 64),
        ("c", 8, None, 1, 8),
        ("c", 128, None, 1, 128),
    ]
    twos = [(r["k"], r["s"]) for r in play.rows("tables/twos") if r["k"] != "-"]
    assert sorted(twos) == [("a", 3), ("a", 48)]
    befores = [r["before"] for r in sorted(play.rows("tables/all"), key=lambda row: row["at"])]
    assert befores == [None, 1, 2, 4, 8, 0, 16, 0, 32, 64, 0]


def test_a_late_row_that_nothing_can_be_computed_of_is_set_aside_like_any_other(tmp_path: Path, spark: Any) -> None:
    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, SCHEMA, event_time="at")
        running = rows.over(by="k", s="sum(100 div v)", before="lag(100 div v)", uid="running")
        running.sink("running", DeltaAppend("tables/running"))
        running["late"].sink("late", DeltaAppend("tables/late"))
        ones = rows.window(count=1, by="k", s="sum(100 div v)", uid="ones")
        ones.sink("ones", DeltaAppend("tables/ones"))

    play = SmallPipeline(tmp_path, spark, declare)

    def checkpoint(*rows: tuple[int, int]) -> None:
        play.feed([{"k": "a", "v": v, "at": minute(number)} for number, v in rows])
        play.checkpoint()

    checkpoint((10, 4))
    checkpoint((5, 0), (20, 5))
    checkpoint((30, 1))
    running = {row["v"]: (row["s"], row["before"]) for row in play.rows("tables/running")}
    assert running == {4: (25, None), 5: (45, 25)}
    assert [row["v"] for row in play.rows("tables/late")] == [0]
    assert sorted(row["s"] for row in play.rows("tables/ones")) == [20, 25]
    with pytest.raises(Invalid, match="by zero"):
        checkpoint((40, 0))


def test_history_comes_before_all_rows_however_old_it_is_and_only_to_who_has_taken_none(
    tmp_path: Path, spark: Any
) -> None:
    """The watermark has long passed it when the operators are added."""

    def told(key: Any, rows: Any, state: Any, timers: Any) -> Any:
        for fired in timers.fired:
            yield {"k": key["k"], "told": f"{fired.name} at {state.n}"}
        for row in rows.to_pylist():
            state.n = (state.n or 0) + row["v"]
            timers.event(row["at"] + 5 * MINUTE, f"after {row['v']}")

    def declared(version: int) -> Any:
        def declare(pipeline: Pipeline) -> None:
            rows = sources(pipeline, SCHEMA, event_time="at")
            rows.sink("rows", DeltaAppend("tables/rows"))
            if version:
                steps = rows.over(by="k", s="sum(v)", nth="row_number()", uid="steps")
                steps.sink("steps", DeltaAppend("tables/steps"))
                threes = rows.window(count=3, by="k", s="sum(v)", uid="threes")
                threes.sink("threes", DeltaAppend("tables/threes"))
                made = rows.process(by="k", state="n long", output="k string, told string", in_order=True, uid="told")
                made(told).sink("told", DeltaAppend("tables/told"))

        return declare

    def row(minute: int, v: int) -> dict[str, Any]:
        return {"k": "a", "v": v, "at": (BEGIN + minute * MINUTE).isoformat()}

    play = SmallPipeline(tmp_path, spark, declared(0))
    play.play([[row(100, 1)]])
    play.build = declared(1)
    history = spark.createDataFrame(
        [("a", v, BEGIN + minute * MINUTE) for minute, v in ((8, 80), (1, 10), (2, 20), (3, 40))], SCHEMA
    )
    for uid in ("steps", "threes", "told"):
        editing.bootstrap(play.coordinator(), spark, uid, {"rows": history})
        assert play.rows(f"tables/{uid}") == [], "what is final is not given for history"
    play.play([[row(101, 2), row(150, 0)], [row(151, 0)]])
    steps = sorted((r["nth"], r["v"], r["s"]) for r in play.rows("tables/steps"))
    assert steps == [(5, 2, 152), (6, 0, 152)]
    assert [r["s"] for r in play.rows("tables/threes")] == [82], "the first three were history alone"
    told_now = sorted(r["told"] for r in play.rows("tables/told"))
    assert told_now == ["after 2 at 152", "after 80 at 150"], "timers of history fire up to its newest row"
    with pytest.raises(Invalid, match="operator 'steps' takes rows in order of event time, and has taken some"):
        editing.bootstrap(play.coordinator(), spark, "steps", {"rows": history})


def test_a_stream_gets_a_column_while_rows_of_two_wait(tmp_path: Path, spark: Any) -> None:
    def told(key: Any, orders: Any, payments: Any, state: Any, timers: Any) -> Any:
        state.n = (state.n or 0) + orders.num_rows + payments.num_rows
        for row in orders.to_pylist():
            yield {"k": key["k"], "told": f"{state.n}: order {row['v']} from {row.get('shop')}"}
        for row in payments.to_pylist():
            yield {"k": key["k"], "told": f"{state.n}: payment {row['v']}"}

    def declared(schema: str) -> Any:
        def declare(pipeline: Pipeline) -> None:
            orders = sources(pipeline, schema, "orders", event_time="at")
            payments = sources(pipeline, "v double, k string, then timestamp", "payments", event_time="then")
            made = orders.process(by="k", state="n long", output="k string, told string", other=payments, in_order=True)
            made(told).sink("told", DeltaAppend("tables/told"))

        return declare

    def minute(number: int) -> str:
        return (BEGIN + number * MINUTE).isoformat()

    play = SmallPipeline(tmp_path, spark, declared(SCHEMA))
    play.feed([{"k": "a", "v": 1, "at": minute(3)}], "orders")
    play.feed([{"k": "a", "v": 1, "then": minute(2)}, {"k": "a", "v": 2, "then": minute(4)}], "payments")
    play.checkpoint()
    assert [row["told"] for row in play.rows("tables/told")] == ["1: payment 1.0"]
    play.build = declared("shop string, " + SCHEMA)
    play.feed([{"k": "a", "v": 1, "at": minute(3)}, {"shop": "x", "k": "a", "v": 5, "at": minute(9)}], "orders")
    play.feed([{"k": "a", "v": 3, "then": minute(9)}], "payments")
    play.checkpoint()
    assert sorted(row["told"] for row in play.rows("tables/told")) == [
        "1: payment 1.0",
        "3: order 1 from None",
        "3: order 1 from None",
        "4: payment 2.0",
    ]


def minute(number: int) -> str:
    return (BEGIN + number * MINUTE).isoformat()


def put_as_before(rows: Any, part: str, context: Any) -> None:
    """Let rows wait as earlier versions did: in key groups by the whole key, and without anything computed of them."""
    rows = rows.select("k", row_id(rows).alias("_row"), *rows.columns[1:])
    rows = rows.selectExpr(
        "*", "unix_micros(at) AS _at", *(["2L AS _n"] if part == "waiting" else []), "false _deleted"
    )
    grouped_by = [] if part == "waiting" else ["k"]
    context.state(["k", "_row"], part, grouped_by=grouped_by).write_changes(rows, deletes=True)


def test_rows_and_versions_that_earlier_versions_have_kept_are_read_on(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, v long, at timestamp", event_time="at")
        versions = sources(pipeline, "k string, w long, at timestamp", "versions", event_time="at")
        then = rows.join(versions, on="k", as_of=True, how="left", prefix="then_", uid="then")
        then.sink("then", DeltaAppend("tables/then"))

    def as_before(_: Any, inputs: Any, context: Any) -> Any:
        for rows, part in zip(inputs, ("waiting", "versions"), strict=True):
            put_as_before(rows, part, context)
        none = inputs[0].where("false")
        return {"": none.selectExpr("*", "1L AS w", "at AS then_at"), "late": none}

    play = SmallPipeline(tmp_path, spark, declare)
    play.feed([{"k": k, "v": v, "at": minute(5)} for v, k in enumerate(("a", "b", None))])
    play.feed([{"k": "a", "w": w, "at": minute(w)} for w in (2, 3, 9)], "versions")
    with monkeypatch.context() as patched:
        patched.setattr(AsOfJoin, "run", as_before)
        play.checkpoint()
    assert play.state("then.waiting").grouped_by == []
    play.feed([{"k": "b", "v": 1, "at": minute(5)}, {"k": "c", "v": 3, "at": minute(11)}])
    play.feed([{"k": "b", "w": 4, "at": minute(4)}, {"k": "-", "w": 0, "at": minute(11)}], "versions")
    play.checkpoint()
    found = sorted((row["v"], row["k"], row["w"]) for row in play.rows("tables/then"))
    assert found == [(0, "a", 3), (0, "a", 3), (1, "b", 4), (1, "b", 4), (1, "b", 4), (2, None, None), (2, None, None)]
    assert play.state("then.waiting").grouped_by == ["k"]


@pytest.mark.parametrize("by", ["k", []])
def test_what_earlier_versions_have_kept_of_the_rows_before_is_read_on(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, by: Any
) -> None:
    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, v long, at timestamp", event_time="at")
        running = rows.over(by=by, s="sum(v * 2)", nth="row_number()", before="lag(v + 1, 2)", uid="running")
        running.sink("running", DeltaAppend("tables/running"))

    def as_before(_: Any, inputs: Any, context: Any) -> Any:
        """It has given two rows, of which it keeps what is needed of them, and lets a third one wait."""
        (rows,) = inputs
        kept = rows.where("v < 3").select("k", row_id(rows).alias("_row"), *rows.columns[1:])
        places = ["CAST(v % 2 AS INT) AS _place", "unix_micros(at) AS _at", "v * (v + 1) AS s", "v AS _number"]
        state = context.state([*by, "_place"], "last", grouped_by=list(by))
        state.write_changes(kept.selectExpr(*kept.columns, *places))
        waiting = rows.where("v = 3")
        put_as_before(waiting, "waiting", context) if by else context.state(["_row"], "waiting").write_changes(
            waiting.select("*", row_id(waiting).alias("_row")).selectExpr("*", "unix_micros(at) AS _at", "2L AS _n")
        )
        none = rows.where("false")
        return {"": none.selectExpr("*", "1L AS s", "1L AS nth", "1L AS before"), "late": none}

    play = SmallPipeline(tmp_path, spark, declare)
    play.feed([{"k": "a", "v": v, "at": minute(v)} for v in (1, 2, 3)])
    with monkeypatch.context() as patched:
        patched.setattr(OverRows, "run", as_before)
        play.checkpoint()
    play.feed([{"k": "a", "v": v, "at": minute(v)} for v in (4, 5)])
    play.checkpoint()
    play.feed([{"k": "a", "v": 6, "at": minute(6)}])
    play.checkpoint()
    found = sorted((row["nth"], row["v"], row["s"], row["before"]) for row in play.rows("tables/running"))
    assert found == [(3, 3, 12, 2), (4, 3, 18, 3), (5, 4, 26, 4), (6, 5, 36, 4)]
