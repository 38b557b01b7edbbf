"""SQL aggregates that can be kept: each as partial values, how those are merged, and the result that they give."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["FUNCTIONS", "Function", "parse"]

_CALL = re.compile(r"\s*([a-z_]+)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Shape:
    """How a function is kept. `{x}` is its argument, `{p}` a partial's column; SQL throughout."""

    partials: dict[str, str]
    """Suffix of the partial's column → how it comes from rows."""
    merges: dict[str, str]
    """Suffix → how partials become one."""
    result: str


def _same(name: str) -> Shape:
    return Shape({"": f"{name}({{x}})"}, {"": f"{name}({{p}})"}, "{p}")


FUNCTIONS = {
    "sum": _same("sum"),
    "min": _same("min"),
    "max": _same("max"),
    "count": Shape({"": "count({x})"}, {"": "sum({p})"}, "{p}"),
    "avg": Shape(
        {"_sum": "sum({x})", "_count": "count({x})"},
        {"_sum": "sum({p})", "_count": "sum({p})"},
        "{p_sum} / {p_count}",
    ),
}


@dataclass(frozen=True)
class Function:
    """One declared aggregate."""

    name: str
    argument: str
    shape: Shape

    def partials(self) -> list[Column]:
        """From rows to partial values."""
        return [self._column(text, suffix) for suffix, text in self.shape.partials.items()]

    def merges(self) -> list[Column]:
        """From partial values of one key to one each."""
        return [self._column(text, suffix) for suffix, text in self.shape.merges.items()]

    def result(self) -> Column:
        """From partial values to what the user asked for."""
        return self._column(self.shape.result, "", self.name)

    def _column(self, text: str, suffix: str, alias: str | None = None) -> Column:
        from pyspark.sql import functions as F

        names = {f"p{each}": f"`{self.name}{each}`" for each in self.shape.partials}
        names["p"] = f"`{self.name}{suffix}`"
        return F.expr(text.format(x=self.argument, **names)).alias(alias or f"{self.name}{suffix}")


def parse(name: str, text: str) -> Function | str:
    """The declared aggregate, or what is wrong with it."""
    match = _CALL.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return f'{name}={text!r} is no aggregate: write one call, such as {name}="sum(amount)"'
    shape = FUNCTIONS.get(match[1].lower())
    if shape is None:
        return f"{name}={text!r}: {match[1]} cannot be kept; these can: {', '.join(FUNCTIONS)}"
    return Function(name, match[2].strip(), shape)
