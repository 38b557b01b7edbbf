"""Follows keys of changelogs through the graph, and adds the operators that upserting sinks need in front of them.

A sink can upsert and delete rows directly if its keys contain the key of its stream's changelog
(`operators/retractions/key.py`). Gates, renames and projections keep a key. A stage of Python may keep it, which its
plan shows at run time (`execution/job/upstream_view.py`). Unions and other stages lose it. If the key is not contained,
or uncertain, the graph puts a materializer in front of the sink.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidegate.connectors.sink import Sink
from tidegate.operators.retractions.deletes import RememberedDeletes
from tidegate.operators.retractions.key import ChangelogKey, key_renamed, keys_contain
from tidegate.operators.retractions.materializer import Materializer, forgotten
from tidegate.operators.spec import KeyOfInputs
from tidegate.pipeline.graph.nodes import GateNode, OperatorNode, SinkNode, StageNode, spec_of
from tidegate.pipeline.selection import names_of
from tidegate.records.codec import sha256
from tidegate.records.names import NAME

if TYPE_CHECKING:
    from tidegate.operators.base import Operator
    from tidegate.pipeline.graph.nodes import Node

__all__ = ["DeclaredKey", "can_be_remade", "declared_keys", "forgotten_rows", "with_implied_operators"]


@dataclass(frozen=True)
class DeclaredKey:
    """The key of a stream's changelog, as far as the declaration determines it."""

    key: ChangelogKey | None
    certain: bool = True
    """False if plans may show at run time that there is a key, or a different one."""


_NONE = DeclaredKey(None)


def declared_keys(ordered: Sequence[Node]) -> dict[str, DeclaredKey]:
    """Return the key of each stream's changelog, except for sources' streams. ordered: inputs come first."""
    keys: dict[str, DeclaredKey] = {}
    for stage in ordered:
        inputs = [keys.get(name, _NONE) for name in stage.inputs]
        if isinstance(stage, GateNode):
            keys[stage.name] = inputs[0]
        elif isinstance(stage, OperatorNode):
            if spec_of(stage) is not None and not stage.operator.problems():
                keys[stage.name] = _of_operator(stage, inputs)
        else:
            keys |= dict.fromkeys(stage.produces, _of_stage(stage, inputs))
    return keys


def _of_operator(stage: OperatorNode, inputs: Sequence[DeclaredKey]) -> DeclaredKey:
    declared = stage.spec.changelog.key
    key = stage.spec.changelog.find_key([each.key for each in inputs])
    needs_inputs = key is None or isinstance(declared, KeyOfInputs)
    uncertain = any(not each.certain for each in inputs)
    may_depend = key is None and isinstance(declared, KeyOfInputs) and declared.needs_columns
    depends = may_depend and all(each.key is not None or not each.certain for each in inputs)
    return DeclaredKey(key, certain=not (needs_inputs and uncertain) and not depends)


def _of_stage(stage: StageNode, inputs: Sequence[DeclaredKey]) -> DeclaredKey:
    """Return the key after a stage. With several inputs there is none, since a row may be made from several rows."""
    if len(inputs) != 1 or (inputs[0].key is None and inputs[0].certain):
        return _NONE
    names = names_of(stage.function, inputs[0].key or ())
    if names is None:
        return DeclaredKey(None, certain=False)
    return DeclaredKey(key_renamed(inputs[0].key, names), inputs[0].certain)


def with_implied_operators(
    ordered: Sequence[Node], sinks: Sequence[SinkNode], updating: Collection[str], forgetting: Mapping[str, set[str]]
) -> tuple[list[Node], list[SinkNode]]:
    """Return the graph's stages and sinks, with the operators in front of sinks that may need one.

    updating: the streams that replace rows. forgetting: by stream, operators upstream that forget what they emitted.
    """
    keys, names = declared_keys(ordered), {node.name for node in (*ordered, *sinks)}
    stages, settled = list(ordered), []
    for node in sinks:
        declared = keys.get(node.input, _NONE)
        operator: Operator | None = _remembering(node, updating)
        if _may_share_keys(node, declared, updating):
            operator = Materializer(
                node.sink.upserts,
                node.name,
                node.input,
                told_apart_by=declared.key,
                certain=declared.certain,
                forgetting=sorted(forgetting.get(node.input, ())),
            )
        if operator is None:
            settled.append(node)
            continue
        uid = implied_uid(operator.kind, node.name, operator.spec().identity, names)
        names.add(uid)
        stages.append(OperatorNode(uid, operator, (node.input,), node.job, generated=True))
        settled.append(replace(node, input=uid))
    return stages, settled


def forgotten_rows(
    ordered: Sequence[Node], sinks: Sequence[SinkNode], updating: Collection[str], forgetting: Mapping[str, set[str]]
) -> list[str]:
    """Return problems of sinks whose materializer would keep rows that operators upstream forget.

    Where the key is uncertain, this is refused at run time.
    """
    keys = declared_keys(ordered)
    problems = []
    for node in sinks:
        declared = keys.get(node.input, _NONE)
        if forgetting.get(node.input) and declared.certain and _may_share_keys(node, declared, updating):
            problem = forgotten(node.name, list(node.sink.upserts), node.input, sorted(forgetting[node.input]))
            problems.append(
                f"{problem}: leave out state_ttl there, or give the sink keys that distinguish all rows of the stream"
            )
    return problems


def _remembering(node: SinkNode, updating: Collection[str]) -> RememberedDeletes | None:
    """Return the operator that recognizes rows which are older than a delete, if the sink needs one."""
    if not isinstance(node.sink, Sink) or node.input in updating:
        return None
    in_order = node.sink.deletes_in_order
    if in_order is None or node.sink.problems():
        return None
    return RememberedDeletes(node.sink.upserts, in_order[0], in_order[1], node.name)


def _may_share_keys(node: SinkNode, declared: DeclaredKey, updating: Collection[str]) -> bool:
    """Return whether two rows of a sink's stream may have the same sink key at the same time."""
    if node.input not in updating or not isinstance(node.sink, Sink):
        return False
    keys = node.sink.upserts
    if not keys or not node.sink.wants_retractions or node.sink.update_problems(node.input):
        return False
    return not keys_contain(keys, declared.key)


def implied_uid(kind: str, sink: str, columns: Sequence[str], names: Collection[str]) -> str:
    """Return the uid of an operator that the graph adds. It changes with the sink's columns.

    names: the names that are taken.
    """
    ending = sha256("\0".join([kind, sink, *columns]).encode())[:8]
    plain = f"{sink}-{kind}-{'-'.join(columns)}"
    if NAME.fullmatch(plain) and plain not in names:
        return plain
    return f"{sink[: 61 - len(kind) - len(ending)]}-{kind}-{ending}"


def can_be_remade(
    stream: str, stages: Sequence[Node], updating: Collection[str], jobs: Mapping[str, str], job: str
) -> bool:
    """Return whether all rows that hold in a stream can be computed again from the states of one job's operators.

    jobs: the job of each stage.
    """
    maker = next((stage for stage in stages if stream in stage.produces), None)
    if maker is None or jobs[maker.name] != job:
        return False
    if isinstance(maker, OperatorNode):
        return stream == maker.name and stream in updating and maker.spec.current_output_is_complete
    return all(can_be_remade(name, stages, updating, jobs, job) for name in maker.inputs)
