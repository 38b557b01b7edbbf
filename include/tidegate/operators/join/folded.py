"""A join of two streams by its kernel: the driver's part, for joins with and without bounds in time, and as of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tidegate.operators.join.as_of_kernel import AsOfInWorkers
from tidegate.operators.join.current_rows import CurrentRowsJoin
from tidegate.operators.join.kernel import FROM_RIGHT, IntervalJoinKernel, JoinSide
from tidegate.operators.join.sides import LEFT_ONLY, names_from_right, refuse_missing
from tidegate.operators.join.time_bounds import LATE_OUTPUT, LATE_SIDES
from tidegate.operators.kernels.waiting import WaitingRows
from tidegate.records.names import quoted
from tidegate.spark.event_time import time_micros_sql
from tidegate.spark.frame_facts import is_known_empty, select_sql
from tidegate.spark.row_id import half_fields, row_halves
from tidegate.state.arrow.kernel_worker import IS_CURRENT
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from tidegate.operators.context import OperatorContext
    from tidegate.state.keyed import KeyedState

__all__ = ["TimeBounds", "join_within", "joined_as_of", "joined_now"]


class TimeBounds(NamedTuple):
    """Bounds in event time. What is in pairs: of the left side, and of the right side."""

    times: tuple[str, str]
    """The columns with the time."""
    bounds: tuple[int, int]
    """How much earlier and how much later the right side's row may be, in microseconds."""
    ends: tuple[int | None, int | None]
    """Rows before this time can no longer match any other. None: there is no watermark."""
    outer: tuple[bool, bool]
    """Whether rows are emitted without a partner when their time is over."""
    nulls_wait: bool
    """Whether rows with null keys are kept, although they match nothing."""


def join_within(
    inputs: Sequence[DataFrame],
    on: Sequence[str],
    prefix: str | None,
    states: Sequence[KeyedState],
    near: TimeBounds,
    context: OperatorContext,
    *,
    is_empty: bool,
    how: str,
) -> dict[str, DataFrame]:
    """Return the streams of a join of rows that are near each other in time. states: those of both sides."""
    from pyspark.sql import types as T

    both = _BothSides.of(inputs, on, prefix, how, [near.times[1]])
    own = [
        T.StructField("_at", T.LongType()),
        T.StructField("_n", T.LongType()),
        T.StructField("_matched", T.BooleanType()),
    ]
    sides, remembered = [], []
    for place, state in enumerate(states):
        expires, once = state.expires_by_row_time is not None, how == "semi" and place == 0
        ends = near.ends[place]
        sides.append(
            both.side(
                place,
                expire_before=ends,
                emits_unmatched=near.outer[place],
                emits_once_matched=once,
                expires=expires,
            )
        )
        stands = expires or (is_empty and not context.watermarks.has_advanced)
        time = None if expires else "_at"
        remembered.append(StateLookup(state, [*both.stored(place), *own], time, None if stands else ends))
    work = IntervalJoinKernel(
        join_keys=on,
        sides=(sides[0], sides[1]),
        low=near.bounds[0],
        high=near.bounds[1],
        late=context.watermarks.before_micros,
        nulls_wait=near.nulls_wait,
        emits_pairs=how not in LEFT_ONLY,
    )
    times = [
        f"{time_micros_sql(frame, near.times[place], f'operator {context.uid!r}')} AS _at"
        for place, frame in enumerate(inputs)
    ]
    batch = both.batch([(place, frame, times[place]) for place, frame in enumerate(inputs)])
    apart = {name: both.all_columns(place) for place, name in enumerate(LATE_SIDES) if name in context.consumed_outputs}
    folded = run_kernel(
        batch, both.arriving(own[0]), on, remembered, work, both.result_columns(), is_empty=is_empty, side_outputs=apart
    )
    context.count(folded.counts)
    return {"": folded.rows, **folded.side_outputs}


