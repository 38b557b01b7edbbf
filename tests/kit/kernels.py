"""An operator's kernel, called without Spark: its rows and its states are Python's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

__all__ = ["State", "apply", "looked_up", "stored", "table"]

Fields = Sequence[tuple[str, pa.DataType]]
State = dict[Any, dict[str, Any]]


def table(rows: Sequence[dict[str, Any]], fields: Fields) -> pa.Table:
    return pa.Table.from_pylist([{"_group": 0, **row} for row in rows], pa.schema(fields))


def stored(state: State, fields: Fields) -> pa.Table:
    return table(list(state.values()), fields)


def apply(state: State, changes: pa.Table, keys: Sequence[str]) -> None:
    """Carry out what a worker says has changed: each key at most once."""
    seen = set()
    for row in changes.to_pylist():
        key = tuple(row[name] for name in keys)
        assert key not in seen, "a key changes twice"
        seen.add(key)
        if row.pop("_deleted"):
            assert state.pop(key, None) is not None, "what was not there is deleted"
        else:
            state[key] = row


def looked_up(state: State, arrived: pa.Table, meets: Any) -> list[dict[str, Any]]:
    """All that is stored under the keys of some rows; of those of others only copies."""
    rows, whole = arrived.to_pylist(), meets.to_pylist()
    keys = {row["k"] for row, is_so in zip(rows, whole, strict=True) if is_so}
    copies = {(row["k"], row["_row"]) for row, is_so in zip(rows, whole, strict=True) if not is_so}
    return [row for row in state.values() if row["k"] in keys or (row["k"], row["_row"]) in copies]
