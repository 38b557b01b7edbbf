"""Values that Spark's readers of JSON and CSV change on the way in, without a word, are told from those that fit.

A decimal with more places than its column has is rounded; a number in a column of moments is taken for seconds, so that
milliseconds are the year 57972; bytes that are no UTF-8 become U+FFFD in CSV. So decimals are read with all the places
that they can have (those of 38 digits, which have room for no more, as text), and each row is judged before it gets its
declared types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tidegate.records.names import quoted
from tidegate.sources.ddl import Column, parse_ddl

__all__ = ["doubt", "doubtful_values", "inner_types", "is_read_as_text", "narrow", "wide"]

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_MOST: Final = 38
_TEXT: Final = "string"


def inner_types(kind: str) -> tuple[str, list[Column]]:
    """`array`, `map` or `struct`, and what it is made of (key and value of a map); any other type, and nothing."""
    outer, _, inner = kind.partition("<")
    if outer == "struct":
        return outer, parse_ddl(inner[:-1])
    if outer == "array":
        return outer, [Column("element", inner[:-1])]
    if outer == "map":
        made_of = parse_ddl(f"s struct<key:{inner[:-1].replace(',', ',value:', 1)}>")[0].type
        return outer, parse_ddl(made_of.partition("<")[2][:-1])
    return kind, []


def wide(columns: list[Column]) -> list[Column]:
    """The columns as they are read: decimals with as many places as there can be, or as text."""
    return [Column(column.name, _wide(column.type)) for column in columns]


def is_read_as_text(kind: str) -> bool:
    """Whether there is a decimal in a type of so many digits that only its text tells how many places a file has."""
    return re.search(rf"decimal\({_MOST},", kind) is not None


def narrow(columns: list[Column]) -> list[str]:
    """SQL for the columns as they were declared, from those that were read. Only rows without doubt come so far."""
    return [
        f"{quoted(c.name)}"
        if _wide(c.type) == c.type
        else f"try_cast({quoted(c.name)} AS {c.type}) AS {quoted(c.name)}"
        for c in columns
    ]


def doubt(columns: list[Column]) -> str:
    """SQL: whether a row that was read holds something that its declared types cannot."""
    return " OR ".join(f"({each})" for _, each in _doubts(columns)) or "false"


def doubtful_values(columns: list[Column]) -> str:
    """SQL: these values, as people read them: `amount 1.005`."""
    told = []
    for column, condition in _doubts(columns):
        text = f"cast({quoted(column.name)} AS string)"
        if _wide(column.type).startswith("decimal"):
            text = f"trim(TRAILING '0' FROM {text})"
        name = column.name.replace("\\", "\\\\").replace("'", "\\'")
        told.append(f"CASE WHEN {condition} THEN concat('{name} ', {text}) END")
    return f"concat_ws(', ', {', '.join(told)})" if told else "''"


def _doubts(columns: list[Column]) -> Iterator[tuple[Column, str]]:
    for column in columns:
        if condition := _doubt(quoted(column.name), column.type, 0):
            yield column, f"coalesce({condition}, false)"


def _doubt(value: str, kind: str, depth: int) -> str:
    """SQL for one value; empty: a value of this type is always what the file holds."""
    if match := _DECIMAL.fullmatch(kind):
        fits = f"try_cast({value} AS {kind})"
        if _wide(kind) != _TEXT:
            return f"NOT ({fits} <=> {value})"
        return f"{value} IS NOT NULL AND ({fits} IS NULL OR {_has_more_places(value, int(match[2]))})"
    if kind in ("timestamp", "timestamp_ntz", "date"):
        return f"year({value}) NOT BETWEEN 1 AND 9999"
    outer, inner = inner_types(kind)
    each = f"x{depth}"
    if outer == "struct":
        found = [_doubt(f"{value}.{quoted(field.name)}", field.type, depth) for field in inner]
        return " OR ".join(f"coalesce({one}, false)" for one in found if one)
    if outer == "array" and (one := _doubt(each, inner[0].type, depth + 1)):
        return f"exists({value}, {each} -> coalesce({one}, false))"
    if outer == "map" and (one := _doubt(each, inner[1].type, depth + 1)):
        return f"exists(map_values({value}), {each} -> coalesce({one}, false))"
    return ""


def _has_more_places(text: str, most: int) -> str:
    """SQL: whether a number's text has more decimal places than that; zeros at its end do not count."""
    places = f"length(regexp_extract({text}, '[.]([0-9]*[1-9])?0*([eE]|$)', 1))"
    zeros = f"length(regexp_extract({text}, '([0-9]*?)(0*)([.]0*)?([eE]|$)', 2))"
    power = f"coalesce(try_cast(nullif(regexp_extract({text}, '[eE]([+-]?[0-9]+)$', 1), '') AS int), 0)"
    not_zero = f"rlike({text}, '^[^eE]*[1-9]')"
    return f"rlike({text}, '[.eE]') AND {not_zero} AND {places} - if({places} = 0, {zeros}, 0) - {power} > {most}"


def _wide(kind: str) -> str:
    if match := _DECIMAL.fullmatch(kind):
        digits, places = int(match[1]), int(match[2])
        return f"decimal({_MOST},{_MOST - (digits - places)})" if digits < _MOST else _TEXT
    outer, inner = inner_types(kind)
    if outer == "array":
        return f"array<{_wide(inner[0].type)}>"
    if outer == "map":
        return f"map<{inner[0].type},{_wide(inner[1].type)}>"
    if outer == "struct":
        return f"struct<{','.join(f'{quoted(field.name)}:{_wide(field.type)}' for field in inner)}>"
    return kind
