"""Runs the kernels of joins: the driver's part, for interval joins, joins of current rows, and as-of joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tidegate.operators.join.as_of_kernel import AsOfInWorkers
from tidegate.operators.join.current_rows import CurrentRowsJoin
from tidegate.operators.join.kernel import FROM_RIGHT, IntervalJoinKernel, JoinSide
from tidegate.operators.join.sides import LEFT_ONLY, names_from_right, refuse_missing
from tidegate.operators.join.time_bounds import LATE_OUTPUT, LATE_SIDES
from tidegate.operators.kernels.waiting import WaitingRows
from tidegate.records.names import quoted
from tidegate.spark.event_time import time_micros_sql
from tidegate.spark.frame_facts import is_known_empty, select_sql, with_fields
from tidegate.spark.row_id import half_fields, row_halves_of
from tidegate.state.arrow.kernel_worker import IS_CURRENT
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from tidegate.operators.context import OperatorContext
    from tidegate.state.keyed import KeyedState

__all__ = ["TimeBounds", "join_within", "joined_as_of", "joined_now"]


class TimeBounds(NamedTuple):
    """Bounds in event time. Pairs have a value for the left side, and one for the right side."""

    times: tuple[str, str]
    """The columns with the time."""
    bounds: tuple[int, int]
    """How much earlier and how much later the right side's row may be, in microseconds."""
    expire_before: tuple[int | None, int | None]
    """Rows before this time can no longer match. None: there is no watermark."""
    outer: tuple[bool, bool]
    """Whether unmatched rows are emitted once they can no longer match."""
    nulls_wait: bool
    """Whether rows with null keys are kept, although they match nothing."""


def join_within(
    inputs: Sequence[DataFrame],
    on: Sequence[str],
    prefix: str | None,
    states: Sequence[KeyedState],
    within: TimeBounds,
    context: OperatorContext,
    *,
    is_empty: bool,
    how: str,
) -> dict[str, DataFrame]:
    """Return the streams of an interval join. states: one for each side."""
    from pyspark.sql import types as T

    both = _BothSides.from_inputs(inputs, on, prefix, how, [within.times[1]])
    time_field = T.StructField("_at", T.LongType())
    bookkeeping = [time_field, T.StructField("_n", T.LongType()), T.StructField("_matched", T.BooleanType())]
    sides, lookups = [], []
    for place, state in enumerate(states):
        expires = state.row_lifetime is not None
        expire_before = within.expire_before[place]
        side = both.side(
            place,
            expire_before=expire_before,
            emits_unmatched=within.outer[place],
            emits_once_matched=how == "semi" and place == 0,
            expires=expires,
        )
        sides.append(side)
        lookup = StateLookup(state, [*both.stored(place), *bookkeeping], identified_by=both.identified_by(place))
        if expires:
            lookups.append(lookup)
        elif is_empty and not context.watermarks.has_advanced:  # no row can expire now
            lookups.append(replace(lookup, time="_at"))
        else:
            lookups.append(replace(lookup, time="_at", expire_before=expire_before))
    kernel = IntervalJoinKernel(
        join_keys=on,
        sides=(sides[0], sides[1]),
        low=within.bounds[0],
        high=within.bounds[1],
        late=context.watermarks.before_micros,
        nulls_wait=within.nulls_wait,
        emits_pairs=how not in LEFT_ONLY,
    )
    frames = []
    late_outputs = {}
    for place, frame in enumerate(inputs):
        micros = time_micros_sql(frame, within.times[place], f"operator {context.uid!r}")
        frames.append((place, frame, f"{micros} AS _at"))
        if LATE_SIDES[place] in context.consumed_outputs:
            late_outputs[LATE_SIDES[place]] = both.all_columns(place)
    output = run_kernel(
        both.batch(frames),
        both.arriving(time_field),
        on,
        lookups,
        kernel,
        both.result_columns(),
        is_empty=is_empty,
        side_outputs=late_outputs,
    )
    context.count(output.counts)
    return {"": output.rows, **output.side_outputs}


