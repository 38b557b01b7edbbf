"""Recognises rows that a backfill quarantines again: unchanged rows keep their ids and checkpoints.

Requests refer to rows by these (`Request`), so requests about a row still apply if it has the same values and breaks
the same rules. All other rows are new: they get the number of the entry that swaps the backfill in, and no earlier
request applies to them.
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
from tidegate.gates.quarantine.columns import BOOKKEEPING, CHECKPOINT, ID, RULES, SETTLED, SETTLED_IN

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["recognised"]

_BATCH_ROWS = 10_000


def recognised(again: Snapshot, before: Snapshot | None, since: int, number: int) -> Iterator[pa.Table]:
    """Yield the rows that were quarantined again, with the ids and checkpoints that they had before.

    again: the backfill's quarantine.
    before: the pipeline's quarantine, of which rows are recognised; None if none are.
    since: considers only rows of `before` from later checkpoints. Earlier ones are not replaced.
    number: the checkpoint of rows that are new.
    """
    import pyarrow as pa

    earlier_rows = _read_earlier_rows(before, since) if before is not None else _EarlierRows()
    schema = arrow_schema(again.schema, [field["name"] for field in again.schema["fields"]])
    if earlier_rows:
        earlier_rows.reserve_settled(_settled(again))
    for batch in dataset(again).to_batches(batch_size=_BATCH_ROWS):
        rows = pa.Table.from_batches([batch])
        if earlier_rows:
            columns = _recognised_columns(rows, earlier_rows, number)
        else:
            columns = {CHECKPOINT: pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows)}
        yield conform(_with_columns(rows, columns), schema, rows.num_rows, {})


def _recognised_columns(rows: pa.Table, earlier_rows: _EarlierRows, number: int) -> dict[str, Any]:
    import pyarrow as pa

    ids, checkpoints = [], []
    settled_in: list[int | None] = []
    columns = (_values(rows, name) for name in (ID, SETTLED, SETTLED_IN))
    for content, id, outcome, settled_checkpoint in zip(_contents(rows), *columns, strict=True):
        earlier = earlier_rows.claim(content, outcome is not None)
        ids.append(earlier.id if earlier else id)
        checkpoints.append(earlier.checkpoint if earlier else number)
        if settled_checkpoint is None:
            settled_in.append(None)
        else:
            settled_in.append((earlier.settled_in if earlier else None) or number)
    return {
        ID: pa.array(ids, pa.string()),
        CHECKPOINT: pa.array(checkpoints, pa.int64()),
        SETTLED_IN: pa.array(settled_in, pa.int64()),
    }


def _with_columns(rows: pa.Table, columns: dict[str, Any]) -> pa.Table:
    """Replace columns, if the table has them."""
    for name, column in columns.items():
        if name in rows.schema.names:
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _values(rows: Any, name: str) -> list[Any]:
    values: list[Any] = rows.column(name).to_pylist() if name in rows.schema.names else [None] * rows.num_rows
    return values


@dataclass(frozen=True)
class _EarlierRow:
    id: str
    checkpoint: int
    settled_in: int | None


class _EarlierRows:
    """The rows of the pipeline's quarantine, by their content and whether they are settled."""

    def __init__(self) -> None:
        self._rows: dict[tuple[bytes, bool], deque[_EarlierRow]] = defaultdict(deque)
        self._reserved: Counter[bytes] = Counter()

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, content: bytes, row: _EarlierRow) -> None:
        self._rows[content, row.settled_in is not None].append(row)

    def reserve_settled(self, settled: Iterator[bytes]) -> None:
        """Reserve settled rows for rows that are settled again. Otherwise a request could release a row twice."""
        self._reserved.update(settled)

    def claim(self, content: bytes, settled: bool) -> _EarlierRow | None:
        """Return an earlier row with this content, each one once. Rows that are settled alike come first."""
        if settled:
            self._reserved[content] -= 1
        alike, unlike = self._rows.get((content, settled)), self._rows.get((content, not settled))
        if alike:
            return alike.popleft()
        if unlike and (settled or len(unlike) > self._reserved[content]):
            return unlike.popleft()
        return None


def _settled(again: Snapshot) -> Iterator[bytes]:
    import pyarrow.compute as pc

    rows = dataset(again)
    if SETTLED in rows.schema.names:
        for batch in rows.to_batches(filter=pc.field(SETTLED).is_valid(), batch_size=_BATCH_ROWS):
            yield from _contents(batch)


def _read_earlier_rows(before: Snapshot, since: int) -> _EarlierRows:
    """Return the rows of checkpoints after `since`."""
    import pyarrow.compute as pc

    earlier_rows = _EarlierRows()
    for batch in dataset(before).to_batches(filter=pc.field(CHECKPOINT) > since, batch_size=_BATCH_ROWS):
        columns = [_values(batch, name) for name in (ID, CHECKPOINT, SETTLED, SETTLED_IN)]
        for content, id, checkpoint, outcome, settled_in in zip(_contents(batch), *columns, strict=True):
            earlier_rows.add(content, _EarlierRow(id, checkpoint, settled_in if outcome is not None else None))
    return earlier_rows


def _contents(rows: Any) -> Iterator[bytes]:
    """Yield a hash of each row's content: its values, its stream, and the rules that it breaks.

    Nulls are not part of it, so a missing column equals a column of nulls.
    """
    names = sorted(name for name in rows.schema.names if name not in BOOKKEEPING)
    for row in python_rows(rows.select(names)):
        row[RULES] = sorted(row[RULES] or ())
        present = [(name, value) for name, value in row.items() if value is not None]
        yield blake2b(repr(present).encode(), digest_size=16).digest()
