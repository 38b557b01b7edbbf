"""Which columns of sources a column is made of, as far as the declaration and Spark's plans tell.

    a gate, a union                       columns pass unchanged
    a selection, a condition              by its SQL
    a function of DataFrames              by Spark's plan of its result, which the job has traced
    an aggregate, a window, `over`        keys pass; results are computed of the columns in their SQL; the start and
                                          the end of a window, of event time
    a join, `latest`, `top_n` and such    columns pass; those of a join come from the side that has them
    `process`                             unknown: the way ends there

Nothing is guessed: what is unknown has no lineage. Columns that only decide which rows there are, such as those of a
condition, are not named.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tidegate.operators.join.sides import LEFT_ONLY
from tidegate.operators.window.closing import END, START
from tidegate.pipeline.graph.event_time import column_of, event_time_origins
from tidegate.pipeline.graph.graph import Graph, OperatorNode, StageNode
from tidegate.pipeline.graph.nodes import GateNode, Node
from tidegate.pipeline.selection import expression_of, selected
from tidegate.pipeline.union import union
from tidegate.records.names import quoted
from tidegate.records.records import Json

__all__ = ["ColumnLineage", "SourceColumn"]

How = Literal["identity", "transformation", "aggregation"]

_PASSES_COLUMNS = {"over", "top-n", "deduplicate", "repeats", "latest", "every", "materializer", "deletes"}
"""The kinds of operators that emit the columns of their only input, and further ones."""

_COMPUTES = {"aggregate", "window"}
"""The kinds of operators that emit keys and results only."""
_BOUNDS = (START, END)

_TEXT = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"")
_TYPE = re.compile(r"(?i)\bas\s+\w+")
"""The type of a cast."""
_ALIAS = re.compile(r"(?is)\s+as\s+(?:`((?:[^`]|``)+)`|(\w+))\s*$")
_NAME = re.compile(r"(?s)\s*(?:`((?:[^`]|``)+)`|([A-Za-z_]\w*))\s*")
_WORD = re.compile(r"`((?:[^`]|``)+)`|(?<![\w.`])([A-Za-z_]\w*)(?!\w|\s*\()")


@dataclass(frozen=True, order=True)
class SourceColumn:
    """A column of a source, and how it leads to another column."""

    source: str
    column: str
    how: How


class ColumnLineage:
    """Answers for the columns of one graph."""

    def __init__(
        self, graph: Graph, columns: Mapping[str, Collection[str]], traced: Mapping[str, Json] | None = None
    ) -> None:
        """columns: those of the sources that are known. traced: what jobs have found of functions (TracedColumns)."""
        self.graph = graph
        self.traced = traced or {}
        self.columns = {source: {name.casefold(): name for name in names} for source, names in columns.items()}
        self.makers: dict[str, Node] = {name: stage for stage in graph.stages for name in stage.produces}
        self.sources = graph.sources

    def origins_of(self, stream: str, column: str) -> list[SourceColumn]:
        """Return the columns of sources that a column of a stream is made of. Empty if any of them is unknown."""
        origins = self._origins(stream, column)
        return sorted(origins) if origins is not None else []

    def _origins(self, stream: str, column: str) -> set[SourceColumn] | None:
        if stream in self.sources:
            known = self.columns.get(stream)
            name = column if known is None else known.get(column.casefold())
            if name is not None:
                return {SourceColumn(stream, name, "identity")}
            return None
        stage = self.makers.get(stream)
        if isinstance(stage, GateNode):
            return self._origins(stage.input, column)
        if isinstance(stage, StageNode):
            return self._of_stage(stage, stream, column)
        if isinstance(stage, OperatorNode) and stream == stage.name:
            return self._of_operator(stage, column)
        return None

    def _of_stage(self, stage: StageNode, stream: str, column: str) -> set[SourceColumn] | None:
        if stage.function is union:
            return self._all([(input, column) for input in stage.inputs], "identity")
        traced = self._traced(stage, stream)
        if traced is not None:
            return self._of_traced(traced.get(column.casefold()))
        expression = _expression_of(stage, column)
        if expression:
            return self._of_expression(stage.inputs[0], expression, "transformation")
        return None

    def _traced(self, stage: StageNode, stream: str) -> Json | None:
        """Return what the job has found of a stream of a function, if anything."""
        traced = self.traced.get(stage.name, {}).get(stream)
        if traced is None:
            return None
        return {name.casefold(): made_of for name, made_of in traced.items()}

    def _of_traced(self, parts: list[tuple[str, str, How]] | None) -> set[SourceColumn] | None:
        columns: set[SourceColumn] = set()
        if parts is None:
            return None
        for input, column, how in parts:
            origins = self._all([(input, column)], how)
            if origins is None:
                return None
            columns |= origins
        return columns

    def _of_operator(self, stage: OperatorNode, column: str) -> set[SourceColumn] | None:
        kind, operator = stage.operator.kind, stage.operator
        result = stage.spec.output.results.get(column)
        if kind in _COMPUTES or kind in _PASSES_COLUMNS:
            if result is not None:
                return self._of_expression(stage.inputs[0], result, "aggregation")
            by: Any = getattr(operator, "by", ())
            if kind == "window" and column in _BOUNDS:
                return self._of_event_time(stage)
            if kind in _COMPUTES and column not in by:
                return None
            if kind in _PASSES_COLUMNS and self._has(stage.inputs[0], column) is not True:
                return None
            return self._origins(stage.inputs[0], column)
        if kind == "join" and len(stage.inputs) == 2:
            sides = self._sides_of(stage, column)
            if sides:
                return self._all(sides, "identity")
        return None

    def _of_event_time(self, stage: OperatorNode) -> set[SourceColumn] | None:
        """Return the origins of the column by whose time a window takes rows."""
        timed, stream = stage.spec.event_time, stage.inputs[0]
        if timed is None or not timed.inputs:
            return None
        lags = event_time_origins(self.sources, self.graph.stages)
        column = timed.inputs[0].column or column_of(lags.get(stream, {}), self.sources)
        return self._all([(stream, column)], "transformation") if column is not None else None

    def _sides_of(self, stage: OperatorNode, column: str) -> list[tuple[str, str]] | None:
        """Return the columns of both sides that a column of a join's result comes from. None if that is unknown."""
        operator: Any = stage.operator
        left, right = stage.inputs
        keys = dict(zip(operator.keys.left, operator.keys.right, strict=True))
        if column in keys:
            return [(left, column)] if operator.how in LEFT_ONLY else [(left, column), (right, keys[column])]
        in_left = self._has(left, column)
        if in_left is None:
            return None
        if in_left or operator.how in LEFT_ONLY:
            return [(left, column)] if in_left else []
        unprefixed = column.removeprefix(operator.prefix or "")
        if unprefixed != column and unprefixed not in keys.values():
            clashes, in_right = unprefixed in keys or self._has(left, unprefixed), self._has(right, unprefixed)
            if clashes is None or in_right is None:
                return None
            if clashes and in_right:
                return [(right, unprefixed)]
        in_right = self._has(right, column)
        if in_right is None:
            return None
        return [(right, column)] if in_right and column not in keys.values() else []

    def _of_expression(self, stream: str, expression: str, how: How) -> set[SourceColumn] | None:
        """Return the origins of the columns that an expression names. A single name is the column itself."""
        whole = _NAME.fullmatch(expression)
        if whole is not None and how == "transformation":
            return self._origins(stream, _unquoted(whole))
        parts: list[tuple[str, str]] = []
        for name in _names_in(expression):
            has = self._has(stream, name)
            if has is None:
                return None
            if has:
                parts.append((stream, name))
        return self._all(parts, how)

    def _all(self, parts: list[tuple[str, str]], how: How) -> set[SourceColumn] | None:
        columns: set[SourceColumn] = set()
        for stream, column in parts:
            origins = self._origins(stream, column)
            if origins is None:
                return None
            for origin in origins:
                columns.add(SourceColumn(origin.source, origin.column, _combined(origin.how, how)))
        return columns

    def _has(self, stream: str, column: str) -> bool | None:
        """Return whether a stream has a column, or None if that is unknown."""
        if stream in self.sources:
            known = self.columns.get(stream)
            if known is None:
                return None
            return column.casefold() in known
        stage = self.makers.get(stream)
        if isinstance(stage, GateNode):
            return self._has(stage.input, column)
        if isinstance(stage, StageNode):
            return self._stage_has(stage, stream, column)
        if not isinstance(stage, OperatorNode) or stream != stage.name:
            return None
        kind = stage.operator.kind
        if column in stage.spec.output.results:
            return True
        if kind in _COMPUTES:
            by: Any = getattr(stage.operator, "by", ())
            return column in by or column in _BOUNDS
        if kind in _PASSES_COLUMNS:
            return self._has(stage.inputs[0], column)
        if kind == "join" and len(stage.inputs) == 2:
            sides = self._sides_of(stage, column)
            return None if sides is None else bool(sides)
        return None

    def _stage_has(self, stage: StageNode, stream: str, column: str) -> bool | None:
        if stage.function is union:
            return self._has(stage.inputs[0], column)
        traced = self._traced(stage, stream)
        if traced is not None:
            return column.casefold() in traced
        expression = _expression_of(stage, column)
        if not expression:
            return None if expression is None else False
        whole = _NAME.fullmatch(expression)
        return True if whole is None else self._has(stage.inputs[0], _unquoted(whole))


