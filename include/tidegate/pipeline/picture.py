"""A pipeline as a tree of text, shown by Airflow and by `tidegate plan`."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.pipeline.graph.graph import Graph
from tidegate.pipeline.graph.nodes import GateNode, Node, OperatorNode, SinkNode

__all__ = ["picture"]


def picture(graph: Graph) -> str:
    """Draw the graph as a tree of text: each operator below the first one that it reads."""
    lines: list[tuple[str, str]] = []
    drawn: set[str] = set()
    for name, source in graph.sources.items():
        lines.append((name, f"source · {source.source.kind}"))
        lines += _draw_below(graph, (name,), "", drawn)
    width = max(len(branch) for branch, _ in lines)
    return "\n".join(f"{branch:<{width}}   {text}" for branch, text in lines)


def _draw_below(graph: Graph, streams: tuple[str, ...], indent: str, drawn: set[str]) -> Iterator[tuple[str, str]]:
    """Draw everything that reads one of these streams."""
    users: list[Node | SinkNode] = [s for s in graph.stages if set(s.inputs).intersection(streams)]
    users += [s for s in graph.sinks.values() if s.input in streams]
    for number, user in enumerate(users, 1):
        last = number == len(users)
        corner, bar = ("└─▶ ", "    ") if last else ("├─▶ ", "│   ")
        if isinstance(user, SinkNode):
            takes = "" if len(streams) == 1 else f", takes {user.input}"
            yield f"{indent}{corner}{user.name}", f"sink · {user.sink.kind}{takes}{_job_text(graph, user, streams)}"
        elif user.name in drawn:
            yield f"{indent}{corner}{user.name}", f"{_kind_text(user)} (above)"
        else:
            drawn.add(user.name)
            kind = _kind_text(user)
            reads = f", reads {', '.join(user.inputs)}" if len(user.inputs) > 1 else ""
            yield f"{indent}{corner}{user.name}", f"{kind}{reads}{_job_text(graph, user, streams)}"
            yield from _draw_below(graph, user.produces, indent + bar, drawn)


def _job_text(graph: Graph, user: Node | SinkNode, streams: tuple[str, ...]) -> str:
    """Name its job if that is another one than the job of the streams that it reads here."""
    for job in graph.jobs:
        if user in job.stages or user in job.sinks:
            if set(job.takes).isdisjoint(streams):
                return ""
            return f", in job {job.name}"
    return ""


def _kind_text(stage: Node) -> str:
    if isinstance(stage, GateNode):
        return f"gate · {stage.gate.kind}"
    if isinstance(stage, OperatorNode):
        return f"operator · {stage.operator.kind}"
    return "stage"
