"""Collects the keys and aggregates of a SELECT, and resolves its expressions over them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.operators.functions import parse
from tidegate.pipeline.sql.columns import Columns, is_unit
from tidegate.pipeline.sql.mapping import is_aggregate
from tidegate.pipeline.sql.reading import Query, text_of
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from sqlglot import exp

    from tidegate.pipeline.declare import Stream

__all__ = ["Grouping", "Groups", "free_name"]


@dataclass
class Grouping:
    """Collects the aggregates of a SELECT while its expressions are resolved."""

    query: Query
    columns: Columns
    keys: Mapping[str, str]
    computed: Mapping[str, str]
    reserved_names: set[str]
    """Names that further aggregates must not have."""
    functions: dict[str, str] = field(default_factory=dict)
    selected: dict[str, str] = field(default_factory=dict)
    """Keys and aggregates by the names under which they are selected."""

    def key_of(self, node: Any) -> str:
        """Return the name of the key that an expression equals, or ""."""
        try:
            meaning = self.columns.meaning(node)
        except Invalid:  # it refers to an aggregate, or to the alias of a selected expression
            return ""
        for name, key_meaning in self.keys.items():
            if key_meaning == meaning:
                return name
        return ""

    def aggregate(self, node: exp.Expression, name: str, *, add: bool = False) -> str:
        """Return the name of an equal aggregate, or add this one under a name like `name`.

        add: add it even if an equal one exists.
        """
        from sqlglot import exp

        text, computed_keys = self.columns.text(node), {key.lower() for key in self.computed}
        for column in node.find_all(exp.Column):
            if isinstance(column.this, exp.Star) or is_unit(column):
                continue
            if self.columns.base(column).lower() in computed_keys:
                raise self.query.refuse(column, "a key that is computed has this name", "name the key differently")
        problem = parse("it", text)
        if isinstance(problem, str):
            what = problem.removeprefix(f"it={text!r}").lstrip(": ")
            if what.endswith("leave out distinct"):
                help = "leave out DISTINCT"
            else:
                help = "compute it in `process`"
            raise self.query.refuse(node, what, help)
        if not add:
            for existing_name, function in self.functions.items():
                if function == text:
                    return existing_name
        new_name = free_name(name, {*self.reserved_names, *self.functions, *self.keys})
        self.functions[new_name] = text
        return new_name

    def text(self, node: exp.Expression) -> str:
        """Return the text of an expression over keys and aggregates, in Spark's SQL. Adds the aggregates it needs."""
        from sqlglot import exp

        def resolve(inner: Any) -> Any:
            if isinstance(inner, exp.Filter) or is_aggregate(inner):
                name = self.aggregate(inner, "value")
            elif isinstance(inner, exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
                raise self.query.refuse(inner, "this kind of aggregate has no operator", "compute it in `process`")
            elif isinstance(inner, exp.Column) and not is_unit(inner):
                name = self._key_or_selected(inner)
            elif isinstance(inner, exp.Func) and inner.find(exp.Column):
                name = self.key_of(inner)
            else:
                name = ""
            if not name:
                return inner
            return exp.column(exp.to_identifier(name, quoted=True))

        return text_of(node.copy().transform(resolve))

    def _key_or_selected(self, column: exp.Column) -> str:
        """Return the key with this name, or else the expression that is selected under it."""
        is_alias = len(column.parts) == 1 and column.name in self.selected
        if not is_alias or self.columns.may_be(column):
            key = self.key_of(column)
            if key:
                return key
        if not is_alias:
            raise self.query.refuse(column, "this is no key and no aggregate", "GROUP BY it, or compute it outside")
        return self.selected[column.name]


@dataclass(frozen=True)
class Groups:
    """The compiled parts of a SELECT with aggregates."""

    rows: Stream
    """The stream to group, which has all keys as columns."""
    keys: Mapping[str, str]
    """The meaning of each key (`Columns.meaning`)."""
    functions: Mapping[str, str]
    columns: Sequence[tuple[str, str]]
    """The selected expressions over keys and functions, in Spark's SQL, each with its name."""
    having: str | None

    def are_output_columns(self, names: Sequence[str]) -> bool:
        """Return whether the result has all groups, with these columns as they are."""
        return self.having is None and list(self.columns) == [(quoted(name), name) for name in names]


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with a number after it if it is taken."""
    if name not in taken:
        return name
    return next(numbered for number in count(2) if (numbered := f"{name}_{number}") not in taken)
