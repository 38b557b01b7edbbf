"""Gates without a suite, which check the number of rows, their age, and changes of their columns.

They compare with earlier checkpoints, which a gate remembers in the ack. Aborted and rejected checkpoints are therefore
not compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Literal

from tidegate.gates.base import (
    BrokenRule,
    Gate,
    GateContext,
    Judgement,
    Policy,
    exact_share,
    policies_among,
    policy_problems,
)
from tidegate.records.moments import from_micros, micros_of
from tidegate.records.names import listed
from tidegate.records.records import Json
from tidegate.spark.event_time import duration_problem, micros_in, moment, time_micros, time_micros_sql
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Freshness", "SchemaDrift", "Volume"]


class Remembering(Gate):
    """Base of gates that judge a checkpoint as a whole, with one policy."""

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
        return policies_among([self.on_failure])

    def describe(self) -> Json:
        return {"on_failure": self.on_failure}

    def problems(self) -> list[str]:
        if self.on_failure == "quarantine":
            return ["on_failure is 'quarantine', but no single row is to blame: expected abort, hold, warn"]
        return policy_problems({"on_failure": self.on_failure})

    def judgement(self, rows: int, rules: dict[str, str], results: Json, memory: Json) -> Judgement:
        """Return the judgement. rules: the broken rules with their reasons."""
        broken = tuple(BrokenRule(rule, self.on_failure, why=why) for rule, why in rules.items())
        return Judgement(rows, broken, {"success": not broken, **results}, memory=memory)


class Volume(Remembering):
    """Check that a checkpoint has about as many rows as earlier ones.

        checked = clean.gate(Volume(within=0.5))

    The number of rows is compared with the median of earlier checkpoints that had rows. A checkpoint without rows
    passes if at least half of the earlier ones had none. A backfill is only judged with `--cuts recorded`, since it
    otherwise cuts its input into checkpoints of other sizes.

    within: how far the number may be from the median, as a share of the median.
    of: the number of earlier checkpoints to compare with.
    after: how many of these must have rows before the gate judges.
    least: the minimum number of rows in every checkpoint.
    on_failure: "abort" the checkpoint, "hold" it for a person, or only "warn".
    hold_for: with "hold", how long to wait for a person. None waits without limit.
    unanswered: with "hold", whether to "approve" or "reject" if nobody answers in time.
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
        settings = {"within": self.within, "of": self.of, "after": self.after, "least": self.least}
        return super().describe() | settings

    def problems(self) -> list[str]:
        problems = super().problems()
        is_number = isinstance(self.within, int | float) and not isinstance(self.within, bool)
        if not is_number or not 0 <= self.within < float("inf"):
            problems.append(f"within is {self.within!r}: expected a share such as 0.5")
        if not 1 <= self.after <= self.of <= 1000:
            problems.append(f"after is {self.after}, of is {self.of}: expected 1 <= after <= of <= 1000")
        return problems

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        return self.judge_rows(frame.count(), context)

    def judge_rows(self, rows: int, context: GateContext) -> Judgement:
        """Judge a number of rows."""
        if context.cut_freely:
            why = "not judged: the backfill cuts its input as it likes, so the number of rows says nothing"
            return Judgement(rows, why=why, results={"success": True, "rows": rows}, memory=context.memory)
        before: list[int] = context.memory.get("rows", [])[-self.of :]
        counts = [count for count in before if count]
        usual = median(counts) if len(counts) >= self.after else None
        is_usually_empty = len(counts) * 2 <= len(before)
        rules = {}
        if rows < self.least:
            rules["least"] = f"{rows:,} rows, at least {self.least:,} are required"
        may_be_empty = is_usually_empty and not rows
        if usual is not None and not may_be_empty and abs(rows - usual) > exact_share(self.within, usual):
            compared = f"{len(counts)} checkpoints"
            if len(counts) < len(before):
                compared += " that had rows"
            rules["volume"] = (
                f"{rows:,} rows; the median of the last {compared} is {usual:,g}: {rows / usual:.0%} of it"
            )
        results: Json = {"rows": rows, "median": usual, "of": len(counts)}
        return self.judgement(rows, rules, results, {"rows": [*before, rows][-self.of :]})


