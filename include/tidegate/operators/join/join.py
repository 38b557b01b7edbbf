"""Rows of two streams that belong together, or of a stream and a table.

IntervalJoin   pairs whose event times are within bounds, which are inclusive. What one side has is kept until the other
               side can bring nothing for it any more; then it is forgotten, and outer joins give what found no partner.
LatestJoin     pairs of what both sides hold now, forever, also where they replace rows: then it replaces rows itself.
               Where both sides only add rows, so do inner and semi joins: a pair that there is stays.

TableJoin      the rows of a table, as of the version that the plan names. It remembers nothing.

A semi join gives each row of the left side that has a partner, an anti join each that has none; of the right side they
keep the keys.

The first two keep each side as rows under the keys and an id of all that a row holds, with how often it is there. So
copies are told from repetitions of an attempt, and a key may have any number of rows without any of them being
rewritten for another. Null keys meet nothing, as in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from tidegate.connectors.delta.source.delta_table import DeltaTable
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.expiry import NEVER, Expiry, RowExpiry
from tidegate.operators.inputs import null_safe_equality, recalled
from tidegate.operators.join.folded import TimeBounds, join_within, joined_now
from tidegate.operators.join.sides import (
    LEFT_ONLY,
    JoinKeys,
    check_sides,
    copies,
    joined_columns,
    left_columns,
    side_rows,
)
from tidegate.operators.join.time_bounds import (
    LATE_SIDES,
    bounds_in,
    need_time,
    side_time_problems,
    side_times,
)
from tidegate.operators.retractions.key import ChangelogKey, key_renamed, keys_contain
from tidegate.operators.spec import (
    ANY_INTERVAL,
    BOUNDED,
    Changelog,
    EventTime,
    Growth,
    Inputs,
    KeyOfInputs,
    OperatorSpec,
    OutputSpec,
    StateSpec,
    TimedInput,
    Updates,
)
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import is_known_empty
from tidegate.state.lateness import Lateness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["How", "IntervalJoin", "LatestJoin", "TableJoin"]

How = Literal["inner", "left", "right", "full", "semi", "anti"]
HOWS: Final = ("inner", "left", "right", "full", "semi", "anti")
BOUNDS: Final = "within"
"""The name, in what the state of a join means, for whether its rows are kept until their time is over, or forever."""
EVERY_FILE = 1_000_000_000
"""An offset that no table reaches: a version is read whole."""
SIDES: Final = ("left", "right")
"""The states of a join."""


def sides_in(
    times: Sequence[str | None], lateness: Sequence[Lateness | None], late_outputs: Sequence[str]
) -> list[TimedInput]:
    """Return how a join reads event time of each side. times: their columns."""
    if len(times) != 2:
        return []  # `problems` says so
    whose = ("the left side's", "the right side's")
    return [TimedInput(*of_side) for of_side in zip(times, lateness, late_outputs, whose, strict=True)]


def join_problems(on: JoinKeys, how: str, allowed: Sequence[str]) -> list[str]:
    """Return the problems that every join may have."""
    problems = on.problems()
    if how not in allowed:
        problems.append(f"how={how!r}: expected {' or '.join(allowed)}")
    return problems


class IntervalJoin(Operator):
    """`within`: how much earlier and later the other side's row may be, inclusive. `event_time`: one column, or one for
    each.

    Rows that are late, or have no time, are the outputs "late-left" and "late-right".
    """

    kind: ClassVar[str] = "join"

    def __init__(
        self,
        on: str | Sequence[str] | Mapping[str, str],
        within: object,
        how: How = "inner",
        prefix: str | None = None,
        event_time: str | tuple[str | None, str | None] | None = None,
    ) -> None:
        self.keys = JoinKeys.from_declaration(on)
        self.on = self.keys.left
        self.within = within
        self.how = how
        self.prefix = prefix
        self.times = side_times(event_time)

    def spec(self) -> OperatorSpec:
        bounds = bounds_in(self.within)
        low, high = (0, 0) if isinstance(bounds, str) else bounds
        # What only late rows could meet is forgotten.
        sides = sides_in(self.times, [Lateness(), Lateness()], LATE_SIDES)
        return OperatorSpec(
            identity=self.on,
            event_time=EventTime(inputs=sides),
            output=OutputSpec(others=LATE_SIDES, lag_s=max(-low, high, 0) / 1_000_000),
            states=[StateSpec("left", self._expiry(0, high)), StateSpec("right", self._expiry(1, -low))],
            growth=BOUNDED,
            intervals=ANY_INTERVAL,
        )

    def _expiry(self, place: int, lasts: int) -> Expiry | RowExpiry:
        """A side's rows expire by themselves, unless those without a partner are emitted when their time is over."""
        return NEVER if self._notes(place) else RowExpiry("_at", lasts)

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
        return {"on": self.keys.texts, "how": self.how, "event_time": list(self.times), BOUNDS: "there"}

    def problems(self) -> list[str]:
        bounds = bounds_in(self.within)
        problems = join_problems(self.keys, self.how, HOWS) + side_time_problems(self.times)
        return problems + ([bounds] if isinstance(bounds, str) else [])

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        bounds = bounds_in(self.within)
        assert not isinstance(bounds, str)
        times = [need_time(name, place, context) for place, name in enumerate(self.times)]
        times[1] = self.keys.right_names(inputs[1].columns).get(times[1], times[1])
        is_empty = all(map(is_known_empty, inputs))
        inputs = [inputs[0], self.keys.rename_right(inputs[1], context)]
        check_sides(inputs, self.on, self.prefix, context, self.how)
        near = TimeBounds(
            (times[0], times[1]),
            bounds,
            (self._ends(0, bounds, context), self._ends(1, bounds, context)),
            (self._is_outer(0) or self.how == "anti", self._is_outer(1)),
            nulls_wait=self.how not in ("inner", "semi"),
        )
        states = [
            context.state([*self.on, "_row"], state.name, ttl=state.expiry.ttl(context), grouped_by=self.on)
            for state in self.spec().states
        ]
        return join_within(inputs, self.on, self.prefix, states, near, context, is_empty=is_empty, how=self.how)

    def _ends(self, place: int, bounds: tuple[int, int], context: OperatorContext) -> int | None:
        """Return the time before which rows of a side can no longer match any other. None: there is no watermark."""
        now = context.watermarks.now_micros
        return None if now is None else (now - bounds[1] if place == 0 else now + bounds[0])

    def _notes(self, place: int) -> bool:
        """Return whether it matters which rows of a side have had a partner by the time they are over."""
        return self._is_outer(place) or (self.how in LEFT_ONLY and place == 0)

    def _is_outer(self, place: int) -> bool:
        return self.how == "full" or self.how == SIDES[place]


