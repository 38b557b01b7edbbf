"""A state that was made by other code is not taken for what it is not: told when a checkpoint is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.pipeline.graph import Graph
from tidegate.pipeline.meaning import meaning_of, refuse_other_meanings, without_removed
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

Build = Callable[[Any, Any], Any]


def graph(build: Build, **left: Any) -> Graph:
    pipeline = Pipeline("p")
    rows = pipeline.source("rows", Files("rows/*.json", schema="k string, at timestamp"), **{"event_time": "at"} | left)
    other = pipeline.source("other", Files("other/*.json", schema="k string, at timestamp"), event_time="at")
    build(rows, other).sink("told", DeltaAppend("tables/told", changelog=True))
    other.sink("other", DeltaAppend("tables/other"))
    return pipeline.graph()


def refusal(before: Build, now: Build, **left: Any) -> str:
    """What is said if code changes; "" if the state goes on."""
    try:
        refuse_other_meanings(graph(now, **left), meaning_of(graph(before)), 7)
    except Invalid as error:
        return f"{error.reason}: {error.what}"
    return ""


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            lambda rows, _: rows.aggregate(by="k", uid="u", a="sum(v)", b="count(*)"),
            lambda rows, _: rows.aggregate(by=["k", "l"], uid="u", a="sum(v) filter (where w)", c="min(v)"),
            "aggregate 'u': by is k, l, and was k\n"
            "    aggregate 'u': a is sum(CASE WHEN (w) THEN v END), and was sum(v)",
        ),
        (
            lambda rows, _: rows.window(hopping=("60 min", "600 s"), uid="u", n="count(*)"),
            lambda rows, _: rows.window(tumbling="1 h", uid="u", n="count(*)"),
            "window 'u': the window is tumbling 1 h, and was hopping 1 h every 10 min",
        ),
        (
            lambda rows, _: rows.top_n(2, by="k", order_by="v", uid="u"),
            lambda rows, _: rows.top_n(2, by="k", order_by="v asc", uid="u"),
            "top-n 'u': order_by is v asc, and was v desc",
        ),
        (
            lambda rows, _: rows.latest(by="k", order_by="at", uid="u"),
            lambda rows, _: rows.aggregate(by="k", uid="in", n="count(*)").latest(by="k", order_by="at", uid="u"),
            "latest 'u': over a stream that replaces rows is True, and was False",
        ),
        (
            lambda rows, other: rows.join(other, on="k", within="1 h", uid="u"),
            lambda rows, other: rows.join(other, on="k", within="1 h", how="full", event_time=("then", "at"), uid="u"),
            "join 'u': how is full, and was inner\n    join 'u': event_time is then, at, and was at, at",
        ),
        (
            lambda rows, _: rows.deduplicate(by="k", uid="u"),
            lambda rows, _: rows.deduplicate(by="k", within="1 h", uid="u"),
            "deduplicate 'u': within a time is True, and was False",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="k string", uid="u")(print),
            lambda rows, _: rows.process(by="k", state="n long", output="k string", in_order=True, uid="u")(print),
            "process 'u': in order of event time is True, and was False",
        ),
    ],
)
def test_a_state_is_not_taken_for_something_else(before: Build, now: Build, said: str) -> None:
    begin = "STATE_CHANGED: operators remember something else than they mean now, as of checkpoint 7:"
    assert refusal(before, now) == f"{begin}\n    {said}"
    assert refusal(before, before) == refusal(now, now) == ""


def test_what_changes_nothing_is_no_change() -> None:
    def before(rows: Any, other: Any) -> Any:
        hours = rows.window(tumbling="1 h", by="k", uid="hours", n="count( * )", s="SUM(v)")
        return hours.join(other, on="k", within="1 h", event_time=("at", None), uid="near")

    def now(rows: Any, other: Any) -> Any:
        hours = rows.window(tumbling=3600, by=["k"], uid="hours", n="count(*)", s="sum( v )", m="max(v)", late="side")
        return hours.join(other, on="k", within="2 h", event_time=("at", "at"), uid="near")

    assert refusal(before, now) == ""


def test_a_source_that_goes_by_another_column_changes_what_follows() -> None:
    def windowed(rows: Any, _: Any) -> Any:
        return rows.window(tumbling="1 h", uid="u", n="count(*)")

    assert "window 'u': event_time is then, and was at" in refusal(windowed, windowed, event_time="then")


def test_an_operator_that_comes_back_under_its_uid_begins_without_what_its_predecessor_remembered() -> None:
    def both(rows: Any, _: Any) -> Any:
        return rows.aggregate(by="k", uid="sums", n="count(*)").aggregate(by="n", uid="gate", m="count(*)")

    memory = {"rows": {}, "sums": {}, "sums.watermark": {}, "gate.sums": {}, **meaning_of(graph(both))}
    left = without_removed(graph(lambda rows, _: rows.aggregate(by="k", uid="tops", n="count(*)")), memory)
    assert set(left) == {"rows", "gate.sums"}
    assert without_removed(graph(both), memory) == memory
