"""Running aggregates per key: what a key's row is now, whenever its input changes.

Each function is kept as one or more partial values that can be merged, so that a checkpoint costs what its batch
costs: the batch is reduced to one row per key, joined with the state of these keys only, merged and written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.model.records import Json
from tidegate.operators.base import Operator, OperatorContext
from tidegate.operators.functions import Function, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Aggregate"]


class Aggregate(Operator):
    """`by`: the key columns. `functions`: output column → SQL aggregate, such as "sum(amount)"."""

    kind: ClassVar[str] = "aggregate"

    def __init__(self, by: Sequence[str], functions: Mapping[str, str]) -> None:
        self.by = [by] if isinstance(by, str) else list(by)
        self.functions = dict(functions)

    @property
    def updates(self) -> bool:
        return True

    def describe(self) -> Json:
        return {"by": self.by, "functions": self.functions}

    def problems(self) -> list[str]:
        found = [] if self.by else ["it has no key: name the columns in by=[…]"]
        if not self.functions:
            found.append('it computes nothing: name at least one, such as orders="count(*)"')
        for name, text in self.functions.items():
            if name in self.by:
                found.append(f"{name!r} is a key and a result")
            parsed = parse(name, text)
            if isinstance(parsed, str):
                found.append(parsed)
        return found

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        functions = [found for name, text in self.functions.items() if isinstance(found := parse(name, text), Function)]
        state = context.state(self.by)
        partial = inputs[0].groupBy(*self.by).agg(*(column for f in functions for column in f.partials()))
        merged = partial if state.is_empty else self._merged(context.keep(partial), functions, context)
        changed = state.put(merged)
        return {"": changed.select(*self.by, *(f.result() for f in functions))}

    def _merged(self, partial: DataFrame, functions: Sequence[Function], context: OperatorContext) -> DataFrame:
        before = context.state(self.by).of(partial)
        assert before is not None
        both = before.unionByName(partial)
        return both.groupBy(*self.by).agg(*(column for f in functions for column in f.merges()))
