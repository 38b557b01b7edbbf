"""Rows whose key has not been seen before.

The first checkpoint that has a row of a key gives it; of several in one checkpoint it is the earliest in event time,
then the one with the least hash of all that it holds: rows have no other order that every source could tell. So
duplicates that are copies give the same however the input is cut. Where they differ, which one stays depends on the
cut: `latest` or `top_n` choose by an order of their own, and replace rows for that.

With `within`, a row is a duplicate of one that was given if their event times are less than that apart. What is older
than the watermark less `within` can meet no row any more that is not late, so it is forgotten without a trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.inputs import key_problems, need_keys, refuse_reserved_columns
from tidegate.operators.join.time_bounds import LATE_OUTPUT, bounds_in, need_time
from tidegate.operators.kernels.deduplicated import DeduplicateWithin, FirstPerKey
from tidegate.operators.retractions.key import key_of
from tidegate.operators.spec import (
    ANY_INTERVAL,
    Changelog,
    EventTime,
    Growth,
    OperatorSpec,
    OutputSpec,
    StateSpec,
    TimedInput,
    joined,
)
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import time_micros
from tidegate.spark.frame_facts import is_known_empty
from tidegate.spark.row_id import half_fields, row_halves
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Deduplicate"]


class Deduplicate(Operator):
    """`by`: the columns that make rows duplicates. `within`: for how long, in event time; None: without a limit."""

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
        # What is older than the watermark less `within` is forgotten: of a late row nobody can say whether it is a
        # duplicate.
        return OperatorSpec(
            identity=self.by,
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
                problems.append("within says how long a key is remembered, and state_ttl too: leave one out")
        return problems + self.expiry.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows = inputs[0]
        need_keys(rows, self.by, "by", context)
        refuse_reserved_columns(rows, context)
        from pyspark.sql import functions as F
        from pyspark.sql import types as T

        fields = {field.name: field for field in rows.schema.fields}
        keys = [fields[name] for name in self.by]
        columns = {name: name if name in self.by else f"_tidegate_{n}" for n, name in enumerate(fields)}
        is_empty, ends = is_known_empty(rows), None
        work: FirstPerKey | DeduplicateWithin
        if self.within is None:
            times = self._time(rows, context)
            at = times[-1] if times else F.lit(None).cast("long")
            state = StateLookup(context.state(self.by, ttl=self.expiry.ttl(context)), keys)
            work = FirstPerKey(self.by, columns)
        else:
            bounds, now = bounds_in(self.within), context.watermarks.now_micros
            assert not isinstance(bounds, str)
            at = time_micros(rows, need_time(self.event_time, 0, context), f"operator {context.uid!r}")
            ends = None if now is None else now - bounds[1]
            work = DeduplicateWithin(self.by, columns, bounds[1], context.watermarks.before_micros, ends)
            state = StateLookup(
                context.state([*self.by, "_at"], grouped_by=self.by),
                [*keys, T.StructField("_at", T.LongType())],
                "_at",
                None if is_empty and not context.watermarks.has_advanced else ends,
            )
        named = (F.col(quoted(name)).alias(alias) for name, alias in columns.items())
        batch = rows.select(*named, at.alias("_at"), *map(F.expr, row_halves(rows)))
        arriving = [T.StructField(alias, fields[name].dataType) for name, alias in columns.items()]
        arriving += [T.StructField("_at", T.LongType()), *half_fields()]
        given = list(fields.values())
        folded = run_kernel(
            batch,
            arriving,
            self.by,
            [state],
            work,
            given,
            is_empty=is_empty,
            keeps_rows=False,
            side_outputs={LATE_OUTPUT: given} if LATE_OUTPUT in context.consumed_outputs else {},
        )
        context.count(folded.counts)
        return {"": folded.rows, **folded.side_outputs}

    def _time(self, rows: DataFrame, context: OperatorContext) -> list[Column]:
        """Return the columns that make a row earlier than another: none if neither it nor its sources name any."""
        if self.event_time is None and context.event_times[0] not in rows.columns:
            return []
        micros = time_micros(rows, self.event_time or str(context.event_times[0]), f"operator {context.uid!r}")
        return [micros.isNull(), micros]
