"""Gates that need no suite: how much came, how new it is, and whether it still has the same columns.

They go by what earlier checkpoints were like, which the gate remembers in the ack: so a checkpoint that was aborted, or
rejected, is not gone by.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Literal

from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement, Policy, exact_share, policy_problems
from tidegate.records.moments import at_micros, micros_of
from tidegate.records.names import listed
from tidegate.records.records import Json
from tidegate.spark.event_time import duration_problem, micros_in, moment, time_micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Freshness", "SchemaDrift", "Volume"]


class Remembering(Gate):
    """What they have in common: one policy, for no row by itself is to blame."""

    remembers = True

    def __init__(
        self,
        on_failure: Policy = "abort",
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        self.on_failure = on_failure
        self.hold_for = hold_for
        self.unanswered = unanswered

    @property
    def quarantines(self) -> bool:
        return self.on_failure == "hold"

    @property
    def policies(self) -> frozenset[Policy]:
        return frozenset([self.on_failure])

    def describe(self) -> Json:
        return {"on_failure": self.on_failure}

    def problems(self) -> list[str]:
        if self.on_failure == "quarantine":
            return ["on_failure is 'quarantine', but no row by itself is to blame: expected abort, hold, warn"]
        return policy_problems({"on_failure": self.on_failure})

    def judged(self, rows: int, rules: dict[str, str], found: Json, memory: Json) -> Judgement:
        """rules: those that are broken, and why."""
        broken = tuple(BrokenRule(rule, self.on_failure, why=why) for rule, why in rules.items())
        return Judgement(rows, broken, {"success": not broken, **found}, memory=memory)


class Volume(Remembering):
    """The number of rows is about what it has been.

        checked = clean.gate(Volume(within=0.5))

    within: how far, as a share of it, it may be from the median of those of the last `of` checkpoints that had rows. No
        rows at all are right if half of them had none.
    of: how many are gone by. after: so many with rows there must be before it judges at all.
    least: so many rows there must be in any case.
    """

    kind: ClassVar[str] = "volume"

    def __init__(
        self,
        within: float = 0.5,
        *,
        of: int = 20,
        after: int = 5,
        least: int = 0,
        on_failure: Policy = "abort",
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        super().__init__(on_failure, hold_for, unanswered)
        self.within, self.of, self.after, self.least = within, of, after, least

    def describe(self) -> Json:
        told = {"within": self.within, "of": self.of, "after": self.after, "least": self.least}
        return super().describe() | told

    def problems(self) -> list[str]:
        found = super().problems()
        right = isinstance(self.within, int | float) and not isinstance(self.within, bool)
        if not right or not 0 <= self.within < float("inf"):
            found.append(f"within is {self.within!r}: expected a share such as 0.5")
        if not 1 <= self.after <= self.of <= 1000:
            found.append(f"after is {self.after}, of is {self.of}: expected 1 <= after <= of <= 1000")
        return found

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        return self.judge_rows(frame.count(), context)

    def judge_rows(self, rows: int, context: GateContext) -> Judgement:
        """By their number alone."""
        before: list[int] = context.memory.get("rows", [])[-self.of :]
        had = [each for each in before if each]
        usual = median(had) if len(had) >= self.after else None
        often_none = len(had) * 2 <= len(before)
        rules = {}
        if rows < self.least:
            rules["least"] = f"{rows:,} rows, at least {self.least:,} must be there"
        right = often_none and not rows
        if usual is not None and not right and abs(rows - usual) > exact_share(self.within, usual):
            which = f"{len(had)} checkpoints{' that had rows' if len(had) < len(before) else ''}"
            rules["volume"] = f"{rows:,} rows; the median of the last {which} is {usual:,g}: {rows / usual:.0%} of it"
        found: Json = {"rows": rows, "median": usual, "of": len(had)}
        return self.judged(rows, rules, found, {"rows": [*before, rows][-self.of :]})


class Freshness(Remembering):
    """The newest row is not too old when the checkpoint is planned.

        checked = clean.gate(Freshness("ordered_at", within="1 hour"))

    column: a timestamp or date. within: how old the newest that was ever seen may be; so silence breaks it, too. A time
        that lies further ahead than that says nothing of how new rows are: it is left out, and told if the rule breaks.
    """

    kind: ClassVar[str] = "freshness"

    def __init__(
        self,
        column: str,
        within: str | float,
        *,
        on_failure: Policy = "abort",
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        super().__init__(on_failure, hold_for, unanswered)
        self.column, self.within = column, within

    def describe(self) -> Json:
        return super().describe() | {"column": self.column, "within": self.within}

    def problems(self) -> list[str]:
        wrong = duration_problem("within", self.within)
        return [*super().problems(), *([wrong] if wrong else [])]

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from pyspark.sql import functions as f

        timed = frame.select(time_micros(frame, self.column, f"gate {context.gate!r}").alias("_at"))
        ahead = f.col("_at") > f.expr(moment(self._latest(context), "_at"))
        told = timed.agg(f.count(f.lit(1)), f.max(f.when(~ahead, f.col("_at"))), f.count_if(ahead)).collect()
        rows, newest, later = told[0]
        return self.judge_newest(rows, newest, later, context)

    def _latest(self, context: GateContext) -> int:
        """Up to when times are believed: clocks may differ a little, but not by years."""
        return micros_of(datetime.fromisoformat(context.clock)) + micros_in(self.within)

    def judge_newest(self, rows: int, newest: int | None, ahead: int, context: GateContext) -> Judgement:
        """By the newest time of these rows, in microseconds since 1970, but for those that lie too far ahead."""
        now, rules = datetime.fromisoformat(context.clock), {}
        before = context.memory.get("newest")
        known = [each for each in (newest, before) if each is not None and each <= self._latest(context)]
        newest = max(known, default=None)
        at = at_micros(newest) if newest is not None else None
        if at is None:
            rules["freshness"] = "there is no row yet"
        elif micros_of(now) - micros_of(at) > micros_in(self.within):
            rules["freshness"] = (
                f"the newest row is of {at:%Y-%m-%d %H:%M:%S} UTC, older than {self.within} at {now:%H:%M:%S}"
            )
        if rules and ahead:
            rules["freshness"] += f"; {ahead:,} rows of a time further ahead than {self.within} do not count"
        found: Json = {"newest": at.isoformat() if at is not None else None, "rows": rows, "ahead": ahead}
        return self.judged(rows, rules, found, {"newest": newest} if newest is not None else {})


class SchemaDrift(Remembering):
    """The rows have the columns that they had in the last checkpoint.

        checked = clean.gate(SchemaDrift(allow=["added"]))

    allow: what may change: "added", "removed", "type". Whatever goes on, by this or by approval, is what the next
    checkpoint is compared with.
    """

    kind: ClassVar[str] = "schema-drift"

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        on_failure: Policy = "abort",
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        super().__init__(on_failure, hold_for, unanswered)
        self.allow = tuple(listed(allow))

    def describe(self) -> Json:
        return super().describe() | {"allow": list(self.allow)}

    def problems(self) -> list[str]:
        known = ("added", "removed", "type")
        unknown = [f"allow names {each!r}: expected {', '.join(known)}" for each in self.allow if each not in known]
        return [*super().problems(), *unknown]

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        now = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        return self.judge_columns(frame.count(), now, context)

    def judge_columns(self, rows: int, now: dict[str, str], context: GateContext) -> Judgement:
        """By their types, by name."""
        before: dict[str, str] = context.memory.get("columns", now)
        same = now.keys() & before.keys()
        changed = {
            "added": [f"{name} {now[name]}" for name in now if name not in before],
            "removed": [f"{name} {before[name]}" for name in before if name not in now],
            "type": [f"{n}: {before[n]} was, {now[n]} is" for n in now if n in same and now[n] != before[n]],
        }
        rules = {what: ", ".join(told)[:300] for what, told in changed.items() if told and what not in self.allow}
        return self.judged(rows, rules, {"changed": changed}, {"columns": now})
