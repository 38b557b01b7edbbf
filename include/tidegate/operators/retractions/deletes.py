"""Remembers deletions in front of a sink that deletes rows and orders them, so that outdated rows do not reach it.

A deleted row leaves no trace in a table, so the table does not show that a late row is older than the deletion. So the
state has the order of each key's newest deletion until a row of the key arrives that is not older: from then on, the
table itself has an order to compare with. Rows that are older than the deletion are dropped.

So outdated rows are dropped however the input was cut into checkpoints. If a row and a deletion tie in the order, that
of the later checkpoint counts, as in the sink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.retractions.deletes_kernel import GONE, NewestDeletes
from tidegate.operators.retractions.key import DELETES
from tidegate.operators.spec import KEY_OF_FIRST_INPUT, Changelog, OperatorSpec, StateSpec, joined
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import is_known_empty, select_sql
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.state.keyed import KeyedState

__all__ = ["SINCE", "RememberedDeletes"]

SINCE: Final = "since"
"""The key in the operator's memory for the checkpoint from which on it knows deletions: 0 if it knows all."""


class RememberedDeletes(Operator):
    """`by`, `order_by`, `delete_when`: those of the sink."""

    kind: ClassVar[str] = "deletes"

    def __init__(self, by: Sequence[str], order_by: Sequence[str], delete_when: str, sink: str) -> None:
        self.by = list(by)
        self.order_by = list(order_by)
        self.delete_when = delete_when
        self.sink = sink

    def spec(self) -> OperatorSpec:
        keys, order = joined(self.by), joined(self.order_by)
        return OperatorSpec(
            identity=[*self.by, "by", *self.order_by],
            changelog=Changelog(key=KEY_OF_FIRST_INPUT),
            states=[StateSpec(DELETES)],
            note=f"sink {self.sink!r} removes rows by {keys}, and orders them by {order}: the {order} of each {keys} "
            "that was removed is kept until a newer row comes, so that an older one stays away; removed keys that "
            "never come again stay in this state",
        )

    def describe(self) -> Json:
        return {"by": self.by, "order_by": self.order_by, "delete_when": self.delete_when, "sink": self.sink}

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "order_by": self.order_by, "in front of sink": self.sink}

    @property
    def _columns(self) -> list[str]:
        """The columns of its state."""
        return list(dict.fromkeys([*self.by, *self.order_by]))

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows, upstream = inputs[0], context.upstream
        assert upstream is not None
        if not set(self._columns) <= set(rows.columns):
            return {"": rows}  # the sink reports the missing column
        since = context.memory.get(SINCE)
        if not isinstance(since, int):
            since = context.checkpoint if upstream.has_earlier_checkpoints else 0
        context.remember[SINCE] = since
        state = context.state(self.by, DELETES)
        if is_known_empty(rows):
            return {"": rows}
        rows = context.persist(rows)
        is_deletion = f"coalesce(({self.delete_when}), false) AS {GONE}"
        batch = select_sql(rows, [*map(quoted, self._columns), is_deletion])
        newer = self._newer_deletions(batch, state)
        return {"": rows if is_known_empty(newer) else self._without_outdated(rows, newer)}

    def _newer_deletions(self, batch: DataFrame, state: KeyedState) -> DataFrame:
        """Return the deletions that are newer than some row of the batch."""
        fields = {field.name: field for field in batch.schema.fields}
        stored = [fields[name] for name in self._columns]
        kernel = NewestDeletes(self.by, self.order_by)
        arriving = [*stored, fields[GONE]]
        return run_kernel(batch, arriving, self.by, [StateLookup(state, stored)], kernel, stored, is_empty=False).rows

    def _without_outdated(self, rows: DataFrame, newer: DataFrame) -> DataFrame:
        """Return the rows that are not older than a deletion of their key."""
        from pyspark.sql import functions as F

        aliases = {name: f"_tidegate_{number}" for number, name in enumerate(self._columns)}
        deletions = newer.select(*(F.col(quoted(name)).alias(alias) for name, alias in aliases.items()))
        row_order = F.struct(*(F.col(quoted(name)) for name in self.order_by))
        deletion_order = F.struct(*(F.col(aliases[name]).alias(name) for name in self.order_by))
        is_outdated: Column = row_order < deletion_order
        for key in self.by:
            is_outdated &= F.col(quoted(key)).eqNullSafe(F.col(aliases[key]))
        return rows.join(deletions, is_outdated, "left_anti")
