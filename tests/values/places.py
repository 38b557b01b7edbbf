"""Where sinks put rows beside Delta tables and files: a PostgreSQL, and a catalog of Iceberg for each pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from tests.kit.postgres import Server, programs, server
from tests.kit.postgres_sinks import CONNECTION, connections
from tidegate.connectors.postgres import quoted_name

__all__ = ["CONNECTION", "NAMESPACE", "Places", "postgres_if_any"]

NAMESPACE = "lake"


@contextmanager
def postgres_if_any() -> Iterator[Server | None]:
    """A server; None where it is not installed."""
    if programs() is None:
        yield None
        return
    with server("fsync=off") as started:
        yield started


class Places:
    """Those of one pipeline."""

    def __init__(self, folder: Path, postgres: Server | None) -> None:
        self.folder, self.postgres = folder, postgres

    @property
    def settings(self) -> dict[str, str]:
        """As with -D."""
        given = connections(self.postgres) if self.postgres is not None else {}
        given |= {f"{NAMESPACE}.{name}": text for name, text in self._catalog.items()}
        return {f"connections.{name}": text for name, text in given.items()}

    @property
    def _catalog(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}/lake"}

    def open_catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(NAMESPACE, **self._catalog)

    def make(self, sinks: set[str]) -> None:
        """Make what sinks do not make themselves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if "iceberg" in sinks:
            self.open_catalog().create_namespace(NAMESPACE)
        if "postgres" in sinks:
            assert self.postgres is not None
            self.postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")

    def iceberg_rows(self, table: str) -> pa.Table:
        """All rows of a table of Iceberg."""
        return self.open_catalog().load_table(f"{NAMESPACE}.{table}").scan().to_arrow()

    def postgres_rows(self, table: str, schema: pa.Schema) -> list[dict[str, Any]]:
        """All rows of a table of PostgreSQL, with texts in place of what JSON lacks."""
        import psycopg2

        assert self.postgres is not None
        columns = ", ".join(_as_text(field) for field in schema)
        with closing(psycopg2.connect(**self.postgres.options, options="-c TimeZone=UTC")) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT to_regclass(%s)", [quoted_name(table)])
            if cursor.fetchone() == (None,):
                return []  # there has been no row for it
            cursor.execute(f"SELECT {columns} FROM {quoted_name(table)}")
            return [
                {field.name: _plain(text, field.type) for field, text in zip(schema, row, strict=True)}
                for row in cursor.fetchall()
            ]


def _is_nested(kind: Any) -> bool:
    return bool(types.is_struct(kind) or types.is_list(kind) or types.is_map(kind))


def _as_text(field: Any) -> str:
    name = quoted_name(field.name)
    if types.is_binary(field.type):
        return f"encode({name}, 'base64')"
    return f"to_json({name})::text" if _is_nested(field.type) else f"{name}::text"


def _plain(text: str | None, kind: Any) -> Any:
    if text is None:
        return None
    if _is_nested(kind):
        return json.loads(text, parse_float=Decimal)
    if types.is_boolean(kind):
        return text == "true"
    if types.is_integer(kind):
        return int(text)
    return text
