"""Which Spark types a contract's logical and physical types allow, and which they are exported as."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidegate.connectors.schema.ddl import DdlError, parse_ddl
from tidegate.gates.contracts.document import ObjectSchema, Property
from tidegate.records.names import quoted
from tidegate.records.records import Json

__all__ = ["PhysicalType", "logical_type_of", "physical_type_of", "schema_mismatches", "spelled", "unknown_type"]

_WHOLE: Final = ("byte", "short", "integer", "long")
_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(-?\d+)\)")
_SIMPLE: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("string",),
    "date": ("date",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "boolean": ("boolean",),
}
_DDL_NAMES: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_SIZED_TEXT: Final = re.compile(
    r"(?:var)?char2?|character(?: varying)?|n(?:var)?char2?|varchar2|text|string|bpchar|clob|uuid|json|jsonb"
)
_ALIASES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("int2", "int16"), "smallint"),
    **dict.fromkeys(("int4", "int32", "serial"), "int"),
    **dict.fromkeys(("int8", "int64", "bigserial"), "bigint"),
    **dict.fromkeys(("float4", "float32"), "float"),
    **dict.fromkeys(("float8", "float64", "double precision"), "double"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("bytea", "bytes", "blob", "varbinary"), "binary"),
    **dict.fromkeys(("timestamptz", "timestamp with time zone", "timestamp_tz"), "timestamp"),
    **dict.fromkeys(("datetime", "timestamp without time zone"), "timestamp_ntz"),
}
"""Names of other databases for types that are exactly one of Spark's."""


_NESTED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("array", "list"), "array<"),
    **dict.fromkeys(("struct", "object", "record", "row"), "struct<"),
    "map": "map<",
}


class PhysicalType:
    """A physical type, as far as it can be compared with one of Spark's."""

    def __init__(self, ddl: str, *, length: int | None = None, begins: bool = False) -> None:
        self.ddl = ddl
        """Spark's type, or how it begins."""
        self.length = length
        """The greatest length of a text. No Spark type has it in the schema of rows, so it is a rule about values."""
        self.begins = begins
        """Whether any type that begins so is meant, such as a decimal without its sizes."""

    def allows(self, actual: Any) -> bool:
        """Return whether a column of this type, in Spark's JSON form, is of the physical type."""
        spelling = spelled(actual)
        if self.begins:
            return spelling.startswith(self.ddl)
        if self.ddl == "timestamp":  # other databases call their type without a zone so
            return spelling in ("timestamp", "timestamp_ntz")
        return spelling == self.ddl


def physical_type_of(text: str) -> PhysicalType | None:
    """Return what a physical type means. None: it is not one of Spark's, and no well-known name of one."""
    name = " ".join(text.split()).casefold()
    base, _, rest = name.partition("(")
    base, sizes = base.strip(), re.findall(r"\d+", rest)
    if _SIZED_TEXT.fullmatch(base):
        return PhysicalType("string", length=int(sizes[0]) if sizes else None)
    if base in ("decimal", "numeric", "dec", "number"):
        return _spark_type(f"decimal({','.join(sizes)})") if sizes else PhysicalType("decimal(", begins=True)
    if name in _NESTED:
        return PhysicalType(_NESTED[name], begins=True)
    if base.startswith(("timestamp", "datetime")):
        name = re.sub(r" ?\(\d+\)", "", name)  # the digits of a second, which are always six here
        return _spark_type(_ALIASES.get(name, name))
    return _spark_type(_ALIASES.get(name, text))


def _spark_type(ddl: str) -> PhysicalType | None:
    try:
        (column,) = parse_ddl(f"c {ddl}")
    except (DdlError, ValueError):
        return None
    return PhysicalType(column.type)


def unknown_type(each: Property) -> str | None:
    """Return why the type of a property cannot be compared with a column's. None: it can."""
    if each.physical_type:
        if physical_type_of(each.physical_type) is None:
            return f"physicalType {each.physical_type!r} is not one of Spark's types, and no well-known name of one"
        return None
    if each.logical_type == "time":
        return "no Delta table has a type for times of day: give it a physicalType, such as string"
    return None


