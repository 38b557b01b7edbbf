"""The parts that all kinds of window share: their state, and the way from partial results to results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidegate.operators.context import OperatorContext
from tidegate.operators.functions import (
    Function,
    clashing_columns,
    merge_columns,
    parse,
    parse_functions,
    partial_columns,
    project_in_workers,
)
from tidegate.operators.inputs import Types, need_keys, recalled, refuse_reserved_columns, types_of
from tidegate.records.names import quoted
from tidegate.spark.event_time import time_micros_sql
from tidegate.spark.frame_facts import empty_if, is_known_empty, select_sql
from tidegate.state.arrow.kernel_worker import IS_CURRENT, Kernel
from tidegate.state.columns import OWN
from tidegate.state.kernel_driver import StateLookup, run_kernel
from tidegate.state.keyed import Projection
from tidegate.state.lateness import ExpiredRows, WindowLimits, ended_sql, open_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

    from tidegate.state.keyed import KeyedState

__all__ = ["END", "START", "Windowing", "result_problems"]

START: Final = "window_start"
END: Final = "window_end"
TAKEN: Final = (
    "_pane",
    "_rows",
    "_start",
    "_place",
    "_time",
    "_fate",
    "_begins",
    "_island",
    "_new",
    "_begin",
    "_finish",
    *OWN,
)
"""The names of columns that windows add to the keys and partial results."""


def result_problems(by: Sequence[str], functions: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the results of a window."""
    problems, valid = [], []
    for name, text in functions.items():
        if name in (*by, START, END) or name.startswith("_"):
            problems.append(f"{name!r} is a key or one of tidegate's own names, and a result")
            continue
        parsed = parse(name, text)
        if isinstance(parsed, str):
            problems.append(parsed)
        else:
            valid.append(parsed)
    used_as = {str(name).casefold(): "a key" for name in by} | dict.fromkeys((START, END), "tidegate's own")
    return problems + clashing_columns(valid, used_as)


