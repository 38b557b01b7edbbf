"""The kernel of `EmitEvery`: a stream's net changes, in which rows added and retracted in between cancel out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.kernel import repeat_positions
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult, current_and_retracted
from tidegate.state.arrow.keys_as_numbers import codes_of, distinct_codes
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NetChanges"]


@dataclass(frozen=True)
class NetChanges(Kernel):
    """Adds up the changes of each row. A row has its id in `_row`, and the change of its number of copies in `_n`."""

    columns: Sequence[str]
    emits: bool
    """Whether all pending changes are emitted now."""
    retracts: bool
    """Whether rows can be retracted."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        pending = stored[0].select(self._names)
        rows, first = _summed(pa.concat_tables([pending, arrived.select(self._names)], promote_options="permissive"))
        if self.emits:
            is_pending = np.zeros(len(first), bool)
        else:
            is_pending = rows["_n"].to_numpy() != 0
        is_changed = pa.array(is_pending | (first < pending.num_rows))
        changes = rows.append_column(DELETED, pa.array(~is_pending)).filter(is_changed)
        return KernelResult([changes], self._signed_copies(rows) if self.emits else ())

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return each row once, with its net change."""
        return _summed(arrived)[0].select(arrived.column_names)

    @property
    def _names(self) -> list[str]:
        return [GROUP, "_row", *self.columns, "_n"]

    def _signed_copies(self, rows: pa.Table) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        copies, values = rows["_n"].to_numpy(), rows.select(list(self.columns))
        for is_current, sizes in ((True, copies), (False, -copies)):
            for positions, _ in repeat_positions(np.maximum(sizes, 0)):
                chunk = values.take(pa.array(positions))
                if self.retracts:
                    yield from current_and_retracted([(is_current, chunk)], self.columns)
                else:
                    yield chunk


def _summed(rows: pa.Table) -> tuple[pa.Table, Any]:
    """Return each distinct row with the sum of its changes, and the position of its first occurrence."""
    import numpy as np
    import pyarrow as pa

    (codes,) = codes_of([rows.select(["_row"])], ["_row"])
    first, row_number = distinct_codes(codes)
    copies = np.zeros(len(first), np.int64)
    np.add.at(copies, row_number, rows["_n"].to_numpy())
    return rows.take(pa.array(first)).drop_columns("_n").append_column("_n", pa.array(copies)), first
