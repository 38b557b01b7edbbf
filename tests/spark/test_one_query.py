"""No detail of a declaration costs an operator another query: a key of another type, late rows that somebody takes, an
interval, a state that expires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import turn_of
from tests.spark.days import Days
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.pipeline.declare import Stream
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

SCHEMA = "k long, d double, b boolean, x binary, s struct<a: long, f: double>, v long, at timestamp"
KEYS = ("k", "d", "b", "x", "s")
Build = Callable[[Stream, Stream, str], Stream]

OPERATORS: dict[str, Build] = {
    "deduplicate": lambda rows, _, by: rows.deduplicate(by=by, uid="it"),
    "deduplicate within": lambda rows, _, by: rows.deduplicate(by=by, within="1 min", uid="it"),
    "latest": lambda rows, _, by: rows.latest(by=by, order_by="at", uid="it"),
    "latest, by a struct": lambda rows, _, by: rows.latest(by=by, order_by=["s", "at"], uid="it"),
    "top_n": lambda rows, _, by: rows.top_n(2, by=by, order_by="v desc", uid="it"),
    "top_n, with rank": lambda rows, _, by: rows.top_n(2, by=by, order_by="v desc", rank="rank", uid="it"),
    "top_n of a window": lambda rows, _, by: rows.top_n(2, by=by, order_by="v", tumbling="1 min", uid="it"),
    "aggregate": lambda rows, _, by: rows.aggregate(by=by, n="count(*)", total="sum(v)", uid="it"),
    "window": lambda rows, _, by: rows.window(tumbling="1 min", by=by, total="sum(v)", late="side", uid="it"),
    "window, updated": lambda rows, _, by: rows.window(
        tumbling="1 min", by=by, total="sum(v)", emit="update", late="side", uid="it"
    ),
    "session": lambda rows, _, by: rows.window(session="1 min", by=by, total="sum(v)", late="side", uid="it"),
    "session, of late rows": lambda rows, _, by: rows.window(
        session="1 min", by=by, total="sum(v)", allowed_lateness="1 min", uid="it"
    ),
    "over": lambda rows, _, by: rows.over(
        by=by, total="sum(v)", mean="avg(v + 1)", before="lag(v * 2)", nth="row_number()", uid="it"
    ),
    "over a few rows": lambda rows, _, by: rows.over(
        by=by, rows=2, most="max(at)", n="count(*)", state_ttl="1 day", uid="it"
    ),
    "window by count": lambda rows, _, by: rows.window(count=2, by=by, n="count(*)", mean="avg(v * 2)", uid="it"),
    "join": lambda rows, other, by: rows.join(other, on=by, within="1 min", prefix="o_", uid="it"),
    "join, full": lambda rows, other, by: rows.join(other, on=by, within="1 min", how="full", prefix="o_", uid="it"),
    "join, semi": lambda rows, other, by: rows.join(other, on=by, within="1 min", how="semi", uid="it"),
    "join, anti": lambda rows, other, by: rows.join(other, on=by, within="1 min", how="anti", uid="it"),
    "every": lambda rows, _, by: rows.every(2, uid="it"),
    "every, of what is replaced": lambda rows, _, by: rows.aggregate(by=by, n="count(*)").every(2, uid="it"),
    "join of all rows": lambda rows, other, by: rows.join(other, on=by, prefix="o_", uid="it"),
    "join of all rows, left": lambda rows, other, by: rows.join(other, on=by, how="left", prefix="o_", uid="it"),
    "join of all rows, semi": lambda rows, other, by: rows.join(other, on=by, how="semi", uid="it"),
    "join as of a time": lambda rows, other, by: rows.join(other, on=by, as_of=True, prefix="o_", uid="it"),
    "join as of a time, left": lambda rows, other, by: rows.join(
        other, on=by, as_of=True, how="left", state_ttl="1 day", prefix="o_", uid="it"
    ),
    "join, forgotten": lambda rows, other, by: rows.join(other, on=by, state_ttl="1 day", prefix="o_", uid="it"),
}


def declared(
    build: Build, by: str, *, takes_late: bool = False, by_interval: bool = False
) -> Callable[[Pipeline], None]:
    def declare(pipeline: Pipeline) -> None:
        rows, other = (
            sources(pipeline, SCHEMA, name, event_time="at", watermark="1 min") for name in ("rows", "others")
        )
        made = build(rows, other, by)
        counted = made.aggregate(by=[], n="count(*)", uid="counted")
        counted.sink("out", DeltaAppend("tables/out") if by_interval else DeltaUpsert("tables/out", keys=["n"]))
        other.sink("others", DeltaAppend("tables/others"))
        for name in made._outputs if takes_late else ():
            made[name].sink(name, DeltaAppend(f"tables/{name}"))

    return declare


def row(n: int, minute: int) -> dict[str, Any]:
    keys = {"k": n, "d": n / 2, "b": n % 2 == 0, "x": "AQI=" if n % 2 else "", "s": {"a": n, "f": -0.0}}
    return keys | {"v": 10 * minute + n, "at": f"2026-01-01T00:0{minute}:0{n}Z"}


def queries(ack: Any) -> int:
    """How many queries the operator has cost."""
    (step,) = (step for step in ack.stats.steps if step.name == "state it")
    assert step.computed is not None
    assert step.computed.workers
    assert not step.computed.spark
    found: int = step.spark.queries
    return found


@pytest.mark.parametrize("name", turn_of(list(OPERATORS), 12))
def test_an_operator_is_one_query_by_whatever_key_and_whoever_takes_late_rows(
    name: str, tmp_path: Path, connect_spark: Any
) -> None:
    """And one more where it goes by event time: that of all sources is looked up then."""
    cost: dict[str, int] = {}
    for by in KEYS:
        for takes_late in (False, True):
            what = f"by {by}, late rows are {'' if takes_late else 'not '}taken"
            build = declared(OPERATORS[name], by, takes_late=takes_late)
            play = SmallPipeline(tmp_path / what, connect_spark, build)
            for minute in range(2):
                play.feed([row(n, minute) for n in range(4)])
                play.feed([row(n, minute) for n in range(1, 5)], "others")
                id = play.checkpoint()
            (spec,) = (stage.spec for stage in play.graph().operators if stage.name == "it")
            cost[what] = queries(play.ack(id)) - spec.uses_event_time
    assert cost == dict.fromkeys(cost, 1)


BY_DAY = ["deduplicate within", "window", "session", "join, full", "over", "window by count", "top_n of a window"]


@pytest.mark.parametrize("name", turn_of(BY_DAY, 8))
def test_an_operator_is_one_query_by_interval(name: str, tmp_path: Path, connect_spark: Any) -> None:
    def by_day(pipeline: Pipeline) -> None:
        declared(OPERATORS[name], "d", by_interval=True)(pipeline)
        for place, node in enumerate(pipeline._sources):
            assert isinstance(node.source, Files)
            pattern = node.source.pattern.replace("landing/", "landing/{start:%Y-%m-%d}/")
            pipeline._sources[place] = replace(node, source=Files(pattern, schema=node.source.schema))

    days = Days(tmp_path, connect_spark, by_day)
    for source in ("rows", "others"):
        days.write(0, [row(n, 0) for n in range(4)], source)
    found = days.coordinator().ledger.ack(days.make(0), "main")
    assert found is not None
    assert queries(found.ack) in (1, 2), "one may be for event time"
