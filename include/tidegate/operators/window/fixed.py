"""Windows at fixed positions: tumbling windows, and hopping windows, which overlap.

Rows are first assigned to panes, the longest ranges of time without a window's border. So each row is aggregated once,
whatever the number of its windows, and its pane decides whether it is late. Windows start at multiples of their step
since 1970 in UTC, without daylight saving time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """The first and the last end of the windows of a checkpoint's rows, or None if no row has a time."""

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
        windowing = self.windowing
        partials = self._to_partials(rows)
        reason = NOT_MERGED if partials is None else why_not_merged(partials)
        if partials is not None and reason is None:
            return self._run_kernel(partials)
        windowing.context.computing.note_spark(reason)
        if windowing.side:
            rows = windowing.context.persist(rows)
        streams = {}
        for name, windows in self._run_through_spark(rows).items():
            streams[name] = windowing.results(windows)
        if windowing.side:
            streams["late"] = self._late_rows(rows)
        return streams

    # -- sums and extremes: by the kernel ------------------------------------------------------------

    def _run_kernel(self, batch: RowPartials) -> dict[str, DataFrame]:
        """Return the streams, computed from partial results per window."""
        from pyspark.sql.types import StructField

        windowing, limits = self.windowing, self.windowing.limits
        fields = {field.name: field for field in batch.rows.schema.fields}
        end = StructField(END, fields[START].dataType)
        keys, partials = [fields[name] for name in windowing.keys], [fields[name] for name in batch.ops]
        lookup = StateLookup(
            windowing.state,
            [*keys, end, *partials],
            START,
            drop_when_compacting=None if limits.late is None else ExpiredRows(END, limits.late),
        )
        closing = None if windowing.on_update else closing_starts(limits, self.size)
        if closing is not None:
            expired_since = None if closing.after is None else closing.after + 1
            lookup = replace(lookup, expire_before=closing.upto + 1, expired_since=expired_since)
        kernel = MergeWindows(
            windowing.key_columns,
            START,
            END,
            batch.ops,
            self.size,
            limits,
            windowing.on_update,
            batch.fixed,
            windowing.late_columns or None,
        )
        arriving = [field for field in fields.values() if field.name not in batch.fixed]
        window_fields = [fields[START], end, *keys[1:], *partials]
        return windowing.run_kernel(batch.rows, arriving, windowing.keys, lookup, kernel, window_fields)

    def _to_partials(self, rows: DataFrame) -> RowPartials | None:
        """Return partial results per window, possibly in several rows per window, with a null start for rows without a
        time, or None if only Spark can merge them.

        Rows are aggregated to panes before they are repeated for overlapping windows, unless late rows are needed.
        """
        windowing = self.windowing
        late_columns = []
        for name, alias in windowing.late_columns.items():
            late_columns.append(f"{quoted(name)} AS {alias}")
        micros = windowing.micros_sql(rows)
        if self.pane == self.size:
            start = f"timestamp_micros({micros} - pmod({micros}, {self.size}L)) AS {START}"
            partials = to_partials(
                windowing.parsed, rows, windowing.key_columns, windowing.types.partials, [start, *late_columns]
            )
            if partials is None or windowing.key_columns or late_columns:
                return partials  # with keys, the state does not show their number: it only has open windows
            if not windowing.state.has_few_keys_per_batch:
                return partials
            return pre_aggregate(partials, windowing.keys, WEIGHT)
        ops = merges_of(windowing.parsed)
        if ops is None:
            return None
        if not late_columns:
            return RowPartials(self._repeat_per_window(self._partials_per_pane(rows)), ops)
        pane = f"{micros} - pmod({micros}, {self.pane}L) AS _pane"
        columns = [pane, f"1L AS {WEIGHT}", *late_columns]
        partials = to_partials(windowing.parsed, rows, windowing.key_columns, windowing.types.partials, columns)
        if partials is None:
            return None
        return RowPartials(self._repeat_per_window(partials.rows), ops)

    # -- other functions: in Spark -------------------------------------------------------------------

    def _run_through_spark(self, rows: DataFrame) -> dict[str, DataFrame]:
        panes = self.windowing.context.persist(self._partials_per_pane(rows))
        ends = self._count_late(panes)
        new = self._partials_per_window(panes)
        late = self.windowing.limits.late
        if ends.reach(late):
            new = new.where(open_sql(END, late))
        if self.windowing.on_update:
            return self._on_update(new, ends)
        return self._on_close(new, ends)

    # -- new windows ---------------------------------------------------------------------------------

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
        """Return the rows that are late or have no time."""
        is_late = ended_micros_sql(self._last_end("_time"), self.windowing.limits.late)
        timed = rows.withColumn("_time", self.windowing.micros(rows))
        return timed.where(f"_time IS NULL OR {is_late}").drop("_time")

    def _count_late(self, panes: DataFrame) -> WindowEnds:
        """Count late rows, and find out when windows end, so that empty parts need not be computed.

        The limit, which changes in each checkpoint, is only used in a query if it matters: Spark compiles a query with
        other literals again.
        """
        limit, last_end = self.windowing.limits.late, self._last_end("_pane")
        summary = panes.selectExpr(
            f"max({last_end})", f"min(_pane) + {self.pane}L", "sum(_rows) FILTER (WHERE _pane IS NULL)"
        ).first()
        assert summary is not None
        last, least, without_time = summary
        ends, late = WindowEnds(least, last), None
        if ends.reach(limit):
            late_rows = panes.where(ended_micros_sql(last_end, limit)).selectExpr("sum(_rows)").first()
            late = late_rows[0] if late_rows else None
        self.windowing.count_dropped(late=late, without_time=without_time)
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
        if self.pane == self.size:
            return windows
        return self.windowing.merge_partial_rows(windows, [*self.windowing.keys, END])

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

    # -- the output ----------------------------------------------------------------------------------

    def _store_open(self, new: DataFrame, ends: WindowEnds) -> DataFrame | None:
        """Store the changed windows that can take more rows. Return them, or None if there are none."""
        windowing, limit = self.windowing, self.windowing.limits.closed_for_rows
        if ends.last is None or ended(ends.last, limit):
            return None
        staying = new.where(open_sql(END, limit)) if ends.reach(limit) else new
        return windowing.state.write_changes(windowing.merge_windows(windowing.open_windows_under(staying), staying))

    def _on_close(self, new: DataFrame, ends: WindowEnds) -> dict[str, DataFrame]:
        """Return newly closed windows, and closed windows that rows have changed within the allowed lateness."""
        windowing, limits = self.windowing, self.windowing.limits
        due = windowing.open_windows(new, common=closing_sql(END, limits))
        self._store_open(new, ends)
        closing = new.where(ended_sql(END, limits.closed))
        if not windowing.allowed and not limits.closes_any(self.size, self.slide):  # true for most checkpoints
            return {"": empty_like(new)}
        if due is None:
            if windowing.allowed:
                return {"": closing, "-": closing.where("false")}
            return {"": closing}
        if not windowing.allowed:
            return {"": windowing.merge_windows(due, closing)}
        emitted_before = windowing.open_windows_under(closing.where(ended_sql(END, limits.closed_before)))
        assert emitted_before is not None
        return {"": windowing.merge_windows(due.unionByName(emitted_before), closing), "-": emitted_before}

    def _on_update(self, new: DataFrame, ends: WindowEnds) -> dict[str, DataFrame]:
        """Return every window that has changed."""
        windowing = self.windowing
        before = windowing.open_windows_under(new)
        ending = new.where(ended_sql(END, windowing.limits.closed_for_rows))
        closed = windowing.merge_windows(windowing.open_windows_under(ending), ending)
        staying = self._store_open(new, ends)
        changed = closed if staying is None else staying.unionByName(closed)
        return {"": changed, "-": new.where("false") if before is None else before}
