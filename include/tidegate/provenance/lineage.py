"""Guesses which records may have led to a row, by its columns. A replay checks each guess, so a guess may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

from tidegate.pipeline.graph.graph import Graph, StageNode
from tidegate.pipeline.graph.nodes import GateNode, Node
from tidegate.pipeline.graph.passed_columns import keys_of, matched_columns, name_before
from tidegate.provenance.question import AskedRow
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Guess", "guesses", "links"]

_WINDOW = ("window_start", "window_end")
_TYPES: Mapping[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("tinyint", "smallint", "int", "bigint"),
    str: ("string",),
    date: ("date",),
    datetime: ("timestamp", "timestamp_ntz"),
    Decimal: ("decimal",),
}

Place = tuple[str, str]
"""A source, and one of its columns."""


@dataclass(frozen=True)
class Guess:
    """Conditions on the records of sources. A source without any gives all of its records."""

    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By source and column, the value that it has to have."""
    spans: Mapping[str, tuple[str, Any, Any]] = field(default_factory=dict)
    """By source, its column of event time, and the time from which and before which it has to be."""

    def condition(self, source: str) -> Callable[[DataFrame], Column | None]:
        """Return the condition on the records of a source. What does not fit its columns is left out."""

        def on(frame: DataFrame) -> Column | None:
            from pyspark.sql import functions as F

            types = {field.name: field.dataType.simpleString() for field in frame.schema}
            parts = [
                F.col(f"`{name}`").eqNullSafe(F.lit(value))
                for name, value in self.values.get(source, {}).items()
                if _fits(value, types.get(name))
            ]
            if source in self.spans:
                name, start, end = self.spans[source]
                if _fits(start, types.get(name)) and _fits(end, types.get(name)):
                    parts += [F.col(f"`{name}`") >= F.lit(start), F.col(f"`{name}`") < F.lit(end)]
            return reduce(lambda one, other: one & other, parts) if parts else None

        return on

    @property
    def sources(self) -> set[str]:
        """The sources with conditions."""
        return {name for name, values in self.values.items() if values} | set(self.spans)


def among(column: str, values: Iterable[Any]) -> Callable[[DataFrame], Column | None]:
    """Return the condition that a column has one of these values."""
    wanted = list(values)

    def on(frame: DataFrame) -> Column | None:
        from pyspark.sql import functions as F

        types = {field.name: field.dataType.simpleString() for field in frame.schema}
        if not all(_fits(value, types.get(column)) for value in wanted):
            return None
        return F.col(f"`{column}`").isin(wanted) if wanted else F.lit(False)

    return on


def guesses(graph: Graph, sink: str, question: AskedRow) -> list[Guess]:
    """Return guesses from the fewest records to all, without repetitions."""
    stream = graph.sinks[sink].input
    columns = question.keys or [name for name, value in question.row.items() if not isinstance(value, float)]
    loose = _values(graph, stream, columns, question.row, only_keys=False)
    strict = _values(graph, stream, list(question.row), question.row, only_keys=True)
    found = [Guess(loose, _spans(graph, question.row)), Guess(loose), Guess(strict), Guess()]
    different: list[Guess] = []
    for guess in found:
        if guess not in different:
            different.append(guess)
    return different


def links(graph: Graph) -> Iterator[tuple[Place, Place]]:
    """Yield columns of two sources by which operators match their records."""
    for stage in graph.operators:
        for left, right in matched_columns(stage):
            for first in _traced(graph, stage.inputs[0], left, only_keys=False):
                for second in _traced(graph, stage.inputs[1], right, only_keys=False):
                    if first[0] != second[0]:
                        yield first, second
                        yield second, first


def _values(
    graph: Graph, stream: str, columns: Iterable[str], row: Json, *, only_keys: bool
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for column in columns:
        for source, name in _traced(graph, stream, column, only_keys=only_keys):
            found.setdefault(source, {})[name] = row[column]
    return found


def _spans(graph: Graph, row: Json) -> dict[str, tuple[str, Any, Any]]:
    if not all(isinstance(row.get(name), datetime) for name in _WINDOW):
        return {}
    timed = {name: node.event_time for name, node in graph.sources.items() if node.event_time is not None}
    return {name: (column, row[_WINDOW[0]], row[_WINDOW[1]]) for name, column in timed.items()}


def _traced(graph: Graph, stream: str, column: str, *, only_keys: bool) -> set[Place]:
    """Return the columns of sources from which a stream's column comes unchanged.

    only_keys: it passes an operator only if it is a key there, so that rows with other values have no effect.
    """
    makers = {name: stage for stage in graph.stages for name in stage.produces}
    found: set[Place] = set()
    waiting, seen = [(stream, column)], {(stream, column)}
    while waiting:
        name, wanted = waiting.pop()
        stage = makers.get(name)
        if stage is None:
            found.add((name, wanted))
            continue
        for step in _step(stage, wanted, only_keys=only_keys):
            if step not in seen:
                seen.add(step)
                waiting.append(step)
    return found


def _step(stage: Node, column: str, *, only_keys: bool) -> Iterator[tuple[str, str]]:
    """Yield the inputs of a stage that a column comes from, with its name there."""
    if isinstance(stage, GateNode):
        yield stage.input, column
    elif isinstance(stage, StageNode):
        name = name_before(stage, column)
        if name is not None:
            for stream in stage.inputs:
                yield stream, name
    elif column in stage.spec.output.results:
        return
    elif column in keys_of(stage):
        renamed = dict(matched_columns(stage))
        yield stage.inputs[0], column
        for stream in stage.inputs[1:]:
            yield stream, renamed.get(column, column)
    elif not only_keys:
        for stream in stage.inputs:
            yield stream, column


def _fits(value: Any, type: str | None) -> bool:
    if type is None:
        return False
    if value is None:
        return True
    return any(type.startswith(name) for name in _TYPES.get(value.__class__, ()))
