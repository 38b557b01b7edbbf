"""Windows that lie still: tumbling ones, and hopping ones, which overlap.

Rows are first put into panes, the longest stretches of time that no window's border divides. So a row is aggregated
once, in however many windows it lies, and how late it is can be told by its pane. Windows begin at multiples of their
step since 1970 in UTC: an hour is an hour, whatever clocks are put forward or back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.operators.windowing import END, START, Windowing, ends_after, ends_by
from tidegate.sources.ddl import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Slots"]


@dataclass(frozen=True)
class Slots:
    """One attempt at windows of `size` microseconds, one each `slide`."""

    windowing: Windowing
    size: int
    slide: int

    @property
    def pane(self) -> int:
        """How long panes are."""
        return math.gcd(self.size, self.slide)

    def run(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        """The operator's streams."""
        w = self.windowing
        if w.side:
            rows = w.context.keep(rows)
        late = self._late(rows)
        panes = w.context.keep(self._panes(rows))
        last = self._look(panes)
        fresh = self._windows(panes).where(ends_after(w.over))
        streams = self._on_update(fresh, last) if w.on_update else self._on_close(fresh, last)
        given = {name: w.results(frame) for name, frame in streams.items()}
        return {**given, "late": late} if w.side else given

    # -- what is new ---------------------------------------------------------------------------------

    def _panes(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        w = self.windowing
        micros = w.micros(rows)
        pane = (micros - F.pmod(micros, F.lit(self.pane))).alias("_pane")
        return rows.groupBy(pane, *map(quote, w.by)).agg(*w.partials(rows, F.count("*").alias("_rows")))

    def _last_end(self, time: str) -> str:
        """SQL for the end of the last window in which a time lies."""
        return f"({time} - pmod({time}, {self.slide}L) + {self.size}L)"

    def _late(self, rows: DataFrame) -> DataFrame:
        """The rows that no window takes any more, and those that have no time."""
        over = self.windowing.over
        timed = rows.withColumn("_time", self.windowing.micros(rows))
        is_late = "false" if over is None else f"{self._last_end('_time')} <= {over}"
        return timed.where(f"_time IS NULL OR {is_late}").drop("_time")

    def _look(self, panes: DataFrame) -> int | None:
        """Count what is late; and find the last window's end, so that what is not there need not be computed."""
        over = self.windowing.over
        last_end = self._last_end("_pane")
        is_late = "false" if over is None else f"{last_end} <= {over}"
        found = panes.selectExpr(
            f"max({last_end})",
            f"sum(_rows) FILTER (WHERE {is_late})",
            "sum(_rows) FILTER (WHERE _pane IS NULL)",
        ).first()
        assert found is not None
        self.windowing.count(late=found[1], without_time=found[2])
        last: int | None = found[0]
        return last

    def _windows(self, panes: DataFrame) -> DataFrame:
        """Partial results per window."""
        from pyspark.sql import functions as F

        w = self.windowing
        timed = panes.where("_pane IS NOT NULL")
        if self.pane == self.size:
            start = F.col("_pane")
        else:
            steps = f"sequence(0L, {(self.size - 1) // self.slide}L)"
            start = F.explode(
                F.expr(f"transform({steps}, n -> _pane - pmod(_pane, {self.slide}L) - n * {self.slide}L)")
            )
        timed = timed.withColumn("_start", start).where(f"_start + {self.size}L > _pane")
        ends = {START: F.expr("timestamp_micros(_start)"), END: F.expr(f"timestamp_micros(_start + {self.size}L)")}
        windows = timed.withColumns(ends).drop("_pane", "_start", "_rows")
        return windows if self.pane == self.size else w.grouped(windows, [*w.keys, END])

    # -- what is given -------------------------------------------------------------------------------

    def _keep(self, fresh: DataFrame, last: int | None) -> DataFrame | None:
        """Put the windows that will take more rows into the state. None: there are none that have changed."""
        w = self.windowing
        if last is None or (w.over_next is not None and last <= w.over_next):
            return None
        staying = fresh.where(ends_after(w.over_next))
        return w.state.put(w.merged(w.held_of(staying), staying))

    def _on_close(self, fresh: DataFrame, last: int | None) -> dict[str, DataFrame]:
        """The windows that are complete now; again those that were before, if late rows have changed them."""
        w = self.windowing
        held = w.held(fresh)
        self._keep(fresh, last)
        closing = fresh.where(ends_by(w.now))
        if held is None:
            return {"": closing, "-": closing.where("false")} if w.allowed else {"": closing}
        complete = held.where(f"{ends_after(w.before)} AND {ends_by(w.now)}")
        if not w.allowed:
            return {"": w.merged(complete, closing)}
        given_before = w.held_of(closing.where(ends_by(w.before)))
        assert given_before is not None
        return {"": w.merged(complete.unionByName(given_before), closing), "-": given_before}

    def _on_update(self, fresh: DataFrame, last: int | None) -> dict[str, DataFrame]:
        """Every window that has changed."""
        w = self.windowing
        before = w.held_of(fresh)
        ending = fresh.where(ends_by(w.over_next))
        ended = w.merged(w.held_of(ending), ending)
        kept = self._keep(fresh, last)
        changed = ended if kept is None else kept.unionByName(ended)
        return {"": changed, "-": fresh.where("false") if before is None else before}
