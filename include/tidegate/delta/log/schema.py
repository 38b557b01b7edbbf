"""Schemas in the form of Delta's log: convert them from Spark's, check that Delta supports them, and compare them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tidegate.records.records import Json

__all__ = [
    "Difference",
    "SchemaPart",
    "collations",
    "columns",
    "differences",
    "from_spark",
    "render",
    "schema_parts",
    "schema_problems",
    "with_comments",
]

_COLLATIONS = "__COLLATIONS"
"""The metadata key for collations in Spark's JSON. It is in the field that contains the text, at any depth."""

_PRIMITIVES = {
    "string", "long", "integer", "short", "byte", "float", "double", "boolean",
    "binary", "date", "timestamp", "timestamp_ntz",
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+),\s?(-?\d+)\)")
_PARTITIONABLE = _PRIMITIVES - {"binary"}


def from_spark(schema: Json) -> Json:
    """Return the schema of a new table for a DataFrame's schema (`json.loads(frame.schema.json())`).

    All columns become nullable, as in Delta's writer, because Spark infers that a column has no nulls from the query,
    which may change. Only comments are copied from the columns' metadata; the rest is internal to Spark.
    """
    return {"type": "struct", "fields": [_field(field) for field in schema["fields"]]}


def columns(schema: Json) -> dict[str, Json]:
    """Return the top-level fields by name."""
    return {field["name"]: field for field in schema["fields"]}


def with_comments(schema: Json, comments: Mapping[str, str], path: str = "") -> Json:
    """Return a schema whose fields have these comments, by their paths as in `schema_parts`."""
    fields = []
    for column in schema["fields"]:
        inner = f"{path}.{column['name']}" if path else column["name"]
        comment = {"comment": comments[inner]} if inner in comments else {}
        kind = _with_comments(column["type"], comments, inner)
        fields.append({**column, "type": kind, "metadata": {**column.get("metadata", {}), **comment}})
    return {**schema, "fields": fields}


def _with_comments(kind: Any, comments: Mapping[str, str], path: str) -> Any:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return with_comments(kind, comments, path)
    parts = {}
    for name in ("element", "key", "value"):
        if f"{name}Type" in kind:
            parts[f"{name}Type"] = name
    return {**kind, **{key: _with_comments(kind[key], comments, f"{path}.{name}") for key, name in parts.items()}}


def collations(schema: Json) -> dict[str, str]:
    """Return the collation of each column that contains texts with one, by name. schema: in Spark's JSON form.

    With a collation, different texts may be equal. Only Spark supports that: not Arrow, and no file or index.
    """
    by_column = {}
    for field in schema["fields"]:
        names = list(_collations_in(field))
        if names:
            by_column[field["name"]] = names[0]
    return by_column


def _collations_in(kind: Any) -> Iterator[str]:
    if isinstance(kind, dict):
        for name in kind.get("metadata", {}).get(_COLLATIONS, {}).values():
            yield str(name).rpartition(".")[2]
        for part in ("type", "elementType", "keyType", "valueType"):
            yield from _collations_in(kind.get(part))
        for field in kind.get("fields", ()):
            yield from _collations_in(field)


@dataclass(frozen=True)
class SchemaPart:
    """A part of a schema: a column, a field within one, or the elements, keys or values of a collection."""

    path: str
    type: Any
    """A type's name, or its description."""
    is_nested: bool
    is_required: bool
    """Whether it must not be null."""
    subject: str
    """Its name in messages."""
    metadata: Json


def schema_parts(schema: Any, path: str = "") -> Iterator[SchemaPart]:
    """Yield all parts of a table's schema, each before the parts within it."""
    if isinstance(schema, str):
        return
    for column in schema.get("fields", ()):
        inner = f"{path}.{column['name']}" if path else column["name"]
        subject = f"the nested field {inner!r}" if path else f"column {inner!r}"
        yield SchemaPart(inner, column["type"], bool(path), not column["nullable"], subject, column.get("metadata", {}))
        yield from schema_parts(column["type"], inner)
    for name, nullable in (("element", "containsNull"), ("key", ""), ("value", "valueContainsNull")):
        kind = schema.get(f"{name}Type")
        if kind is not None:
            inner = f"{path}.{name}"
            yield SchemaPart(inner, kind, True, schema.get(nullable) is False, f"the {name}s of {path!r}", {})
            yield from schema_parts(kind, inner)


@dataclass(frozen=True)
class Difference:
    """One way in which an output does not fit a table."""

    kind: Literal["new", "missing", "case", "type"]
    column: str
    text: str


