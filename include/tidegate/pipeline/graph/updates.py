"""Finds the streams with retractions, and checks that all nodes that take them can handle retractions.

An updating operator emits new rows, and under "-" the rows that they replace. All nodes downstream process both: a
stage runs on each, an aggregate retracts the replaced rows, an upsert deletes keys that only these have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.connectors.sink import Sink
from tidegate.operators.latest import TopN
from tidegate.pipeline.graph.nodes import GateNode, OperatorNode, makers_of, spec_of
from tidegate.pipeline.graph.retractions import forgotten_rows

if TYPE_CHECKING:
    from tidegate.pipeline.graph.nodes import Node, SinkNode

__all__ = ["forgetting_operators", "update_problems", "updating_streams"]


def updating_streams(ordered: Sequence[Node]) -> frozenset[str]:
    """Return the streams that replace rows: those of updating operators, and of the stages after them."""
    updating: set[str] = set()
    for stage in ordered:
        if isinstance(stage, OperatorNode) and spec_of(stage) is not None:
            over_updates = not updating.isdisjoint(stage.inputs)
            updating |= {stage.name} if stage.updates_over(over_updates) else set()
        elif updating.intersection(stage.inputs):
            updating |= set(stage.produces)
    return frozenset(updating)


def update_problems(ordered: Sequence[Node], sinks: Sequence[SinkNode]) -> list[str]:
    """List the nodes that take a stream that replaces rows and cannot handle the replaced rows."""
    updating, problems = updating_streams(ordered), []
    forgetting = forgetting_operators(ordered, updating)
    for stage in ordered:
        replacing = [name for name in stage.inputs if name in updating]
        spec = spec_of(stage)
        if replacing and isinstance(stage, GateNode) and stage.quarantine:
            problems.append(
                f"gate {stage.name!r} quarantines rows of {replacing[0]}, which replace rows that it let pass before: "
                "let it abort or warn, or put it before the operator that replaces rows"
            )
        if not replacing or not isinstance(stage, OperatorNode) or spec is None:
            continue
        subject = stage.title
        if forgets := sorted({name for stream in replacing for name in forgetting.get(stream, ())}):
            problems.append(
                f"{subject} takes {', '.join(replacing)}, but {', '.join(forgets)} forgets rows (state_ttl), and emits "
                "them anew without retracting the old ones: leave out state_ttl there, or let a sink take it"
            )
        if spec.inputs.retractions:
            for problem in spec.retraction_problems:
                problems.append(f"{subject}: {problem}")
        else:
            problems.append(
                f"{subject} takes {', '.join(replacing)}, which replaces rows that it emitted before: "
                f"{spec.inputs.retraction_advice}"
            )
    for node in sinks:
        if node.input in updating and isinstance(node.sink, Sink):
            cause = _rank_window_hint(ordered, node.input)
            for problem in node.sink.update_problems(node.input):
                problems.append(f"sink {node.name!r}: {problem}{cause}")
    return problems + forgotten_rows(ordered, sinks, updating, forgetting)


def _rank_window_hint(ordered: Sequence[Node], stream: str) -> str:
    """Return a hint if a stream has retractions only because a node stands between a window and a rank, else ""."""
    makers = makers_of(ordered)
    rank = makers.get(stream)
    while rank is not None and not isinstance(rank, OperatorNode):
        rank = makers.get(rank.inputs[0])
    operator = rank.operator if rank is not None else None
    by = set(operator.by) if isinstance(operator, TopN) else set()
    between = maker = makers.get(rank.inputs[0]) if rank is not None and by else None
    while maker is not None and not isinstance(maker, OperatorNode):
        between, maker = maker, makers.get(maker.inputs[0])
    if (
        rank is None
        or between is None
        or maker is None
        or between is maker
        or by.isdisjoint(maker.spec.output.complete_per_checkpoint_by)
    ):
        return ""
    return (
        f". {rank.title} would only add rows if it took the closed windows of {maker.name!r} straight from it, but "
        f"{between.name!r} is between them: rank the window's own columns; in SQL, SELECT window_start, window_end, "
        "the other keys in the order of GROUP BY, and then the aggregates, without HAVING or WHERE, and choose others "
        "outside the rank"
    )


def forgetting_operators(ordered: Sequence[Node], updating: frozenset[str]) -> dict[str, set[str]]:
    """Return, by stream, the operators upstream that forget rows they emitted. updating: streams with retractions."""
    forgetting: dict[str, set[str]] = {}
    for stage in ordered:
        spec = spec_of(stage)
        if spec is None:
            upstream = set()
            for name in stage.inputs:
                for uid in forgetting.get(name, ()):
                    upstream.add(uid)
            for stream in stage.produces:
                forgetting[stream] = set(upstream)
        elif stage.name in updating and spec.expires:
            forgetting[stage.name] = {stage.name}
    return forgetting
