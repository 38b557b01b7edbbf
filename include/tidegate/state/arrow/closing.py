"""Windows of a state that close: how a merge separates rows that stay from rows to emit, and from late ones.

    late      it is counted, and nothing else
    stays     it is not over: it takes more rows in the next checkpoint
    given     it is closed, and either a row has come for it or it was not closed before

The words, and how they are decided, are those of state/lateness.py.

Limits change with every checkpoint, so workers receive them directly: in a Spark query they would be new code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.state.arrow.keys import integers
from tidegate.state.lateness import StartRange, WindowLimits, closing_starts, ended_mask, late_mask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["ClosedWindows", "WindowClosing"]


@dataclass(frozen=True)
class WindowClosing:
    """The columns and the limits by which a merge closes windows."""

    start: str
    """The key column with the start. Null: the row has no time, and is counted."""
    end: str
    """The column with the end."""
    size: int
    """Microseconds from the start to the end."""
    limits: WindowLimits
    on_update: bool = False
    """Whether every changed row is emitted. Then `given` returns those that do not stay."""
    weight: str | None = None
    """The column with the number of input rows that a row counts for; by default one."""

    def taken(self, batches: Iterable[pa.RecordBatch], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are not late, and count the others."""
        import numpy as np
        import pyarrow as pa

        for batch in batches:
            timed, late = late_mask(batch.column(self.start), self.size, self.limits.late)
            weight = integers(batch.column(self.weight)) if self.weight else np.ones(len(timed), np.int64)
            counts["late"] += int(weight[late].sum())
            counts["timeless"] += int(weight[~timed].sum())
            on_time = timed & ~late
            rows = batch if on_time.all() else batch.filter(pa.array(on_time))
            yield rows.drop_columns([self.weight]) if self.weight else rows

    def ends_of(self, starts: Any) -> Any:
        """Return the ends of rows with these starts: never more than the largest number."""
        import numpy as np
        import pyarrow as pa

        latest = np.iinfo(np.int64).max - self.size
        return pa.array(np.minimum(integers(starts), latest) + self.size).cast(starts.type)

    def staying(self, rows: pa.Table) -> pa.Table:
        """Return the rows that take more in the next checkpoint."""
        return _where(rows, ~ended_mask(rows[self.end], self.limits.over))

    def given(self, rows: pa.Table) -> pa.Table:
        """Return the changed rows that are emitted, apart from those that stay."""
        limit = self.limits.over if self.on_update else self.limits.closed
        return _where(rows, ended_mask(rows[self.end], limit))

    def not_over(self, rows: pa.Table) -> pa.Table:
        """Return the rows that still count."""
        return _where(rows, ~ended_mask(rows[self.end], self.limits.late))

    @property
    def due(self) -> StartRange | None:
        """The starts of the rows that close now, changed or not. None: none do, or all changes are emitted anyway."""
        return None if self.on_update else closing_starts(self.limits, self.size)


def _where(rows: pa.Table, mask: Any) -> pa.Table:
    import pyarrow as pa

    return rows if mask.all() else rows.filter(pa.array(mask))


@dataclass(frozen=True)
class ClosedWindows:
    """The result of a merge that closes windows."""

    staying: DataFrame
    """The rows as they were put into the state."""
    given: DataFrame
    late: int
    timeless: int
