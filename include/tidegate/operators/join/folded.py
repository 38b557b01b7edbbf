"""A join of two streams in one query: the driver's part, for joins with and without bounds in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidegate.operators.join.by_workers import FROM_RIGHT, JoinInWorkers, JoinSide
from tidegate.operators.join.sides import names_from_right
from tidegate.operators.join.time_bounds import LATE_SIDES
from tidegate.records.names import quoted
from tidegate.spark.event_time import time_micros_sql
from tidegate.spark.known import select_sql
from tidegate.spark.row_id import half_fields, row_halves
from tidegate.state.folding import Remembered, fold_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.base import OperatorContext
    from tidegate.state.keyed import KeyedState

__all__ = ["Nearness", "joined_by_workers"]

MOST_PAIRS = 10_000_000
"""The most pairs that a worker of a join finds. More are left to Spark, which spills."""


class Nearness(NamedTuple):
    """Bounds in event time. What is in pairs: of the left side, and of the right side."""

    times: tuple[str, str]
    """The columns with the time."""
    bounds: tuple[int, int]
    """How much earlier and how much later the right side's row may be, in microseconds."""
    ends: tuple[int | None, int | None]
    """Rows before this time can no longer match any other. None: there is no watermark."""
    outer: tuple[bool, bool]
    """Whether rows are emitted without a partner when their time is over."""


def joined_by_workers(
    inputs: Sequence[DataFrame],
    on: Sequence[str],
    prefix: str | None,
    states: Sequence[KeyedState],
    near: Nearness | None,
    context: OperatorContext,
    *,
    is_empty: bool,
) -> dict[str, DataFrame] | None:
    """Return the streams, of which the first has the pairs in which at least one row is new, as workers compute them.
    None: they cannot.

    near: None if rows of any time meet; then they are kept for ever. states: those of both sides.
    """
    from pyspark.sql import types as T

    fields = [{field.name: field for field in frame.schema.fields} for frame in inputs]
    values = [[name for name in side if name not in on] for side in fields]
    results = [dict(zip(values[0], values[0], strict=True)), names_from_right(values[0], values[1], prefix)]
    aliases = [
        {name: f"_tidegate_{mark}{n}" for n, name in enumerate(names)} for mark, names in zip("lr", values, strict=True)
    ]
    keys = [fields[0][name] for name in on]
    at, count, matched = (
        T.StructField("_at", T.LongType()),
        T.StructField("_n", T.LongType()),
        T.StructField("_matched", T.BooleanType()),
    )
    own = [count] if near is None else [at, count, matched]
    ends = near.ends if near is not None else (None, None)
    sides, remembered = [], []
    for place, state in enumerate(states):
        named = tuple((result, name) for name, result in results[place].items())
        outer, expires = near is not None and near.outer[place], state.by_row is not None
        sides.append(JoinSide(aliases[place], named, ends[place], outer, expires))
        stored = [*keys, T.StructField("_row", T.StringType()), *(fields[place][n] for n in values[place]), *own]
        stands = expires or (is_empty and not context.watermarks.moved)
        time = None if near is None or expires else "_at"
        remembered.append(Remembered(state, stored, time, None if stands else ends[place]))
    work = JoinInWorkers(
        on=on,
        sides=(sides[0], sides[1]),
        low=near.bounds[0] if near is not None else 0,
        high=near.bounds[1] if near is not None else 0,
        late=context.watermarks.before_micros if near is not None else None,
        nulls_wait=near is not None and any(near.outer),
        most_pairs=MOST_PAIRS,
        timed=near is not None,
    )
    given = [*keys]
    for place, names in enumerate(results):
        given += [T.StructField(new, fields[place][name].dataType) for name, new in names.items()]
    batch = _batch(inputs, on, None if near is None else near.times, aliases, context)
    arriving = [*keys, at, *half_fields(), T.StructField(FROM_RIGHT, T.BooleanType())]
    for side, names in zip(fields, aliases, strict=True):
        arriving += [T.StructField(alias, side[name].dataType) for name, alias in names.items()]
    apart = {name: list(fields[place].values()) for place, name in enumerate(LATE_SIDES) if name in context.taken}
    folded = fold_rows(batch, arriving, on, remembered, work, given, is_empty=is_empty, apart=apart)
    if folded is None:
        return None
    context.count(folded.counts)
    return {"": folded.rows, **folded.apart}


def _batch(
    inputs: Sequence[DataFrame],
    on: Sequence[str],
    times: Sequence[str] | None,
    aliases: Sequence[Mapping[str, str]],
    context: OperatorContext,
) -> DataFrame:
    """Return the rows of both sides in one frame: a side's columns under aliases, those of the other null."""
    frames = []
    for place, frame in enumerate(inputs):
        at = "0L" if times is None else time_micros_sql(frame, times[place], f"operator {context.uid!r}")
        own = [f"{at} AS _at", *row_halves(frame), f"{place == 1} AS {FROM_RIGHT}"]
        values = (f"{quoted(name)} AS {alias}" for name, alias in aliases[place].items())
        frames.append(select_sql(frame, [*map(quoted, on), *own, *values]))
    return frames[0].unionByName(frames[1], allowMissingColumns=True)
