"""From push to push of a pull request: the same checkpoints are replayed, and only for tables whose path has changed.

The path of a table is all that its rows come through: sources, selections, operators, gates with their suites, settings
and installed packages. A table's comparison is taken from the report of the last push only if its path is the same, and
both reports are about the same checkpoints. A path that is not known completely counts as changed: one with a function
of the user's own, for instance, which may read anything.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

from tidegate import seams
from tidegate.backfill.open_backfill import without_shadow
from tidegate.connectors.unrepeatable import unrepeatable_in_text
from tidegate.coordinator import Coordinator
from tidegate.gates.base import GateContext
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline.graph.nodes import Node, OperatorNode, SinkNode, SourceNode, StageNode
from tidegate.pipeline.graph.upstream import upstream_of
from tidegate.pipeline.selection import sql_of
from tidegate.pipeline.union import union
from tidegate.proposal.replay import ReplayRange, is_replaced
from tidegate.proposal.report import GateChange, ProposalReport, any_differs, code_change, predict_merge
from tidegate.proposal.tables import TableDifference
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
"""Which checkpoints the command was asked for: --over, --from, --to, --sample."""


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
    try:
        report = typed.convert(pushed.report, ProposalReport)
    except msgspec.ValidationError:  # of another version of tidegate
        return None
    replayed = ReplayRange(report.begins_after, tuple(report.replayed)) if report.replayed else None
    if replayed is not None and not _are_as_they_were(ledger, replayed, pushed.checkpoints):
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


def _are_as_they_were(ledger: Ledger, replayed: ReplayRange, described: list[str]) -> bool:
    # Results that a swap has replaced are compared as of the time of the comparison.
    return not is_replaced(ledger, replayed.ids[-1]) and _describe_checkpoints(ledger, replayed) == described


def _describe_checkpoints(ledger: Ledger, replayed: ReplayRange) -> list[str]:
    """Describe what was compared with: the checkpoints, their manifests, and the rollbacks that have undone some."""
    described, rollbacks = [], ledger.rollbacks()
    for id in dict.fromkeys([replayed.origin, *replayed.ids]):
        decision = ledger.decision(id) if id else None
        manifest = decision.manifest if decision is not None else None
        described.append(f"{id} {manifest} {rollback_of(id, rollbacks) if id else None}")
    return described


def hash_paths(live: PipelineContext, hidden: Collection[str], examples: int) -> dict[str, str]:
    """Return by sink a hash of its rows' path, and of what is shown of them. A sink whose path is not known completely
    has none."""
    packages = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    graph = live.graph
    # The settings themselves: what a plan records of them has no logins, and so not all that Spark is given.
    surroundings = [sys.version, packages, repr(live.settings), graph.at_least_once, sorted(hidden), examples]
    jobs = {name: job.name for job in graph.jobs for name in job.names}
    hashes = {}
    for name, sinking in graph.sinks.items():
        upstream = upstream_of(graph, name)
        parts: list[list[object] | None] = [_describe_source(each) for each in upstream.sources.values()]
        parts += [_describe_stage(live, each) for each in upstream.stages]
        parts.append(_describe_sink(sinking))
        used = sorted({jobs[each] for each in (*upstream.sources, *(stage.name for stage in upstream.stages))})
        parts.append([[job, job in graph.aligned] for job in used])
        if None not in parts:
            hashes[name] = fingerprint([live.ledger.start().uid, surroundings, parts])
    return hashes


def _is_tidegates(part: object) -> bool:
    return type(part).__module__.partition(".")[0] == "tidegate"


def _describe_source(node: SourceNode) -> list[object] | None:
    return [node.name, repr(node.described)] if _is_tidegates(node.source) else None


def _describe_sink(node: SinkNode) -> list[object] | None:
    if not _is_tidegates(node.sink) or node.contract is not None:
        return None
    return [node.name, node.input, node.sink.kind, repr(node.sink.describe())]


def _describe_stage(live: PipelineContext, stage: Node) -> list[object] | None:
    """Describe all that a stage does. None: it may also depend on something else, such as code of the user's own, which
    may do anything, or a table that has other rows by now."""
    declared: list[object] = [stage.name, list(stage.inputs), list(stage.produces)]
    if isinstance(stage, StageNode):
        sql = sql_of(stage.function)
        if stage.function is union:
            return [*declared, "union"]
        return [*declared, sql] if sql is not None and not unrepeatable_in_text(sql) else None
    if isinstance(stage, OperatorNode):
        described = repr(stage.operator.describe())
        has_own_code = stage.spec.code is not None or not _is_tidegates(stage.operator)
        if has_own_code or stage.spec.inputs.table is not None or unrepeatable_in_text(described):
            return None
        return [*declared, stage.operator.kind, described]
    gate = stage.gate
    if not _is_tidegates(gate) or gate.reads_tables or getattr(gate, "modules", None):
        return None
    context = GateContext(live.graph.name, stage.name, live.place)
    return [*declared, gate.kind, repr(gate.describe()), gate.declared_elsewhere(context)]


def choose_sinks(graph: Graph, unchanged: Collection[str]) -> list[str]:
    """Return the sinks to replay: those that have changed, and others if nothing else would read a source."""
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
    judged_again = {gate.name for gate in replayed.graph.gates}
    gates = {change.gate: change for change in report.gates if change.gate in judged_again}
    return _complete(live, report, push, report.tables, gates, command)


def repeat_report(live: Coordinator, push: LastPush, *, command: str) -> ProposalReport:
    """Return the report about code by which no sink has another path than in the last push's."""
    report = msgspec.structs.replace(push.report, code=code_change(live), broken_limits=[], since=None)
    return _complete(live, report, push, {}, {}, command)


def _complete(
    live: Coordinator,
    report: ProposalReport,
    push: LastPush,
    compared: Mapping[str, TableDifference],
    judged: dict[str, GateChange],
    command: str,
) -> ProposalReport:
    """Return the report about all of the pipeline's tables and gates: what was compared and judged again, and the rest
    as the last push has told."""
    tables, carried = {}, []
    for name in live.graph.sinks:
        if name in compared:
            tables[name] = compared[name]
        elif name in push.unchanged and name in push.report.tables:
            tables[name] = push.report.tables[name]
            carried.append(name)
    gates = {change.gate: change for change in push.report.gates} | judged
    declared = {gate.name for gate in live.graph.gates}
    for name in gates.keys() - declared:
        gates[name] = msgspec.structs.replace(gates[name], after=None)
    differs = any_differs(tables)
    return msgspec.structs.replace(
        report,
        merge=predict_merge(live, report.code, differs=differs, command=command, origin=report.begins_after),
        tables=tables,
        unchanged_sinks=without_shadow(live.graph),
        gates=[gates[name] for name in sorted(gates)],
        figures={},
        carried=carried,
    )
