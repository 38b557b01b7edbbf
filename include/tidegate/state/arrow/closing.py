"""Rows of a state that end: how a merge tells those that stay from those that are given out, or come too late.

    late      it is counted, and nothing else
    stays     it is not over: it takes more rows in the next checkpoint
    given     it is closed, and either a row has come for it or it was not closed before

The words, and how they are decided, are those of state/lateness.py.

What changes from checkpoint to checkpoint is told to workers, not to Spark: in a query it would be other code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.state.arrow.packed_keys import integers
from tidegate.state.lateness import StartRange, WindowLimits, closing_starts, ended_mask, late_mask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["ClosedWindows", "WindowClosing"]


@dataclass(frozen=True)
class WindowClosing:
    """The columns and the limits by which a merge closes windows."""

    start: str
    """The key column in which a row begins. Null: the row has no time, and is counted."""
    end: str
    """The column in which it ends."""
    size: int
    """How many microseconds after its start."""
    limits: WindowLimits
    on_update: bool = False
    """Whether every row is given that has changed. Then those are given here that do not stay."""
    weight: str | None = None
    """The column that says for how many rows of the input a row counts; by default for one."""

    def taken(self, batches: Iterable[pa.RecordBatch], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        """The rows that are not late; the others are counted."""
        import numpy as np
        import pyarrow as pa

        for batch in batches:
            timed, late = late_mask(batch.column(self.start), self.size, self.limits.late)
            weight = integers(batch.column(self.weight)) if self.weight else np.ones(len(timed), np.int64)
            counts["late"] += int(weight[late].sum())
            counts["timeless"] += int(weight[~timed].sum())
            kept = timed & ~late
            rows = batch if kept.all() else batch.filter(pa.array(kept))
            yield rows.drop_columns([self.weight]) if self.weight else rows

    def ends_of(self, starts: Any) -> Any:
        """When rows end that begin then: no later than there is a number for."""
        import numpy as np
        import pyarrow as pa

        latest = np.iinfo(np.int64).max - self.size
        return pa.array(np.minimum(integers(starts), latest) + self.size).cast(starts.type)

    def staying(self, rows: pa.Table) -> pa.Table:
        """The rows that take more in the next checkpoint."""
        return _where(rows, ~ended_mask(rows[self.end], self.limits.over))

    def given(self, rows: pa.Table) -> pa.Table:
        """Of the rows that have changed, those that are given out beside those that stay."""
        limit = self.limits.over if self.on_update else self.limits.closed
        return _where(rows, ended_mask(rows[self.end], limit))

    def not_over(self, rows: pa.Table) -> pa.Table:
        """The rows that are taken notice of."""
        return _where(rows, ~ended_mask(rows[self.end], self.limits.late))

    @property
    def due(self) -> StartRange | None:
        """The starts of the rows that end now, whether they have changed or not. None: none do, or none are wanted."""
        return None if self.on_update else closing_starts(self.limits, self.size)


def _where(rows: pa.Table, mask: Any) -> pa.Table:
    import pyarrow as pa

    return rows if mask.all() else rows.filter(pa.array(mask))


@dataclass(frozen=True)
class ClosedWindows:
    """What a merge of rows that end has led to."""

    staying: DataFrame
    """As they were put into the state."""
    given: DataFrame
    late: int
    timeless: int
