"""A third connector, for DuckDB, written from docs/guides/writing-a-source-or-sink.md alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import duckdb

from tidegate.errors import Invalid, Unavailable
from tidegate.sinks import DeclaredRules, Place, RowRule, SinkContext, StagedRows, TransactionalSink
from tidegate.sources import Amount, Lag, Planned, Source, SourceContext


@contextmanager
def opened(place: Place, path: str) -> Iterator[duckdb.DuckDBPyConnection]:
    try:
        with closing(duckdb.connect(place.url(path))) as database:
            yield database
    except duckdb.IOException as error:
        raise Unavailable(f"{path} does not answer: {error}", help="does another process have it open?") from error


class DuckRows(Source):
    """The rows of a DuckDB table with a column `id` that only grows."""

    kind = "duckdb"
    unit = "rows"

    def __init__(self, path: str, table: str, schema: str, max_rows: int = 10_000) -> None:
        self.path, self.table, self.schema, self.max_rows = path, table, schema, max_rows

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": self.path, "table": self.table, "schema": self.schema}

    def plan(self, start: Any, context: SourceContext) -> Planned:
        after = start["id"] if start is not None else -1
        bound = min(self.max_rows, context.at_most or self.max_rows)
        with opened(context.place, self.path) as database:
            query = f"SELECT id FROM {self.table} WHERE id > ? ORDER BY id LIMIT ?"
            ids = [id for (id,) in database.execute(query, (after, bound)).fetchall()]
            upto = ids[-1] if ids else after
            left = self._count(database, upto, 2**62)
        splits = {"after": after, "upto": upto, "rows": len(ids)}
        lag = Lag(rows=left)
        return Planned({"id": upto}, splits, is_empty=not ids, has_more=left > 0, amount=len(ids), lag=lag)

    def verify(self, splits: Any, context: SourceContext) -> Amount:
        with opened(context.place, self.path) as database:
            found = self._count(database, splits["after"], splits["upto"])
        if found != splits["rows"]:
            raise Invalid(
                f"{self.table} has {found} rows with ids above {splits['after']} up to {splits['upto']}",
                expected=f"{splits['rows']}, as planned",
                help="put back the rows that were deleted; rows must only be added",
                reason="INPUT_CHANGED",
            )
        return Amount(rows=found)

    def read(self, spark: Any, splits: Any, context: SourceContext) -> Any:
        with opened(context.place, self.path) as database:
            query = f"SELECT * FROM {self.table} WHERE id > ? AND id <= ? ORDER BY id"
            rows = database.execute(query, (splits["after"], splits["upto"])).fetchall()
        return spark.createDataFrame(rows, self.schema)

    def _count(self, database: duckdb.DuckDBPyConnection, after: int, upto: int) -> int:
        query = f"SELECT count(*) FROM {self.table} WHERE id > ? AND id <= ?"
        (count,) = database.execute(query, (after, upto)).fetchall()[0]
        return int(count)


class DuckTable(TransactionalSink):
    """A DuckDB table. With keys it holds one row for each; without, a rollback takes rows back by their checkpoint."""

    kind = "duckdb"

    def __init__(self, path: str, table: str, keys: Sequence[str] = ()) -> None:
        self.path, self.table, self.upserts = path, table, tuple(keys)

    def declared_rules(self, place: Place) -> dict[str, Any]:
        with opened(place, self.path) as database:
            query = (
                "SELECT constraint_column_names FROM duckdb_constraints() WHERE table_name = ? AND constraint_type = ?"
            )
            found = database.execute(query, (self.table, "NOT NULL")).fetchall()
        return {"not_null": sorted(name for (names,) in found for name in names)}

    def row_rules(self, columns: Any, declared: Any) -> DeclaredRules:
        present = {field["name"] for field in columns["fields"]}
        names = [name for name in declared["not_null"] if name in present]
        rules = [RowRule(f"{name} not null", f"`{name}` IS NULL", f"column {name!r} is null") for name in names]
        return DeclaredRules(tuple(rules))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": self.path, "table": self.table, "keys": list(self.upserts)}

    def target(self, place: Place) -> str:
        return f"duckdb:{place.url(self.path)}#{self.table}"

    def output_problems(self, schema: Any, context: SinkContext) -> list[str]:
        there = {field["name"] for field in schema["fields"]}
        with opened(context.place, self.path) as database:
            named = "SELECT column_name FROM information_schema.columns WHERE table_name = ?"
            wanted = {name for (name,) in database.execute(named, (self.table,)).fetchall()} - {"_checkpoint"}
        return [f"there is no column {name!r}" for name in sorted((wanted | set(self.upserts)) - there)]

    def last(self, context: SinkContext) -> int | None:
        with opened(context.place, self.path) as database:
            return self._last(database, context)

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        with self._transaction(rows, context) as database:
            if database is None:
                return False
            for batch in rows.removed_batches():
                self._delete(database, batch)
            for batch in rows.batches():
                self._delete(database, batch)
                named = ", ".join(f'"{name}"' for name in batch.schema.names)
                database.register("new", batch)
                marked = f"SELECT {named}, {rows.checkpoint} AS _checkpoint FROM new"
                database.execute(f"CREATE TABLE IF NOT EXISTS {self.table} AS {marked} LIMIT 0")
                database.execute(f"INSERT INTO {self.table} ({named}, _checkpoint) {marked}")
            return True

    def undo_after(self, rows: StagedRows, to: int, context: SinkContext) -> bool:
        with self._transaction(rows, context) as database:
            if database is None:
                return False
            database.execute(f"DELETE FROM {self.table} WHERE _checkpoint > ?", (to,))
            return True

    def rows_stay_reason(self) -> str:
        return "the rows that an upsert has replaced are not kept" if self.upserts else ""

    def _delete(self, database: duckdb.DuckDBPyConnection, batch: Any) -> None:
        """Remove the rows with the keys of a batch."""
        if self.upserts and batch.num_rows and self._is_there(database):
            database.register("old", batch)
            same = " AND ".join(f'{self.table}."{key}" = old."{key}"' for key in self.upserts)
            database.execute(f"DELETE FROM {self.table} USING old WHERE {same}")

    def _is_there(self, database: duckdb.DuckDBPyConnection) -> bool:
        query = "SELECT 1 FROM information_schema.tables WHERE table_name = ?"
        return bool(database.execute(query, (self.table,)).fetchall())

    @contextmanager
    def _transaction(self, rows: StagedRows, context: SinkContext) -> Iterator[duckdb.DuckDBPyConnection | None]:
        """Give a transaction that moves the mark; None: the mark is not where it has to be."""
        with opened(context.place, self.path) as database:
            self._last(database, context)  # makes the table of marks
            try:
                database.execute("BEGIN")
                if self._last(database, context) != rows.after:
                    yield None
                    return
                database.execute("INSERT OR REPLACE INTO tidegate VALUES (?, ?)", (context.app_id, rows.checkpoint))
                yield database
                database.execute("COMMIT")
            except (duckdb.TransactionException, duckdb.ConstraintException) as error:
                raise Unavailable(f"another one is publishing to {self.table}", help="it is tried again") from error

    def _last(self, database: duckdb.DuckDBPyConnection, context: SinkContext) -> int | None:
        database.execute("CREATE TABLE IF NOT EXISTS tidegate (app TEXT PRIMARY KEY, last BIGINT)")
        found = database.execute("SELECT last FROM tidegate WHERE app = ?", (context.app_id,)).fetchall()
        return int(found[0][0]) if found else None
