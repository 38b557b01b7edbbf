"""Buffers rows until the watermark has passed them: the part that kernels which use event time share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.kernel import repeat_positions
from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, distinct_codes, positions_in
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import late_rows_mask, passed_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ReadyRows", "Waited", "WaitingRows"]


@dataclass(frozen=True)
class Waited:
    """The buffered and the arrived rows, sorted into ready, waiting and late ones."""

    ready: pa.Table
    """The rows that the watermark has passed: keys, `_row`, values, `_at`, and in `_n` the number of copies."""
    changes: pa.Table
    """The changes of the state with the waiting rows."""
    late: pa.Table
    """The rows that are late or have no time."""
    counts: Mapping[str, int]


@dataclass(frozen=True)
class WaitingRows:
    """Buffers rows, each with its time in `_at`, and releases them once the watermark has passed them."""

    key_columns: Sequence[str]
    values: Mapping[str, str]
    """The other columns, each with its name in the batch."""
    late_before: int | None
    """Rows before this time are late."""
    now: int | None
    """Rows before this time are ready. Rows of exactly this time wait, because more of them may arrive."""
    computed: Sequence[str] = ()
    """The columns that Spark has added to a row. Late rows are emitted without them."""

    def __call__(self, arrived: pa.Table, stored: pa.Table) -> Waited:
        """stored: the waiting rows that are ready now, and those of which copies have arrived."""
        import numpy as np
        import pyarrow as pa

        timed, is_late = late_rows_mask(arrived["_at"], self.late_before)
        on_time = timed & ~is_late
        counts = {"late": int(is_late.sum()), "without_time": int((~timed).sum())}
        rows = self._renamed(arrived.filter(pa.array(on_time)))
        names = {name: name for name in self.key_columns}
        for name, batch_name in self.values.items():
            if name not in self.computed:
                names[name] = batch_name
        late_rows = arrived.filter(pa.array(~on_time)).select(list(names.values())).rename_columns(list(names))

        stored = stored.select([*rows.column_names, "_n"])
        passed, passed_before = passed_mask(rows["_at"], self.now), passed_mask(stored["_at"], self.now)
        ready = rows.filter(pa.array(passed))
        ready = ready.append_column("_n", pa.array(np.ones(ready.num_rows, np.int64)))
        ready_before = stored.filter(pa.array(passed_before))
        waiting = self._add_copies(rows.filter(pa.array(~passed)), stored.filter(pa.array(~passed_before)))
        changes = pa.concat_tables([waiting, ready_before], promote_options="default")
        deleted = np.repeat([False, True], [waiting.num_rows, ready_before.num_rows])
        return Waited(
            pa.concat_tables([ready, ready_before], promote_options="default").combine_chunks(),
            changes.append_column(DELETED, pa.array(deleted)),
            late_rows,
            counts,
        )

    def none(self, arrived: pa.Table) -> pa.Array:
        """Return a mask of no rows: waiting rows only need copies of themselves (`Kernel.needs_match`)."""
        import numpy as np
        import pyarrow as pa

        return pa.array(np.zeros(arrived.num_rows, bool))

    def are_ready(self, arrived: pa.Table) -> pa.Array:
        """Return a mask of the rows that need not wait."""
        import pyarrow as pa
        import pyarrow.compute as pc

        timed, is_late = late_rows_mask(arrived["_at"], self.late_before)
        return pa.array(timed & ~is_late & passed_mask(pc.fill_null(arrived["_at"], 0), self.now))

    def _renamed(self, arrived: pa.Table) -> pa.Table:
        keys = [GROUP, *self.key_columns, "_row"]
        rows = arrived.select([*keys, *self.values.values(), "_at"])
        return rows.rename_columns([*keys, *self.values, "_at"])

    def _add_copies(self, rows: pa.Table, stored: pa.Table) -> pa.Table:
        """Return the newly waiting rows, each once, with the number of all copies, stored ones included."""
        import numpy as np
        import pyarrow as pa

        codes, stored_codes = codes_of([rows.select(["_row"]), stored.select(["_row"])], ["_row"])
        first, row_number = distinct_codes(codes)
        copies = np.bincount(row_number, minlength=len(first))
        old = positions_in(stored_codes, codes[first])
        copies[old >= 0] += stored["_n"].to_numpy()[old[old >= 0]]
        return rows.take(pa.array(first)).append_column("_n", pa.array(copies, pa.int64()))


@dataclass(frozen=True)
class ReadyRows(Kernel):
    """Emits rows unchanged once they are ready."""

    waiting: WaitingRows

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        waited = self.waiting(arrived, stored[0])
        return KernelResult([waited.changes], repeated(waited.ready), waited.counts, {LATE_OUTPUT: waited.late})

    def needs_match(self, arrived: pa.Table, state_number: int) -> Any:
        """Waiting rows need only copies of themselves."""
        return self.waiting.none(arrived)


def repeated(ready: pa.Table) -> Iterator[pa.Table]:
    """Yield each row once per copy, in chunks."""
    import pyarrow as pa

    for positions, _ in repeat_positions(ready["_n"].to_numpy()):
        yield ready.take(pa.array(positions))
