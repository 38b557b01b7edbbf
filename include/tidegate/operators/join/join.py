"""Rows of two streams that belong together, or of a stream and a table.

IntervalJoin   pairs whose event times are within bounds. What one side has is kept until the other side can bring
               nothing for it any more; then it is forgotten, and left and full joins give what found no partner.
LatestJoin     pairs of what both sides hold now, for ever, also where they replace rows: so it replaces rows itself.

TableJoin      the rows of a table, as of the version that the plan names. It remembers nothing.

The first two keep each side as rows under the keys and an id of all that a row holds, with how often it is there. So
copies are told from repetitions of an attempt, and a key may have any number of rows without any of them being
rewritten for another. Null keys meet nothing, as in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from tidegate.operators.base import Operator, OperatorContext
from tidegate.operators.inputs import recalled, same
from tidegate.operators.join.by_workers import FROM_RIGHT, JoinInWorkers, JoinSide
from tidegate.operators.join.sides import (
    On,
    Side,
    changed_rows,
    check_sides,
    copies,
    joined_columns,
    met,
    names_from_right,
    side_rows,
)
from tidegate.operators.join.time_bounds import bounds_in, need_time, split_late
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.sources.delta.source import DeltaTable
from tidegate.spark.event_time import time_micros, time_problems
from tidegate.spark.known import is_known_empty
from tidegate.spark.row_id import row_id
from tidegate.state.folding import Remembered, fold_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from tidegate.sources.base import SourceContext

__all__ = ["How", "IntervalJoin", "LatestJoin", "TableJoin"]

How = Literal["inner", "left", "full"]
EVERY_FILE = 1_000_000_000
"""An offset that no table reaches: a version is read whole."""


MOST_PAIRS = 10_000_000
"""The most pairs that a worker of an interval join finds. More are left to Spark, which spills."""


def join_problems(on: On, how: str, allowed: Sequence[str]) -> list[str]:
    """Return the problems that every join may have."""
    problems = on.problems()
    if how not in allowed:
        problems.append(f"how={how!r}: expected {' or '.join(allowed)}")
    return problems


class IntervalJoin(Operator):
    """`within`: how much earlier and later the other side's row may be. `event_time`: one column, or one for each.

    Rows that are late, or have no time, are the outputs "late-left" and "late-right".
    """

    kind: ClassVar[str] = "join"

    def __init__(
        self,
        on: str | Sequence[str] | Mapping[str, str],
        within: object,
        how: How = "inner",
        prefix: str | None = None,
        event_time: str | tuple[str, str] | None = None,
    ) -> None:
        self.keys = On.of(on)
        self.on = self.keys.left
        self.within = within
        self.how = how
        self.prefix = prefix
        self.times = (event_time, event_time) if isinstance(event_time, str) or event_time is None else event_time

    @property
    def told_by(self) -> list[str]:
        return self.on

    @property
    def parts(self) -> tuple[str, ...]:
        return ("left", "right")

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("late-left", "late-right")

    @property
    def uses_event_time(self) -> bool:
        """True if it needs watermarks."""
        return True

    @property
    def goes_by(self) -> tuple[str | None, ...]:
        return tuple(self.times)

    @property
    def lag_s(self) -> float:
        """Upper bound on how far output rows lag the watermark."""
        bounds = bounds_in(self.within)
        return 0.0 if isinstance(bounds, str) else max(-bounds[0], bounds[1], 0) / 1_000_000

    def describe(self) -> Json:
        within = list(self.within) if isinstance(self.within, tuple) else self.within
        return {
            "on": self.keys.texts,
            "within": within,
            "how": self.how,
            "prefix": self.prefix,
            "times": list(self.times),
        }

    def meaning(self, over_updates: bool) -> Json:
        return {"on": self.keys.texts, "how": self.how, "event_time": list(self.times)}

    def problems(self) -> list[str]:
        bounds = bounds_in(self.within)
        problems = join_problems(self.keys, self.how, ("inner", "left", "full"))
        if len(self.times) != 2:
            problems.append(f"event_time={self.times!r}: give one column, or one for each side")
        return problems + ([bounds] if isinstance(bounds, str) else [])

    def event_time_problems(self, columns: Sequence[Sequence[str]]) -> list[str]:
        if len(self.times) != 2 or len(columns) != 2:
            return []
        sides = ("the left side's", "the right side's")
        declared = zip(columns, self.times, sides, strict=True)
        return [problem for names, chosen, side in declared for problem in time_problems(names, chosen, side)]

    def interval_problems(self) -> list[str]:
        return []

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        bounds = bounds_in(self.within)
        assert not isinstance(bounds, str)
        times = [need_time(name, place, context) for place, name in enumerate(self.times)]
        times[1] = self.keys.renamed(inputs[1]).get(times[1], times[1])
        is_empty = all(map(is_known_empty, inputs))
        inputs = [inputs[0], self.keys.turned(inputs[1], context)]
        check_sides(inputs, self.on, self.prefix, context)
        if context.taken.isdisjoint(self.outputs):
            joined = self._by_workers(inputs, times, bounds, context, is_empty=is_empty)
            if joined is not None:
                return {"": joined}
        return self._by_algebra(inputs, times, bounds, context)

    def _by_workers(
        self,
        inputs: Sequence[DataFrame],
        times: Sequence[str],
        bounds: tuple[int, int],
        context: OperatorContext,
        *,
        is_empty: bool,
    ) -> DataFrame | None:
        """Return the result as workers compute it. None: they cannot."""
        from pyspark.sql import types as T

        fields = [{field.name: field for field in frame.schema.fields} for frame in inputs]
        values = [[name for name in side if name not in self.on] for side in fields]
        results = [dict(zip(values[0], values[0], strict=True)), names_from_right(values[0], values[1], self.prefix)]
        aliases = [
            {name: f"_tidegate_{mark}{n}" for n, name in enumerate(names)}
            for mark, names in zip("lr", values, strict=True)
        ]
        keys = [fields[0][name] for name in self.on]
        own = [T.StructField(name, kind) for name, kind in (("_at", T.LongType()), ("_n", T.LongType()))]
        own.append(T.StructField("_matched", T.BooleanType()))
        sides, states = [], []
        for place, part in enumerate(self.parts):
            ends = self._ends(place, bounds, context)
            named = tuple((result, name) for name, result in results[place].items())
            sides.append(JoinSide(aliases[place], named, ends, self._is_outer(place)))
            stored = [*keys, T.StructField("_row", T.StringType()), *(fields[place][n] for n in values[place]), *own]
            state = context.state([*self.on, "_row"], part, grouped_by=self.on)
            states.append(Remembered(state, stored, "_at", None if is_empty and not context.watermarks.moved else ends))
        work = JoinInWorkers(
            on=self.on,
            sides=(sides[0], sides[1]),
            low=bounds[0],
            high=bounds[1],
            late=context.watermarks.before_micros,
            nulls_wait=self.how != "inner",
            most_pairs=MOST_PAIRS,
        )
        given = [*keys]
        for place, names in enumerate(results):
            given += [T.StructField(new, fields[place][name].dataType) for name, new in names.items()]
        batch = self._batch(inputs, times, aliases, fields, context)
        arriving = [*keys, own[0], T.StructField("_row", T.StringType()), T.StructField(FROM_RIGHT, T.BooleanType())]
        for side, names in zip(fields, aliases, strict=True):
            arriving += [T.StructField(alias, side[name].dataType) for name, alias in names.items()]
        folded = fold_rows(batch, arriving, self.on, states, work, given, is_empty=is_empty)
        if folded is None:
            return None
        context.count(folded.counts)
        return folded.rows

    def _batch(
        self,
        inputs: Sequence[DataFrame],
        times: Sequence[str],
        aliases: Sequence[Mapping[str, str]],
        fields: Sequence[Mapping[str, StructField]],
        context: OperatorContext,
    ) -> DataFrame:
        """Return the rows of both sides in one frame: a side's columns under aliases, those of the other null."""
        from pyspark.sql import functions as F

        frames = []
        for place, frame in enumerate(inputs):
            columns = [F.col(quoted(name)) for name in self.on]
            columns.append(time_micros(frame, times[place], f"operator {context.uid!r}").alias("_at"))
            columns.append(row_id(frame).alias("_row"))
            columns.append(F.lit(place == 1).alias(FROM_RIGHT))
            for side, names in enumerate(aliases):
                for name, alias in names.items():
                    value = F.col(quoted(name)) if side == place else F.lit(None).cast(fields[side][name].dataType)
                    columns.append(value.alias(alias))
            frames.append(frame.select(*columns))
        return frames[0].unionAll(frames[1])

    def _ends(self, place: int, bounds: tuple[int, int], context: OperatorContext) -> int | None:
        """Return the time before which rows of a side can no longer match any other. None: there is no watermark."""
        now = context.watermarks.now_micros
        return None if now is None else (now - bounds[1] if place == 0 else now + bounds[0])

    def _is_outer(self, place: int) -> bool:
        return self.how == "full" or (self.how == "left" and place == 0)

    def _by_algebra(
        self, inputs: Sequence[DataFrame], times: Sequence[str], bounds: tuple[int, int], context: OperatorContext
    ) -> Mapping[str, DataFrame]:
        (on_left, late_left), (on_right, late_right) = (split_late(inputs[n], times[n], context) for n in (0, 1))
        arrived = [self._arrived(on_left, inputs[0], context), self._arrived(on_right, inputs[1], context)]
        keys = [frame.select(*map(quoted, self.on)) for frame in arrived]
        touched = context.persist(keys[0].unionAll(keys[1]).distinct())
        sides = []
        for place, part in enumerate(self.parts):
            state, ends = (
                context.state([*self.on, "_row"], part, grouped_by=self.on),
                self._ends(place, bounds, context),
            )
            sides.append(Side(state, self.on, arrived[place], touched, ends, self._is_outer(place)))
        columns = [[name for name in frame.columns if name not in self.on] for frame in inputs]
        result = self._result(sides, columns, bounds, context)
        return {"": result, "late-left": late_left, "late-right": late_right}

    def _result(
        self, sides: Sequence[Side], columns: Sequence[Sequence[str]], bounds: tuple[int, int], context: OperatorContext
    ) -> DataFrame:
        """Return the pairs in which at least one row is new, and the rows for which an outer side no longer waits."""
        from pyspark.sql import functions as F

        left, right = (side.rows(context) for side in sides)
        asides = [f"_aside{n}" for n in range(len(self.on))]
        left_rows = left.select(*map(quoted, self.on), F.struct("*").alias("l"))
        right_rows = right.select(
            *(F.col(quoted(k)).alias(n) for k, n in zip(self.on, asides, strict=True)), F.struct("*").alias("r")
        )
        near = F.expr(f"r._at - l._at BETWEEN {bounds[0]}L AND {bounds[1]}L AND (l._new OR r._new)")
        pairs = context.persist(left_rows.join(right_rows, same(self.on, asides, nulls=False) & near).select("l", "r"))
        result = joined_columns(copies(pairs, "l._n * r._n"), self.on, columns, self.prefix)
        for side, mine, theirs, frame in zip(sides, ("l", "r"), ("r", "l"), (right, left), strict=True):
            alone = side.put(pairs.select(f"{mine}.*"), context)
            if alone is not None:
                nobody = F.lit(None).cast(frame.schema).alias(theirs)
                lone = copies(alone, "_n").select(F.struct("*").alias(mine), nobody)
                result = result.unionByName(joined_columns(lone, self.on, columns, self.prefix))
        return result

    def _arrived(self, on_time: DataFrame, like: DataFrame, context: OperatorContext) -> DataFrame:
        """Return this checkpoint's rows of one side, one for all copies of a row."""
        if self.how == "inner":
            on_time = on_time.where(" AND ".join(f"{quoted(name)} IS NOT NULL" for name in self.on))
        return context.persist(side_rows(on_time, like, self.on, extra=["_at"]))