def joined_now(
    inputs: Sequence[DataFrame],
    retractions: Sequence[DataFrame | None],
    on: Sequence[str],
    prefix: str | None,
    states: Sequence[KeyedState],
    context: OperatorContext,
    *,
    retracts: bool,
    how: str,
) -> dict[str, DataFrame]:
    """Return the streams of a join of the current rows of both sides.

    retractions: those of each side, or None if it only adds rows. retracts: whether the join itself emits retractions.
    states: one for each side.
    """
    from pyspark.sql import types as T

    both = _BothSides.from_inputs(inputs, on, prefix, how, [])
    copies = T.StructField("_n", T.LongType())
    for place, state in enumerate(states):
        if retractions[place] is not None and state.base is not None:
            before = [field["name"] for field in state.base.columns["fields"]]
            refuse_missing(before, [*(field.name for field in both.stored(place)), "_n"], context)
    frames = [(place, frame, "1L AS _n") for place, frame in enumerate(inputs)]
    for place, frame in enumerate(retractions):
        if frame is not None:
            frames.append((place, frame, "-1L AS _n"))
    if not retracts:  # rows with null keys match nothing, now or later
        no_nulls = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in on)
        frames = [(place, _with_condition(frame, no_nulls), change) for place, frame, change in frames]
    output = run_kernel(
        both.batch(frames),
        both.arriving(copies),
        on,
        [
            StateLookup(state, [*both.stored(place), copies], identified_by=both.identified_by(place))
            for place, state in enumerate(states)
        ],
        CurrentRowsJoin(on, (both.side(0), both.side(1)), how, retracts),
        both.result_columns(),
        is_empty=all(is_known_empty(frame) for _, frame, _ in frames),
        is_current_column=IS_CURRENT if retracts else None,
        wants_retractions=retracts and context.wants_retractions,
    )
    if retracts:
        return {"": output.rows, "-": output.retractions}
    return {"": output.rows}


def joined_as_of(
    inputs: Sequence[DataFrame],
    on: Sequence[str],
    prefix: str | None,
    states: Sequence[KeyedState],
    times: Sequence[str],
    context: OperatorContext,
    *,
    is_empty: bool,
    how: str,
) -> dict[str, DataFrame]:
    """Return the streams of an as-of join.

    states: that of the waiting rows, and that of the versions. times: the column with the time, for each side.
    """
    from pyspark.sql import types as T

    both = _BothSides.from_inputs(inputs, on, prefix, how, [])
    time_field = T.StructField("_at", T.LongType())
    left_micros, right_micros = (
        time_micros_sql(frame, time, f"operator {context.uid!r}") for frame, time in zip(inputs, times, strict=True)
    )
    no_nulls = " AND ".join(f"{text} IS NOT NULL" for text in (right_micros, *map(quoted, on)))
    frames = [
        (0, inputs[0], f"{left_micros} AS _at"),
        (1, _with_condition(inputs[1], no_nulls), f"{right_micros} AS _at"),  # versions with nulls match no row
    ]
    watermarks = context.watermarks
    now = watermarks.now_micros
    may_pass_rows = not is_empty or watermarks.has_advanced
    waiting = StateLookup(
        states[0],
        [*both.stored(0), time_field, T.StructField("_n", T.LongType())],
        "_at",
        now if may_pass_rows else None,
    )
    output = run_kernel(
        both.batch(frames),
        both.arriving(time_field),
        on,
        [waiting, StateLookup(states[1], [*both.stored(1), time_field], also_keys_of=0)],
        AsOfInWorkers(
            on,
            (both.side(0), both.side(1)),
            WaitingRows(on, both.aliases[0], watermarks.before_micros, now),
            outer=how == "left",
        ),
        both.result_columns(),
        is_empty=is_empty,
        side_outputs={LATE_OUTPUT: both.all_columns(0)} if LATE_OUTPUT in context.consumed_outputs else {},
    )
    context.count(output.counts)
    return {"": output.rows, **output.side_outputs}


