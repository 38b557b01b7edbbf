"""Rows of a state that end: how a merge tells those that stay from those that are given out, or come too late.

    late      it ended by `over`: it is counted, and nothing else
    stays     it ends after `over_next`: it takes more rows in the next checkpoint
    given     it has ended by `now`, and a row has come for it, or it ended after `before`

What changes from checkpoint to checkpoint is told to workers, not to Spark: in a query it would be other code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.state.arrow.packed_keys import integers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["ClosedWindows", "WindowClosing"]


@dataclass(frozen=True)
class WindowClosing:
    """All times are microseconds since 1970; None: not known yet."""

    start: str
    """The key column in which a row begins. Null: the row has no time, and is counted."""
    end: str
    """The column in which it ends."""
    size: int
    """How many microseconds after its start."""
    over: int | None
    before: int | None
    now: int | None
    over_next: int | None
    on_update: bool = False
    """Whether every row is given that has changed. Then those are given here that do not stay."""
    weight: str | None = None
    """The column that says for how many rows of the input a row counts; by default for one."""

    def taken(self, batches: Iterable[pa.RecordBatch], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        """The rows that are not late; the others are counted."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            start = batch.column(self.start)
            timed = pc.is_valid(start).to_numpy(zero_copy_only=False)
            late = np.zeros(len(timed), bool)
            if self.over is not None:
                late = timed & (integers(pc.fill_null(start, pa.scalar(0, start.type))) <= self.over - self.size)
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
        return rows if self.over_next is None else _where(rows, integers(rows[self.end]) > self.over_next)

    def given(self, rows: pa.Table) -> pa.Table:
        """Of the rows that have changed, those that are given out beside those that stay."""
        by = self.over_next if self.on_update else self.now
        return rows.slice(0, 0) if by is None else _where(rows, integers(rows[self.end]) <= by)

    def not_over(self, rows: pa.Table) -> pa.Table:
        """The rows that are taken notice of."""
        return rows if self.over is None else _where(rows, integers(rows[self.end]) > self.over)

    @property
    def due(self) -> tuple[int | None, int] | None:
        """After when, and until when, rows begin that end now, whether they have changed or not. None: none do."""
        if self.on_update or self.now is None or self.now == self.before:
            return None
        return (None if self.before is None else self.before - self.size), self.now - self.size


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
