"""The first rows of each window and key in an order, given once, when the window is complete.

    state   the first rows so far of windows that are not complete    keys: window_start, the by-columns, the row
    given   each window's first rows, with `rank`, in the checkpoint whose watermark has come to its end

A row that is not among the first of its window when it comes never will be, so no more than these are kept; and they go
with their window, as those of aggregates do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from tidegate.operators.base import OperatorContext
from tidegate.operators.inputs import need_columns, need_keys, recalled, refuse_own
from tidegate.operators.join.sides import met, side_rows
from tidegate.operators.join.time_bounds import LATE, need_time
from tidegate.operators.latest import TopN
from tidegate.operators.ranking import RANK, first_rows, placed_rows
from tidegate.operators.waiting import EventTimeOperator
from tidegate.operators.window.closing import END, START
from tidegate.operators.window.window import Window
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import micros_in, time_micros
from tidegate.state.columns import DELETED
from tidegate.state.lateness import Lateness, Over, WindowLimits, closing_sql, ended_sql, open_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.records.interval import Interval
    from tidegate.state.keyed import KeyedState

__all__ = ["WindowTopN"]


class WindowTopN(EventTimeOperator):
    """The `n` rows that come first in `order_by`, of each key in each window of the size `tumbling`."""

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
        """A window of the same shape: what is said of that holds for this."""
        return Window(self.by, {"the rows": "count(*)"}, tumbling=self.tumbling, event_time=self.event_time)

    @cached_property
    def _top(self) -> TopN:
        """The same without windows."""
        return TopN(self.n, [START, *self.by], self.order_by, self.rank)

    @property
    def told_by(self) -> list[str]:
        return [*self._window.told_by, *self.order_by]

    @property
    def whole_by(self) -> frozenset[str]:
        return frozenset((START, END))

    @property
    def lag_s(self) -> float:
        return self._window.lag_s

    def lateness(self, place: int) -> Lateness | None:
        return self._window.lateness(place)

    def describe(self) -> Json:
        described: Json = {"n": self.n, "tumbling": self.tumbling, "by": self.by, "order_by": self.order_by}
        return described | {"rank": self.rank, "event_time": self.event_time}

    def meaning(self, over_updates: bool) -> Json:
        meaning = self._top.meaning(over_updates=False) | {"by": self.by}
        window = self._window.meaning(over_updates=False)
        return meaning | {"the window": window["the window"], "event_time": [self.event_time]}

    def problems(self) -> list[str]:
        return list(dict.fromkeys([*self._window.problems(), *self._top.problems()]))

    def interval_problems(self) -> list[str]:
        return []

    def interval_misfit(self, interval: Interval) -> str | None:
        return self._window.interval_misfit(interval)

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        rows, order = inputs[0], self._top.order
        need_keys(rows, self.by, "by", context)
        need_columns(rows, [term.name for term in order[:-1]], "order_by", context)
        refuse_own(rows, context)
        refuse_own(rows, context, [START, END, RANK])
        marks, keys = context.watermarks, [START, *self.by]
        limits = WindowLimits.at(marks.before_micros, marks.now_micros)
        timed, late = self._in_windows(rows, limits, context)
        arrived = context.persist(side_rows(timed, rows, keys, [END]))
        touched = context.persist(arrived.select(*map(quoted, keys)).distinct())
        state = self._state(limits, context)
        affected = met(state, arrived, touched, keys, False, context)
        placed = context.persist(placed_rows(affected, keys, order, rank=self.rank))
        due = state.rows(closing_sql(END, limits)) if limits.closes_any(self._size, self._size) else None
        self._put(placed, arrived, limits, state)
        closed = placed.where(f"_n > 0 AND {ended_sql(END, limits.closed)}").select(*map(quoted, arrived.columns))
        if due is not None:
            named = touched.select(*(F.col(quoted(name)).alias(f"_aside{n}") for n, name in enumerate(keys)))
            same = " AND ".join(f"{quoted(name)} <=> _aside{n}" for n, name in enumerate(keys))
            others = recalled(state, due, arrived, context).join(named, F.expr(same), "left_anti")
            closed = closed.unionByName(others)
        columns = [START, END, *rows.columns]
        return {"": first_rows(closed, keys, order, self.n, columns, self.rank), LATE: late}

    @property
    def _size(self) -> int:
        return micros_in(self.tumbling)

    def _state(self, limits: WindowLimits, context: OperatorContext) -> KeyedState:
        over = None if limits.late is None else Over(END, limits.late)
        return context.state([START, *self.by, "_row"], over=over, grouped_by=[START, *self.by])

    def _in_windows(
        self, rows: DataFrame, limits: WindowLimits, context: OperatorContext
    ) -> tuple[DataFrame, DataFrame]:
        """Return the rows that their window still takes, with its start and end; and, unchanged, those that are late
        or have no time. These are counted."""
        from pyspark.sql import functions as F

        time = need_time(self.event_time, 0, context)
        timed = rows.withColumn("_at", time_micros(rows, time, f"operator {context.uid!r}"))
        start = f"_at - pmod(_at, {self._size}L)"
        timed = timed.withColumns(
            {START: F.expr(f"timestamp_micros({start})"), END: F.expr(f"timestamp_micros({start} + {self._size}L)")}
        )
        timed = context.persist(timed)
        on_time = f"_at IS NOT NULL AND {open_sql(END, limits.late)}"
        counts = timed.selectExpr(f"count_if(_at IS NOT NULL AND NOT ({on_time}))", "count_if(_at IS NULL)").first()
        assert counts is not None
        context.count(dict(zip(("late", "without_time"), counts, strict=True)))
        late = timed.where(f"NOT ({on_time})").select(*map(quoted, rows.columns))
        return timed.where(on_time).drop("_at"), late

    def _put(self, placed: DataFrame, like: DataFrame, limits: WindowLimits, state: KeyedState) -> None:
        """Store what has come among the first of windows that are not complete; forget what is no longer among them."""
        stays = f"(_n > 0 AND _now < {self.n})"
        changed = placed.where(open_sql(END, limits.closed)).where(f"IF({stays}, _touched, _was > 0)")
        keys = [START, *self.by, "_row"]
        values = [name for name in like.columns if name not in (*keys, END)]
        names = map(quoted, [*keys, END, *values])  # the end before all else: files are skipped by it
        state.put(changed.selectExpr(*names, f"NOT {stays} AS {DELETED}"), deletes=True)
