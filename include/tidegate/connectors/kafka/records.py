"""Stages rows for Kafka: Spark encodes key, value and headers as bytes, so that publishing only reads and sends them.

JSON does not depend on the session's settings: timestamps are in UTC with microseconds, and null values are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tidegate.connectors.declaring import collation_problems
from tidegate.connectors.kafka.avro.encoding import HEAD_BYTES, avro_problems, avro_schema, decoder, encoder
from tidegate.connectors.row_rules import RowRule
from tidegate.connectors.valid_texts import columns_of_valid_text, invalid_text_condition, invalid_text_problem
from tidegate.delta.log.schema import columns, render
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_if

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["KEY", "PARTITION", "SIZE", "TIMESTAMP", "VALUE", "RecordForm", "ValueFormat", "header_column"]

ValueFormat = Literal["json", "avro", "string", "bytes"]

KEY: Final = "key"
VALUE: Final = "value"
PARTITION: Final = "partition"
TIMESTAMP: Final = "timestamp"
SIZE: Final = "size"
"""The total bytes of key, value and headers. The footers of files have its maximum."""

_JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
_TEXT_TYPES: Final = ("string", "byte", "short", "integer", "long", "boolean", "date")
"""Types whose values have exactly one text."""
_TIMESTAMP_TYPES: Final = ("timestamp", "timestamp_ntz")


def header_column(number: int) -> str:
    """Return the name of the staged column of a header."""
    return f"header_{number}"


@dataclass(frozen=True)
class RecordForm:
    """How rows become records."""

    key: tuple[str, ...]
    """The columns of the key. Empty: records have no key."""
    key_as_text: bool
    """True: the key is the text of its only column. False: it is a JSON object of all key columns."""
    value: ValueFormat
    omit: Sequence[str]
    headers: Mapping[str, str]
    """The column of each header, by the name of the header."""
    partition: str | None
    timestamp: str | None
    record_name: str = "row"
    """With Avro: the name of the schema."""
    head: bytes = b""
    """With Avro: what precedes each record."""

    @property
    def has_columns(self) -> bool:
        """True: a record's value has the columns of its row."""
        return self.value in ("json", "avro")

    def problems(self, schema: Json) -> list[str]:
        """Return why rows with this schema cannot become records."""
        types = {name: field["type"] for name, field in columns(schema).items()}
        required = [("key", name, self._key_types()) for name in self.key]
        required += [("header", name, ("string", "binary")) for name in self.headers.values()]
        if self.partition:
            required.append(("partition", self.partition, ("integer", "short", "byte")))
        if self.timestamp:
            required.append(("timestamp", self.timestamp, ("timestamp",)))
        if not self.has_columns:
            value_type = "string" if self.value == "string" else "binary"
            required.append((f'value="{self.value}": the', VALUE, (value_type,)))
        problems = []
        for role, name, accepted in required:
            if name not in types:
                problems.append(f"{role} column {name!r} is not in the output ({', '.join(types)})")
            elif types[name] not in accepted and not (role == "key" and _is_decimal(types[name])):
                problems.append(f"{role} column {name!r} is {render(types[name])}, not {_any_of(accepted)}")
        problems += collation_problems(schema, self.key, "key column")
        for name in self.omit:
            if name not in types:
                problems.append(f"omit names {name!r}, which is not in the output")
        if self.has_columns and not set(types) - set(self.omit):
            problems.append("omit leaves no column for the value")
        if self.value == "avro":
            problems += avro_problems(self.columns_of_value(schema))
        return problems

    def _key_types(self) -> tuple[str, ...]:
        if self.key_as_text:
            return (*_TEXT_TYPES, "binary")
        return (*_TEXT_TYPES, *_TIMESTAMP_TYPES)

    def staged(self, frame: DataFrame) -> DataFrame:
        """Return the rows as records to stage."""
        from pyspark.sql import functions as F

        schema = msgspec.json.decode(frame.schema.json())
        parts = self._parts(schema, partial(columns_of_valid_text, frame))
        records = frame.select(*(column.alias(name) for name, column in parts.items()))
        size = self._size({name: F.col(name) for name in parts})
        return empty_if(frame, records.withColumn(SIZE, size))

    def columns_of_staged(self, schema: StructType) -> dict[str, Column]:
        """Return how to compute the columns of the stream from staged records, as far as these have them."""
        from pyspark.sql import functions as F

        known: dict[str, Column] = {}
        if self.partition is not None and self.partition in schema.names:
            known[self.partition] = F.col(PARTITION)
        for number, name in enumerate(self.headers.values()):
            known[name] = F.col(header_column(number))
        if self.key_as_text and self.key:
            known[self.key[0]] = F.col(KEY).cast("string")
        known = {name: column.cast(schema[name].dataType) for name, column in known.items()}
        if self.timestamp is not None:
            known[self.timestamp] = F.timestamp_millis(F.col(TIMESTAMP))
        if not self.has_columns:
            return known | {VALUE: F.col(VALUE).cast(schema[VALUE].dataType)}
        text = F.col(VALUE).cast("string")
        if self.value == "avro":
            text = F.udf(decoder(self.avro_schema(msgspec.json.decode(schema.json()))), "string")(F.col(VALUE))
        value = F.from_json(text, schema, _JSON | {"mode": "FAILFAST"})
        in_value = [name for name in schema.names if name not in self.omit]
        return known | {name: value.getField(name) for name in in_value}

    def _parts(self, schema: Json, for_json: Callable[[Sequence[str]], Sequence[Column | str]]) -> dict[str, Column]:
        """Return the parts of a record. for_json: returns columns to write as JSON."""
        from pyspark.sql import functions as F

        parts = {VALUE: self._value(schema, for_json)}
        if self.key:
            parts[KEY] = self._key(schema, for_json)
        for number, name in enumerate(self.headers.values()):
            parts[header_column(number)] = F.col(quoted(name)).cast("binary")
        if self.partition is not None:
            parts[PARTITION] = F.col(quoted(self.partition)).cast("int")
        if self.timestamp is not None:
            parts[TIMESTAMP] = F.unix_millis(F.col(quoted(self.timestamp)))
        return parts

    def _size(self, parts: Mapping[str, Column]) -> Column:
        """Return the bytes of a record's parts."""
        from pyspark.sql import functions as F

        size = F.lit(sum(len(name.encode()) for name in self.headers))
        for name, part in parts.items():
            if name not in (PARTITION, TIMESTAMP):
                size = size + F.coalesce(F.octet_length(part), F.lit(0))
        return size

    def text_rules(self, schema: Json) -> list[RowRule]:
        """Return the rules for texts that become JSON, which would silently change texts that are not valid UTF-8."""
        names: list[str] = [] if self.key_as_text else list(self.key)
        if self.has_columns:
            names += self._names_in_value(schema)
        rules = []
        for name in dict.fromkeys(names):
            if invalid := invalid_text_condition(quoted(name), columns(schema)[name]["type"]):
                rules.append(RowRule(f"{name} encoding", invalid, invalid_text_problem(name)))
        return rules

    def parts_to_judge(self, schema: Json) -> tuple[dict[str, Column], Column]:
        """Return the parts of a record and its size, of rows that need not be valid."""
        # Staging registers the schema, of whose number only the bytes count here.
        form = replace(self, head=bytes(HEAD_BYTES)) if self.value == "avro" else self
        parts = form._parts(schema, lambda names: list(map(quoted, names)))
        return parts, self._size(parts)

    def removed(self, rows: DataFrame, staged: DataFrame) -> DataFrame:
        """Return the keys of rows that no staged record replaces."""
        schema = msgspec.json.decode(rows.schema.json())
        keys = rows.select(self._key(schema, partial(columns_of_valid_text, rows)).alias(KEY)).distinct()
        return empty_if(rows, keys.join(staged.select(KEY), KEY, "left_anti"))

    def _key(self, schema: Json, for_json: Callable[[Sequence[str]], Sequence[Column | str]]) -> Column:
        from pyspark.sql import functions as F

        if not self.key_as_text:
            return F.to_json(F.struct(*for_json(self.key)), _JSON).cast("binary")
        column = F.col(quoted(self.key[0]))
        is_binary = columns(schema)[self.key[0]]["type"] == "binary"
        return column if is_binary else column.cast("string").cast("binary")

    def _value(self, schema: Json, for_json: Callable[[Sequence[str]], Sequence[Column | str]]) -> Column:
        from pyspark.sql import functions as F

        if not self.has_columns:
            return F.col(VALUE).cast("binary")
        text = F.to_json(F.struct(*for_json(self._names_in_value(schema))), _JSON)
        if self.value == "json":
            return text.cast("binary")
        encoded = F.udf(encoder(self.avro_schema(schema)), "binary")(text)
        return F.concat(F.lit(self.head), encoded)

    def columns_of_value(self, schema: Json) -> Json:
        """Return the schema of a record's value."""
        return {"type": "struct", "fields": [field for field in schema["fields"] if field["name"] not in self.omit]}

    def avro_schema(self, schema: Json) -> str:
        """Return the schema of Avro for the values of such rows."""
        return avro_schema(self.columns_of_value(schema), self.record_name)

    def _names_in_value(self, schema: Json) -> list[str]:
        return [name for name in columns(schema) if name not in self.omit]


def _is_decimal(data_type: Json) -> bool:
    return isinstance(data_type, str) and data_type.startswith("decimal")


def _any_of(types: Sequence[str]) -> str:
    if len(types) == 1:
        return types[0]
    return f"{', '.join(types[:-1])} or {types[-1]}"
