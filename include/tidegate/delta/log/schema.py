"""Schemas in the form of Delta's log: convert Spark's, refuse what Delta cannot have, and compare two."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tidegate.records.records import Json

__all__ = ["Difference", "collations", "columns", "differences", "from_spark", "render", "schema_problems"]

_COLLATIONS = "__COLLATIONS"
"""Where Spark's JSON notes them: in the metadata of the field that holds the text, however deep."""

_PRIMITIVES = {
    "string", "long", "integer", "short", "byte", "float", "double", "boolean",
    "binary", "date", "timestamp", "timestamp_ntz",
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+),\s?(-?\d+)\)")
_PARTITIONABLE = _PRIMITIVES - {"binary"}


def from_spark(schema: Json) -> Json:
    """Return a new table's schema for a DataFrame's (`json.loads(frame.schema.json())`).

    Everything becomes nullable, as in Delta's own writer: that a column happens to hold no nulls today is no
    promise for tomorrow. Only comments are kept of the columns' metadata; the rest is Spark's own business.
    """
    return {"type": "struct", "fields": [_field(field) for field in schema["fields"]]}


def columns(schema: Json) -> dict[str, Json]:
    """Return the top-level fields by name."""
    return {field["name"]: field for field in schema["fields"]}


def collations(schema: Json) -> dict[str, str]:
    """Return the columns of a schema in Spark's JSON form that hold texts with a collation, each with its name.

    By a collation, texts are equal that differ. Spark keeps to it, and nothing else does: not Arrow, no file, no index.
    """
    found = {}
    for field in schema["fields"]:
        if names := list(_collations_in(field)):
            found[field["name"]] = names[0]
    return found


def _collations_in(kind: Any) -> Iterator[str]:
    if isinstance(kind, dict):
        for name in kind.get("metadata", {}).get(_COLLATIONS, {}).values():
            yield str(name).rpartition(".")[2]
        for part in ("type", "elementType", "keyType", "valueType"):
            yield from _collations_in(kind.get(part))
        for field in kind.get("fields", ()):
            yield from _collations_in(field)


@dataclass(frozen=True)
class Difference:
    """One way in which an output does not fit a table."""

    kind: Literal["new", "missing", "case", "type"]
    column: str
    text: str


def differences(output: Json, table: Json) -> list[Difference]:
    """List the differences between an output and its table. Order, comments and nullability do not count."""
    ours, theirs = columns(output), columns(table)
    folded = {name.casefold(): name for name in theirs}
    differing = []
    for name, field in ours.items():
        if name in theirs:
            our_type, their_type = render(field["type"]), render(theirs[name]["type"])
            if our_type != their_type:
                differing.append(Difference("type", name, f"{name!r} is {our_type}; the table has {their_type}"))
        elif twin := folded.get(name.casefold()):
            differing.append(Difference("case", name, f"{name!r} is written {twin!r} in the table"))
        else:
            differing.append(Difference("new", name, f"{name!r} ({render(field['type'])}) is not in the table"))
    written = {name.casefold() for name in ours}
    for name, field in theirs.items():
        if name.casefold() not in written:
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
        elif not isinstance(kind := by_name[name]["type"], str) or not _simple(kind, _PARTITIONABLE):
            problems.append(f"partition column {name!r} is {render(kind)}, which cannot name a folder")
    if by_name and set(by_name) <= set(partition_by):
        problems.append("every column is a partition column: nothing is left for the files")
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
    metadata = {key: value for key, value in field.get("metadata", {}).items() if key == "comment"}
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


def _simple(kind: str, allowed: set[str]) -> bool:
    if match := _DECIMAL.fullmatch(kind):
        return 1 <= int(match[1]) <= 38 and 0 <= int(match[2]) <= int(match[1])
    return kind in allowed


def _type_problems(kind: Any, path: str) -> Iterator[str]:
    if isinstance(kind, str):
        if not _simple(kind, _PRIMITIVES):
            hint = "cast it to the type it should have" if kind == "void" else "cast it to one that Delta has"
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
    """Yield names that differ in case only, or not at all: Spark cannot tell them apart when it reads the table."""
    if isinstance(kind, str):
        return
    if kind["type"] == "struct":
        names: dict[str, str] = {}
        for field in kind["fields"]:
            name = field["name"]
            if twin := names.get(name.casefold()):
                yield f"columns {path + twin!r} and {path + name!r} differ in upper and lower case only"
            names[name.casefold()] = name
            yield from _clashes(field["type"], f"{path}{name}.")
    for inner in ("elementType", "keyType", "valueType"):
        yield from _clashes(kind.get(inner, "none"), f"{path}{inner[:-4]}.")
