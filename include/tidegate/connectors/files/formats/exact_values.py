"""Detects values that Spark's JSON and CSV readers would change silently.

Spark rounds a decimal with more places than its column. It reads a number in a timestamp column as seconds, so that
milliseconds end up in the year 57972. In CSV, it replaces bytes that are not UTF-8 by U+FFFD. So decimals are read with
as many places as possible, or as text if they have 38 digits and no room for more, and each row is checked before it is
cast to its declared types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tidegate.connectors.schema.ddl import Column, parse_ddl
from tidegate.records.names import field_of, quoted

__all__ = ["as_declared", "as_read", "doubt", "doubt_of", "doubtful_values", "inner_types", "is_read_as_text"]

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_MAX_DIGITS: Final = 38
_TEXT: Final = "string"


def inner_types(kind: str) -> tuple[str, list[Column]]:
    """Split a type into `array`, `map` or `struct` and its parts. Other types have no parts."""
    outer, _, inner = kind.partition("<")
    if outer == "struct":
        return outer, parse_ddl(inner[:-1])
    if outer == "array":
        return outer, [Column("element", inner[:-1])]
    if outer == "map":
        as_struct = parse_ddl(f"s struct<key:{inner[:-1].replace(',', ',value:', 1)}>")[0].type
        return outer, parse_ddl(as_struct.partition("<")[2][:-1])
    return kind, []


def as_read(columns: list[Column]) -> list[Column]:
    """Return the columns as they are read: decimals with as many places as possible, or as text."""
    return [Column(column.name, _wide_type(column.type)) for column in columns]


def is_read_as_text(kind: str) -> bool:
    """Return whether a type contains a decimal of 38 digits. Only its text shows how many places a file has."""
    return re.search(rf"decimal\({_MAX_DIGITS},", kind) is not None


def as_declared(columns: list[Column]) -> list[str]:
    """Return SQL that casts the columns that were read to their declared types. No row may have a doubtful value."""
    casts = []
    for column in columns:
        name = quoted(column.name)
        if _wide_type(column.type) == column.type:
            casts.append(name)
        else:
            casts.append(f"try_cast({name} AS {column.type}) AS {name}")
    return casts


def doubt(columns: list[Column]) -> str:
    """Return SQL that is true if a row has a value that its declared type cannot hold."""
    conditions = [f"({condition})" for _, condition in _doubtful_columns(columns)]
    return " OR ".join(conditions) or "false"


def doubt_of(column: Column, value: str = "") -> str:
    """Return SQL that is true if a value is one that its column cannot hold, or "" if there are none.

    value: SQL for the value, if it is not the column's.
    """
    condition = _doubt_condition(value or quoted(column.name), column.type, 0)
    return f"coalesce({condition}, false)" if condition else ""


def doubtful_values(columns: list[Column]) -> str:
    """Return SQL for a readable list of those values, such as `amount 1.005`."""
    cases = []
    for column, condition in _doubtful_columns(columns):
        text = f"cast({quoted(column.name)} AS string)"
        if _wide_type(column.type).startswith("decimal"):
            text = f"trim(TRAILING '0' FROM {text})"
        name = column.name.replace("\\", "\\\\").replace("'", "\\'")
        cases.append(f"CASE WHEN {condition} THEN concat('{name} ', {text}) END")
    return f"concat_ws(', ', {', '.join(cases)})" if cases else "''"


def _doubtful_columns(columns: list[Column]) -> Iterator[tuple[Column, str]]:
    for column in columns:
        condition = doubt_of(column)
        if condition:
            yield column, condition


def _doubt_condition(value: str, kind: str, depth: int) -> str:
    """Return the SQL condition for one value, or "" if values of this type are always read unchanged."""
    match = _DECIMAL.fullmatch(kind)
    if match:
        fits = f"try_cast({value} AS {kind})"
        if _wide_type(kind) != _TEXT:
            return f"NOT ({fits} <=> {value})"
        return f"{value} IS NOT NULL AND ({fits} IS NULL OR {_has_more_places(value, int(match[2]))})"
    if kind in ("timestamp", "timestamp_ntz", "date"):
        return f"year({value}) NOT BETWEEN 1 AND 9999"
    outer, inner = inner_types(kind)
    element = f"x{depth}"
    if outer == "struct":
        conditions = [_doubt_condition(field_of(value, field.name), field.type, depth) for field in inner]
        return " OR ".join(f"coalesce({condition}, false)" for condition in conditions if condition)
    if outer in ("array", "map"):
        condition = _doubt_condition(element, inner[-1].type, depth + 1)
        elements = value if outer == "array" else f"map_values({value})"
        if condition:
            return f"exists({elements}, {element} -> coalesce({condition}, false))"
    return ""


def _has_more_places(text: str, limit: int) -> str:
    """Return SQL that is true if a number's text has more decimal places than `limit`. Trailing zeros do not count."""
    places = f"length(regexp_extract({text}, '[.]([0-9]*[1-9])?0*([eE]|$)', 1))"
    zeros = f"length(regexp_extract({text}, '([0-9]*?)(0*)([.]0*)?([eE]|$)', 2))"
    power = f"coalesce(try_cast(nullif(regexp_extract({text}, '[eE]([+-]?[0-9]+)$', 1), '') AS int), 0)"
    not_zero = f"rlike({text}, '^[^eE]*[1-9]')"
    return f"rlike({text}, '[.eE]') AND {not_zero} AND {places} - if({places} = 0, {zeros}, 0) - {power} > {limit}"


def _wide_type(kind: str) -> str:
    """Return the type with the most decimal places, or text, in place of each decimal."""
    match = _DECIMAL.fullmatch(kind)
    if match:
        digits, places = int(match[1]), int(match[2])
        if digits == _MAX_DIGITS:
            return _TEXT
        return f"decimal({_MAX_DIGITS},{_MAX_DIGITS - (digits - places)})"
    outer, inner = inner_types(kind)
    if outer == "array":
        return f"array<{_wide_type(inner[0].type)}>"
    if outer == "map":
        return f"map<{inner[0].type},{_wide_type(inner[1].type)}>"
    if outer == "struct":
        fields = [f"{quoted(field.name)}:{_wide_type(field.type)}" for field in inner]
        return f"struct<{','.join(fields)}>"
    return kind
