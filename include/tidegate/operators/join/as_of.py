"""Rows with what held at their time: each row of a stream meets the newest version that is not newer than itself.

    versions   all that the right side brought, but those that no row to come can meet: a newer one has taken over
    waiting    rows of the left side, until the watermark has passed them: an earlier version may still come

A row is given once, for good. A version holds from its own time on, inclusive; of two of the same time the one that is
the greater by all that it holds. Versions are taken however late they come: rows that have been given stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.operators.base import Operator, OperatorContext
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.inputs import recalled
from tidegate.operators.join.join import How, join_problems
from tidegate.operators.join.sides import On, check_sides, joined_columns, side_rows
from tidegate.operators.join.time_bounds import LATE, need_time, side_time_problems, side_times
from tidegate.operators.waiting import WAITING, ready_rows
from tidegate.records.moments import AFTER_ALL_TIMES
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import moment, time_micros
from tidegate.state.lateness import Lateness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.state.record import Ttl

__all__ = ["AsOfJoin"]

VERSIONS: Final = "versions"


class AsOfJoin(Operator):
    """`event_time`: one column, or one for each side. Rows that are late, or have no time, are the output "late"."""

    kind: ClassVar[str] = "join"

    def __init__(
        self,
        on: str | Sequence[str] | Mapping[str, str],
        how: How = "inner",
        prefix: str | None = None,
        event_time: str | tuple[str | None, str | None] | None = None,
        expiry: Expiry = NEVER,
    ) -> None:
        self.keys = On.of(on)
        self.on = self.keys.left
        self.how = how
        self.prefix = prefix
        self.times = side_times(event_time)
        self.expiry = expiry

    @property
    def told_by(self) -> list[str]:
        return self.on

    @property
    def parts(self) -> tuple[str, ...]:
        return (WAITING, VERSIONS)

    @property
    def keeps_for_ever(self) -> str | None:
        return f"a version for each {', '.join(self.on)}" if self.expiry == NEVER else None

    @property
    def outputs(self) -> tuple[str, ...]:
        return (LATE,)

    @property
    def uses_event_time(self) -> bool:
        return True

    @property
    def gives_old_rows_of(self) -> tuple[int, ...]:
        return (1,)

    def lateness(self, place: int) -> Lateness | None:
        return Lateness() if place == 0 else None

    @property
    def goes_by(self) -> tuple[str | None, ...]:
        return tuple(self.times)

    def describe(self) -> Json:
        described = {"on": self.keys.texts, "as_of": True, "how": self.how, "prefix": self.prefix}
        return described | {"times": list(self.times)} | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        return {"on": self.keys.texts, "as of": "event time", "how": self.how, "event_time": list(self.times)}

    def problems(self) -> list[str]:
        problems = join_problems(self.keys, self.how, ("inner", "left"))
        return problems + side_time_problems(self.times) + self.expiry.problems()

    def event_time_problems(self, columns: Sequence[Sequence[str]]) -> list[str]:
        return side_time_problems(self.times, columns)

    def ttl(self, part: str, context: OperatorContext) -> Ttl | None:
        return self.expiry.ttl(context) if part == VERSIONS else None

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        times = [need_time(name, place, context) for place, name in enumerate(self.times)]
        times[1] = self.keys.renamed(inputs[1].columns).get(times[1], times[1])
        left, right = inputs[0], self.keys.turned(inputs[1], context)
        check_sides([left, right], self.on, self.prefix, context)
        ready, late = ready_rows(left, self.on, times[0], context)
        ready = context.persist(ready.drop("_row"))
        versions = self._versions(right, times[1], ready, context)
        return {"": self._met(ready, versions, [left, right]), LATE: late}

    def _met(self, ready: DataFrame, versions: DataFrame, inputs: Sequence[DataFrame]) -> DataFrame:
        """Return the left side's rows, each with the last version before it. inputs: both sides, for their columns."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        keys = [f"_aside{place}" for place in range(len(self.on))]
        aliased = [F.col(quoted(name)).alias(key) for name, key in zip(self.on, keys, strict=True)]
        left, right = (F.struct(*map(quoted, frame.columns)) for frame in inputs)
        rows = ready.select(*aliased, "_at", F.lit("").alias("_row"), left.alias("l"))
        held = versions.select(*aliased, "_at", "_row", right.alias("r"))
        both = rows.unionByName(held, allowMissingColumns=True)
        by_time = Window.partitionBy(*keys).orderBy("_at", F.col("l").isNotNull(), "_row")
        newest = F.last("r", ignorenulls=True).over(by_time.rowsBetween(Window.unboundedPreceding, 0))
        pairs = both.withColumn("r", newest).where("l IS NOT NULL").select("l", "r")
        if self.how == "inner":
            pairs = pairs.where("r IS NOT NULL")
        columns = [[name for name in frame.columns if name not in self.on] for frame in inputs]
        return joined_columns(pairs, self.on, columns, self.prefix)

    def _versions(self, right: DataFrame, time: str, ready: DataFrame, context: OperatorContext) -> DataFrame:
        """Return the versions of this checkpoint's keys, with `_at` and `_row`; store what rows to come may meet."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        timed = right.withColumn("_at", time_micros(right, time, f"operator {context.uid!r}"))
        known = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in self.on)
        arrived = context.persist(side_rows(timed.where(f"_at IS NOT NULL AND {known}"), right, self.on, ["_at"]))
        arrived = arrived.drop("_n")
        keys = list(map(quoted, self.on))
        ttl = self.ttl(VERSIONS, context)
        state = context.state([*self.on, "_row"], VERSIONS, grouped_by=self.on, ttl=ttl)
        touched = arrived.select(*keys).unionAll(ready.select(*keys)).distinct()
        versions = arrived.withColumn("_new", F.lit(True))
        before = state.of(touched, on=self.on)
        if before is not None:
            stored = recalled(state, before, arrived, context).withColumn("_new", F.lit(False))
            values = [name for name in arrived.columns if name not in (*self.on, "_row")]
            grouped = versions.unionByName(stored).groupBy(*keys, "_row")
            firsts = (F.first(quoted(name)).alias(name) for name in values)
            versions = grouped.agg(*firsts, F.min("_new").alias("_new"))
        by_time = Window.partitionBy(*keys).orderBy("_at", "_row")
        versions = context.persist(versions.withColumn("_top", F.lead("_at").over(by_time)))
        now = context.watermarks.now_micros
        is_over = "false"
        if now is not None:
            limit = moment(min(now, AFTER_ALL_TIMES), "_top")
            is_over = f"coalesce(_top <= {limit}, false)"  # a newer one holds for all rows to come
        columns = [quoted(name) for name in arrived.columns]
        changes = versions.where(f"_new <> ({is_over})").selectExpr(*columns, "NOT _new AS _deleted")
        state.put(changes, deletes=True)
        return versions.drop("_top", "_new")
