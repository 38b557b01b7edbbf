"""Maps Spark types to exact types of PostgreSQL, and detects rows that a column would refuse.

A decided checkpoint must be published. So while Spark stages rows, before the decision, it checks for everything that a
column could refuse, such as a null, a text that is too long or has a zero byte, or an invalid uuid.
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
"""The key in the metadata of a staged column for the PostgreSQL type that the sink would create."""

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

_VARIABLE_LENGTH: Final = ("string", "binary")

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
"""The first moment, in 4714 BC, and the first and last days that PostgreSQL supports, counted from 1970."""
_MAX_KEY_BYTES: Final = 2600
"""In bytes: a little less than the limit of an index entry."""
_REFUSED: Final = "tidegate refuses this row"
_TIMESTAMP_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": f"{_TIMESTAMP_FORMAT}XXX",
    "timestampNTZFormat": _TIMESTAMP_FORMAT,
}


def column_type(kind: Any) -> str | None:
    """Return the column type that the sink creates for a Spark type (as JSON), or None if no type is exact."""
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        if decimal:
            return f"numeric({decimal[1]},{decimal[2]})"
        return _SIMPLE.get(kind)
    if kind.get("type") == "array":
        element = column_type(kind["elementType"])
        if element is None:
            return None
        if element == "jsonb" or element.endswith("[]"):
            return "jsonb"
        return f"{element}[]"
    if kind.get("type") == "map":
        is_exact = kind["keyType"] == "string" and column_type(kind["valueType"]) is not None
        return "jsonb" if is_exact else None
    if kind.get("type") == "struct":
        is_exact = all(column_type(field["type"]) for field in kind["fields"])
        return "jsonb" if is_exact else None
    return None


def fits(natural: str, column: str) -> bool:
    """Return whether a column can store all values of the type that the sink would create."""
    wider = _WIDER.get(natural, ())
    if column == natural or column in wider:
        return True
    if _LIMITED.fullmatch(column):
        return "character varying" in wider  # staging refuses texts that are too long
    column_numeric = _NUMERIC.fullmatch(column)
    if natural in _DIGITS:
        if column_numeric is None:
            return False
        return int(column_numeric[1]) - int(column_numeric[2]) >= _DIGITS[natural]
    natural_numeric = _NUMERIC.fullmatch(natural)
    if natural_numeric is None:
        return False
    if column == "numeric":
        return True
    if column_numeric is None:
        return False
    further_places = int(column_numeric[2]) - int(natural_numeric[2])
    return further_places >= 0 and int(column_numeric[1]) - int(natural_numeric[1]) >= further_places


def is_copied(natural: str, column: str) -> bool:
    """Return whether rows can be copied into the column in binary form, which converts nothing."""
    return natural == column and natural != "jsonb"


def name_problems(schema: Json) -> list[str]:
    """Return the problems of the names and types of an output, for any table."""
    problems, seen = [], set()
    for field in schema["fields"]:
        name = field["name"]
        if len(name.encode()) > MAX_NAME_LENGTH or "\0" in name or not name:
            problems.append(f"{name!r} is not a valid column name of PostgreSQL: write 1 to {MAX_NAME_LENGTH} bytes")
        if name.casefold() in seen:
            problems.append(f"{name!r} occurs twice (case is ignored)")
        seen.add(name.casefold())
        if column_type(field["type"]) is None:
            problems.append(f"{name!r} is {render(field['type'])}, for which PostgreSQL has no exact type: cast it")
    return problems


def checked_columns(schema: Json, table: FoundTable | None, keys: tuple[str, ...]) -> dict[str, Column]:
    """Return the expression that stages each column, which fails for a row that the table would refuse.

    The metadata of a column records its types: see `held_as`.

    table: None if the first rows create it.
    keys: the columns of a unique index, which must not be null.
    """
    columns = table.columns if table is not None else {}
    long_keys = []
    for field in schema["fields"]:
        if field["name"] in keys and field["type"] in _VARIABLE_LENGTH:
            long_keys.append(field["name"])
    checked = {}
    for field in schema["fields"]:
        name = field["name"]
        refusals = []
        if name in long_keys[:1]:  # the first one checks all keys together
            refusals.append(_long_keys_refusal(long_keys))
        checked[name] = _checked_column(field, columns.get(name), name in keys, refusals)
    return checked


def _long_keys_refusal(names: list[str]) -> tuple[Column, str]:
    from pyspark.sql import functions as F

    size = F.octet_length(quoted(names[0]))
    for name in names[1:]:
        size = size + F.octet_length(quoted(name))
    return size > _MAX_KEY_BYTES, f"has more than {_MAX_KEY_BYTES} bytes with all other keys: too long for an index"


def _checked_column(
    field: Json, column: TableColumn | None, not_null: bool, further_refusals: list[tuple[Column, str]]
) -> Column:
    """Return the column, with an error for each row that a refusal applies to: a condition, and what it says."""
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
        refusals.append((zero & staged.rlike(r"(?<!\\)(\\\\)*\\u0000"), "contains a zero byte"))
        invalid = holds_invalid_text(quoted(name), kind)
        if invalid:  # converting it to JSON would silently change the text
            refusals.append((F.expr(invalid), "contains a text that is not valid UTF-8"))
    elif kind == "string":
        refusals += _text_refusals(value)
        limited = _LIMITED.fullmatch(held_as or "")
        if held_as == "uuid":
            refusals.append((~value.rlike(_UUID), "is not a uuid"))
            staged = F.lower(value)  # two spellings of a uuid must not be two keys
        elif limited:
            refusals.append((F.char_length(value) > int(limited[1]), f"is longer than {limited[1]} characters"))
    elif isinstance(kind, dict) and kind["elementType"] == "string":
        has_bad_text = F.exists(value, lambda text: F.coalesce(_is_bad_text(text), F.lit(False)))
        refusals.append((has_bad_text, "contains a text with a zero byte, or one that is not valid UTF-8"))
    else:
        refusals += _time_refusals(kind, value)
    for refused, problem in [*refusals, *further_refusals]:
        message = F.raise_error(F.lit(f"{_REFUSED}: column {name!r} {problem}."))
        staged = F.when(refused, message).otherwise(staged)
    return staged.alias(name, metadata={NATURAL: natural, "held_as": held_as, "not_null": not_null})


def _time_refusals(kind: Any, value: Column) -> list[tuple[Column, str]]:
    """Return the refusal of a date or time, or an array of them, that is outside of PostgreSQL's range."""
    from pyspark.sql import functions as F

    element = kind["elementType"] if isinstance(kind, dict) else kind

    def is_outside(time: Column) -> Column:
        if element == "date":
            return ~F.unix_date(time).between(_FIRST_DAY, _LAST_DAY)
        if element == "timestamp":
            return time < F.timestamp_micros(F.lit(_FIRST_MICROS))
        return time < F.lit("-4713-11-24 00:00:00").cast("timestamp_ntz")

    if element not in ("date", "timestamp", "timestamp_ntz"):
        return []
    problem = "is before 4714 BC or after 5874897 AD, which PostgreSQL does not support"
    if element is kind:
        return [(is_outside(value), problem)]
    return [(F.exists(value, lambda time: F.coalesce(is_outside(time), F.lit(False))), problem)]


