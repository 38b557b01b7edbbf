"""Emits the first row of each key, or all rows, with a mark on those that are not the first one.

Ties within a checkpoint are broken by event time, then by a hash of the row's content, as rows have no other order that
every source could provide. So if duplicates are copies, the result does not depend on how the input is cut into
checkpoints. If they differ, the cut decides which one is emitted: `latest` and `top_n` choose by a declared order, and
replace rows for that.

With `within`, a row is a duplicate of an emitted one if their event times are closer than that. Rows older than the
watermark less `within` can only be near late rows, so they are dropped from the state.

`RepeatMarker` is for a gate, which decides what becomes of the marked rows, and takes the marks off again. It finds the
same first rows. It keeps their times for twice as long, so a row that is late by no more than `over` is compared
exactly, too. One that is later is marked as late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.inputs import key_problems, need_keys, refuse_reserved_columns
from tidegate.operators.join.time_bounds import LATE_OUTPUT, bounds_in, need_time
from tidegate.operators.kernels.deduplicated import DeduplicateWithin, FirstPerKey, MarkRepeats
from tidegate.operators.retractions.key import key_of
from tidegate.operators.spec import (
    ANY_INTERVAL,
    BOUNDED,
    Changelog,
    EventTime,
    Growth,
    Inputs,
    OperatorSpec,
    OutputSpec,
    StateSpec,
    TimedInput,
    joined,
)
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import micros_in, time_micros
from tidegate.spark.frame_facts import is_known_empty
from tidegate.spark.row_id import half_fields, row_halves
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

__all__ = ["LATE", "MARK", "REPEATED", "WITHOUT_TIME", "Deduplicate", "RepeatMarker"]

MARK: Final = "_tidegate_repeat"
"""The column of marks, which say why a row is no first one. Null for first ones, and for rows with a null key."""
REPEATED, LATE, WITHOUT_TIME = "repeated", "late", "without_time"


class Deduplicate(Operator):
    """`by`: the columns in which duplicates are equal. `within`: the event time between duplicates, by default any."""

    kind: ClassVar[str] = "deduplicate"

    def __init__(
        self,
        by: Sequence[str],
        within: str | None = None,
        event_time: str | None = None,
        expiry: Expiry = NEVER,
    ) -> None:
        self.by = listed(by)
        self.within = within
        self.event_time = event_time
        self.expiry = expiry

    def spec(self) -> OperatorSpec:
        is_bounded = self.within is not None
        keeps_all = not is_bounded and self.expiry.is_never
        return OperatorSpec(
            identity=self.by,
            # With `within`, late rows are refused: the rows that they may be duplicates of are no longer stored.
            event_time=EventTime(inputs=[TimedInput(self.event_time)]) if is_bounded else None,
            output=OutputSpec(
                others=[LATE_OUTPUT] if is_bounded else [], possible_others={LATE_OUTPUT: 'within="1 day"'}
            ),
            changelog=Changelog(key=key_of(self.by) if keeps_all else None),
            states=[StateSpec("", self.expiry)],
            growth=Growth(keeps=f"each {joined(self.by)}" if keeps_all else None),
            permanent_keys=self.by if keeps_all else None,
            intervals=ANY_INTERVAL,
            cuts=["which of several different rows of a key is the first: that of the earlier checkpoint"],
        )

    def describe(self) -> Json:
        return {"by": self.by, "within": self.within, "event_time": self.event_time} | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "within a time": self.within is not None, "event_time": [self.event_time]}

    def problems(self) -> list[str]:
        problems = key_problems(self.by)
        if self.within is not None:
            bounds = bounds_in(self.within)
            problems += [bounds] if isinstance(bounds, str) else []
            if self.expiry.after is not None:
                problems.append("within and state_ttl both say how long a key is kept: leave one out")
        return problems + self.expiry.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows = inputs[0]
        need_keys(rows, self.by, "by", context)
        refuse_reserved_columns(rows, context)
        from pyspark.sql import types as T

        fields = {field.name: field for field in rows.schema.fields}
        keys = [fields[name] for name in self.by]
        columns = _batch_columns(rows, self.by)
        is_empty = is_known_empty(rows)
        kernel: FirstPerKey | DeduplicateWithin
        if self.within is None:
            time = self._time(rows, context)
            lookup = StateLookup(context.state(self.by), keys)
            kernel = FirstPerKey(self.by, columns)
        else:
            bounds, now = bounds_in(self.within), context.watermarks.now_micros
            assert not isinstance(bounds, str)
            time = time_micros(rows, need_time(self.event_time, 0, context), f"operator {context.uid!r}")
            expire_before = None if now is None else now - bounds[1]
            kernel = DeduplicateWithin(self.by, columns, bounds[1], context.watermarks.before_micros, expire_before)
            may_expire = not is_empty or context.watermarks.has_advanced
            lookup = StateLookup(
                context.state([*self.by, "_at"], grouped_by=self.by),
                [*keys, T.StructField("_at", T.LongType())],
                "_at",
                expire_before if may_expire else None,
            )
        batch, arriving = _batch(rows, columns, time)
        output_fields = list(fields.values())
        output = run_kernel(
            batch,
            arriving,
            self.by,
            [lookup],
            kernel,
            output_fields,
            is_empty=is_empty,
            keeps_rows=False,
            side_outputs={LATE_OUTPUT: output_fields} if LATE_OUTPUT in context.consumed_outputs else {},
        )
        context.count(output.counts)
        return {"": output.rows, **output.side_outputs}

    def _time(self, rows: DataFrame, context: OperatorContext) -> Column:
        """Return the rows' event time, or null if neither the operator nor its sources name the column."""
        from pyspark.sql import functions as F

        if self.event_time is None and context.event_times[0] not in rows.columns:
            return F.lit(None).cast("long")
        return time_micros(rows, self.event_time or str(context.event_times[0]), f"operator {context.uid!r}")


