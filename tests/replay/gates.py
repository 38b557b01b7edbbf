"""Gates that judge by a row's value, by earlier checkpoints, or ask a person: without a suite, so they are quick."""

from __future__ import annotations

from typing import Any, ClassVar

from tidegate.gates import BrokenRule, Gate, GateContext, Judgement, RowRules
from tidegate.gates.base import Policy
from tidegate.gates.quarantine.columns import RULES
from tidegate.records.records import Json

__all__ = ["AboveTrend", "AsksAboutLarge", "SetsFifthsAside"]


class _GateWithoutSettings(Gate):
    """One whose kind says all."""

    quarantines = True
    policy: ClassVar[Policy] = "quarantine"

    def describe(self) -> Json:
        return {}

    @property
    def policies(self) -> frozenset[Policy]:
        return frozenset({self.policy})


class SetsFifthsAside(_GateWithoutSettings):
    """Quarantines every row whose value is a multiple of five."""

    kind = "fifths"

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        return _divided(frame, "v % 5 = 0", "fifth", {})

    def row_rules(self, frame: Any, context: GateContext) -> RowRules:
        from pyspark.sql import functions as F

        return RowRules(F.array_compact(F.array(F.when(F.expr("v % 5 = 0"), F.lit("fifth")))))


class AboveTrend(_GateWithoutSettings):
    """Quarantines rows whose value is more than twice the mean of all rows of earlier checkpoints."""

    kind = "above-trend"
    remembers = True

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        total, rows = frame.selectExpr("coalesce(sum(v), 0)", "count(*)").collect()[0]
        before = context.memory or {"total": 0, "rows": 0}
        memory = {"total": before["total"] + total, "rows": before["rows"] + rows}
        limit = 2 * before["total"] // before["rows"] if before["rows"] else None
        return _divided(frame, f"v > {limit}" if limit is not None else "false", "above", memory)


class AsksAboutLarge(_GateWithoutSettings):
    """Holds a checkpoint with a value of a thousand or more until a person has answered."""

    kind = "large"
    policy = "hold"

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        if context.quarantine_held:
            return _divided(frame, "v >= 1000", "large", {})
        large = frame.where("v >= 1000").count()
        broken = (BrokenRule("large", "hold", rows=large, why=f"{large} large values"),) if large else ()
        return Judgement(frame.count(), broken)


def _divided(frame: Any, condition: str, rule: str, memory: Json) -> Judgement:
    """Quarantine the rows that meet a condition. A null meets none."""
    from pyspark.sql import functions as F

    condition = f"coalesce({condition}, false)"
    bad = frame.where(condition).withColumn(RULES, F.array(F.lit(rule)))
    count = bad.count()
    broken = (BrokenRule(rule, "quarantine", rows=count),) if count else ()
    split = (frame.where(f"NOT {condition}"), bad) if count else None
    return Judgement(frame.count(), broken, split=split, memory=memory)
