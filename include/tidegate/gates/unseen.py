"""A gate against repeated keys, among the judged rows or in an operator's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from tidegate.gates.base import GateContext, Judgement, Policy
from tidegate.gates.by_key import BROKEN, TIMES, KeyGate, has_no_null, key_names, split_bad_keys
from tidegate.operators.inputs import null_safe_equality
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Unseen"]

_SEEN = "_tidegate_seen"


class Unseen(KeyGate):
    """Check that no key occurs twice, neither among the judged rows nor in an operator's state.

        checked = orders.gate(Unseen("order_id", against="unique", on_failure="quarantine"))
        unique = checked.deduplicate(by="order_id", uid="unique")

    If a key occurs several times among the judged rows, all of its rows are bad.

    by: the key columns. Rows with a null in one of them are not judged.
    against: the uid of an operator in the same job that never forgets a key: `deduplicate`, `latest` or `aggregate` by
        the same columns. Only the judged keys are looked up, so the cost does not grow with the operator's state.
    on_failure: "abort" the checkpoint, "hold" it for a person, "quarantine" the bad rows, or only "warn".
    at_most: the largest share of rows that may go to quarantine. If more are bad, the checkpoint is aborted.
    hold_for: with "hold", how long to wait for a person. None waits without limit.
    unanswered: with "hold", whether to "approve" or "reject" if nobody answers in time.
    """

    kind: ClassVar[str] = "unseen"

    def __init__(
        self,
        by: str | Sequence[str],
        *,
        against: str | None = None,
        on_failure: Policy = "abort",
        at_most: float = 1.0,
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        super().__init__(by, on_failure, at_most, hold_for, unanswered)
        self.against = against

    def describe(self) -> Json:
        return super().describe() | {"against": self.against}

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.against is not None and not isinstance(self.against, str):
            problems.append(f"against is {self.against!r}: expected the uid of an operator")
        return problems

    def interval_problems(self) -> list[str]:
        if self.against is None:
            return []
        return [
            f"against={self.against!r}: operators have no state beyond the interval; leave it out, to look for keys "
            "among the interval's own rows"
        ]

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from pyspark.sql import functions as f

        self.check_columns(frame, context)
        keys = materialize(frame.groupBy(*map(quoted, self.by)).agg(f.count(f.lit(1)).alias(TIMES)))
        bad_keys = materialize(self._find_bad_keys(keys, context))
        sums = [f.sum(f.when(f.array_contains(BROKEN, rule), f.col(TIMES))) for rule in ("seen", "repeated")]
        seen_rows, repeated_rows, key_count = bad_keys.agg(*sums, f.count(f.lit(1))).collect()[0]
        rows = keys.agg(f.coalesce(f.sum(TIMES), f.lit(0))).collect()[0][0]
        found = {
            "seen": (seen_rows or 0, f"{seen_rows} rows have a key that {self.against!r} holds already"),
            "repeated": (repeated_rows or 0, f"{repeated_rows} rows have the key of another one"),
        }
        broken = self.rules_broken(found, context)
        good_and_bad = None
        if broken and broken[0].policy == "quarantine":
            good_and_bad = split_bad_keys(frame, self.by, bad_keys, key_count)
        results: Json = {
            "success": not broken,
            "rows": rows,
            "seen": seen_rows or 0,
            "repeated": repeated_rows or 0,
        }
        return Judgement(rows, broken, results, good_and_bad, (keys, bad_keys))

    def _find_bad_keys(self, keys: DataFrame, context: GateContext) -> DataFrame:
        """Return the bad keys, each with its number of rows and the rules that these break."""
        from pyspark.sql import functions as f

        columns = list(map(quoted, self.by))
        judged = keys.where(has_no_null(self.by))
        state = None
        if context.lookup_operator_rows is not None:
            state = context.lookup_operator_rows(judged.select(*columns))
        if state is None:
            judged = judged.withColumn(_SEEN, f.lit(None).cast("boolean"))
        else:
            names = key_names(self.by)
            seen_keys = state.select(*columns).distinct().toDF(*names).withColumn(_SEEN, f.lit(True))
            judged = judged.join(seen_keys, null_safe_equality(self.by, names, nulls=False), "left").drop(*names)
        rules = f.array(f.when(f.col(_SEEN), f.lit("seen")), f.when(f.col(TIMES) > 1, f.lit("repeated")))
        with_rules = judged.select(*columns, TIMES, f.array_compact(rules).alias(BROKEN))
        return with_rules.where(f.size(BROKEN) > 0)
