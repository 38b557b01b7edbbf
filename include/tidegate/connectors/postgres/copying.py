"""Copies rows from staged files into a table, directly or through a temporary table."""

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
"""The name of the temporary table."""


def copy_rows(cursor: Any, batches: Iterator[pa.RecordBatch], table: TableName | None) -> None:
    """Copy rows in binary form into a table, or into the temporary one if `table` is None."""
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
    """Create an empty temporary table, which is dropped at the end of the transaction."""
    cursor.execute(f"DROP TABLE IF EXISTS pg_temp.{STAGED}")
    definitions = []
    for name, data_type in columns.items():
        definitions.append(f"{quoted_name(name)} {'text' if data_type == 'jsonb' else data_type}")
    cursor.execute(f"CREATE TEMPORARY TABLE {STAGED} ({', '.join(definitions)}) ON COMMIT DROP")


def insert_list(names: Iterable[str]) -> str:
    """Return the list of columns for an INSERT."""
    return ", ".join(map(quoted_name, names))


def select_list(columns: Mapping[str, str], table: FoundTable) -> str:
    """Return the expressions that select the staged columns in the types of the table."""
    selected = []
    for name, data_type in columns.items():
        column_type = table.columns[name].type
        cast = "" if is_copied(data_type, column_type) else cast_to(column_type)
        selected.append(f"staged.{quoted_name(name)}{cast}")
    return ", ".join(selected)


def cast_to(column: str) -> str:
    """Return the cast of a staged value to the type of a column, or "" if none is needed."""
    if column.startswith("character varying"):
        return ""  # a cast would truncate a text that is too long, which is an error without it
    return f"::{column}"
