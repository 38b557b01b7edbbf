"""Changes of a stream, given every few checkpoints instead of in each: what has come and gone in between is nothing.

Waiting changes are kept as rows with how many copies of each have come, less those that were taken back. What is given
is what remains of them, so whoever takes the stream sees each row as often as it holds then, and no row is taken back
that was not given. Only completed checkpoints count: one that was aborted, or gone back behind, has not happened.
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
"""What it remembers: for how many checkpoints, this one included, nothing has been given."""
_ANY_COUNT: Final = 1 << 62
"""More copies than there are of any row: all stored rows have fewer, so that all are looked up."""


class EmitEvery(Operator):
    """`checkpoints`: the last of so many gives what waits; so does the end of event time."""

    kind: ClassVar[str] = "every"

    def __init__(self, checkpoints: int) -> None:
        self.checkpoints = checkpoints

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            inputs=Inputs(retractions=True),
            output=OutputSpec(inputs_of_any_age=[0]),
            changelog=Changelog(updates=Updates.IF_INPUTS_DO, key=KEY_OF_FIRST_INPUT),
            growth=BOUNDED,
            intervals=Intervals(problems=["each interval is one checkpoint, and gives all that it has: leave it out"]),
            cuts=[f"when it gives its changes: with each {self.checkpoints} checkpoints"],
        )

    def describe(self) -> Json:
        return {"checkpoints": self.checkpoints}

    def problems(self) -> list[str]:
        if type(self.checkpoints) is int and self.checkpoints >= 1:
            return []
        return [f"it is every {self.checkpoints!r}: say after how many checkpoints, such as every(5)"]

    def meaning(self, over_updates: bool) -> Json:
        return {"its rows are taken back": over_updates}

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import types as T

        rows, withdrawn = inputs[0], context.retractions[0] if context.retractions else None
        refuse_reserved_columns(rows, context)
        told = context.memory.get(CHECKPOINTS_WAITED)
        waited = (told if isinstance(told, int) else 0) + 1
        gives = waited >= self.checkpoints or context.watermarks.event_time_ends
        context.remember[CHECKPOINTS_WAITED] = 0 if gives else waited
        state, fields = context.state(["_row"]), rows.schema.fields
        stored = [T.StructField("_row", T.StringType()), *fields, T.StructField("_n", T.LongType())]
        if withdrawn is not None and state.base is not None:
            before = [field["name"] for field in state.base.columns["fields"]]
            refuse_missing(before, [field.name for field in stored], context)
        names, replaces = [field.name for field in fields], withdrawn is not None
        batch = _with_ids(rows, rows, 1)
        if withdrawn is not None:
            batch = batch.unionByName(_with_ids(withdrawn, rows, -1))
        folded = run_kernel(
            batch,
            stored,
            ["_row"],
            [StateLookup(state, stored, time="_n", expire_before=_ANY_COUNT if gives else None)],
            NetChanges(names, gives, replaces),
            fields,
            is_empty=is_known_empty(rows) and (withdrawn is None or is_known_empty(withdrawn)),
            is_current_column=IS_CURRENT if replaces else None,
            wants_retractions=replaces and context.wants_retractions,
        )
        return {"": folded.rows, **({"-": folded.retractions} if replaces else {})}


def _with_ids(rows: DataFrame, like: DataFrame, copies: int) -> DataFrame:
    """Return rows in the columns of `like`, each with its id and a number of copies."""
    rows = rows.select(*map(quoted, like.columns)).withColumn("_row", row_id(like))
    return select_sql(rows, ["_row", *map(quoted, like.columns), f"CAST({copies} AS BIGINT) AS _n"])
