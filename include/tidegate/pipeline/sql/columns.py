"""Resolves the columns of a SELECT to columns of the rows that it reads, from one stream or from a join."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidegate.pipeline.sql.reading import name_of, text_of
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from sqlglot import exp

    from tidegate.pipeline.sql.reading import Query

__all__ = ["Columns", "JoinedColumns", "StreamColumns", "is_counted", "is_unit", "joined_name"]

_BY_UNITS: Final = ("dateadd", "date_add", "datediff", "date_diff", "timestampadd", "timestampdiff")
"""Functions whose first argument of three is a word, such as DAY."""


class Columns(ABC):
    """The columns that a SELECT may name."""

    query: Query

    @abstractmethod
    def path(self, column: Any) -> list[Any]:
        """Return the name of a column in the rows, followed by the names of fields in it.

        Raise an error if the rows cannot have such a column.
        """

    def is_alias(self, names: list[str]) -> bool:
        """Return whether columns may be qualified with these names."""
        return not names

    def renamed(self, column: Any, path: Any) -> Any:
        """Return the expression that replaces `column`. path: the column in the rows."""
        return path

    def may_be(self, column: exp.Column) -> bool:
        """Return whether the rows may have this column, as far as is known."""
        return True

    @abstractmethod
    def selected(self, node: Any) -> str:
        """Return the text of a selected expression, in Spark's SQL."""

    def text(self, node: exp.Expression) -> str:
        """Return the text of an expression over the rows, in Spark's SQL."""
        from sqlglot import exp

        top = node.copy()

        def resolve(inner: Any) -> Any:
            if isinstance(inner, exp.Star) and inner is not top and not is_counted(inner):
                raise self.query.refuse(inner, "all columns within an expression", "name them")
            if not isinstance(inner, exp.Column) or is_unit(inner):
                return inner
            if isinstance(inner.this, exp.Star):
                if inner is not top:
                    raise self.query.refuse(inner, "all columns within an expression", "name them")
                if not self.is_alias([part.name for part in inner.parts[:-1]]):
                    raise self.query.refuse(inner, "all fields of a column", "name them")
                return inner.this.copy()
            return self.renamed(inner, exp.column(*reversed(self.path(inner))))

        return text_of(top.transform(resolve, copy=False))

    def is_all(self, node: Any) -> bool:
        """Return whether it is `*`, or `o.*` of a stream's alias, without exceptions."""
        from sqlglot import exp

        star, qualifier = node, []
        if isinstance(node, exp.Column):
            star, qualifier = node.this, [part.name for part in node.parts[:-1]]
        return isinstance(star, exp.Star) and not any(star.args.values()) and self.is_alias(qualifier)

    def base(self, column: exp.Column) -> str:
        """Return the name of a column in the rows. For a field, that of the column that contains it."""
        return str(self.path(column)[0].name)

    def name(self, node: exp.Expression) -> str:
        """Return the name of a column in the rows, or "" for other expressions, including fields."""
        from sqlglot import exp

        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return ""
        path = self.path(node)
        return str(path[0].name) if len(path) == 1 else ""

    def meaning(self, node: exp.Expression) -> str:
        """Return a text that is the same for all spellings of the same column or expression."""
        return self.name(node) or self.text(node)


@dataclass(frozen=True)
class StreamColumns(Columns):
    """The columns of one stream."""

    query: Query
    alias: str
    """The name with which columns may be qualified, if any."""

    def path(self, column: Any) -> list[Any]:
        parts = [part.copy() for part in column.parts]
        if not self.alias or len(parts) == 1:
            return parts
        if not self.is_alias([parts[0].name]):
            within = ".".join(part.name for part in parts)
            help = f"write {self.alias}.{column.name}, or {self.alias}.{within} for a field of a column"
            raise self.query.refuse(column, f"{parts[0].name!r} is not what FROM names", help)
        return parts[1:]

    def is_alias(self, names: list[str]) -> bool:
        return not names or [name.lower() for name in names] == [self.alias.lower()]

    def selected(self, node: Any) -> str:
        return self.text(node)


@dataclass
class JoinedColumns(Columns):
    """The columns of the streams joined so far."""

    query: Query
    aliases: list[str]
    equal: dict[str, str] = field(default_factory=dict)
    """Columns that an inner join drops, each with the column that it equals."""
    shared: dict[str, str] = field(default_factory=dict)
    """The columns of USING, which need no alias."""
    event_times: dict[str, str | None] = field(default_factory=dict)
    """Each side's column of event time, if its sources agree on one."""

    def path(self, column: Any) -> list[Any]:
        from sqlglot import exp

        first, *further = (part.copy() for part in column.parts)
        if not further and first.name in self.shared:
            return [exp.to_identifier(self.shared[first.name], quoted=True)]
        alias = self.alias(first.name) if further else ""
        if not alias:
            choices = " or ".join(f"{side}.{column.name}" for side in self.aliases)
            raise self.query.refuse(column, "a column of either side", f"write {choices}")
        return [exp.to_identifier(self._joined_column(alias, further[0].name), quoted=True), *further[1:]]

    def may_be(self, column: exp.Column) -> bool:
        return len(column.parts) > 1 or column.name in self.shared

    def alias(self, name: str) -> str:
        """Return the alias of the side with this name, ignoring case, or ""."""
        for alias in self.aliases:
            if alias.lower() == name.lower():
                return alias
        return ""

    def renamed(self, column: Any, path: Any) -> Any:
        from sqlglot import exp

        if isinstance(column.parent, exp.Anonymous):
            call = column.parent.name.lower()
        else:
            call = ""
        if call == "arrays_zip":
            raise self.query.refuse(column, "a name that the join changes", "do it in a SELECT around this one")
        if call != "struct":
            return path
        return exp.alias_(path, column.name, quoted=True)

    def selected(self, node: Any) -> str:
        if not name_of(node):
            raise self.query.refuse(node, "an expression without a name", "write AS, and a name")
        return f"{self.text(node.unalias())} AS {quoted(name_of(node))}"

    def using(self, node: exp.Expression) -> str:
        """Return the name of a column that USING names."""
        if node.name in self.shared:
            return self.shared[node.name]
        if len(self.aliases) > 1:
            raise self.query.refuse(node, "a column of one of several sides", "write ON, and the side")
        return self._joined_column(self.aliases[0], node.name)

    def _joined_column(self, alias: str, name: str) -> str:
        column = joined_name(alias, name)
        return self.equal.get(column, column)


def joined_name(alias: str, name: str) -> str:
    """Return the name of a side's column in the joined rows."""
    return f"{alias}__{name}"


def is_counted(star: Any) -> bool:
    """Return whether a star is part of count(*)."""
    return star.parent is not None and star.parent.name.lower() == "count"


def is_unit(column: exp.Column) -> bool:
    """Return whether it is a word like DAY in place of a column."""
    from sqlglot import exp

    call = column.parent
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in _BY_UNITS or len(call.expressions) != 3:
        return False
    return call.expressions[0] is column and len(column.parts) == 1
