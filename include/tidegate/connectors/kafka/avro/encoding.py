"""Encodes rows as records of Avro, for a topic whose schemas are in a registry.

Each column may be null, and is null by default. So a reader with the new schema can read old records, and one with the
old schema new ones, when a column is added.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from tidegate.connectors.kafka.avro.misfits import json_of
from tidegate.connectors.kafka.avro.registry import import_fastavro
from tidegate.records import typed
from tidegate.records.records import Json
from tidegate.versions.python import UTC

__all__ = ["HEAD_BYTES", "avro_problems", "avro_schema", "decoder", "encoder", "head_of"]

HEAD_BYTES: Final = 5
"""A zero byte, and the number of the schema: what precedes each record."""

_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s?(\d+)\)")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=UTC)
_SIMPLE: Final[Mapping[str, Any]] = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_problems(schema: Json) -> list[str]:
    """Return why rows with this schema, in Spark's JSON form, cannot become records of Avro."""
    problems: list[str] = []
    _collect_problems(schema, "", problems)
    return problems


def avro_schema(schema: Json, name: str) -> str:
    """Return the schema of Avro for rows with this schema. name: the record's name."""
    valid = re.sub("^(?=[0-9])|[^A-Za-z0-9_]", "_", name)
    return json.dumps({"type": "record", "name": valid, "fields": _fields(schema, "", {valid})})


def head_of(number: int) -> bytes:
    """Return the bytes that precede each record with the schema of this number."""
    return b"\0" + number.to_bytes(HEAD_BYTES - 1, "big")


def encoder(schema: str) -> Callable[[str | None], bytes | None]:
    """Return a function that turns the JSON of a row, as `records` writes it, into Avro."""
    record = json.loads(schema)

    def encode(text: str | None) -> bytes | None:
        if text is None:
            return None
        out = io.BytesIO()
        row = _value(json.loads(text, parse_float=Decimal), record)
        import_fastavro().schemaless_writer(out, _parsed(schema), row)
        return out.getvalue()

    return encode


def decoder(schema: str) -> Callable[[bytes | None], str | None]:
    """Return a function that turns a record of this schema, with its head, into the JSON of a row."""

    def decode(value: bytes | None) -> str | None:
        if value is None:
            return None
        row = import_fastavro().schemaless_reader(io.BytesIO(value[HEAD_BYTES:]), _parsed(schema))
        return json_of(_with_texts_of_times(row))

    return decode


_PARSED: dict[str, Any] = {}
"""Schemas as fastavro has parsed them, which takes longer than to write a record."""


def _parsed(schema: str) -> Any:
    if schema not in _PARSED:
        _PARSED[schema] = import_fastavro().parse_schema(json.loads(schema))
    return _PARSED[schema]


def _fields(schema: Json, path: str, used: set[str]) -> list[Any]:
    """Return the fields of a record. used: the names of records so far, to which it adds."""
    fields = []
    for field in schema["fields"]:
        kind = _type(field["type"], f"{path}_{field['name']}", used)
        fields.append({"name": field["name"], "type": ["null", kind], "default": None})
    return fields


def _type(kind: Any, path: str, used: set[str]) -> Any:
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        if decimal is None:
            return _SIMPLE[kind]
        return {"type": "bytes", "logicalType": "decimal", "precision": int(decimal[1]), "scale": int(decimal[2])}
    if kind["type"] == "array":
        return {"type": "array", "items": ["null", _type(kind["elementType"], path, used)]}
    if kind["type"] == "map":
        return {"type": "map", "values": ["null", _type(kind["valueType"], path, used)]}
    name = _unused_name(f"r{path}", used)
    return {"type": "record", "name": name, "fields": _fields(kind, path, used)}


def _unused_name(name: str, used: set[str]) -> str:
    """Return a name that no record of the schema has yet, and add it to these.

    Two paths may give one name: `a_b`, and `b` inside `a`. Further columns come last, so they change no number.
    """
    unused, number = name, 1
    while unused in used:
        number += 1
        unused = f"{name}_{number}"
    used.add(unused)
    return unused


def _collect_problems(schema: Json, path: str, problems: list[str]) -> None:
    for field in schema["fields"]:
        name = f"{path}{field['name']}"
        if not _NAME.fullmatch(field["name"]):
            problems.append(f"column {name!r} cannot be a field of Avro: its name needs letters, digits and _ only")
        _collect_type_problems(field["type"], name, problems)


def _collect_type_problems(kind: Any, name: str, problems: list[str]) -> None:
    if isinstance(kind, str):
        if kind not in _SIMPLE and not _DECIMAL.fullmatch(kind):
            problems.append(f"column {name!r} is {kind}, which Avro does not have")
    elif kind["type"] == "array":
        _collect_type_problems(kind["elementType"], name, problems)
    elif kind["type"] == "map":
        if kind["keyType"] != "string":
            problems.append(f"column {name!r} is a map whose keys are no text, which Avro does not have")
        _collect_type_problems(kind["valueType"], name, problems)
    elif kind["type"] == "struct":
        _collect_problems(kind, f"{name}.", problems)
    else:
        problems.append(f"column {name!r} is {kind['type']}, which Avro does not have")


def _value(value: Any, kind: Any) -> Any:
    """Return a value of JSON as fastavro expects it for this type."""
    if isinstance(kind, list):  # of null and another type
        return None if value is None else _value(value, kind[1])
    name = kind if isinstance(kind, str) else kind.get("logicalType", kind["type"])
    if name == "record":
        return {field["name"]: _value(value.get(field["name"]), field["type"]) for field in kind["fields"]}
    if name == "array":
        return [_value(element, kind["items"]) for element in value]
    if name == "map":
        return {key: _value(item, kind["values"]) for key, item in value.items()}
    if name == "decimal":
        return Decimal(str(value))
    if name in ("float", "double"):
        return float(value)  # of NaN and Infinity, JSON has the names
    if name == "bytes":
        return base64.b64decode(value)
    if name == "date":
        return typed.convert(value, datetime.date)
    if name.endswith("timestamp-micros"):
        moment = typed.convert(value, datetime.datetime).replace(tzinfo=UTC)  # JSON has times in UTC
        return (moment - _EPOCH) // datetime.timedelta(microseconds=1)
    return value


def _with_texts_of_times(value: Any) -> Any:
    """Return a value of Avro with its times as `records` writes them."""
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, dict):
        return {key: _with_texts_of_times(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts_of_times(item) for item in value]
    return value