@dataclass(frozen=True)
class Windowing:
    """One attempt at a window operator."""

    context: OperatorContext
    rows: DataFrame
    time: str
    """The column with the rows' event time."""
    key_columns: Sequence[str]
    functions: Mapping[str, str]
    on_update: bool
    side: bool
    allowed: int
    """`allowed_lateness` in microseconds."""
    includes_end: bool = False
    """Whether a row at the very end of a window belongs to it, so that the watermark has to pass the end."""

    @cached_property
    def limits(self) -> WindowLimits:
        """The limits by which windows are late, closed and over in this checkpoint."""
        watermarks = self.context.watermarks
        return WindowLimits.from_watermarks(
            watermarks.before_micros, watermarks.now_micros, self.allowed, includes_end=self.includes_end
        )

    @property
    def keys(self) -> list[str]:
        """The state's keys. Time comes first: files are sorted by it, so the windows of one time are contiguous."""
        return [START, *self.key_columns]

    @cached_property
    def state(self) -> KeyedState:
        """The state with the windows that have not expired."""
        late = self.limits.late
        return self.context.state(self.keys, expired=None if late is None else ExpiredRows(END, late))

    @cached_property
    def parsed(self) -> list[Function]:
        """The declared aggregates, for input of these types."""
        functions = parse_functions(self.functions)
        return [function.in_windows().typed(self.types.results[function.name]) for function in functions]

    @cached_property
    def types(self) -> Types:
        """Spark's types of the results and partial values."""
        functions = parse_functions(self.functions)
        return types_of(functions, self.rows, self.context)

    def refuse_unfit(self) -> None:
        """Raise Invalid if the input lacks a key, or has columns with names that windows use."""
        need_keys(self.rows, self.key_columns, "by", self.context)
        refuse_reserved_columns(self.rows, self.context, TAKEN)

    def open_windows(
        self, like: DataFrame, condition: str | None = None, *, common: str | None = None
    ) -> DataFrame | None:
        """Return the windows that have not expired, in the columns of `like`, or None if the state has never held any.

        common: a condition on columns that never change for a window, so that it can skip files.
        """
        rows = self.state.rows(common)
        if rows is None:
            return None
        rows = recalled(self.state, rows, like, self.context)
        if condition is None:
            return rows
        return rows.where(condition)

    def open_windows_under(self, keys: DataFrame) -> DataFrame | None:
        """Return the stored windows with these keys. keys: windows, with all columns."""
        rows = self.state.lookup(keys)
        if rows is None:
            return None
        return recalled(self.state, rows, keys, self.context)

    def emitted_results(self, stored: DataFrame) -> DataFrame:
        """Return the results of the stored windows that have been emitted and may be emitted again."""
        from pyspark.sql import functions as F

        moments = (F.lit(None).cast("timestamp").alias(name) for name in (START, END))
        like = self.rows.groupBy(*map(quoted, self.key_columns)).agg(*self.partials(self.rows, *moments))
        windows = recalled(self.state, stored, like, self.context).where(open_sql(END, self.limits.late))
        if not self.on_update:
            windows = windows.where(ended_sql(END, self.limits.closed_before))
        return self.results(windows)

    def micros(self, rows: DataFrame) -> Column:
        """Return the rows' event time in microseconds. Raise Invalid if they have none."""
        from pyspark.sql import functions as F

        return F.expr(self.micros_sql(rows))

    def micros_sql(self, rows: DataFrame) -> str:
        """Return the same as SQL."""
        return time_micros_sql(rows, self.time, f"window {self.context.uid!r}")

    def partials(self, rows: DataFrame, *columns: Column) -> list[Column]:
        """Return the given columns, and those of the partial results, for `agg`."""
        return [*columns, *partial_columns(self.parsed)]

    def merge_windows(self, stored: DataFrame | None, fresh: DataFrame) -> DataFrame:
        """Merge stored and new windows: one row per window and key."""
        both = fresh if stored is None else fresh.unionByName(stored)
        return self.merge_partial_rows(both, [*self.keys, END])

    def merge_partial_rows(self, rows: DataFrame, keys: Sequence[str], *columns: Column) -> DataFrame:
        """Merge partial results by these keys, and cast them back to their types: sums of sums have wider ones."""
        types = {field.name: field.dataType for field in rows.schema.fields}
        merged = rows.groupBy(*map(quoted, keys)).agg(*columns, *merge_columns(self.parsed))
        result = []
        for name in merged.columns:
            column = merged[quoted(name)]
            result.append(column.cast(types[name]).alias(name) if name in types else column)
        return merged.select(*result)

    def results(self, windows: DataFrame) -> DataFrame:
        """Return the user's columns: the window, the keys, and the results."""
        names = [quoted(name) for name in (START, END, *self.key_columns)]
        results = [function.result(self.types.results[function.name]) for function in self.parsed]
        return empty_if(windows, select_sql(windows, [*names, *results]))

    @cached_property
    def late_columns(self) -> dict[str, str]:
        """The columns of late rows, each with its name in a kernel's batch. Empty if late rows are not used."""
        if not self.side or "late" not in self.context.consumed_outputs:
            return {}
        return {name: f"_tidegate_{number}" for number, name in enumerate(self.rows.columns)}

    def run_kernel(
        self,
        batch: DataFrame,
        arriving: Sequence[StructField],
        grouped_by: Sequence[str],
        lookup: StateLookup,
        kernel: Kernel,
        window_fields: Sequence[StructField],
    ) -> dict[str, DataFrame]:
        """Run a kernel on rows as partial results, and return the operator's streams.

        arriving: the columns of the batch that the kernel gets. window_fields: the columns of windows that it emits.
        """
        from pyspark.sql.types import StructField

        batch_fields = {field.name: field for field in batch.schema.fields}
        late_fields = []
        for name, alias in self.late_columns.items():
            late_fields.append(StructField(name, batch_fields[alias].dataType))
        projection = self.project_in_workers(window_fields)
        retracts = self.on_update or bool(self.allowed)
        output = run_kernel(
            batch.select(*(quoted(field.name) for field in arriving)),
            arriving,
            grouped_by,
            [lookup],
            kernel,
            window_fields if projection is None else projection.fields,
            is_empty=is_known_empty(self.rows),
            keeps_rows=not late_fields,
            is_current_column=IS_CURRENT,
            wants_retractions=retracts and self.context.wants_retractions,
            project=None if projection is None else projection.function,
            side_outputs={"late": late_fields} if late_fields else {},
        )
        self.count_dropped(**output.counts)
        streams = {"": output.rows}
        if retracts:
            streams["-"] = output.retractions
        if projection is None:
            streams = {name: self.results(windows) for name, windows in streams.items()}
        return {**streams, **output.side_outputs}

    def project_in_workers(self, window_fields: Sequence[StructField]) -> Projection | None:
        """Return how workers compute the results from windows with these columns, or None if they cannot."""
        return project_in_workers(self.parsed, self.types.results, [START, END, *self.key_columns], window_fields)

    def count_dropped(self, **counts: int | None) -> None:
        """Count rows that are in no window."""
        self.context.counts.update({name: number for name, number in counts.items() if number})
