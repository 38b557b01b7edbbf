"""A sink that inserts, replaces and deletes rows of a PostgreSQL table by key, each exactly once.

prepare   Spark stages the changed rows. If two rows have the same key, order_by decides which one counts, or both are
          refused.
load      The rows are copied into a temporary table. From there, one statement deletes rows, and one inserts or
          replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tidegate.connectors.declaring import (
    collation_problems,
    describe_keyed_sink,
    key_and_order_problems,
    keyed_problems,
    refuse_order,
)
from tidegate.connectors.postgres import FoundTable, TableColumn, literal, quoted_name
from tidegate.connectors.postgres.copying import (
    STAGED,
    cast_to,
    copy_rows,
    insert_list,
    make_staged,
    select_list,
)
from tidegate.connectors.postgres.mark import history_of, marks_of
from tidegate.connectors.postgres.sink import Evolution, PostgresSink
from tidegate.connectors.sink import Prepared, SinkContext, Staging
from tidegate.connectors.transactional import StagedPart, StagedRows
from tidegate.delta import StagedFile, refuse_difference
from tidegate.delta.duplicates import outdated_rows
from tidegate.delta.log.schema import from_spark
from tidegate.delta.rewrite import InputFile, Table, rewrite
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json, PublishedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PostgresUpsert"]

FILL = 85
"""How much of a page new rows fill, in percent."""

REPLACED = "tidegate_replaced"
"""The temporary table with the rows that are replaced or deleted."""

DELETED = "tidegate_deleted"
"""The staged column that is true if the row with this key is to be deleted."""


class PostgresUpsert(PostgresSink):
    """Keep one row per key in a PostgreSQL table.

        PostgresUpsert("customers", connection="shop", keys=["id"], order_by=["changed_at"])

    The first checkpoint creates the table if it does not exist. If the stream has retractions, such as an aggregate, a
    row is deleted when the stream retracts it without a replacement.

    table, connection, take_over: as for PostgresAppend.
    keys: the columns that identify a row. They must not be null. An existing table needs a primary key or a unique
        index on exactly these columns.
    order_by: columns that decide which of several rows with the same key counts: the one with the greatest values (null
        is smallest, NaN is greatest). The row in the table takes part, so a late row never replaces a newer one. If the
        values are equal, the later checkpoint counts. With delete_when, an operator before the sink remembers the order
        of deleted keys, so that a late row does not restore one. Without order_by, the later checkpoint counts. If two
        rows of one checkpoint have the same key and equal order_by values, but differ otherwise, they are refused.
    delete_when: an SQL condition. If it is true for a row, the row with its key is deleted.
    omit: columns that delete_when needs, but the table should not have.
    schema_evolution: as for PostgresAppend. If the output lacks a column of the table, replaced rows keep its value.
    allow_rollback: store the rows that a checkpoint replaces or deletes in the table `tidegate_history`, so that a
        rollback can restore them.
    """

    kind: ClassVar[str] = "postgres-upsert"

    def __init__(
        self,
        table: str,
        *,
        connection: str,
        keys: Sequence[str],
        order_by: Sequence[str] = (),
        delete_when: str | None = None,
        omit: Sequence[str] = (),
        schema_evolution: Evolution = "refuse",
        allow_rollback: bool = False,
        take_over: bool = False,
    ) -> None:
        super().__init__(
            table,
            connection=connection,
            schema_evolution=schema_evolution,
            allow_rollback=allow_rollback,
            take_over=take_over,
        )
        self.key_columns = tuple(listed(keys))
        self.upserts = self.key_columns
        self.order_by = tuple(listed(order_by))
        self.delete_when = delete_when
        self.omit = tuple(listed(omit))

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key_columns

    # --- the declaration ------------------------------------------------------------------------------------

    @property
    def deletes_in_order(self) -> tuple[Sequence[str], str] | None:
        if not self.order_by or self.delete_when is None:
            return None
        return self.order_by, self.delete_when

    def describe(self) -> Json:
        return super().describe() | describe_keyed_sink(self)

    def problems(self) -> list[str]:
        return super().problems() + keyed_problems(self, "PostgresAppend")

    def update_problems(self, stream: str) -> list[str]:
        return refuse_order(self, stream)

    def output_columns(self, schema: Json) -> Json:
        fields = [field for field in schema["fields"] if field["name"] not in self.omit]
        return {"type": "struct", "fields": fields}

    def key_problems(self, output: Json) -> list[str]:
        types = {field["name"]: field["type"] for field in output["fields"]}
        problems = key_and_order_problems(self, types)
        problems += collation_problems(output, [*self.keys, *self.order_by], "key or order column")
        if DELETED in types:
            problems.append(f"{DELETED!r} is a name that the sink reserves")
        return problems

    def table_problems(self, existing: FoundTable) -> list[str]:
        problems = super().table_problems(existing)
        inexact = [name for name in self.keys if name in existing.columns and not existing.columns[name].exact]
        for name in inexact:
            problems.append(
                f"key column {name!r} has a nondeterministic collation, so different keys, such as 'a' and 'A', could "
                f"be the same in the table: ALTER TABLE {self.table_name.sql} ALTER COLUMN {quoted_name(name)} "
                f'TYPE {existing.columns[name].type} COLLATE "C"'
            )
        if inexact:
            return problems
        if frozenset(self.keys) not in existing.keys:
            names = ", ".join(map(quoted_name, self.keys))
            problems.append(
                f"it has no primary key or unique index on exactly the keys, so two rows could have the same key: "
                f"CREATE UNIQUE INDEX ON {self.table_name.sql} ({names})"
            )
        return problems

    def creation(self, types: dict[str, str]) -> list[str]:
        """See PostgresSink. If a page has free space, replacing a row needs no new entry in the index."""
        return [f"{statement} WITH (fillfactor = {FILL})" for statement in super().creation(types)]

    # --- in a job -------------------------------------------------------------------------------------------

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        names = list(map(quoted, self.keys))
        removed = retractions.select(*names).dropna(subset=list(self.keys)).dropDuplicates(list(self.keys))
        with self._refused_rows(context):
            return super().prepare_with_retractions(frame, removed, context, staging)

    def further_columns(self) -> Iterable[Any]:
        if self.delete_when is None:
            return ()
        from pyspark.sql import functions as F

        return (F.expr(f"coalesce(({self.delete_when}), false)").alias(DELETED),)

    def settled(self, staged: StagedPart, context: SinkContext, staging: Staging) -> StagedPart:
        """Keep one row for each key."""
        staged = super().settled(staged, context, staging)
        location, folder = self.staging_folder(context), f"{staging.folder(context)}/settled"
        table = Table(location, from_spark(staged.columns), ())
        sources = list(map(InputFile.from_file, staged.files))
        outdated = outdated_rows(table, sources, self.keys, self.order_by, [False] * len(sources))
        if not outdated:
            return staged

        def is_outdated(rows: Any, source: InputFile, start: int) -> Any:
            return outdated[source.path].slice(start, rows.num_rows)

        affected = [source for source in sources if source.path in outdated]
        _, rewritten = rewrite(table, affected, self.keys, is_outdated, folder)
        unaffected = [file for file in staged.files if file.path not in outdated]
        files = [*unaffected, *rewritten]
        removed = sum(mask.to_pylist().count(True) for mask in outdated.values())
        refuse_difference(location.full(folder), _count_rows(staged.files) - removed, _count_rows(files))
        return msgspec.structs.replace(staged, files=files)

    # --- publishing -----------------------------------------------------------------------------------------

    def add(self, cursor: Any, rows: StagedRows, table: FoundTable, context: SinkContext) -> None:
        columns = {name: natural for name, (natural, _) in self.staged_columns(rows).items()}
        make_staged(cursor, columns | {DELETED: "boolean"})
        copy_rows(cursor, rows.batches(), None)
        if rows.removed_count:
            self._add_removed(cursor, rows, columns)
        assert rows.columns is not None
        has_marked = any(field["name"] == DELETED for field in rows.columns["fields"])
        removes = rows.removed_count > 0 or has_marked
        if self.order_by or self.allow_rollback or removes:
            cursor.execute(f"ANALYZE {STAGED}")  # for a good plan of the joins with the table
        if self.order_by:
            cursor.execute(f"DELETE FROM {STAGED} staged USING {self.table_name.sql} kept WHERE {self._older(table)}")
        if self.allow_rollback:
            self._copy_replaced(cursor, table)
        self._merge(cursor, columns, table, removes=removes)
        if self.allow_rollback:
            self._store_replaced(cursor, rows.checkpoint, context)

    def _add_removed(self, cursor: Any, rows: StagedRows, columns: Mapping[str, str]) -> None:
        """Stage the keys to be deleted, except those that have a new row."""
        names = insert_list(self.keys)
        cursor.execute(f"ALTER TABLE {STAGED} RENAME TO tidegate_changed")
        make_staged(cursor, {name: columns[name] for name in self.keys})
        copy_rows(cursor, rows.removed_batches(list(self.keys)), None)
        same_key = " AND ".join(f"changed.{name} = removed.{name}" for name in map(quoted_name, self.keys))
        cursor.execute(
            f"INSERT INTO tidegate_changed ({names}, {DELETED}) SELECT {names}, true FROM {STAGED} removed "
            f"WHERE NOT EXISTS (SELECT 1 FROM tidegate_changed changed WHERE {same_key})"
        )
        cursor.execute(f"DROP TABLE {STAGED}")
        cursor.execute(f"ALTER TABLE tidegate_changed RENAME TO {STAGED}")

    def _same_key(self, table: FoundTable) -> str:
        conditions = []
        for name in self.keys:
            staged = f"staged.{quoted_name(name)}{cast_to(table.columns[name].type)}"
            conditions.append(f"kept.{quoted_name(name)} = {staged}")
        return " AND ".join(conditions)

    def _older(self, table: FoundTable) -> str:
        """Return the condition that the table's row is newer than the staged one. Null is smallest."""
        newer = []
        equal_so_far = ""
        for name in self.order_by:
            column_type = table.columns[name].type
            # The collation "C" compares texts as Spark does.
            collation = ' COLLATE "C"' if column_type.startswith(("text", "character varying")) else ""
            kept = f"kept.{quoted_name(name)}{collation}"
            staged = f"staged.{quoted_name(name)}{cast_to(column_type)}{collation}"
            newer.append(f"({equal_so_far}({kept} > {staged} OR ({kept} IS NOT NULL AND {staged} IS NULL)))")
            equal_so_far += f"{kept} IS NOT DISTINCT FROM {staged} AND "
        return f"{self._same_key(table)} AND ({' OR '.join(newer)})"

    def _copy_replaced(self, cursor: Any, table: FoundTable) -> None:
        """Copy the rows that are about to be replaced or deleted. Keys without a row are recorded, too."""
        key = ", ".join(f"{literal(name)}, staged.{quoted_name(name)}" for name in self.keys)
        selected = []
        for name in self.keys:
            selected.append(f"staged.{quoted_name(name)}{cast_to(table.columns[name].type)} AS {quoted_name(name)}")
        names = ", ".join(selected)
        cursor.execute(f"DROP TABLE IF EXISTS pg_temp.{REPLACED}")
        cursor.execute(
            f"CREATE TEMPORARY TABLE {REPLACED} ON COMMIT DROP AS SELECT {names}, jsonb_build_object({key}) AS "
            f"tidegate_key, CASE WHEN {self._exists_condition} THEN to_jsonb(kept) END AS tidegate_before "
            f"FROM {STAGED} staged LEFT JOIN {self.table_name.sql} kept ON {self._same_key(table)}"
        )

    def _store_replaced(self, cursor: Any, checkpoint: int, context: SinkContext) -> None:
        """Add the copy to the history, with a digest of each row that is now in the table."""
        cursor.execute(
            f"INSERT INTO {history_of(self.table_name).sql} (app_id, checkpoint, key, before, after) SELECT "
            f"{literal(context.app_id)}, {checkpoint}, was.tidegate_key, was.tidegate_before, {self._digest} "
            f"FROM {REPLACED} was LEFT JOIN {self.table_name.sql} kept ON {self._was_key}"
        )

    @property
    def _exists_condition(self) -> str:
        return f"kept.{quoted_name(self.keys[0])} IS NOT NULL"

    @property
    def _digest(self) -> str:
        return f"CASE WHEN {self._exists_condition} THEN md5(jsonb_strip_nulls(to_jsonb(kept))::text) END"

    @property
    def _was_key(self) -> str:
        return " AND ".join(f"kept.{name} = was.{name}" for name in map(quoted_name, self.keys))

    def _merge(self, cursor: Any, columns: Mapping[str, str], table: FoundTable, *, removes: bool) -> None:
        name = self.table_name.sql
        if removes:
            cursor.execute(
                f"DELETE FROM {name} kept USING {STAGED} staged WHERE staged.{DELETED} AND {self._same_key(table)}"
            )
        # Inserting in the order of the index is a third faster.
        cursor.execute(
            f"INSERT INTO {name} ({insert_list(columns)}) SELECT {select_list(columns, table)} "
            f"FROM {STAGED} staged WHERE staged.{DELETED} IS NOT TRUE "
            f"ORDER BY {insert_list(self.keys)} {self._on_conflict(columns)}"
        )

    def _on_conflict(self, columns: Iterable[str]) -> str:
        changes = [f"{quoted_name(name)} = excluded.{quoted_name(name)}" for name in columns if name not in self.keys]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        return f"ON CONFLICT ({insert_list(self.keys)}) DO {action}"

    # --- rollbacks ------------------------------------------------------------------------------------------

    def _since(self, after: int, context: SinkContext) -> str:
        return f"app_id = {literal(context.app_id)} AND checkpoint > {after}"

    def count_foreign_changes(self, cursor: Any, after: int, context: SinkContext) -> int:
        name, history = self.table_name.sql, history_of(self.table_name).sql
        cursor.execute(
            f"SELECT count(*) FROM (SELECT DISTINCT ON (key) key, after FROM {history} "
            f"WHERE {self._since(after, context)} ORDER BY key, number DESC) ours "
            f"CROSS JOIN LATERAL jsonb_populate_record(NULL::{name}, ours.key) was "
            f"LEFT JOIN {name} kept ON {self._was_key} WHERE {self._digest} IS DISTINCT FROM ours.after"
        )
        return int(cursor.fetchone()[0])

    def remove_rows_after(self, cursor: Any, after: int, table: FoundTable, context: SinkContext) -> None:
        name, history, since = self.table_name.sql, history_of(self.table_name).sql, self._since(after, context)
        cursor.execute(
            f"CREATE TEMPORARY TABLE tidegate_before ON COMMIT DROP AS SELECT DISTINCT ON (key) key, before "
            f"FROM {history} WHERE {since} ORDER BY key, number"
        )
        cursor.execute(
            f"DELETE FROM {name} kept USING tidegate_before b, jsonb_populate_record(NULL::{name}, b.key) was "
            f"WHERE b.before IS NULL AND {self._was_key}"
        )
        # The history lacks columns that were added later. They keep their values, or get their defaults.
        columns = {name: column for name, column in table.columns.items() if not column.computed}
        changes, values = [], []
        for column_name, column in columns.items():
            is_stored, quoted_column = f"b.before ? {literal(column_name)}", quoted_name(column_name)
            if column_name not in self.keys and not column.generated:
                changes.append(
                    f"{quoted_column} = CASE WHEN {is_stored} THEN was.{quoted_column} ELSE kept.{quoted_column} END"
                )
            default = _default_sql(column_name, column, name)
            values.append(f"CASE WHEN {is_stored} THEN was.{quoted_column} ELSE {default} END")
        rows = f"tidegate_before b CROSS JOIN LATERAL jsonb_populate_record(NULL::{name}, b.before) was"
        if changes:
            cursor.execute(
                f"UPDATE {name} kept SET {', '.join(changes)} FROM {rows} "
                f"WHERE b.before IS NOT NULL AND {self._was_key}"
            )
        cursor.execute(
            f"INSERT INTO {name} ({insert_list(columns)}) OVERRIDING SYSTEM VALUE "
            f"SELECT {', '.join(values)} FROM {rows} "
            f"WHERE b.before IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {name} kept WHERE {self._was_key})"
        )
        cursor.execute(f"DELETE FROM {history} WHERE {since}")

    def delete_history(self, before: PublishedTable, context: SinkContext) -> None:
        """Delete the history that only a rollback to an older checkpoint would need."""
        if not self.allow_rollback:
            return
        table, app_id = self.table_name, literal(context.app_id)
        with self._database(context).session("deleting history") as session, session.transaction():
            session.execute(
                f"UPDATE {marks_of(table).sql} SET kept_since = {before.version} "
                f"WHERE app_id = {app_id} AND kept_since < {before.version}".encode()
            )
            session.execute(
                f"DELETE FROM {history_of(table).sql} WHERE app_id = {app_id} "
                f"AND checkpoint <= {before.version}".encode()
            )


def _default_sql(name: str, column: TableColumn, table: str) -> str:
    """Return SQL for the value that a column of a new row gets by default."""
    if column.default:
        return column.default
    if column.filled:
        return f"nextval(pg_get_serial_sequence({literal(table)}, {literal(name)}))"
    return "NULL"


def _count_rows(files: Iterable[StagedFile]) -> int:
    return sum(file.rows for file in files)
