"""SQL queries over versions of tables, through delta-rs, for people who investigate.

Its engine refuses to read files with texts that are not valid UTF-8, which Spark can write. The rows are then copied,
with such texts converted by `readable_text`. Tables whose columns have become wider are copied, too.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate.delta.as_python import python_values
from tidegate.delta.dataset import dataset
from tidegate.delta.log.commit_file import TYPE_WIDENING

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from tidegate.delta.log.snapshot import Snapshot

__all__ = ["query", "read_table", "sql_name"]

_INVALID_UTF8 = re.compile(r"(non|invalid) utf-?8", re.IGNORECASE)


def read_table(snapshot: Snapshot, columns: list[str] | None = None, limit: int | None = None) -> pa.Table:
    """Return the rows of the version, for display. In pipelines, Spark reads the files."""
    selected = ", ".join(map(sql_name, columns)) if columns else "*"
    sql = f"SELECT {selected} FROM version"
    if limit is not None:
        sql += f" LIMIT {int(limit)}"
    return query({"version": snapshot}, sql)


def query(tables: Mapping[str, Snapshot], sql: str) -> pa.Table:
    """Run an SQL query over versions of tables, by the names that the query uses."""
    try:
        if not any(TYPE_WIDENING in snapshot.protocol.features for snapshot in tables.values()):
            return _run({name: snapshot.handle for name, snapshot in tables.items()}, sql)
    except Exception as error:
        if not _INVALID_UTF8.search(str(error)):
            raise
    with tempfile.TemporaryDirectory(prefix="tidegate-readable-") as folder:
        copies = {}
        for name, snapshot in tables.items():
            copies[name] = _readable_copy(snapshot, f"{folder}/{name}")
        return _run(copies, sql)


def sql_name(name: str) -> str:
    """Return a column's name as it is quoted in SQL for `query`."""
    return '"' + name.replace('"', '""') + '"'


def _run(tables: Mapping[str, DeltaTable], sql: str) -> pa.Table:
    import pyarrow as pa
    from deltalake import QueryBuilder

    builder = QueryBuilder()
    for name, table in tables.items():
        builder = builder.register(name, table)
    return pa.table(builder.execute(sql))


def _readable_copy(snapshot: Snapshot, path: str) -> DeltaTable:
    """Write a copy of the rows in which all texts are valid."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    rows = dataset(snapshot).to_table()
    for index, field in enumerate(rows.schema):
        column = rows.column(index)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            rows = rows.set_column(index, field, pa.array(python_values(column), field.type))
    write_deltalake(path, rows)
    return DeltaTable(path)
