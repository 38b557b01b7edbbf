"""Streams that replace rows: who takes those that are replaced. For nobody, they are not looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.declarations import problems
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, DeltaUpsert, PostgresUpsert
from tidegate.sources import Files


def _stage(counts: Any) -> None:
    @counts.pipeline.stage(counts)
    def passed(counts: Any) -> Any:
        return counts

    passed.sink("passed", DeltaAppend("passed", changelog=True))


@pytest.mark.parametrize(
    ("what", "taken"),
    [
        (lambda counts: counts.sink("log", DeltaAppend("log", changelog=True)), False),
        (lambda counts: counts.sink("now", DeltaUpsert("now", keys=["k"])), False),
        (lambda counts: counts.sink("now", DeltaUpsert("now", keys=["n"])), True),
        (
            lambda counts: counts.aggregate(by=["n"], uid="again", m="count(*)").sink(
                "m", DeltaUpsert("m", keys=["n"])
            ),
            True,
        ),
        (_stage, True),
        (lambda counts: counts.sink("now", PostgresUpsert("now", connection="shop", keys=["k"])), False),
        (lambda counts: counts.sink("now", PostgresUpsert("now", connection="shop", keys=["n"])), True),
    ],
    ids=[
        *("a log of changes", "an upsert by its keys", "an upsert by others", "an aggregate", "a stage"),
        *("a database by its keys", "a database by others"),
    ],
)
def test_who_takes_rows_that_are_replaced(what: Callable[[Any], None], taken: bool) -> None:
    pipeline = Pipeline("counting")
    rows = pipeline.source("rows", Files("landing/*.json", schema="k long"))
    what(rows.aggregate(by=["k"], uid="counts", n="count(*)"))
    assert pipeline.graph().wants_retractions("counts") == taken


# -- joins ---------------------------------------------------------------------------------------------------

ROWS = "k string, v long, at timestamp"


def joining(build: Callable[[Any, Any], Any], **sink: Any) -> Pipeline:
    """Two streams that only add rows, and what is made of them, in a table that only adds rows."""
    pipeline = Pipeline("joining")
    rows = pipeline.source("rows", Files("rows/*.json", schema=ROWS), event_time="at")
    other = pipeline.source(
        "other", Files("other/*.json", schema="k string, w long, then timestamp"), event_time="then"
    )
    build(rows, other).sink("told", DeltaAppend("told", **sink))
    other.sink("other", DeltaAppend("other"))
    return pipeline


@pytest.mark.parametrize(
    ("how", "replaces"),
    [("inner", False), ("semi", False), ("left", True), ("right", True), ("full", True), ("anti", True)],
)
def test_what_two_streams_that_add_rows_have_in_common_only_grows(how: str, replaces: bool) -> None:
    def build(rows: Any, other: Any) -> Any:
        return rows.join(other, on="k", how=how, uid="both")

    assert joining(build, changelog=True).graph().updating == ({"both"} if replaces else set())
    if replaces:
        (found,) = problems(joining(build))
        assert "both" in found
    else:
        joining(build).graph()


def test_a_join_of_a_stream_that_replaces_rows_replaces_rows_itself() -> None:
    def build(rows: Any, other: Any) -> Any:
        newest = other.latest(by="k", order_by="w", uid="newest")
        return rows.join(newest, on="k", uid="both").aggregate(by="k", uid="most", m="max(v)")

    (found,) = problems(joining(build, changelog=True))
    assert "max cannot retract a row" in found
    joining(
        lambda rows, other: rows.join(other, on="k").aggregate(by="k", uid="most", m="max(v)"), changelog=True
    ).graph()


@pytest.mark.parametrize(
    ("build", "column"),
    [
        (lambda rows, other: rows.join(other, on="k"), "at"),
        (lambda rows, other: rows.join(other, on="k"), "then"),
        (lambda rows, other: rows.join(other, on="k", as_of=True), "then"),
    ],
    ids=["the left side's", "the right side's", "a version's"],
)
def test_a_time_of_rows_that_are_kept_forever_is_no_event_time(build: Callable[[Any, Any], Any], column: str) -> None:
    def windowed(name: str) -> Pipeline:
        return joining(
            lambda rows, other: build(rows, other).window(tumbling="1 h", event_time=name, uid="hours", n="count(*)")
        )

    (found,) = problems(windowed(column))
    assert f"event_time={column!r} is a time of rows that a join, or" in found
    assert f"greatest({column}, …)" in found
    windowed("the_later").graph()


def test_a_key_that_is_forgotten_by_the_watermark_takes_rows_of_any_age() -> None:
    """What it keeps has the time of its checkpoint's watermark, not that of the row. So no row is late."""

    def build(rows: Any, other: Any) -> Any:
        return rows.join(other, on="k").deduplicate(by="k", state_ttl="1 day", ttl_time="event", uid="once")

    (once,) = (node for node in joining(build).graph().operators if node.name == "once")
    assert once.spec.uses_event_time


