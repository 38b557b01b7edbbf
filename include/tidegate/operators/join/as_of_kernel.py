"""The kernel of joins as of event time: rows that wait, and the versions that they meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.kernel import FROM_RIGHT, JoinSide, joined, repeat_positions
from tidegate.operators.join.time_bounds import LATE_OUTPUT
from tidegate.operators.kernels.waiting import WaitingRows
from tidegate.records.moments import AFTER_ALL_TIMES
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult
from tidegate.state.arrow.keys_as_numbers import codes_of, integers, ranks_and_values
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsOfInWorkers"]


@dataclass(frozen=True)
class AsOfInWorkers(Kernel):
    """Gives each row of the left side that is ready, with the last version that is not newer than it."""

    on: Sequence[str]
    sides: tuple[JoinSide, JoinSide]
    waiting: WaitingRows
    """Lets the left side's rows wait."""
    outer: bool
    """Whether rows that meet no version are given, too."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        waited = self.waiting(self._side(arrived, 0), stored[0])
        rows, is_new = self._versions(self._side(arrived, 1), stored[1])
        ready = waited.ready
        codes, of_versions = codes_of([ready.select(self.on), rows.select(self.on)], self.on)
        versions = _Versions.of(rows, is_new, of_versions)
        met = versions.last_before(codes, integers(ready["_at"]))
        return KernelResult(
            [waited.changes, versions.changes(self.waiting.now)],
            self._joined_batches(ready, versions.rows, met),
            waited.counts,
            {LATE_OUTPUT: waited.late},
        )

    def needs_match(self, arrived: pa.Table, place: int) -> Any:
        """Of rows that wait only copies are needed; of versions all of the key, by versions and by rows that are
        ready."""
        import pyarrow.compute as pc

        if place == 0:
            return self.waiting.none(arrived)
        return pc.or_(arrived[FROM_RIGHT], self.waiting.are_ready(arrived))

    def _side(self, arrived: pa.Table, place: int) -> pa.Table:
        """Return the rows of a side, with its columns of the batch."""
        import pyarrow.compute as pc

        of_side = arrived[FROM_RIGHT] if place else pc.invert(arrived[FROM_RIGHT])
        return arrived.select([GROUP, *self.on, "_row", *self.sides[place].values.values(), "_at"]).filter(of_side)

    def _versions(self, arrived: pa.Table, stored: pa.Table) -> tuple[pa.Table, Any]:
        """Return all versions, each once, and a mask of those that are new."""
        import numpy as np
        import pyarrow as pa

        side, keys = self.sides[1], [*self.on, "_row"]
        names = [GROUP, *keys, *side.stored, "_at"]
        codes, known = codes_of([arrived.select(keys), stored.select(keys)], keys)
        distinct, first = np.unique(codes, return_index=True)
        new = arrived.rename_columns(names).take(pa.array(first[~np.isin(distinct, known)]))
        rows = pa.concat_tables([stored.select(names), new], promote_options="default").combine_chunks()
        return rows, np.repeat([False, True], [stored.num_rows, new.num_rows])

    def _joined_batches(self, ready: pa.Table, versions: pa.Table, met: Any) -> Iterator[pa.Table]:
        """Yield the rows of the result. met: for each row the place of the version that it meets; -1: none."""
        copies = ready["_n"].to_numpy()
        if not self.outer:
            copies = copies * (met >= 0)
        for places, _ in repeat_positions(copies):
            found = places[met[places] >= 0]
            yield joined(self.on, self.sides, (ready, found), (versions, met[found]))
            if len(found) < len(places):
                yield joined(self.on, self.sides, (ready, places[met[places] < 0]), (versions, None))


@dataclass(frozen=True)
class _Versions:
    """Versions in the order of keys and times; of those of one time in the order of their ids."""

    rows: pa.Table
    is_new: Any
    codes: Any
    at: Any

    @classmethod
    def of(cls, rows: pa.Table, is_new: Any, codes: Any) -> _Versions:
        """codes: a number for each row's key."""
        import numpy as np
        import pyarrow as pa

        at, ids = integers(rows["_at"]), ranks_and_values(rows["_row"])
        assert ids is not None
        order = np.lexsort((ids[0], at, codes))
        return cls(rows.take(pa.array(order)), is_new[order], codes[order], at[order])

    def last_before(self, codes: Any, at: Any) -> Any:
        """Return for keys and times the place of the last version of the key that is not newer; -1: there is none."""
        import numpy as np

        distinct = np.unique(self.at)
        ranks = len(distinct) + 1  # a key and a time as one number
        ordered = self.codes * ranks + np.searchsorted(distinct, self.at)
        after = np.searchsorted(ordered, codes * ranks + np.searchsorted(distinct, at, side="right"))
        found = np.searchsorted(self.codes, codes) < after
        return np.where(found, after - 1, -1)

    def changes(self, now: int | None) -> pa.Table:
        """Return the new ones, and those that no row to come can meet, for a newer one has taken over by now."""
        import numpy as np
        import pyarrow as pa

        over = np.zeros(len(self.at), bool)
        if now is not None:
            over[:-1] = (self.codes[1:] == self.codes[:-1]) & (self.at[1:] <= min(now, AFTER_ALL_TIMES))
        chosen = np.flatnonzero(self.is_new != over)
        rows = self.rows.take(pa.array(chosen))
        return rows.append_column(DELETED, pa.array(over[chosen]))
