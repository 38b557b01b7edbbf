"""Maps columns of PostgreSQL to Spark types. Types without an exact counterpart in Spark are read as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tidegate.connectors.postgres import FoundTable, TableName, quoted_name
from tidegate.errors import Invalid
from tidegate.records.names import quoted
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "SAME_TEXT",
    "ReadColumn",
    "as_text_problems",
    "ddl_of",
    "frame_of",
    "planned_columns",
    "read_columns",
    "recorded",
    "refuse_changed_columns",
    "unreadable_values",
]

SAME_TEXT: Final = (
    "SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false), "
    "set_config('IntervalStyle', 'postgres', false), set_config('bytea_output', 'hex', false), "
    "set_config('extra_float_digits', '1', false)"
)
"""Settings with which a session writes values as the same text, no matter how the server is configured."""

_TYPES: Final = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "text": "string",
    "bytea": "binary",
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_TIMESTAMP_PRECISION: Final = re.compile(r"^timestamp\(\d\)")
_MAX_DIGITS: Final = 38

_MIN_UNREADABLE: Final = {"date": "infinity", "timestamp": "294247-01-01", "timestamp_ntz": "294247-01-01"}
"""The smallest values of PostgreSQL that are too large for Spark."""

_FROM_TEXT: Final[dict[str, Callable[[str], Any]]] = {
    "boolean": lambda text: text == "t",
    "smallint": int,
    "int": int,
    "bigint": int,
    "float": float,
    "double": float,
    "string": str,
    "binary": lambda text: bytes.fromhex(text[2:]),
    "date": date.fromisoformat,
    "timestamp": parse_time,
    "timestamp_ntz": parse_time,
}


@dataclass(frozen=True)
class ReadColumn:
    """A column to read."""

    name: str
    type: str
    """The type in PostgreSQL."""
    as_text: bool = False
    """Whether it is read as the text that PostgreSQL writes."""
    number: int = 0
    """Its number in the table, which renaming does not change. 0 if an older version of tidegate planned the range."""

    @property
    def spark(self) -> str:
        """The type in Spark, as DDL."""
        if self.as_text:
            return "string"
        element = _TIMESTAMP_PRECISION.sub("timestamp", self.type.removesuffix("[]"))
        spark_type = _TYPES.get(element)
        if self.type.endswith("[]"):
            return f"array<{spark_type}>" if spark_type is not None else "string"
        numeric = _NUMERIC.fullmatch(element)
        if numeric and int(numeric[2]) <= int(numeric[1]) <= _MAX_DIGITS:
            return f"decimal({numeric[1]},{numeric[2]})"
        return spark_type or "string"

    @property
    def selected(self) -> str:
        """The expression that selects the column: as text, if the driver could not read the type exactly."""
        name = quoted_name(self.name)
        if self.spark.startswith("decimal") or (self.spark == "string" and self.type != "text"):
            return f"{name}::text AS {name}"
        return name

    @property
    def arrow(self) -> pa.DataType:
        """The type in Arrow."""
        return _arrow(self.spark)

    @property
    def unreadable(self) -> str:
        """The SQL condition that a value is not one of the Spark type, or "" if all values are."""
        name, spark_type = quoted_name(self.name), self.spark
        if spark_type.startswith("array<"):
            conditions = [f"array_ndims({name}) > 1"]
            limit = _MIN_UNREADABLE.get(spark_type[len("array<") : -1])
            if limit is not None:
                conditions.append(f"'{limit}' <= ANY ({name}) OR '-infinity' = ANY ({name})")
            return " OR ".join(conditions)
        limit = _MIN_UNREADABLE.get(spark_type)
        if limit is not None:
            return f"{name} >= '{limit}' OR {name} = '-infinity'"
        if spark_type.startswith("decimal"):
            return f"{name} = 'NaN'"
        return ""

    def from_text(self, text: str) -> Any:
        """Parse a value, except an array, as PostgreSQL writes it. Raise ValueError if Python does not support it."""
        if not self.spark.startswith("decimal"):
            return _FROM_TEXT[self.spark](text)
        number = Decimal(text)
        if not number.is_finite():
            raise ValueError(text)
        return number


def read_columns(
    table: TableName, existing: FoundTable, names: Sequence[str], as_text: Sequence[str]
) -> list[ReadColumn]:
    """Return the columns with these names. Raise Invalid if one is missing."""
    missing = [name for name in dict.fromkeys([*names, *as_text]) if name not in existing.columns]
    if missing:
        raise Invalid(
            f"{table} has no column {', '.join(map(repr, missing))}",
            expected=f"columns of the table: {', '.join(existing.columns)}",
            help="correct `columns` or `as_text`",
            reason="NO_COLUMN",
        )
    columns = []
    for name in names:
        column = existing.columns[name]
        columns.append(ReadColumn(name, column.type, name in as_text, column.number))
    return columns


def planned_columns(recorded: Iterable[Sequence[Any]], as_text: Sequence[str]) -> list[ReadColumn]:
    """Return the columns that a plan has recorded. Those of an older version have no number."""
    return [ReadColumn(name, data_type, name in as_text, *number) for name, data_type, *number in recorded]


def as_text_problems(as_text: Sequence[str]) -> list[str]:
    """Return the problems of the argument `as_text`."""
    if isinstance(as_text, str) or not all(isinstance(name, str) and name for name in as_text):
        return [f"as_text is {as_text!r}; it must list names of columns"]
    return []


def unreadable_values(source: str, table: TableName, columns: Iterable[ReadColumn], where: str) -> Invalid:
    """Return the error for values that Spark's types do not support."""
    listed = ", ".join(f"{column.name!r} ({column.type}, read as {column.spark})" for column in columns)
    return Invalid(
        f"source {source!r}: {table} has values that cannot be read, {where}: column {listed}",
        expected="no infinity, no NaN in a numeric, no time outside the range of Spark or Python, no nested arrays, "
        "and no value of an earlier type of the column",
        help=f"read such columns as text: as_text={[column.name for column in columns]!r}; a stage can convert them",
        reason="BAD_VALUES",
    )


