"""The parts of a graph, each under its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.operators.base import Operator
from tidegate.pipeline.graph.gated import GateNode
from tidegate.sinks.base import Sink
from tidegate.sources.adaptive import Adaptive
from tidegate.sources.base import Source
from tidegate.state.table import StateSink, state_sink_name

__all__ = ["Node", "OperatorNode", "SinkNode", "SourceNode", "StageNode"]


@dataclass(frozen=True)
class SourceNode:
    """A source under its name."""

    name: str
    source: Source
    event_time: str | None = None
    watermark: object = None
    pace: Adaptive | None = None


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

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.operator.outputs

    @property
    def produces(self) -> tuple[str, ...]:
        """Its own stream, then `uid.output` for each other."""
        return (self.name, *(f"{self.name}.{output}" for output in self.outputs))

    @property
    def states(self) -> dict[str, StateSink]:
        """Its keyed states, by the names under which they are published."""
        return {state_sink_name(self.name, part): StateSink(self.name, part) for part in self.operator.parts}


Node = StageNode | OperatorNode | GateNode


@dataclass(frozen=True)
class SinkNode:
    """A sink under its name, and the stream that it takes."""

    name: str
    sink: Sink
    input: str
    at_least_once: bool = False
    job: str | None = None
