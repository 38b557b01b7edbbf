"""What an interval pipeline may declare: operators and upserts that are right within one interval, and no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.kit.declarations import one_problem, problems, sink
from tests.kit.toys import ToyFeed, ToyIntervals
from tidegate import Pipeline
from tidegate.gates import Unseen
from tidegate.operators.base import Operator
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert

HOUR = timedelta(hours=1)
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def by_interval():
    pipeline = Pipeline("p")
    return pipeline, pipeline.source("in", ToyIntervals(ToyFeed()), event_time="at")


def test_what_an_operator_gives_replaces_nothing_so_anything_may_follow():
    """In a continuous pipeline each of these followers is refused behind an aggregate."""
    pipeline, rows = by_interval()
    totals = rows.aggregate(by="k", n="count(*)", at="max(at)", uid="totals")
    totals.sink("totals", DeltaAppend("tables/totals"))
    totals.window(tumbling="1 hour", n="sum(n)", uid="hours").sink("hours", sink("hours"))
    totals.deduplicate(by="n", uid="once").aggregate(by="k", low="min(n)", uid="low").sink("low", sink("low"))
    graph = pipeline.graph(Place("/data"))
    assert graph.updating == frozenset()
    assert set(graph.tables) == {"totals", "hours", "low"}, "no state has a table"
    assert all(operated.states == {} for operated in graph.operators)


def test_operators_that_are_right_within_an_interval_are_taken():
    pipeline, rows = by_interval()
    other = pipeline.source("other", ToyIntervals(ToyFeed()), event_time="at")
    streams = [
        rows.aggregate(by="k", n="count(distinct v)", uid="a"),
        rows.deduplicate(by="k", uid="b"),
        rows.deduplicate(by="k", within="1 hour", uid="c"),
        rows.latest(by="k", order_by="at", uid="d"),
        rows.top_n(2, by="k", order_by="at", uid="e"),
        rows.join(other, on="k", how="left", uid="f"),
        rows.join(other, on="k", within="1 hour", how="full", uid="g"),
        rows.join(table="tables/customers", on="k", uid="h"),
        rows.window(tumbling="1 hour", n="count(*)", emit="update", uid="i"),
        rows.window(session="1 hour", n="count(*)", allowed_lateness="1 day", uid="j"),
        rows.window(hopping=("1 hour", "60 min"), n="count(*)", uid="k"),
        rows.process(by="k", state="n long", output="n long", in_order=True, uid="l")(lambda *_: ()),
    ]
    for number, stream in enumerate(streams):
        stream.sink(f"s{number}", sink(f"s{number}"))
    assert len(pipeline.graph(Place("/data")).operators) == len(streams)


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (
            lambda rows: rows.aggregate(by="k", n="count(*)", state_ttl="1 day", uid="x"),
            "aggregate 'x', in a pipeline that reads by data interval: state_ttl: no state outlives the "
            "interval, so nothing expires: leave it out",
        ),
        (
            lambda rows: rows.process(by="k", state="n long", output="n long", state_ttl="1 day", uid="x")(
                lambda *_: ()
            ),
            "process 'x', in a pipeline that reads by data interval: state_ttl: no state outlives",
        ),
        (
            lambda rows: rows.window(hopping=("1 hour", "10 min"), n="count(*)", uid="x"),
            "window 'x', in a pipeline that reads by data interval: hopping=('1 hour', '10 min'): windows that overlap "
            "cross the borders of intervals, and each interval would emit a part of them: use tumbling windows",
        ),
    ],
)
def test_what_would_rest_on_other_intervals_is_refused_with_what_to_do(declare, text):
    pipeline, rows = by_interval()
    declare(rows).sink("out", sink())
    assert one_problem(pipeline).startswith(text)


def test_a_lookup_table_holds_rows_of_earlier_checkpoints_so_it_is_refused():
    pipeline, rows = by_interval()
    rules = pipeline.source("rules", ToyIntervals(ToyFeed())).broadcast(by="k", order_by="at", uid="x")
    pipeline.stage(rows, rules, name="looked")(lambda rows, rules: rows).sink("out", sink())
    assert "broadcast 'x', in a pipeline that reads by data interval: it emits rows of earlier" in one_problem(pipeline)


def test_a_gate_against_an_operators_memory_is_refused():
    pipeline, rows = by_interval()
    rows.deduplicate(by="k", uid="once").sink("once", sink("once"))
    rows.gate(Unseen("k", against="once"), name="new").sink("out", sink())
    assert "against='once': operators have no state beyond the interval" in one_problem(pipeline)


def test_an_operator_that_does_not_say_that_it_is_right_is_refused():
    class Own(Operator):
        kind = "own"

        def describe(self):
            return {}

        def run(self, inputs, context):
            return {"": inputs[0]}

    pipeline, rows = by_interval()
    rows.apply(Own(), uid="x").sink("out", sink())
    assert "own 'x', in a pipeline that reads by data interval: it may depend on rows of earlier" in one_problem(
        pipeline
    )


# -- upserts ---------------------------------------------------------------------------------------------


def test_an_upsert_is_taken_if_its_keys_have_the_interval_in_them():
    pipeline, rows = by_interval()
    rows.sink("out", DeltaUpsert("tables/t", keys=["day", "k"], interval_column="day"))
    assert pipeline.graph(Place("/data")).sinks["out"].sink.describe()["interval_column"] == "day"
    assert "interval_column" not in DeltaUpsert("tables/t", keys=["k"]).describe(), "records stay as they were"


def test_an_upsert_whose_keys_may_be_of_several_intervals_is_refused():
    pipeline, rows = by_interval()
    rows.sink("out", DeltaUpsert("tables/t", keys=["k"]))
    assert one_problem(pipeline) == (
        "sink 'out', in a pipeline that reads by data interval: a key could have rows of several intervals, and the "
        "order in which the intervals run would decide which one remains: add the interval's day or hour to keys and "
        "set interval_column=…; or use DeltaAppend, or sources that read all new rows"
    )
    pipeline, rows = by_interval()
    rows.sink("out", DeltaUpsert("tables/t", keys=["k"], interval_column="day"))
    assert problems(pipeline)[0].startswith("sink 'out': interval_column 'day' is not one of keys (k): add it")


# -- intervals and windows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "size", "fits"),
    [((0, 24), "1 hour", True), ((0, 24), "1 day", True), ((22, 46), "1 day", False), ((0, 1), "2 hours", False)],
)
def test_windows_must_fill_the_interval(hours, size, fits):
    """One at a border would come out of both intervals, each time in part."""
    _, rows = by_interval()
    window = rows.window(tumbling=size, n="count(*)", uid="x").pipeline._stages[-1].spec
    problem = window.intervals.misfit(Interval.between(*(DAY + hour * HOUR for hour in hours)))
    assert (problem is None) == fits
