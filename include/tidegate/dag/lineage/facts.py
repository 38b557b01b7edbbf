"""What a task has to say about datasets, from the records of its checkpoint alone: so each of its tries says the same.

Only the last task of a run has outputs, and only once the checkpoint is completed and published. A job has inputs: what
it has staged may never count. A gate's rules are told with the inputs whose rows it judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.connectors.delta.source.delta_table import DeltaTable
from tidegate.dag.lineage.naming import DatasetName, dataset_of
from tidegate.history.row import state_name
from tidegate.pipeline.graph.column_lineage import ColumnLineage
from tidegate.pipeline.graph.nodes import GateNode, Node, OperatorNode, SourceNode
from tidegate.records.records import Ack, Amount, Json, Plan, Range, Verdict, sum_of

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.history.asset_events.changes import SinkChange
    from tidegate.protocol.view import Entry

__all__ = [
    "Assertion",
    "ColumnOrigin",
    "InputFacts",
    "OutputFacts",
    "TaskDatasets",
    "of_checkpoint",
    "of_gate",
    "of_job",
    "of_plan",
]

BLOCKS = frozenset({"abort", "hold"})
"""Policies that stop a checkpoint, if only until a person answers."""


@dataclass(frozen=True)
class Assertion:
    """A gate or one of its rules, and whether the rows kept it."""

    rule: str
    name: str
    success: bool
    column: str | None = None
    blocks: bool = False
    """Whether the checkpoint cannot complete by itself."""
    actual: str | None = None
    """What was found, in counts. Values of rows are never told."""
    details: Json = field(default_factory=dict)


@dataclass
class InputFacts:
    """A dataset that a checkpoint reads."""

    dataset: DatasetName
    ranges: list[Json] = field(default_factory=list)
    """For each source that reads it, from where to where."""
    read: Amount | None = None
    version: str | None = None
    columns: Json | None = None
    """In Spark's JSON form."""
    assertions: list[Assertion] = field(default_factory=list)


@dataclass(frozen=True, order=True)
class ColumnOrigin:
    """A column of an input that leads to one of an output."""

    dataset: DatasetName
    column: str
    how: str


@dataclass
class OutputFacts:
    """A dataset that an entry of the log has changed."""

    dataset: DatasetName
    change: SinkChange
    columns: Json | None = None
    version: str | None = None
    made_of: dict[str, list[ColumnOrigin]] = field(default_factory=dict)
    """By column, the columns of inputs that it is made of, where that is known."""
    emptied: bool = False
    """Whether it has no rows of the pipeline's any more, after a rollback to before its first ones."""


@dataclass
class TaskDatasets:
    """The datasets of one task, and its checkpoint."""

    checkpoint: Json = field(default_factory=dict)
    inputs: list[InputFacts] = field(default_factory=list)
    outputs: list[OutputFacts] = field(default_factory=list)


def of_plan(pipeline: PipelineContext, plan: Plan) -> TaskDatasets:
    """Return what a checkpoint is going to read."""
    graph = pipeline.graph
    inputs = _inputs(pipeline, plan, graph.sources.values(), (), graph.stages)
    return TaskDatasets(_checkpoint(pipeline, plan), inputs)


def of_job(pipeline: PipelineContext, id: int, job: str) -> TaskDatasets:
    """Return what a job has read, as its ack says, or would have read."""
    entry = pipeline.ledger.entry(id)
    if entry is None:
        return TaskDatasets()
    acks = [entry.acks[job].ack] if job in entry.acks else []
    (declared,) = (each for each in pipeline.graph.jobs if each.name == job)
    inputs = _inputs(pipeline, entry.plan, declared.sources, acks, declared.stages)
    return TaskDatasets(_checkpoint(pipeline, entry.plan), inputs)


def of_gate(pipeline: PipelineContext, entry: Entry, gate: str, verdict: Verdict) -> TaskDatasets:
    """Return what a gate has found about the rows of these inputs."""
    graph = pipeline.graph
    sources = [graph.sources[name] for name in graph.lineage.sources(gate)]
    inputs = _inputs(pipeline, entry.plan, sources, [acked.ack for acked in entry.acks.values()])
    assertions = list(_assertions(pipeline, gate, verdict))
    for facts in inputs:
        facts.assertions = assertions
    return TaskDatasets(_checkpoint(pipeline, entry.plan), inputs)


