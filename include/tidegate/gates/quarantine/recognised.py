"""Recognise rows that a backfill quarantines again: those that are as they were keep their ids and checkpoints.

Requests name rows by these (`Request`). So what somebody has asked about a row is found again if it has the same values
and breaks the same rules. All others get the number of the entry that brings them in: nobody has seen them before, so
nothing that was asked before is about them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
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

    known = _rows_by_content(before, since) if before is not None else _KnownRows()
    schema = arrow_schema(again.schema, [field["name"] for field in again.schema["fields"]])
    if known:
        known.keep_until_settled(_settled(again))
    for batch in dataset(again).to_batches(batch_size=_BATCH_ROWS):
        rows = pa.Table.from_batches([batch])
        if not known:
            numbers = pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows)
            yield conform(_with_row(rows, {CHECKPOINT: numbers}), schema, rows.num_rows, {})
            continue
        settled = _values(rows, SETTLED)
        found = [known.claim(key, end is not None) for key, end in zip(_contents(rows), settled, strict=True)]
        own, ends = _values(rows, ID), _values(rows, SETTLED_IN)
        settled_in = [
            None if end is None else (row.settled_in if row else None) or number
            for end, row in zip(ends, found, strict=True)
        ]
        fixed = {
            ID: pa.array([row.id if row else id for row, id in zip(found, own, strict=True)], pa.string()),
            CHECKPOINT: pa.array([row.checkpoint if row else number for row in found], pa.int64()),
            SETTLED_IN: pa.array(settled_in, pa.int64()),
        }
        yield conform(_with_row(rows, fixed), schema, rows.num_rows, {})


def _with_row(rows: pa.Table, columns: dict[str, Any]) -> pa.Table:
    for name, column in columns.items():
        if name not in rows.schema.names:
            continue
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _values(rows: Any, name: str) -> list[Any]:
    values: list[Any] = rows.column(name).to_pylist() if name in rows.schema.names else [None] * rows.num_rows
    return values


@dataclass(frozen=True)
class _KnownRow:
    id: str
    checkpoint: int
    settled_in: int | None


class _KnownRows:
    """The rows of the quarantine until now, by what they hold, and whether they still wait there."""

    def __init__(self) -> None:
        self._rows: dict[tuple[bytes, bool], deque[_KnownRow]] = defaultdict(deque)
        self._kept: Counter[bytes] = Counter()

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, key: bytes, row: _KnownRow) -> None:
        self._rows[key, row.settled_in is not None].append(row)

    def keep_until_settled(self, settled: Iterator[bytes]) -> None:
        """Keep settled rows for those that are settled again: else a request would let one out twice."""
        self._kept.update(settled)

    def claim(self, key: bytes, settled: bool) -> _KnownRow | None:
        """Return a row with this content, each once: one that is settled or not, as it is now, if there is one."""
        if settled:
            self._kept[key] -= 1
        alike, unlike = self._rows.get((key, settled)), self._rows.get((key, not settled))
        if alike:
            return alike.popleft()
        if unlike and (settled or len(unlike) > self._kept[key]):
            return unlike.popleft()
        return None


def _settled(again: Snapshot) -> Iterator[bytes]:
    import pyarrow.compute as pc

    rows = dataset(again)
    if SETTLED in rows.schema.names:
        for batch in rows.to_batches(filter=pc.field(SETTLED).is_valid(), batch_size=_BATCH_ROWS):
            yield from _contents(batch)


def _rows_by_content(before: Snapshot, since: int) -> _KnownRows:
    """Return the rows of later checkpoints, by content: several rows may have the same."""
    import pyarrow.compute as pc

    known = _KnownRows()
    for batch in dataset(before).to_batches(filter=pc.field(CHECKPOINT) > since, batch_size=_BATCH_ROWS):
        columns = [_values(batch, name) for name in (ID, CHECKPOINT, SETTLED, SETTLED_IN)]
        for key, (id, checkpoint, settled, settled_in) in zip(
            _contents(batch), zip(*columns, strict=True), strict=True
        ):
            known.add(key, _KnownRow(id, checkpoint, settled_in if settled is not None else None))
    return known


def _contents(rows: Any) -> Iterator[bytes]:
    """Yield for each row what tells it from others: its values, its stream, and the rules that it breaks. A column that
    is not there is one without a value."""
    names = sorted(name for name in rows.schema.names if name not in _NOT_CONTENT)
    for row in python_rows(rows.select(names)):
        row[RULES] = sorted(row[RULES] or ())
        present = [(name, value) for name, value in row.items() if value is not None]
        yield blake2b(repr(present).encode(), digest_size=16).digest()
