"""The common part of the sinks that append to and upsert into tables of PostgreSQL."""

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
    refuse_other_publishers,
    refuse_other_table,
)
from tidegate.connectors.postgres.rights import is_owner, refuse_missing_rights
from tidegate.connectors.postgres.types import (
    checked_columns,
    column_type,
    fits,
    held_as,
    name_problems,
    not_null_names,
    refusal_of,
)
from tidegate.connectors.sink import Head, Prepared, Publication, RestorePlan, SinkContext, Staging
from tidegate.connectors.transactional import StagedPart, StagedRows, TransactionalSink
from tidegate.errors import Invalid, Rejected
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.spark.frame_facts import empty_if

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PostgresSink"]

OLDEST_SERVER = 14
_MARKS: Final = "marks"
"""In the notes of staged rows: the oid of the table of marks at that time."""


class PostgresSink(TransactionalSink):
    """A table of PostgreSQL that one sink of one pipeline publishes to. Others may write to it, too."""

    def __init__(
        self,
        table: str,
        *,
        connection: str,
        schema_evolution: Literal["refuse", "add"] = "refuse",
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
        return Database.of(place, self.connection).shared_uri(self.table_name)

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
        if self.schema_evolution not in ("refuse", "add"):
            problems.append(f'schema_evolution is {self.schema_evolution!r}: write "refuse" or "add"')
        return problems

    @property
    def table_name(self) -> TableName:
        """The table, with its schema."""
        return TableName.of(self.table)

    # --- before a checkpoint --------------------------------------------------------------------------------

    def check(self, context: SinkContext) -> None:
        with self._database(context).session("looking at the table") as session:
            if session.info.server_version < OLDEST_SERVER * 10_000:
                raise Invalid(
                    f"connection {self.connection!r} leads to PostgreSQL {session.info.server_version // 10_000}",
                    expected=f"PostgreSQL {OLDEST_SERVER} or newer",
                    help="use a newer server",
                    reason="OLD_SERVER",
                )
            cursor = session.cursor()
            found = find_table(cursor, self.table_name)
            refuse_missing_rights(
                cursor, self.connection, self.table_name, found, upsert=bool(self.keys), rollback=self.allow_rollback
            )
            self._inspect_table(cursor, context)
            problems = self.table_problems(found) if found is not None else []
        self._make_marks(context)  # so that rows are never staged without knowing where their mark will be
        if problems:
            raise Invalid(
                "\n    ".join([f"sink {context.sink}: {self.table_name} cannot be published to:", *problems]),
                expected="a table as the sink describes it, or none: it is then made",
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
            found, _ = self._inspect_table(cursor, context)
            if found is None:
                return []
            natural = {field["name"]: column_type(field["type"]) or "" for field in output["fields"]}
            problems = self.table_problems(found) + self._differences(natural, found)
            if not problems and set(natural) - set(found.columns) and not is_owner(cursor, self.table_name):
                problems.append(
                    "new columns can be added only by the table's owner, which this connection's user is not"
                )
        return problems

    def output_columns(self, schema: Json) -> Json:
        """Return the columns that the table is to have, of the rows that arrive."""
        return schema

    def key_problems(self, output: Json) -> list[str]:
        """Return the problems of the columns that the sink itself names."""
        return []

    def table_problems(self, found: FoundTable) -> list[str]:
        """Return the reasons why the table is none for this sink, whatever the rows are."""
        if not found.is_table:
            return ["it is no table, but a view or something else"]
        if not found.survives:
            return [
                "it, or a partition of it, is unlogged: a crash of the server empties it, and the rows would be lost: "
                f"ALTER TABLE {self.table_name.sql} SET LOGGED"
            ]
        return []

    @property
    def added_columns(self) -> dict[str, str]:
        """The columns that the sink itself adds to the table, with their types."""
        return {}

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which rows replace others."""
        return ()

    # --- in a job -------------------------------------------------------------------------------------------

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        with self._refused_rows(context):
            return super().prepare(frame, context, staging)

    def staged_form(self, frame: DataFrame, context: SinkContext) -> DataFrame:
        output = self.output_columns(msgspec.json.decode(frame.schema.json()))
        with self._database(context).session("looking at the table") as session:
            found, _ = self._inspect_table(session.cursor(), context)
        columns = checked_columns(output, found, self.keys)
        return empty_if(frame, frame.select(*columns.values(), *self.marks_of_rows()))

    def marks_of_rows(self) -> Iterable[Any]:
        """Return further columns to stage."""
        return ()

    def settled(self, staged: StagedPart, context: SinkContext, staging: Staging) -> StagedPart:
        """Note which table of marks is there now."""
        with self._database(context).session("looking at the mark") as session:
            marks = find_oid(session.cursor(), marks_of(self.table_name))
        return msgspec.structs.replace(staged, notes=staged.notes | ({_MARKS: marks} if marks is not None else {}))

    @contextlib.contextmanager
    def _refused_rows(self, context: SinkContext) -> Iterator[None]:
        """Tell which column refuses a row, instead of showing what Spark says."""
        try:
            yield
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            raise Invalid(
                f"sink {context.sink}: {self.table_name} cannot take a row: {refusal}",
                expected="rows that the table takes: what is decided must load",
                help="put a gate before the sink that quarantines such rows, or a stage that changes them",
                reason="BAD_ROWS",
            ) from None

    # --- publishing -----------------------------------------------------------------------------------------

    @abstractmethod
    def add(self, cursor: Any, rows: StagedRows, table: FoundTable, context: SinkContext) -> None:
        """Add the rows of one committable to the table, which fits them."""

    @abstractmethod
    def remove_rows_after(self, cursor: Any, after: int, table: FoundTable, context: SinkContext) -> None:
        """Take the rows of all checkpoints after `after` out of the table again, for a rollback."""

    def count_foreign_changes(self, cursor: Any, after: int, context: SinkContext) -> int:
        """Return how many of the rows that a rollback would put back others have changed since this pipeline did."""
        return 0

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        def add_all(cursor: Any, mark: SinkMark) -> FoundTable | None:
            found = find_table(cursor, self.table_name)
            refuse_other_table(mark, found, self.table_name, context)
            refuse_other_publishers(
                cursor, self.table_name, context, found, take_over=self.take_over, alone=self.allow_rollback
            )
            if self.take_over:
                self._end_ownership(cursor, context)
            for part in rows.split_by_part():
                found = self._fitting(cursor, part, found, context)
                self.add(cursor, part, found, context)
            return found

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
            found = find_table(cursor, self.table_name)
            if after is not None:
                refuse_other_table(mark, found, self.table_name, context)
                problem = self._undo_problem(mark, after)
                if problem or found is None:
                    raise Invalid(
                        f"{self.table_name} can no longer go back to checkpoint {after}: {problem}",
                        expected="what was there when the rollback was decided",
                        help="roll back once more, and choose --keep for it",
                        reason="HISTORY_GONE",
                    )
                if (
                    restore is not None
                    and restore.how == "restore"
                    and self.count_foreign_changes(cursor, after, context)
                ):
                    raise Rejected(
                        f"{self.table_name}: others have changed rows that this pipeline wrote",
                        expected="the rows as they were when the rollback was decided",
                        help="roll back once more, and choose for this table: --discard, or --keep",
                        reason="FOREIGN_COMMITS",
                    )
                self.remove_rows_after(cursor, after, found, context)
            return found

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
        """Do the work and move the mark in one transaction, if the mark is where it is expected."""
        database, table = self._database(context), self.table_name
        self._make_marks(context)
        with database.transaction(f"publishing checkpoint {rows.checkpoint} to {table}") as (connection, cursor):
            mark = lock_mark(cursor, connection.rollback, database, table, context)
            if mark.last != rows.after:
                connection.rollback()
                return False
            if mark.last is None and not mark.empty_by_hand:
                self._refuse_foreign_marks(cursor, rows, context)
            found = work(cursor, mark)
            kept_since = mark.kept_since if mark.kept_since is not None else rows.after or 0
            move_mark(
                cursor,
                table,
                context,
                rows.checkpoint,
                table_oid=found.oid if found is not None else None,
                kept_since=kept_since if self.allow_rollback else None,
                undone_after=undone_after,
            )
            connection.commit()
        return True

    def _make_marks(self, context: SinkContext) -> None:
        make_marks(self._database(context), self.table_name, history=self.allow_rollback and bool(self.keys))

    def _refuse_foreign_marks(self, cursor: Any, rows: StagedRows, context: SinkContext) -> None:
        """Raise Invalid if there is no mark because its table is not the one that was there when the rows were staged:
        whether they have been published is not known then."""
        marks = marks_of(self.table_name)
        now = find_oid(cursor, marks)
        if all(part.notes.get(_MARKS, now) == now for part in rows.parts):
            return
        raise Invalid(
            f"sink {context.sink!r}: the table {marks}, which says what {self.table_name} has, was dropped and made "
            "again",
            expected="the table of marks that was made before the first checkpoint",
            help="look into the table, then put the mark back: `tidegate mark --help` tells how",
            reason="MARKS_GONE",
        )

    def set_mark(self, last: int | None, context: SinkContext) -> None:
        database, table = self._database(context), self.table_name
        self._make_marks(context)
        with database.transaction(f"putting back the mark of {table}") as (connection, cursor):
            lock_mark(cursor, connection.rollback, database, table, context)
            found = find_table(cursor, table)
            move_mark(
                cursor,
                table,
                context,
                last or NO_CHECKPOINT,
                table_oid=found.oid if found is not None else None,
                kept_since=last or NO_CHECKPOINT if self.allow_rollback else None,
                undone_after=None,
            )
            connection.commit()

    # --- rollbacks ------------------------------------------------------------------------------------------

    def rows_stay_reason(self) -> str:
        return (
            ""
            if self.allow_rollback
            else "it is declared without allow_rollback=True, so its rows cannot be told apart"
        )

    def restore_plan(
        self, to: int | None, known: PublishedTable | None, committables: Any, context: SinkContext
    ) -> RestorePlan:
        with self._database(context).session("looking at the way back") as session:
            cursor = session.cursor()
            _, mark = self._inspect_table(cursor, context, asked=to or 0)
            if mark is None or mark.last is None:
                return RestorePlan(exists=False, not_published_yet=to is not None)
            if to is not None and mark.last < to:
                return RestorePlan(not_published_yet=True, version=mark.last)
            stays = self.rows_stay_reason() or self._undo_problem(mark, to or 0)
            changed = 0 if stays else self.count_foreign_changes(cursor, to or 0, context)
        return RestorePlan(
            target_version=self._published(to, context, None) if to is not None else None,
            version=mark.last,
            foreign_commits=(f"{changed:,} rows that this pipeline wrote were changed or removed",) if changed else (),
            not_separable_reason="rows of others that were replaced cannot be told from its own" if changed else "",
            rows_stay_reason=stays,
        )

    def _undo_problem(self, mark: SinkMark, after: int) -> str:
        if mark.kept_since is None:
            return "nothing was published to it since it is declared with allow_rollback=True"
        if after < mark.kept_since:
            return f"what is needed to take rows out again is kept only since checkpoint {mark.kept_since}"
        return "an earlier rollback has taken that checkpoint's rows out of it" if mark.undone else ""

    # --- looking --------------------------------------------------------------------------------------------

    def _database(self, context: SinkContext) -> Database:
        return Database.of(context.place, self.connection)

    def _mark(self, context: SinkContext) -> SinkMark | None:
        with self._database(context).session("looking at the mark") as session:
            return self._inspect_table(session.cursor(), context)[1]

    def _inspect_table(
        self, cursor: Any, context: SinkContext, asked: int = 0
    ) -> tuple[FoundTable | None, SinkMark | None]:
        """Return the table and its mark. Raise an error if this sink may not publish there."""
        table = self.table_name
        # The mark first: another publisher may commit between the two, and its first publish makes both at once.
        mark, found = find_mark(cursor, table, context, asked), find_table(cursor, table)
        refuse_other_table(mark, found, table, context)
        refuse_other_publishers(cursor, table, context, found, take_over=self.take_over, alone=self.allow_rollback)
        return found, mark

    def _end_ownership(self, cursor: Any, context: SinkContext) -> None:
        cursor.execute(
            f"DELETE FROM {marks_of(self.table_name).sql} WHERE table_name = {literal(self.table_name.name)} "
            f"AND pipeline = {literal(context.pipeline)} AND sink = {literal(context.sink)} "
            f"AND app_id <> {literal(context.app_id)}"
        )

    def _differences(self, natural: dict[str, str], found: FoundTable) -> list[str]:
        """Return the reasons why the table does not fit rows with these columns."""
        problems, folded = [], {name.casefold(): name for name in found.columns}
        for name, kind in (natural | self.added_columns).items():
            column = found.columns.get(name)
            if column is None and name.casefold() in folded:
                problems.append(f"{name!r} is written {folded[name.casefold()]!r} in the table")
            elif column is None and self.schema_evolution == "refuse":
                problems.append(f"{name!r} ({kind}) is not in the table")
            elif column is not None and column.generated:
                problems.append(f"{name!r} is generated by the table itself")
            elif column is not None and not fits(kind, column.type):
                problems.append(f"{name!r} is {kind}; the table has {column.type}")
        written = {name.casefold() for name in (natural | self.added_columns)}
        for name, column in found.columns.items():
            if name.casefold() in written or column.filled or column.generated:
                continue
            if column.not_null:
                problems.append(
                    f"{name!r} ({column.type}, not null, no default) is in the table, but not in the output"
                )
            elif self.schema_evolution == "refuse":
                problems.append(f"{name!r} ({column.type}) is in the table, but not in the output")
        return problems

    def _fitting(self, cursor: Any, rows: StagedRows, found: FoundTable | None, context: SinkContext) -> FoundTable:
        """Return the table, made or extended if need be. Raise Invalid if the decided rows no longer fit it."""
        natural = self._natural(rows)
        if found is None:
            for statement in self.creation(natural):
                cursor.execute(statement)
        else:
            problems = self._differences(natural, found) + self._changes(rows, found)
            if problems:
                raise Invalid(
                    "\n    ".join([f"{self.table_name} was changed since the rows were staged:", *problems]),
                    expected="the columns that the table had when the checkpoint was made",
                    help="change the table back, then run again: the pending checkpoints are published then",
                    reason="TABLE_CHANGED",
                )
            new = {name: kind for name, kind in (natural | self.added_columns).items() if name not in found.columns}
            if not new:
                return found
            added = ", ".join(f"ADD COLUMN {quoted_name(name)} {kind}" for name, kind in new.items())
            cursor.execute(f"ALTER TABLE {self.table_name.sql} {added}")
        made = find_table(cursor, self.table_name)
        assert made is not None
        return made

    def _natural(self, rows: StagedRows) -> dict[str, str]:
        return {name: natural for name, (natural, _) in self.staged_columns(rows).items()}

    def staged_columns(self, rows: StagedRows) -> dict[str, tuple[str, str]]:
        """Return the columns of staged rows that the table has: the type made for it, and the type when it was
        staged."""
        return held_as(rows.columns) if rows.columns is not None else {}

    def _changes(self, rows: StagedRows, found: FoundTable) -> list[str]:
        """Return what the table would refuse by now that was not looked for while staging."""
        assert rows.columns is not None
        without_null, problems = not_null_names(rows.columns), []
        for name, (natural, then) in self.staged_columns(rows).items():
            column = found.columns.get(name)
            if column is None:
                continue
            if column.type not in (natural, then) and natural == "text" and column.type != "character varying":
                problems.append(f"{name!r} is {column.type} now, and was {then}")
            if column.not_null and name not in without_null:
                problems.append(f"{name!r} must not be null now")
        return problems

    def creation(self, natural: dict[str, str]) -> list[str]:
        """Return the statements that make the table for columns of these types."""
        columns = [f"{quoted_name(name)} {kind}" for name, kind in (natural | self.added_columns).items()]
        if self.keys:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted_name, self.keys))})")
        return [f"CREATE TABLE {self.table_name.sql} ({', '.join(columns)})"]
