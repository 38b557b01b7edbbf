"""Windows at fixed positions: tumbling ones, and hopping ones, which overlap.

Rows are first put into panes, the longest stretches of time that no window's border divides. So a row is aggregated
once, in however many windows it lies, and how late it is can be told by its pane. Windows begin at multiples of their
step since 1970 in UTC: an hour is an hour, whatever clocks are put forward or back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.operators.functions import NOT_MERGED, RowPartials, merges_of, pre_aggregate, to_partials, why_not_merged
from tidegate.operators.kernels.windows import WEIGHT, MergeWindows
from tidegate.operators.window.closing import END, START, Windowing
from tidegate.records.names import quoted
from tidegate.spark.frame_facts import empty_like
from tidegate.state.kernel_driver import StateLookup
from tidegate.state.lateness import (
    ExpiredRows,
    closing_sql,
    closing_starts,
    ended,
    ended_micros_sql,
    ended_sql,
    open_sql,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FixedWindows"]


@dataclass(frozen=True)
class WindowEnds:
    """The first and the last end of the windows of a checkpoint's rows; None: there are no rows with a time."""

    least: int | None
    last: int | None

    def reach(self, limit: int | None) -> bool:
        """Return whether one of the windows may have ended by the limit."""
        return ended(self.least, limit)


