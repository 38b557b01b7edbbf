"""Replace, add and remove rows of a table of PostgreSQL by key, visible exactly once.

prepare   Spark stages the changed rows; of two rows with one key, order_by decides which one counts, or both are
          refused
load      rows go into a temporary table; from there, one statement removes rows, and one adds or replaces them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from tidegate.connectors.declaring import (
    collation_problems,
    describe_by_key,
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
from tidegate.connectors.postgres.sink import PostgresSink
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
"""Percent of a page that new rows fill."""

REPLACED = "tidegate_replaced"
"""A temporary table of rows that are replaced or removed."""

DELETED = "tidegate_deleted"
"""A staged column: the row's key is to be removed."""


class PostgresUpsert(PostgresSink):
    """Keep one row per key in a table of PostgreSQL, which the first checkpoint creates.

    PostgresUpsert("customers", connection="shop", keys=["id"], order_by=["changed_at"])

    keys: the columns that identify a row. They must not be null. A table that exists needs a primary key or a unique
        index on exactly these columns.
    order_by: of several rows with one key, the one with the greatest values here counts (null is smallest, NaN
        greatest), also against the row in the table: a late row never replaces a newer one. Of equal rows, that of the
        later checkpoint counts. With delete_when, an operator in front of the sink remembers by which order a key was
        removed: a late row never brings it back.
        Without order_by the later checkpoint counts. Within one checkpoint, rows with one key (and equal order_by)
        must be copies of each other, or are refused.
    delete_when: a SQL condition on the row. If it is true, the key's row is removed.
    omit: columns that delete_when needs and the table should not have.
    allow_rollback: keep the rows that a checkpoint replaces and removes, in the table `tidegate_history`, so that a
        rollback can put them back.
    table, connection, schema_evolution, take_over: as for PostgresAppend. Columns of the table that the output lacks
        keep their values when a row is replaced.

    After a stream that replaces rows (an aggregate …), the keys whose rows that stream withdraws are removed.
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
        schema_evolution: Literal["refuse", "add"] = "refuse",
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
        return (self.order_by, self.delete_when) if self.order_by and self.delete_when is not None else None

    def describe(self) -> Json:
        return super().describe() | describe_by_key(self)

    def problems(self) -> list[str]:
        return super().problems() + keyed_problems(self, "PostgresAppend")

    def update_problems(self, stream: str) -> list[str]:
        return refuse_order(self, stream)

    def output_columns(self, schema: Json) -> Json:
        return {"type": "struct", "fields": [each for each in schema["fields"] if each["name"] not in self.omit]}

    def key_problems(self, output: Json) -> list[str]:
        types = {field["name"]: field["type"] for field in output["fields"]}
        problems = key_and_order_problems(self, types)
        problems += collation_problems(output, [*self.keys, *self.order_by], "key or order column")
        if DELETED in types:
            problems.append(f"{DELETED!r} is a name that the sink itself uses")
        return problems

    def table_problems(self, found: FoundTable) -> list[str]:
        problems = super().table_problems(found)
        inexact = [name for name in self.keys if name in found.columns and not found.columns[name].exact]
        if inexact:
            problems += [
                f"key column {name!r} has a nondeterministic collation: texts that are two keys here, such as 'a' and "
                f"'A', would be one row there: ALTER TABLE {self.table_name.sql} ALTER COLUMN {quoted_name(name)} "
                f'TYPE {found.columns[name].type} COLLATE "C"'
                for name in inexact
            ]
        elif frozenset(self.keys) not in found.keys:
            names = ", ".join(map(quoted_name, self.keys))
            problems.append(
                f"it has no primary key and no unique index on exactly its keys, so two rows could have one key: "
                f"CREATE UNIQUE INDEX ON {self.table_name.sql} ({names})"
            )
        return problems

    def creation(self, natural: dict[str, str]) -> list[str]:
        """See PostgresSink. With room in each page, a row that is replaced needs no new entry in the index."""
        return [f"{statement} WITH (fillfactor = {FILL})" for statement in super().creation(natural)]

    # --- in a job -------------------------------------------------------------------------------------------

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        names = list(map(quoted, self.keys))
        removed = retractions.select(*names).dropna(subset=list(self.keys)).dropDuplicates(list(self.keys))
        with self._refused_rows(context):
            return super().prepare_with_retractions(frame, removed, context, staging)

    def marks_of_rows(self) -> Iterable[Any]:
        if self.delete_when is None:
            return ()
        from pyspark.sql import functions as F

        return (F.expr(f"coalesce(({self.delete_when}), false)").alias(DELETED),)

    def settled(self, staged: StagedPart, context: SinkContext, staging: Staging) -> StagedPart:
        """Keep one row for each key."""
        staged = super().settled(staged, context, staging)
        location, folder = self.staging_folder(context), f"{staging.folder(context)}/settled"
        table = Table(location, from_spark(staged.columns), ())
        sources = list(map(InputFile.of, staged.files))
        outdated = outdated_rows(table, sources, self.keys, self.order_by, [False] * len(sources))
        if not outdated:
            return staged

        def is_outdated(rows: Any, source: InputFile, start: int) -> Any:
            return outdated[source.path].slice(start, rows.num_rows)

        touched = [source for source in sources if source.path in outdated]
        _, written = rewrite(table, touched, self.keys, is_outdated, folder)
        files = [*(file for file in staged.files if file.path not in outdated), *written]
        removed = sum(mask.to_pylist().count(True) for mask in outdated.values())
        refuse_difference(location.full(folder), _rows(staged.files) - removed, _rows(files))
        return msgspec.structs.replace(staged, files=files)

    # --- publishing -----------------------------------------------------------------------------------------

    def add(self, cursor: Any, rows: StagedRows, table: FoundTable, context: SinkContext) -> None:
        columns = {name: natural for name, (natural, _) in self.staged_columns(rows).items()}
        make_staged(cursor, columns | {DELETED: "boolean"})
        copy_rows(cursor, rows.batches(), None)
        if rows.removed_count:
            self._add_removed(cursor, rows, columns)
        assert rows.columns is not None
        removes = rows.removed_count > 0 or any(each["name"] == DELETED for each in rows.columns["fields"])
        if self.order_by or self.allow_rollback or removes:
            cursor.execute(f"ANALYZE {STAGED}")  # it is joined with the table
        if self.order_by:
            cursor.execute(f"DELETE FROM {STAGED} staged USING {self.table_name.sql} kept WHERE {self._older(table)}")
        if self.allow_rollback:
            self._note_replaced(cursor, table)
        self._merge(cursor, columns, table, removes=removes)
        if self.allow_rollback:
            self._store_replaced(cursor, rows.checkpoint, context)

    def _add_removed(self, cursor: Any, rows: StagedRows, columns: Mapping[str, str]) -> None:
        """Add the keys to be removed, unless there is a new row with the key."""
        names = insert_list(self.keys)
        cursor.execute(f"ALTER TABLE {STAGED} RENAME TO tidegate_changed")
        make_staged(cursor, {name: columns[name] for name in self.keys})
        copy_rows(cursor, rows.removed_batches(list(self.keys)), None)
        same = " AND ".join(f"changed.{name} = removed.{name}" for name in map(quoted_name, self.keys))
        cursor.execute(
            f"INSERT INTO tidegate_changed ({names}, {DELETED}) SELECT {names}, true FROM {STAGED} removed "
            f"WHERE NOT EXISTS (SELECT 1 FROM tidegate_changed changed WHERE {same})"
        )
        cursor.execute(f"DROP TABLE {STAGED}")
        cursor.execute(f"ALTER TABLE tidegate_changed RENAME TO {STAGED}")

    def _same_key(self, table: FoundTable) -> str:
        return " AND ".join(
            f"kept.{quoted_name(name)} = staged.{quoted_name(name)}{cast_to(table.columns[name].type)}"
            for name in self.keys
        )

    def _older(self, table: FoundTable) -> str:
        """Return the condition that the table's row is newer than the staged one. Null is least."""
        newer, same = [], self._same_key(table)
        equal_so_far = ""
        for name in self.order_by:
            kind = table.columns[name].type
            order = ' COLLATE "C"' if kind.startswith(("text", "character varying")) else ""  # as Spark compares text
            kept = f"kept.{quoted_name(name)}{order}"
            staged = f"staged.{quoted_name(name)}{cast_to(kind)}{order}"
            newer.append(f"{equal_so_far}({kept} > {staged} OR ({kept} IS NOT NULL AND {staged} IS NULL))")
            equal_so_far += f"{kept} IS NOT DISTINCT FROM {staged} AND "
        return f"{same} AND ({' OR '.join(f'({each})' for each in newer)})"

    def _note_replaced(self, cursor: Any, table: FoundTable) -> None:
        """Keep a copy of the rows that are about to be replaced or removed. A key without a row is noted, too."""
        key = ", ".join(f"{literal(name)}, staged.{quoted_name(name)}" for name in self.keys)
        names = ", ".join(
            f"staged.{quoted_name(name)}{cast_to(table.columns[name].type)} AS {quoted_name(name)}"
            for name in self.keys
        )
        cursor.execute(f"DROP TABLE IF EXISTS pg_temp.{REPLACED}")
        cursor.execute(
            f"CREATE TEMPORARY TABLE {REPLACED} ON COMMIT DROP AS SELECT {names}, jsonb_build_object({key}) AS "
            f"tidegate_key, CASE WHEN {self._exists_condition} THEN to_jsonb(kept) END AS tidegate_before "
            f"FROM {STAGED} staged LEFT JOIN {self.table_name.sql} kept ON {self._same_key(table)}"
        )

    def _store_replaced(self, cursor: Any, checkpoint: int, context: SinkContext) -> None:
        """Record that copy, with the digest of what is there instead."""
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
        # In the order of the index, which makes it a third faster.
        cursor.execute(
            f"INSERT INTO {name} ({insert_list(columns)}) SELECT {select_list(columns, table)} "
            f"FROM {STAGED} staged WHERE staged.{DELETED} IS NOT TRUE "
            f"ORDER BY {insert_list(self.keys)} {self._on_conflict(columns)}"
        )

    def _on_conflict(self, columns: Iterable[str]) -> str:
        others = [quoted_name(name) for name in columns if name not in self.keys]
        changes = ", ".join(f"{name} = excluded.{name}" for name in others)
        return f"ON CONFLICT ({insert_list(self.keys)}) DO " + (f"UPDATE SET {changes}" if others else "NOTHING")

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
        # A column that was added since is not among what was kept: it stays as it is, or gets its default.
        columns = {column: found for column, found in table.columns.items() if not found.computed}
        kept = {column: f"b.before ? {literal(column)}" for column in columns}
        changes = ", ".join(
            f"{quoted_name(column)} = CASE WHEN {kept[column]} THEN was.{quoted_name(column)} "
            f"ELSE kept.{quoted_name(column)} END"
            for column, found in columns.items()
            if column not in self.keys and not found.generated
        )
        rows = f"tidegate_before b CROSS JOIN LATERAL jsonb_populate_record(NULL::{name}, b.before) was"
        if changes:
            cursor.execute(
                f"UPDATE {name} kept SET {changes} FROM {rows} WHERE b.before IS NOT NULL AND {self._was_key}"
            )
        values = ", ".join(
            f"CASE WHEN {kept[column]} THEN was.{quoted_name(column)} ELSE {_filled(column, found, name)} END"
            for column, found in columns.items()
        )
        cursor.execute(
            f"INSERT INTO {name} ({insert_list(columns)}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {rows} "
            f"WHERE b.before IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {name} kept WHERE {self._was_key})"
        )
        cursor.execute(f"DELETE FROM {history} WHERE {since}")

    def delete_history(self, before: PublishedTable, context: SinkContext) -> None:
        """Delete what only a rollback to an older checkpoint would need."""
        if not self.allow_rollback:
            return
        table, app_id = self.table_name, literal(context.app_id)
        with self._database(context).session("forgetting what was replaced") as session, session.transaction():
            session.execute(
                f"UPDATE {marks_of(table).sql} SET kept_since = {before.version} "
                f"WHERE app_id = {app_id} AND kept_since < {before.version}".encode()
            )
            session.execute(
                f"DELETE FROM {history_of(table).sql} WHERE app_id = {app_id} "
                f"AND checkpoint <= {before.version}".encode()
            )


def _filled(name: str, column: TableColumn, table: str) -> str:
    """Return the value that the table itself gives to a column of a new row."""
    if column.default:
        return column.default
    if column.filled:
        return f"nextval(pg_get_serial_sequence({literal(table)}, {literal(name)}))"
    return "NULL"


def _rows(files: Iterable[StagedFile]) -> int:
    return sum(file.rows for file in files)
