"""How a SELECT's columns are called in the rows that it reads: those of one stream, or of several that are joined."""

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
        """Return the name of a column in the rows, and the fields within it that are meant. Raise an error if there
        can be no such column."""

    def is_alias(self, names: list[str]) -> bool:
        """Return whether columns may be qualified with these."""
        return not names

    def renamed(self, column: Any, path: Any) -> Any:
        """Return a column, given by its path in the rows, as it stands where `column` stood."""
        return path

    def may_be(self, column: exp.Column) -> bool:
        """Return whether there can be such a column, as far as it is known."""
        return True

    @abstractmethod
    def selected(self, node: Any) -> str:
        """Return one of the expressions behind SELECT as Spark writes it."""

    def text(self, node: exp.Expression) -> str:
        """Return an expression as Spark writes it."""
        from sqlglot import exp

        top = node.copy()

        def named(each: Any) -> Any:
            if isinstance(each, exp.Star) and each is not top and not is_counted(each):
                raise self.query.refuse(each, "all columns within an expression", "name them")
            if not isinstance(each, exp.Column) or is_unit(each):
                return each
            if isinstance(each.this, exp.Star):
                if each is not top:
                    raise self.query.refuse(each, "all columns within an expression", "name them")
                if not self.is_alias([part.name for part in each.parts[:-1]]):
                    raise self.query.refuse(each, "all fields of a column", "name them")
                return each.this.copy()
            return self.renamed(each, exp.column(*reversed(self.path(each))))

        return text_of(top.transform(named, copy=False))

    def is_all(self, node: Any) -> bool:
        """Return whether it is `*`, or `o.*` of all columns, without exceptions."""
        from sqlglot import exp

        star, alias = (node.this, node.parts[:-1]) if isinstance(node, exp.Column) else (node, [])
        has_all = isinstance(star, exp.Star) and not any(star.args.values())
        return has_all and self.is_alias([part.name for part in alias])

    def base(self, column: exp.Column) -> str:
        """Return the name of a column in the rows, also if a field of it is meant."""
        return str(self.path(column)[0].name)

    def name(self, node: exp.Expression) -> str:
        """Return the name of a column in the rows; empty for anything else, also for a field of one."""
        from sqlglot import exp

        path = self.path(node) if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star) else []
        return str(path[0].name) if len(path) == 1 else ""

    def meaning(self, node: exp.Expression) -> str:
        """Return what two ways to write the same column, or the same expression, have in common."""
        return self.name(node) or self.text(node)


@dataclass(frozen=True)
class StreamColumns(Columns):
    """The columns of one stream."""

    query: Query
    alias: str
    """What they may be qualified with. Empty: nothing."""

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
    """The columns of the streams that are joined so far."""

    query: Query
    aliases: list[str]
    equal: dict[str, str] = field(default_factory=dict)
    """The columns that an inner join has left out, each with the one that it is equal to."""
    shared: dict[str, str] = field(default_factory=dict)
    """The columns of USING, which need no alias."""
    event_times: dict[str, str | None] = field(default_factory=dict)
    """The column of event time that the sources of each side declare, if they agree on one."""

    def path(self, column: Any) -> list[Any]:
        from sqlglot import exp

        first, *others = (part.copy() for part in column.parts)
        if not others and first.name in self.shared:
            return [exp.to_identifier(self.shared[first.name], quoted=True)]
        if not others or not (alias := self.alias(first.name)):
            choices = " or ".join(f"{alias}.{column.name}" for alias in self.aliases)
            raise self.query.refuse(column, "a column of either side", f"write {choices}")
        return [exp.to_identifier(self._of(alias, others[0].name), quoted=True), *others[1:]]

    def may_be(self, column: exp.Column) -> bool:
        return len(column.parts) > 1 or column.name in self.shared

    def alias(self, name: str) -> str:
        """Return the side that is called so, in whatever case; empty if there is none."""
        return next((alias for alias in self.aliases if alias.lower() == name.lower()), "")

    def renamed(self, column: Any, path: Any) -> Any:
        from sqlglot import exp

        call = column.parent.name.lower() if isinstance(column.parent, exp.Anonymous) else ""
        if call == "arrays_zip":
            raise self.query.refuse(column, "a name that the join changes", "do it in a SELECT around this one")
        return exp.alias_(path, column.name, quoted=True) if call == "struct" else path

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
        return self._of(self.aliases[0], node.name)

    def _of(self, alias: str, name: str) -> str:
        own = joined_name(alias, name)
        return self.equal.get(own, own)


def joined_name(alias: str, name: str) -> str:
    """Return the name of a side's column in the joined rows."""
    return f"{alias}__{name}"


def is_counted(star: Any) -> bool:
    """Return whether a star is that of count(*)."""
    return star.parent is not None and star.parent.name.lower() == "count"


def is_unit(column: exp.Column) -> bool:
    """Return whether it is a word like DAY in place of a column."""
    from sqlglot import exp

    call = column.parent
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in _BY_UNITS or len(call.expressions) != 3:
        return False
    return call.expressions[0] is column and len(column.parts) == 1
