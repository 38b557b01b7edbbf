"""The operators behind a gate that would lose a row for coming too late: rows that are released from quarantine do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.operators.base import Operator
from tidegate.pipeline.graph.event_time import column_of, lag_by_source
from tidegate.pipeline.graph.nodes import OperatorNode, operator_of
from tidegate.records.records import LateBehind

if TYPE_CHECKING:
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["late_behind"]


def late_behind(graph: Graph, gate: str) -> list[LateBehind]:
    """Return the operators that the rows of a gate come to, through stages and other operators, and that take no late
    rows. One whose late rows somebody takes loses none. What an operator computes of a row is no such row any more."""
    found = []
    taken = {name for stage in graph.stages for name in stage.inputs} | {sink.input for sink in graph.sinks.values()}
    reached = {gate}
    for stage in graph.stages:
        if reached.isdisjoint(stage.inputs):
            continue
        operator = operator_of(stage)
        if isinstance(stage, OperatorNode) and operator is not None:
            found += list(_inputs(graph, stage, operator, reached, taken))
            if operator.columns is not None:
                continue
        reached |= set(stage.produces)
    return found


def _inputs(
    graph: Graph, stage: OperatorNode, operator: Operator, reached: set[str], taken: set[str]
) -> Iterator[LateBehind]:
    lags = lag_by_source(graph.sources, graph.stages)
    for place, stream in enumerate(stage.inputs):
        lateness = operator.lateness(place) if stream in reached and stage.keeps_state else None
        if lateness is None or f"{stage.name}.{operator.late_output(place)}" in taken:
            continue
        chosen = operator.goes_by[place] if place < len(operator.goes_by) else None
        yield LateBehind(
            operator=stage.name,
            what=f"{operator.kind} {stage.name!r}",
            column=chosen or column_of(lags.get(stream, {}), graph.sources),
            lasts=lateness.lasts,
            slide=lateness.slide,
            allowed=lateness.allowed,
        )
