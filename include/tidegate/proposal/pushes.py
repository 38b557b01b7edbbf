"""From push to push of a pull request: the same checkpoints are replayed, and only for tables whose path has changed.

The path of a table is all that its rows come through: sources, stages with the functions that they use, operators,
gates with their suites, settings and installed packages. A table's comparison is taken from the report of the last push
only if its path is the same, and both reports are about the same checkpoints. A path that is not known completely
counts as changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

from tidegate import seams
from tidegate.coordinator import Coordinator
from tidegate.gates.base import GateContext
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline.graph.fingerprint import complete_logic_of
from tidegate.pipeline.graph.nodes import GateNode, Node, OperatorNode, SinkNode, SourceNode
from tidegate.pipeline.graph.upstream import upstream_of
from tidegate.proposal.replay import ReplayRange
from tidegate.proposal.report import ProposalReport, any_differs, code_change, predict_merge
from tidegate.protocol.view import rollback_of
from tidegate.records import typed
from tidegate.records.codec import fingerprint
from tidegate.records.names import check_name
from tidegate.records.records import ProposalPushed

if TYPE_CHECKING:
    from tidegate.checkpoint.context import CheckpointSettings, PipelineContext
    from tidegate.pipeline.graph.graph import Graph

__all__ = [
    "LastPush",
    "Request",
    "carry_over",
    "choose_sinks",
    "find_last_push",
    "hash_paths",
    "only_sinks",
    "repeat_report",
    "store_push",
]

Request = tuple[str | int | None, ...]
"""The words in which the command was asked for checkpoints."""


@dataclass(frozen=True)
class LastPush:
    """The report of the last push with a label, for which the same checkpoints were asked for."""

    label: str
    created: str
    report: ProposalReport
    replayed: ReplayRange | None
    """Its checkpoints, if they are still as they were compared then."""
    unchanged: tuple[str, ...]
    """The sinks to which the same path leads in today's code."""


def find_last_push(ledger: Ledger, label: str, request: Request, hashes: Mapping[str, str]) -> LastPush | None:
    """Return the last push with this label. None: there is none, or it was asked for other checkpoints.

    hashes: of the paths of today's code.
    """
    check_name("label", label)
    pushed = ledger.proposal_pushed(label)
    if pushed is None or tuple(pushed.request) != request:
        return None
    report = typed.convert(pushed.report, ProposalReport)
    replayed = ReplayRange(report.begins_after, tuple(report.replayed)) if report.replayed else None
    if replayed is not None and _describe_checkpoints(ledger, replayed) != pushed.checkpoints:
        replayed = None
    unchanged: list[str] = []
    if replayed is not None and not report.stopped and report.sample is None:
        for name in (*report.tables, *report.unchanged_sinks):
            if name in hashes and hashes[name] == pushed.path_hashes.get(name):
                unchanged.append(name)
    return LastPush(label, pushed.created, report, replayed, tuple(unchanged))


def store_push(ledger: Ledger, label: str, request: Request, report: ProposalReport, hashes: dict[str, str]) -> None:
    """Store the report for the next push."""
    replayed = ReplayRange(report.begins_after, tuple(report.replayed))
    pushed = ProposalPushed(
        **stamp(seams.new_id()),
        report=typed.document_of(report),
        request=list(request),
        checkpoints=_describe_checkpoints(ledger, replayed),
        path_hashes=hashes,
    )
    ledger.hint_proposal_pushed(label, pushed)


def _describe_checkpoints(ledger: Ledger, replayed: ReplayRange) -> list[str]:
    """Describe what was compared with: the checkpoints, their manifests, and the rollbacks that have undone some."""
    described, rollbacks = [], ledger.rollbacks()
    for id in dict.fromkeys([replayed.origin, *replayed.ids]):
        decision = ledger.decision(id) if id else None
        manifest = decision.manifest if decision is not None else None
        described.append(f"{id} {manifest} {rollback_of(id, rollbacks) if id else None}")
    return described


def hash_paths(live: PipelineContext, hidden: Collection[str], examples: int) -> dict[str, str]:
    """Return by sink a hash of its rows' path, and of what is shown of them. Sinks whose path is not known completely
    have none."""
    packages = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    surroundings = [packages, live.settings.record(), sorted(hidden), examples]
    hashes = {}
    for name, sinking in live.graph.sinks.items():
        upstream = upstream_of(live.graph, name)
        parts: list[list[object] | None] = [_describe_source(each) for each in upstream.sources.values()]
        parts += [_describe_stage(live, each) for each in upstream.stages]
        parts.append(_describe_sink(sinking))
        if None not in parts:
            hashes[name] = fingerprint([surroundings, parts])
    return hashes


