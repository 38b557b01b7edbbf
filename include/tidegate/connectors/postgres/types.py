"""Which type of PostgreSQL holds a Spark type, exactly, and which rows a column would refuse.

A checkpoint that was decided must load. So whatever a column could refuse (a text with a zero byte or too long, no
uuid, a null) is looked for by Spark while it stages, before the decision.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tidegate.connectors.postgres import FoundTable, TableColumn
from tidegate.connectors.postgres.table import MAX_NAME_LENGTH
from tidegate.connectors.valid_texts import holds_invalid_text
from tidegate.delta.log.schema import render
from tidegate.records.names import quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "checked_columns",
    "column_type",
    "fits",
    "held_as",
    "is_copied",
    "name_problems",
    "not_null_names",
    "refusal_of",
]

NATURAL: Final = "postgres"
"""Where the metadata of a staged column has the type that PostgreSQL holds it in."""

_SIMPLE: Final = {
    "boolean": "boolean",
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}

_OF_ANY_LENGTH: Final = ("string", "binary")

_WIDER: Final = {
    "smallint": ("integer", "bigint", "numeric"),
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "real": ("double precision",),
    "text": ("character varying", "uuid"),
    "jsonb": ("json",),
}
_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_LIMITED: Final = re.compile(r"character varying\((\d+)\)")
_UUID: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_FIRST_MICROS, _FIRST_DAY, _LAST_DAY = -210_866_803_200_000_000, -2_440_588, 2_145_042_905
"""The first moment that PostgreSQL knows, in 4714 BC, and its first and last days, since 1970."""
_MAX_KEY_BYTES: Final = 2600
"""Bytes. A little less than what an entry of an index may have."""
_REFUSED: Final = "tidegate refuses this row"
_MOMENT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": f"{_MOMENT}XXX",
    "timestampNTZFormat": _MOMENT,
}


def column_type(kind: Any) -> str | None:
    """Return the type of the column that is made for a Spark type in its JSON form. None: no type holds it exactly."""
    if isinstance(kind, str):
        if decimal := _DECIMAL.fullmatch(kind):
            return f"numeric({decimal[1]},{decimal[2]})"
        return _SIMPLE.get(kind)
    if kind.get("type") == "array":
        element = column_type(kind["elementType"])
        return None if element is None else "jsonb" if element == "jsonb" or element.endswith("[]") else f"{element}[]"
    if kind.get("type") == "map":
        values = column_type(kind["valueType"])
        return "jsonb" if kind["keyType"] == "string" and values is not None else None
    if kind.get("type") == "struct":
        return "jsonb" if all(column_type(field["type"]) for field in kind["fields"]) else None
    return None


def fits(natural: str, column: str) -> bool:
    """Return whether a column of the table holds everything that the type made for a Spark type holds."""
    wider = _WIDER.get(natural, ())
    if column == natural or column in wider:
        return True
    if _LIMITED.fullmatch(column):
        return "character varying" in wider  # what is too long is found while staging
    theirs = _NUMERIC.fullmatch(column)
    if natural in _DIGITS:
        return theirs is not None and int(theirs[1]) - int(theirs[2]) >= _DIGITS[natural]
    ours = _NUMERIC.fullmatch(natural)
    if ours and column == "numeric":
        return True
    if ours and theirs:
        places = int(theirs[2]) - int(ours[2])
        return places >= 0 and int(theirs[1]) - int(ours[1]) >= places
    return False


def is_copied(natural: str, column: str) -> bool:
    """Return whether a copy in binary form may write the column itself: it does not convert anything."""
    return natural == column and natural != "jsonb"


def name_problems(schema: Json) -> list[str]:
    """Return the problems of the names and types of an output, whatever the table is."""
    problems, seen = [], set()
    for field in schema["fields"]:
        name = field["name"]
        if len(name.encode()) > MAX_NAME_LENGTH or "\0" in name or not name:
            problems.append(f"{name!r} is no name for a column of PostgreSQL: 1 to {MAX_NAME_LENGTH} bytes")
        if name.casefold() in seen:
            problems.append(f"{name!r} is there twice (upper and lower case are ignored)")
        seen.add(name.casefold())
        if column_type(field["type"]) is None:
            problems.append(f"{name!r} is {render(field['type'])}, which no type of PostgreSQL holds exactly: cast it")
    return problems


def checked_columns(schema: Json, table: FoundTable | None, keys: tuple[str, ...]) -> dict[str, Column]:
    """Return the expression that stages each column: in the form that is copied, an error for a row that the table
    would refuse. Its metadata tells how the table is to hold it.

    table: None: it is made with the first rows. keys: columns of a unique index, which must not be null.
    """
    columns = table.columns if table is not None else {}
    long = [field["name"] for field in schema["fields"] if field["name"] in keys and field["type"] in _OF_ANY_LENGTH]
    checked = {}
    for field in schema["fields"]:
        name = field["name"]
        refusals = _long_key_refusals(long) if name == next(iter(long), None) else []
        checked[name] = _checked(field, columns.get(name), name in keys, refusals)
    return checked


def _long_key_refusals(names: list[str]) -> list[tuple[Column, str]]:
    from functools import reduce

    from pyspark.sql import functions as F

    size = reduce(lambda first, second: first + second, (F.octet_length(quoted(name)) for name in names))
    return [(size > _MAX_KEY_BYTES, f"has more than {_MAX_KEY_BYTES} bytes, all keys together: too long for an index")]


def _checked(field: Json, column: TableColumn | None, not_null: bool, more: list[tuple[Column, str]]) -> Column:
    from pyspark.sql import functions as F

    name, kind = field["name"], field["type"]
    natural = column_type(kind)
    held_as = column.type if column is not None else natural
    not_null = not_null or (column is not None and column.not_null)
    value = F.col(quoted(name))
    staged = F.to_json(value, _JSON) if natural == "jsonb" else value
    refusals = [(value.isNull(), "is null, and must not be")] if not_null else []
    if natural == "jsonb":
        zero = F.instr(staged, "\\u0000") > 0
        refusals.append((zero & staged.rlike(r"(?<!\\)(\\\\)*\\u0000"), "holds a zero byte"))
        if invalid := holds_invalid_text(quoted(name), kind):  # in JSON it would be valid, and another text
            refusals.append((F.expr(invalid), "holds a text that is not valid UTF-8"))
    elif kind == "string":
        refusals += _text_refusals(value)
        if held_as == "uuid":
            refusals.append((~value.rlike(_UUID), "is no uuid"))
            staged = F.lower(value)  # two texts that are one uuid must not be two keys
        elif limited := _LIMITED.fullmatch(held_as or ""):
            refusals.append((F.char_length(value) > int(limited[1]), f"is longer than {limited[1]} characters"))
    elif isinstance(kind, dict) and kind["elementType"] == "string":
        bad = F.exists(value, lambda each: F.coalesce(_is_bad_text(each), F.lit(False)))
        refusals.append((bad, "holds a text with a zero byte, or one that is not valid UTF-8"))
    elif beyond := _time_refusal(kind, value):
        refusals.append(beyond)
    for refused, why in [*refusals, *more]:
        message = F.raise_error(F.lit(f"{_REFUSED}: column {name!r} {why}."))
        staged = F.when(refused, message).otherwise(staged)
    return staged.alias(name, metadata={NATURAL: natural, "held_as": held_as, "not_null": not_null})


def _time_refusal(kind: Any, value: Column) -> tuple[Column, str] | None:
    """Return the condition that a date or time is none of PostgreSQL's, also in an array. None: it is neither."""
    from pyspark.sql import functions as F

    def is_beyond(each: Column) -> Column:
        if element == "date":
            return ~F.unix_date(each).between(_FIRST_DAY, _LAST_DAY)
        first = F.timestamp_micros(F.lit(_FIRST_MICROS))
        return each < (first if element == "timestamp" else F.lit("-4713-11-24 00:00:00").cast("timestamp_ntz"))

    element = kind["elementType"] if isinstance(kind, dict) else kind
    if element not in ("date", "timestamp", "timestamp_ntz"):
        return None
    why = "is before 4714 BC or after 5874897 AD, which PostgreSQL does not know"
    if element is kind:
        return is_beyond(value), why
    return F.exists(value, lambda each: F.coalesce(is_beyond(each), F.lit(False))), why


