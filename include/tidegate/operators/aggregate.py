"""Running aggregates per key: what a key's row is now, whenever its input changes.

Each function is kept as one or more partial values that can be merged, so that a checkpoint costs what its batch
costs: the batch is reduced to one row per key, joined with the state of these keys only, merged and written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.model.records import Json
from tidegate.operators.base import Operator, OperatorContext
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.functions import Function, parse
from tidegate.operators.lifting import lift
from tidegate.state.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Aggregate"]


class Aggregate(Operator):
    """`by`: the key columns. `functions`: output column → SQL aggregate, such as "sum(amount)"."""

    kind: ClassVar[str] = "aggregate"

    def __init__(self, by: Sequence[str], functions: Mapping[str, str], expiry: Expiry = NEVER) -> None:
        self.by = [by] if isinstance(by, str) else list(by)
        self.functions = dict(functions)
        self.expiry = expiry

    @property
    def uses_event_time(self) -> bool:
        """Whether it asks for watermarks: its rows expire by them."""
        return self.expiry.uses_event_time

    @property
    def updates(self) -> bool:
        return True

    def describe(self) -> Json:
        return {"by": self.by, "functions": self.functions, **self.expiry.describe()}

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
        return found + self.expiry.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        functions = [found for name, text in self.functions.items() if isinstance(found := parse(name, text), Function)]
        state = context.state(self.by, ttl=self.expiry.ttl(context))
        if lifted := lift(functions, inputs[0], self.by):
            changed = state.merge(lifted.rows, lifted.ops)
            return {"": changed.select(*self.by, *(f.result() for f in functions))}
        partial = inputs[0].groupBy(*self.by).agg(*(column for f in functions for column in f.partials()))
        merged = partial
        if not state.is_empty:
            before = state.of(context.keep(partial))
            assert before is not None
            both = partial.unionByName(before.select(*_known(partial, before)), allowMissingColumns=True)
            merged = both.groupBy(*self.by).agg(*(column for f in functions for column in f.merges()))
        changed = state.put(merged)
        return {"": changed.select(*self.by, *(f.result() for f in functions))}


def _known(now: DataFrame, before: DataFrame) -> list[str]:
    """What is kept now of what was kept before: a function may have been taken out."""
    return [quoted(name) for name in before.columns if name in now.columns]
