"""Puts another stream's totals beside rows, for a gate that compares both.

It emits all rows of its first input, and one row for each group of the second one, which has nothing but the group and
its total. The gate `Agrees` takes these rows and columns off again. There is no state: both streams are those of one
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.errors import Invalid
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.inputs import need_number
from tidegate.operators.spec import ANY_INTERVAL, BOUNDED, Inputs, OperatorSpec
from tidegate.records.names import quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["GROUP", "IS_TOTAL", "TOTAL", "TotalsBeside"]

IS_TOTAL: Final = "_tidegate_is_total"
TOTAL: Final = "_tidegate_total"
GROUP: Final = "_tidegate_group"
"""The values of the group's columns, as a struct."""


class TotalsBeside(Operator):
    """`function`: an SQL aggregate of the second input, the stream `of`. `by`: its columns that form groups."""

    kind: ClassVar[str] = "totals"

    def __init__(self, function: str, by: Sequence[str], of: str) -> None:
        self.function = function
        self.by = list(by)
        self.of = of

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            inputs=Inputs(retraction_advice="compare the rows before that"),
            states=[],
            growth=BOUNDED,
            intervals=ANY_INTERVAL,
            cuts=["which rows of both streams are in one checkpoint"],
        )

    def describe(self) -> Json:
        return {"function": self.function, "by": self.by}

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        rows, others = inputs
        gate = context.uid.removesuffix(f"-{self.kind}")
        missing = [name for name in self.by if name not in others.columns]
        if missing:
            raise Invalid(
                f"gate {gate!r}: {self.of} has no column {', '.join(missing)}",
                expected=f"columns of {self.of}: {', '.join(others.columns)}",
                help="name them in key=…, in the order of by, if they are called otherwise there",
                reason="BAD_GATE",
            )
        need_number(others, self.function, gate, "other")
        groups = list(map(quoted, self.by))
        total = others.groupBy(*groups).agg(F.expr(self.function).alias(TOTAL))
        group = F.struct(*(F.col(name).alias(f"by{place}") for place, name in enumerate(groups)), F.lit(0).alias("_"))
        totals = total.select(group.alias(GROUP), TOTAL, F.lit(True).alias(IS_TOTAL))
        marked = rows.withColumn(IS_TOTAL, F.lit(False))
        return {"": marked.unionByName(totals, allowMissingColumns=True)}
