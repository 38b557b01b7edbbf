"""Where the DuckDB connector's rows come from and go to, for the contract tests."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import duckdb

from tests.connectors.duck import DuckRows, DuckTable
from tidegate.sinks import Sink
from tidegate.sources import Source
from tidegate.testing import SinkContract, SourceContract


class DuckRowsContract(SourceContract):
    def execute(self, statement: str, rows: Any = ((),)) -> None:
        with closing(duckdb.connect(str(self.folder / "in.db"))) as database:
            for row in rows:
                database.execute(statement, row)

    def create(self) -> None:
        self.execute("CREATE TABLE orders (id BIGINT, name TEXT)")

    def source(self) -> Source:
        return DuckRows("in.db", "orders", "id long, name string", max_rows=2)

    def put(self, rows: Any) -> None:
        self.execute("INSERT INTO orders VALUES (?, ?)", rows)

    def spoil(self) -> None:
        self.execute("DELETE FROM orders WHERE id = 0")


class DuckTableContract(SinkContract):
    keys: tuple[str, ...] = ()

    def sink(self) -> Sink:
        return DuckTable("out.db", self.unique_name, self.keys)

    def rows(self) -> list[tuple[int, str]]:
        with closing(duckdb.connect(str(self.folder / "out.db"))) as database:
            try:
                return database.execute(f"SELECT k, v FROM {self.unique_name}").fetchall()
            except duckdb.CatalogException:
                return []

    def unfit(self, rows: Any) -> Any:
        return rows.drop("v")

    def refused(self, rows: Any) -> Any:
        with closing(duckdb.connect(str(self.folder / "out.db"))) as database:
            database.execute(f"ALTER TABLE {self.unique_name} ALTER COLUMN p SET NOT NULL")
        return rows.selectExpr("k", "v", "CAST(NULL AS string) AS p")
