"""Rows on their way from staged files into a table: copied into it directly, or through a temporary table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidegate.connectors.postgres import FoundTable, TableName, quoted_name
from tidegate.connectors.postgres.types import is_copied

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["STAGED", "cast_to", "copy_rows", "insert_list", "make_staged", "select_list"]

STAGED: Final = "tidegate_staged"
"""The temporary table."""


def copy_rows(cursor: Any, batches: Iterator[pa.RecordBatch], table: TableName | None) -> None:
    """Copy rows in binary form into a table. None: into the temporary one."""
    import pyarrow as pa

    first = next(batches, None)
    if first is None:
        return
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    if table is None:
        cursor.adbc_ingest(STAGED, reader, mode="append", temporary=True)
    else:
        cursor.adbc_ingest(table.name, reader, mode="append", db_schema_name=table.schema)


def make_staged(cursor: Any, columns: Mapping[str, str]) -> None:
    """Make the temporary table anew. It is gone when the transaction ends."""
    cursor.execute(f"DROP TABLE IF EXISTS pg_temp.{STAGED}")
    listed = ", ".join(f"{quoted_name(name)} {'text' if kind == 'jsonb' else kind}" for name, kind in columns.items())
    cursor.execute(f"CREATE TEMPORARY TABLE {STAGED} ({listed}) ON COMMIT DROP")


def insert_list(names: Iterable[str]) -> str:
    """Return the columns to insert into."""
    return ", ".join(map(quoted_name, names))


def select_list(columns: Mapping[str, str], table: FoundTable) -> str:
    """Return the staged columns, in the types of the table."""
    return ", ".join(
        f"staged.{quoted_name(name)}"
        + ("" if is_copied(kind, table.columns[name].type) else cast_to(table.columns[name].type))
        for name, kind in columns.items()
    )


def cast_to(column: str) -> str:
    """Return the cast of a staged value to the type of a column."""
    # Without a cast, a text that is too long is an error; with one, it would be cut off.
    return "" if column.startswith("character varying") else f"::{column}"
