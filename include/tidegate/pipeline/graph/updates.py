"""Streams that replace rows which they gave before: which they are, and who can take them.

An operator that updates gives new rows, and under "-" those that these replace. What follows goes on with both: a stage
runs on each, an aggregate takes the replaced rows back, an upsert removes keys that are only among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.operators.base import Operator
from tidegate.pipeline.graph.gated import GateNode
from tidegate.sinks.base import Sink

if TYPE_CHECKING:
    from tidegate.pipeline.graph.nodes import Node, SinkNode

__all__ = ["update_problems", "updating_streams", "withdrawn_name"]


def withdrawn_name(stream: str) -> str:
    """Under which name the rows are that a stream replaces."""
    return f"{stream}.-"


def updating_streams(ordered: Sequence[Node]) -> frozenset[str]:
    """Which of the streams replace rows: those of operators that do, and of stages behind these."""
    found: set[str] = set()
    for stage in ordered:
        operator = _operator(stage)
        if operator is not None:
            found |= {stage.name} if operator.updates else set()
        elif found.intersection(stage.inputs):
            found |= set(stage.produces)
    return frozenset(found)


def update_problems(ordered: Sequence[Node], sinks: Sequence[SinkNode]) -> list[str]:
    """Who takes a stream that replaces rows must know what to do with those that it replaces."""
    updating, problems = updating_streams(ordered), []
    forgetting = _forgetting(ordered)
    for stage in ordered:
        given = [name for name in stage.inputs if name in updating]
        operator = _operator(stage)
        if given and isinstance(stage, GateNode) and stage.quarantine:
            problems.append(
                f"gate {stage.name!r} sets rows of {given[0]} aside, which replace rows that it let pass before: "
                "let it abort or warn, or put it in front of what replaces rows"
            )
        if not given or operator is None:
            continue
        what = f"{operator.kind} {stage.name!r}"
        if forgets := sorted({name for each in given for name in forgetting.get(each, ())}):
            problems.append(
                f"{what} takes {', '.join(given)}, but {', '.join(forgets)} forgets rows (state_ttl), and gives them "
                "anew without taking back what it gave: leave out state_ttl there, or let a sink take it"
            )
        if operator.takes_updates:
            problems += [f"{what}: {problem}" for problem in operator.update_problems()]
        else:
            problems.append(
                f"{what} takes {', '.join(given)}, which replaces rows that it gave before: {operator.instead}"
            )
    for sinking in sinks:
        if sinking.input in updating and isinstance(sinking.sink, Sink):
            problems += [f"sink {sinking.name!r}: {problem}" for problem in sinking.sink.update_problems(sinking.input)]
    return problems


def _forgetting(ordered: Sequence[Node]) -> dict[str, set[str]]:
    """By stream, the operators in front of it that forget what they gave."""
    found: dict[str, set[str]] = {}
    for stage in ordered:
        operator = _operator(stage)
        if operator is None:
            found |= {made: {uid for name in stage.inputs for uid in found.get(name, ())} for made in stage.produces}
        elif operator.updates and operator.forgets:
            found[stage.name] = {stage.name}
    return found


def _operator(stage: Node) -> Operator | None:
    found = getattr(stage, "operator", None)
    return found if isinstance(found, Operator) else None