def joined_now(
    inputs: Sequence[DataFrame],
    withdrawn: Sequence[DataFrame | None],
    on: Sequence[str],
    prefix: str | None,
    states: Sequence[KeyedState],
    context: OperatorContext,
    *,
    replaces: bool,
    how: str,
) -> dict[str, DataFrame]:
    """Return the streams of a join of what both sides hold. withdrawn: the rows that each takes back; None: it takes
    none back. replaces: whether the join takes rows back itself. states: those of both sides."""
    from pyspark.sql import types as T

    both = _BothSides.of(inputs, on, prefix, how, [])
    copies = T.StructField("_n", T.LongType())
    for place, state in enumerate(states):
        if withdrawn[place] is not None and state.base is not None:
            before = [field["name"] for field in state.base.columns["fields"]]
            refuse_missing(before, [*(field.name for field in both.stored(place)), "_n"], context)
    frames = [(place, frame, "1L AS _n") for place, frame in enumerate(inputs)]
    frames += [(place, frame, "-1L AS _n") for place, frame in enumerate(withdrawn) if frame is not None]
    if not replaces:  # null keys meet nothing, and nobody waits for them
        known = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in on)
        frames = [(place, frame.where(known), sign) for place, frame, sign in frames]
    folded = run_kernel(
        both.batch(frames),
        both.arriving(copies),
        on,
        [StateLookup(state, [*both.stored(place), copies]) for place, state in enumerate(states)],
        CurrentRowsJoin(on, (both.side(0), both.side(1)), how, replaces),
        both.result_columns(),
        is_empty=all(is_known_empty(frame) for _, frame, _ in frames),
        is_current_column=IS_CURRENT if replaces else None,
        wants_retractions=replaces and context.wants_retractions,
    )
    return {"": folded.rows, **({"-": folded.retractions} if replaces else {})}


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
    """Return the streams of a join as of event time. states: of the rows that wait, and of versions. times: each side's
    column with the time."""
    from pyspark.sql import types as T

    both = _BothSides.of(inputs, on, prefix, how, [])
    at = T.StructField("_at", T.LongType())
    micros = [
        time_micros_sql(frame, time, f"operator {context.uid!r}") for frame, time in zip(inputs, times, strict=True)
    ]
    meets = " AND ".join(f"{text} IS NOT NULL" for text in (micros[1], *map(quoted, on)))
    frames = [inputs[0], inputs[1].where(meets)]  # other versions hold for no row
    marks = context.watermarks
    now = marks.now_micros
    waiting = StateLookup(
        states[0],
        [*both.stored(0), at, T.StructField("_n", T.LongType())],
        "_at",
        None if is_empty and not marks.has_advanced else now,
    )
    folded = run_kernel(
        both.batch([(place, frame, f"{micros[place]} AS _at") for place, frame in enumerate(frames)]),
        both.arriving(at),
        on,
        [waiting, StateLookup(states[1], [*both.stored(1), at], also_keys_of=0)],
        AsOfInWorkers(
            on,
            (both.side(0), both.side(1)),
            WaitingRows(on, both.aliases[0], marks.before_micros, now),
            outer=how == "left",
        ),
        both.result_columns(),
        is_empty=is_empty,
        side_outputs={LATE_OUTPUT: both.all_columns(0)} if LATE_OUTPUT in context.consumed_outputs else {},
    )
    context.count(folded.counts)
    return {"": folded.rows, **folded.side_outputs}


@dataclass(frozen=True)
class _BothSides:
    """Both sides of a join, for its kernel: each with columns under names of their own in one batch."""

    join_keys: Sequence[str]
    fields: Sequence[Mapping[str, StructField]]
    """By side, its columns."""
    stored_columns: Sequence[Sequence[str]]
    """By side, the columns that are kept, apart from the keys."""
    results: Sequence[Mapping[str, str]]
    """By side, the columns that are in the result, each with its name there."""
    aliases: Sequence[Mapping[str, str]]
    """By side, its columns apart from the keys, each with its name in the batch."""

    @classmethod
    def of(
        cls, inputs: Sequence[DataFrame], on: Sequence[str], prefix: str | None, how: str, looked_at: Sequence[str]
    ) -> _BothSides:
        """looked_at: the columns of the right side, apart from the keys, that a join which gives none of them needs."""
        fields = [{field.name: field for field in frame.schema.fields} for frame in inputs]
        values = [[name for name in side if name not in on] for side in fields]
        of_left = how in LEFT_ONLY
        kept = [values[0], [name for name in values[1] if name in looked_at] if of_left else values[1]]
        theirs = {} if of_left else names_from_right(values[0], values[1], prefix)
        aliases = [
            {name: f"_tidegate_{mark}{n}" for n, name in enumerate(names)}
            for mark, names in zip("lr", values, strict=True)
        ]
        return cls(on, fields, kept, [dict(zip(values[0], values[0], strict=True)), theirs], aliases)

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
        """Return a side as the kernel knows it."""
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
        """Return the columns of a side's state that make a row."""
        from pyspark.sql import types as T

        values = (self.fields[place][name] for name in self.stored_columns[place])
        return [*self._keys, T.StructField("_row", T.StringType()), *values]

    def all_columns(self, place: int) -> list[StructField]:
        """Return all columns of a side."""
        return list(self.fields[place].values())

    def arriving(self, own: StructField) -> list[StructField]:
        """Return the columns of the batch. own: the one that is the kernel's own."""
        from pyspark.sql import types as T

        columns = [*self._keys, own, *half_fields(), T.StructField(FROM_RIGHT, T.BooleanType())]
        for side, names in zip(self.fields, self.aliases, strict=True):
            columns += [T.StructField(alias, side[name].dataType) for name, alias in names.items()]
        return columns

    def result_columns(self) -> list[StructField]:
        """Return the columns of the result."""
        from pyspark.sql import types as T

        columns = self._keys
        for place, names in enumerate(self.results):
            columns += [T.StructField(new, self.fields[place][name].dataType) for name, new in names.items()]
        return columns

    def batch(self, frames: Sequence[tuple[int, DataFrame, str]]) -> DataFrame:
        """Return the rows of both sides in one frame: a side's columns under aliases, those of the other null.

        frames: each with its side, and the SQL of the kernel's own column.
        """
        made = []
        for place, frame, own in frames:
            frame = frame.select(*map(quoted, self.fields[place]))
            looked_at = frame.select(*map(quoted, [*self.join_keys, *self.stored_columns[place]]))
            values = (f"{quoted(name)} AS {alias}" for name, alias in self.aliases[place].items())
            columns = [
                *map(quoted, self.join_keys),
                own,
                *row_halves(looked_at),
                f"{place == 1} AS {FROM_RIGHT}",
                *values,
            ]
            made.append(select_sql(frame, columns))
        whole = made[0]
        for frame in made[1:]:
            whole = whole.unionByName(frame, allowMissingColumns=True)
        return whole
