"""The parts of a graph, each under its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tidegate.connectors.adaptive import Adaptive
from tidegate.connectors.sink import Sink
from tidegate.connectors.source import Source
from tidegate.gates.base import POLICIES, Gate, hold_problems
from tidegate.gates.contracts.gate import Contract
from tidegate.gates.quarantine.table import QuarantineSink, quarantine_name
from tidegate.operators.base import Operator
from tidegate.operators.spec import OperatorSpec
from tidegate.records.records import Range
from tidegate.state.table import StateSink, state_sink_name

__all__ = [
    "GateNode",
    "Job",
    "Node",
    "OperatorNode",
    "SinkNode",
    "SourceNode",
    "StageNode",
    "gate_problems",
    "makers_of",
    "replaced_rows_of",
    "row_inputs",
    "spec_of",
]


@dataclass(frozen=True)
class SourceNode:
    """A source under its name."""

    name: str
    source: Source
    event_time: str | None = None
    watermark: object = None
    pace: Adaptive | None = None
    idle_timeout: object = None
    """None: the setting."""
    bounded: bool = False
    """Whether all of its input exists already."""
    max_ahead: object = None
    """How far its event time may be ahead of sources that have input. None: without limit."""
    says_how_to_wait: bool = False
    """Whether `hold_for` or `unanswered` were given, which only a source has that holds checkpoints."""

    @property
    def described(self) -> list[object]:
        """The declaration, for fingerprints."""
        described: list[object] = [self.source.kind, self.source.describe()]
        if self.event_time:
            described += [self.event_time, self.watermark]
        if self.idle_timeout is not None or self.bounded:
            described.append({"idle_timeout": self.idle_timeout, "bounded": self.bounded})
        if self.max_ahead is not None:
            described.append({"max_ahead": self.max_ahead})
        return described

    def as_planned(self, part: Range | None) -> Source:
        """Return the source as it reads a range: with the schema that the plan has recorded, if it has one."""
        if part is None or part.schema is None:
            return self.source
        return self.source.with_schema(part.schema)


@dataclass(frozen=True)
class StageNode:
    """A stage: a pure function from DataFrames to one DataFrame, or to one per named output."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    job: str | None = None
    """The job that it is put into; None: the job of its input."""

    @property
    def produces(self) -> tuple[str, ...]:
        """The names of its streams: its own, or `stage.output` for each output."""
        return tuple(f"{self.name}.{output}" for output in self.outputs) or (self.name,)


@dataclass(frozen=True)
class OperatorNode:
    """An operator under its uid, and the streams that it takes."""

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    job: str | None = None
    generated: bool = False
    """True if the uid is a default, made of kind, inputs and key."""
    keeps_state: bool = True
    """False in an interval pipeline: it begins with no state in each interval, and none is kept."""
    for_gate: bool = False
    """True if it only marks rows for the gate behind it."""
    written_at: str = ""
    """Its place in the text that declares it, such as SQL."""

    @property
    def title(self) -> str:
        """Its name in errors."""
        return f"{self.operator.kind} {self.name!r}" + (f" ({self.written_at})" if self.written_at else "")

    @cached_property
    def spec(self) -> OperatorSpec:
        """The operator's spec. Users may pass something that is no operator; its spec is empty."""
        if isinstance(self.operator, Operator):
            return self.operator.spec()
        return OperatorSpec()

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.spec.output.others)

    @property
    def produces(self) -> tuple[str, ...]:
        """Its own stream, then `uid.output` for each other."""
        return (self.name, *(f"{self.name}.{output}" for output in self.outputs))

    def updates_over(self, over_updates: bool) -> bool:
        """Return whether its output replaces rows that it emitted before. Without state it has emitted none.

        over_updates: an input replaces rows.
        """
        return self.keeps_state and self.spec.changelog.updates_over(over_updates)

    @property
    def states(self) -> dict[str, StateSink]:
        """Its keyed states, by the names under which they are published."""
        if not self.keeps_state:
            return {}
        return {state_sink_name(self.name, part): StateSink(self.name, part) for part in self.spec.state_names}


