"""Finds which input columns each column of a function's result is made of, from Spark's analysed plan.

The function is called with probes (probe.py), each with a name of its own. Every column
of a plan has an id, and an expression names the ids that it refers to, so they are followed from the probes upwards.

    Project, Aggregate, Generate, Window     each new column has an expression
    Join, Union                              columns of both sides; the n-th column of each side
    Filter, Sort, Deduplicate and such       columns pass
    any other node                           what comes out of it is unknown

A column is unknown, too, if its expression has an id that is not understood, as a subquery's. Nothing is guessed.
Columns that only decide which rows there are or in which window a row is, as in a condition, a join or PARTITION BY,
are not named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tidegate.spark.plans.probe import make_probe
from tidegate.spark.plans.text import PlanNode, analysed_plan, items_of, tree_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["InputColumn", "Origins", "find_column_origins", "make_probes"]

How: TypeAlias = Literal["identity", "transformation", "aggregation"]
_ORDER: Final[tuple[How, ...]] = ("identity", "transformation", "aggregation")

_PROBE: Final = "_tidegate_input_"
_PASSING: Final = frozenset(
    {
        "CollectMetrics",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "EventTimeWatermark",
        "Except",
        "Filter",
        "GlobalLimit",
        "LocalLimit",
        "Offset",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "Sort",
        "SubqueryAlias",
        "Tail",
        "View",
    }
)
"""Nodes whose rows are rows of their first input."""
_LEFT_ONLY: Final = re.compile(r"Left(?:Semi|Anti)\b")
_BOTH_SIDES: Final = re.compile(r"(?:Inner|Cross|LeftOuter|RightOuter|FullOuter)\b")
_COLUMN: Final = re.compile(r"(?s)(?:(.*) AS )?(.*)#(\d+)L?(?:-T\d+ms)?")
_ID: Final = re.compile(r"#(\d+)L?")
_LAMBDA: Final = re.compile(r"lambda [A-Za-z_]\w*#\d+L?")
_WINDOW: Final = " windowspecdefinition("


@dataclass(frozen=True, order=True)
class InputColumn:
    """A column of an input, and how it leads to a column of the result."""

    input: int
    column: str
    how: How


Origins: TypeAlias = frozenset[InputColumn] | None
"""What a column is made of; empty: of no input; None: unknown."""


@dataclass(frozen=True)
class _Column:
    """A column of a node."""

    name: str
    id: str
    origins: Origins


@dataclass(frozen=True)
class _Columns:
    """The columns of a node, in order."""

    known: Sequence[_Column] = ()
    all_known: bool = True
    """Whether there are no others."""

    @cached_property
    def by_id(self) -> Mapping[str, _Column]:
        return {column.id: column for column in self.known}


_UNKNOWN: Final = _Columns(all_known=False)


def make_probes(inputs: Sequence[DataFrame]) -> list[DataFrame]:
    """Return a probe for each input of a function."""
    return [make_probe(frame).alias(f"{_PROBE}{number}") for number, frame in enumerate(inputs)]


def find_column_origins(result: DataFrame, inputs: Sequence[Sequence[str]]) -> dict[str, Origins]:
    """Return what each column of a function's result is made of. Empty if the plan cannot be read.

    inputs: the columns of each probe.
    """
    root = tree_of(analysed_plan(result))
    origins = _columns_of(root, inputs) if root is not None else _UNKNOWN
    names = result.columns
    if not origins.all_known or len(origins.known) != len(names) or len(set(names)) != len(names):
        return {}
    return {name: column.origins for name, column in zip(names, origins.known, strict=True)}


def _columns_of(node: PlanNode, inputs: Sequence[Sequence[str]]) -> _Columns:
    if node.name == "SubqueryAlias" and node.text.startswith(_PROBE):
        return _of_probe(node, inputs)
    below = [_columns_of(child, inputs) for child in node.children]
    if node.name in _PASSING and below:
        return below[0]
    if node.name == "Union":
        return _united(below)
    if node.name == "Join" and len(below) == 2:
        return _joined(node.text, *below)
    if not below:
        return _columns_from_elsewhere(node)
    if len(below) != 1:
        return _UNKNOWN
    parts = items_of(node.text)
    if node.name == "Project":
        return _computed(_bracketed(node.text), below[0])
    if node.name == "Aggregate" and len(parts) in (1, 2):
        keys = items_of(parts[0][1:-1]) if len(parts) == 2 else []
        return _computed(_bracketed(parts[-1]), below[0], keys)
    if node.name == "Window" and parts:
        return _appended(below[0], _computed(_bracketed(parts[0]), below[0]))
    if node.name == "Generate" and len(parts) in (3, 4) and not parts[1].startswith("["):
        return _appended(below[0], _generated(parts[0], _bracketed(parts[-1]), below[0]))
    return _UNKNOWN


def _of_probe(node: PlanNode, inputs: Sequence[Sequence[str]]) -> _Columns:
    number = int(node.text.removeprefix(_PROBE))
    below = node
    while below.children and below.name == "SubqueryAlias":
        below = below.children[0]
    ids = [_COLUMN.fullmatch(item) for item in _bracketed(below.text) or ()]
    if below.name != "Project" or len(ids) != len(inputs[number]):
        return _UNKNOWN
    columns = []
    for match, name in zip(ids, inputs[number], strict=True):
        if match is None or match[2] != name:
            return _UNKNOWN
        columns.append(_Column(name, match[3], frozenset([InputColumn(number, name, "identity")])))
    return _Columns(columns)


def _columns_from_elsewhere(node: PlanNode) -> _Columns:
    """Return the columns of rows that come from elsewhere, such as a table that the function reads by itself."""
    parts = items_of(node.text)
    items = _bracketed(parts[0]) if parts else None
    matches = [_COLUMN.fullmatch(item) for item in items or ()]
    columns = [_Column(match[2], match[3], None) for match in matches if match is not None]
    return _Columns(columns, all_known=items is not None)


def _bracketed(text: str) -> list[str] | None:
    """Return the columns that are listed in brackets, or None if the text is not understood.

    The printed value of a constant may have commas: an item ends where a column does.
    """
    if not (text.startswith("[") and text.endswith("]")):
        return None
    columns: list[str] = []
    begun: list[str] = []
    for item in items_of(text[1:-1]):
        begun.append(item)
        if _COLUMN.fullmatch(item) is not None:
            columns.append(", ".join(begun))
            begun = []
    return columns if not begun else None


def _computed(items: Sequence[str] | None, below: _Columns, keys: Sequence[str] | None = None) -> _Columns:
    """Return the columns of these expressions. keys: what rows are grouped by, if they are."""
    if items is None:
        return _UNKNOWN
    columns = []
    for item in items:
        match = _COLUMN.fullmatch(item)
        if match is None:
            return _UNKNOWN
        passed = below.by_id.get(match[3])
        if passed is not None and passed.name == match[2]:  # its name may have " AS " in it
            columns.append(_Column(match[2], match[3], passed.origins))
        elif match[1] is None:
            columns.append(_Column(match[2], match[3], None))
        else:
            columns.append(_Column(match[2], match[3], _origins_of(match[1], below, keys)))
    return _Columns(columns)


def _origins_of(expression: str, below: _Columns, keys: Sequence[str] | None = None) -> Origins:
    """Return what an expression is made of."""
    whole = _COLUMN.fullmatch(expression)
    passed = below.by_id.get(whole[3]) if whole is not None else None
    if whole is not None and whole[1] is None and passed is not None and passed.name == whole[2]:
        return passed.origins
    without_windows = _without_windows(expression)
    if without_windows is None:
        return None
    if without_windows != expression or (keys is not None and _aggregates(expression, keys)):
        return _combined(_references(without_windows, below), "aggregation")
    return _combined(_references(without_windows, below), "transformation")


def _aggregates(expression: str, keys: Sequence[str]) -> bool:
    """Return whether an expression of an aggregate has more in it than what rows are grouped by."""
    for key in sorted(keys, key=len, reverse=True):
        expression = re.sub(rf"(?<!\w){re.escape(key)}(?!\d)", "", expression)
    return _ID.search(expression) is not None


def _references(expression: str, below: _Columns) -> list[_Column] | None:
    """Return the columns that an expression refers to, or None if it has an id that is no column's."""
    expression = _LAMBDA.sub("", expression)
    names = []
    for match in _ID.finditer(expression):
        before = expression[: match.start()]
        column = below.by_id.get(match[1])
        if column is not None and before.endswith(column.name):
            names.append(column)
        elif column is None and below.all_known and before.endswith(")"):
            continue  # the id of what a Python function returns
        else:
            return None
    return names