class LatestJoin(Operator):
    """The current rows of both sides, joined by their keys. Both sides are kept without a limit.

    Where neither side replaces rows, what an inner or a semi join has given stays: it only gives what is new.
    """

    kind: ClassVar[str] = "join"

    def __init__(
        self,
        on: str | Sequence[str] | Mapping[str, str],
        how: How = "inner",
        prefix: str | None = None,
        expiry: Expiry = NEVER,
    ) -> None:
        self.keys = JoinKeys.from_declaration(on)
        self.on = self.keys.left
        self.how = how
        self.prefix = prefix
        self.expiry = expiry

    def spec(self) -> OperatorSpec:
        stays = self.how in ("inner", "semi")
        return OperatorSpec(
            identity=self.on,
            inputs=Inputs(retractions=True),
            output=OutputSpec(inputs_of_any_age=[0, 1]),
            changelog=Changelog(
                updates=Updates.IF_INPUTS_DO if stays else Updates.ALWAYS,
                key=KeyOfInputs(self._key, self.prefix is not None and self.how not in (*LEFT_ONLY, "full")),
                is_kept=True,
            ),
            states=[StateSpec(name, self.expiry) for name in SIDES],
            growth=Growth(keeps="all rows of both sides" if self.expiry.is_never else None),
            intervals=ANY_INTERVAL,
            cuts=["which rows have met, where a side replaces rows between two checkpoints"] if stays else [],
        )

    def _key(
        self, inputs: Sequence[ChangelogKey | None], columns: Sequence[Sequence[str]] | None
    ) -> ChangelogKey | None:
        """The keys of both sides; that of one side is enough where each of its rows has one partner at most.

        In a full join two rows without a partner, one of each side, may have nulls in all of them.
        """
        left, right = inputs
        if self.how in LEFT_ONLY or left is None or right is None or self.how == "full":
            return left if self.how in LEFT_ONLY else None
        if self.how != "right" and keys_contain(self.keys.right, right):
            return left
        theirs = self._named_in_result(right, columns)
        if theirs is None or (self.how != "left" and keys_contain(self.keys.left, left)):
            return theirs
        return tuple(dict.fromkeys([*left, *theirs]))

    def _named_in_result(self, right: ChangelogKey, columns: Sequence[Sequence[str]] | None) -> ChangelogKey | None:
        """Return the right side's key by the names that its columns have in the result. None: that depends on the
        columns of both sides."""
        if columns is not None:
            return key_renamed(right, self.keys.names_in_result(columns[0], columns[1], self.prefix))
        ours = {name: [ours] for ours, name in zip(self.keys.left, self.keys.right, strict=True)}
        if self.prefix is not None and not keys_contain(self.keys.right, right):
            return None
        return key_renamed(right, {name: [name] for column in right for name in column} | ours)

    def describe(self) -> Json:
        return {"on": self.keys.texts, "how": self.how, "prefix": self.prefix} | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        return {"on": self.keys.texts, "how": self.how, BOUNDS: "left out"}

    def problems(self) -> list[str]:
        return join_problems(self.keys, self.how, HOWS) + self.expiry.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        right = self.keys.rename_right(inputs[1], context)
        check_sides([inputs[0], right], self.on, self.prefix, context, self.how)
        gone_left, gone_right = context.retractions or (None, None)
        if gone_right is not None:
            gone_right = self.keys.project_right(self.keys.rename_right(gone_right, context), self.how)
        states = [
            context.state([*self.on, "_row"], name, ttl=self.expiry.ttl(context), grouped_by=self.on) for name in SIDES
        ]
        return joined_now(
            [inputs[0], self.keys.project_right(right, self.how)],
            (gone_left, gone_right),
            self.on,
            self.prefix,
            states,
            context,
            replaces=self.spec().changelog.updates_over(gone_left is not None or gone_right is not None),
            how=self.how,
        )

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        sides = []
        inputs = [inputs[0], self.keys.project_right(self.keys.rename_right(inputs[1], context), self.how)]
        for part, frame in zip(SIDES, inputs, strict=True):
            like, rows = side_rows(frame, frame, self.on), states[part]
            state = context.state([*self.on, "_row"], part, grouped_by=self.on)
            sides.append(like if rows is None else recalled(state, rows, like, context))
        columns = [[name for name in frame.columns if name not in self.on] for frame in inputs]
        return self._pairs(sides[0], sides[1], columns, "_n")

    def _pairs(self, left: DataFrame, right: DataFrame, columns: Sequence[Sequence[str]], count: str) -> DataFrame:
        from pyspark.sql import functions as F

        on = list(map(quoted, self.on))
        left_rows = left.where(f"{count} > 0").select(*on, F.struct("*").alias("l"))
        asides = [f"_aside{n}" for n in range(len(on))]
        right_rows = right.where(f"{count} > 0")
        right_rows = right_rows.select(
            *(F.col(k).alias(n) for k, n in zip(on, asides, strict=True)), F.struct("*").alias("r")
        )
        if self.how in LEFT_ONLY:
            alone = left_rows.join(
                right_rows, null_safe_equality(self.on, asides, nulls=False), f"left_{self.how}"
            ).select("l")
            return left_columns(copies(alone, f"l.{count}"), self.on, columns[0])
        pairs = left_rows.join(right_rows, null_safe_equality(self.on, asides, nulls=False), self.how).select("l", "r")
        both = f"coalesce(l.{count}, 1L) * coalesce(r.{count}, 1L)"
        return joined_columns(copies(pairs, both), self.on, columns, self.prefix)


