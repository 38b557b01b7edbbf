"""Append rows to an Iceberg table through pyiceberg, visible exactly once.

One commit, on exactly the snapshot that was read, adds the data files and sets a table property to the checkpoint's
number. By default, pyiceberg retries a commit that lost a race on the new snapshot, where another publisher may already
have added the same rows. So its retries are turned off, and the caller reads the mark again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tidegate.connectors.row_rules import OUTSIDE_YEARS, DeclaredRules, RowRule
from tidegate.connectors.sink import SinkContext
from tidegate.connectors.transactional import StagedRows, TransactionalSink
from tidegate.delta import from_spark
from tidegate.delta.arrow_types import arrow_schema
from tidegate.delta.files.partitions import refuse_rows
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records.airflow_login import connection_id, is_airflow_login, where_login_is
from tidegate.records.masking import without_logins
from tidegate.records.names import quoted
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_if

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["IcebergAppend"]

_RETRIES = "commit.retry.num-retries"


class IcebergAppend(TransactionalSink):
    """Add the rows of each checkpoint to an Iceberg table, which the first checkpoint creates.

        IcebergAppend("shop.orders", connection="lake")

    table: the table's name in the catalog, with its namespace, which must exist.
    connection: the catalog's name in the setting `connections`, with pyiceberg's options such as type, uri and
        warehouse.
    schema_evolution: "refuse" any difference from the table, or "add" new columns to it.
    take_over: append to a table that another pipeline of this name has appended to. Its rows stay.

    Each snapshot's summary has the checkpoint's number, as "tidegate.checkpoint". A rollback cannot remove rows, so it
    needs --keep or --leave. Older snapshots can be read by their number.
    """

    kind: ClassVar[str] = "iceberg-append"
    counts_input_rows: ClassVar[bool] = True

    def __init__(
        self,
        table: str,
        *,
        connection: str,
        schema_evolution: Literal["refuse", "add"] = "refuse",
        take_over: bool = False,
    ) -> None:
        self.table = table
        self.connection = connection
        self.schema_evolution = schema_evolution
        self.take_over = take_over

    def describe(self) -> Json:
        return {
            "kind": self.kind,
            "table": self.table,
            "connection": self.connection,
            "schema_evolution": self.schema_evolution,
        }

    def problems(self) -> list[str]:
        problems = []
        if not isinstance(self.table, str) or not all(self.table.split(".")) or "." not in self.table:
            problems.append(f"table is {self.table!r}; write the namespace and the name, like 'shop.orders'")
        if (
            not isinstance(self.connection, str)
            or not self.connection
            or ("." in self.connection and not is_airflow_login(self.connection))
        ):
            problems.append(f"connection is {self.connection!r}; it must be a name in the setting connections")
        if self.schema_evolution not in ("refuse", "add"):
            problems.append(f'schema_evolution is {self.schema_evolution!r}: write "refuse" or "add"')
        return problems

    def target(self, place: Place) -> str:
        return f"iceberg:{self.connection}/{self.table}"

    def check(self, context: SinkContext) -> None:
        with self._failures(context):
            catalog = self._catalog(context)
            namespace = self.table.rpartition(".")[0]
            if not catalog.namespace_exists(namespace):
                raise Invalid(
                    f"sink {context.sink}: the catalog {self.connection!r} has no namespace {namespace!r}",
                    expected="an existing namespace: tidegate only creates the table",
                    help=f"create it, or correct the name {self.table!r}",
                    reason="NO_NAMESPACE",
                )
        self.last(context)

    def output_problems(self, schema: Json, context: SinkContext) -> list[str]:
        """Compare names and types with those of the table, if it exists."""
        from pyiceberg.types import NestedField

        unsupported = _unsupported_fields(schema)
        if unsupported:
            return [f"{field['name']!r} is {field['type']}, which Iceberg does not have" for field in unsupported]
        output = _iceberg_schema(arrow_schema(from_spark(schema), [field["name"] for field in schema["fields"]]))
        with self._failures(context):
            table = self._load(self._catalog(context))
        if table is None:
            return []
        remaining: dict[str, NestedField] = {field.name: field for field in table.schema().fields}
        problems = []
        for field in output.fields:
            existing = remaining.pop(field.name, None)
            if existing is None and self.schema_evolution == "refuse":
                problems.append(f"{field.name!r} ({field.field_type}) is not in the table")
            elif existing is not None and _plain(existing.field_type) != _plain(field.field_type):
                problems.append(f"{field.name!r} is {field.field_type}; the table has {existing.field_type}")
        for name, field in remaining.items():
            if field.required:
                problems.append(f"{name!r} is required in the table, and missing")
        return problems

    def last(self, context: SinkContext) -> int | None:
        with self._failures(context):
            return self._mark(self._load(self._catalog(context)), context)

    def _mark(self, table: Any, context: SinkContext) -> int | None:
        """Return the last checkpoint in the table. Raise Invalid if another pipeline of this name appends to it."""
        properties = table.metadata.properties if table is not None else {}
        owner = properties.get(_owner(context), context.app_id)
        if owner != context.app_id and not self.take_over:
            raise Invalid(
                f"sink {context.sink}: {self.table} has rows of another pipeline named {context.pipeline!r}: its mark "
                f"is {owner!r}, this one is {context.app_id!r}",
                expected="the pipeline that published here before, with its checkpoints",
                help="was the pipeline's root wiped or moved? Point it to the old root, use another table, or declare "
                "the sink with take_over=True: the old rows stay, and this pipeline starts from the beginning",
                reason="OTHER_OWNER",
            )
        text = properties.get(_property(context))
        return int(text) if text is not None else None

    def row_rules(self, columns: Json, declared: Json | None) -> DeclaredRules:
        rules = []
        for field in columns["fields"]:
            name, condition = field["name"], OUTSIDE_YEARS.get(str(field["type"]))
            if condition is not None:
                rules.append(RowRule(f"{name} year", condition.format(quoted(name)), _outside_problem(name)))
        return DeclaredRules(tuple(rules))

    def staged_form(self, frame: DataFrame, context: SinkContext) -> DataFrame:
        """Return the rows. A time of which pyiceberg cannot write statistics fails the write: after the decision, the
        checkpoint could not be published."""
        from pyspark.sql import functions as F

        columns, is_checked = [], False
        for field in frame.schema.fields:
            column, condition = F.col(quoted(field.name)), OUTSIDE_YEARS.get(field.dataType.typeName())
            if condition is not None:
                outside = F.expr(condition.format(quoted(field.name)))
                column = refuse_rows(column, outside, _outside_problem(field.name)).alias(field.name)
                is_checked = True
            columns.append(column)
        if is_checked:
            return empty_if(frame, frame.select(*columns))
        return frame

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError

        with self._failures(context):
            catalog = self._catalog(context)
            table = self._load(catalog)
            if self._mark(table, context) != rows.after:
                return False
            try:
                if table is None:
                    schema = next(iter(rows.batches())).schema
                    transaction = catalog.create_table_transaction(self.table, schema=_iceberg_schema(schema))
                else:
                    properties = table.metadata.properties | {_RETRIES: "0"}  # for this commit only
                    table.metadata = table.metadata.model_copy(update={"properties": properties})
                    transaction = table.transaction()
                with transaction:
                    self._add(transaction, rows)
                    marks = {_property(context): str(rows.checkpoint), _owner(context): context.app_id}
                    transaction.set_properties(marks)
            except (CommitFailedException, TableAlreadyExistsError):
                return False
            except CommitStateUnknownException as error:
                raise self._unavailable(context, error) from None
            return True

    def _add(self, transaction: Any, rows: StagedRows) -> None:
        """Add one snapshot, even without rows, so that the commit fails if another writer has committed in between."""
        import pyarrow as pa
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        batches = list(rows.batches())
        target = schema_to_pyarrow(transaction.table_metadata.schema(), include_field_ids=False)
        table = pa.Table.from_batches(batches) if batches else target.empty_table()
        try:
            if self.schema_evolution == "add" and batches:
                with transaction.update_schema() as update:
                    update.union_by_name(_iceberg_schema(table.schema))
            transaction.append(table, snapshot_properties={"tidegate.checkpoint": str(rows.checkpoint)})
        except ValueError as error:
            raise Invalid(
                f"{self.table} was changed since the rows were staged: {_words(error)}",
                expected="the schema that the table had when the checkpoint was made",
                help="change the table back, then run again to publish the pending checkpoints",
                reason="TABLE_CHANGED",
            ) from None

    def rows_stay_reason(self) -> str:
        return "rows are not removed from an Iceberg table; read an older snapshot instead"

    def _catalog(self, context: SinkContext) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise Invalid(
                f"sink {context.sink}: pyiceberg is not installed",
                expected="the library by which tidegate writes Iceberg tables",
                help="pip install 'tidegate[iceberg]'",
                reason="LIBRARY_MISSING",
            ) from error
        return load_catalog(connection_id(self.connection), **context.place.connection(self.connection))

    def _load(self, catalog: Any) -> Any:
        """Return the table, or None if it does not exist yet."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return catalog.load_table(self.table)
        except NoSuchTableError:
            return None

    @contextlib.contextmanager
    def _failures(self, context: SinkContext) -> Iterator[None]:
        """Convert errors of the catalog and its storage to tidegate's, with logins masked, and no traceback that
        contains them."""
        try:
            yield
        except TidegateError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise Invalid(
                f"sink {context.sink}: the catalog {self.connection!r} cannot be used: {_words(error)}",
                expected="options of pyiceberg, such as type and uri",
                help=f"check {where_login_is(self.connection)}",
                reason="BAD_CONNECTION",
            ) from None
        except Exception as error:
            raise self._unavailable(context, error) from None

    def _unavailable(self, context: SinkContext, error: Exception) -> Unavailable:
        return Unavailable(
            f"sink {context.sink}: {self.target(context.place)} does not answer: {_words(error)}",
            help="nothing is lost: the next attempt retries; check the catalog, its storage and the login",
            reason="TARGET_AWAY",
        )


