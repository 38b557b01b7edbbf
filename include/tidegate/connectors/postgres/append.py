"""Append rows to a table of PostgreSQL, visible exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tidegate.connectors.postgres import FoundTable, quoted_name
from tidegate.connectors.postgres.copying import STAGED, copy_rows, insert_list, make_staged, select_list
from tidegate.connectors.postgres.sink import PostgresSink
from tidegate.connectors.postgres.types import is_copied
from tidegate.connectors.sink import Prepared, SinkContext, Staging
from tidegate.connectors.transactional import StagedRows
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["PostgresAppend"]

CHECKPOINT = "tidegate_checkpoint"
"""The column that says which checkpoint a row came with."""


class PostgresAppend(PostgresSink):
    """Add the rows of each checkpoint to a table of PostgreSQL, which the first one creates.

    PostgresAppend("sales", connection="shop")
    PostgresAppend("reporting.sales", connection="shop", allow_rollback=True)

    table: the table's name, as it is written, with its schema if that is not public.
    connection: a name of the setting `connections`, whose options are those of libpq (host, port, dbname, user …).
    schema_evolution: "refuse" any difference from the table, or "add" new columns to it; columns of the table that
        the output lacks are then null. Columns that the table fills itself may always be left out. Types never change.
    allow_rollback: add a column `tidegate_checkpoint`, by which a rollback takes rows out of the table again.
    take_over: publish to a table that another pipeline of this name has published to.
    changelog: for a stream that replaces rows, such as an aggregate: add each new row, and keep the earlier ones.
    """

    kind: ClassVar[str] = "postgres-append"
    counts_input_rows: ClassVar[bool] = True

    def __init__(
        self,
        table: str,
        *,
        connection: str,
        schema_evolution: Literal["refuse", "add"] = "refuse",
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
        return super().describe() | ({"changelog": True} if self.changelog else {})

    def update_problems(self, stream: str) -> list[str]:
        if self.changelog:
            return []
        return [
            f"it adds rows, but {stream} replaces rows that it returned before: use PostgresUpsert with keys, "
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
        return (
            [f"{CHECKPOINT!r} is a column of the sink itself"] if CHECKPOINT in names & set(self.added_columns) else []
        )

    def table_problems(self, found: FoundTable) -> list[str]:
        problems = super().table_problems(found)
        if self.allow_rollback and CHECKPOINT not in found.columns:
            sql = self.table_name.sql
            problems.append(
                f"it has no column {CHECKPOINT!r}, which allow_rollback=True needs: ALTER TABLE {sql} ADD COLUMN "
                f"{CHECKPOINT} bigint; CREATE INDEX ON {sql} ({CHECKPOINT})"
            )
        return problems

    def creation(self, natural: dict[str, str]) -> list[str]:
        index = f"CREATE INDEX ON {self.table_name.sql} ({CHECKPOINT})"
        return super().creation(natural) + ([index] if self.allow_rollback else [])

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
            if not self.allow_rollback:
                yield batch
            else:
                yield batch.append_column(CHECKPOINT, pa.repeat(pa.scalar(checkpoint, pa.int64()), batch.num_rows))

    def remove_rows_after(self, cursor: Any, after: int, table: FoundTable, context: SinkContext) -> None:
        cursor.execute(f"DELETE FROM {self.table_name.sql} WHERE {quoted_name(CHECKPOINT)} > {after}")
