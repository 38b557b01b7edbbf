"""Session windows: a session lasts as long as no break between its rows is longer than the gap.

A single row is a session from its time to its time plus the gap. Sessions of a key that overlap or touch are merged, as
in Spark's session_window and in Flink: two rows with exactly the gap between them are in one session. So a row at the
very end of a session belongs to it, and the session is complete when the watermark has passed its end. (Spark and Flink
close it when the watermark reaches the end, and then such a row may or may not be in it.)

New rows are merged with the stored sessions of their keys. A row may merge two stored sessions into one. A session's
key in the state contains its start: if this moves, the old row is deleted.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from tidegate.operators.functions import NOT_MERGED, RowPartials, to_partials, why_not_merged
from tidegate.operators.kernels.sessions import MergeSessions
from tidegate.operators.window.closing import END, START, Windowing
from tidegate.records.names import quoted
from tidegate.spark.frame_facts import is_known_empty
from tidegate.state.kernel_driver import StateLookup
from tidegate.state.lateness import closing_sql, ended_micros_sql, ended_sql, open_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["SessionWindows"]


@dataclass(frozen=True)
class SessionWindows:
    """One attempt at sessions with a gap in microseconds."""

    windowing: Windowing
    gap: int

    def run(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        """Return the operator's streams."""
        windowing = self.windowing
        partials, reason = None, "it has no key"
        if windowing.key_columns:
            columns = [f"{windowing.micros_sql(rows)} AS _at"]
            for name, alias in windowing.late_columns.items():
                columns.append(f"{quoted(name)} AS {alias}")
            partials = to_partials(windowing.parsed, rows, windowing.key_columns, windowing.types.partials, columns)
            if partials is None:
                reason = NOT_MERGED
            else:
                not_merged = why_not_merged(partials)
                if not_merged is None:
                    return self._run_kernel(partials)
                reason = not_merged
        windowing.context.computing.note_spark(reason)
        if windowing.side:
            rows = windowing.context.persist(rows)
        streams = {}
        for name, sessions in self._run_through_spark(rows).items():
            streams[name] = windowing.results(sessions)
        if windowing.side:
            streams["late"] = self._judge_rows(rows).where("_fate > 0").drop("_time", "_fate")
        return streams

    def _run_kernel(self, batch: RowPartials) -> dict[str, DataFrame]:
        """Return the streams, computed from rows as partial results."""
        from pyspark.sql import types as T

        windowing, late_columns, limits = self.windowing, self.windowing.late_columns, self.windowing.limits
        fields = {field.name: field for field in batch.rows.schema.fields}
        keys, partials = [fields[name] for name in windowing.key_columns], [fields[name] for name in batch.ops]
        start, end = (T.StructField(name, T.TimestampType()) for name in (START, END))
        lookup = StateLookup(
            windowing.state,
            [start, *keys, end, *partials],
            END,
            expired_since=None if limits.closed_before is None else limits.closed_before + 1,
            time_can_advance=True,
        )
        may_close = not is_known_empty(windowing.rows) or limits.closed != limits.closed_before
        if may_close and not windowing.on_update and limits.closed is not None:
            lookup = replace(lookup, expire_before=limits.closed + 1)
        kernel = MergeSessions(
            windowing.key_columns,
            START,
            END,
            batch.ops,
            self.gap,
            limits,
            windowing.on_update,
            late_columns or None,
        )
        late_fields = [fields[alias] for alias in late_columns.values()]
        arriving = [*keys, T.StructField("_at", T.LongType()), *partials, *late_fields]
        session_fields = [start, end, *keys, *partials]
        return windowing.run_kernel(batch.rows, arriving, windowing.key_columns, lookup, kernel, session_fields)

    def _run_through_spark(self, rows: DataFrame) -> dict[str, DataFrame]:
        windowing = self.windowing
        pieces = windowing.context.persist(self._make_sessions(rows))
        any_new = self._count_late(pieces)
        new = pieces.where("_fate = 0").drop("_fate", "_island", "_rows")
        stored = windowing.open_windows(new, open_sql(END, windowing.limits.late))
        if any_new:
            return self._merge_sessions(new, stored)
        return self._close_sessions(new, stored)

    # -- new sessions --------------------------------------------------------------------------------

    def _judge_rows(self, rows: DataFrame) -> DataFrame:
        """Add the rows' time, and in `_fate` 0 for a row that is on time, 1 for a late one, 2 for one without a
        time."""
        from pyspark.sql import functions as F

        is_late = ended_micros_sql(f"_time + {self.gap}L", self.windowing.limits.late)
        timed = rows.withColumn("_time", self.windowing.micros(rows))
        return timed.withColumn("_fate", F.expr(f"CASE WHEN _time IS NULL THEN 2 WHEN {is_late} THEN 1 ELSE 0 END"))

    def _make_sessions(self, rows: DataFrame) -> DataFrame:
        """Return the sessions of this checkpoint's rows alone."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        windowing = self.windowing
        by_time = Window.partitionBy("_fate", *map(quoted, windowing.key_columns)).orderBy("_time")
        begins = F.coalesce(F.col("_time") - F.lag("_time").over(by_time) > self.gap, F.lit(True))
        judged = self._judge_rows(rows).withColumn("_begins", begins.cast("int"))
        judged = judged.withColumn("_island", F.sum("_begins").over(by_time))
        ends = [
            F.expr("timestamp_micros(min(_time))").alias(START),
            F.expr(f"timestamp_micros(max(_time) + {self.gap}L)").alias(END),
            F.count("*").alias("_rows"),
        ]
        grouped = judged.groupBy("_fate", "_island", *map(quoted, windowing.key_columns))
        return grouped.agg(*windowing.partials(rows, *ends))

    def _count_late(self, pieces: DataFrame) -> bool:
        """Count late rows, and return whether any rows are on time."""
        counts = pieces.selectExpr(*(f"sum(_rows) FILTER (WHERE _fate = {fate})" for fate in range(3))).first()
        assert counts is not None
        on_time, late, without_time = counts
        self.windowing.count_dropped(late=late, without_time=without_time)
        return bool(on_time)

    # -- the output ----------------------------------------------------------------------------------

    def _merge_sessions(self, new: DataFrame, stored: DataFrame | None) -> dict[str, DataFrame]:
        """Store and return the sessions that rows have been added to."""
        from pyspark.sql import functions as F

        windowing, limits = self.windowing, self.windowing.limits
        changed = windowing.context.persist(self._merge_candidates(new, stored))
        old = changed.where("NOT _new")
        ends = [F.min(START).alias(START), F.max(END).alias(END)]
        pieces = changed.drop("_new", "_begin", "_finish")
        merged = windowing.merge_partial_rows(pieces, ["_island", *windowing.key_columns], *ends).drop("_island")
        columns = [quoted(name) for name in new.columns]
        moved = old.where(f"{START} <> _begin").select(*columns, F.lit(True).alias("_deleted"))
        staying = merged.select(*columns, F.lit(False).alias("_deleted")).unionByName(moved)
        windowing.state.write_changes(staying.where(open_sql(END, limits.closed_for_rows)), deletes=True)
        if windowing.on_update:
            return {"": merged, "-": old.select(*columns)}
        complete = merged.where(ended_sql(END, limits.closed)).select(*columns)
        if stored is not None:
            due = stored.where(closing_sql(END, limits))
            unchanged = due.join(old, same_keys(due, old, windowing.keys), "left_anti")
            complete = complete.unionByName(unchanged.select(*columns))
        emitted_before = old.where(ended_sql(END, limits.closed_before)).select(*columns)
        if windowing.allowed:
            return {"": complete, "-": emitted_before}
        return {"": complete}

    def _merge_candidates(self, new: DataFrame, stored: DataFrame | None) -> DataFrame:
        """Return new sessions, and all stored ones that merge with them. `_island` numbers the merged sessions."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        windowing = self.windowing
        pieces = new.withColumn("_new", F.lit(True))
        if stored is not None:
            if windowing.key_columns:
                stored = stored.join(new, same_keys(stored, new, windowing.key_columns), "left_semi")
            pieces = pieces.unionByName(stored.withColumn("_new", F.lit(False)))
        key_columns = list(map(quoted, windowing.key_columns))
        in_order = Window.partitionBy(*key_columns).orderBy(START, END)
        last_end = F.max(END).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
        begins = F.coalesce(F.col(START) > last_end, F.lit(True)).cast("int")
        pieces = pieces.withColumn("_begins", begins)
        pieces = pieces.withColumn("_island", F.sum("_begins").over(in_order.rowsBetween(Window.unboundedPreceding, 0)))
        island = Window.partitionBy(*key_columns, "_island")
        columns = {
            "_any_new": F.bool_or("_new").over(island),
            "_begin": F.min(START).over(island),
            "_finish": F.max(END).over(island),
        }
        return pieces.withColumns(columns).where("_any_new").drop("_any_new", "_begins")

    def _close_sessions(self, new: DataFrame, stored: DataFrame | None) -> dict[str, DataFrame]:
        """Return the sessions that the watermark closes in a checkpoint without new rows."""
        windowing = self.windowing
        empty = new.where("false")
        due = empty
        if stored is not None and not windowing.on_update:
            due = stored.where(closing_sql(END, windowing.limits))
        if windowing.on_update or windowing.allowed:
            return {"": due, "-": empty}
        return {"": due}


def same_keys(left: DataFrame, right: DataFrame, keys: Sequence[str]) -> Column:
    """Return the condition that all keys are equal, where null equals null."""
    return reduce(operator.and_, [left[quoted(key)].eqNullSafe(right[quoted(key)]) for key in keys])
