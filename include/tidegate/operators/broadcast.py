"""A small table on every machine: the newest row of each key, given whole in each checkpoint, to be looked up.

What a checkpoint changes is written as for `latest`. All of it is given, with Spark's hint: rows beside it stay where
they are. It is as of the checkpoint, in each attempt and after a restore: the rows that the state holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tidegate.operators.context import OperatorContext
from tidegate.operators.inputs import null_safe_equality, recalled
from tidegate.operators.latest import Latest
from tidegate.operators.spec import Changelog, Inputs, Intervals, OperatorSpec, OutputSpec
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Broadcast"]


class Broadcast(Latest):
    """For each key that has arrived, and not expired since, the row that is the greatest in `order_by`."""

    kind: ClassVar[str] = "broadcast"

    def spec(self) -> OperatorSpec:
        return replace(
            super().spec(),
            inputs=Inputs(),
            output=OutputSpec(is_lookup_table=True),
            changelog=Changelog(),
            intervals=Intervals(
                problems=[
                    "it gives rows of earlier checkpoints to later ones, and an interval begins with nothing: look a "
                    "table up, join(table=…), or join with latest(…) of the interval's own rows"
                ]
            ),
        )

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        new = super().run(inputs, context)[""]
        state = context.state(self.by)
        before = state.rows()
        if before is None:
            return {"": F.broadcast(new)}
        keys = (F.col(quoted(name)).alias(f"_aside{place}") for place, name in enumerate(self.by))
        changed = new.select(*keys)
        stays = before.join(changed, null_safe_equality(self.by, changed.columns, nulls=True), "left_anti")
        return {"": F.broadcast(recalled(state, stays, new, context).unionByName(new))}
