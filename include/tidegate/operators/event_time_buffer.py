"""Buffers rows until the watermark has passed them, so that an operator gets them in order of event time.

So its results do not depend on how the input was cut into checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate.operators.inputs import analysed
from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.operators.kernels.waiting import ReadyRows, WaitingRows
from tidegate.operators.spec import EventTime, TimedInput
from tidegate.records.moments import AFTER_ALL_TIMES
from tidegate.records.names import quoted
from tidegate.spark.event_time import moment, time_micros_sql
from tidegate.spark.frame_facts import empty_like, fields_before, is_known_empty, select_sql
from tidegate.spark.row_id import half_fields, row_halves
from tidegate.state.arrow.kernel_worker import Kernel
from tidegate.state.kernel_driver import StateLookup, run_kernel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from tidegate.operators.context import OperatorContext

__all__ = [
    "WAITING",
    "WaitingStream",
    "computed_fields",
    "in_order_of",
    "split_ready_rows",
]

WAITING: Final = "waiting"
"""The state with the waiting rows."""


def in_order_of(column: str | None) -> EventTime:
    """Return the event time of an operator of one stream that gets rows in order."""
    return EventTime(inputs=[TimedInput(column)], in_order=True)


@dataclass(frozen=True)
class WaitingStream:
    """The buffered rows of a stream, for an operator's kernel: the driver's part."""

    rows: DataFrame
    by: Sequence[str]
    time: str
    context: OperatorContext
    computed: Mapping[str, str] = field(default_factory=dict)
    """The SQL of columns that Spark computes for the kernel when a row arrives, and that are buffered with the row."""
    computed_fields: Sequence[StructField] = ()

    @property
    def fields(self) -> list[StructField]:
        """The input's columns."""
        return self.rows.schema.fields

    @property
    def keys(self) -> list[StructField]:
        """The key columns, in the declared order."""
        fields = {field.name: field for field in self.fields}
        return [fields[name] for name in self.by]

    @property
    def values(self) -> list[StructField]:
        """The input's columns that are not keys."""
        return [field for field in self.fields if field.name not in self.by]

    @property
    def _aliases(self) -> dict[str, str]:
        return {field.name: f"_tidegate_{number}" for number, field in enumerate(self.values)}

    @property
    def now(self) -> int | None:
        """Rows before this time are ready. In a bootstrap, all rows are."""
        if self.context.is_bootstrap:
            return AFTER_ALL_TIMES
        return self.context.watermarks.now_micros

    @property
    def _late(self) -> int | None:
        """Rows before this time are late. In a bootstrap, no row is."""
        if self.context.is_bootstrap:
            return None
        return self.context.watermarks.before_micros

    def kernel(self) -> WaitingRows:
        """Return the part of the kernel that buffers rows."""
        computed = {field.name: field.name for field in self.computed_fields}
        return WaitingRows(self.by, self._aliases | computed, self._late, self.now, list(computed))

    def _on_time(self, time: str) -> str:
        """Return the SQL condition that a row is on time. Columns are only computed for such rows, so that an error in
        a late row does no harm. time: SQL for the row's time."""
        late = self._late
        if late is None:
            return f"{time} IS NOT NULL"
        return f"{time} >= {moment(late, time)}"

    def lookup(self) -> StateLookup:
        """Return the lookup of the waiting rows."""
        may_pass_rows = not is_known_empty(self.rows) or self.context.watermarks.has_advanced
        bookkeeping = [_field("_at", "long"), _field("_n", "long")]
        return StateLookup(
            self.context.state([*self.by, "_row"], WAITING, grouped_by=self.by),
            [*self.keys, _field("_row", "string"), *self.values, *bookkeeping, *self.computed_fields],
            "_at",
            self.now if may_pass_rows else None,
            computed=self.computed,
        )

    def run_kernel(
        self,
        kernel: Kernel,
        other_lookups: Sequence[StateLookup],
        output_fields: Sequence[StructField],
        project: Callable[[pa.Table], pa.Table] | None = None,
        late_outputs: Sequence[str] = (LATE_OUTPUT,),
    ) -> dict[str, DataFrame]:
        """Run a kernel on the rows, and return the operator's streams. late_outputs: the operator's outputs that need
        late rows."""
        from pyspark.sql.types import StructField

        context, aliases = self.context, self._aliases
        time = time_micros_sql(self.rows, self.time, f"operator {context.uid!r}")
        on_time = self._on_time(time)
        columns = [*map(quoted, self.by)]
        for name, alias in aliases.items():
            columns.append(f"{quoted(name)} AS {alias}")
        columns.append(f"{time} AS _at")
        for name, text in self.computed.items():
            columns.append(f"CASE WHEN {on_time} THEN {text} END AS {quoted(name)}")
        batch = select_sql(self.rows, [*columns, *row_halves(self.rows)])
        arriving = [
            *self.keys,
            *(StructField(aliases[field.name], field.dataType) for field in self.values),
            _field("_at", "long"),
            *self.computed_fields,
            *half_fields(),
        ]
        needs_late_rows = bool(context.consumed_outputs.intersection(late_outputs))
        output = run_kernel(
            batch,
            arriving,
            self.by,
            [self.lookup(), *other_lookups],
            kernel,
            output_fields,
            is_empty=is_known_empty(self.rows),
            project=project,
            side_outputs={LATE_OUTPUT: self.fields} if needs_late_rows else {},
        )
        context.count(output.counts)
        return {"": output.rows, **output.side_outputs}


def computed_fields(rows: DataFrame, texts: Mapping[str, str], context: OperatorContext) -> list[StructField]:
    """Return the columns that SQL computes from the rows. Raise Invalid if Spark refuses it."""
    from pyspark.sql.types import StructField

    if not texts:
        return []
    columns = [f"{text} AS {quoted(name)}" for name, text in texts.items()]
    shape = repr((rows.schema.json(), columns))

    def fields() -> Sequence[StructField]:
        return fields_before(rows.sparkSession, shape, lambda: rows.selectExpr(*columns))

    return [StructField(field.name, field.dataType) for field in analysed(fields, rows, context)]


def _field(name: str, kind: str) -> StructField:
    from pyspark.sql.types import LongType, StringType, StructField

    return StructField(name, {"long": LongType, "string": StringType}[kind]())


def split_ready_rows(
    rows: DataFrame,
    by: Sequence[str],
    time: str,
    context: OperatorContext,
    late_outputs: Sequence[str] = (LATE_OUTPUT,),
) -> tuple[DataFrame, DataFrame]:
    """Return the rows that the watermark has passed, with `_at` and `_row`, and the late rows, unchanged.

    Rows of exactly the watermark's time wait, because more of them may arrive. In a bootstrap, no row is late or waits.
    late_outputs: the outputs with late rows. If none of them is used, no late rows are returned.
    """
    waiting = WaitingStream(rows, by, time, context)
    output_fields = [*waiting.fields, _field("_at", "long"), _field("_row", "string")]
    streams = waiting.run_kernel(ReadyRows(waiting.kernel()), [], output_fields, late_outputs=late_outputs)
    return streams[""], streams[LATE_OUTPUT] if LATE_OUTPUT in streams else empty_like(rows)
