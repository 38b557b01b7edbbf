"""The kernel of changes that wait: what has come and gone before they are given is nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.operators.join.kernel import repeat_positions
from tidegate.state.arrow.kernel_worker import Kernel, KernelResult, current_and_retracted
from tidegate.state.arrow.keys_as_numbers import codes_of
from tidegate.state.columns import DELETED, GROUP

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NetChanges"]


@dataclass(frozen=True)
class NetChanges(Kernel):
    """Rows with their ids (`_row`), and by how many copies (`_n`) each changes."""

    columns: Sequence[str]
    gives: bool
    """Whether all that waits is given now."""
    replaces: bool
    """Whether rows are taken back."""

    def __call__(self, arrived: pa.Table, stored: Sequence[pa.Table]) -> KernelResult:
        import numpy as np
        import pyarrow as pa

        waiting = stored[0].select(self._names)
        rows, first = _summed(pa.concat_tables([waiting, arrived.select(self._names)], promote_options="permissive"))
        waits = np.zeros(len(first), bool) if self.gives else rows["_n"].to_numpy() != 0
        changed = pa.array(waits | (first < waiting.num_rows))
        changes = rows.append_column(DELETED, pa.array(~waits)).filter(changed)
        return KernelResult([changes], self._signed_copies(rows) if self.gives else ())

    def combine(self, arrived: pa.Table) -> pa.Table:
        """Return each row once."""
        return _summed(arrived)[0].select(arrived.column_names)

    @property
    def _names(self) -> list[str]:
        return [GROUP, "_row", *self.columns, "_n"]

    def _signed_copies(self, rows: pa.Table) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        copies, values = rows["_n"].to_numpy(), rows.select(list(self.columns))
        for is_now, sizes in ((True, copies), (False, -copies)):
            for places, _ in repeat_positions(np.maximum(sizes, 0)):
                some = values.take(pa.array(places))
                yield from current_and_retracted([(is_now, some)], self.columns) if self.replaces else [some]


def _summed(rows: pa.Table) -> tuple[pa.Table, Any]:
    """Return each row once, with the copies of all of its kind; and the place of each, the first of its kind."""
    import numpy as np
    import pyarrow as pa

    (codes,) = codes_of([rows.select(["_row"])], ["_row"])
    _, first, of = np.unique(codes, return_index=True, return_inverse=True)
    copies = np.zeros(len(first), np.int64)
    np.add.at(copies, of, rows["_n"].to_numpy())
    return rows.take(pa.array(first)).drop_columns("_n").append_column("_n", pa.array(copies)), first
