"""Changes of a stream, given every few checkpoints instead of in each: what has come and gone in between is nothing.

Waiting changes are kept as rows with how many copies of each have come, less those that were taken back. What is given
is what remains of them, so whoever takes the stream sees each row as often as it holds then, and no row is taken back
that was not given. Only completed checkpoints count: one that was aborted, or gone back behind, has not happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.operators.base import Operator, OperatorContext
from tidegate.operators.inputs import recalled, refuse_own
from tidegate.operators.join.sides import changed_rows, copies, refuse_missing
from tidegate.records.names import quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.retractions.key import ChangelogKey

__all__ = ["EveryFew"]


WAITED: Final = "waited"
"""What it remembers: for how many checkpoints, this one included, nothing has been given."""


class EveryFew(Operator):
    """`checkpoints`: the last of so many gives what waits; so does the end of event time."""

    kind: ClassVar[str] = "every"

    def __init__(self, checkpoints: int) -> None:
        self.checkpoints = checkpoints

    @property
    def updates(self) -> bool:
        return True

    def updates_over(self, over_updates: bool) -> bool:
        return over_updates

    @property
    def takes_updates(self) -> bool:
        return True

    @property
    def gives_old_rows_of(self) -> tuple[int, ...]:
        return (0,)

    def changelog_key(
        self, inputs: Sequence[ChangelogKey | None], columns: Sequence[Sequence[str]] | None = None
    ) -> ChangelogKey | None:
        return inputs[0]

    def describe(self) -> Json:
        return {"checkpoints": self.checkpoints}

    @property
    def by_cuts(self) -> list[str]:
        return [*super().by_cuts, f"when it gives its changes: with each {self.checkpoints} checkpoints"]

    def problems(self) -> list[str]:
        if type(self.checkpoints) is int and self.checkpoints >= 1:
            return []
        return [f"it is every {self.checkpoints!r}: say after how many checkpoints, such as every(5)"]

    def meaning(self, over_updates: bool) -> Json:
        return {"its rows are taken back": over_updates}

    def interval_problems(self) -> list[str]:
        return ["each interval is one checkpoint, and gives all that it has: leave it out"]

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        rows, withdrawn = inputs[0], context.withdrawn[0] if context.withdrawn else None
        refuse_own(rows, context)
        state, columns = context.state(["_row"]), list(map(quoted, rows.columns))
        waiting = changed_rows(rows, withdrawn, [], context)
        told = context.memory.get(WAITED)
        waited = (told if isinstance(told, int) else 0) + 1
        gives = waited >= self.checkpoints or context.watermarks.ends
        context.remember[WAITED] = 0 if gives else waited
        stored = state.rows() if gives else state.of(waiting)
        changes = waiting.withColumn("_new", F.lit(True))
        if stored is not None:
            if withdrawn is not None:
                refuse_missing(stored.columns, waiting.columns, context)
            before = recalled(state, stored, waiting, context)
            firsts = (F.first(name).alias(column) for name, column in zip(columns, rows.columns, strict=True))
            both = changes.unionByName(before.withColumn("_new", F.lit(False))).groupBy("_row")
            changes = context.persist(both.agg(*firsts, F.sum("_n").alias("_n"), F.min("_new").alias("_new")))
        if not gives:
            kept = changes.where("_n <> 0 OR NOT _new")
            state.put(kept.selectExpr("_row", *columns, "_n", "_n = 0 AS _deleted"), deletes=True)
            none = rows.where("false")
            return {"": none, "-": none} if withdrawn is not None else {"": none}
        gone = changes.where("NOT _new")
        state.put(gone.selectExpr("_row", *columns, "_n", "true AS _deleted"), deletes=True)
        given = copies(changes.where("_n > 0"), "_n").select(*columns)
        if withdrawn is None:
            return {"": given}
        back = copies(changes.where("_n < 0").withColumn("_n", -F.col("_n")), "_n").select(*columns)
        return {"": given, "-": back}
