"""Joins of two streams, or of a stream and a table.

IntervalJoin   pairs whose event times are within inclusive bounds. A row is kept until no future row of the other side
               can match it. Outer joins then emit it if it is unmatched.
LatestJoin     pairs of the current rows of both sides, which are kept without a limit. If a side emits retractions, so
               does the join. If neither does, inner and semi joins only add rows.
TableJoin      pairs with the rows of a table, in the version that the plan fixes. It has no state.

A semi join emits each left row with a match, an anti join each without one. They only keep the keys of the right side.

The first two store each side's rows under their keys and an id that is computed from the row's content, with the number
of copies. So a copy differs from a row that an attempt writes again, and a key may have any number of rows without
one row's change rewriting another. Null keys match nothing, as in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from tidegate.connectors.delta.source.delta_table import DeltaTable
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.expiry import NEVER, Expiry, RowExpiry
from tidegate.operators.inputs import null_safe_equality, recalled
from tidegate.operators.join.driver import TimeBounds, join_within, joined_now
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
"""The entry of `meaning` that says whether rows are kept only as long as they can match, or forever."""
EVERY_FILE = 1_000_000_000
"""More files than any table has, so that a version is read as a whole."""
SIDES: Final = ("left", "right")
"""The states of a join."""


def sides_in(
    times: Sequence[str | None], lateness: Sequence[Lateness | None], late_outputs: Sequence[str]
) -> list[TimedInput]:
    """Return how a join reads event time of each side. times: their columns."""
    if len(times) != 2:
        return []  # `problems` reports it
    whose = ("the left side's", "the right side's")
    return [TimedInput(*side) for side in zip(times, lateness, late_outputs, whose, strict=True)]


def join_problems(on: JoinKeys, how: str, allowed: Sequence[str]) -> list[str]:
    """Return the problems that every join may have."""
    problems = on.problems()
    if how not in allowed:
        problems.append(f"how={how!r}: expected {' or '.join(allowed)}")
    return problems


class IntervalJoin(Operator):
    """`within`: how much earlier and later the other side's row may be, inclusive. `event_time`: one column, or one for
    each side.

    Rows that are late or have no time go to the outputs "late-left" and "late-right".
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
        """Return how a side's rows expire. If it matters whether they have matched, the kernel removes them instead."""
        if self._tracks_matches(place):
            return NEVER
        return RowExpiry("_at", lasts)

    def describe(self) -> Json:
        return {
            "on": self.keys.texts,
            "within": list(self.within) if isinstance(self.within, tuple) else self.within,
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
        within = TimeBounds(
            (times[0], times[1]),
            bounds,
            self._expire_before(bounds, context),
            (self._is_outer(0) or self.how == "anti", self._is_outer(1)),
            nulls_wait=self.how not in ("inner", "semi"),
        )
        states = []
        for state in self.spec().states:
            states.append(context.state([*self.on, "_row"], state.name, grouped_by=self.on))
        return join_within(inputs, self.on, self.prefix, states, within, context, is_empty=is_empty, how=self.how)

    def _expire_before(self, bounds: tuple[int, int], context: OperatorContext) -> tuple[int, int] | tuple[None, None]:
        """Return for each side the time before which its rows can no longer match. None: there is no watermark."""
        now = context.watermarks.now_micros
        if now is None:
            return None, None
        low, high = bounds
        return now - high, now + low

    def _tracks_matches(self, place: int) -> bool:
        """Return whether the state tracks which rows of a side have had a match."""
        return self._is_outer(place) or (self.how in LEFT_ONLY and place == 0)

    def _is_outer(self, place: int) -> bool:
        return self.how == "full" or self.how == SIDES[place]


class LatestJoin(Operator):
    """Joins the current rows of both sides by their keys. Both sides are kept without a limit.

    If neither side emits retractions, the rows that an inner or a semi join emits are final.
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
        only_adds = self.how in ("inner", "semi")
        return OperatorSpec(
            identity=self.on,
            inputs=Inputs(retractions=True),
            output=OutputSpec(inputs_of_any_age=[0, 1]),
            changelog=Changelog(
                updates=Updates.IF_INPUTS_DO if only_adds else Updates.ALWAYS,
                key=KeyOfInputs(self._key, self.prefix is not None and self.how not in (*LEFT_ONLY, "full")),
                is_kept=True,
            ),
            states=[StateSpec(name, self.expiry) for name in SIDES],
            growth=Growth(keeps="all rows of both sides" if self.expiry.is_never else None),
            intervals=ANY_INTERVAL,
            cuts=["which rows have met, where a side replaces rows between two checkpoints"] if only_adds else [],
        )

    def _key(
        self, inputs: Sequence[ChangelogKey | None], columns: Sequence[Sequence[str]] | None
    ) -> ChangelogKey | None:
        """Return the key: those of both sides, or that of one side if each of its rows has at most one match.

        A full join has none: an unmatched left row and an unmatched right row may both have nulls in all key columns.
        """
        left, right = inputs
        if self.how in LEFT_ONLY:
            return left
        if self.how == "full" or left is None or right is None:
            return None
        if self.how != "right" and keys_contain(self.keys.right, right):
            return left
        right_key = self._named_in_result(right, columns)
        if right_key is None or (self.how != "left" and keys_contain(self.keys.left, left)):
            return right_key
        return tuple(dict.fromkeys([*left, *right_key]))

    def _named_in_result(self, right: ChangelogKey, columns: Sequence[Sequence[str]] | None) -> ChangelogKey | None:
        """Return the right side's key with the names that its columns have in the result. None: these depend on the
        columns of both sides, which are unknown."""
        if columns is not None:
            return key_renamed(right, self.keys.names_in_result(columns[0], columns[1], self.prefix))
        if self.prefix is not None and not keys_contain(self.keys.right, right):
            return None
        names = {}
        for column in right:
            for name in column:
                names[name] = [name]
        for left_name, right_name in zip(self.keys.left, self.keys.right, strict=True):
            names[right_name] = [left_name]
        return key_renamed(right, names)

    def describe(self) -> Json:
        return {"on": self.keys.texts, "how": self.how, "prefix": self.prefix} | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        return {"on": self.keys.texts, "how": self.how, BOUNDS: "left out"}

    def problems(self) -> list[str]:
        return join_problems(self.keys, self.how, HOWS) + self.expiry.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        right = self.keys.rename_right(inputs[1], context)
        check_sides([inputs[0], right], self.on, self.prefix, context, self.how)
        left_retractions, right_retractions = context.retractions or (None, None)
        if right_retractions is not None:
            right_retractions = self.keys.project_right(self.keys.rename_right(right_retractions, context), self.how)
        over_updates = left_retractions is not None or right_retractions is not None
        states = [context.state([*self.on, "_row"], name, grouped_by=self.on) for name in SIDES]
        return joined_now(
            [inputs[0], self.keys.project_right(right, self.how)],
            (left_retractions, right_retractions),
            self.on,
            self.prefix,
            states,
            context,
            retracts=self.spec().changelog.updates_over(over_updates),
            how=self.how,
        )

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        sides = []
        inputs = [inputs[0], self.keys.project_right(self.keys.rename_right(inputs[1], context), self.how)]
        for part, frame in zip(SIDES, inputs, strict=True):
            side, stored = side_rows(frame, frame, self.on), states[part]
            state = context.state([*self.on, "_row"], part, grouped_by=self.on)
            if stored is not None:
                side = recalled(state, stored, side, context)
            sides.append(side)
        columns = []
        for frame in inputs:
            columns.append([name for name in frame.columns if name not in self.on])
        return self._pairs(sides[0], sides[1], columns, "_n")

    def _pairs(self, left: DataFrame, right: DataFrame, columns: Sequence[Sequence[str]], count: str) -> DataFrame:
        from pyspark.sql import functions as F

        left_rows = left.where(f"{count} > 0").select(*map(quoted, self.on), F.struct("*").alias("l"))
        right_rows, right_keys = _with_key_aliases(right.where(f"{count} > 0"), self.on)
        is_match = null_safe_equality(self.on, right_keys, nulls=False)
        if self.how in LEFT_ONLY:
            chosen = left_rows.join(right_rows, is_match, f"left_{self.how}").select("l")
            return left_columns(copies(chosen, f"l.{count}"), self.on, columns[0])
        pairs = left_rows.join(right_rows, is_match, self.how).select("l", "r")
        pair_count = f"coalesce(l.{count}, 1L) * coalesce(r.{count}, 1L)"
        return joined_columns(copies(pairs, pair_count), self.on, columns, self.prefix)


class TableJoin(Operator):
    """Joins with a Delta table at `path`. The plan fixes the version that every attempt reads."""

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
        left_rows = inputs[0].select(*map(quoted, self.on), F.struct("*").alias("l"))
        table_rows, table_keys = _with_key_aliases(table, self.on)
        columns = []
        for frame in (inputs[0], table):
            columns.append([name for name in frame.columns if name not in self.on])
        is_match = null_safe_equality(self.on, table_keys, nulls=False)
        if self.how in LEFT_ONLY:
            return {"": left_columns(left_rows.join(table_rows, is_match, f"left_{self.how}"), self.on, columns[0])}
        pairs = left_rows.join(table_rows, is_match, self.how).select("l", "r")
        return {"": joined_columns(pairs, self.on, columns, self.prefix)}


def _with_key_aliases(rows: DataFrame, on: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """Return the right side's rows as `r`, and their keys under names that the left side does not have."""
    from pyspark.sql import functions as F

    aliases = [f"_aside{number}" for number in range(len(on))]
    keys = (F.col(quoted(name)).alias(alias) for name, alias in zip(on, aliases, strict=True))
    return rows.select(*keys, F.struct("*").alias("r")), aliases
