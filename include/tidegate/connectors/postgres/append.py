"""A sink that appends rows to a PostgreSQL table, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.connectors.postgres import FoundTable, quoted_name
from tidegate.connectors.postgres.copying import STAGED, copy_rows, insert_list, make_staged, select_list
from tidegate.connectors.postgres.sink import Evolution, PostgresSink
from tidegate.connectors.postgres.types import is_copied
from tidegate.connectors.sink import Prepared, SinkContext, Staging
from tidegate.connectors.transactional import StagedRows
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["PostgresAppend"]

CHECKPOINT = "tidegate_checkpoint"
"""The column with the checkpoint of a row."""


class PostgresAppend(PostgresSink):
    """Append the rows of each checkpoint to a PostgreSQL table.

        PostgresAppend("sales", connection="shop")
        PostgresAppend("reporting.sales", connection="shop", allow_rollback=True)

    The first checkpoint creates the table if it does not exist.

    table: the table's name, in the same case as in the database, with its schema unless that is public.
    connection: the name of a connection in the setting `connections`, with options of libpq (host, port, dbname …).
    schema_evolution: "refuse" rows whose columns differ from the table's, or "add" new columns to the table. With
        "add", columns that the output lacks are null. Columns with a default may always be missing in the output.
        "widen" does so as well, and changes the type of a column if the output has a wider one, such as bigint for
        integer, in the transaction that publishes the rows. PostgreSQL then rewrites the table, which others cannot
        use meanwhile. Other types never change.
    allow_rollback: add a column `tidegate_checkpoint` to the table, by which a rollback removes rows.
    take_over: publish to a table to which another pipeline with the same name has published.
    changelog: accept a stream with retractions, such as an aggregate: append each new row, and keep the rows that it
        replaces.
    """

    kind: ClassVar[str] = "postgres-append"
    counts_input_rows: ClassVar[bool] = True

    def __init__(
        self,
        table: str,
        *,
        connection: str,
        schema_evolution: Evolution = "refuse",
        allow_rollback: bool = False,
        take_over: bool = False,
        changelog: bool = False,
    ) -> None:
        super().__init__(
            table,
            connection=connection,
            schema_evolution=schema_evolution,
            allow_rollback=allow_rollback,
            take_over=take_over,
        )
        self.changelog = changelog

    def describe(self) -> Json:
        description = super().describe()
        if self.changelog:
            description["changelog"] = True
        return description

    def update_problems(self, stream: str) -> list[str]:
        if self.changelog:
            return []
        return [
            f"it appends rows, but {stream} replaces rows that it returned before: use PostgresUpsert with keys, "
            "or PostgresAppend(…, changelog=True) for a row of each change"
        ]

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        return self.prepare(frame, context, staging)

    @property
    def added_columns(self) -> dict[str, str]:
        return {CHECKPOINT: "bigint"} if self.allow_rollback else {}

    def key_problems(self, output: Json) -> list[str]:
        names = {field["name"].casefold() for field in output["fields"]}
        if self.allow_rollback and CHECKPOINT in names:
            return [f"{CHECKPOINT!r} is the name of a column that the sink adds"]
        return []

    def table_problems(self, existing: FoundTable) -> list[str]:
        problems = super().table_problems(existing)
        if self.allow_rollback and CHECKPOINT not in existing.columns:
            sql = self.table_name.sql
            problems.append(
                f"it has no column {CHECKPOINT!r}, which allow_rollback=True needs: ALTER TABLE {sql} ADD COLUMN "
                f"{CHECKPOINT} bigint; CREATE INDEX ON {sql} ({CHECKPOINT})"
            )
        return problems

    def creation(self, types: dict[str, str]) -> list[str]:
        statements = super().creation(types)
        if self.allow_rollback:
            statements.append(f"CREATE INDEX ON {self.table_name.sql} ({CHECKPOINT})")
        return statements

    def add(self, cursor: Any, rows: StagedRows, table: FoundTable, context: SinkContext) -> None:
        columns = {name: natural for name, (natural, _) in self.staged_columns(rows).items()}
        if all(is_copied(natural, table.columns[name].type) for name, natural in columns.items()):
            batches = self._with_checkpoint(rows.batches(list(columns)), rows.checkpoint)
            copy_rows(cursor, batches, self.table_name)
            return
        make_staged(cursor, columns)
        copy_rows(cursor, rows.batches(list(columns)), None)
        checkpoint = f", {rows.checkpoint}" if self.allow_rollback else ""
        cursor.execute(
            f"INSERT INTO {self.table_name.sql} ({insert_list([*columns, *self.added_columns])}) "
            f"SELECT {select_list(columns, table)}{checkpoint} FROM {STAGED} staged"
        )

    def _with_checkpoint(self, batches: Iterator[pa.RecordBatch], checkpoint: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            if self.allow_rollback:
                checkpoints = pa.repeat(pa.scalar(checkpoint, pa.int64()), batch.num_rows)
                yield batch.append_column(CHECKPOINT, checkpoints)
            else:
                yield batch

    def remove_rows_after(self, cursor: Any, after: int, table: FoundTable, context: SinkContext) -> None:
        cursor.execute(f"DELETE FROM {self.table_name.sql} WHERE {quoted_name(CHECKPOINT)} > {after}")
