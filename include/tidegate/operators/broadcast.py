"""A small lookup table on every machine: the newest row of each key.

The state is that of `latest`. Each checkpoint emits the whole table with Spark's broadcast hint, so that the other side
of a join is not shuffled. The table is as of the checkpoint, in each attempt and after a restore.
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
    """The row of each key that is the greatest in `order_by`, without keys that have expired."""

    kind: ClassVar[str] = "broadcast"

    def spec(self) -> OperatorSpec:
        return replace(
            super().spec(),
            inputs=Inputs(),
            output=OutputSpec(is_lookup_table=True),
            changelog=Changelog(),
            intervals=Intervals(
                problems=[
                    "it emits rows of earlier checkpoints, and an interval starts without state: look up a table with "
                    "join(table=…), or join with latest(…) of the interval's own rows"
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
        keys = (F.col(quoted(name)).alias(f"_aside{number}") for number, name in enumerate(self.by))
        changed_keys = new.select(*keys)
        is_changed = null_safe_equality(self.by, changed_keys.columns, nulls=True)
        unchanged = before.join(changed_keys, is_changed, "left_anti")
        return {"": F.broadcast(recalled(state, unchanged, new, context).unionByName(new))}