def of_checkpoint(pipeline: PipelineContext, id: int, changes: Callable[[], Mapping[str, SinkChange]]) -> TaskDatasets:
    """Return what a decided entry has read, what its gates found, and which tables have changed, if it counts.

    changes: finds out what it has changed, and entries before it of which no task has told.
    """
    entry = pipeline.ledger.entry(id)
    if entry is None:
        return TaskDatasets()
    inputs: list[InputFacts] = []
    outputs: list[OutputFacts] = []
    acks: list[Ack] = []
    if entry.rollback is None:  # a rollback reads nothing, and the acks of a swap are those of its backfill
        graph = pipeline.graph
        acks = [acked.ack for acked in entry.acks.values()]
        inputs = _inputs(pipeline, entry.plan, graph.sources.values(), acks, graph.stages)
        for ack in acks:
            for gate, verdict in ack.gates.items():
                _assert_about(pipeline, inputs, gate, list(_assertions(pipeline, gate, verdict)))
    if entry.completed and pipeline.ledger.published(id) is not None:
        outputs = _outputs(pipeline, entry, acks, changes())
    return TaskDatasets(_checkpoint(pipeline, entry.plan, entry), inputs, outputs)


def _checkpoint(pipeline: PipelineContext, plan: Plan, decided: Entry | None = None) -> Json:
    """Return the facts about the entry itself. decided: the entry, for a task that runs after its decision."""
    decision = decided.decision if decided is not None else None
    facts = {
        "pipeline": pipeline.graph.name,
        "checkpoint": plan.id,
        "state": state_name(decided) if decided is not None else None,
        "kind": plan.kind,
        "base": plan.base,
        "planned": plan.created,
        "intervalStart": plan.interval[0] if plan.interval is not None else None,
        "intervalEnd": plan.interval[1] if plan.interval is not None else None,
        "codeFingerprint": plan.code_fingerprint,
        "reason": decision.reason if decision is not None and decision.outcome == "aborted" else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


# -- inputs --------------------------------------------------------------------------------------------------


def _inputs(
    pipeline: PipelineContext,
    plan: Plan,
    sources: Iterable[SourceNode],
    acks: Iterable[Ack],
    stages: Iterable[Node] = (),
) -> list[InputFacts]:
    """Return the inputs, each dataset once: several sources may read it."""
    read = {name: amount for ack in acks for name, amount in ack.stats.read.items()}
    found: dict[DatasetName, InputFacts] = {}
    for node in sources:
        if node.name in plan.sources:
            _add_range(pipeline, found, node, plan.sources[node.name], read.get(node.name))
    for stage in stages:
        table = _table_of(stage)
        if stage.name in plan.fixed_inputs and table is not None:
            _add_table(pipeline, found, stage.name, table, pipeline.ledger.unpack(plan.fixed_inputs[stage.name]))
    return list(found.values())


def _add_range(
    pipeline: PipelineContext,
    found: dict[DatasetName, InputFacts],
    node: SourceNode,
    planned: Range,
    read: Amount | None,
) -> None:
    name = dataset_of(pipeline.graph.name, node, pipeline.place)
    facts = found.setdefault(name, InputFacts(name))
    source_range = {"source": node.name, "kind": planned.kind, "empty": planned.empty, "summary": planned.summary}
    source_range |= {"after": planned.start, "upTo": planned.end}
    facts.ranges.append({key: value for key, value in source_range.items() if value not in (None, "")})
    if read is not None:
        facts.read = read if facts.read is None else sum_of([facts.read, read])
    if isinstance(node.source, DeltaTable) and planned.end is not None:
        version = planned.end.get("version")
        facts.version = str(version) if version is not None else None
        if not planned.empty:
            facts.columns = pipeline.ledger.unpack(planned.splits).get("schema")


def _table_of(stage: Node) -> DeltaTable | None:
    """Return the table that an operator joins, or that a gate compares rows with."""
    if isinstance(stage, OperatorNode):
        return stage.spec.inputs.table
    return stage.gate.input_table if isinstance(stage, GateNode) else None


def _add_table(
    pipeline: PipelineContext, found: dict[DatasetName, InputFacts], stage: str, table: DeltaTable, splits: Json
) -> None:
    """Add a table that a stage reads, at the version that the plan has fixed."""
    name = dataset_of(pipeline.graph.name, SourceNode(stage, table), pipeline.place)
    facts = found.setdefault(name, InputFacts(name))
    facts.ranges.append({"source": stage, "kind": "table", "empty": False})
    facts.columns = facts.columns or splits.get("schema")
    versions = [number for number, _ in splits.get("commits", ())]
    if versions:
        facts.version = str(max(versions))


# -- gates ---------------------------------------------------------------------------------------------------


def _assert_about(pipeline: PipelineContext, inputs: list[InputFacts], gate: str, assertions: list[Assertion]) -> None:
    """Add a gate's assertions to the inputs that its rows came from."""
    graph, place = pipeline.graph, pipeline.place
    if not any(isinstance(stage, GateNode) and stage.name == gate for stage in graph.stages):
        return
    judged = {dataset_of(graph.name, graph.sources[name], place) for name in graph.lineage.sources(gate)}
    for facts in inputs:
        if facts.dataset in judged:
            facts.assertions = facts.assertions + assertions


def _assertions(pipeline: PipelineContext, gate: str, verdict: Verdict) -> Iterator[Assertion]:
    """Yield the verdict as a whole, then its rules: all rules of a suite, and of other gates the broken ones."""
    counts = {"rows": verdict.rows, "quarantined": verdict.quarantined, "released": verdict.released}
    yield Assertion(
        "gate",
        gate,
        success=verdict.outcome == "pass",
        blocks=verdict.outcome in BLOCKS,
        actual=verdict.outcome,
        details={"gate": gate, "outcome": verdict.outcome, **counts},
    )
    broken = {rule.rule: rule for rule in verdict.broken}
    for finding in _findings(pipeline.ledger.unpack(verdict.results)):
        config = finding["expectation_config"]
        name = str(config.get("id") or config["type"])
        rule = broken.pop(name, None)
        column = (config.get("kwargs") or {}).get("column")
        yield Assertion(
            str(config["type"]),
            name,
            success=bool(finding.get("success")),
            column=column if isinstance(column, str) else None,
            blocks=rule is not None and rule.policy in BLOCKS,
            actual=_count(finding.get("result") or {}),
            details={"gate": gate} | ({"policy": rule.policy} if rule is not None else {}),
        )
    for name, rule in broken.items():
        rows = None if rule.rows is None else f"{rule.rows} rows"
        details = {"gate": gate, "policy": rule.policy}
        yield Assertion(name, name, success=False, blocks=rule.policy in BLOCKS, actual=rows, details=details)


def _findings(results: Json) -> Iterator[Mapping[str, Any]]:
    """Yield the findings of Great Expectations. Other gates have other results."""
    findings = results.get("results")
    for finding in findings if isinstance(findings, list) else ():
        if isinstance(finding, dict) and (finding.get("expectation_config") or {}).get("type"):
            yield finding


def _count(result: Mapping[str, Any]) -> str | None:
    """Return how many rows broke a rule, as text."""
    unexpected = result.get("unexpected_count")
    return None if unexpected is None else f"{unexpected} rows"


# -- outputs -------------------------------------------------------------------------------------------------


def _outputs(
    pipeline: PipelineContext, entry: Entry, acks: list[Ack], changes: Mapping[str, SinkChange]
) -> list[OutputFacts]:
    """Return the tables that have changed, each once: several sinks may write to one."""
    published = pipeline.ledger.published(entry.id)
    restored = entry.rollback.tables if entry.rollback is not None else {}
    found: dict[DatasetName, OutputFacts] = {}
    lineage = _column_lineage(pipeline, entry.plan, acks)
    for sink, change in changes.items():
        node = pipeline.graph.sinks[sink]
        name = dataset_of(pipeline.graph.name, node, pipeline.place)
        if name in found:
            found[name].change.add(change)
            continue
        table = published.tables.get(sink) if published is not None else None
        columns = _columns(pipeline, acks, sink)
        found[name] = OutputFacts(
            name,
            change,
            columns=columns,
            made_of={} if columns is None else _column_origins(pipeline, lineage, node.input, columns),
            version=str(table.version) if table is not None and table.is_delta else None,
            emptied=sink in restored and restored[sink].to is None,
        )
    return list(found.values())


def _column_lineage(pipeline: PipelineContext, plan: Plan, acks: Iterable[Ack]) -> ColumnLineage:
    """Return the lineage of columns, with the columns that sources had in this checkpoint, and what its jobs traced."""
    columns: dict[str, list[str]] = {}
    for name, node in pipeline.graph.sources.items():
        part = plan.sources.get(name)
        names = node.as_planned(part).column_names()
        if names is None and isinstance(node.source, DeltaTable) and part is not None and not part.empty:
            schema = pipeline.ledger.unpack(part.splits).get("schema")
            names = [field["name"] for field in schema["fields"]] if schema else None
        if names is not None:
            columns[name] = names
    traced: Json = {}
    for ack in acks:
        if ack.columns is not None:
            traced |= pipeline.ledger.unpack(ack.columns.stages)
    return ColumnLineage(pipeline.graph, columns, traced)


def _column_origins(
    pipeline: PipelineContext, lineage: ColumnLineage, stream: str, columns: Json
) -> dict[str, list[ColumnOrigin]]:
    graph = pipeline.graph
    made_of: dict[str, list[ColumnOrigin]] = {}
    for column in columns["fields"]:
        origins = set()
        for origin in lineage.origins_of(stream, column["name"]):
            dataset = dataset_of(graph.name, graph.sources[origin.source], pipeline.place)
            origins.add(ColumnOrigin(dataset, origin.column, origin.how))
        if origins:
            made_of[column["name"]] = sorted(origins)
    return made_of


def _columns(pipeline: PipelineContext, acks: Iterable[Ack], sink: str) -> Json | None:
    """Return the columns of the rows that were staged for a sink."""
    for ack in acks:
        if sink in ack.sinks:
            columns = pipeline.ledger.unpack(ack.sinks[sink]).get("columns")
            return columns if isinstance(columns, dict) else None
    return None
