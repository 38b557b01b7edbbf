"""A gate against keys that occur twice within some time, in the same or in different checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from tidegate.gates.base import GateContext, Judgement, Policy
from tidegate.gates.by_key import KeyGate
from tidegate.operators.deduplicate import LATE, MARK, REPEATED, WITHOUT_TIME, RepeatMarker
from tidegate.records.records import Json
from tidegate.spark.event_time import duration_problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.base import Operator

__all__ = ["Unique"]


class Unique(KeyGate):
    """Check that no key occurs twice within some event time, neither among the judged rows nor in earlier checkpoints.

        checked = orders.gate(Unique("order_id", over="7 days", on_failure="quarantine"))

    Of rows with the same key that are less than `over` apart in event time, the earliest passes; of equally old ones,
    the one with the least hash of its values. The others break the rule "repeated". Which rows these are does not
    depend on how the input is cut into checkpoints, except for late rows: the row that came first has passed already.

    Keys and times of the rows that passed are kept as state, in an operator in front of the gate, for twice `over`. So
    a row that is late by up to `over` is judged like any other. A row that is later than that breaks the rule "late",
    and one with a key and no time the rule "without_time". Rows that return from quarantine are not remembered.

    by: the key columns. Rows with a null in one of them pass.
    over: the time within which a key may occur once, such as "7 days".
    event_time: the column with the time, if it is not the one that the sources declare.
    on_failure: "abort" the checkpoint, "hold" it for a person, "quarantine" the bad rows, or only "warn".
    at_most: the largest share of rows that may go to quarantine. If more are bad, the checkpoint is aborted.
    hold_for: with "hold", how long to wait for a person. None waits without limit.
    unanswered: with "hold", whether to "approve" or "reject" if nobody answers in time.
    """

    kind: ClassVar[str] = "unique"
    marks = (MARK,)

    def __init__(
        self,
        by: str | Sequence[str],
        *,
        over: str,
        event_time: str | None = None,
        on_failure: Policy = "abort",
        at_most: float = 1.0,
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        super().__init__(by, on_failure, at_most, hold_for, unanswered)
        self.over = over
        self.event_time = event_time

    def describe(self) -> Json:
        return super().describe() | {"over": self.over, "event_time": self.event_time}

    def problems(self) -> list[str]:
        problem = duration_problem("over", self.over)
        return [*super().problems(), *([problem] if problem else [])]

    @property
    def operator_in_front(self) -> Operator:
        return RepeatMarker(self.by, self.over, self.event_time)

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from pyspark.sql import functions as f

        why = {
            REPEATED: f"rows have the key of an earlier one, less than {self.over} before or after them",
            LATE: f"rows are older than the watermark by more than {self.over}: keys of their time are forgotten",
            WITHOUT_TIME: "rows have a key and no time",
        }
        counts = [f.count_if(f.col(MARK) == rule) for rule in why]
        rows, *found = frame.agg(f.count(f.lit(1)), *counts).collect()[0]
        by_rule = dict(zip(why, found, strict=True))
        broken = self.rules_broken({rule: (by_rule[rule], f"{by_rule[rule]:,} {why[rule]}") for rule in why}, context)
        judged, good_and_bad = frame.drop(MARK), None
        if broken and broken[0].policy == "quarantine":
            bad = frame.where(f.col(MARK).isNotNull())
            good = frame.where(f.col(MARK).isNull())
            good_and_bad = good.drop(MARK), bad.withColumn(Judgement.RULES, f.array(MARK)).drop(MARK)
        return Judgement(rows, broken, {"success": not broken, "rows": rows, **by_rule}, good_and_bad, frame=judged)
