"""Finds the operators downstream of a gate that drop late rows, as rows that are released from quarantine may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.pipeline.graph.event_time import column_of, event_time_origins
from tidegate.pipeline.graph.nodes import Node, OperatorNode, StageNode, spec_of
from tidegate.records.records import LateBehind

if TYPE_CHECKING:
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["find_late_sensitive_operators", "streams_after"]


def streams_after(graph: Graph, gate: str) -> dict[str, tuple[str, ...]]:
    """Return the streams that a gate's rows reach, each with the stages in between.

    Rows that an operator computes are new rows, so they do not count. But an operator with a user's function may emit
    the rows that it receives, with their times.
    """
    paths: dict[str, tuple[str, ...]] = {gate: ()}
    for stage in graph.stages:
        input_paths = [paths[name] for name in stage.inputs if name in paths]
        if not input_paths:
            continue
        path: dict[str, None] = {}
        for input_path in input_paths:
            path |= dict.fromkeys(input_path)
        if isinstance(stage, StageNode):
            path[stage.name] = None
        spec = spec_of(stage)
        computes_rows = spec is not None and spec.output.columns is not None and spec.code is None
        for stream in _late_outputs(stage) if computes_rows else stage.produces:
            paths[stream] = tuple(path)
    return paths


def _late_outputs(stage: Node) -> list[str]:
    """Return the outputs with an operator's late rows, which it emits unchanged."""
    spec = spec_of(stage)
    inputs = spec.timed_inputs if spec is not None else ()
    return [f"{stage.name}.{input.late_output}" for input in inputs if input.lateness is not None]


def find_late_sensitive_operators(graph: Graph, gate: str) -> list[LateBehind]:
    """Return the operators that a gate's rows reach, and that drop late ones.

    An operator whose late rows have a user does not count, since it drops none.
    """
    paths = streams_after(graph, gate)
    used = {sink.input for sink in graph.sinks.values()}
    for stage in graph.stages:
        used.update(stage.inputs)
    operators: list[LateBehind] = []
    for stage in graph.stages:
        if isinstance(stage, OperatorNode) and not paths.keys().isdisjoint(stage.inputs):
            operators += _inputs(graph, stage, paths, used)
    return operators


def _inputs(
    graph: Graph, stage: OperatorNode, paths: dict[str, tuple[str, ...]], used: set[str]
) -> Iterator[LateBehind]:
    lags = event_time_origins(graph.sources, graph.stages)
    for stream, input in zip(stage.inputs, stage.spec.timed_inputs, strict=False):
        lateness = input.lateness if stream in paths and stage.keeps_state else None
        if lateness is None or f"{stage.name}.{input.late_output}" in used:
            continue
        yield LateBehind(
            operator=stage.name,
            what=f"{stage.operator.kind} {stage.name!r}",
            column=input.column or column_of(lags.get(stream, {}), graph.sources),
            lasts=lateness.lasts,
            slide=lateness.slide,
            allowed=lateness.allowed,
            stream=stream,
            stages=list(paths[stream]),
        )