def _combined(references: Sequence[_Column] | None, how: How) -> Origins:
    if references is None:
        return None
    origins: set[InputColumn] = set()
    for column in references:
        if column.origins is None:
            return None
        for origin in column.origins:
            origins.add(InputColumn(origin.input, origin.column, max(origin.how, how, key=_ORDER.index)))
    return frozenset(origins)


def _without_windows(expression: str) -> str | None:
    """Return the expression without its windows, which say which rows it is about. None if brackets do not match."""
    while (begin := expression.find(_WINDOW)) >= 0:
        depth = 0
        for end in range(begin + len(_WINDOW) - 1, len(expression)):
            depth += (expression[end] in "([{") - (expression[end] in ")]}")
            if depth == 0:
                break
        else:
            return None
        expression = expression[:begin] + expression[end + 1 :]
    return expression


def _generated(expression: str, items: Sequence[str] | None, below: _Columns) -> _Columns:
    """Return the columns of a generator, such as `explode`: all are made of what it is applied to."""
    if items is None:
        return _UNKNOWN
    origins = _combined(_references(expression, below), "transformation")
    matches = [_COLUMN.fullmatch(item) for item in items]
    return _Columns([_Column(match[2], match[3], origins) for match in matches if match is not None])


def _appended(below: _Columns, new: _Columns) -> _Columns:
    return _Columns([*below.known, *new.known], below.all_known and new.all_known)


def _joined(text: str, left: _Columns, right: _Columns) -> _Columns:
    if _LEFT_ONLY.match(text):
        return left
    return _appended(left, right) if _BOTH_SIDES.match(text) else _UNKNOWN


def _united(sides: Sequence[_Columns]) -> _Columns:
    """Return the columns of a union: the n-th one has the name and the id that it has on the first side."""
    lengths = {len(side.known) for side in sides}
    if len(lengths) != 1 or not all(side.all_known for side in sides):
        return _UNKNOWN
    columns = []
    for same in zip(*(side.known for side in sides), strict=True):
        columns.append(_Column(same[0].name, same[0].id, _combined(same, "identity")))
    return _Columns(columns)