class RepeatMarker(Operator):
    """`by`: the key. `over`: the event time within which a key may occur once. The gate checks both."""

    kind: ClassVar[str] = "repeats"

    def __init__(self, by: Sequence[str], over: str, event_time: str | None = None) -> None:
        self.by = listed(by)
        self.over = over
        self.event_time = event_time

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            identity=self.by,
            inputs=Inputs(retraction_advice="judge the rows before that"),
            event_time=EventTime(inputs=[TimedInput(self.event_time, lateness=None)]),
            growth=BOUNDED,
            intervals=ANY_INTERVAL,
            cuts=["which rows come too late to be compared with those before"],
        )

    def describe(self) -> Json:
        return {"by": self.by, "over": self.over, "event_time": self.event_time}

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "event_time": [self.event_time]}

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import types as T

        rows = inputs[0]
        need_keys(rows, self.by, "by", context)
        over, watermarks = micros_in(self.over), context.watermarks
        if watermarks.before_micros is None:
            late = None
        else:
            late = watermarks.before_micros - over
        if watermarks.now_micros is None:
            expire_before = None
        else:
            expire_before = watermarks.now_micros - 2 * over
        fields = {field.name: field for field in rows.schema.fields}
        columns, is_empty = _batch_columns(rows, self.by), is_known_empty(rows)
        time = time_micros(rows, need_time(self.event_time, 0, context), f"operator {context.uid!r}")
        lookup = StateLookup(
            context.state([*self.by, "_at"], grouped_by=self.by),
            [*(fields[name] for name in self.by), T.StructField("_at", T.LongType())],
            "_at",
            expire_before if not is_empty or watermarks.has_advanced else None,
        )
        batch, arriving = _batch(rows, columns, time)
        output = run_kernel(
            batch,
            arriving,
            self.by,
            [lookup],
            MarkRepeats(self.by, columns, over, late, expire_before, MARK, REPEATED, LATE, WITHOUT_TIME),
            [*fields.values(), T.StructField(MARK, T.StringType())],
            is_empty=is_empty,
            keeps_rows=False,
            keyless=" OR ".join(f"{quoted(name)} IS NULL" for name in self.by),
        )
        return {"": output.rows}


def _batch_columns(rows: DataFrame, by: Sequence[str]) -> dict[str, str]:
    """Return the rows' columns, each with its name in the batch, which cannot clash with the kernel's."""
    columns = {}
    for number, name in enumerate(rows.columns):
        columns[name] = name if name in by else f"_tidegate_{number}"
    return columns


def _batch(rows: DataFrame, columns: Mapping[str, str], time: Column) -> tuple[DataFrame, list[StructField]]:
    """Return the rows with their times and ids, as the kernel gets them, and their columns."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    types = {field.name: field.dataType for field in rows.schema.fields}
    renamed = (F.col(quoted(name)).alias(alias) for name, alias in columns.items())
    batch = rows.select(*renamed, time.alias("_at"), *map(F.expr, row_halves(rows)))
    arriving = [T.StructField(alias, types[name]) for name, alias in columns.items()]
    return batch, [*arriving, T.StructField("_at", T.LongType()), *half_fields()]