def _expression_of(stage: StageNode, column: str) -> str | None:
    """Return the SQL by which a stage computes a column from those of its only input.

    Return "" if it has no such column, and None if that is unknown.
    """
    function: Any = stage.function
    if len(stage.inputs) != 1:
        return None
    if getattr(function, "func", None) is not selected:
        traced = expression_of(function)
        return None if traced is None else traced(column)
    texts = function.keywords["columns"]
    has_unnamed = False
    for text in texts:
        expression, name = _named(text)
        if name is not None and name.casefold() == column.casefold():
            return expression
        has_unnamed = has_unnamed or (name is None and text.strip() != "*")
    if any(text.strip() == "*" for text in texts):
        return quoted(column)
    return None if has_unnamed else ""


def _named(text: str) -> tuple[str, str | None]:
    """Return the expression and the name of a selected column. The name is None if Spark makes it."""
    alias = _ALIAS.search(text)
    if alias is not None:
        return text[: alias.start()], _unquoted(alias)
    whole = _NAME.fullmatch(text)
    return text, _unquoted(whole) if whole is not None else None


def _unquoted(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[1].replace("``", "`")
    return str(match[2])


def _names_in(expression: str) -> Iterator[str]:
    """Yield the words of an expression that may be columns. Keywords and functions are no columns of a stream."""
    for match in _WORD.finditer(_TYPE.sub(" ", _TEXT.sub(" ", expression))):
        yield _unquoted(match)


def _combined(first: How, second: How) -> How:
    order: list[How] = ["identity", "transformation", "aggregation"]
    return max(first, second, key=order.index)