def _text_refusals(value: Column) -> list[tuple[Column, str]]:
    from pyspark.sql import functions as F

    return [
        (F.instr(value, "\0") > 0, "holds a zero byte, which PostgreSQL cannot store in text"),
        (~F.is_valid_utf8(value), "is not valid UTF-8"),
    ]


def _is_bad_text(value: Column) -> Column:
    from functools import reduce

    return reduce(lambda first, second: first | second, (refused for refused, _ in _text_refusals(value)))


def refusal_of(error: BaseException) -> str | None:
    """Return what is wrong with a row, if Spark failed because the table would refuse it."""
    found = re.search(rf"{_REFUSED}: (column .*?\.)(\s|$|'|\")", str(error))
    return found[1] if found else None


def not_null_names(schema: Json) -> set[str]:
    """Return the staged columns that were found to hold no null."""
    return {field["name"] for field in schema["fields"] if _describe_type(field).get("not_null")}


def held_as(schema: Json) -> dict[str, tuple[str, str]]:
    """Return for each staged column of the table the type made for it, and the type that the table had by then."""
    told = {field["name"]: _describe_type(field) for field in schema["fields"]}
    return {name: (found[NATURAL], found["held_as"]) for name, found in told.items() if NATURAL in found}


def _describe_type(field: Json) -> Json:
    return field.get("metadata") or {}
