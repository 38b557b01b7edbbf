"""Streams that are looked up: who may take them, and that they hold nothing back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.pipeline.graph.event_time import column_of, event_time_origins
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

Declare = Callable[[Any, Any], None]


def declared(what: Declare) -> Pipeline:
    """Orders, and rules by country, which `what` takes."""
    pipeline = Pipeline("orders")
    orders = pipeline.source(
        "orders", Files("orders/*.json", schema="id long, k string, at timestamp"), event_time="at"
    )
    changes = pipeline.source("changes", Files("changes/*.json", schema="k string, tax long, at2 timestamp"))
    what(orders, changes.broadcast(by="k", order_by="at2", uid="rules"))
    return pipeline


def looked_up(*streams: Any) -> Any:
    return streams[0].pipeline.stage(*streams, name="taxed")(lambda *frames: frames[0])


def right(orders: Any, rules: Any) -> None:
    looked_up(orders, rules).sink("taxed", DeltaAppend("taxed"))


def to_a_sink(orders: Any, rules: Any) -> None:
    right(orders, rules)
    rules.sink("rules", DeltaAppend("rules"))


def by_an_operator(orders: Any, rules: Any) -> None:
    right(orders, rules)
    rules.aggregate(by="k", n="count(*)", uid="counts").sink("counts", DeltaUpsert("counts", keys=["k"]))


def alone(orders: Any, rules: Any) -> None:
    orders.sink("orders", DeltaAppend("orders"))
    looked_up(rules).sink("taxed", DeltaAppend("taxed"))


def beside_what_is_replaced(orders: Any, rules: Any) -> None:
    counts = orders.aggregate(by="k", n="count(*)", uid="counts")
    looked_up(counts, rules).sink("taxed", DeltaUpsert("taxed", keys=["k"]))


def from_another_job(orders: Any, rules: Any) -> None:
    looked_up(orders.job("pricing"), rules).sink("taxed", DeltaAppend("taxed"))


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (to_a_sink, "sink 'rules' takes rules, all of it in each checkpoint: let it take .latest(…)"),
        (by_an_operator, "'counts' takes rules, all of it in each checkpoint: look it up in a stage"),
        (alone, "stage 'taxed' takes rules and nothing else: name the stream that looks it up, too"),
        (beside_what_is_replaced, "stage 'taxed' takes rules and counts, whose replaced rows"),
        (from_another_job, "of job 'main' in job 'pricing': say .job('pricing') before .broadcast(…)"),
    ],
)
def test_who_cannot_look_it_up_is_told_what_to_do(what: Declare, told: str) -> None:
    with pytest.raises(Invalid) as error:
        declared(what).graph()
    assert told in str(error.value)
    assert "has 1 problem:" in str(error.value)


def test_only_what_changes_it_goes_from_job_to_job() -> None:
    pipeline = Pipeline("orders")
    orders = pipeline.source("orders", Files("orders/*.json", schema="id long, k string"))
    changes = pipeline.source("changes", Files("changes/*.json", schema="k string, tax long, at timestamp"))
    kept = pipeline.stage(changes, name="kept")(lambda frame: frame)
    rules = kept.job("pricing").broadcast(by="k", order_by="at", uid="rules")
    looked_up(orders.job("pricing"), rules).sink("taxed", DeltaAppend("taxed"))
    main, pricing = pipeline.graph().jobs
    assert (main.gives, pricing.takes) == (("kept",), ("kept",))
    assert [stage.name for stage in pricing.operators] == ["rules"]


def test_what_is_looked_up_does_not_hold_event_time_back() -> None:
    graph = declared(right).graph()
    into = event_time_origins(graph.sources, graph.stages)["taxed"]
    assert column_of(into, graph.sources) == "at"
    assert set(into) == {"orders"}
