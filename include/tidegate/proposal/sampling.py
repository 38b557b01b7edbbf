"""Chooses the key of a sample, and refuses one by which other rows would come out.

The rows of a table that have one value of the key must be made of nothing but the records that have it. So each source
needs the column, each stage must pass it on, and each operator, each gate and each sink that works by key must have it
in its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.backfill.sampled import SAMPLED_TYPES
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.delta import open_table
from tidegate.errors import Invalid, Rejected
from tidegate.gates.by_key import KeyGate
from tidegate.gates.contracts.gate import ContractOverTable
from tidegate.gates.expectations.catalogue import ColumnSource
from tidegate.gates.expectations.gate import Expectations
from tidegate.operators.join.join import TableJoin
from tidegate.pipeline.graph.nodes import GateNode, Node, OperatorNode, StageNode
from tidegate.pipeline.graph.passed_columns import keys_of, matched_columns, name_before
from tidegate.pipeline.selection import sql_of
from tidegate.pipeline.union import union
from tidegate.records.records import KeySample

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["KEY", "choose_sample"]

KEY = "key"
_OVER = re.compile(r"\bover\s*\(", re.IGNORECASE)


def choose_sample(live: PipelineContext, share: str, by: str) -> KeySample:
    """Return the sample. Raise if there is none with which the sampled rows of all tables are the same as without it.

    by: a column, or KEY: one by which all of the pipeline works.
    """
    part = _share(share)
    graph = live.graph
    candidates = [by] if by != KEY else _candidates(graph)
    refused: list[str] = []
    for column in candidates:
        walk = _Walk(live, column)
        walk.all_tables()
        if not walk.problems:
            return KeySample(share=part, by=column, sources=walk.sources)
        refused = refused or walk.problems
    head = f"pipeline {graph.name!r} cannot be sampled by " + (f"{candidates[0]!r}:" if candidates else "key:")
    raise Rejected(
        "\n    ".join([head, *(refused or ["nothing in it works by key"])]),
        expected="a column that comes unchanged from the sources to all tables, and is in every key on the way",
        help="name such a column, as in --sample 0.1 by country; or leave --sample out, and replay fewer checkpoints: "
        "--over 1",
        reason="CANNOT_SAMPLE",
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0001 <= share < 1:
        raise Invalid(
            f"--sample {text}: expected a share of the keys",
            expected="a number from 0.0001 to below 1, as in --sample 0.1 by key",
            help="leave --sample out to replay all rows",
            reason="BAD_SAMPLE",
        )
    return share


def _candidates(graph: Graph) -> list[str]:
    """Return the columns by which something works, those first by which most does."""
    counts: dict[str, int] = {}
    keys = [list(keys_of(stage)) for stage in graph.operators]
    keys += [list(node.sink.upserts or ()) for node in graph.sinks.values()]
    for names in keys:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))


@dataclass
class _Walk:
    """The way of a column from the tables back to the sources."""

    live: PipelineContext
    column: str
    sources: dict[str, str] = field(default_factory=dict)
    """By source, the column's name there."""
    problems: list[str] = field(default_factory=list)

    def all_tables(self) -> None:
        graph = self.live.graph
        makers: dict[str, Node] = {name: stage for stage in graph.stages for name in stage.produces}
        seen: set[tuple[str, str]] = set()
        waiting: list[tuple[str, str]] = []
        for name, node in graph.sinks.items():
            if node.sink.shadow("") is not None:
                self._add(self._of_sink(name))
                waiting.append((node.input, self.column))
        while waiting:
            stream, column = waiting.pop()
            if (stream, column) in seen:
                continue
            seen.add((stream, column))
            stage = makers.get(stream)
            if stage is None:
                if self.sources.setdefault(stream, column) != column:
                    self._add([f"source {stream!r}: tables have it of {self.sources[stream]!r} and of {column!r}"])
                continue
            problems = list(self._of_stage(stage, column))
            self._add(problems)
            if not problems:
                waiting += _inputs(stage, column)

    def _add(self, problems: list[str]) -> None:
        self.problems += [problem for problem in problems if problem not in self.problems]

    def _of_sink(self, name: str) -> list[str]:
        sink = self.live.graph.sinks[name].sink
        keys = sink.upserts
        if keys and self.column not in keys:
            return [f"sink {name!r} has a row for each {', '.join(keys)}, whichever {self.column!r} it had before"]
        if not isinstance(sink, DeltaSink):
            return []
        table = open_table(sink.delta_table(self.live.context(name)))
        if table is None:
            return []
        types = {each["name"]: each["type"] for each in table.schema["fields"]}
        if self.column not in types:
            return [f"table {name!r} has no column {self.column!r}"]
        if types[self.column] not in SAMPLED_TYPES:
            return [
                f"column {self.column!r} of table {name!r} is of type {types[self.column]}, which has no exact text"
            ]
        return []

    def _of_stage(self, stage: Node, column: str) -> Iterator[str]:
        if isinstance(stage, GateNode):
            yield from self._of_gate(stage, column)
        elif isinstance(stage, OperatorNode):
            yield from _of_operator(stage, column)
        elif (sql := sql_of(stage.function)) is None:
            if stage.function is not union:
                yield f"stage {stage.name!r} is a function, which may look at several rows at once"
        elif _OVER.search(sql):
            yield f"stage {stage.name!r} looks at several rows at once: {sql}"
        elif name_before(stage, column) is None:
            yield f"stage {stage.name!r} computes {column!r}, or drops it"

    def _of_gate(self, stage: GateNode, column: str) -> Iterator[str]:
        gate = stage.gate
        if isinstance(gate, KeyGate):
            if column not in gate.by:
                yield f"gate {stage.name!r} judges by {', '.join(gate.by)}, not by {column!r}"
        elif not isinstance(gate, Expectations) or isinstance(gate, ContractOverTable) or gate.over is not None:
            yield f"gate {stage.name!r} ({gate.kind}) judges all rows together"
        elif gate.on_failure != "warn":
            for rule in gate.load(self.live.place).rules:
                if rule.kind.how is not ColumnSource.ROWS or rule.mostly < 1:
                    yield f"gate {stage.name!r}: its rule {rule.name!r} is about several rows"
        if getattr(gate, "at_most", 1.0) < 1:
            yield f"gate {stage.name!r} aborts by the share of its rows that break a rule (at_most)"


def _of_operator(stage: OperatorNode, column: str) -> Iterator[str]:
    keys = keys_of(stage)
    if column in stage.spec.output.results:
        yield f"{stage.title} computes {column!r}"
    elif isinstance(stage.operator, TableJoin) or (stage.spec.is_implied and not keys):
        return  # row by row, or by the key of its sink
    elif column not in keys:
        by = ", ".join(keys) or "all rows together"
        yield f"{stage.title} works by {by}, not by {column!r}"


def _inputs(stage: Node, column: str) -> list[tuple[str, str]]:
    """Return the inputs of a stage, with the column's name in each."""
    if isinstance(stage, GateNode):
        return [(stage.input, column)]
    if isinstance(stage, StageNode):
        return [(stream, name_before(stage, column) or column) for stream in stage.inputs]
    assert isinstance(stage, OperatorNode)
    renamed = dict(matched_columns(stage))
    first, *others = stage.inputs
    return [(first, column), *((stream, renamed.get(column, column)) for stream in others)]
