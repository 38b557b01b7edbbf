"""Writes a state as one file for a copy, instead of many runs with outdated rows.

Arrow does it in this process, for states on local disks with types that workers can merge, and not too many rows. Other
states are copied file by file, which is as correct, but slower.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate import seams
from tidegate.delta import Location
from tidegate.delta.files.footers import describe
from tidegate.records.codec import sha256
from tidegate.state.arrow.sorted_files import Writer, merged
from tidegate.state.arrow.workers import MERGED_ROWS, layout_of, merges, runs_of, writes
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP
from tidegate.state.record import StateTable, state_file

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["as_one_file"]

_FOLDER = "tidegate/whole"


def as_one_file(table: StateTable, source: Location, target: Location) -> StateTable | None:
    """Write each key's newest row, without deleted ones, as one file into `target`. None: copy the files instead.

    Repeatable: the same rows result in the same file with the same name.
    """
    if len(table.files) < 2 or not (source.is_local and target.is_local and _can_be_merged(table)):
        return None
    rows = _rows(table, source)
    if not rows.num_rows:
        return None
    path = _write(table, rows, target)
    target.sync([path])
    file = describe(target, path, table.columns, {})
    return msgspec.structs.replace(table, files=[state_file(file)])


def _can_be_merged(table: StateTable) -> bool:
    names = {field["name"] for field in table.columns["fields"]}
    if not {GROUP, CHECKPOINT, DELETED} <= names:
        return False
    if not writes(table.columns) or not merges(table.columns, table.keys, {}):
        return False
    return sum(file.file.rows for file in table.files) <= MERGED_ROWS


def _rows(table: StateTable, source: Location) -> pa.Table:
    import pyarrow.compute as pc

    rows = merged(layout_of(table.columns, table.keys, source), runs_of(table.files, source), range(table.groups))
    return rows.filter(pc.invert(rows[DELETED]))


def _write(table: StateTable, rows: Any, target: Location) -> str:
    """Write the rows under a name that is a hash of the file's content."""
    temporary = f"{_FOLDER}/{seams.new_id()}.tmp"
    writer = Writer(layout_of(table.columns, table.keys, target), target.full(temporary))
    writer.write(rows)
    writer.close()
    path = f"{_FOLDER}/{sha256(target.local(temporary).read_bytes())[:32]}.parquet"
    os.replace(target.local(temporary), target.local(path))
    return path
