"""The operators behind a gate that would lose a row for coming too late: rows that are released from quarantine do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.operators.base import Operator
from tidegate.pipeline.graph.event_time import column_of, lag_by_source
from tidegate.pipeline.graph.nodes import Node, OperatorNode, StageNode, operator_of
from tidegate.records.records import LateBehind

if TYPE_CHECKING:
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["find_late_sensitive_operators", "streams_after"]


def streams_after(graph: Graph, gate: str) -> dict[str, tuple[str, ...]]:
    """Return the streams that the rows of a gate come to, through stages and operators, each with the stages on the
    way. What an operator computes of a row is no such row any more."""
    ways: dict[str, tuple[str, ...]] = {gate: ()}
    for stage in graph.stages:
        before = [ways[name] for name in stage.inputs if name in ways]
        if not before:
            continue
        way = dict.fromkeys(name for each in before for name in each)
        own = (stage.name,) if isinstance(stage, StageNode) else ()
        operator = operator_of(stage)
        computes = operator is not None and operator.columns is not None
        ways |= dict.fromkeys(_late_outputs(stage) if computes else stage.produces, (*way, *own))
    return ways


def _late_outputs(stage: Node) -> list[str]:
    """Return the streams of the rows that an operator leaves out as late: they are as they came."""
    operator = operator_of(stage)
    if operator is None:
        return []
    places = [place for place in range(len(stage.inputs)) if operator.lateness(place) is not None]
    return [f"{stage.name}.{operator.late_output(place)}" for place in places]


def find_late_sensitive_operators(graph: Graph, gate: str) -> list[LateBehind]:
    """Return the operators that the rows of a gate come to, and that take no late rows. One whose late rows somebody
    takes loses none."""
    ways = streams_after(graph, gate)
    taken = {name for stage in graph.stages for name in stage.inputs} | {sink.input for sink in graph.sinks.values()}
    found = []
    for stage in graph.stages:
        operator = operator_of(stage)
        if isinstance(stage, OperatorNode) and operator is not None and not ways.keys().isdisjoint(stage.inputs):
            found += list(_inputs(graph, stage, operator, ways, taken))
    return found


def _inputs(
    graph: Graph, stage: OperatorNode, operator: Operator, ways: dict[str, tuple[str, ...]], taken: set[str]
) -> Iterator[LateBehind]:
    lags = lag_by_source(graph.sources, graph.stages)
    for place, stream in enumerate(stage.inputs):
        lateness = operator.lateness(place) if stream in ways and stage.keeps_state else None
        if lateness is None or f"{stage.name}.{operator.late_output(place)}" in taken:
            continue
        chosen = operator.event_time_columns[place] if place < len(operator.event_time_columns) else None
        yield LateBehind(
            operator=stage.name,
            what=f"{operator.kind} {stage.name!r}",
            column=chosen or column_of(lags.get(stream, {}), graph.sources),
            lasts=lateness.lasts,
            slide=lateness.slide,
            allowed=lateness.allowed,
            stream=stream,
            stages=list(ways[stream]),
        )
