"""A pipeline as a tree of text: what Airflow and `tidegate plan` show."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.pipeline.graph.gated import GateNode
from tidegate.pipeline.graph.graph import Graph
from tidegate.pipeline.graph.nodes import Node, OperatorNode, SinkNode

__all__ = ["picture"]


def picture(graph: Graph) -> str:
    """The graph as a tree of text: each operator under the first one that it reads."""
    lines: list[tuple[str, str]] = []
    drawn: set[str] = set()
    for name, sourcing in graph.sources.items():
        lines.append((name, f"source · {sourcing.source.kind}"))
        lines += _below(graph, (name,), "", drawn)
    width = max(len(left) for left, _ in lines)
    return "\n".join(f"{left:<{width}}   {right}" for left, right in lines)


def _below(graph: Graph, streams: tuple[str, ...], indent: str, drawn: set[str]) -> Iterator[tuple[str, str]]:
    """Everything that reads one of these streams."""
    users: list[Node | SinkNode] = [s for s in graph.stages if set(s.inputs).intersection(streams)]
    users += [s for s in graph.sinks.values() if s.input in streams]
    for number, user in enumerate(users, 1):
        last = number == len(users)
        corner, bar = ("└─▶ ", "    ") if last else ("├─▶ ", "│   ")
        if isinstance(user, SinkNode):
            of = "" if len(streams) == 1 else f", takes {user.input}"
            yield f"{indent}{corner}{user.name}", f"sink · {user.sink.kind}{of}{_moved(graph, user, streams)}"
        elif user.name in drawn:
            yield f"{indent}{corner}{user.name}", f"{_kind(user)} (above)"
        else:
            drawn.add(user.name)
            kind = _kind(user)
            reads = f", reads {', '.join(user.inputs)}" if len(user.inputs) > 1 else ""
            yield f"{indent}{corner}{user.name}", f"{kind}{reads}{_moved(graph, user, streams)}"
            yield from _below(graph, user.produces, indent + bar, drawn)


def _moved(graph: Graph, user: Node | SinkNode, streams: tuple[str, ...]) -> str:
    """In which job it is, if that is not the job of what it reads here."""
    for job in graph.jobs:
        if user in job.stages or user in job.sinks:
            return f", in job {job.name}" if not set(job.takes).isdisjoint(streams) else ""
    return ""


def _kind(stage: Node) -> str:
    if isinstance(stage, GateNode):
        return f"gate · {stage.gate.kind}"
    return f"operator · {stage.operator.kind}" if isinstance(stage, OperatorNode) else "stage"
