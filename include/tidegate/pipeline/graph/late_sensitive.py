"""The operators behind a gate that would lose a row for coming too late: rows that are released from quarantine do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.pipeline.graph.event_time import column_of, lag_by_source
from tidegate.pipeline.graph.nodes import Node, OperatorNode, StageNode, spec_of
from tidegate.records.records import LateBehind

if TYPE_CHECKING:
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["find_late_sensitive_operators", "streams_after"]


def streams_after(graph: Graph, gate: str) -> dict[str, tuple[str, ...]]:
    """Return the streams that the rows of a gate come to, through stages and operators, each with the stages on the
    way. What an operator computes of a row is no such row any more; but a user's function may pass rows on, with their
    times."""
    ways: dict[str, tuple[str, ...]] = {gate: ()}
    for stage in graph.stages:
        before = [ways[name] for name in stage.inputs if name in ways]
        if not before:
            continue
        way = dict.fromkeys(name for each in before for name in each)
        own = (stage.name,) if isinstance(stage, StageNode) else ()
        spec = spec_of(stage)
        computes = spec is not None and spec.output.columns is not None and spec.code is None
        ways |= dict.fromkeys(_late_outputs(stage) if computes else stage.produces, (*way, *own))
    return ways


def _late_outputs(stage: Node) -> list[str]:
    """Return the streams of the rows that an operator leaves out as late: they are as they came."""
    spec = spec_of(stage)
    inputs = spec.timed_inputs if spec is not None else ()
    return [f"{stage.name}.{input.late_output}" for input in inputs if input.lateness is not None]


def find_late_sensitive_operators(graph: Graph, gate: str) -> list[LateBehind]:
    """Return the operators that the rows of a gate come to, and that take no late rows. One whose late rows somebody
    takes loses none."""
    ways = streams_after(graph, gate)
    taken = {name for stage in graph.stages for name in stage.inputs} | {sink.input for sink in graph.sinks.values()}
    found = []
    for stage in graph.stages:
        if isinstance(stage, OperatorNode) and not ways.keys().isdisjoint(stage.inputs):
            found += list(_inputs(graph, stage, ways, taken))
    return found


def _inputs(
    graph: Graph, stage: OperatorNode, ways: dict[str, tuple[str, ...]], taken: set[str]
) -> Iterator[LateBehind]:
    lags = lag_by_source(graph.sources, graph.stages)
    for stream, input in zip(stage.inputs, stage.spec.timed_inputs, strict=False):
        lateness = input.lateness if stream in ways and stage.keeps_state else None
        if lateness is None or f"{stage.name}.{input.late_output}" in taken:
            continue
        yield LateBehind(
            operator=stage.name,
            what=f"{stage.operator.kind} {stage.name!r}",
            column=input.column or column_of(lags.get(stream, {}), graph.sources),
            lasts=lateness.lasts,
            slide=lateness.slide,
            allowed=lateness.allowed,
            stream=stream,
            stages=list(ways[stream]),
        )
