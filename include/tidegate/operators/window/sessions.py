"""Windows that follow the rows: a session continues as long as no break is longer than the gap.

A row alone is a session from its time to its time and the gap. Sessions of one key that overlap or touch are one, as in
Spark's session_window and in Flink: two rows exactly the gap apart are together. So a row of the very moment at which a
session ends belongs to it, and it is complete when the watermark is behind that moment. (Spark and Flink close it at
that moment, and whether such a row is in it depends there on when it comes.)

What is new is first made sessions by itself, then put together with the sessions that are held of the same keys; one
row may make one of two that were held. A session's identity is its start: where it moves, the old one is deleted.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        w = self.windowing
        aside = (f"{quoted(name)} AS {alias}" for name, alias in w.late_columns.items())
        before = [f"{w.micros_sql(rows)} AS _at", *aside]
        lifted = to_partials(w.parsed, rows, w.key_columns, w.types.partials, before) if w.key_columns else None
        why = NOT_MERGED if lifted is None else why_not_merged(lifted)
        if lifted is not None and why is None:
            return self._run_kernel(lifted)
        w.context.computing.note_spark(why if w.key_columns else "it has no key")
        if w.side:
            rows = w.context.persist(rows)
        lost = self._judge_rows(rows).where("_fate > 0").drop("_time", "_fate") if w.side else None
        results = {name: w.results(frame) for name, frame in self._run_through_spark(rows).items()}
        return results if lost is None else {**results, "late": lost}

    def _run_kernel(self, lifted: RowPartials) -> dict[str, DataFrame]:
        """Return the streams, of rows as partial results."""
        from pyspark.sql import types as T

        w, late, limits = self.windowing, self.windowing.late_columns, self.windowing.limits
        of = {field.name: field for field in lifted.rows.schema.fields}
        keys, partials = [of[name] for name in w.key_columns], [of[name] for name in lifted.ops]
        start, end = (T.StructField(name, T.TimestampType()) for name in (START, END))
        stands = w.on_update or (is_known_empty(w.rows) and limits.closed == limits.closed_before)
        held = StateLookup(
            w.state,
            [start, *keys, end, *partials],
            END,
            None if stands or limits.closed is None else limits.closed + 1,
            None if limits.closed_before is None else limits.closed_before + 1,
            time_can_advance=True,
        )
        work = MergeSessions(w.key_columns, START, END, lifted.ops, self.gap, limits, w.on_update, late or None)
        arriving = [*keys, T.StructField("_at", T.LongType()), *partials, *(of[alias] for alias in late.values())]
        return w.run_kernel(lifted.rows, arriving, w.key_columns, held, work, [start, end, *keys, *partials])

    def _run_through_spark(self, rows: DataFrame) -> dict[str, DataFrame]:
        w = self.windowing
        pieces = w.context.persist(self._make_sessions(rows))
        any_new = self._count_late(pieces)
        fresh = pieces.where("_fate = 0").drop("_fate", "_island", "_rows")
        stored = w.open_windows(fresh, open_sql(END, w.limits.late))
        return self._merge_sessions(fresh, stored) if any_new else self._close_sessions(fresh, stored)

    # -- what is new ---------------------------------------------------------------------------------

    def _judge_rows(self, rows: DataFrame) -> DataFrame:
        """Return the rows with their time and their fate: 0 is taken, 1 is late, 2 has no time."""
        from pyspark.sql import functions as F

        is_late = ended_micros_sql(f"_time + {self.gap}L", self.windowing.limits.late)
        timed = rows.withColumn("_time", self.windowing.micros(rows))
        return timed.withColumn("_fate", F.expr(f"CASE WHEN _time IS NULL THEN 2 WHEN {is_late} THEN 1 ELSE 0 END"))

    def _make_sessions(self, rows: DataFrame) -> DataFrame:
        """Return the sessions that this checkpoint's rows make by themselves."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        w = self.windowing
        by_time = Window.partitionBy("_fate", *map(quoted, w.key_columns)).orderBy("_time")
        begins = F.coalesce(F.col("_time") - F.lag("_time").over(by_time) > self.gap, F.lit(True))
        judged = self._judge_rows(rows).withColumn("_begins", begins.cast("int"))
        judged = judged.withColumn("_island", F.sum("_begins").over(by_time))
        ends = [
            F.expr("timestamp_micros(min(_time))").alias(START),
            F.expr(f"timestamp_micros(max(_time) + {self.gap}L)").alias(END),
            F.count("*").alias("_rows"),
        ]
        return judged.groupBy("_fate", "_island", *map(quoted, w.key_columns)).agg(*w.partials(rows, *ends))

    def _count_late(self, pieces: DataFrame) -> bool:
        """Count late rows; return whether there are any others."""
        counts = pieces.selectExpr(*(f"sum(_rows) FILTER (WHERE _fate = {fate})" for fate in range(3))).first()
        assert counts is not None
        self.windowing.count_dropped(late=counts[1], without_time=counts[2])
        return bool(counts[0])

    # -- what is given -------------------------------------------------------------------------------

    def _merge_sessions(self, fresh: DataFrame, stored: DataFrame | None) -> dict[str, DataFrame]:
        """Store and return the sessions that rows have been added to."""
        from pyspark.sql import functions as F

        w = self.windowing
        touched = w.context.persist(self._merge_candidates(fresh, stored))
        old = touched.where("NOT _new")
        ends = [F.min(START).alias(START), F.max(END).alias(END)]
        merged = w.merge_by_keys(touched.drop("_new", "_begin", "_finish"), ["_island", *w.key_columns], *ends).drop(
            "_island"
        )
        columns = [quoted(name) for name in fresh.columns]
        moved = old.where(f"{START} <> _begin").select(*columns, F.lit(True).alias("_deleted"))
        staying = merged.select(*columns, F.lit(False).alias("_deleted")).unionByName(moved)
        w.state.write_changes(staying.where(open_sql(END, w.limits.closed_for_rows)), deletes=True)
        if w.on_update:
            return {"": merged, "-": old.select(*columns)}
        complete = merged.where(ended_sql(END, w.limits.closed)).select(*columns)
        if stored is not None:
            due = stored.where(closing_sql(END, w.limits))
            untouched = due.join(old, same_keys(due, old, w.keys), "left_anti")
            complete = complete.unionByName(untouched.select(*columns))
        given_before = old.where(ended_sql(END, w.limits.closed_before)).select(*columns)
        return {"": complete, "-": given_before} if w.allowed else {"": complete}

    def _merge_candidates(self, fresh: DataFrame, stored: DataFrame | None) -> DataFrame:
        """Return new sessions and all stored ones that merge with them. `_island` numbers the merged sessions."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        w = self.windowing
        pieces = fresh.withColumn("_new", F.lit(True))
        if stored is not None:
            near = stored.join(fresh, same_keys(stored, fresh, w.key_columns), "left_semi") if w.key_columns else stored
            pieces = pieces.unionByName(near.withColumn("_new", F.lit(False)))
        key_columns = list(map(quoted, w.key_columns))
        in_order = Window.partitionBy(*key_columns).orderBy(START, END)
        reached = F.max(END).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
        begins = F.coalesce(F.col(START) > reached, F.lit(True)).cast("int")
        pieces = pieces.withColumn("_begins", begins)
        pieces = pieces.withColumn("_island", F.sum("_begins").over(in_order.rowsBetween(Window.unboundedPreceding, 0)))
        whole = Window.partitionBy(*key_columns, "_island")
        whole_of = {
            "_any_new": F.bool_or("_new").over(whole),
            "_begin": F.min(START).over(whole),
            "_finish": F.max(END).over(whole),
        }
        return pieces.withColumns(whole_of).where("_any_new").drop("_any_new", "_begins")

    def _close_sessions(self, fresh: DataFrame, stored: DataFrame | None) -> dict[str, DataFrame]:
        """Return the sessions that the watermark alone closes, in a checkpoint without new rows."""
        w = self.windowing
        none = fresh.where("false")
        if w.on_update or stored is None:
            return {"": none, "-": none} if w.on_update or w.allowed else {"": none}
        due = stored.where(closing_sql(END, w.limits))
        return {"": due, "-": none} if w.allowed else {"": due}


def same_keys(left: DataFrame, right: DataFrame, keys: Sequence[str]) -> Column:
    """Return the condition that all keys are equal; null equals null."""
    return reduce(operator.and_, [left[quoted(key)].eqNullSafe(right[quoted(key)]) for key in keys])
