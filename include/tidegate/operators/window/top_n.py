"""The first rows of each window and key in an order, emitted once, when the window is complete.

    state    the first rows so far of open windows           keys: window_start, the by-columns, the row's id
    output   the first rows of each window, with `rank`      in the checkpoint whose watermark reaches its end

A row that is not among the first of its window when it arrives can never be, so only the first rows are stored. They
expire with their window, as with aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.inputs import need_keys, need_order, refuse_reserved_columns
from tidegate.operators.join.time_bounds import LATE_OUTPUT, need_time
from tidegate.operators.kernels.first_in_windows import FirstInWindows
from tidegate.operators.kernels.ranked import TopRows
from tidegate.operators.latest import TopN
from tidegate.operators.ranking import RANK
from tidegate.operators.spec import ANY_INTERVAL, BOUNDED, OperatorSpec, OutputSpec
from tidegate.operators.window.closing import END, START
from tidegate.operators.window.window import Window
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import micros_in, time_micros_sql
from tidegate.spark.frame_facts import is_known_empty, select_sql
from tidegate.spark.row_id import half_fields, row_halves
from tidegate.state.kernel_driver import StateLookup, run_kernel
from tidegate.state.lateness import ExpiredRows, WindowLimits, closing_starts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["WindowTopN"]


class WindowTopN(Operator):
    """The first `n` rows in `order_by`, of each key in each window of the size `tumbling`."""

    kind: ClassVar[str] = "top-n"

    def __init__(
        self,
        n: int,
        tumbling: object,
        by: Sequence[str],
        order_by: Sequence[str],
        rank: str = "row_number",
        event_time: str | None = None,
    ) -> None:
        self.n = n
        self.tumbling = tumbling
        self.by = listed(by)
        self.order_by = listed(order_by)
        self.rank = rank
        self.event_time = event_time

    @cached_property
    def _window(self) -> Window:
        """A window of the same shape, which validates and describes it."""
        return Window(self.by, {"the rows": "count(*)"}, tumbling=self.tumbling, event_time=self.event_time)

    @cached_property
    def _top(self) -> TopN:
        """The same without windows."""
        return TopN(self.n, [START, *self.by], self.order_by, self.rank)

    def spec(self) -> OperatorSpec:
        window = self._window.spec()
        return OperatorSpec(
            identity=[*window.identity, *self.order_by],
            event_time=window.event_time,
            output=OutputSpec(
                others=[LATE_OUTPUT], lag_s=window.output.lag_s, complete_per_checkpoint_by=frozenset((START, END))
            ),
            growth=BOUNDED,
            intervals=replace(ANY_INTERVAL, windows=window.intervals.windows),
        )

    def describe(self) -> Json:
        described: Json = {"n": self.n, "tumbling": self.tumbling, "by": self.by, "order_by": self.order_by}
        return described | {"rank": self.rank, "event_time": self.event_time}

    def meaning(self, over_updates: bool) -> Json:
        meaning = self._top.meaning(over_updates=False) | {"by": self.by}
        window = self._window.meaning(over_updates=False)
        return meaning | {"the window": window["the window"], "event_time": [self.event_time]}

    def problems(self) -> list[str]:
        return list(dict.fromkeys([*self._window.problems(), *self._top.problems()]))

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import types as T

        rows, size = inputs[0], micros_in(self.tumbling)
        order = self._top.order
        need_keys(rows, self.by, "by", context)
        need_order(rows, [term.name for term in order[:-1]], context)
        refuse_reserved_columns(rows, context)
        refuse_reserved_columns(rows, context, [START, END, RANK])
        keys, watermarks = [START, *self.by], context.watermarks
        limits = WindowLimits.from_watermarks(watermarks.before_micros, watermarks.now_micros)
        expired = None if limits.late is None else ExpiredRows(END, limits.late)
        fields = {field.name: field for field in rows.schema.fields}
        start, end = (T.StructField(name, T.TimestampType()) for name in (START, END))
        copies, rank = T.StructField("_n", T.LongType()), T.StructField(RANK, T.IntegerType())
        by, values = [fields[name] for name in self.by], [fields[name] for name in fields if name not in self.by]
        lookup = StateLookup(
            context.state([*keys, "_row"], expired=expired, grouped_by=keys),
            [start, *by, T.StructField("_row", T.StringType()), end, *values, copies],
            START,
            drop_when_compacting=expired,
        )
        closing = closing_starts(limits, size)
        if closing is not None:
            expired_since = None if closing.after is None else closing.after + 1
            lookup = replace(lookup, expire_before=closing.upto + 1, expired_since=expired_since)
        micros = time_micros_sql(rows, need_time(self.event_time, 0, context), f"operator {context.uid!r}")
        start_micros = f"{micros} - pmod({micros}, {size}L)"
        bounds = [
            f"timestamp_micros({start_micros}) AS {START}",
            f"timestamp_micros({start_micros} + {size}L) AS {END}",
        ]
        batch = select_sql(rows, [*bounds, *map(quoted, fields), *row_halves(rows), "1L AS _n"])
        terms = [(term.name, term.ascending) for term in order[:-1]]
        columns = [START, END, *fields]
        first = TopRows(keys, [END, *(field.name for field in values)], terms, self.n, False, columns, RANK, self.rank)
        late = list(fields) if LATE_OUTPUT in context.consumed_outputs else None
        output = run_kernel(
            batch,
            [start, end, *fields.values(), *half_fields(), copies],
            keys,
            [lookup],
            FirstInWindows(first, START, END, size, limits, late),
            [start, end, *fields.values(), rank],
            is_empty=is_known_empty(rows),
            side_outputs={LATE_OUTPUT: list(fields.values())} if late is not None else {},
        )
        context.count(output.counts)
        return {"": output.rows, **output.side_outputs}
