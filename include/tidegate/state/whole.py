"""A state as one file: a copy takes it along instead of many runs, whose rows may be half outdated.

Done by Arrow, in this process: for states on local disks, of types that workers merge too, and not too many rows. Any
other state is copied file by file, which is as right, only slower.
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
    """Write the state as one file into `target`: each key's newest row, without deleted ones. None: copy it as it is.

    Repeatable: the same rows make the same file, under the same name.
    """
    if len(table.files) < 2 or not (source.is_local and target.is_local and _can_be_merged(table)):
        return None
    rows = _rows(table, source)
    if not rows.num_rows:
        return None
    path = _written(table, rows, target)
    target.sync([path])
    file = describe(target, path, table.columns, {})
    return msgspec.structs.replace(table, files=[state_file(file)])


def _can_be_merged(table: StateTable) -> bool:
    names = {field["name"] for field in table.columns["fields"]}
    can_merge = (
        {GROUP, CHECKPOINT, DELETED} <= names and writes(table.columns) and merges(table.columns, table.keys, {})
    )
    return can_merge and sum(file.file.rows for file in table.files) <= MERGED_ROWS


def _rows(table: StateTable, source: Location) -> pa.Table:
    import pyarrow.compute as pc

    rows = merged(layout_of(table.columns, table.keys, source), runs_of(table.files, source), range(table.groups))
    return rows.filter(pc.invert(rows[DELETED]))


def _written(table: StateTable, rows: Any, target: Location) -> str:
    temporary = f"{_FOLDER}/{seams.new_id()}.tmp"
    writer = Writer(layout_of(table.columns, table.keys, target), target.full(temporary))
    writer.write(rows)
    writer.close()
    path = f"{_FOLDER}/{sha256(target.local(temporary).read_bytes())[:32]}.parquet"
    os.replace(target.local(temporary), target.local(path))
    return path
