"""What was traced of functions of DataFrames is kept until something changes what they do, or what they are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.errors import Unavailable
from tidegate.execution import column_tracing
from tidegate.execution.column_tracing import (
    columns_of_inputs,
    is_still_true,
    traced_code,
    traced_functions,
    traced_stages,
)
from tidegate.pipeline.declare import Pipeline
from tidegate.pipeline.graph.graph import Graph
from tidegate.records.place import Place
from tidegate.records.records import Payload, TracedColumns
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

CHOSEN = ["id"]


def choose(rows: Any) -> Any:
    return rows.select(*CHOSEN)


def graph_of(function: Any) -> Graph:
    pipeline = Pipeline("shop")
    pipeline.source("orders", Files("in/*.json", schema="id long, amount double"))
    pipeline.stage("orders", name="chosen")(function).sink("kept", DeltaAppend("kept"))
    return pipeline.graph(Place("/data"))


def stages_of(graph: Graph) -> list[Any]:
    return [stage for job in graph.jobs for stage in traced_functions(job)]


def test_a_constant_that_a_function_uses_belongs_to_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(choose)
    before = traced_code(graph, stages_of(graph))
    assert traced_code(graph_of(choose), stages_of(graph)) == before
    monkeypatch.setitem(globals(), "CHOSEN", ["amount"])
    assert traced_code(graph, stages_of(graph)) != before


def test_an_input_with_another_column_is_traced_again() -> None:
    stages = stages_of(graph_of(choose))
    streams: dict[str, Any] = {"orders": SimpleNamespace(columns=["id", "amount"])}
    inputs = columns_of_inputs(stages, streams)
    before = TracedColumns(code="c", inputs=inputs, stages=Payload(data={}))
    assert is_still_true(before, "c", columns_of_inputs(stages, streams))
    streams["orders"].columns.append("vip")
    assert not is_still_true(before, "c", columns_of_inputs(stages, streams))


def test_a_server_that_does_not_answer_is_not_taken_for_a_function_that_cannot_be_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(rows: Any) -> Any:
        raise Unavailable("Spark does not answer")

    monkeypatch.setattr(column_tracing, "make_probes", list)
    with pytest.raises(Unavailable):
        traced_stages(stages_of(graph_of(lost)), {"orders": SimpleNamespace(columns=["id"])})  # type: ignore[dict-item]
