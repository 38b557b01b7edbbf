"""The kernel of as-of joins: rows that wait for the watermark, and the versions that they are joined with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.kernel import FROM_RIGHT, JoinSide, joined, repeat_positions
from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.operators.kernels.waiting import WaitingRows
from tidegate.records.moments import AFTER_ALL_TIMES
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, distinct_codes, integers, order_by, ranks_and_values
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsOfInWorkers"]


@dataclass(frozen=True)
class AsOfInWorkers(Kernel):
    """Emits each ready row of the left side with the last version that is not newer than it."""

    on: Sequence[str]
    sides: tuple[JoinSide, JoinSide]
    waiting: WaitingRows
    """The buffer of the left side's rows."""
    outer: bool
    """Whether rows without a matching version are emitted, too."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        waited = self.waiting(self._side(arrived, 0), stored[0])
        rows, is_new = self._versions(self._side(arrived, 1), stored[1])
        ready = waited.ready
        codes, version_codes = codes_of([ready.select(self.on), rows.select(self.on)], self.on)
        versions = _Versions.from_rows(rows, is_new, version_codes)
        matches = versions.last_before(codes, integers(ready["_at"]))
        return KernelResult(
            [waited.changes, versions.changes(self.waiting.now)],
            self._joined_batches(ready, versions.rows, matches),
            waited.counts,
            {LATE_OUTPUT: waited.late},
        )

    def needs_match(self, arrived: pa.Table, state_number: int) -> Any:
        """Waiting rows need only copies of themselves. New versions and ready rows need all versions of their key."""
        import pyarrow.compute as pc

        if state_number == 0:
            return self.waiting.none(arrived)
        return pc.or_(arrived[FROM_RIGHT], self.waiting.are_ready(arrived))

    def _side(self, arrived: pa.Table, place: int) -> pa.Table:
        """Return the rows of a side, with its columns of the batch."""
        import pyarrow.compute as pc

        if place:
            is_on_side = arrived[FROM_RIGHT]
        else:
            is_on_side = pc.invert(arrived[FROM_RIGHT])
        return arrived.select([GROUP, *self.on, "_row", *self.sides[place].values.values(), "_at"]).filter(is_on_side)

    def _versions(self, arrived: pa.Table, stored: pa.Table) -> tuple[pa.Table, Any]:
        """Return all versions, each once, and a mask of those that are new."""
        import numpy as np
        import pyarrow as pa

        names = [GROUP, *self.on, "_row", *self.sides[1].stored, "_at"]
        codes, stored_codes = codes_of([arrived.select(["_row"]), stored.select(["_row"])], ["_row"])
        first, _ = distinct_codes(codes)
        new = arrived.rename_columns(names).take(pa.array(first[~np.isin(codes[first], stored_codes)]))
        rows = pa.concat_tables([stored.select(names), new], promote_options="default").combine_chunks()
        return rows, np.repeat([False, True], [stored.num_rows, new.num_rows])

    def _joined_batches(self, ready: pa.Table, versions: pa.Table, matches: Any) -> Iterator[pa.Table]:
        """Yield the rows of the result. matches: the position of each row's version, or -1."""
        copies = ready["_n"].to_numpy()
        if not self.outer:
            copies = copies * (matches >= 0)
        for positions, _ in repeat_positions(copies):
            matched = positions[matches[positions] >= 0]
            yield joined(self.on, self.sides, (ready, matched), (versions, matches[matched]))
            if len(matched) < len(positions):
                yield joined(self.on, self.sides, (ready, positions[matches[positions] < 0]), (versions, None))


@dataclass(frozen=True)
class _Versions:
    """Versions, sorted by key, time and id."""

    rows: pa.Table
    is_new: Any
    codes: Any
    times: Any

    @classmethod
    def from_rows(cls, rows: pa.Table, is_new: Any, codes: Any) -> _Versions:
        """codes: a number for each row's key."""
        import pyarrow as pa

        times, ids = integers(rows["_at"]), ranks_and_values(rows["_row"])
        assert ids is not None
        order = order_by(codes, times, ids[0])
        return cls(rows.take(pa.array(order)), is_new[order], codes[order], times[order])

    def last_before(self, codes: Any, times: Any) -> Any:
        """Return for each key and time the position of the key's last version that is not newer, or -1."""
        import numpy as np

        distinct = np.unique(self.times)
        ranks = len(distinct) + 1  # with it, a key and a time are one number
        ordered = self.codes * ranks + np.searchsorted(distinct, self.times)
        after = np.searchsorted(ordered, codes * ranks + np.searchsorted(distinct, times, side="right"))
        exists = np.searchsorted(self.codes, codes) < after
        return np.where(exists, after - 1, -1)

    def changes(self, now: int | None) -> pa.Table:
        """Return the new versions, and the outdated ones, which no future row can match.

        A version is outdated once the watermark has passed its successor.
        """
        import numpy as np
        import pyarrow as pa

        is_outdated = np.zeros(len(self.times), bool)
        if now is not None:
            has_successor = self.codes[1:] == self.codes[:-1]
            is_outdated[:-1] = has_successor & (self.times[1:] <= min(now, AFTER_ALL_TIMES))
        # A version that is new and outdated was never stored, so it needs no deletion.
        chosen = np.flatnonzero(self.is_new != is_outdated)
        rows = self.rows.take(pa.array(chosen))
        return rows.append_column(DELETED, pa.array(is_outdated[chosen]))
