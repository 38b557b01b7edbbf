"""Work that is done at once: results in order, and no failure before everything has ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial

import pytest

from tests.kit.toys import ToyFeed, ToySource
from tidegate import Pipeline
from tidegate.execution.parallel import call_in_parallel, order_stages
from tidegate.pipeline.graph.graph import Node
from tidegate.sinks import DeltaUpsert

MOOD: ContextVar[str] = ContextVar("MOOD", default="unknown")


def test_results_come_in_the_order_of_the_works_though_each_waits_for_the_next() -> None:
    done = [threading.Event() for _ in range(4)]
    done[3].set()

    def work(number: int) -> int:
        if number < 3:
            assert done[number + 1].wait(30), "they are not at work at once"
        done[number].set()
        return number

    assert call_in_parallel([partial(work, number) for number in range(4)]) == [0, 1, 2, 3]


def test_a_failure_is_raised_when_nothing_is_at_work_any_more() -> None:
    has_failed, ended = threading.Event(), []

    def fail() -> None:
        has_failed.set()
        raise ValueError("no")

    def work_on() -> None:
        assert has_failed.wait(30)
        ended.append(True)

    with pytest.raises(ValueError, match="no"):
        call_in_parallel([work_on, fail])
    assert ended


def test_each_sees_the_context_of_its_caller() -> None:
    token = MOOD.set("calm")
    try:
        assert call_in_parallel([MOOD.get, MOOD.get]) == ["calm", "calm"]
    finally:
        MOOD.reset(token)


def graph_of_a_shop() -> Sequence[Node]:
    """Two totals of all rows, one of some of them, and one of the first total."""
    pipeline = Pipeline("shop")
    rows = pipeline.source("rows", ToySource(ToyFeed(), 3))
    first = rows.aggregate(by="k", n="count(*)", uid="first")
    over = first.aggregate(by="n", keys="count(*)", uid="over")
    second = rows.aggregate(by="k", most="max(v)", uid="second")
    some = rows.where("v > 0", name="some").aggregate(by="k", n="count(*)", uid="third")
    for stream, keys in ((over, "n"), (second, "k"), (some, "k")):
        stream.sink(stream.name, DeltaUpsert(f"tables/{stream.name}", keys=[keys]))
    return pipeline.graph().jobs[0].stages


def turns_of(stages: Sequence[Node], *, one_by_one: bool) -> list[list[str]]:
    streams, turns = {"rows"}, []
    for turn in order_stages(stages, streams, one_by_one=one_by_one):
        turns.append([stage.name for stage in turn])
        streams.update(name for stage in turn for name in stage.produces)
    return turns


def test_operators_come_together_as_soon_as_what_they_take_is_there() -> None:
    assert turns_of(graph_of_a_shop(), one_by_one=False) == [["some"], ["first", "second", "third"], ["over"]]


def test_one_by_one_they_come_in_the_order_of_the_graph() -> None:
    stages = graph_of_a_shop()
    assert turns_of(stages, one_by_one=True) == [[stage.name] for stage in stages]


def test_a_stage_whose_input_never_comes_is_not_waited_for_endlessly() -> None:
    turns = order_stages(graph_of_a_shop(), (), one_by_one=False)
    assert [len(next(turns)) for _ in range(5)] == [1] * 5
    assert next(turns, None) is None
