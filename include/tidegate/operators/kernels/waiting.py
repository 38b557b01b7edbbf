"""Rows that wait until the watermark has passed them, as workers keep them: a part of kernels that go by event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.kernel import repeat_positions
from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import late_rows_mask, passed_mask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ReadyRows", "Waited", "WaitingRows"]


@dataclass(frozen=True)
class Waited:
    """What has become of rows that wait, and of those that have arrived."""

    ready: pa.Table
    """Those that the watermark has passed: keys, `_row`, values, `_at`, and in `_n` the number of copies."""
    changes: pa.Table
    """The changes of the state with those that wait."""
    late: pa.Table
    """Those that came too late, or have no time."""
    counts: Mapping[str, int]


@dataclass(frozen=True)
class WaitingRows:
    """Takes rows as they arrive, each with its time in `_at`, and gives them once the watermark has passed them."""

    by: Sequence[str]
    values: Mapping[str, str]
    """Their columns apart from the keys, each with its name in the batch."""
    late: int | None
    """Rows before this time are late."""
    now: int | None
    """Rows before this time are ready. Those of the very moment wait: more of them may come."""
    computed: Sequence[str] = ()
    """Those of the columns that late rows come without: what is computed of a row, and no part of it."""

    def __call__(self, arrived: pa.Table, stored: pa.Table) -> Waited:
        """stored: the rows that have been waiting and are ready, and those of which copies have arrived."""
        import numpy as np
        import pyarrow as pa

        timed, late = late_rows_mask(arrived["_at"], self.late)
        on_time = timed & ~late
        counts = {"late": int(late.sum()), "without_time": int((~timed).sum())}
        rows = self._named(arrived.filter(pa.array(on_time)))
        others = arrived.filter(pa.array(~on_time))
        own = {name: column for name, column in self.values.items() if name not in self.computed}
        names = {**{name: name for name in self.by}, **own}
        lost = others.select(list(names.values())).rename_columns(list(names))

        stored = stored.select([*rows.column_names, "_n"])
        passed, passed_before = passed_mask(rows["_at"], self.now), passed_mask(stored["_at"], self.now)
        ready = rows.filter(pa.array(passed))
        ready = ready.append_column("_n", pa.array(np.ones(ready.num_rows, np.int64)))
        ready_before = stored.filter(pa.array(passed_before))
        waiting = self._together(rows.filter(pa.array(~passed)), stored.filter(pa.array(~passed_before)))
        changes = pa.concat_tables([waiting, ready_before], promote_options="default")
        deleted = np.repeat([False, True], [waiting.num_rows, ready_before.num_rows])
        return Waited(
            pa.concat_tables([ready, ready_before], promote_options="default").combine_chunks(),
            changes.append_column(DELETED, pa.array(deleted)),
            lost,
            counts,
        )

    def none(self, arrived: pa.Table) -> pa.Array:
        """Return a mask of no rows: of rows that wait, copies alone are looked up (`Kernel.meeting`)."""
        import numpy as np
        import pyarrow as pa

        return pa.array(np.zeros(arrived.num_rows, bool))

    def are_ready(self, arrived: pa.Table) -> pa.Array:
        """Return a mask of the rows that need not wait."""
        import pyarrow as pa
        import pyarrow.compute as pc

        timed, late = late_rows_mask(arrived["_at"], self.late)
        return pa.array(timed & ~late & passed_mask(pc.fill_null(arrived["_at"], 0), self.now))

    def _named(self, arrived: pa.Table) -> pa.Table:
        own = [GROUP, *self.by, "_row"]
        rows = arrived.select([*own, *self.values.values(), "_at"])
        return rows.rename_columns([*own, *self.values, "_at"])

    def _together(self, rows: pa.Table, stored: pa.Table) -> pa.Table:
        """Return rows that begin to wait, each once, with the number of all its copies."""
        import numpy as np
        import pyarrow as pa

        keys = [*self.by, "_row"]
        codes, known = codes_of([rows.select(keys), stored.select(keys)], keys)
        distinct, first, of = np.unique(codes, return_index=True, return_inverse=True)
        copies = np.bincount(of, minlength=len(first))
        _, here, there = np.intersect1d(distinct, known, assume_unique=True, return_indices=True)
        copies[here] += stored["_n"].to_numpy()[there]
        return rows.take(pa.array(first)).append_column("_n", pa.array(copies, pa.int64()))


@dataclass(frozen=True)
class ReadyRows(Kernel):
    """Gives rows once they are ready, and does nothing else."""

    waiting: WaitingRows

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        waited = self.waiting(arrived, stored[0])
        return KernelResult([waited.changes], repeated(waited.ready), waited.counts, {LATE_OUTPUT: waited.late})

    def needs_match(self, arrived: pa.Table, place: int) -> Any:
        """Of rows that wait only copies are needed."""
        return self.waiting.none(arrived)


def repeated(ready: pa.Table) -> Iterator[pa.Table]:
    """Yield each row as often as it has come, some at a time."""
    import pyarrow as pa

    for places, _ in repeat_positions(ready["_n"].to_numpy()):
        yield ready.take(pa.array(places))