def _outside_problem(name: str) -> str:
    return f"column {name!r} is outside of the years 1 to 9999, which pyiceberg does not write"


def _words(error: Exception) -> str:
    """Return the first line of a library's error, without logins."""
    first = next(iter(str(error).strip().splitlines()), "")
    return without_logins(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def _property(context: SinkContext) -> str:
    return f"tidegate.last.{context.app_id}"


def _owner(context: SinkContext) -> str:
    """Return the name of the table property with the app_id of the pipeline that appends to the table."""
    return f"tidegate.owner.{context.pipeline}/{context.sink}"


def _iceberg_schema(schema: pa.Schema) -> Any:
    """Return the schema of a table for these columns. All are nullable, and so are nested fields."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow
    from pyiceberg.schema import assign_fresh_schema_ids

    def optional(field: pa.Field) -> pa.Field:
        kind = field.type
        if pa.types.is_struct(kind):
            kind = pa.struct([optional(inner) for inner in kind])
        elif pa.types.is_list(kind):
            kind = pa.list_(optional(kind.value_field))
        elif pa.types.is_map(kind):
            kind = pa.map_(kind.key_field, optional(kind.item_field))
        return field.with_type(kind).with_nullable(True)

    nullable = pa.schema(map(optional, schema))
    return assign_fresh_schema_ids(visit_pyarrow(nullable, _ConvertToIcebergWithoutIDs()))


def _unsupported_fields(schema: Json) -> list[Json]:
    """Return the columns whose type Iceberg does not have, even if nested."""
    return [field for field in schema["fields"] if re.search(r"interval|variant|void|udt", str(field["type"]))]


def _plain(kind: Any) -> str:
    """Return a type as text, without the ids that a table assigns to nested fields."""
    return re.sub(r"\b\d+: ", "", str(kind))