def _text_refusals(value: Column) -> list[tuple[Column, str]]:
    from pyspark.sql import functions as F

    return [
        (F.instr(value, "\0") > 0, "contains a zero byte, which PostgreSQL cannot store in text"),
        (~F.is_valid_utf8(value), "is not valid UTF-8"),
    ]


def _is_bad_text(value: Column) -> Column:
    (has_zero_byte, _), (is_not_utf8, _) = _text_refusals(value)
    return has_zero_byte | is_not_utf8


def refusal_of(error: BaseException) -> str | None:
    """Return what is wrong with a row if Spark failed because the table would refuse it, else None."""
    match = re.search(rf"{_REFUSED}: (column .*?\.)(\s|$|'|\")", str(error))
    return match[1] if match else None


def not_null_names(schema: Json) -> set[str]:
    """Return the staged columns in which staging has refused nulls."""
    return {field["name"] for field in schema["fields"] if _metadata(field).get("not_null")}


def held_as(schema: Json) -> dict[str, tuple[str, str]]:
    """Return two types of each staged column: the one that the sink creates, and the table's at staging."""
    types = {}
    for field in schema["fields"]:
        metadata = _metadata(field)
        if NATURAL in metadata:
            types[field["name"]] = (metadata[NATURAL], metadata["held_as"])
    return types


def _metadata(field: Json) -> Json:
    return field.get("metadata") or {}
