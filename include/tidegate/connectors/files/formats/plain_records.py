"""Recognizes most JSON records by their shape, so that the costly checks of `json_lines` are left to the others.

One regular expression costs less than half of one more parse. A record that it does not match may still be fine: it is
only looked at more closely.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.connectors.schema.ddl import Column as Field

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["is_plain_record"]

_BLANK: Final = r"[ \t\r\n]*+"
_TEXT: Final = r'"[^"\\{}]*+"'
_SCALAR: Final = r'[^"\\{}\[\],]++'
_SCALARS: Final = r'\[(?:"[^"\\{}]*+"|[^"\\{}\[\]]++)*+\]'

_NOTHING: Final = "(?!)"
_ESCAPED_IN_JSON: Final = re.compile(r'["\\\x00-\x1f]')
"""A record spells a key with these in another way, and what it spells like the name is another key."""
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_DATE: Final = (
    "(?:19|20)[0-9]{2}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|"
    "(?:0[13578]|1[02])-31)"
)
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?+"
_FITTING: Final = {
    "string": _TEXT,
    "boolean": "(?:true|false)",
    "tinyint": "-?+[0-9]{1,2}+",
    "smallint": "-?+[0-9]{1,4}+",
    "int": "-?+[0-9]{1,9}+",
    "bigint": "-?+[0-9]{1,18}+",
    "double": r"-?+[0-9]{1,300}+(?:\.[0-9]++)?+",
    "date": f'"{_DATE}"',
    "timestamp": f'"{_DATE}[T ]{_CLOCK}(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])?+"',
    "timestamp_ntz": f'"{_DATE}[T ]{_CLOCK}"',
}

_EXACT_DOUBLE: Final = r"-?+[0-9]{1,15}+(?:\.[0-9]++)?+"
"""A number whose whole part a double holds unchanged."""

MAX_LENGTH: Final = 8_000
"""The longest record that is matched. Java's regular expressions need stack for each key."""


def is_plain_record(
    text: Column,
    columns: Sequence[Field],
    *,
    all_keys_known: bool,
    values_fit: bool = False,
    doubles_are_exact: bool = False,
) -> Column:
    """Return whether a text is one flat JSON object, with nothing behind it, and with keys that need no attention.

    all_keys_known: accept only keys that are columns. Otherwise accept all, except those that differ from a column in
        nothing but case.
    values_fit: accept only values of which it is certain that their column can hold them.
    doubles_are_exact: with `values_fit`, accept no whole number that a double might round.
    """
    from pyspark.sql import functions as F

    columns = [column for column in columns if not _ESCAPED_IN_JSON.search(column.name)]
    names = [re.escape(column.name) for column in columns] or [_NOTHING]
    listed = "|".join(names)
    any_value = f"(?:{_TEXT}|{_SCALAR}|{_SCALARS})"
    if values_fit:
        by_column = [
            f'"{name}"{_BLANK}:{_BLANK}(?:{_fitting(column.type, doubles_are_exact)}|null)'
            for name, column in zip(names, columns, strict=False)  # without columns, there is one name that never fits
        ]
        known = f"(?:{'|'.join(by_column) or _NOTHING})"
    else:
        known = f'"(?:{listed})"{_BLANK}:{_BLANK}{any_value}'
    member = known
    if not all_keys_known:
        member = rf'(?:{known}|"(?!(?iu:{listed})")[^"\\]*+"{_BLANK}:{_BLANK}{any_value})'
    pattern = rf"\A{_BLANK}\{{(?:{_BLANK}{member}{_BLANK}(?:,(?={_BLANK}\")|\}}{_BLANK}\z))++\z"
    return (F.length(text) <= F.lit(MAX_LENGTH)) & text.rlike(pattern)


def _fitting(kind: str, doubles_are_exact: bool) -> str:
    """Return a pattern for values that a column of this type certainly holds unchanged."""
    if kind == "double" and doubles_are_exact:
        return _EXACT_DOUBLE
    if kind in _FITTING:
        return _FITTING[kind]
    decimal = _DECIMAL.fullmatch(kind)
    if decimal:
        whole, places = int(decimal[1]) - int(decimal[2]), int(decimal[2])
        fraction = rf"(?:\.[0-9]{{1,{places}}}+)?+" if places else ""
        return rf"-?+[0-9]{{1,{whole}}}+{fraction}" if whole else _NOTHING
    return _NOTHING
