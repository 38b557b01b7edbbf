"""Wider types: those that hold each value of a narrower one unchanged, and that tables can change a column to.

tinyint, smallint, int     a larger one of them, bigint, or double
float                      double
decimal(p,s)               a decimal with no fewer digits before the point, and after it
date                       timestamp_ntz
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_wider", "wider_type"]

_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s?(\d+)\)")
_MAX_DIGITS: Final = 38


def wider_type(column: str, found: str) -> str | None:
    """Return the type that a column has to become to hold values of another type, too.

    None: it holds them already, or no wider type does. Types are as Spark spells them.
    """
    if column in _WHOLE and found in _WHOLE:
        return found if _WHOLE.index(found) > _WHOLE.index(column) else None
    if column in _WHOLE[:3] and found in ("float", "double"):
        return "double"
    if column == "float" and (found == "double" or found in _WHOLE[:3]):
        return "double"
    if (column, found) == ("date", "timestamp_ntz"):
        return found
    return _wider_decimal(column, found)


def is_wider(before: str, now: str) -> bool:
    """Return whether a column of the type `before` may become one of the type `now`."""
    return before != now and wider_type(before, now) == now


def _wider_decimal(column: str, found: str) -> str | None:
    has = _DECIMAL.fullmatch(column)
    needs = _DECIMAL.fullmatch(f"decimal({_DIGITS[found]},0)" if found in _DIGITS else found)
    if has is None or needs is None:
        return None
    places = max(int(has[2]), int(needs[2]))
    digits = max(int(has[1]) - int(has[2]), int(needs[1]) - int(needs[2])) + places
    if digits > _MAX_DIGITS or (digits, places) == (int(has[1]), int(has[2])):
        return None
    return f"decimal({digits},{places})"
