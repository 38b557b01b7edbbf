"""Recognise rows that a backfill quarantines again: those that are as they were keep their ids and checkpoints.

Requests name rows by these (`Request`). So what somebody has asked about a row is found again if it has the same values
and breaks the same rules. All others get the number of the entry that brings them in: nobody has seen them before, so
nothing that was asked before is about them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from tidegate.delta import Snapshot
from tidegate.delta.arrow_types import arrow_schema, conform
from tidegate.delta.as_python import python_rows
from tidegate.delta.dataset import dataset
from tidegate.gates.quarantine.columns import CHECKPOINT, ID, RULES, SETTLED, SETTLED_BY, SETTLED_IN, STAYS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["recognised"]

_NOT_CONTENT = {ID, CHECKPOINT, SETTLED, SETTLED_IN, SETTLED_BY, STAYS}
_BATCH_ROWS = 10_000


def recognised(again: Snapshot, before: Snapshot | None, since: int, number: int) -> Iterator[pa.Table]:
    """Yield the rows that were quarantined again, with the ids and checkpoints of those that they are.

    before: the quarantine until now; None: nothing is to be recognised. since: its rows of later checkpoints only, for
    all others stay. number: the checkpoint of all other rows.
    """
    import pyarrow as pa

    known = _by_content(before, since) if before is not None else {}
    schema = arrow_schema(again.schema, [field["name"] for field in again.schema["fields"]])
    for batch in dataset(again).to_batches(batch_size=_BATCH_ROWS):
        rows = pa.Table.from_batches([batch])
        found = [known[key].popleft() if known.get(key) else None for key in _contents(rows)] if known else []
        own = rows.column(ID).to_pylist() if found else []
        fixed = {
            ID: pa.array([pair[0] if pair else id for pair, id in zip(found, own, strict=True)], pa.string()),
            CHECKPOINT: pa.array([pair[1] if pair else number for pair in found], pa.int64()),
        }
        if not found:
            fixed = {ID: rows.column(ID), CHECKPOINT: pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows)}
        for name, column in fixed.items():
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        yield conform(rows, schema, rows.num_rows, {})


def _by_content(before: Snapshot, since: int) -> dict[bytes, deque[tuple[str, int]]]:
    """Return the ids and checkpoints of the rows with each content: several rows may have the same."""
    import pyarrow.compute as pc

    known: dict[bytes, deque[tuple[str, int]]] = defaultdict(deque)
    for batch in dataset(before).to_batches(filter=pc.field(CHECKPOINT) > since, batch_size=_BATCH_ROWS):
        names = zip(batch.column(ID).to_pylist(), batch.column(CHECKPOINT).to_pylist(), strict=True)
        for key, name in zip(_contents(batch), names, strict=True):
            known[key].append(name)
    return known


def _contents(rows: Any) -> Iterator[bytes]:
    """Yield for each row what tells it from others: its values, its stream, and the rules that it breaks. A column that
    is not there is one without a value."""
    names = sorted(name for name in rows.schema.names if name not in _NOT_CONTENT)
    for row in python_rows(rows.select(names)):
        row[RULES] = sorted(row[RULES] or ())
        present = [(name, value) for name, value in row.items() if value is not None]
        yield blake2b(repr(present).encode(), digest_size=16).digest()
