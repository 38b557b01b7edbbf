"""Count windows, in order of event time: the first hundred rows of a key, the next hundred …

Rows wait until the watermark has passed them, so that the windows do not depend on how the input was cut into
checkpoints. The state has the partial results of each key's open window. A window that is not full when event time ends
is not emitted. With `state_ttl`, a window that gets no more rows expires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.event_time_buffer import (
    WAITING,
    WaitingStream,
    computed_fields,
    in_order_of,
    split_ready_rows,
)
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.functions import (
    NOT_MERGED,
    Function,
    arguments,
    meanings,
    merge_columns,
    parse_functions,
    partial_columns,
    project_in_workers,
    row_partials,
    why_columns_are_not_merged,
)
from tidegate.operators.inputs import (
    Types,
    key_problems,
    need_keys,
    null_safe_equality,
    recalled,
    record_sketched_types,
    refuse_reserved_columns,
    types_of,
)
from tidegate.operators.join.time_bounds import LATE_OUTPUT, need_time
from tidegate.operators.kernels.counted import PLACE, ROWS, CountedWindows
from tidegate.operators.kernels.over import of_one_row
from tidegate.operators.spec import ANY_INTERVAL, Growth, OperatorSpec, OutputSpec, StateSpec, joined
from tidegate.operators.window.closing import END, START, TAKEN, result_problems
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import select_sql
from tidegate.state.kernel_driver import StateLookup

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["CountWindow"]


class CountWindow(Operator):
    """`count`: the number of a window's rows. `window_start` and `window_end`: the times of its first and last row."""

    kind: ClassVar[str] = "window"

    def __init__(
        self,
        by: Sequence[str],
        functions: Mapping[str, str],
        count: int,
        event_time: str | None = None,
        expiry: Expiry = NEVER,
    ) -> None:
        self.by = listed(by)
        self.functions = dict(functions)
        self.count = count
        self.event_time = event_time
        self.expiry = expiry

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            identity=[str(self.count), "rows", *self.by],
            event_time=in_order_of(self.event_time),
            output=OutputSpec(
                columns=[START, END, *map(str, self.by), *self.functions],
                others=[LATE_OUTPUT],
                results=arguments(self.functions),
                untimely={column: self._untimely(column) for column in (START, *map(str, self.by), *self.functions)},
            ),
            states=[StateSpec("", self.expiry), StateSpec(WAITING)],
            growth=Growth(
                keeps=f"a window of each {joined(self.by)} that is not full" if self.expiry.is_never else None
            ),
            intervals=ANY_INTERVAL,
        )

    def _untimely(self, column: str) -> str:
        return (
            f"event_time={column!r} may be older than a window's end by any time, as long as {self.count} rows take: "
            f"rows would be late, and dropped; use event_time={END!r}"
        )

    def describe(self) -> Json:
        described = {"count": self.count, "by": self.by, "functions": self.functions, "event_time": self.event_time}
        return described | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        meaning: Json = {"by": self.by, "event_time": [self.event_time], "the window": f"{self.count} rows"}
        return meaning | meanings(self.functions, in_windows=True)

    def problems(self) -> list[str]:
        problems = key_problems(self.by)
        if type(self.count) is not int or not 1 <= self.count <= 1 << 31:
            problems.append(f"count={self.count!r}: expected a number of rows, such as 100")
        if not self.functions:
            problems.append('it computes nothing: name at least one, such as orders="count(*)"')
        for name in map(str, self.by):
            if name in (START, END) or name.startswith("_"):
                problems.append(f"by names {name!r}, which tidegate reserves: rename the column in an upstream stage")
        problems += result_problems(self.by, self.functions)
        return problems + self.expiry.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as F

        rows = inputs[0]
        need_keys(rows, self.by, "by", context)
        refuse_reserved_columns(rows, context)
        refuse_reserved_columns(rows, context, TAKEN)
        types = types_of(parse_functions(self.functions), rows, context)
        record_sketched_types(parse_functions(self.functions), rows, context)
        parsed = []
        for function in parse_functions(self.functions):
            parsed.append(function.in_windows().typed(types.results[function.name]))
        time = need_time(self.event_time, 0, context)
        streams, reason = self._aggregate_with_kernel(rows, time, parsed, types, context)
        if streams is not None:
            return streams
        context.computing.note_spark(reason)
        ready, late = split_ready_rows(rows, self.by, time, context)
        ready, keys = context.persist(ready), list(map(quoted, self.by))
        state = context.state(self.by)
        windows = self._pieces(ready, None, parsed)
        stored = state.lookup(ready.select(*keys).distinct())
        if stored is not None:
            stored = context.persist(recalled(state, stored, windows.drop(PLACE), context))
            continued = stored.withColumn(PLACE, F.lit(0).cast("long"))
            windows = self._merged(self._pieces(ready, stored, parsed).unionByName(continued), windows, parsed)
        windows = context.persist(windows)
        is_full = f"{ROWS} >= {self.count}"
        changes = windows.where(f"NOT ({is_full})").drop(PLACE).withColumn("_deleted", F.lit(False))
        if stored is not None:
            aliases, open_keys = self._with_key_aliases(changes)
            closed = stored.join(open_keys, null_safe_equality(self.by, aliases, nulls=True), "left_anti")
            changes = changes.unionByName(closed.withColumn("_deleted", F.lit(True)))
        state.write_changes(changes, deletes=True)
        results = [function.result(types.results[function.name]) for function in parsed]
        return {"": windows.where(is_full).selectExpr(START, END, *keys, *results), LATE_OUTPUT: late}

    def _with_key_aliases(self, rows: DataFrame, *columns: Column) -> tuple[list[str], DataFrame]:
        """Return new names for the keys, and the rows with only the keys under these names, and other columns."""
        from pyspark.sql import functions as F

        aliases = {name: f"_aside{number}" for number, name in enumerate(self.by)}
        keys = (F.col(quoted(name)).alias(alias) for name, alias in aliases.items())
        return list(aliases.values()), rows.select(*keys, *columns)

    def _aggregate_with_kernel(
        self, rows: DataFrame, time: str, parsed: Sequence[Function], types: Types, context: OperatorContext
    ) -> tuple[Mapping[str, DataFrame] | None, str | None]:
        """Return the streams, or None, and why the kernel cannot merge the partial values."""
        from pyspark.sql import types as T

        sql_and_ops = row_partials(parsed, types.partials)
        if sql_and_ops is None:
            return None, NOT_MERGED
        partials_sql, ops = sql_and_ops
        texts = {of_one_row(name): text for name, text in partials_sql.items()}
        refuse_reserved_columns(rows, context, texts)
        computed = computed_fields(rows, texts, context)
        partials = []
        for name, field in zip(ops, computed, strict=True):
            partials.append(T.StructField(name, field.dataType))
        reason = why_columns_are_not_merged(partials, ops)
        if reason is not None:
            return None, reason
        waiting = WaitingStream(rows, self.by, time, context, texts, computed)
        bounds = [T.StructField(name, T.TimestampType()) for name in (START, END)]
        open_window = StateLookup(
            context.state(self.by),
            [*waiting.keys, *bounds, T.StructField(ROWS, T.LongType()), *partials],
            also_keys_of=0,
        )
        kernel = CountedWindows(self.by, waiting.kernel(), START, END, ops, self.count)
        key_fields = [*bounds, *waiting.keys]
        window_fields = [*key_fields, *partials]
        projection = project_in_workers(parsed, types.results, [field.name for field in key_fields], window_fields)
        if projection is not None:
            return waiting.run_kernel(kernel, [open_window], projection.fields, projection.function), None
        streams = waiting.run_kernel(kernel, [open_window], window_fields)
        results = [function.result(types.results[function.name]) for function in parsed]
        return streams | {"": select_sql(streams[""], [START, END, *map(quoted, self.by), *results])}, None

    def _pieces(self, ready: DataFrame, stored: DataFrame | None, parsed: Sequence[Function]) -> DataFrame:
        """Return this checkpoint's rows as partial results per window: `_place` 0 continues the stored one."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        keys = list(map(quoted, self.by))
        stored_rows = F.lit(0).cast("long")
        if stored is not None:
            aliases, open_windows = self._with_key_aliases(stored, F.col(ROWS).alias("_was"))
            ready = ready.join(open_windows, null_safe_equality(self.by, aliases, nulls=True), "left")
            stored_rows = F.coalesce(F.col("_was"), stored_rows)
        number = F.row_number().over(Window.partitionBy(*keys).orderBy("_at", "_row")) - 1 + stored_rows
        numbered = ready.withColumn(PLACE, number).withColumn(PLACE, F.expr(f"{PLACE} div {self.count}"))
        return numbered.groupBy(*keys, PLACE).agg(
            F.expr("timestamp_micros(min(_at))").alias(START),
            F.expr("timestamp_micros(max(_at))").alias(END),
            F.count("*").alias(ROWS),
            *partial_columns(parsed),
        )

    def _merged(self, pieces: DataFrame, like: DataFrame, parsed: Sequence[Function]) -> DataFrame:
        """Return one row per window, in the types of `like`: a sum of sums has a wider type."""
        from pyspark.sql import functions as F

        merged = pieces.groupBy(*map(quoted, self.by), PLACE).agg(
            F.min(START).alias(START),
            F.max(END).alias(END),
            F.sum(ROWS).alias(ROWS),
            *merge_columns(parsed),
        )
        types = {field.name: field.dataType.simpleString() for field in merged.schema.fields}
        columns = []
        for field in like.schema.fields:
            column = F.col(quoted(field.name))
            if types[field.name] != field.dataType.simpleString():
                column = column.cast(field.dataType).alias(field.name)
            columns.append(column)
        return merged.select(*columns)