class Freshness(Remembering):
    """Check that the newest row is not too old when the checkpoint is planned.

        checked = clean.gate(Freshness("ordered_at", within="1 hour"))

    The newest time of all checkpoints so far counts, so the gate also fails if rows stop arriving.

    column: the column with the time, a timestamp or date.
    within: how old the newest time may be. Times that are further than this in the future are ignored, since they are
        wrong. If the gate fails, it reports how many there were.
    on_failure: "abort" the checkpoint, "hold" it for a person, or only "warn".
    hold_for: with "hold", how long to wait for a person. None waits without limit.
    unanswered: with "hold", whether to "approve" or "reject" if nobody answers in time.
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
        problem = duration_problem("within", self.within)
        return [*super().problems(), *([problem] if problem else [])]

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:
        time_micros_sql(frame, self.column, f"gate {context.gate!r}")

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from pyspark.sql import functions as f

        timed = frame.select(time_micros(frame, self.column, f"gate {context.gate!r}").alias("_at"))
        ahead = f.col("_at") > f.expr(moment(self._latest(context), "_at"))
        sums = timed.agg(f.count(f.lit(1)), f.max(f.when(~ahead, f.col("_at"))), f.count_if(ahead)).collect()
        rows, newest, rows_ahead = sums[0]
        return self.judge_newest(rows, newest, rows_ahead, context)

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        return ["how old its newest row is, by the checkpoint's clock"]

    def _latest(self, context: GateContext) -> int:
        """Return the latest plausible time, in microseconds. Clocks may differ a little, but not by years."""
        return micros_of(parse_time(context.clock)) + micros_in(self.within)

    def judge_newest(self, rows: int, newest: int | None, ahead: int, context: GateContext) -> Judgement:
        """Judge rows by their newest time. newest: without times that are too far in the future; ahead: their number.

        Times are in microseconds since 1970.
        """
        now, rules = parse_time(context.clock), {}
        before = context.memory.get("newest")
        plausible = [micros for micros in (newest, before) if micros is not None and micros <= self._latest(context)]
        newest = max(plausible, default=None)
        newest_at = from_micros(newest) if newest is not None else None
        if newest_at is None:
            rules["freshness"] = "there is no row yet"
        elif micros_of(now) - micros_of(newest_at) > micros_in(self.within):
            rules["freshness"] = (
                f"the newest row is of {newest_at:%Y-%m-%d %H:%M:%S} UTC, older than {self.within} at {now:%H:%M:%S}"
            )
        if rules and ahead:
            rules["freshness"] += f"; {ahead:,} rows with a time further ahead than {self.within} do not count"
        results: Json = {
            "newest": newest_at.isoformat() if newest_at is not None else None,
            "rows": rows,
            "ahead": ahead,
        }
        return self.judgement(rows, rules, results, {"newest": newest} if newest is not None else {})


class SchemaDrift(Remembering):
    """Check that the rows have the same columns as in the last checkpoint.

        checked = clean.gate(SchemaDrift(allow=["added"]))

    Each checkpoint is compared with the last one that passed, be it because its changes were allowed or approved.

    allow: the changes to accept: "added", "removed" and "type".
    on_failure: "abort" the checkpoint, "hold" it for a person, or only "warn".
    hold_for: with "hold", how long to wait for a person. None waits without limit.
    unanswered: with "hold", whether to "approve" or "reject" if nobody answers in time.
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
        kinds = ("added", "removed", "type")
        unknown = [f"allow names {name!r}: expected {', '.join(kinds)}" for name in self.allow if name not in kinds]
        return [*super().problems(), *unknown]

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        now = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        return self.judge_columns(frame.count(), now, context)

    def judge_columns(self, rows: int, now: dict[str, str], context: GateContext) -> Judgement:
        """Judge rows by their columns. now: the columns' types."""
        before: dict[str, str] = context.memory.get("columns", now)
        retyped = [name for name in now if name in before and now[name] != before[name]]
        changed = {
            "added": [f"{name} {now[name]}" for name in now if name not in before],
            "removed": [f"{name} {before[name]}" for name in before if name not in now],
            "type": [f"{name}: {before[name]} was, {now[name]} is" for name in retyped],
        }
        rules = {kind: ", ".join(names)[:300] for kind, names in changed.items() if names and kind not in self.allow}
        return self.judgement(rows, rules, {"changed": changed}, {"columns": now})
