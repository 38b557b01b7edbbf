"""The part of a graph that a sink's rows come through."""

from __future__ import annotations

from dataclasses import replace

from tidegate.pipeline.graph.graph import Graph
from tidegate.pipeline.graph.nodes import GateNode, Node

__all__ = ["upstream_of"]


def upstream_of(graph: Graph, sink: str) -> Graph:
    """Return the part of a graph that a sink's rows come through."""
    makers = {stream: stage for stage in graph.stages for stream in stage.produces}
    operators = {stage.name: stage for stage in graph.operators}
    needed: set[str] = set()
    sources: set[str] = set()
    waiting = [graph.sinks[sink].input]
    while waiting:
        stream = waiting.pop()
        stage: Node | None = makers.get(stream) or operators.get(stream)
        if stage is None:
            sources.add(stream)
        elif stage.name not in needed:
            needed.add(stage.name)
            waiting += stage.inputs
            against = getattr(stage.gate, "against", None) if isinstance(stage, GateNode) else None
            if isinstance(against, str):
                waiting.append(against)
    return replace(
        graph,
        sources={name: source for name, source in graph.sources.items() if name in sources},
        stages=tuple(stage for stage in graph.stages if stage.name in needed),
        sinks={sink: graph.sinks[sink]},
        hooks=(),
        hooks_elsewhere=True,
        on_suspended=(),
        promises={},
        finishes=False,
    )
