"""Rows that wait until the watermark has passed them, so that an operator gets them in the order of event time.

What it does with them then cannot depend on how the input was cut into checkpoints.
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
    "rows_passed_by_watermark",
]

WAITING: Final = "waiting"
"""The state with the rows that wait."""


def in_order_of(column: str | None) -> EventTime:
    """Return the event time of an operator of one stream that gets its rows in their order. Later ones are late."""
    return EventTime(inputs=[TimedInput(column)], in_order=True)


@dataclass(frozen=True)
class WaitingStream:
    """The rows of a stream that wait, for an operator's kernel: the driver's part."""

    rows: DataFrame
    by: Sequence[str]
    time: str
    context: OperatorContext
    computed: Mapping[str, str] = field(default_factory=dict)
    """What Spark computes of each row for the kernel when it arrives, with its SQL. It waits with the row."""
    computed_fields: Sequence[StructField] = ()

    @property
    def fields(self) -> list[StructField]:
        """The rows' own columns."""
        return self.rows.schema.fields

    @property
    def keys(self) -> list[StructField]:
        """Those that are keys, in the order in which these are declared."""
        of = {field.name: field for field in self.fields}
        return [of[name] for name in self.by]

    @property
    def values(self) -> list[StructField]:
        """The others."""
        return [field for field in self.fields if field.name not in self.by]

    @property
    def _aliases(self) -> dict[str, str]:
        return {field.name: f"_tidegate_{place}" for place, field in enumerate(self.values)}

    @property
    def now(self) -> int | None:
        """Rows before this time are ready. Of history all are."""
        return AFTER_ALL_TIMES if self.context.is_bootstrap else self.context.watermarks.now_micros

    def kernel(self) -> WaitingRows:
        """Return the part of the kernel that lets rows wait."""
        late = None if self.context.is_bootstrap else self.context.watermarks.before_micros
        computed = {field.name: field.name for field in self.computed_fields}
        return WaitingRows(self.by, self._aliases | computed, late, self.now, list(computed))

    def _on_time(self, at: str) -> str:
        """Return SQL for the rows for which anything is computed: a late one is left out, whatever is in it. at: SQL
        of a row's time."""
        before = None if self.context.is_bootstrap else self.context.watermarks.before_micros
        return f"{at} IS NOT NULL" if before is None else f"{at} >= {moment(before, at)}"

    def remembered(self) -> StateLookup:
        """Return the state of the rows that wait."""
        is_still = is_known_empty(self.rows) and not self.context.watermarks.has_advanced
        return StateLookup(
            self.context.state([*self.by, "_row"], WAITING, grouped_by=self.by),
            [*self.keys, _field("_row", "string"), *self.values, *self._own, *self.computed_fields],
            "_at",
            None if is_still else self.now,
            computed=self.computed,
        )

    @property
    def _own(self) -> list[StructField]:
        return [_field("_at", "long"), _field("_n", "long")]

    def folded(
        self,
        work: Kernel,
        others: Sequence[StateLookup],
        given: Sequence[StructField],
        made: Callable[[pa.Table], pa.Table] | None = None,
        late: Sequence[str] = (LATE_OUTPUT,),
    ) -> dict[str, DataFrame]:
        """Let workers do `work` on the rows, and return the operator's streams. others: its other states. late: the
        outputs for which late rows are needed."""
        from pyspark.sql.types import StructField

        context, aliases = self.context, self._aliases
        at = time_micros_sql(self.rows, self.time, f"operator {context.uid!r}")
        on_time = self._on_time(at)
        batch = select_sql(
            self.rows,
            [
                *map(quoted, self.by),
                *(f"{quoted(name)} AS {alias}" for name, alias in aliases.items()),
                f"{at} AS _at",
                *(f"CASE WHEN {on_time} THEN {text} END AS {quoted(name)}" for name, text in self.computed.items()),
                *row_halves(self.rows),
            ],
        )
        arriving = [
            *self.keys,
            *(StructField(aliases[field.name], field.dataType) for field in self.values),
            _field("_at", "long"),
            *self.computed_fields,
            *half_fields(),
        ]
        folded = run_kernel(
            batch,
            arriving,
            self.by,
            [self.remembered(), *others],
            work,
            given,
            is_empty=is_known_empty(self.rows),
            project=made,
            side_outputs={LATE_OUTPUT: self.fields} if context.consumed_outputs.intersection(late) else {},
        )
        context.count(folded.counts)
        return {"": folded.rows, **folded.side_outputs}


def computed_fields(rows: DataFrame, texts: Mapping[str, str], context: OperatorContext) -> list[StructField]:
    """Return the columns that SQL makes of the rows. Raise Invalid if Spark refuses it."""
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


def rows_passed_by_watermark(
    rows: DataFrame, by: Sequence[str], time: str, context: OperatorContext, late: Sequence[str] = (LATE_OUTPUT,)
) -> tuple[DataFrame, DataFrame]:
    """Return the rows that the watermark has passed, with `_at` and `_row`; and those that are late, unchanged.

    Rows of the watermark's own moment wait: more of them may come. Of history, no row is late, and none waits.
    late: the outputs with late rows. If nobody takes any of them, there are none.
    """
    waiting = WaitingStream(rows, by, time, context)
    given = [*waiting.fields, _field("_at", "long"), _field("_row", "string")]
    streams = waiting.folded(ReadyRows(waiting.kernel()), [], given, late=late)
    return streams[""], streams[LATE_OUTPUT] if LATE_OUTPUT in streams else empty_like(rows)
