"""The common part of the sinks that append to, and upsert into, PostgreSQL tables."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tidegate import seams
from tidegate.connectors.postgres import (
    Database,
    FoundTable,
    TableName,
    connection_problems,
    find_oid,
    find_table,
    literal,
    quoted_name,
    table_problems,
)
from tidegate.connectors.postgres.mark import (
    NO_CHECKPOINT,
    SinkMark,
    find_mark,
    lock_mark,
    make_marks,
    marks_of,
    move_mark,
    refuse_replaced_table,
    refuse_second_publisher,
)
from tidegate.connectors.postgres.rights import dependents_of, is_owner, refuse_missing_rights
from tidegate.connectors.postgres.types import (
    column_type,
    fits,
    fits_all,
    name_problems,
    not_null_names,
    preserves_json,
    refusal_of,
    staged_column_types,
    staged_columns,
    table_rules,
    widened_table,
)
from tidegate.connectors.row_rules import DeclaredRules
from tidegate.connectors.sink import Head, Prepared, Publication, RestorePlan, SinkContext, Staging
from tidegate.connectors.transactional import StagedPart, StagedRows, TransactionalSink
from tidegate.errors import Invalid, Rejected
from tidegate.records import typed
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.spark.frame_facts import empty_if

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Evolution", "PostgresSink"]

Evolution = Literal["refuse", "add", "widen"]

OLDEST_SERVER = 14
_MARKS: Final = "marks"
"""The key in the notes of staged rows for the oid that the table of marks had when they were staged."""


class PostgresSink(TransactionalSink):
    """Publishes to a PostgreSQL table, to which other programs may also write."""

    def __init__(
        self,
        table: str,
        *,
        connection: str,
        schema_evolution: Evolution = "refuse",
        allow_rollback: bool = False,
        take_over: bool = False,
    ) -> None:
        self.table = table
        self.connection = connection
        self.schema_evolution = schema_evolution
        self.allow_rollback = allow_rollback
        self.take_over = take_over

    # --- the declaration ------------------------------------------------------------------------------------

    def target(self, place: Place) -> str:
        return f"postgres:{self.connection}/{self.table_name}"

    def shared_uri(self, place: Place) -> str | None:
        """See Sink."""
        return Database.resolve(place, self.connection).shared_uri(self.table_name)

    def describe(self) -> Json:
        return {
            "kind": self.kind,
            "table": self.table,
            "connection": self.connection,
            "schema_evolution": self.schema_evolution,
            "allow_rollback": self.allow_rollback,
        }

    def problems(self) -> list[str]:
        problems = table_problems(self.table) + connection_problems(self.connection)
        if self.schema_evolution not in ("refuse", "add", "widen"):
            problems.append(f'schema_evolution is {self.schema_evolution!r}: write "refuse", "add" or "widen"')
        return problems

    delete_when: str | None = None
    """The SQL condition of rows that only delete their key, for a sink that replaces rows."""

    @property
    def table_name(self) -> TableName:
        """The table, with its schema."""
        return TableName.parse(self.table)

    # --- before a checkpoint --------------------------------------------------------------------------------

    def check(self, context: SinkContext) -> None:
        with self._database(context).session("checking the table") as session:
            if session.info.server_version < OLDEST_SERVER * 10_000:
                raise Invalid(
                    f"connection {self.connection!r} leads to PostgreSQL {session.info.server_version // 10_000}",
                    expected=f"PostgreSQL {OLDEST_SERVER} or newer",
                    help="use a newer server",
                    reason="OLD_SERVER",
                )
            cursor = session.cursor()
            existing = find_table(cursor, self.table_name)
            refuse_missing_rights(
                cursor, self.connection, self.table_name, existing, upsert=bool(self.keys), rollback=self.allow_rollback
            )
            self._inspect_table(cursor, context)
            problems = self.table_problems(existing) if existing is not None else []
        self._make_marks(context)  # staged rows note which table of marks they belong to
        if problems:
            raise Invalid(
                "\n    ".join([f"sink {context.sink}: {self.table_name} cannot be published to:", *problems]),
                expected="a table as the sink declares it, or none: then it is created",
                help="change the table or the sink",
                reason="BAD_TABLE",
            )

    def last(self, context: SinkContext) -> int | None:
        mark = self._mark(context)
        return mark.last if mark is not None else None

    def output_problems(self, schema: Json, context: SinkContext) -> list[str]:
        output = self.output_columns(schema)
        problems = name_problems(output) or self.key_problems(output)
        if problems:
            return problems
        with self._database(context).session("looking at the table") as session:
            cursor = session.cursor()
            existing, _ = self._inspect_table(cursor, context)
            if existing is None:
                return []
            types = _natural_types(output)
            wide = self._as_widened(types, existing)
            problems = self.table_problems(existing) + self._differences(types, wide)
            if not problems and wide != existing:
                problems = self._widening_problems(cursor, existing, wide)
            changes = wide != existing or set(types) - set(existing.columns)
            if not problems and changes and not is_owner(cursor, self.table_name):
                problems.append("only the owner of the table, which this connection's user is not, can change columns")
        return problems

    def _as_widened(self, types: dict[str, str], existing: FoundTable) -> FoundTable:
        """Return the table as it is once it has become wide enough for columns of these types, if it may."""
        return widened_table(types, existing) if self.schema_evolution == "widen" else existing

    def _widening_problems(self, cursor: Any, existing: FoundTable, wide: FoundTable) -> list[str]:
        """Return why the types of columns cannot be changed."""
        changed = [name for name, column in existing.columns.items() if column.type != wide.columns[name].type]
        problems = []
        for name in changed:
            before, after = existing.columns[name].type, wide.columns[name].type
            if self.allow_rollback and self.keys and not preserves_json(before, after):
                problems.append(
                    f"{name!r} is {after}; the table has {before}, and with allow_rollback=True it cannot become "
                    "wider: a rollback could not recognise rows that were replaced before"
                )
        dependents = dependents_of(cursor, existing.oid, [existing.columns[name].number for name in changed])
        if dependents:
            listed = ", ".join(f"{name!r} ({existing.columns[name].type})" for name in changed)
            problems.append(
                f"{listed} must become wider, which PostgreSQL refuses because of {', '.join(dependents)}: drop it, "
                "and create it again after the next checkpoint"
            )
        return problems

    def output_columns(self, schema: Json) -> Json:
        """Return the columns of the output that the table gets."""
        return schema

    def key_problems(self, output: Json) -> list[str]:
        """Return the problems with columns that the sink's arguments name, or that the sink adds."""
        return []

    def table_problems(self, existing: FoundTable) -> list[str]:
        """Return why this sink cannot use the table, no matter what its rows are."""
        if not existing.is_table:
            return ["it is not a table, but a view or the like"]
        if not existing.survives:
            return [
                "it, or a partition of it, is unlogged, so a crash of the server would delete its rows: "
                f"ALTER TABLE {self.table_name.sql} SET LOGGED"
            ]
        return []

    @property
    def added_columns(self) -> dict[str, str]:
        """The columns that the sink adds to the table, with their types."""
        return {}

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row, for a sink that replaces rows."""
        return ()

    # --- in a job -------------------------------------------------------------------------------------------

    def declared_rules(self, place: Place) -> Json | None:
        with Database.resolve(place, self.connection).session("looking at the table") as session:
            existing = find_table(session.cursor(), self.table_name)
        return msgspec.json.decode(msgspec.json.encode(existing)) if existing is not None else None

    def row_rules(self, columns: Json, declared: Json | None) -> DeclaredRules:
        output = self.output_columns(columns)
        if name_problems(output):
            return DeclaredRules()  # `output_problems` reports them
        table = typed.convert(declared, FoundTable) if declared is not None else None
        if table is not None:
            table = self._as_widened(_natural_types(output), table)
        return table_rules(output, table, self.keys, self.delete_when)

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        with self._refused_rows(context):
            return super().prepare(frame, context, staging)

    def staged_form(self, frame: DataFrame, context: SinkContext) -> DataFrame:
        output = self.output_columns(msgspec.json.decode(frame.schema.json()))
        with self._database(context).session("looking at the table") as session:
            existing, _ = self._inspect_table(session.cursor(), context)
        if existing is not None:
            existing = self._as_widened(_natural_types(output), existing)
        rules = table_rules(output, existing, self.keys, self.delete_when).rules
        columns = staged_columns(output, existing, self.keys, rules)
        return empty_if(frame, frame.select(*columns, *self.further_columns()))

    def further_columns(self) -> Iterable[Any]:
        """Return further columns to stage."""
        return ()

    def settled(self, staged: StagedPart, context: SinkContext, staging: Staging) -> StagedPart:
        """Note the oid of the table of marks."""
        with self._database(context).session("looking up the table of marks") as session:
            marks = find_oid(session.cursor(), marks_of(self.table_name))
        if marks is None:
            return staged
        return msgspec.structs.replace(staged, notes=staged.notes | {_MARKS: marks})

    @contextlib.contextmanager
    def _refused_rows(self, context: SinkContext) -> Iterator[None]:
        """Report which column refuses a row, instead of Spark's error."""
        try:
            yield
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            raise Invalid(
                f"sink {context.sink}: {self.table_name} would not accept a row: {refusal}",
                expected="rows that the table accepts, because a decided checkpoint must be published",
                help='declare the sink with refused="quarantine", or change such rows in a stage before it',
                reason="BAD_ROWS",
            ) from None

    # --- publishing -----------------------------------------------------------------------------------------

    @abstractmethod
    def add(self, cursor: Any, rows: StagedRows, table: FoundTable, context: SinkContext) -> None:
        """Add the rows of one committable to the table, whose columns fit them."""

    @abstractmethod
    def remove_rows_after(self, cursor: Any, after: int, table: FoundTable, context: SinkContext) -> None:
        """Undo all checkpoints after `after`, for a rollback."""

    def count_foreign_changes(self, cursor: Any, after: int, context: SinkContext) -> int:
        """Return how many of the rows that a rollback would restore were changed by other programs."""
        return 0

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        def add_all(cursor: Any, mark: SinkMark) -> FoundTable | None:
            existing = find_table(cursor, self.table_name)
            refuse_replaced_table(mark, existing, self.table_name, context)
            refuse_second_publisher(
                cursor, self.table_name, context, existing, take_over=self.take_over, alone=self.allow_rollback
            )
            if self.take_over:
                self._end_ownership(cursor, context)
            parts = list(rows.split_parts())
            for part in parts:  # the table changes before it has rows of this transaction
                existing = self._fit_table(cursor, part, existing)
            for part in parts:
                assert existing is not None
                self.add(cursor, part, existing, context)
            return existing

        return self._in_transaction(rows, context, add_all, None)

    def restore(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        if head.last_entry is not None and head.last_entry >= publication.id:
            return None
        restore = publication.restore
        after = None
        if restore is not None and restore.how != "keep":
            after = restore.to.version if restore.to is not None else 0
        rows = self._staged_rows(publication, head, context)

        def remove_rows_after(cursor: Any, mark: SinkMark) -> FoundTable | None:
            existing = find_table(cursor, self.table_name)
            if after is not None:
                refuse_replaced_table(mark, existing, self.table_name, context)
                problem = self._undo_problem(mark, after)
                if problem or existing is None:
                    raise Invalid(
                        f"{self.table_name} can no longer be rolled back to checkpoint {after}: {problem}",
                        expected="the table as it was when the rollback was decided",
                        help="roll back again, and choose --keep for this table",
                        reason="HISTORY_GONE",
                    )
                only_own_changes = restore is not None and restore.how == "restore"
                if only_own_changes and self.count_foreign_changes(cursor, after, context):
                    raise Rejected(
                        f"{self.table_name}: rows that this pipeline wrote were changed by other programs",
                        expected="the rows as they were when the rollback was decided",
                        help="roll back again, and choose --discard or --keep for this table",
                        reason="FOREIGN_COMMITS",
                    )
                self.remove_rows_after(cursor, after, existing, context)
            return existing

        seams.fault("S10.publish.before")
        if not self._in_transaction(rows, context, remove_rows_after, after):
            return None
        seams.fault("S10.publish.after")
        return self._published(publication.id, context, None)

    def _in_transaction(
        self,
        rows: StagedRows,
        context: SinkContext,
        work: Callable[[Any, SinkMark], FoundTable | None],
        undone_after: int | None,
    ) -> bool:
        """Do the work and move the mark in one transaction. Return False if the mark is not at `rows.after`."""
        database, table = self._database(context), self.table_name
        self._make_marks(context)
        with database.transaction(f"publishing checkpoint {rows.checkpoint} to {table}") as (connection, cursor):
            mark = lock_mark(cursor, connection.rollback, database, table, context)
            if mark.last != rows.after:
                connection.rollback()
                return False
            if mark.last is None and not mark.empty_by_hand:
                self._refuse_foreign_marks(cursor, rows, context)
            existing = work(cursor, mark)
            kept_since = None
            if self.allow_rollback:
                kept_since = mark.kept_since if mark.kept_since is not None else rows.after or 0
            move_mark(
                cursor,
                table,
                context,
                rows.checkpoint,
                table_oid=existing.oid if existing is not None else None,
                kept_since=kept_since,
                undone_after=undone_after,
            )
            connection.commit()
        return True

    def _make_marks(self, context: SinkContext) -> None:
        make_marks(self._database(context), self.table_name, history=self.allow_rollback and bool(self.keys))

    def _refuse_foreign_marks(self, cursor: Any, rows: StagedRows, context: SinkContext) -> None:
        """Raise Invalid if the table of marks was replaced after the rows were staged.

        The mark may then be lost, so it is unknown whether the rows have been published.
        """
        marks = marks_of(self.table_name)
        oid = find_oid(cursor, marks)
        if all(part.notes.get(_MARKS, oid) == oid for part in rows.parts):
            return
        raise Invalid(
            f"sink {context.sink!r}: the table {marks}, which records the checkpoints in {self.table_name}, was "
            "dropped and created again",
            expected="the table of marks that was created before the first checkpoint",
            help="check the table, then restore the mark: `tidegate mark --help` explains how",
            reason="MARKS_GONE",
        )

    def set_mark(self, last: int | None, context: SinkContext) -> None:
        database, table = self._database(context), self.table_name
        checkpoint = last or NO_CHECKPOINT
        self._make_marks(context)
        with database.transaction(f"setting the mark of {table}") as (connection, cursor):
            lock_mark(cursor, connection.rollback, database, table, context)
            existing = find_table(cursor, table)
            move_mark(
                cursor,
                table,
                context,
                checkpoint,
                table_oid=existing.oid if existing is not None else None,
                kept_since=checkpoint if self.allow_rollback else None,
                undone_after=None,
            )
            connection.commit()

    # --- rollbacks ------------------------------------------------------------------------------------------

    def rows_stay_reason(self) -> str:
        if self.allow_rollback:
            return ""
        return "it is declared without allow_rollback=True, so it is unknown which rows to remove"

    def restore_plan(
        self, to: int | None, known: PublishedTable | None, committables: Any, context: SinkContext
    ) -> RestorePlan:
        with self._database(context).session("checking what a rollback can do") as session:
            cursor = session.cursor()
            _, mark = self._inspect_table(cursor, context, checkpoint=to or 0)
            if mark is None or mark.last is None:
                return RestorePlan(exists=False, not_published_yet=to is not None)
            if to is not None and mark.last < to:
                return RestorePlan(not_published_yet=True, version=mark.last)
            target_version = self._published(to, context, None) if to is not None else None
            rows_stay_reason = self.rows_stay_reason() or self._undo_problem(mark, to or 0)
            if rows_stay_reason:
                return RestorePlan(target_version=target_version, version=mark.last, rows_stay_reason=rows_stay_reason)
            changed = self.count_foreign_changes(cursor, to or 0, context)
        if not changed:
            return RestorePlan(target_version=target_version, version=mark.last)
        return RestorePlan(
            target_version=target_version,
            version=mark.last,
            foreign_commits=(f"{changed:,} rows that this pipeline wrote were changed or removed",),
            not_separable_reason="rows of other programs that were replaced cannot be told from the pipeline's own",
        )

    def _undo_problem(self, mark: SinkMark, after: int) -> str:
        if mark.kept_since is None:
            return "nothing was published to it since it was declared with allow_rollback=True"
        if after < mark.kept_since:
            return f"only checkpoints after {mark.kept_since} can be undone"
        if mark.undone:
            return "an earlier rollback has removed that checkpoint's rows"
        return ""

    # --- table and mark -------------------------------------------------------------------------------------

    def _database(self, context: SinkContext) -> Database:
        return Database.resolve(context.place, self.connection)

    def _mark(self, context: SinkContext) -> SinkMark | None:
        with self._database(context).session("reading the mark") as session:
            return self._inspect_table(session.cursor(), context)[1]

    def _inspect_table(
        self, cursor: Any, context: SinkContext, checkpoint: int = 0
    ) -> tuple[FoundTable | None, SinkMark | None]:
        """Return the table and its mark. Raise an error if this sink may not publish there."""
        table = self.table_name
        # The mark is read first: the first publish creates both, and may commit between the two queries. A table
        # without a mark is fine, but a mark without its table is an error.
        mark = find_mark(cursor, table, context, checkpoint)
        existing = find_table(cursor, table)
        refuse_replaced_table(mark, existing, table, context)
        refuse_second_publisher(cursor, table, context, existing, take_over=self.take_over, alone=self.allow_rollback)
        return existing, mark

    def _end_ownership(self, cursor: Any, context: SinkContext) -> None:
        cursor.execute(
            f"DELETE FROM {marks_of(self.table_name).sql} WHERE table_name = {literal(self.table_name.name)} "
            f"AND pipeline = {literal(context.pipeline)} AND sink = {literal(context.sink)} "
            f"AND app_id <> {literal(context.app_id)}"
        )

    def _differences(self, types: dict[str, str], existing: FoundTable) -> list[str]:
        """Return why the table does not fit rows with columns of these types."""
        problems = []
        columns = types | self.added_columns
        names_by_folded = {name.casefold(): name for name in existing.columns}
        for name, data_type in columns.items():
            column = existing.columns.get(name)
            if column is None:
                similar = names_by_folded.get(name.casefold())
                if similar is not None:
                    problems.append(f"{name!r} is written {similar!r} in the table")
                elif self.schema_evolution == "refuse":
                    problems.append(f"{name!r} ({data_type}) is not in the table")
            elif column.generated:
                problems.append(f"{name!r} is generated by the table itself")
            elif not fits(data_type, column):
                problems.append(f"{name!r} is {data_type}; the table has {column.type}")
        written = {name.casefold() for name in columns}
        for name, column in existing.columns.items():
            if name.casefold() in written or column.filled or column.generated:
                continue
            if column.not_null:
                problems.append(
                    f"{name!r} ({column.type}, not null, no default) is in the table, but not in the output"
                )
            elif self.schema_evolution == "refuse":
                problems.append(f"{name!r} ({column.type}) is in the table, but not in the output")
        return problems

    def _fit_table(self, cursor: Any, rows: StagedRows, existing: FoundTable | None) -> FoundTable:
        """Create or extend the table if necessary, and return it. Raise Invalid if the rows no longer fit it."""
        types = {name: natural for name, (natural, _) in self.staged_columns(rows).items()}
        if existing is None:
            for statement in self.creation(types):
                cursor.execute(statement)
        else:
            wide = self._as_widened(types, existing)
            problems = self._differences(types, wide) + self._changes(rows, wide)
            if problems:
                raise Invalid(
                    "\n    ".join([f"{self.table_name} was changed since the rows were staged:", *problems]),
                    expected="the columns that the table had when the checkpoint was made",
                    help="change the table back, then run again, which publishes the pending checkpoints",
                    reason="TABLE_CHANGED",
                )
            changes = []
            for name, data_type in (types | self.added_columns).items():
                if name not in existing.columns:
                    changes.append(f"ADD COLUMN {quoted_name(name)} {data_type}")
                elif wide.columns[name].type != existing.columns[name].type:
                    changes.append(f"ALTER COLUMN {quoted_name(name)} TYPE {wide.columns[name].type}")
            if not changes:
                return existing
            cursor.execute(f"ALTER TABLE {self.table_name.sql} {', '.join(changes)}")
        table = find_table(cursor, self.table_name)
        assert table is not None
        return table

    def staged_columns(self, rows: StagedRows) -> dict[str, tuple[str, str]]:
        """Return the staged columns that the table gets, each with two types.

        They are the type that the sink creates for it, and the type that the table had when the rows were staged.
        """
        if rows.columns is None:
            return {}
        return staged_column_types(rows.columns)

    def _changes(self, rows: StagedRows, existing: FoundTable) -> list[str]:
        """Return the changes of the table since staging that could make it refuse rows."""
        assert rows.columns is not None
        without_null, problems = not_null_names(rows.columns), []
        for name, (natural, before) in self.staged_columns(rows).items():
            column = existing.columns.get(name)
            if column is None:
                continue
            fits_all_values = (
                column.type == "character varying" if natural == "text" else fits_all(natural, column.type)
            )
            if column.type not in (natural, before) and not fits_all_values:
                problems.append(f"{name!r} is now {column.type}, and was {before}")
            if column.not_null and name not in without_null:
                problems.append(f"{name!r} must now not be null")
        return problems

    def creation(self, types: dict[str, str]) -> list[str]:
        """Return the statements that create the table with columns of these types."""
        columns = [f"{quoted_name(name)} {data_type}" for name, data_type in (types | self.added_columns).items()]
        if self.keys:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted_name, self.keys))})")
        return [f"CREATE TABLE {self.table_name.sql} ({', '.join(columns)})"]


def _natural_types(output: Json) -> dict[str, str]:
    """Return the types of the columns that the sink would create for an output."""
    return {field["name"]: column_type(field["type"]) or "" for field in output["fields"]}