class TableJoin(Operator):
    """A Delta table at `path`, looked up by `on`. The plan fixes the version that every attempt reads."""

    kind: ClassVar[str] = "join"

    def __init__(
        self, path: str, on: str | Sequence[str] | Mapping[str, str], how: How = "inner", prefix: str | None = None
    ) -> None:
        self.table = DeltaTable(path, max_files=EVERY_FILE)
        self.keys = JoinKeys.from_declaration(on)
        self.on = self.keys.left
        self.how = how
        self.prefix = prefix

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            identity=[self.table.path.rstrip("/").rpartition("/")[2], *self.on],
            inputs=Inputs(
                table=self.table,
                retraction_advice="put it in front of that, or make the table a source and join with its latest rows, "
                "for by another version of the table other rows would be taken back than were given",
            ),
            states=[],
            growth=BOUNDED,
            intervals=ANY_INTERVAL,
        )

    def describe(self) -> Json:
        return {"table": self.table.path, "on": self.keys.texts, "how": self.how, "prefix": self.prefix}

    def problems(self) -> list[str]:
        return join_problems(self.keys, self.how, ("inner", "left", "semi", "anti")) + self.table.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        assert context.planned_inputs is not None
        splits, location = context.planned_inputs
        self.table.verify(splits, location)
        table = self.keys.rename_right(self.table.read(context.spark, splits, location), context)
        check_sides([inputs[0], table], self.on, self.prefix, context, self.how)
        asides = [f"_aside{n}" for n in range(len(self.on))]
        left_rows = inputs[0].select(*map(quoted, self.on), F.struct("*").alias("l"))
        keys = (F.col(quoted(k)).alias(n) for k, n in zip(self.on, asides, strict=True))
        table_rows = table.select(*keys, F.struct("*").alias("r"))
        columns = [[name for name in frame.columns if name not in self.on] for frame in (inputs[0], table)]
        equal = null_safe_equality(self.on, asides, nulls=False)
        if self.how in LEFT_ONLY:
            return {"": left_columns(left_rows.join(table_rows, equal, f"left_{self.how}"), self.on, columns[0])}
        pairs = left_rows.join(table_rows, equal, self.how).select("l", "r")
        return {"": joined_columns(pairs, self.on, columns, self.prefix)}