@dataclass(frozen=True)
class _BothSides:
    """Both sides of a join in one batch, in which the columns of each side have separate names."""

    join_keys: Sequence[str]
    fields: Sequence[Mapping[str, StructField]]
    """The columns of each side."""
    stored_columns: Sequence[Sequence[str]]
    """The columns of each side that are stored, apart from the keys."""
    results: Sequence[Mapping[str, str]]
    """The columns of each side that are in the result, each with its name there."""
    aliases: Sequence[Mapping[str, str]]
    """The columns of each side apart from the keys, each with its name in the batch."""

    @classmethod
    def from_inputs(
        cls, inputs: Sequence[DataFrame], on: Sequence[str], prefix: str | None, how: str, right_needed: Sequence[str]
    ) -> _BothSides:
        """right_needed: the right columns apart from the keys that a semi or an anti join needs."""
        left_fields, right_fields = ({field.name: field for field in frame.schema.fields} for frame in inputs)
        left = [name for name in left_fields if name not in on]
        right = [name for name in right_fields if name not in on]
        if how in LEFT_ONLY:
            stored = [left, [name for name in right if name in right_needed]]
            results: list[Mapping[str, str]] = [{name: name for name in left}, {}]
        else:
            stored = [left, right]
            results = [{name: name for name in left}, names_from_right(left, right, prefix)]
        aliases = [
            {name: f"_tidegate_l{number}" for number, name in enumerate(left)},
            {name: f"_tidegate_r{number}" for number, name in enumerate(right)},
        ]
        return cls(on, [left_fields, right_fields], stored, results, aliases)

    @property
    def _keys(self) -> list[StructField]:
        return [self.fields[0][name] for name in self.join_keys]

    def side(
        self,
        place: int,
        *,
        expire_before: int | None = None,
        emits_unmatched: bool = False,
        emits_once_matched: bool = False,
        expires: bool = False,
    ) -> JoinSide:
        """Return the kernel's description of a side."""
        return JoinSide(
            values=self.aliases[place],
            stored=self.stored_columns[place],
            result=tuple((new, name) for name, new in self.results[place].items()),
            expire_before=expire_before,
            emits_unmatched=emits_unmatched,
            emits_once_matched=emits_once_matched,
            expires=expires,
        )

    def stored(self, place: int) -> list[StructField]:
        """Return the columns of a side's state, without bookkeeping."""
        from pyspark.sql import types as T

        values = (self.fields[place][name] for name in self.stored_columns[place])
        return [*self._keys, T.StructField("_row", T.StringType()), *values]

    def identified_by(self, place: int) -> list[str]:
        """Return the columns that identify a row of a side: all that are stored of it."""
        return [*self.join_keys, *self.stored_columns[place]]

    def all_columns(self, place: int) -> list[StructField]:
        """Return all columns of a side."""
        return list(self.fields[place].values())

    def arriving(self, kernel_field: StructField) -> list[StructField]:
        """Return the columns of the batch. kernel_field: the additional column that the kernel needs."""
        from pyspark.sql import types as T

        columns = [*self._keys, kernel_field, *half_fields(), T.StructField(FROM_RIGHT, T.BooleanType())]
        for side, names in zip(self.fields, self.aliases, strict=True):
            for name, alias in names.items():
                columns.append(T.StructField(alias, side[name].dataType))
        return columns

    def result_columns(self) -> list[StructField]:
        """Return the columns of the result."""
        from pyspark.sql import types as T

        columns = self._keys
        for place, names in enumerate(self.results):
            for name, new in names.items():
                columns.append(T.StructField(new, self.fields[place][name].dataType))
        return columns

    def batch(self, frames: Sequence[tuple[int, DataFrame, str]]) -> DataFrame:
        """Return the rows of both sides in one frame: a side's columns under aliases, those of the other null.

        frames: each with its side, and the SQL of the additional column that the kernel needs.
        """
        parts = []
        for place, frame, kernel_column in frames:
            hashed = {*self.join_keys, *self.stored_columns[place]}
            values = (f"{quoted(name)} AS {alias}" for name, alias in self.aliases[place].items())
            columns = [
                *map(quoted, self.join_keys),
                kernel_column,
                *row_halves_of([field for field in frame.schema.fields if field.name in hashed]),
                f"{place == 1} AS {FROM_RIGHT}",
                *values,
            ]
            parts.append(select_sql(frame, columns))
        union = parts[0]
        for part in parts[1:]:
            union = union.unionByName(part, allowMissingColumns=True)
        return union


def _with_condition(frame: DataFrame, condition: str) -> DataFrame:
    """Return the rows for which the condition is true. Their columns are known, so Spark is not asked for them."""
    return with_fields(frame.where(condition), frame.schema.fields)
