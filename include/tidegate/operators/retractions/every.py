"""Emits a stream's net changes every N checkpoints; rows added and retracted in between cancel out.

Pending changes are stored as rows with their number of added copies less retracted ones. So downstream, each row has
as many copies as are current, and a row that was not emitted is not retracted. Only completed checkpoints count, not
those that were aborted or rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.inputs import refuse_reserved_columns
from tidegate.operators.join.sides import refuse_missing
from tidegate.operators.kernels.net_changes import NetChanges
from tidegate.operators.spec import (
    BOUNDED,
    KEY_OF_FIRST_INPUT,
    Changelog,
    Inputs,
    Intervals,
    OperatorSpec,
    OutputSpec,
    Updates,
)
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import is_known_empty, select_sql
from tidegate.spark.row_id import row_id
from tidegate.state.arrow.kernel_worker import IS_CURRENT
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EmitEvery"]


CHECKPOINTS_WAITED: Final = "waited"
"""The key in the operator's memory for the number of checkpoints since the last emission, including this one."""
_ANY_COUNT: Final = 1 << 62
"""More than the copies of any row. Used as a limit, it makes the lookup return all stored rows."""


class EmitEvery(Operator):
    """`checkpoints`: the number of checkpoints per emission. At the end of event time, all pending changes are
    emitted."""

    kind: ClassVar[str] = "every"

    def __init__(self, checkpoints: int) -> None:
        self.checkpoints = checkpoints

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            inputs=Inputs(retractions=True),
            output=OutputSpec(inputs_of_any_age=[0]),
            changelog=Changelog(updates=Updates.IF_INPUTS_DO, key=KEY_OF_FIRST_INPUT),
            growth=BOUNDED,
            intervals=Intervals(
                problems=["each interval is one checkpoint, which emits all of its rows: leave it out"]
            ),
            cuts=[f"when it emits changes: every {self.checkpoints} checkpoints"],
        )

    def describe(self) -> Json:
        return {"checkpoints": self.checkpoints}

    def problems(self) -> list[str]:
        if type(self.checkpoints) is int and self.checkpoints >= 1:
            return []
        return [f"it is every {self.checkpoints!r}: expected a number of checkpoints, such as every(5)"]

    def meaning(self, over_updates: bool) -> Json:
        return {"its rows are taken back": over_updates}

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import types as T

        rows = inputs[0]
        retractions = context.retractions[0] if context.retractions else None
        refuse_reserved_columns(rows, context)
        waited_before = context.memory.get(CHECKPOINTS_WAITED)
        waited = waited_before + 1 if isinstance(waited_before, int) else 1
        emits = waited >= self.checkpoints or context.watermarks.event_time_ends
        context.remember[CHECKPOINTS_WAITED] = 0 if emits else waited
        state, fields = context.state(["_row"]), rows.schema.fields
        stored = [T.StructField("_row", T.StringType()), *fields, T.StructField("_n", T.LongType())]
        batch, is_empty = _with_ids(rows, rows, 1), is_known_empty(rows)
        retracts = retractions is not None
        if retractions is not None:
            batch = batch.unionByName(_with_ids(retractions, rows, -1))
            is_empty = is_empty and is_known_empty(retractions)
            if state.base is not None:
                before = [field["name"] for field in state.base.columns["fields"]]
                refuse_missing(before, [field.name for field in stored], context)
        output = run_kernel(
            batch,
            stored,
            ["_row"],
            [StateLookup(state, stored, time="_n", expire_before=_ANY_COUNT if emits else None)],
            NetChanges([field.name for field in fields], emits, retracts),
            fields,
            is_empty=is_empty,
            is_current_column=IS_CURRENT if retracts else None,
            wants_retractions=retracts and context.wants_retractions,
        )
        if retracts:
            return {"": output.rows, "-": output.retractions}
        return {"": output.rows}


def _with_ids(rows: DataFrame, like: DataFrame, copies: int) -> DataFrame:
    """Return the rows in the columns of `like`, with their ids and a number of copies."""
    rows = rows.select(*map(quoted, like.columns)).withColumn("_row", row_id(like))
    return select_sql(rows, ["_row", *map(quoted, like.columns), f"CAST({copies} AS BIGINT) AS _n"])
