"""What a SELECT with aggregates computes of each group: keys, aggregates, and expressions of both."""

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
    """What is computed of each group, as it is found in a SELECT."""

    query: Query
    columns: Columns
    keys: Mapping[str, str]
    computed: Mapping[str, str]
    reserved_names: set[str]
    """Names that no further aggregate can have."""
    functions: dict[str, str] = field(default_factory=dict)
    selected: dict[str, str] = field(default_factory=dict)
    """Keys and aggregates by the names under which they are selected."""

    def key_of(self, node: Any) -> str:
        """Return the key that an expression is; empty if it is none."""
        try:
            meaning = self.columns.meaning(node)
        except Invalid:  # it names an aggregate, or what is selected
            return ""
        return next((name for name, of in self.keys.items() if of == meaning), "")

    def aggregate(self, node: exp.Expression, name: str, *, anew: bool = False) -> str:
        """Return the name of an aggregate: this one, or one like it. anew: even if the same is computed already."""
        from sqlglot import exp

        text, changed = self.columns.text(node), {each.lower() for each in self.computed}
        for each in node.find_all(exp.Column):
            if not isinstance(each.this, exp.Star) and not is_unit(each) and self.columns.base(each).lower() in changed:
                raise self.query.refuse(each, "a key that is computed has this name", "name the key differently")
        if isinstance(problem := parse("it", text), str):
            what = problem.removeprefix(f"it={text!r}").lstrip(": ")
            help = "leave out DISTINCT" if what.endswith("leave out distinct") else "compute it in `process`"
            raise self.query.refuse(node, what, help)
        known = next((known for known, function in self.functions.items() if function == text), "")
        if known and not anew:
            return known
        free = free_name(name, {*self.reserved_names, *self.functions, *self.keys})
        self.functions[free] = text
        return free

    def text(self, node: exp.Expression) -> str:
        """Return an expression of keys and aggregates, as Spark writes it. Those that it needs are added."""
        from sqlglot import exp

        def known(each: Any) -> Any:
            if isinstance(each, exp.Filter) or is_aggregate(each):
                name = self.aggregate(each, "value")
            elif isinstance(each, exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
                raise self.query.refuse(each, "this kind of aggregate has no operator", "compute it in `process`")
            elif isinstance(each, exp.Column) and not is_unit(each):
                name = self._key_or_selected(each)
            elif not isinstance(each, exp.Func) or not each.find(exp.Column) or not (name := self.key_of(each)):
                return each
            return exp.column(exp.to_identifier(name, quoted=True))

        return text_of(node.copy().transform(known))

    def _key_or_selected(self, column: exp.Column) -> str:
        """Return a key, by its own name, or else what is selected under this one."""
        is_alias = len(column.parts) == 1 and column.name in self.selected
        if (not is_alias or self.columns.may_be(column)) and (key := self.key_of(column)):
            return key
        if not is_alias:
            raise self.query.refuse(column, "this is no key and no aggregate", "GROUP BY it, or compute it outside")
        return self.selected[column.name]


@dataclass(frozen=True)
class Groups:
    """What a SELECT with aggregates computes."""

    rows: Stream
    """What it groups: all keys are columns of it."""
    keys: Mapping[str, str]
    """The keys, each with what it is of the columns that are read."""
    functions: Mapping[str, str]
    columns: Sequence[tuple[str, str]]
    """What it selects of keys and functions: each expression, as Spark writes it, with its name."""
    having: str | None

    def are_output_columns(self, names: Sequence[str]) -> bool:
        """Return whether the result has all groups, with these columns as they are."""
        return self.having is None and list(self.columns) == [(quoted(name), name) for name in names]


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, or one like it if it is taken."""
    return next(free for n in count(1) if (free := name if n == 1 else f"{name}_{n}") not in taken)