def recorded(columns: Iterable[ReadColumn]) -> list[list[Any]]:
    """Return the columns as a plan records them."""
    return [[column.name, column.type, column.number] for column in columns]


def refuse_changed_columns(source: str, table: TableName, existing: FoundTable, columns: Iterable[ReadColumn]) -> None:
    """Raise Invalid if a planned column was dropped, replaced, or given another type."""
    changed = []
    for column in columns:
        current = existing.columns.get(column.name)
        if current is None:
            changed.append(f"{column.name!r} was {column.type} and no longer exists")
        elif current.type != column.type:
            changed.append(f"{column.name!r} was {column.type} and is now {current.type}")
        elif column.number not in (0, current.number):
            changed.append(f"{column.name!r} is now the name of another column")
    if changed:
        raise Invalid(
            f"source {source!r}: {table} was changed since the range was planned: {'; '.join(changed)}",
            expected="the columns that were planned",
            help="change the table back, or abort the checkpoint: the next one is planned with the new columns",
            reason="TABLE_CHANGED",
        )


def ddl_of(columns: Iterable[ReadColumn]) -> str:
    """Return the schema as DDL."""
    return ", ".join(f"{quoted(column.name)} {column.spark}" for column in columns)


def frame_of(spark: SparkSession, rows: pa.Table, ddl: str) -> DataFrame:
    """Return an Arrow table as a frame with this schema."""
    from pyspark.sql.types import StructType

    session: Any = spark
    frame: DataFrame = session.createDataFrame(rows, StructType.fromDDL(ddl))
    return frame


def _arrow(spark_type: str) -> pa.DataType:
    import pyarrow as pa

    if spark_type.startswith("array<"):
        return pa.list_(_arrow(spark_type[len("array<") : -1]))
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", spark_type)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return {
        "boolean": pa.bool_(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }[spark_type]