@dataclass(frozen=True)
class SinkNode:
    """A sink under its name, and the stream that it takes."""

    name: str
    sink: Sink
    input: str
    at_least_once: bool = False
    job: str | None = None
    contract: Contract | None = None
    """The data contract that its rows keep."""


@dataclass(frozen=True)
class GateNode:
    """A gate under its name, and the stream that it judges. Its own stream has the rows that pass."""

    name: str
    gate: Gate
    input: str
    job: str | None = None
    generated: bool = False
    """True if the name is a default, made of the input, the kind and the rules."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.input,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()

    @property
    def produces(self) -> tuple[str, ...]:
        """The stream of the rows that passed."""
        return (self.name,)

    @property
    def quarantine(self) -> dict[str, QuarantineSink]:
        """Its quarantine table, by its published name; empty if it quarantines nothing."""
        if not self.gate.quarantines:
            return {}
        return {quarantine_name(self.name): self.gate.quarantine(self.name)}


Node = StageNode | OperatorNode | GateNode


def makers_of(stages: Iterable[Node]) -> dict[str, Node]:
    """Return the stage that emits each stream."""
    makers: dict[str, Node] = {}
    for stage in stages:
        makers |= dict.fromkeys(stage.produces, stage)
    return makers


def row_inputs(stage: Node) -> tuple[str, ...]:
    """Return the streams whose rows a stage emits, or computes rows from. What a gate compares rows with is none."""
    if isinstance(stage, OperatorNode) and stage.for_gate:
        return stage.inputs[:1]
    return stage.inputs


def gate_problems(stages: Iterable[object], *, by_interval: bool, at_least_once: bool = False) -> list[str]:
    """List what is wrong with the gates' declarations. at_least_once: rows are written before any decision."""
    problems = []
    for stage in stages:
        if not isinstance(stage, GateNode):
            continue
        if isinstance(stage.gate, Gate):
            faults = [*stage.gate.problems(), *hold_problems(stage.gate)]
            if by_interval:
                for problem in stage.gate.interval_problems():
                    faults.append(f"in a pipeline that reads by data interval: {problem}")
            unsafe = []
            for policy in POLICIES:
                if policy in stage.gate.policies and policy != "warn":
                    unsafe.append(policy)
            if at_least_once and unsafe and not faults:
                faults.append(
                    f"it may {' or '.join(unsafe)}, but in mode at_least_once rows are in the tables before any "
                    'decision: let it "warn", or set mode = "exactly_once"'
                )
            for problem in faults:
                problems.append(f"gate {stage.name!r}: {problem}")
        else:
            problems.append(f"gate {stage.name!r} is a {type(stage.gate).__name__}, not a Gate such as Expectations(…)")
    return problems


@dataclass(frozen=True)
class Job:
    """Operators that run in one Spark job and share one ack."""

    name: str
    sources: tuple[SourceNode, ...]
    stages: tuple[Node, ...]
    sinks: tuple[SinkNode, ...]
    takes: tuple[str, ...] = ()
    """Streams that other jobs make."""
    gives: tuple[str, ...] = ()
    """Streams that other jobs take."""
    after: tuple[str, ...] = ()
    """The jobs that make what it takes."""

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        """The stages that keep state."""
        return tuple(stage for stage in self.stages if isinstance(stage, OperatorNode))

    @property
    def gates(self) -> tuple[GateNode, ...]:
        """The stages that judge."""
        return tuple(stage for stage in self.stages if isinstance(stage, GateNode))

    @property
    def names(self) -> frozenset[str]:
        """Its sources and stages."""
        return frozenset(node.name for node in (*self.sources, *self.stages))

    def users(self, stream: str) -> int:
        """Count how often this job uses a stream."""
        stages = sum(stage.inputs.count(stream) for stage in self.stages)
        return stages + sum(sink.input == stream for sink in self.sinks) + (stream in self.gives)


def replaced_rows_of(stream: str) -> str:
    """Return the name of the stream with the rows that a stream replaces."""
    return f"{stream}.-"


def spec_of(stage: Node | None) -> OperatorSpec | None:
    """Return what the operator of a node promises. None: it is another kind of node, or what was declared is none."""
    if isinstance(stage, OperatorNode) and isinstance(stage.operator, Operator):
        return stage.spec
    return None
