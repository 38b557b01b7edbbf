"""Which Spark type a column of PostgreSQL is read as. What Spark has no exact type for is read as text."""

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
    "refuse_other_columns",
    "unreadable_values",
]

SAME_TEXT: Final = (
    "SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false), "
    "set_config('IntervalStyle', 'postgres', false), set_config('bytea_output', 'hex', false), "
    "set_config('extra_float_digits', '1', false)"
)
"""Lets a session write a value as the same text, however the server is set."""

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
_PLACES: Final = re.compile(r"^timestamp\(\d\)")
_DIGITS: Final = 38

_MIN_UNREADABLE: Final = {"date": "infinity", "timestamp": "294247-01-01", "timestamp_ntz": "294247-01-01"}
"""The least values of PostgreSQL that are too great for Spark."""

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
    """Its type in PostgreSQL."""
    as_text: bool = False
    """True: it is read as PostgreSQL writes it, whatever its type is."""
    number: int = 0
    """Its number in the table, which renaming does not change. 0: an older version of tidegate planned it."""

    @property
    def spark(self) -> str:
        """The type in Spark, as DDL."""
        if self.as_text:
            return "string"
        kind = _PLACES.sub("timestamp", self.type.removesuffix("[]"))
        found = _TYPES.get(kind)
        if self.type.endswith("[]"):
            return f"array<{found}>" if found is not None else "string"
        numeric = _NUMERIC.fullmatch(kind)
        if numeric and int(numeric[2]) <= int(numeric[1]) <= _DIGITS:
            return f"decimal({numeric[1]},{numeric[2]})"
        return found or "string"

    @property
    def selected(self) -> str:
        """The expression that selects it: as text, if that is how it is read or what the driver can read exactly."""
        name = quoted_name(self.name)
        as_text = self.spark.startswith("decimal") or (self.spark == "string" and self.type != "text")
        return f"{name}::text AS {name}" if as_text else name

    @property
    def arrow(self) -> pa.DataType:
        """The type in Arrow."""
        return _arrow(self.spark)

    @property
    def unreadable(self) -> str:
        """The condition in SQL that a value is none of Spark's type. Empty: every value is."""
        name, kind, array = quoted_name(self.name), self.spark, self.spark.startswith("array<")
        if array:
            kind = kind[len("array<") : -1]
        found = [f"array_ndims({name}) > 1"] if array else []
        least = _MIN_UNREADABLE.get(kind)
        if least is not None and array:
            found.append(f"'{least}' <= ANY ({name}) OR '-infinity' = ANY ({name})")
        elif least is not None:
            found.append(f"{name} >= '{least}' OR {name} = '-infinity'")
        elif kind.startswith("decimal"):
            found.append(f"{name} = 'NaN'")
        return " OR ".join(found)

    def from_text(self, text: str) -> Any:
        """Return the value that PostgreSQL writes like this. Not for arrays. Raise ValueError if Python has none."""
        if not self.spark.startswith("decimal"):
            return _FROM_TEXT[self.spark](text)
        number = Decimal(text)
        if not number.is_finite():
            raise ValueError(text)
        return number


def read_columns(
    table: TableName, found: FoundTable, wanted: Sequence[str], as_text: Sequence[str]
) -> list[ReadColumn]:
    """Return the columns to read. Raise Invalid if one is missing."""
    missing = [name for name in dict.fromkeys([*wanted, *as_text]) if name not in found.columns]
    if missing:
        raise Invalid(
            f"{table} has no column {', '.join(map(repr, missing))}",
            expected=f"columns of the table: {', '.join(found.columns)}",
            help="correct `columns` or `as_text`",
            reason="NO_COLUMN",
        )
    return [ReadColumn(name, found.columns[name].type, name in as_text, found.columns[name].number) for name in wanted]


def planned_columns(recorded: Iterable[Sequence[Any]], as_text: Sequence[str]) -> list[ReadColumn]:
    """Return the columns that a plan records."""
    return [ReadColumn(name, kind, name in as_text, *number) for name, kind, *number in recorded]


def as_text_problems(as_text: Sequence[str]) -> list[str]:
    """Return the problems of the argument `as_text`."""
    if isinstance(as_text, str) or not all(isinstance(name, str) and name for name in as_text):
        return [f"as_text is {as_text!r}; it must list names of columns"]
    return []


def unreadable_values(source: str, table: TableName, columns: Iterable[ReadColumn], where: str) -> Invalid:
    """Return the error for values that Spark's types do not have."""
    told = ", ".join(f"{column.name!r} ({column.type}, read as {column.spark})" for column in columns)
    return Invalid(
        f"source {source!r}: {table} has values that cannot be read, {where}: column {told}",
        expected="no infinity, no NaN in a numeric, no time beyond what Spark or Python can hold, no array of arrays, "
        "and no value of a type that the column had before",
        help=f"read such columns as text: as_text={[column.name for column in columns]!r}; a stage can convert them",
        reason="BAD_VALUES",
    )


def recorded(columns: Iterable[ReadColumn]) -> list[list[Any]]:
    """Return columns as a plan records them."""
    return [[column.name, column.type, column.number] for column in columns]


def refuse_other_columns(source: str, table: TableName, found: FoundTable, columns: Iterable[ReadColumn]) -> None:
    """Raise Invalid if a planned column is gone, has another type, or is another one."""
    changed = []
    for column in columns:
        now = found.columns.get(column.name)
        if now is None or now.type != column.type:
            changed.append(f"{column.name!r} was {column.type} and is {now.type if now else 'gone'}")
        elif column.number not in (0, now.number):
            changed.append(f"{column.name!r} is the name of another column now")
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
    """Return rows of Arrow as a frame with this schema."""
    from pyspark.sql.types import StructType

    session: Any = spark
    frame: DataFrame = session.createDataFrame(rows, StructType.fromDDL(ddl))
    return frame


def _arrow(kind: str) -> pa.DataType:
    import pyarrow as pa

    if kind.startswith("array<"):
        return pa.list_(_arrow(kind[len("array<") : -1]))
    if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
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
    }[kind]
