"""A gate against rows whose key has been there before: in the same batch, or in what an operator remembers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, Literal

from tidegate.errors import Invalid
from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement, Policy, policy_problems
from tidegate.operators.inputs import key_problems, same
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
    """No key is there twice: neither among the rows that are judged, nor in what an operator knows already.

        checked = orders.gate(Unseen("order_id", against="unique", on_failure="quarantine"))
        unique = checked.deduplicate(by="order_id", uid="unique")

    by: the key columns. Rows in which one of them is null are not judged.
    against: the uid of an operator of the same job that never forgets a key: `deduplicate`, `latest` or `aggregate` by
        the same columns. It is asked only for the keys that are judged, so a check costs what the batch costs.
    on_failure: what follows. All rows with a key that is there more than once are bad, as none is the right one.
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
    def told_by(self) -> list[str]:
        return self.by

    @property
    def quarantines(self) -> bool:
        return self.on_failure in ("quarantine", "hold")

    @property
    def policies(self) -> frozenset[Policy]:
        return frozenset([self.on_failure])

    def describe(self) -> Json:
        told = {"by": self.by, "against": self.against, "on_failure": self.on_failure, "at_most": self.at_most}
        return told | ({"hold_for": self.hold_for, "unanswered": self.unanswered} if self.on_failure == "hold" else {})

    def problems(self) -> list[str]:
        found = [*key_problems(self.by), *policy_problems({"on_failure": self.on_failure})]
        if self.against is not None and not isinstance(self.against, str):
            found.append(f"against is {self.against!r}: expected the uid of an operator")
        right = isinstance(self.at_most, int | float) and not isinstance(self.at_most, bool) and 0 <= self.at_most <= 1
        return found if right else [*found, f"at_most is {self.at_most!r}: expected a share from 0 to 1"]

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from pyspark.sql import functions as f

        if missing := [name for name in self.by if name not in frame.columns]:
            raise Invalid(
                f"gate {context.gate!r}: the rows have no column {', '.join(missing)}",
                expected=f"the key columns {', '.join(self.by)} among {', '.join(frame.columns)}",
                help="name the columns as they are called at the gate",
                reason="BAD_GATE",
            )
        keys = materialize(frame.groupBy(*map(quoted, self.by)).agg(f.count(f.lit(1)).alias(_TIMES)))
        bad = materialize(self._bad(keys, context))
        sums = [f.sum(f.when(f.array_contains(_BROKEN, rule), f.col(_TIMES))) for rule in ("seen", "repeated")]
        seen, repeated, few = bad.agg(*sums, f.count(f.lit(1))).collect()[0]
        rows = keys.agg(f.coalesce(f.sum(_TIMES), f.lit(0))).collect()[0][0]
        whys = {
            "seen": (seen, f"{seen} rows have a key that {self.against!r} holds already"),
            "repeated": (repeated, f"{repeated} rows have the key of another one"),
        }
        broken = tuple(BrokenRule(rule, self.on_failure, rows=n, why=why) for rule, (n, why) in whys.items() if n)
        apart = self._apart(frame, bad, few) if broken and self.on_failure == "quarantine" else None
        found: Json = {"success": not broken, "rows": rows, "seen": seen or 0, "repeated": repeated or 0}
        return Judgement(rows, broken, found, apart, (keys, bad))

    def _bad(self, keys: DataFrame, context: GateContext) -> DataFrame:
        """The keys that are bad, how many rows have them, and which rules these break."""
        from pyspark.sql import functions as f

        by = list(map(quoted, self.by))
        whole = reduce(lambda all, one: all & one, (f.col(name).isNotNull() for name in by))
        asked = keys.where(whole)
        held = context.held(asked.select(*by)) if context.held is not None else None
        if held is None:
            asked = asked.withColumn(_SEEN, f.lit(None).cast("boolean"))
        else:
            names = [f"{_KEY}{place}" for place in range(len(by))]
            known = held.select(*by).distinct().toDF(*names).withColumn(_SEEN, f.lit(True))
            asked = asked.join(known, same(self.by, names, nulls=False), "left").drop(*names)
        rules = f.array(f.when(f.col(_SEEN), f.lit("seen")), f.when(f.col(_TIMES) > 1, f.lit("repeated")))
        told = asked.select(*by, _TIMES, f.array_compact(rules).alias(_BROKEN))
        return told.where(f.size(_BROKEN) > 0)

    def _apart(self, frame: DataFrame, bad: DataFrame, few: int) -> tuple[DataFrame, DataFrame]:
        """The rows whose keys are all right; and the others, with the rules that they break."""
        from pyspark.sql import functions as f

        names = [f"{_KEY}{place}" for place in range(len(self.by))]
        keys = bad.select(*map(quoted, self.by), _BROKEN).toDF(*names, _BROKEN)
        keys = f.broadcast(keys) if few <= BROADCAST_KEYS else keys
        marked = frame.join(keys, same(self.by, names, nulls=False), "left").drop(*names)
        good = marked.where(f.col(_BROKEN).isNull()).drop(_BROKEN)
        return good, marked.where(f.col(_BROKEN).isNotNull()).withColumnRenamed(_BROKEN, Judgement.RULES)