def schema_mismatches(schema: ObjectSchema, columns: Json, *, extra: str = "allow") -> list[str]:
    """Return the reasons why rows with these columns do not keep the schema.

    columns: the rows' schema in Spark's JSON form. extra: "refuse" columns that the contract does not have.
    """
    problems = list(_of_fields(schema.properties, columns["fields"], ""))
    if extra == "refuse":
        known = {each.column.casefold() for each in schema.properties}
        for field in columns["fields"]:
            if field["name"].casefold() not in known:
                problems.append(f"column {field['name']!r} is not in the contract")
    return problems


def _of_fields(properties: tuple[Property, ...], fields: list[Json], above: str) -> Iterator[str]:
    by_name = {field["name"]: field for field in fields}
    other_case = {name.casefold(): name for name in by_name}
    for each in properties:
        path = f"{above}{each.column}"
        if each.column in by_name:
            yield from _of_type(each, by_name[each.column]["type"], path)
        elif each.column.casefold() in other_case:
            yield f"column {path!r} is written {other_case[each.column.casefold()]!r} in the rows"
        else:
            yield f"column {path!r} is missing"


def _of_type(each: Property, actual: Any, path: str) -> Iterator[str]:
    physical = physical_type_of(each.physical_type) if each.physical_type else None
    if physical is not None and not physical.allows(actual):
        yield f"column {path!r} is {spelled(actual)}, and the contract has physicalType {each.physical_type}"
        return
    if physical is None and each.logical_type and not _is_logical(each, actual):
        asked = each.logical_type
        if (each.options.get("timezone"), each.logical_type) != (None, "timestamp"):
            asked += "".join(f", {key}: {each.options[key]}" for key in ("timezone", "format") if key in each.options)
        yield f"column {path!r} is {spelled(actual)}, and the contract has logicalType {asked}"
        return
    if each.properties and isinstance(actual, dict) and actual["type"] == "struct":
        yield from _of_fields(each.properties, actual["fields"], f"{path}.")
    elif each.items is not None and isinstance(actual, dict) and actual["type"] == "array":
        yield from _of_type(each.items, actual["elementType"], f"{path}[]")


def _is_logical(each: Property, actual: Any) -> bool:
    """Return whether a type is what the logical type calls so."""
    logical = each.logical_type
    kind = actual if isinstance(actual, str) else actual["type"]
    if logical == "object":
        return kind == "struct" or (kind == "map" and not each.properties)
    if logical == "array":
        return bool(kind == "array")
    if not isinstance(actual, str):
        return False
    if logical in ("integer", "number"):
        decimal = _DECIMAL.fullmatch(actual)
        if logical == "integer":
            return actual in _WHOLE or (decimal is not None and int(decimal[2]) == 0)
        floats = {"f32": ("float",), "f64": ("float", "double")}.get(each.options.get("format", ""))
        return actual in floats if floats else actual in (*_WHOLE, "float", "double") or decimal is not None
    if logical == "timestamp" and "timezone" in each.options:
        return actual == ("timestamp" if each.options["timezone"] else "timestamp_ntz")
    return actual in _SIMPLE.get(logical, ())


def logical_type_of(actual: Any) -> str:
    """Return the logical type that a column of this type is exported as. Empty: none of them fits."""
    if not isinstance(actual, str):
        return {"struct": "object", "map": "object", "array": "array"}[actual["type"]]
    if actual in _WHOLE:
        return "integer"
    if actual in ("float", "double"):
        return "number"
    if (decimal := _DECIMAL.fullmatch(actual)) is not None:
        return "number" if int(decimal[2]) else "integer"
    return next((logical for logical, types in _SIMPLE.items() if actual in types), "")


def spelled(actual: Any) -> str:
    """Return a type in Spark's JSON form as DDL spells it, as `parse_ddl` does."""
    if isinstance(actual, str):
        return _DDL_NAMES.get(actual, actual.replace(", ", ","))
    if actual["type"] == "array":
        return f"array<{spelled(actual['elementType'])}>"
    if actual["type"] == "map":
        return f"map<{spelled(actual['keyType'])},{spelled(actual['valueType'])}>"
    if actual["type"] == "struct":
        fields = [f"{quoted(field['name'])}:{spelled(field['type'])}" for field in actual["fields"]]
        return f"struct<{','.join(fields)}>"
    return str(actual["type"])