def differences(output: Json, table: Json) -> list[Difference]:
    """List the differences between an output and its table. Order, comments and nullability do not count."""
    output_columns, table_columns = columns(output), columns(table)
    table_names = {name.casefold(): name for name in table_columns}
    differing = []
    for name, field in output_columns.items():
        output_type = render(field["type"])
        if name in table_columns:
            table_type = render(table_columns[name]["type"])
            if output_type != table_type:
                differing.append(Difference("type", name, f"{name!r} is {output_type}; the table has {table_type}"))
        elif name.casefold() in table_names:
            table_name = table_names[name.casefold()]
            differing.append(Difference("case", name, f"{name!r} is written {table_name!r} in the table"))
        else:
            differing.append(Difference("new", name, f"{name!r} ({output_type}) is not in the table"))
    output_names = {name.casefold() for name in output_columns}
    for name, field in table_columns.items():
        if name.casefold() not in output_names:
            text = f"{name!r} ({render(field['type'])}) is in the table, but not in the output"
            differing.append(Difference("missing", name, text))
    return differing


def schema_problems(schema: Json, partition_by: tuple[str, ...]) -> list[str]:
    """Return all reasons why a DataFrame of this schema cannot become a Delta table with these partitions."""
    problems = list(_type_problems(schema, "")) + list(_clashes(schema, ""))
    by_name = columns(schema)
    for name in partition_by:
        if name not in by_name:
            problems.append(f"partition column {name!r} is not in the output ({', '.join(by_name)})")
            continue
        kind = by_name[name]["type"]
        if not isinstance(kind, str) or not _is_supported(kind, _PARTITIONABLE):
            problems.append(f"partition column {name!r} is {render(kind)}, which cannot name a folder")
    if by_name and set(by_name) <= set(partition_by):
        problems.append("every column is a partition column: no column remains for the files")
    if not by_name:
        problems.append("the output has no columns")
    return problems


def render(kind: Any) -> str:
    """Return a type for display, as SQL writes it."""
    if isinstance(kind, str):
        return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{render(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{render(kind['keyType'])},{render(kind['valueType'])}>"
    if kind["type"] == "struct":
        inner = ",".join(f"{field['name']!r}:{render(field['type'])}" for field in kind["fields"])
        return f"struct<{inner}>"
    return str(kind["type"])


def _field(field: Json) -> Json:
    metadata = {}
    for key, value in field.get("metadata", {}).items():
        if key == "comment":
            metadata[key] = value
    return {"name": field["name"], "type": _nullable(field["type"]), "nullable": True, "metadata": metadata}


def _nullable(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return {"type": "array", "elementType": _nullable(kind["elementType"]), "containsNull": True}
    if kind["type"] == "map":
        key, value = _nullable(kind["keyType"]), _nullable(kind["valueType"])
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return from_spark(kind)


def _is_supported(kind: str, allowed: set[str]) -> bool:
    match = _DECIMAL.fullmatch(kind)
    if match:
        return 1 <= int(match[1]) <= 38 and 0 <= int(match[2]) <= int(match[1])
    return kind in allowed


def _type_problems(kind: Any, path: str) -> Iterator[str]:
    if isinstance(kind, str):
        if not _is_supported(kind, _PRIMITIVES):
            if kind == "void":
                hint = "cast it to the type it should have"
            else:
                hint = "cast it to one that Delta has"
            yield f"column {path!r} has the type {kind}: {hint}"
    elif kind["type"] == "array":
        yield from _type_problems(kind["elementType"], f"{path}.element")
    elif kind["type"] == "map":
        yield from _type_problems(kind["keyType"], f"{path}.key")
        yield from _type_problems(kind["valueType"], f"{path}.value")
    elif kind["type"] == "struct":
        if not kind["fields"] and path:
            yield f"column {path!r} is a struct without fields, which Parquet cannot hold"
        for field in kind["fields"]:
            inner = f"{path}.{field['name']}" if path else field["name"]
            yield from _type_problems(field["type"], inner)
    else:
        yield f"column {path!r} has the type {render(kind)}: cast it to a type that Delta has"


def _clashes(kind: Any, path: str) -> Iterator[str]:
    """Yield a problem for each two names that are equal or differ only in case, which Spark cannot distinguish."""
    if isinstance(kind, str):
        return
    if kind["type"] == "struct":
        names: dict[str, str] = {}
        for field in kind["fields"]:
            name = field["name"]
            twin = names.get(name.casefold())
            if twin:
                yield f"columns {path + twin!r} and {path + name!r} differ in upper and lower case only"
            names[name.casefold()] = name
            yield from _clashes(field["type"], f"{path}{name}.")
    for inner in ("elementType", "keyType", "valueType"):
        yield from _clashes(kind.get(inner, "none"), f"{path}{inner[:-4]}.")