def test_several_streams_are_joined_one_after_the_other() -> None:
    def build(rows: Any, other: Any) -> Any:
        third = rows.pipeline.source("third", Files("third/*.json", schema="k string, x long"))
        return rows.join(other, third, on="k", uid="all")

    graph = joining(build).graph()
    assert [(stage.name, stage.inputs) for stage in graph.stages] == [
        ("all-1", ("rows", "other")),
        ("all", ("all-1", "third")),
    ]
    assert graph.updating == set()


@pytest.mark.parametrize(
    ("join", "said"),
    [
        ({"how": "outer"}, "how='outer': expected inner or left or right or full or semi or anti"),
        ({"as_of": True, "how": "anti"}, "how='anti': expected inner or left"),
        ({"as_of": True, "within": "1 h"}, "a join with as_of=True looks up one version"),
        ({"within": "1 h", "state_ttl": "1 day"}, "has within='1 h', which bounds how long rows are kept"),
        ({"state_ttl": "0 s"}, "state_ttl is '0 s': write a duration above 0"),
        ({"prefix": ["a_", "b_"]}, "prefix=['a_', 'b_'], in a join of 1 of them"),
    ],
    ids=str,
)
def test_a_join_that_cannot_be_is_refused(join: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        joining(lambda rows, other: rows.join(other, on="k", **join), changelog=True).graph()
    assert said in str(caught.value)


def test_a_full_join_of_three_streams_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(Invalid) as caught:
        joining(lambda rows, other: rows.join(other, other, on="k", how="full"))
    assert "depend on the order" in str(caught.value)
    assert 'a.join(b, …, how="full").join(c, …)' in str(caught.value)


# -- top_n of windows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "by", "replaces"),
    [
        ({"tumbling": "1 h"}, "window_end", False),
        ({"hopping": ("1 h", "10 min")}, ["window_start", "k"], False),
        ({"tumbling": "1 h"}, "k", True),
        ({"session": "1 h"}, "window_end", True),
        ({"tumbling": "1 h", "allowed_lateness": "1 h"}, "window_end", True),
    ],
    ids=str,
)
def test_the_first_rows_of_a_closed_window_are_final(window: dict[str, Any], by: Any, replaces: bool) -> None:
    def build(rows: Any, _: Any) -> Any:
        hours = rows.window(**window, by="k", uid="hours", n="count(*)")
        return hours.top_n(1, by=by, order_by="n desc", rank="rank", uid="best")

    assert ("best" in joining(build, changelog=True).graph().updating) == replaces


def test_an_unknown_rank_is_refused() -> None:
    (found,) = problems(joining(lambda rows, _: rows.top_n(1, by="k", order_by="v", rank="place"), changelog=True))
    assert 'rank=\'place\': expected "row_number" or "rank" or "dense_rank"' in found