def _is_tidegates(part: object) -> bool:
    return type(part).__module__.partition(".")[0] == "tidegate"


def _describe_source(node: SourceNode) -> list[object] | None:
    return [node.name, repr(node.described)] if _is_tidegates(node.source) else None


def _describe_sink(node: SinkNode) -> list[object] | None:
    if not _is_tidegates(node.sink) or node.contract is not None:
        return None
    return [node.name, node.input, node.sink.kind, repr(node.sink.describe()), node.at_least_once]


def _describe_stage(live: PipelineContext, stage: Node) -> list[object] | None:
    declared: list[object] = [stage.name, list(stage.inputs), list(stage.produces)]
    if isinstance(stage, GateNode):
        if not _is_tidegates(stage.gate) or getattr(stage.gate, "modules", None):  # the user's own code may do anything
            return None
        context = GateContext(live.graph.name, stage.name, live.place)
        return [*declared, stage.gate.kind, repr(stage.gate.describe()), stage.gate.declared_elsewhere(context)]
    if isinstance(stage, OperatorNode):
        code = stage.spec.code
        logic = complete_logic_of(code) if code is not None else ""
        if logic is None or not _is_tidegates(stage.operator):
            return None
        return [*declared, stage.operator.kind, repr(stage.operator.describe()), logic]
    logic = complete_logic_of(stage.function)
    return [*declared, logic] if logic is not None else None


def choose_sinks(graph: Graph, unchanged: Collection[str]) -> list[str]:
    """Return the sinks to replay: those that have changed, and others where a source would be read for nothing."""
    chosen = {name for name in graph.sinks if name not in unchanged}
    read = {source for name in chosen for source in upstream_of(graph, name).sources}
    for name in graph.sinks:
        more = upstream_of(graph, name).sources.keys() - read
        if chosen and more:
            chosen.add(name)
            read |= more
    return [name for name in graph.sinks if name in chosen]


def only_sinks(live: Coordinator, settings: CheckpointSettings, sinks: Collection[str]) -> Coordinator:
    """Return the pipeline with only these sinks and what leads to them.

    settings: the pipeline's, which allow that states are left out.
    """
    needed = {stage.name for sink in sinks for stage in upstream_of(live.graph, sink).stages}
    graph = replace(
        live.graph,
        stages=tuple(stage for stage in live.graph.stages if stage.name in needed),
        sinks={name: node for name, node in live.graph.sinks.items() if name in sinks},
        hooks=(),
        hooks_elsewhere=True,
        on_suspended=(),
        promises={},
    )
    return Coordinator(graph, live.ledger, settings, live.place)


def carry_over(
    live: Coordinator, report: ProposalReport, push: LastPush, replayed: Coordinator, *, command: str
) -> ProposalReport:
    """Complete the report about some of the sinks by what the last push's tells of the others.

    replayed: the pipeline with only these sinks.
    """
    if report.stopped:
        return report
    carried = [name for name in push.report.tables if name in push.unchanged and name not in report.tables]
    found = {name: push.report.tables[name] for name in carried} | report.tables
    tables = {name: found[name] for name in live.graph.sinks if name in found}
    left_out = {gate.name for gate in live.graph.gates} - {gate.name for gate in replayed.graph.gates}
    gates = [change for change in report.gates if change.gate not in left_out]
    gates += [change for change in push.report.gates if change.gate in left_out]
    return msgspec.structs.replace(
        report,
        merge=predict_merge(
            live, report.code, differs=any_differs(tables), command=command, origin=report.begins_after
        ),
        tables=tables,
        gates=sorted(gates, key=lambda change: change.gate),
        figures={},
        carried=carried,
    )


def repeat_report(live: Coordinator, push: LastPush, *, command: str) -> ProposalReport:
    """Return the report about code by which no sink has another path than in the last push's."""
    earlier, code = push.report, code_change(live)
    return msgspec.structs.replace(
        earlier,
        code=code,
        merge=predict_merge(
            live, code, differs=any_differs(earlier.tables), command=command, origin=earlier.begins_after
        ),
        figures={},
        carried=list(earlier.tables),
        broken_limits=[],
        since=None,
    )
