"""A gate against repeated keys, among the judged rows or in an operator's state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, Literal

from tidegate.errors import Invalid
from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement, Policy, is_share, policy_problems
from tidegate.operators.inputs import key_problems, null_safe_equality
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Unseen"]

_TIMES, _SEEN, _BROKEN = "_tidegate_times", "_tidegate_seen", "_tidegate_broken"
_KEY = "_tidegate_key"
BROADCAST_KEYS = 500_000


class Unseen(Gate):
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
        self.by = listed(by)
        self.against = against
        self.on_failure = on_failure
        self.at_most = at_most
        self.hold_for = hold_for
        self.unanswered = unanswered

    @property
    def identity_parts(self) -> list[str]:
        return self.by

    @property
    def quarantines(self) -> bool:
        return self.on_failure in ("quarantine", "hold")

    @property
    def policies(self) -> frozenset[Policy]:
        return frozenset([self.on_failure])

    def describe(self) -> Json:
        settings = {"by": self.by, "against": self.against, "on_failure": self.on_failure, "at_most": self.at_most}
        if self.on_failure == "hold":
            settings |= {"hold_for": self.hold_for, "unanswered": self.unanswered}
        return settings

    def problems(self) -> list[str]:
        problems = [*key_problems(self.by), *policy_problems({"on_failure": self.on_failure})]
        if self.against is not None and not isinstance(self.against, str):
            problems.append(f"against is {self.against!r}: expected the uid of an operator")
        if not is_share(self.at_most):
            problems.append(f"at_most is {self.at_most!r}: expected a share from 0 to 1")
        return problems

    def interval_problems(self) -> list[str]:
        if self.against is None:
            return []
        return [
            f"against={self.against!r}: operators have no state beyond the interval; leave it out, to look for keys "
            "among the interval's own rows"
        ]

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:
        missing = [name for name in self.by if name not in frame.columns]
        if missing:
            raise Invalid(
                f"gate {context.gate!r}: the rows have no column {', '.join(missing)}",
                expected=f"the key columns {', '.join(self.by)} among {', '.join(frame.columns)}",
                help="name the columns as they are called at the gate",
                reason="BAD_GATE",
            )

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from pyspark.sql import functions as f

        self.check_columns(frame, context)
        keys = materialize(frame.groupBy(*map(quoted, self.by)).agg(f.count(f.lit(1)).alias(_TIMES)))
        bad_keys = materialize(self._find_bad_keys(keys, context))
        sums = [f.sum(f.when(f.array_contains(_BROKEN, rule), f.col(_TIMES))) for rule in ("seen", "repeated")]
        seen_rows, repeated_rows, key_count = bad_keys.agg(*sums, f.count(f.lit(1))).collect()[0]
        rows = keys.agg(f.coalesce(f.sum(_TIMES), f.lit(0))).collect()[0][0]
        was_held = context.quarantine_held and self.on_failure == "hold"
        policy: Policy = "quarantine" if was_held else self.on_failure
        broken = []
        if seen_rows:
            why = f"{seen_rows} rows have a key that {self.against!r} holds already"
            broken.append(BrokenRule("seen", policy, rows=seen_rows, why=why, was_held=was_held))
        if repeated_rows:
            why = f"{repeated_rows} rows have the key of another one"
            broken.append(BrokenRule("repeated", policy, rows=repeated_rows, why=why, was_held=was_held))
        good_and_bad = None
        if broken and policy == "quarantine":
            good_and_bad = self._split(frame, bad_keys, key_count)
        results: Json = {
            "success": not broken,
            "rows": rows,
            "seen": seen_rows or 0,
            "repeated": repeated_rows or 0,
        }
        return Judgement(rows, tuple(broken), results, good_and_bad, (keys, bad_keys))

    def _find_bad_keys(self, keys: DataFrame, context: GateContext) -> DataFrame:
        """Return the bad keys, each with its number of rows and the rules that these break."""
        from pyspark.sql import functions as f

        columns = list(map(quoted, self.by))
        no_nulls = reduce(lambda first, second: first & second, (f.col(name).isNotNull() for name in columns))
        judged = keys.where(no_nulls)
        state = None
        if context.lookup_operator_rows is not None:
            state = context.lookup_operator_rows(judged.select(*columns))
        if state is None:
            judged = judged.withColumn(_SEEN, f.lit(None).cast("boolean"))
        else:
            names = [f"{_KEY}{place}" for place in range(len(columns))]
            seen_keys = state.select(*columns).distinct().toDF(*names).withColumn(_SEEN, f.lit(True))
            judged = judged.join(seen_keys, null_safe_equality(self.by, names, nulls=False), "left").drop(*names)
        rules = f.array(f.when(f.col(_SEEN), f.lit("seen")), f.when(f.col(_TIMES) > 1, f.lit("repeated")))
        with_rules = judged.select(*columns, _TIMES, f.array_compact(rules).alias(_BROKEN))
        return with_rules.where(f.size(_BROKEN) > 0)

    def _split(self, frame: DataFrame, bad_keys: DataFrame, key_count: int) -> tuple[DataFrame, DataFrame]:
        """Return the rows with good keys, and those with bad ones and the rules that they break."""
        from pyspark.sql import functions as f

        names = [f"{_KEY}{place}" for place in range(len(self.by))]
        keys = bad_keys.select(*map(quoted, self.by), _BROKEN).toDF(*names, _BROKEN)
        if key_count <= BROADCAST_KEYS:
            keys = f.broadcast(keys)
        marked = frame.join(keys, null_safe_equality(self.by, names, nulls=False), "left").drop(*names)
        good = marked.where(f.col(_BROKEN).isNull()).drop(_BROKEN)
        return good, marked.where(f.col(_BROKEN).isNotNull()).withColumnRenamed(_BROKEN, Judgement.RULES)
