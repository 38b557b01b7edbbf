"""SQL over versions of tables, through delta-rs: for people who investigate.

Its engine refuses to read a file with a text that is not valid UTF-8, which Spark writes. The rows are then copied,
with such texts as `readable_text` writes them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate.delta.as_python import python_values
from tidegate.delta.dataset import dataset

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from tidegate.delta.log.snapshot import Snapshot

__all__ = ["query", "read_table", "sql_name"]

_NO_UTF8 = re.compile(r"(non|invalid) utf-?8", re.IGNORECASE)


def read_table(snapshot: Snapshot, columns: list[str] | None = None, limit: int | None = None) -> pa.Table:
    """Return the rows of the version, for display; pipelines let Spark read the files."""
    selected = ", ".join(sql_name(name) for name in columns) if columns else "*"
    return query(
        {"version": snapshot}, f"SELECT {selected} FROM version" + (f" LIMIT {int(limit)}" if limit is not None else "")
    )


def query(tables: Mapping[str, Snapshot], sql: str) -> pa.Table:
    """Run an SQL query over some versions, under these names."""
    try:
        return _ask({name: snapshot.handle for name, snapshot in tables.items()}, sql)
    except Exception as error:
        if not _NO_UTF8.search(str(error)):
            raise
    with tempfile.TemporaryDirectory(prefix="tidegate-readable-") as folder:
        copies = {name: _readable_copy(snapshot, f"{folder}/{name}") for name, snapshot in tables.items()}
        return _ask(copies, sql)


def sql_name(name: str) -> str:
    """Return a column's name as `query` takes it."""
    return '"' + name.replace('"', '""') + '"'


def _ask(tables: Mapping[str, DeltaTable], sql: str) -> pa.Table:
    import pyarrow as pa
    from deltalake import QueryBuilder

    builder = QueryBuilder()
    for name, table in tables.items():
        builder = builder.register(name, table)
    return pa.table(builder.execute(sql))


def _readable_copy(snapshot: Snapshot, path: str) -> DeltaTable:
    """Return a table of the same rows, in which all texts are valid."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    rows = dataset(snapshot).to_table()
    for place, field in enumerate(rows.schema):
        column = rows.column(place)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            rows = rows.set_column(place, field, pa.array(python_values(column), field.type))
    write_deltalake(path, rows)
    return DeltaTable(path)
