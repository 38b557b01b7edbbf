"""Contracts against what the sources may do with columns that they do not know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidegate.errors import Invalid
from tidegate.gates.contracts.gate import Contract
from tidegate.pipeline.graph.nodes import GateNode, Node, OperatorNode, SourceNode
from tidegate.records.place import Place

__all__ = ["contract_problems"]


def contract_problems(sources: Iterable[SourceNode], stages: Sequence[Node], place: Place | None) -> list[str]:
    """List the contracts that refuse columns which their source may add.

    Only gates directly behind a source are looked at: a stage between them may choose columns. What it lets through is
    found by the gate, which then aborts.

    place: where contracts are. None: what only their files say is not looked at.
    """
    nodes = {stage.name: stage for stage in stages}
    by_name = {source.name: source for source in sources}
    problems = []
    for stage in stages:
        if not isinstance(stage, GateNode) or not isinstance(stage.gate, Contract) or stage.gate.extra != "refuse":
            continue
        source = _source_before(stage, nodes, by_name)
        if source is None:
            continue
        policy = source.source.schema_policy
        refuses = f'gate {stage.name!r} refuses columns that its contract does not have (extra="refuse")'
        if policy.evolves:
            problems.append(
                f"{refuses}, and source {source.name!r} gets new ones (on_new_column={policy.on_new_column!r}): let "
                'one of them decide, with on_new_column="rescue" or "refuse", or with extra="allow"'
            )
        elif policy.rescues and place is not None and not _has_column(stage.gate, policy.rescue_column, place):
            problems.append(
                f"{refuses}, and source {source.name!r} adds the column {policy.rescue_column!r}: add it to the "
                "contract, or drop it in a stage between them"
            )
    return problems


def _source_before(gated: GateNode, nodes: Mapping[str, Node], sources: Mapping[str, SourceNode]) -> SourceNode | None:
    """Return the source whose rows a gate judges, unless a stage or an operator may have changed their columns."""
    stream, seen = gated.input, set[str]()
    while stream in nodes and stream not in seen:
        seen.add(stream)  # streams in a circle are reported elsewhere
        node = nodes[stream]
        if not isinstance(node, GateNode) and not (isinstance(node, OperatorNode) and node.for_gate):
            return None
        stream = node.inputs[0]
    return sources.get(stream)


def _has_column(gate: Contract, column: str, place: Place) -> bool:
    try:
        properties = gate.contract(place).schema.properties
    except Invalid:
        return True  # the gate reports it
    return column.casefold() in {each.column.casefold() for each in properties}
