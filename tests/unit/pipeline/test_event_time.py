"""Declarations of event time and windows: what is wrong is told before anything runs, all at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.kit.declarations import one_problem, problems
from tidegate import Pipeline
from tidegate.operators import Window
from tidegate.operators.spec import Updates
from tidegate.pipeline.graph.event_time import event_time_origins, into_operator, sources_to_pause
from tidegate.pipeline.graph.nodes import SourceNode
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files


def files(name: str = "rows") -> Files:
    return Files(f"{name}/*.json", schema="k string, at timestamp")


def windowed(source: dict[str, Any] | None = None, **window: Any) -> Pipeline:
    pipeline = Pipeline("events")
    rows = pipeline.source("rows", files(), **({"event_time": "at"} if source is None else source))
    given = {"tumbling": "1 hour", "n": "count(*)"} | window
    rows.window(uid="hours", **given).sink("hours", DeltaAppend("tables/hours"))
    return pipeline


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ({"tumbling": None}, "it has 0 kinds of window"),
        ({"session": "10 min"}, "it has 2 kinds of window"),
        ({"tumbling": "an hour"}, "tumbling='an hour': expected a duration"),
        ({"tumbling": "2 moons"}, "tumbling='2 moons' ('moons' is not a unit"),
        ({"tumbling": 0}, "tumbling=0 is too short"),
        ({"tumbling": None, "session": "0 s"}, "session='0 s' is too short"),
        ({"tumbling": None, "hopping": "1 h"}, "hopping='1 h': expected a size and a step"),
        ({"tumbling": None, "hopping": ("1 h", "x")}, "hopping's step='x': expected a duration"),
        ({"tumbling": None, "hopping": ("1 h", "2 h")}, "rows between windows would be lost"),
        ({"tumbling": None, "hopping": ("1 day", "1 s")}, "each row would be in 86400 windows, the limit is 1000"),
        ({"allowed_lateness": "never"}, "allowed_lateness='never'"),
        ({"emit": "always"}, "emit='always': expected \"close\""),
        ({"late": "keep"}, "late='keep': expected \"drop\""),
        ({"by": "window_end"}, "by names 'window_end', which tidegate reserves"),
        ({"by": "k", "k": "count(*)"}, "'k' is a key or one of tidegate's own names, and a result"),
        ({"n": "median(v)"}, "median cannot be kept"),
    ],
)
def test_a_window_that_cannot_be_is_refused(window: dict[str, Any], problem: str) -> None:
    found = one_problem(windowed(**window))
    assert found.startswith("window 'hours': ")
    assert problem in found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ({}, ["window 'hours': none of its sources has event time: name the column"]),
        ({"watermark": "1 min"}, ["source 'rows' has a watermark, but no event time", "window 'hours': none of its"]),
        ({"event_time": "at", "watermark": "soon"}, ["source 'rows' has watermark='soon': expected a duration"]),
        ({"event_time": "at", "watermark": -1}, ["source 'rows' has watermark=-1: expected a duration"]),
        ({"event_time": ""}, ["source 'rows' has event_time='': name one of its columns", "window 'hours': none of"]),
    ],
)
def test_a_source_without_sound_event_time_is_refused(source: dict[str, Any], found: list[str]) -> None:
    told = problems(windowed(source))
    assert [text[: len(begin)] for text, begin in zip(told, found, strict=True)] == found


def two_sources(**window: Any) -> Pipeline:
    pipeline = Pipeline("events")
    left = pipeline.source("left", files("left"), event_time="at")
    right = pipeline.source("right", files("right"), event_time="paid_at")
    table = pipeline.source("table", files("table"))

    @pipeline.stage(left, right, table)
    def both(left: Any, right: Any, table: Any) -> Any:
        return left

    hours = both.window(tumbling="1 hour", uid="hours", n="count(*)", **window)
    hours.sink("hours", DeltaUpsert("tables/hours", keys=["window_start"]))
    return pipeline


def test_sources_that_do_not_agree_on_a_column_need_it_named() -> None:
    assert "its sources have several columns of event time (at, paid_at)" in one_problem(two_sources())
    two_sources(event_time="at").graph()


def test_each_side_of_a_join_has_its_own_column_and_must_have_one() -> None:
    def joined(**of_right: Any) -> Pipeline:
        pipeline = Pipeline("events")
        left = pipeline.source("left", files("left"), event_time="at")
        right = pipeline.source("right", files("right"), **of_right)
        near = left.join(right, on="k", within="1 h", uid="near")
        near.sink("near", DeltaAppend("tables/near"))
        return pipeline

    joined(event_time="paid_at").graph()
    assert "join 'near': none of the right side's sources has event time" in one_problem(joined())


def test_what_forgets_by_event_time_must_have_it() -> None:
    def declared(**options: Any) -> Pipeline:
        pipeline = Pipeline("events")
        rows = pipeline.source("rows", files())
        if "within" in options:
            rows.deduplicate(by="k", uid="it", **options).sink("it", DeltaAppend("tables/it"))
        else:
            made = rows.process(by="k", state="n long", output="k string", uid="it", **options)(print)
            made.sink("it", DeltaAppend("tables/it"))
        return pipeline

    declared(in_order=False).graph()
    declared(within=None).graph()
    assert "deduplicate 'it': none of its sources has event time" in one_problem(declared(within="1 h"))
    assert "process 'it': none of its sources has event time" in one_problem(declared(in_order=True))


def test_what_follows_a_window_waits_for_what_the_window_may_hold_back() -> None:
    graph = two_sources(event_time="at", allowed_lateness="5 min").graph()
    found = event_time_origins(graph.sources, graph.stages)
    assert found[into_operator("hours")] == {"left": 0.0, "right": 0.0}, "a source without event time has no say"
    assert found["hours"] == {"left": 3900.0, "right": 3900.0}


def test_a_window_that_gives_each_result_once_does_not_update() -> None:
    def window(**options: Any) -> Window:
        return Window(["k"], {"n": "count(*)"}, tumbling="1 hour", **options)

    def updates(window: Window) -> Updates:
        return window.spec().changelog.updates

    assert updates(window()) is Updates.NEVER
    assert updates(window(emit="update")) is Updates.ALWAYS
    assert updates(window(allowed_lateness="1 min")) is Updates.ALWAYS, "late rows change what was given"
    assert [list(window(late=late).spec().output.others) for late in ("drop", "side")] == [[], ["late"]]


@pytest.mark.parametrize("column", ["window_start", "first", "k", None])
def test_what_follows_sessions_goes_by_their_end_for_they_may_be_of_any_length(column: str | None) -> None:
    """By their start, long ones would be late there: counted, and dropped."""

    def days(**window: Any) -> Pipeline:
        pipeline = Pipeline("events")
        rows = pipeline.source("rows", files(), event_time="at")
        sessions = rows.window(session="30 min", by="k", uid="visits", n="count(*)", first="min(at)", at="min(at)")

        @pipeline.stage(sessions)
        def long(rows: Any) -> Any:
            return rows.where("n > 1")

        once = long.deduplicate(by="k", within="1 day", event_time="window_end", uid="once")
        once.window(tumbling="1 day", uid="days", n="count(*)", **window).sink("days", DeltaAppend("tables/days"))
        return pipeline

    found = one_problem(days(event_time=column))
    assert f"window 'days': event_time={column or 'at'!r} may be older than a session's end" in found
    assert "use event_time='window_end'" in found
    days(event_time="window_end").graph()


@pytest.mark.parametrize("max_ahead", ["an hour", -1, True])
def test_how_far_a_source_may_be_ahead_is_a_duration(max_ahead: object) -> None:
    source = {"event_time": "at", "max_ahead": max_ahead}
    assert f"max_ahead={max_ahead!r}: expected a duration" in one_problem(windowed(source))


def test_without_event_time_nobody_knows_how_far_a_source_is() -> None:
    pipeline = windowed()
    rows = pipeline.source("more", files("more"), max_ahead="1 hour")
    rows.sink("more", DeltaAppend("tables/more"))
    assert "source 'more' has max_ahead='1 hour': expected a duration such as" in one_problem(pipeline)


def test_a_source_waits_for_the_one_furthest_behind_of_those_that_have_input() -> None:
    sources = {name: SourceNode(name, files(name), "at", max_ahead="1 h") for name in ("a", "b", "c", "new")}
    began = datetime(2026, 1, 1, tzinfo=UTC)
    reached = {"a": began + timedelta(hours=1), "b": began, "c": began + timedelta(hours=1, seconds=1)}
    assert sources_to_pause(sources, reached, ["a", "b", "c", "new"]) == {"c": "b"}, "an hour is not too far"
    assert sources_to_pause(sources, reached, ["a", "c"]) == {}, "nothing is waited for that has no input"
    assert sources_to_pause(sources, reached, ["b"]) == {}
    assert sources_to_pause(sources, {}, ["a", "b"]) == {}, "nobody knows yet"
