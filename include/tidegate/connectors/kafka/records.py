"""The form in which rows are staged for Kafka: key, value and headers as bytes, made by Spark.

After the decision they are only read and sent. JSON is written in one way, whatever the session's settings: moments in
UTC with microseconds, and null values as null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tidegate.connectors.declaring import collation_problems
from tidegate.connectors.valid_texts import columns_for_json
from tidegate.delta.log.schema import columns, render
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_if

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["KEY", "PARTITION", "SIZE", "TIMESTAMP", "VALUE", "RecordForm", "ValueFormat", "header_column"]

ValueFormat = Literal["json", "string", "bytes"]

KEY: Final = "key"
VALUE: Final = "value"
PARTITION: Final = "partition"
TIMESTAMP: Final = "timestamp"
SIZE: Final = "size"
"""The bytes of key, value and headers together: its greatest one is found without reading the rows."""

_JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
_TEXT_TYPES: Final = ("string", "byte", "short", "integer", "long", "boolean", "date")
"""Types with one text for each value."""
_MOMENTS: Final = ("timestamp", "timestamp_ntz")


def header_column(number: int) -> str:
    """Return the name of the staged column of a header."""
    return f"header_{number}"


@dataclass(frozen=True)
class RecordForm:
    """How a row becomes a record."""

    key: tuple[str, ...]
    """The columns of the key. Empty: records have none."""
    key_as_text: bool
    """True: the text of the only key column is the key. False: a JSON object of all of them."""
    value: ValueFormat
    omit: Sequence[str]
    headers: Mapping[str, str]
    """The columns of headers, by name of the header."""
    partition: str | None
    timestamp: str | None

    def problems(self, schema: Json) -> list[str]:
        """Return what rows with this schema lack."""
        types = {name: field["type"] for name, field in columns(schema).items()}
        wanted = [("key", name, self._key_types()) for name in self.key]
        wanted += [("header", name, ("string", "binary")) for name in self.headers.values()]
        wanted += [("partition", name, ("integer", "short", "byte")) for name in filter(None, [self.partition])]
        wanted += [("timestamp", name, ("timestamp",)) for name in filter(None, [self.timestamp])]
        if self.value != "json":
            wanted.append((f'value="{self.value}": the', VALUE, ("string",) if self.value == "string" else ("binary",)))
        problems = []
        for what, name, accepted in wanted:
            if name not in types:
                problems.append(f"{what} column {name!r} is not in the output ({', '.join(types)})")
            elif types[name] not in accepted and not (what == "key" and _is_decimal(types[name])):
                problems.append(f"{what} column {name!r} is {render(types[name])}, not {_any_of(accepted)}")
        problems += collation_problems(schema, self.key, "key column")
        problems += [f"omit names {name!r}, which is not in the output" for name in self.omit if name not in types]
        if self.value == "json" and not set(types) - set(self.omit):
            problems.append("omit leaves no column for the value")
        return problems

    def _key_types(self) -> tuple[str, ...]:
        return (*_TEXT_TYPES, "binary") if self.key_as_text else (*_TEXT_TYPES, *_MOMENTS)

    def staged(self, frame: DataFrame) -> DataFrame:
        """Return the records of rows."""
        from pyspark.sql import functions as F

        parts = {VALUE: self._value(frame)}
        if self.key:
            parts[KEY] = self._key(frame)
        for number, name in enumerate(self.headers.values()):
            parts[header_column(number)] = F.col(quoted(name)).cast("binary")
        if self.partition is not None:
            parts[PARTITION] = F.col(quoted(self.partition)).cast("int")
        if self.timestamp is not None:
            parts[TIMESTAMP] = F.unix_millis(F.col(quoted(self.timestamp)))
        records = frame.select(*(column.alias(name) for name, column in parts.items()))
        size = F.lit(sum(len(name.encode()) for name in self.headers))
        for name in parts:
            if name not in (PARTITION, TIMESTAMP):
                size = size + F.coalesce(F.octet_length(name), F.lit(0))
        return empty_if(frame, records.withColumn(SIZE, size))

    def removed(self, rows: DataFrame, staged: DataFrame) -> DataFrame:
        """Return the keys of rows that no staged record has."""
        keys = rows.select(self._key(rows).alias(KEY)).distinct()
        return empty_if(rows, keys.join(staged.select(KEY), KEY, "left_anti"))

    def _key(self, frame: DataFrame) -> Column:
        from pyspark.sql import functions as F

        if not self.key_as_text:
            return F.to_json(F.struct(*columns_for_json(frame, self.key)), _JSON).cast("binary")
        column = F.col(quoted(self.key[0]))
        is_binary = frame.schema[self.key[0]].dataType.typeName() == "binary"
        return column if is_binary else column.cast("string").cast("binary")

    def _value(self, frame: DataFrame) -> Column:
        from pyspark.sql import functions as F

        if self.value != "json":
            return F.col(VALUE).cast("binary")
        kept = columns_for_json(frame, [name for name in frame.columns if name not in self.omit])
        return F.to_json(F.struct(*kept), _JSON).cast("binary")


def _is_decimal(kind: Json) -> bool:
    return isinstance(kind, str) and kind.startswith("decimal")


def _any_of(kinds: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))