@dataclass(frozen=True)
class FixedWindows:
    """One attempt at windows of `size` microseconds, one every `slide`."""

    windowing: Windowing
    size: int
    slide: int

    @property
    def pane(self) -> int:
        """The length of a pane."""
        return math.gcd(self.size, self.slide)

    def run(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        """Return the operator's streams."""
        w = self.windowing
        lifted = self._lift_rows(rows)
        why = NOT_MERGED if lifted is None else why_not_merged(lifted)
        if lifted is not None and why is None:
            return self._run_kernel(lifted)
        w.context.computing.note_spark(why)
        if w.side:
            rows = w.context.persist(rows)
        results = {name: w.results(frame) for name, frame in self._run_through_spark(rows).items()}
        return {**results, "late": self._late_rows(rows)} if w.side else results

    # -- sums and extremes: in one go --------------------------------------------------------------

    def _run_kernel(self, lifted: RowPartials) -> dict[str, DataFrame]:
        """Return the streams, of partial results per window."""
        from pyspark.sql.types import StructField

        w = self.windowing
        of = {field.name: field for field in lifted.rows.schema.fields}
        end = StructField(END, of[START].dataType)
        keys, partials = [of[name] for name in w.keys], [of[name] for name in lifted.ops]
        due = None if w.on_update else closing_starts(w.limits, self.size)
        held = StateLookup(
            w.state,
            [*keys, end, *partials],
            START,
            None if due is None else due.upto + 1,
            None if due is None or due.after is None else due.after + 1,
            drop_when_compacting=None if w.limits.late is None else ExpiredRows(END, w.limits.late),
        )
        late = w.late_columns or None
        work = MergeWindows(w.key_columns, START, END, lifted.ops, self.size, w.limits, w.on_update, lifted.fixed, late)
        arriving = [field for field in of.values() if field.name not in lifted.fixed]
        return w.run_kernel(lifted.rows, arriving, w.keys, held, work, [of[START], end, *keys[1:], *partials])

    def _lift_rows(self, rows: DataFrame) -> RowPartials | None:
        """Return partial results per window, in possibly several rows for one window. Null: rows without a time. None:
        only Spark can merge them.

        Windows that overlap are made of panes: a row would be in many of them. Late rows that somebody takes come as
        they are.
        """
        w, whole = self.windowing, self.pane == self.size
        aside = [f"{quoted(name)} AS {alias}" for name, alias in w.late_columns.items()]
        micros = w.micros_sql(rows)
        if whole:
            start = f"timestamp_micros({micros} - pmod({micros}, {self.size}L)) AS {START}"
            lifted = to_partials(w.parsed, rows, w.key_columns, w.types.partials, [start, *aside])
            # Of keys in windows the state does not tell how many come: it only has the windows that are open.
            is_few = not w.key_columns and w.state.has_few_keys_per_batch and not aside
            return pre_aggregate(lifted, w.keys, WEIGHT) if lifted is not None and is_few else lifted
        if (ops := merges_of(w.parsed)) is None:
            return None
        if not aside:
            return RowPartials(self._repeat_per_window(self._partials_per_pane(rows)), ops)
        pane = f"{micros} - pmod({micros}, {self.pane}L) AS _pane"
        lifted = to_partials(w.parsed, rows, w.key_columns, w.types.partials, [pane, f"1L AS {WEIGHT}", *aside])
        return None if lifted is None else RowPartials(self._repeat_per_window(lifted.rows), ops)

    # -- all else: step by step ----------------------------------------------------------------------

    def _run_through_spark(self, rows: DataFrame) -> dict[str, DataFrame]:
        panes = self.windowing.context.persist(self._partials_per_pane(rows))
        ends = self._count_late(panes)
        fresh = self._partials_per_window(panes)
        late = self.windowing.limits.late
        if ends.reach(late):
            fresh = fresh.where(open_sql(END, late))
        return self._on_update(fresh, ends) if self.windowing.on_update else self._on_close(fresh, ends)

    # -- what is new ---------------------------------------------------------------------------------

    def _partials_per_pane(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        w = self.windowing
        micros = w.micros(rows)
        pane = (micros - F.pmod(micros, F.lit(self.pane))).alias("_pane")
        return rows.groupBy(pane, *map(quoted, w.key_columns)).agg(*w.partials(rows, F.count("*").alias("_rows")))

    def _last_end(self, time: str) -> str:
        """Return SQL for the end of the last window that contains a time."""
        return f"({time} - pmod({time}, {self.slide}L) + {self.size}L)"

    def _late_rows(self, rows: DataFrame) -> DataFrame:
        """Return the rows that no window takes any more, and those that have no time."""
        is_late = ended_micros_sql(self._last_end("_time"), self.windowing.limits.late)
        timed = rows.withColumn("_time", self.windowing.micros(rows))
        return timed.where(f"_time IS NULL OR {is_late}").drop("_time")

    def _count_late(self, panes: DataFrame) -> WindowEnds:
        """Count late rows, and find out when windows end, so that empty parts need not be computed.

        What changes from checkpoint to checkpoint is asked for only if need be: a query with other numbers in it is
        other code to Spark, and is compiled anew.
        """
        limit, last_end = self.windowing.limits.late, self._last_end("_pane")
        summary = panes.selectExpr(
            f"max({last_end})", f"min(_pane) + {self.pane}L", "sum(_rows) FILTER (WHERE _pane IS NULL)"
        ).first()
        assert summary is not None
        ends, late = WindowEnds(summary[1], summary[0]), None
        if ends.reach(limit):
            counted = panes.where(ended_micros_sql(last_end, limit)).selectExpr("sum(_rows)").first()
            late = counted[0] if counted else None
        self.windowing.count_dropped(late=late, without_time=summary[2])
        return ends

    def _partials_per_window(self, panes: DataFrame) -> DataFrame:
        """Return partial results per window."""
        from pyspark.sql import functions as F

        timed = panes.where("_pane IS NOT NULL")
        if self.pane == self.size:
            windows = timed.withColumns({START: F.timestamp_micros("_pane")})
        else:
            windows = self._repeat_per_window(timed)
        windows = windows.withColumn(END, F.expr(f"timestamp_micros(unix_micros({START}) + {self.size}L)"))
        windows = windows.drop("_pane", "_rows")
        return windows if self.pane == self.size else self.windowing.merge_by_keys(windows, [*self.windowing.keys, END])

    def _repeat_per_window(self, panes: DataFrame) -> DataFrame:
        """Repeat each pane for each window that it is part of. `_rows` is counted in the last of these windows only."""
        steps = f"sequence(0L, {(self.size - 1) // self.slide}L)"
        starts = f"transform({steps}, n -> _pane - pmod(_pane, {self.slide}L) - n * {self.slide}L)"
        other_columns = [quoted(name) for name in panes.columns if name not in ("_pane", "_rows")]
        windows = panes.selectExpr("*", f"posexplode({starts}) AS (_place, _start)")
        windows = windows.where(f"_pane IS NULL OR _start + {self.size}L > _pane")
        return windows.selectExpr(
            f"timestamp_micros(_start) AS {START}", "_pane", "IF(_place = 0, _rows, 0L) AS _rows", *other_columns
        )

    # -- what is given -------------------------------------------------------------------------------

    def _store_open(self, fresh: DataFrame, ends: WindowEnds) -> DataFrame | None:
        """Store the windows that will take more rows. Return None if no such window has changed."""
        w = self.windowing
        over = w.limits.closed_for_rows
        if ends.last is None or ended(ends.last, over):
            return None
        staying = fresh.where(open_sql(END, over)) if ends.reach(over) else fresh
        return w.state.write_changes(w.merge_windows(w.open_windows_under(staying), staying))

    def _on_close(self, fresh: DataFrame, ends: WindowEnds) -> dict[str, DataFrame]:
        """Return newly closed windows, and closed ones again that late rows have changed within the allowed
        lateness."""
        w = self.windowing
        due = w.open_windows(fresh, common=closing_sql(END, w.limits))
        self._store_open(fresh, ends)
        closing = fresh.where(ended_sql(END, w.limits.closed))
        if not w.allowed and not w.limits.closes_any(self.size, self.slide):  # mostly none closes
            return {"": empty_like(fresh)}
        if due is None:
            return {"": closing, "-": closing.where("false")} if w.allowed else {"": closing}
        if not w.allowed:
            return {"": w.merge_windows(due, closing)}
        given_before = w.open_windows_under(closing.where(ended_sql(END, w.limits.closed_before)))
        assert given_before is not None
        return {"": w.merge_windows(due.unionByName(given_before), closing), "-": given_before}

    def _on_update(self, fresh: DataFrame, ends: WindowEnds) -> dict[str, DataFrame]:
        """Return every window that has changed."""
        w = self.windowing
        before = w.open_windows_under(fresh)
        ending = fresh.where(ended_sql(END, w.limits.closed_for_rows))
        closed = w.merge_windows(w.open_windows_under(ending), ending)
        staying = self._store_open(fresh, ends)
        changed = closed if staying is None else staying.unionByName(closed)
        return {"": changed, "-": fresh.where("false") if before is None else before}