class LatestJoin(Operator):
    """The current rows of both sides, joined by their keys. Both sides are kept without a limit."""

    kind: ClassVar[str] = "join"

    def __init__(
        self, on: str | Sequence[str] | Mapping[str, str], how: How = "inner", prefix: str | None = None
    ) -> None:
        self.keys = On.of(on)
        self.on = self.keys.left
        self.how = how
        self.prefix = prefix

    @property
    def told_by(self) -> list[str]:
        return self.on

    @property
    def parts(self) -> tuple[str, ...]:
        return ("left", "right")

    @property
    def updates(self) -> bool:
        return True

    @property
    def takes_updates(self) -> bool:
        return True

    def describe(self) -> Json:
        return {"on": self.keys.texts, "how": self.how, "prefix": self.prefix}

    def meaning(self, over_updates: bool) -> Json:
        return {"on": self.keys.texts, "how": self.how}

    def problems(self) -> list[str]:
        problems = join_problems(self.keys, self.how, ("inner", "left"))
        if self.how == "full":
            problems[-1] += ", or within=… for a full join of what is near in time"
        return problems

    def interval_problems(self) -> list[str]:
        return []

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        inputs = [inputs[0], self.keys.turned(inputs[1], context)]
        check_sides(inputs, self.on, self.prefix, context)
        on = list(map(quoted, self.on))
        gone_left, gone_right = context.withdrawn or (None, None)
        if gone_right is not None:
            gone_right = self.keys.turned(gone_right, context)
        changes = [
            changed_rows(inputs[0], gone_left, self.on, context),
            changed_rows(inputs[1], gone_right, self.on, context),
        ]
        left_keys, right_keys = (
            frame.select(*on, F.lit(place == 1).alias("_new")) for place, frame in enumerate(changes)
        )
        touched = left_keys.unionAll(right_keys).groupBy(*on).agg(F.max("_new").alias("_new"))
        touched = context.persist(touched)
        left, right = (self._side(part, changes[place], touched, context) for place, part in enumerate(self.parts))
        changed_keys = touched.select(*(F.col(name).alias(f"_aside{n}") for n, name in enumerate(on)), "_new")
        left = left.join(changed_keys, same(self.on, [f"_aside{n}" for n in range(len(on))], nulls=True))
        left = left.where("_new OR _touched").drop("_new", *(f"_aside{n}" for n in range(len(on))))
        columns = [[name for name in frame.columns if name not in self.on] for frame in inputs]
        return {"": self._pairs(left, right, columns, "_n"), "-": self._pairs(left, right, columns, "_was")}

    def shown(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        sides = []
        inputs = [inputs[0], self.keys.turned(inputs[1], context)]
        for part, frame in zip(self.parts, inputs, strict=True):
            like, rows = side_rows(frame, frame, self.on), states[part]
            state = context.state([*self.on, "_row"], part)
            sides.append(like if rows is None else recalled(state, rows, like, context))
        columns = [[name for name in frame.columns if name not in self.on] for frame in inputs]
        return self._pairs(sides[0], sides[1], columns, "_n")

    def _side(self, part: str, changes: DataFrame, touched: DataFrame, context: OperatorContext) -> DataFrame:
        """Store a side's changes; return its rows under the changed keys, with the number of copies before and now."""
        from pyspark.sql import functions as F

        state = context.state([*self.on, "_row"], part)
        withdrawn = context.withdrawn[self.parts.index(part)] if context.withdrawn else None
        affected = context.persist(met(state, changes, touched, self.on, withdrawn is not None, context))
        stored = affected.where("_touched").drop("_was", "_touched")
        state.put(stored.withColumn("_deleted", F.col("_n") <= 0), deletes=True)
        return affected

    def _pairs(self, left: DataFrame, right: DataFrame, columns: Sequence[Sequence[str]], count: str) -> DataFrame:
        from pyspark.sql import functions as F

        on = list(map(quoted, self.on))
        left_rows = left.where(f"{count} > 0").select(*on, F.struct("*").alias("l"))
        asides = [f"_aside{n}" for n in range(len(on))]
        right_rows = right.where(f"{count} > 0")
        right_rows = right_rows.select(
            *(F.col(k).alias(n) for k, n in zip(on, asides, strict=True)), F.struct("*").alias("r")
        )
        pairs = left_rows.join(right_rows, same(self.on, asides, nulls=False), self.how).select("l", "r")
        return joined_columns(copies(pairs, f"l.{count} * coalesce(r.{count}, 1)"), self.on, columns, self.prefix)


class TableJoin(Operator):
    """A Delta table at `path`, looked up by `on`. The plan fixes the version that every attempt reads."""

    kind: ClassVar[str] = "join"
    instead: ClassVar[str] = (
        "put it in front of that, or make the table a source and join with its latest rows, for by another version of "
        "the table other rows would be taken back than were given"
    )

    def __init__(
        self, path: str, on: str | Sequence[str] | Mapping[str, str], how: How = "inner", prefix: str | None = None
    ) -> None:
        self.table = DeltaTable(path, max_files=EVERY_FILE)
        self.keys = On.of(on)
        self.on = self.keys.left
        self.how = how
        self.prefix = prefix

    @property
    def told_by(self) -> list[str]:
        return [self.table.path.rstrip("/").rpartition("/")[2], *self.on]

    @property
    def parts(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> Json:
        return {"table": self.table.path, "on": self.keys.texts, "how": self.how, "prefix": self.prefix}

    def problems(self) -> list[str]:
        return join_problems(self.keys, self.how, ("inner", "left")) + self.table.problems()

    def fix_inputs(self, context: SourceContext) -> Json:
        return self.table.plan(None, context).splits

    def interval_problems(self) -> list[str]:
        return []

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        assert context.fixed is not None
        splits, location = context.fixed
        self.table.verify(splits, location)
        table = self.keys.turned(self.table.read(context.spark, splits, location), context)
        check_sides([inputs[0], table], self.on, self.prefix, context)
        asides = [f"_aside{n}" for n in range(len(self.on))]
        left_rows = inputs[0].select(*map(quoted, self.on), F.struct("*").alias("l"))
        keys = (F.col(quoted(k)).alias(n) for k, n in zip(self.on, asides, strict=True))
        table_rows = table.select(*keys, F.struct("*").alias("r"))
        pairs = left_rows.join(table_rows, same(self.on, asides, nulls=False), self.how).select("l", "r")
        columns = [[name for name in frame.columns if name not in self.on] for frame in (inputs[0], table)]
        return {"": joined_columns(pairs, self.on, columns, self.prefix)}
